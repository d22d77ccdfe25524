"""Find out which known mistake explains the frequencies or tables that a backend has dumped."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.by_length import DynamicNTK, LongRope
from ropewalk.spec.by_parts import Llama3, Yarn
from ropewalk.spec.engine_rules import stretched
from ropewalk.spec.rope_spec import RopeSpec
from ropewalk.spec.safetensors_file import read_header
from ropewalk.spec.scaling import Linear

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_MOST_BYTES = 1 << 30
_INV_FREQ_TOLERANCE = 4e-3  # half an ulp of bfloat16 is 2^-9 of the value
_TABLE_TOLERANCE = 8e-3  # and at most 2^-8 for values up to 2
_MOST_POSITIONS = 4096
_NAMES = ("inv_freq", "attention_factor", "cos", "sin")


@dataclass(frozen=True)
class Dump:
    """What a backend has written out: frequencies, or a table of cos and sin."""

    inv_freq: Array | None = None
    """Radians per position, shape ``(pairs,)`` or twice as many."""
    attention_factor: float | None = None
    """Factor on cos and sin, where it is dumped beside the frequencies."""
    cos: Array | None = None
    """Shape ``(positions, pairs)`` or twice as wide, from position 0 on."""
    sin: Array | None = None


@dataclass(frozen=True)
class Match:
    """One explanation of a dump."""

    code: str
    """RIGHT, or the name of the mistake."""
    text: str
    error: float
    """Largest deviation that is left: relative for frequencies, absolute for tables."""


@dataclass(frozen=True)
class Verdict:
    """The answer of ``ropewalk verify``."""

    best: Match | None
    """The explanation within tolerance that fits best; None: nothing known explains the dump."""
    nearest: Match
    """The explanation that fits best, within tolerance or not."""
    table_layout: str
    """How the table is stored: "half width", "half" or "interleaved"."""

    @property
    def is_right(self) -> bool:
        """Whether the dump is what the configuration says."""
        return self.best is not None and self.best.code == "RIGHT"


def load_dump(path: str | os.PathLike[str]) -> Dump:
    """Read a dump.

    Args:
        path: A .npy file: frequencies (1-D), cos and sin stacked (2, positions, width), or a
            cache of cos | sin side by side (positions, 2 * pairs). Or a .json file: a list of
            frequencies, or an object with inv_freq (and attention_factor), or with cos and sin.
            Or a .npz or .safetensors file with arrays of these names.

    Raises:
        ConfigError: The file is missing, too large, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"DUMP must be a file; got {str(path)!r}, which is none")
    if path.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"DUMP must be a file of at most {_MOST_BYTES} bytes; got {str(path)!r}")
    try:
        if path.suffix in (".npy", ".npz"):
            with path.open("rb") as stream:  # numpy leaves its own open where the content is bad
                found = np.load(stream, allow_pickle=False)
                if isinstance(found, np.ndarray):
                    return _from_array(found)
                return _from_named({name: found[name] for name in found if name in _NAMES})
        if path.suffix == ".safetensors":
            file = read_header(path)
            return _from_named(
                {
                    entry.name: file.rows(entry, 0, math.prod(entry.shape[:1])).reshape(entry.shape)
                    for entry in file.entries
                    if entry.name in _NAMES
                }
            )
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, EOFError, BadZipFile) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"DUMP must be .npy, .npz, .safetensors or .json; got {str(path)!r}: {error}"
        ) from error


