"""What the figures of rotations draw, as named columns: one table for the figure and the CSV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.analysis.rotation import (
    bound_curve,
    pair_factors,
    similarity_curve,
    wavelength_ladder,
)
from ropewalk.errors import ConfigError
from ropewalk.spec import checks

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ropewalk.spec import RopeSpec

Curves = Mapping[str, Mapping[str, "NDArray[Any]"]]
"""Columns of one length, by the name of the curve; all curves have the same columns."""
DECAY_TITLES = {
    "bound": "A factor of the upper bound on attention scores",
    "similarity": "Similarity of equal vectors",
}
"""What a decay curve shows, by its kind: `bound_curve` or `similarity_curve`."""
_LONGEST_DENSE = 1024
_SPARSE_POINTS = 1000


def decay_curves(
    specs: Mapping[str, RopeSpec],
    distances: ArrayLike,
    *,
    kind: str,
    clamped: bool = False,
    seq_len: int | None = None,
) -> dict[str, dict[str, NDArray[Any]]]:
    """Return one measure of some rotations over the relative distance.

    Args:
        specs: Rotations by name.
        distances: Positions, shape ``(points,)``.
        kind: "bound" or "similarity".
        clamped: Whether to add, under "NAME, clamped", the similarity whose angles stop at pi.
        seq_len: Length of the row, for rules that depend on it.

    Returns:
        The columns "distance" and "bound" or "similarity" of every curve.

    Raises:
        ConfigError: The kind is not known, or has no clamped form; or as the measure says.

    Example:
        >>> from ropewalk import RopeSpec
        >>> curves = decay_curves({"rope": RopeSpec(4, "half")}, [0], kind="bound")
        >>> curves["rope"]["bound"]
        array([1.5])
    """
    checks.choice("kind", kind, tuple(DECAY_TITLES))
    if clamped and kind != "similarity":
        raise ConfigError(f"clamped needs kind='similarity'; got kind={kind!r}")
    points = np.asarray(distances)
    curves = {}
    for name, spec in specs.items():
        if kind == "bound":
            curves[name] = {"distance": points, kind: bound_curve(spec, points, seq_len=seq_len)}
            continue
        for limited in (False, True) if clamped else (False,):
            values = similarity_curve(spec, points, seq_len=seq_len, clamped=limited)
            curves[f"{name}, clamped" if limited else name] = {"distance": points, kind: values}
    return curves


def wavelength_curves(
    specs: Mapping[str, RopeSpec], window: int, *, seq_len: int | None = None
) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the `wavelength_ladder` of some rotations.

    Args:
        specs: Rotations by name.
        window: Length in which turns are counted, such as the trained one, in positions.
        seq_len: Length of the row, for rules that depend on it.

    Returns:
        The columns "pair", "wavelength", "turns" and "completes_turn" of every rotation.

    Raises:
        ConfigError: As `wavelength_ladder` says.
    """
    curves = {}
    for name, spec in specs.items():
        ladder = wavelength_ladder(spec, window, seq_len=seq_len)
        curves[name] = {
            "pair": np.arange(spec.n_pairs),
            "wavelength": ladder.wavelengths,
            "turns": ladder.turns,
            "completes_turn": ladder.completes_turn,
        }
    return curves


def factor_curves(
    specs: Mapping[str, RopeSpec], *, seq_len: int | None = None
) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the `pair_factors` of some rotations.

    Args:
        specs: Rotations by name.
        seq_len: Length of the row, for rules that depend on it.

    Returns:
        The columns "pair" and "factor" of every rotation.

    Raises:
        ConfigError: As `pair_factors` says.
    """
    return {
        name: {"pair": np.arange(spec.n_pairs), "factor": pair_factors(spec, seq_len=seq_len)}
        for name, spec in specs.items()
    }


def distances_up_to(longest: int) -> NDArray[np.int64]:
    """Return distances to draw a curve at: every one of a short range, from 0 on.

    Of a range beyond 1024 they are about a thousand whole numbers from 1 on, dense at first and
    then in equal ratios, for a logarithmic axis.

    Args:
        longest: Greatest distance, in positions, 1 to 2^53.

    Raises:
        ConfigError: Not such an integer.

    Example:
        >>> distances_up_to(3)
        array([0, 1, 2, 3])
    """
    longest = checks.integer("max_distance", longest, at_least=1, at_most=2**53)
    if longest <= _LONGEST_DENSE:
        return np.arange(longest + 1, dtype=np.int64)
    points = np.unique(np.geomspace(1, longest, _SPARSE_POINTS).round().astype(np.int64))
    points[-1] = longest  # exactly, whatever the rounding
    return points
