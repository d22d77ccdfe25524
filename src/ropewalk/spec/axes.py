"""Which axis of the positions drives which pair: M-RoPE sections and axial ladders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

Axes = tuple[tuple[int, int], ...]
"""(axis, rung) of every pair, the field ``axes`` of a spec."""


def contiguous(sections: Sequence[int], pairs: int) -> Axes:
    """Return M-RoPE of Qwen2-VL: each axis has one run of the ladder.

    Args:
        sections: Pairs per axis (time, height, width); their sum must be ``pairs``.
        pairs: Number of rotated pairs.

    Raises:
        ConfigError: The sum is another.

    References:
        Wang et al., 2024, arXiv:2409.12191, section 2.1.

    Example:
        >>> contiguous((1, 1, 2), 4)
        ((0, 0), (1, 1), (2, 2), (2, 3))
    """
    sections = checked_sections(sections)
    _check_sum(sections, pairs)
    owners = [axis for axis, length in enumerate(sections) for _ in range(length)]
    return tuple((axis, rung) for rung, axis in enumerate(owners))


def strided(sections: Sequence[int], pairs: int) -> Axes:
    """Return the interleaved M-RoPE of Qwen3-VL: THWTHW..., the rest time.

    Pair j belongs to axis a > 0 iff j mod 3 = a and j < 3 * sections[a].

    Args:
        sections: Pairs per axis (time, height, width); the first is what the others leave.
        pairs: Number of rotated pairs.

    Raises:
        ConfigError: Not three sections.

    References:
        Qwen3-VL in transformers, ``recomposition_frequencies``.

    Example:
        >>> [axis for axis, _ in strided((3, 2, 1), 6)]
        [0, 1, 2, 0, 1, 0]
    """
    sections = checked_sections(sections)
    owners = [j % 3 if j < 3 * sections[j % 3] else 0 for j in range(pairs)]
    return tuple((axis, rung) for rung, axis in enumerate(owners))


def ernie(sections: Sequence[int], pairs: int) -> Axes:
    """Return the M-RoPE of ERNIE 4.5 VL: HWHW..., then time on the slow end.

    Args:
        sections: Pairs for (height, width, time), in this order; height and width equal.
        pairs: Number of rotated pairs.

    Raises:
        ConfigError: The sum is not ``pairs``, or height and width differ.

    References:
        ERNIE 4.5 VL in transformers, ``recomposition_frequencies``.

    Example:
        >>> ernie((1, 1, 2), 4)
        ((1, 0), (2, 1), (0, 2), (0, 3))
    """
    height, width, time = checked_sections(sections)
    _check_sum((height, width, time), pairs)
    if height != width:
        raise ConfigError(
            f"mrope_section must give height and width the same; got {height} and {width}"
        )
    return tuple((1 + j % 2 if j < height + width else 0, j) for j in range(pairs))


def alternating(pairs: int) -> Axes:
    """Return two axes that take the rungs of one ladder in turn.

    Args:
        pairs: Number of rotated pairs.

    Example:
        >>> alternating(4)
        ((0, 0), (1, 1), (0, 2), (1, 3))
    """
    return tuple((j % 2, j) for j in range(pairs))


def axial(order: Sequence[int], rungs: int) -> Axes:
    """Return one copy of the ladder per axis, block after block.

    Args:
        order: The axis of every block.
        rungs: Length of the ladder.

    Example:
        >>> axial((1, 0), 2)
        ((1, 0), (1, 1), (0, 0), (0, 1))
    """
    return tuple((axis, rung) for axis in order for rung in range(rungs))


def axial_alternating(order: Sequence[int], rungs: int) -> Axes:
    """Return one copy of the ladder per axis, the axes taking turns on every rung.

    Args:
        order: The axes, in the order of their turns.
        rungs: Length of the ladder.

    Example:
        >>> axial_alternating((1, 0), 2)
        ((1, 0), (0, 0), (1, 1), (0, 1))
    """
    return tuple((axis, rung) for rung in range(rungs) for axis in order)


def axial_split(rungs: int) -> Axes:
    """Return Pixtral's halves: even rungs of one ladder for height, odd ones for width.

    Args:
        rungs: Length of the ladder.

    Example:
        >>> axial_split(4)
        ((0, 0), (0, 2), (1, 1), (1, 3))
    """
    return tuple((axis, rung) for axis in (0, 1) for rung in range(axis, rungs, 2))


def checked_sections(sections: object) -> tuple[int, int, int]:
    """Return three numbers of pairs, or refuse them.

    Args:
        sections: A list or tuple of three integers from 0.

    Raises:
        ConfigError: Anything else.
    """
    if not isinstance(sections, list | tuple) or len(sections) != 3:
        raise ConfigError(
            f"mrope_section must be a list of three integers; got {checks.abridged(sections)}"
        )
    first, second, third = (checks.integer("mrope_section", n, at_least=0) for n in sections)
    return first, second, third


def _check_sum(sections: tuple[int, int, int], pairs: int) -> None:
    total = sum(sections)
    if total != pairs:
        raise ConfigError(
            f"mrope_section must add up to the {pairs} rotated pairs; "
            f"got {checks.abridged(list(sections))}, in all {checks.abridged(total)}"
        )
