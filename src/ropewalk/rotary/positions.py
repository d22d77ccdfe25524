"""Explicit positions for padded, packed and sharded batches."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.errors import ConfigError, ShapeError
from ropewalk.rotary.checks import readable, tensors
from ropewalk.spec.checks import boolean, integer

_MOST_POSITIONS = 2**62


def positions_from_attention_mask(mask: Tensor) -> Tensor:
    """Return positions that count real tokens, so that padding on either side changes nothing.

    Args:
        mask: ``(batch, seq)``, 1 or True for real tokens, 0 or False for padding.

    Returns:
        ``position_ids``, ``(batch, seq)``, int64: 0 at the first real token of each row; padding
        takes the position of the last real token before it, or 0.

    Raises:
        ShapeError: Not two-dimensional, or floating.

    Example:
        >>> positions_from_attention_mask(torch.tensor([[0, 1, 1], [1, 1, 0]]))
        tensor([[0, 0, 1],
                [0, 1, 1]])
    """
    tensors(mask=mask)
    if mask.ndim != 2 or mask.dtype.is_floating_point or mask.dtype.is_complex:
        raise ShapeError(
            "mask must be (batch, seq) of bool or integers, 1 for real tokens; got "
            f"{tuple(mask.shape)} {mask.dtype}"
        )
    return ((mask != 0).long().cumsum(-1) - 1).clamp(min=0)


def positions_from_cu_seqlens(cu_seqlens: Tensor, total: int) -> Tensor:
    """Return positions that restart at 0 in each of several concatenated sequences.

    Args:
        cu_seqlens: ``(sequences + 1,)`` integers, cumulative lengths beginning with 0.
        total: Tokens in all, the last of ``cu_seqlens``; passed so that no device sync is needed.

    Returns:
        ``position_ids``, ``(total,)``, int64, on the device of ``cu_seqlens``.

    Raises:
        ShapeError: Not a one-dimensional integer tensor; on the CPU also: not cumulative lengths
            from 0 to ``total``.

    Example:
        >>> positions_from_cu_seqlens(torch.tensor([0, 3, 5]), 5)
        tensor([0, 1, 2, 0, 1])
    """
    total = integer("total", total, at_least=0)
    tensors(cu_seqlens=cu_seqlens)
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype.is_floating_point:
        raise ShapeError(
            "cu_seqlens must be integers of shape (sequences + 1,); got "
            f"{tuple(cu_seqlens.shape)} {cu_seqlens.dtype}"
        )
    if readable(cu_seqlens) and cu_seqlens.device.type == "cpu":
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != total or ends != sorted(ends):
            raise ShapeError(
                f"cu_seqlens must rise from 0 to total={total}; got {ends[0]} to {ends[-1]}"
                f"{'' if ends == sorted(ends) else ', not rising'}"
            )
    tokens = torch.arange(total, device=cu_seqlens.device)
    ends_of = cu_seqlens[1:].contiguous().long()
    starts = cu_seqlens[:-1].long()
    return tokens - starts[torch.searchsorted(ends_of, tokens, right=True)]


def positions_for_shard(
    total: int,
    *,
    rank: int,
    world_size: int,
    zigzag: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the positions of the part of a sequence that one context-parallel rank holds.

    Args:
        total: Length of the whole sequence; a multiple of the number of chunks.
        rank: This rank, 0 to ``world_size - 1``.
        world_size: Number of ranks.
        zigzag: False: one contiguous chunk per rank. True: chunks ``rank`` and
            ``2 * world_size - 1 - rank`` of ``2 * world_size``, which balances causal attention.
        device: Where the result lives.

    Returns:
        ``position_ids``, ``(total / world_size,)``, int64.

    Raises:
        ConfigError: The sequence cannot be cut that way, or there is no such rank.

    Example:
        >>> positions_for_shard(8, rank=1, world_size=2, zigzag=True)
        tensor([2, 3, 4, 5])
    """
    total = integer("total", total, at_least=0, at_most=_MOST_POSITIONS)
    world_size = integer("world_size", world_size, at_least=1, at_most=_MOST_POSITIONS)
    boolean("zigzag", zigzag)
    rank = integer("rank", rank, at_least=0)
    if rank >= world_size:
        raise ConfigError(f"rank must be less than world_size={world_size}; got {rank}")
    pieces = 2 * world_size if zigzag else world_size
    if total % pieces:
        raise ConfigError(
            f"total must be a multiple of {pieces} (the number of chunks); got {total}; pad it"
        )
    length = total // pieces  # of the whole sequence no more is made than this rank holds
    mine = [rank, pieces - 1 - rank] if zigzag else [rank]
    return torch.cat([torch.arange(i * length, (i + 1) * length, device=device) for i in mine])