def verify(
    dump: Dump, spec: RopeSpec, *, seq_len: int | None = None, longest: int | None = None
) -> Verdict:
    """Compare a dump with a rotation, and with the rotation under each known mistake.

    Args:
        dump: Frequencies or tables.
        spec: What it should be.
        seq_len: Length of the row the dump was made for, where the rule depends on it.
        longest: max_position_embeddings, which some backends take for the trained length.

    Raises:
        ConfigError: The dump has another number of pairs than every hypothesis.

    Example:
        >>> from ropewalk import Linear, RopeSpec
        >>> spec = RopeSpec(8, "half", scaling=Linear(4.0))
        >>> verify(Dump(inv_freq=spec.inv_freq() * 4), spec).best.code
        'UNSCALED'
    """
    length = seq_len or longest or 1
    if dump.inv_freq is not None:
        found = _by_frequency(dump, spec, length, longest)
        stored = "half width"
    else:
        found, stored = _by_table(dump, spec, length, longest)
    tolerance = _INV_FREQ_TOLERANCE if dump.inv_freq is not None else _TABLE_TOLERANCE
    found.sort(key=lambda match: match.error)  # stable: of equal ones the first, RIGHT, wins
    nearest = found[0]
    right = next((m for m in found if m.code == "RIGHT"), None)
    if right and right.error <= max(nearest.error * 1.001, 1e-6):
        nearest = right
    return Verdict(nearest if nearest.error <= tolerance else None, nearest, stored)


def hypotheses(
    spec: RopeSpec, seq_len: int, longest: int | None
) -> Iterator[tuple[str, str, Array]]:
    """Yield code, words and frequencies of the right answer and of every known mistake.

    Args:
        spec: What it should be.
        seq_len: Length of the row.
        longest: max_position_embeddings.
    """
    right, plain = spec.inv_freq(seq_len), spec.replace(scaling=None).inv_freq()
    yield "RIGHT", "what the configuration says", right
    rule = spec.scaling
    if rule is not None:
        yield "UNSCALED", "the rule is read and never applied", plain
    if spec.theta != 10_000.0:
        base = _try(lambda: spec.replace(theta=10_000.0).inv_freq(seq_len))
        if base is not None:
            yield "THETA_LOST", "the base is 10,000 instead of the configured one", base
        yield (
            "THETA_LOST_UNSCALED",
            "the base is 10,000 and the rule is not applied",
            spec.replace(theta=10_000.0, scaling=None).inv_freq(),
        )
    if spec.rotary_dim != spec.head_dim:
        exponents = np.arange(spec.n_pairs) * (-2.0 / spec.head_dim)
        yield (
            "PARTIAL_EXPONENT",
            "the exponents are divided by head_dim instead of rotary_dim",
            np.float64(spec.theta) ** exponents,
        )
        whole = _try(lambda: RopeSpec(spec.head_dim, spec.layout, theta=spec.theta).inv_freq())
        if whole is not None:  # of an odd head nothing can turn as a whole
            yield "PARTIAL_IGNORED", "the whole head turns", whole
    factor = getattr(rule, "factor", None)
    if factor is not None:
        yield "LINEAR_INSTEAD", "every pair is divided by the factor", plain / factor
        yield "FACTOR_INVERTED", "pairs turn faster by the factor", plain * factor
        with np.errstate(divide="ignore", invalid="ignore"):
            twice = np.where(plain > 0, right * (right / plain), 0.0)
        yield "SCALED_TWICE", "the rule is applied twice", twice
    yield from _of_rule(spec, seq_len, longest, plain, right)


def _of_rule(
    spec: RopeSpec, seq_len: int, longest: int | None, plain: Array, right: Array
) -> Iterator[tuple[str, str, Array]]:
    """Yield the mistakes that belong to one rule."""
    rule = spec.scaling

    def with_rule(**changes: Any) -> Array:
        return spec.replace(scaling=replace(rule, **changes)).inv_freq(seq_len)  # type: ignore[type-var]

    if isinstance(rule, Yarn | Llama3):
        if longest is not None and longest != rule.original_max_position_embeddings:
            table = _try(lambda: with_rule(original_max_position_embeddings=longest))
            if table is not None:
                yield "ORIGINAL_WRONG", "max_position_embeddings is taken as trained length", table
        inverted = plain / rule.factor + plain - right
        yield "RAMP_REVERSED", "fast pairs are slowed and slow ones kept", inverted
    if isinstance(rule, Yarn):
        yield (
            "TRUNCATE_WRONG",
            f"truncate is {not rule.truncate}",
            with_rule(truncate=not rule.truncate),
        )
        other: Any = "paper" if rule.ramp == "code" else "code"
        yield "RAMP_FORM", "the ramp is linear in turns, as in the paper", with_rule(ramp=other)
        if (rule.beta_fast, rule.beta_slow) != (32.0, 1.0):
            yield "BETAS_IGNORED", "the betas are 32 and 1", with_rule(beta_fast=32, beta_slow=1)
    if isinstance(rule, LongRope):
        for name, list_ in (("SHORT", rule.short_factor), ("LONG", rule.long_factor)):
            text = f"the {name.lower()} factors at every length"
            yield f"LONGROPE_{name}", text, plain / np.array(list_)
    if isinstance(rule, DynamicNTK) and rule.factor is not None:
        original = rule.original_max_position_embeddings or 1
        static = spec.inv_freq(stretched(original, rule.factor))
        yield "DYNAMIC_STATIC", "the base for the longest context in every row", static
    if isinstance(rule, Linear):
        yield "POSITIONS_MULTIPLIED", "positions are multiplied by the factor", plain * rule.factor


