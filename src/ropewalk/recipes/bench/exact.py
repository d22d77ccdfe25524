"""The rotation in float64, written apart from the library: what every contender is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.spec import PairLayout

THETA = 10_000.0
"""Base of the ladder in all benchmarks: the one value that every peer's code allows."""


def exact_table(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines in float64.

    Args:
        positions: Integers, ``(seq,)``.
        head_dim: Width of the vectors, even.

    Returns:
        Two tensors ``(seq, head_dim / 2)``.
    """
    rungs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = positions.double()[:, None] * THETA**-rungs
    return angles.cos(), angles.sin()


def exact_rotation(x: Tensor, table: tuple[Tensor, Tensor], layout: PairLayout) -> Tensor:
    """Return the vectors rotated in float64.

    Args:
        x: ``(batch, heads, seq, head_dim)``, any floating dtype.
        table: Cosines and sines of the positions, ``(seq, head_dim / 2)``; with the sines negated
            the rotation goes backward.
        layout: Which coordinates form a pair.
    """
    cos, sin = table
    result = torch.empty(x.shape, dtype=torch.float64)
    half = x.shape[-1] // 2
    parts = (
        (slice(0, half), slice(half, None))
        if layout == "half"
        else (slice(0, None, 2), slice(1, None, 2))
    )
    a, b = (x[..., part].double() for part in parts)
    result[..., parts[0]] = a * cos - b * sin
    result[..., parts[1]] = a * sin + b * cos
    return result


def largest_error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the largest absolute difference of two lists of tensors; nan where there is one.

    Args:
        found: What a contender answers.
        wanted: The same in float64.
    """
    if [x.shape for x in found] != [x.shape for x in wanted]:
        return float("nan")
    differences = [(a.double() - b).abs().max().item() for a, b in zip(found, wanted, strict=True)]
    return max(differences, key=lambda error: (error != error, error))
