"""The rotation itself, in plain torch: the definition that every kernel is tested against.

A pair of coordinates (a, b) at position p turns by an angle alpha:

    a' = a cos(alpha) - b sin(alpha)
    b' = b cos(alpha) + a sin(alpha)

Which coordinates form a pair is the layout. Everything else in this file is shapes and dtypes.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import ConfigError, ShapeError
from ropewalk.rotary.checks import overlaps_itself, readable, tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.spec import PairLayout


class Turn(NamedTuple):
    """The rotation of one slice of a head."""

    start: int
    """First coordinate of the slice."""
    cos: Tensor
    """``(r/2,)``, ``(seq, r/2)`` or ``(batch, seq, r/2)``; the slice is r wide."""
    sin: Tensor
    """Like ``cos``."""
    source: PairLayout
    """Layout that is read."""
    target: PairLayout
    """Layout that is written."""


def apply_turns(
    x: Tensor, turns: Sequence[Turn], *, seq_dim: int = -2, out: Tensor | None = None
) -> Tensor:
    """Return ``x`` with disjoint slices of its last dimension rotated, the rest bit for bit.

    Args:
        x: Vectors ``(..., head_dim)``.
        turns: One rotation per slice.
        seq_dim: Dimension of ``x`` along which positions run.
        out: Write here instead of to new memory.

    Returns:
        The rotated vectors, in the memory order of ``x``.

    Raises:
        ShapeError: Shapes or dtypes do not fit together.
        ConfigError: ``out`` is given while gradients are recorded.
    """
    for turn in turns:
        check_turn(x, turn, seq_dim)
    # Working in memory order keeps the strides of, say, a (B, S, H, D) view without a copy.
    order = memory_order(x)
    pieces: list[Tensor] = []
    position = 0
    for turn in sorted(turns, key=lambda turn: turn.start):
        stop = turn.start + 2 * turn.cos.shape[-1]
        cos, sin = broadcast_table(turn, x, seq_dim, order)
        if turn.start > position:
            pieces.append(x[..., position : turn.start].permute(order))
        pieces.append(turn_slice(x[..., turn.start : stop].permute(order), cos, sin, turn))
        position = stop
    if position < x.shape[-1]:
        pieces.append(x[..., position:].permute(order))
    joined = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
    result = joined.permute(sorted(range(x.ndim), key=order.__getitem__))
    if out is None:
        return result
    check_out(result, out)
    return out.copy_(result)


def arithmetic_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype to rotate in: float64 where any of ``dtypes`` is, else float32.

    Args:
        *dtypes: Floating dtypes of vectors and tables.
    """
    return torch.float64 if torch.float64 in dtypes else torch.float32


