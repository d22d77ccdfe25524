"""Move weights between pair layouts, so that the rotated scores stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ropewalk.errors import ConfigError, ShapeError
from ropewalk.rotary.checks import tensors
from ropewalk.spec.checks import choice, integer
from ropewalk.spec.pairs import LARGEST, LAYOUTS, pair_members

if TYPE_CHECKING:
    from torch import Tensor

    from ropewalk.spec import PairLayout


def convert_layout(
    weight: Tensor,
    *,
    source: PairLayout,
    target: PairLayout,
    head_dim: int,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
) -> Tensor:
    r"""Permute the rows of a query or key projection from one pair layout to another.

    With P the permutation, rotating P W x in the target layout gives P times the rotation of W x in
    the source layout; scores are unchanged when queries and keys are converted alike. Values need
    it only if the model rotates them, and then the output projection must follow.

    Args:
        weight: ``(heads * head_dim, ...)``: the weight of the projection, or its bias; any dtype.
            Grouped key heads are converted in the same way.
        source: Layout the rows are in.
        target: Layout they shall be in.
        head_dim: Rows per head.
        rotary_dim: Width of the rotated slice, even; None means head_dim.
        rotary_offset: First rotated row of a head. Other rows keep their place.

    Returns:
        A new tensor with the same rows in another order.

    Raises:
        ShapeError: The first dimension is not a multiple of head_dim.
        ConfigError: A layout is unknown, or the slice does not fit the head.

    Example:
        >>> convert_layout(torch.arange(4), source="interleaved", target="half", head_dim=4)
        tensor([0, 2, 1, 3])
    """
    tensors(weight=weight)
    choice("source", source, LAYOUTS)
    choice("target", target, LAYOUTS)
    head_dim = integer("head_dim", head_dim, at_least=1, at_most=LARGEST)
    width = (
        head_dim
        if rotary_dim is None
        else integer("rotary_dim", rotary_dim, at_least=2, at_most=LARGEST)
    )
    start = integer("rotary_offset", rotary_offset, at_least=0, at_most=LARGEST)
    if width % 2 or start + width > head_dim:
        raise ConfigError(
            "rotary_dim must be even and rotary_offset + rotary_dim at most head_dim; got "
            f"rotary_dim={width}, rotary_offset={start}, head_dim={head_dim}"
        )
    if weight.ndim == 0 or weight.shape[0] == 0 or weight.shape[0] % head_dim:
        raise ShapeError(
            f"weight must have heads * head_dim rows, a multiple of {head_dim}; "
            f"got {tuple(weight.shape)}"
        )
    order = torch.arange(head_dim)
    for goes, comes in zip(
        pair_members(width, target, start), pair_members(width, source, start), strict=True
    ):
        order[torch.from_numpy(goes)] = torch.from_numpy(comes)
    heads = torch.arange(0, weight.shape[0], head_dim)[:, None]
    return weight.index_select(0, (heads + order).flatten().to(weight.device))
