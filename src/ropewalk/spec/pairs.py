"""Which coordinates form a pair: the layouts, and the rows that a spec is written out in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks

if TYPE_CHECKING:
    from numpy.typing import NDArray

PairLayout = Literal["interleaved", "half"]
"""Which coordinates form pair j of a rotated slice of width r: (2j, 2j + 1), or (j, j + r/2)."""
LAYOUTS: tuple[PairLayout, ...] = get_args(PairLayout)

PAIR_DTYPE = np.dtype(
    [
        ("in_a", np.int64),
        ("in_b", np.int64),
        ("out_a", np.int64),
        ("out_b", np.int64),
        ("axis", np.int64),
        ("inv_freq", np.float64),
        ("sign", np.int64),
        ("amplitude", np.float64),
    ]
)


def pair_members(
    rotary_dim: int, layout: PairLayout, rotary_offset: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the two coordinates of every pair of a rotated slice.

    Args:
        rotary_dim: Width r of the slice, even.
        layout: "interleaved" pairs (2j, 2j + 1), "half" pairs (j, j + r/2).
        rotary_offset: First coordinate of the slice.

    Returns:
        First and second members, two int64 arrays of shape ``(rotary_dim / 2,)``.

    Example:
        >>> pair_members(4, "half")
        (array([0, 1]), array([2, 3]))
    """
    coordinates = np.arange(rotary_offset, rotary_offset + rotary_dim, dtype=np.int64)
    if layout == "interleaved":
        return coordinates[0::2], coordinates[1::2]
    return coordinates[: rotary_dim // 2], coordinates[rotary_dim // 2 :]


LARGEST = 1 << 16
"""Widest head, and largest axis and rung, that are believed: more would only fill the memory."""


def tuple_of_axes(axes: object) -> tuple[tuple[int, int], ...]:
    """Return ``axes`` as a tuple of (axis, rung) ints, or refuse it.

    Args:
        axes: A sequence of pairs of integers from 0.

    Raises:
        ConfigError: Anything else.
    """
    try:
        rows = [tuple(row) for row in axes]  # type: ignore[attr-defined]
    except TypeError:
        rows = [()]
    if any(len(row) != 2 for row in rows):
        raise ConfigError(f"axes must be a sequence of (axis, rung); got {checks.abridged(axes)}")
    pairs = tuple(
        (
            checks.integer("axis in axes", axis, at_least=0),
            checks.integer("rung in axes", rung, at_least=0),
        )
        for axis, rung in rows
    )
    for name, index in (("axis", 0), ("rung", 1)):
        largest = max((pair[index] for pair in pairs), default=0)
        if largest > LARGEST:  # the ladder is computed as a whole, up to the largest rung
            raise ConfigError(f"{name} in axes must be at most {LARGEST}; got {largest}")
    return pairs