def _by_frequency(dump: Dump, spec: RopeSpec, length: int, longest: int | None) -> list[Match]:
    given = np.asarray(dump.inv_freq, dtype=np.float64)
    found = []
    for code, text, table in hypotheses(spec, length, longest):
        shown = _as_wide_as(given, table)
        if shown is not None:
            found.append(Match(code, text, _relative(shown, table)))
    if not found:
        raise ConfigError(
            f"DUMP must have {spec.n_pairs} frequencies, or twice as many; got {given.size}"
        )
    amplitude, right = dump.attention_factor, float(spec.attention_factor(length))
    if amplitude is not None and not math.isclose(amplitude, right, rel_tol=4e-3):
        found = [_with_amplitude(match, amplitude, right) for match in found]
    return found


def _by_table(
    dump: Dump, spec: RopeSpec, length: int, longest: int | None
) -> tuple[list[Match], str]:
    assert dump.cos is not None
    assert dump.sin is not None
    cos, sin = dump.cos[:_MOST_POSITIONS], dump.sin[:_MOST_POSITIONS]
    if cos.ndim != 2 or cos.shape != sin.shape or len(cos) < 2:
        raise ConfigError(
            "cos and sin must have one shape (positions, width) with at least two positions; got "
            f"{cos.shape} and {sin.shape}"
        )
    cos, sin, stored = _half_width(cos, sin, spec.n_pairs)
    flipped = ""
    if np.median(cos[0]) < np.median(sin[0]):
        cos, sin, flipped = sin, cos, "COS_SIN_SWAPPED"
    amplitude, right = float(np.median(cos[0])), float(spec.attention_factor(length))
    scale = amplitude if amplitude > 0 else 1.0
    positions = np.arange(len(cos))[:, None]
    found = []
    for code, text, table in hypotheses(spec, length, longest):
        if table.size != cos.shape[1]:
            continue
        angles = positions * table * spec.position_scale * spec.direction
        for sign, name in ((1, ""), (-1, "ANGLE_NEGATED")):
            errors = (cos / scale - np.cos(angles), sin / scale - sign * np.sin(angles))
            match = Match(code, text, float(max(np.abs(error).max() for error in errors)))
            found.append(_renamed(match, name, "the angle is negated") if name else match)
    if not found:
        raise ConfigError(f"cos must be {spec.n_pairs} or twice as wide; got {dump.cos.shape[1]}")
    if not math.isclose(amplitude, right, rel_tol=4e-3):
        found = [_with_amplitude(match, amplitude, right) for match in found]
    if flipped:
        found = [_renamed(match, flipped, "cos and sin are exchanged") for match in found]
    pairing = {"half": "half", "interleaved": "interleaved"}.get(stored, spec.layout)
    if pairing != spec.layout:
        text = f"the table is laid out for {pairing} pairs, the model has {spec.layout} ones"
        found = [_renamed(match, "PAIRING_WRONG", text) for match in found]
    return found, stored


