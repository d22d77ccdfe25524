"""How two rotations differ: per pair, in amplitude, and from which position on it shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.merged import ALL_LAYERS
from ropewalk.spec.spectrum import frequency_ratios

if TYPE_CHECKING:
    from ropewalk.spec.engines import EngineReading
    from ropewalk.spec.rope_spec import RopeSpec

PHASE_ERROR = 0.1
"""Radians from which on a difference of angles counts."""


@dataclass(frozen=True)
class Difference:
    """What changes from rotation a to rotation b."""

    layer_type: str
    ratios: tuple[float, ...]
    """Frequency in b / frequency in a, per pair; 1 where both stand still."""
    amplitudes: tuple[float, float]
    layouts: tuple[str, str]
    first_position: int | None
    """First position with a phase error above 0.1 rad on some pair; None: no position below
    2^53."""
    worst_pair: int | None
    """The pair with the largest phase error."""

    @property
    def is_none(self) -> bool:
        """Whether the two rotate alike, to one part in a million."""
        same = np.allclose(self.ratios, 1.0, rtol=0, atol=1e-6)
        a, b = self.amplitudes
        return bool(same) and math.isclose(a, b, rel_tol=1e-6) and len(set(self.layouts)) == 1


def compare_specs(
    a: RopeSpec, b: RopeSpec, *, seq_len: int | None = None, layer_type: str = ALL_LAYERS
) -> Difference:
    """Compare two rotations pair by pair.

    Args:
        a: The reference.
        b: The other one, with as many pairs.
        seq_len: Length of the row, for rules that depend on it.
        layer_type: Name of the layers, for the answer.

    Raises:
        ConfigError: The numbers of pairs differ, or seq_len is missing.

    Example:
        >>> from ropewalk import Linear, RopeSpec
        >>> a = RopeSpec(4, "half", theta=100.0)
        >>> compare_specs(a, a.replace(scaling=Linear(2.0))).first_position  # 0.5 rad each
        1
    """
    if a.n_pairs != b.n_pairs:
        raise ConfigError(
            f"two rotations must have as many pairs to be compared; got {a.n_pairs} and {b.n_pairs}"
        )
    first, second = a.inv_freq(seq_len), b.inv_freq(seq_len)
    ratios = frequency_ratios(second, first)
    gap = np.abs(first - second)
    worst = int(np.argmax(gap)) if gap.max(initial=0.0) > 0 else None
    position = None
    if worst is not None and PHASE_ERROR / gap[worst] < 2**53:
        position = math.floor(PHASE_ERROR / gap[worst]) + 1
    return Difference(
        layer_type,
        tuple(ratios.tolist()),
        (float(a.attention_factor(seq_len)), float(b.attention_factor(seq_len))),
        (a.layout, b.layout),
        position,
        worst,
    )


def compare_readings(
    a: EngineReading, b: EngineReading, *, seq_len: int | None = None
) -> tuple[Difference, ...]:
    """Compare what two engines make of a file, or one engine of two files.

    A rotation for all layers is compared with each of those by layer type.

    Args:
        a: The reference.
        b: The other reading.
        seq_len: Length of the row, for rules that depend on it.

    Raises:
        ConfigError: One of them has no rotation, or their layer types do not correspond.
    """
    for reading in (a, b):
        if reading.problem:
            raise ConfigError(f"{reading.engine} has no rotation for it: {reading.problem}")
    names = [name for name in (*a.specs, *b.specs) if name != ALL_LAYERS] or [ALL_LAYERS]
    found = []
    for name in dict.fromkeys(names):
        pair = [reading.specs.get(name, reading.specs.get(ALL_LAYERS)) for reading in (a, b)]
        if pair[0] is None and pair[1] is None:
            continue
        if pair[0] is None or pair[1] is None:
            raise ConfigError(
                f"layer type {checks.abridged(name)} must turn in both; it does in one alone"
            )
        found.append(compare_specs(pair[0], pair[1], seq_len=seq_len, layer_type=name))
    return tuple(found)