def turn_slice(x: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> Tensor:
    """Return the rotated slice ``x`` of width r, in the dtype of ``x``."""
    wide = x.to(arithmetic_dtype(x.dtype, cos.dtype))
    if turn.source == "interleaved":
        a, b = wide[..., 0::2], wide[..., 1::2]
    else:
        a, b = wide.chunk(2, dim=-1)
    pair = (a * cos - b * sin, b * cos + a * sin)
    joined = torch.cat(pair, -1) if turn.target == "half" else torch.stack(pair, -1).flatten(-2)
    return joined.to(x.dtype)


def memory_order(x: Tensor) -> list[int]:
    """Return the dimensions of ``x`` from outermost to innermost in memory, the last one last."""
    strides = x.stride()
    order: list[int] = []
    if has_memory_order(x):  # else the result is contiguous
        for dim in range(x.ndim - 1):  # insertion by hand: a tracer cannot sort symbolic strides
            order.insert(len([o for o in order if strides[o] >= strides[dim]]), dim)
        order.append(x.ndim - 1)
    return order or list(range(x.ndim))


def has_memory_order(x: Tensor) -> bool:
    """Return whether the strides of ``x`` tell which dimension lies inside which, the last in all.

    They do not where ``x`` is expanded, sliced along the last dimension, or a window that slides
    by single elements.

    Args:
        x: Vectors ``(..., head_dim)``.
    """
    strides = x.stride()
    return (
        0 not in strides
        and strides[-1] == 1
        and not any(
            strides[i] == strides[j] and x.shape[i] > 1 and x.shape[j] > 1
            for i, j in combinations(range(x.ndim), 2)
        )
    )


def broadcast_table(turn: Turn, x: Tensor, seq_dim: int, order: list[int]) -> tuple[Tensor, Tensor]:
    """Return cos and sin with size 1 in the dimensions of ``x`` that share them, in ``order``."""
    if turn.cos.ndim == 1:
        return turn.cos, turn.sin
    shape = [1] * x.ndim
    dim = seq_dim % x.ndim
    shape[dim], shape[-1] = turn.cos.shape[-2], turn.cos.shape[-1]
    if turn.cos.ndim == 3:
        shape[0] = turn.cos.shape[0]
    return turn.cos.reshape(shape).permute(order), turn.sin.reshape(shape).permute(order)


def check_turn(x: Tensor, turn: Turn, seq_dim: int) -> None:
    """Refuse a rotation that does not fit the vectors.

    Args:
        x: Vectors ``(..., head_dim)``.
        turn: The rotation of one slice.
        seq_dim: Dimension of ``x`` along which positions run.

    Raises:
        ShapeError: Shapes or dtypes do not fit together.
    """
    _check_vectors(x)
    _check_table(turn, x)
    cos = turn.cos
    dim = _whole(seq_dim)
    if cos.ndim == 1:
        return
    dim = dim + x.ndim if dim < 0 else dim
    if not 0 <= dim < x.ndim - 1:
        raise ShapeError(
            "seq_dim must name a dimension of x before the last; "
            f"got seq_dim={seq_dim}, x {tuple(x.shape)}"
        )
    fits = cos.ndim <= 3 and x.shape[dim] == cos.shape[-2]
    if cos.ndim == 3:
        fits = fits and dim > 0 and (cos.shape[0] == 1 or cos.shape[0] == x.shape[0])
    if not fits:
        raise ShapeError(
            "the table must have the seq (and batch) sizes of x; got "
            f"table {tuple(cos.shape)}, x {tuple(x.shape)}, seq_dim={seq_dim}; "
            "for (batch, seq, heads, head_dim) pass seq_dim=-3"
        )


def _whole(seq_dim: object) -> int:
    if not isinstance(seq_dim, int) or isinstance(seq_dim, bool):
        raise ShapeError(f"seq_dim must be an integer; got {seq_dim!r}")
    return seq_dim


def _check_vectors(x: Tensor) -> None:
    """Refuse what cannot be rotated."""
    tensors(x=x)
    if not x.dtype.is_floating_point or x.dtype.itemsize < 2:
        raise ShapeError(f"x must be float64, float32, bfloat16 or float16; got {x.dtype}")
    if x.ndim == 0:
        raise ShapeError("x must have at least the dimension head_dim; got a 0-d tensor")


def _check_table(turn: Turn, x: Tensor) -> None:
    """Refuse tables that do not fit the vectors."""
    cos, sin = turn.cos, turn.sin
    check_pair(cos, sin)
    for name, table in (("cos", cos), ("sin", sin)):
        if table.device != x.device:
            raise ShapeError(
                f"{name} must be on the device of x, {x.device}; got one on {table.device}"
            )
    if turn.start + 2 * cos.shape[-1] > x.shape[-1]:
        raise ShapeError(
            "rotary_offset + 2 * (width of cos) must be at most the width of x; got "
            f"rotary_offset={turn.start}, cos {tuple(cos.shape)}, x {tuple(x.shape)}"
        )


def check_pair(cos: Tensor, sin: Tensor) -> None:
    """Refuse cosines and sines of different shapes, or whose dtype has rounded the angles away.

    Args:
        cos: Cosines, half width.
        sin: Sines, half width.

    Raises:
        ShapeError: They differ in shape, have none, or are not float32 or float64.
    """
    tensors(cos=cos, sin=sin)
    if cos.shape != sin.shape or cos.ndim == 0:
        raise ShapeError(
            "cos and sin must have one shape (..., rotary_dim / 2); got "
            f"{tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dtype not in (torch.float32, torch.float64):
            raise ShapeError(
                f"{name} must be float32 or float64, since lower precision loses positions; "
                f"got {table.dtype}"
            )


def check_out(x: Tensor, out: Tensor) -> None:
    """Refuse an output that autograd would miss, or that cannot hold the result.

    Args:
        x: Vectors, rotated or to be.
        out: Where they are to be written.

    Raises:
        ConfigError: Gradients are recorded.
        ShapeError: Another shape, dtype or device, or elements that share memory.
    """
    tensors(out=out)
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        raise ConfigError(
            "out must not be given while gradients are recorded; got an input with "
            "requires_grad=True; leave out away, or call under torch.no_grad()"
        )
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        raise ShapeError(
            "out must have shape, dtype and device of x, "
            f"{tuple(x.shape)} {x.dtype} {x.device}; "
            f"got {tuple(out.shape)} {out.dtype} {out.device}"
        )
    expanded = any(s == 0 and n > 1 for s, n in zip(out.stride(), out.shape, strict=True))
    if expanded or (readable(out) and overlaps_itself(out)):
        raise ShapeError(
            f"out must have memory of its own for every element; got the strides {out.stride()} "
            f"of an expanded tensor or of windows that overlap, shape {tuple(out.shape)}"
        )