def _half_width(cos: Array, sin: Array, n_pairs: int) -> tuple[Array, Array, str]:
    """Return the tables at half width, and how they were stored."""
    width = cos.shape[1]
    if width == n_pairs or width % 2:
        return cos, sin, "half width"
    if np.array_equal(cos[:, : width // 2], cos[:, width // 2 :]):
        return cos[:, : width // 2], sin[:, : width // 2], "half"
    if np.array_equal(cos[:, 0::2], cos[:, 1::2]):
        return cos[:, 0::2], sin[:, 0::2], "interleaved"
    return cos, sin, "half width"


def _with_amplitude(match: Match, amplitude: float, right: float) -> Match:
    names = {
        "AMPLITUDE_MISSING": (1.0, "the factor on cos and sin is missing"),
        "AMPLITUDE_SQUARED": (right**2, "the factor on cos and sin is squared"),
        "AMPLITUDE_ROOT": (math.sqrt(right), "the factor on cos and sin is the square root"),
    }
    for name, (value, text) in names.items():
        if math.isclose(amplitude, value, rel_tol=4e-3):
            return _renamed(match, name, text)
    text = f"the factor on cos and sin is {amplitude:.6g} instead of {right:.6g}"
    return _renamed(match, "AMPLITUDE_WRONG", text)


def _renamed(match: Match, code: str, text: str) -> Match:
    if match.code == "RIGHT":
        return replace(match, code=code, text=text)
    return replace(match, code=f"{match.code}+{code}", text=f"{match.text}; {text}")


def _as_wide_as(given: Array, table: Array) -> Array | None:
    """Return the dumped frequencies once per pair, where they can be those of the table."""
    if given.size == table.size:
        return given
    if given.size == 2 * table.size:
        for one, other in ((given[: table.size], given[table.size :]), (given[0::2], given[1::2])):
            if np.array_equal(one, other):
                return one
    return None


def _relative(given: Array, table: Array) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.where(given == table, 0.0, np.abs(given - table) / np.abs(table))
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0))


def _try(make: Any) -> Array | None:
    try:
        table: Array = make()
    except ConfigError:
        return None
    return table


def _from_array(array: NDArray[Any]) -> Dump:
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ConfigError(f"DUMP must hold finite real numbers; got dtype {array.dtype}")
    values = array.astype(np.float64)
    if values.ndim == 1:
        return Dump(inv_freq=values)
    if values.ndim == 3 and values.shape[0] == 2:
        return Dump(cos=values[0], sin=values[1])
    if values.ndim == 2 and values.shape[1] % 2 == 0:
        cos, sin = np.split(values, 2, axis=1)
        return Dump(cos=cos, sin=sin)
    raise ConfigError(
        "DUMP must have the shape (pairs,), (2, positions, width) or (positions, 2 * pairs); got "
        f"{array.shape}"
    )


def _from_named(arrays: Mapping[str, NDArray[Any]]) -> Dump:
    """Return the dump of named arrays: inv_freq, or cos and sin."""
    if "inv_freq" in arrays:
        given = _from_array(arrays["inv_freq"].reshape(-1))
        factor = arrays.get("attention_factor")
        if factor is None:
            return given
        value = checks.real("attention_factor", float(factor.reshape(-1)[0]), above=0.0)
        return replace(given, attention_factor=value)
    if "cos" in arrays and "sin" in arrays and arrays["cos"].shape == arrays["sin"].shape:
        return _from_array(np.stack([arrays["cos"], arrays["sin"]]))
    raise ConfigError(
        "DUMP must hold inv_freq, or cos and sin of one shape; got "
        f"{checks.abridged(sorted(arrays))}"
    )


def _from_json(content: object) -> Dump:
    if isinstance(content, list):
        content = {"inv_freq": content}
    if not isinstance(content, dict):
        raise ConfigError(f"DUMP must be a list or an object; got {checks.abridged(content)}")
    factor = content.get("attention_factor", content.get("attention_scaling"))
    if "inv_freq" in content:
        values = np.array(checks.reals("inv_freq", content["inv_freq"], above=-math.inf))
        factor = None if factor is None else checks.real("attention_factor", factor, above=0.0)
        return Dump(inv_freq=values, attention_factor=factor)
    if "cos" in content and "sin" in content:
        tables = np.array([content["cos"], content["sin"]])
        return _from_array(tables)
    raise ConfigError(
        f"DUMP must hold inv_freq, or cos and sin; got the keys {checks.abridged(sorted(content))}"
    )
