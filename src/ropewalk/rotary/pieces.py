"""The rotation in plain torch at the speed of a cache, where there is no compiled kernel.

What ``rotary/apply.py`` defines makes half a dozen temporaries as large as its input. Here the same
products and sums run over pieces whose temporaries stay in the cache and are used again; a float32
rotation of interleaved pairs is a single complex product.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ropewalk.rotary.apply import (
    Turn,
    arithmetic_dtype,
    broadcast_table,
    check_turn,
    memory_order,
    turn_slice,
)
from ropewalk.rotary.checks import apart
from ropewalk.rotary.kernels import native

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Elements of a piece: with its temporaries 1 MiB of float32, which second-level caches hold, and
# long enough for the cost of a call of torch to vanish.
_PIECE = 1 << 17
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def rotate_pieces(
    x: Tensor, turns: Sequence[Turn], seq_dim: int = -2, out: Tensor | None = None
) -> Tensor | None:
    """Do what ``apply_turns`` defines, piece by piece; None where the reference has to serve.

    Halves come out bit for bit as from the reference. Interleaved pairs of finite numbers are
    within the bound of every kernel, as the sum of two products may be rounded once less.

    Args:
        x: Vectors ``(..., head_dim)``, a plain tensor.
        turns: One rotation per slice.
        seq_dim: Dimension of ``x`` along which positions run.
        out: Write here instead of to new memory; may be ``x``.

    Returns:
        The rotated vectors in the memory order of ``x``, or None: another device, gradients are
        recorded, or ``out`` is not memory of its own. Then nothing has been written.

    Raises:
        ShapeError: Shapes or dtypes of vectors and tables do not fit together.

    Example:
        >>> c, s = torch.tensor([0.0]), torch.tensor([1.0])
        >>> rotate_pieces(torch.tensor([1.0, 0.0]), [Turn(0, c, s, "half", "half")])
        tensor([0., 1.])
    """
    tables = [table for turn in turns for table in (turn.cos, turn.sin)]
    if not _plain(x, *tables) or not (out is None or _fits(out, x, tables)):
        return None
    for turn in turns:
        check_turn(x, turn, seq_dim)
    order = memory_order(x)
    back = sorted(range(x.ndim), key=order.__getitem__)
    source = x.permute(order)
    if out is None:
        target = torch.empty(source.shape, dtype=x.dtype, device=x.device)
    else:
        target = out.permute(order)
    position = 0
    for turn in sorted(turns, key=lambda turn: turn.start):
        stop = turn.start + 2 * turn.cos.shape[-1]
        if out is not x and turn.start > position:
            gap = slice(position, turn.start)
            target[..., gap].copy_(source[..., gap])
        cos, sin = broadcast_table(turn, x, seq_dim, order)
        span = slice(turn.start, stop)
        _turn_span(source[..., span], target[..., span], cos, sin, turn)
        position = stop
    if out is not x and position < x.shape[-1]:
        target[..., position:].copy_(source[..., position:])
    return target.permute(back) if out is None else out


def _plain(*given: Tensor) -> bool:
    """Return whether these are values in the memory of the host, and nothing is recorded."""
    x = given[0]
    return (
        x.numel() > 0
        and x.dtype in _DTYPES
        and not native.transforms_at_work()
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given))
        and all(
            type(tensor) is Tensor
            and tensor.is_cpu
            and tensor.layout == torch.strided
            and not tensor.is_nested
            and not tensor.is_neg()
            for tensor in given
        )
    )


def _fits(out: Tensor, x: Tensor, tables: Sequence[Tensor]) -> bool:
    """Return whether pieces written to ``out`` disturb none that are read later."""
    if not _plain(out) or out.shape != x.shape or out.dtype != x.dtype:
        return False
    reach = 1
    for stride, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1 and stride < reach:
            return False  # elements share memory
        reach += stride * (size - 1)
    read = tables if out is x else [x, *tables]
    return all(apart(out, tensor) for tensor in read)


def _turn_span(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> None:
    """Write the rotated slice ``x`` to ``y``, of the same memory or of another."""
    fast = turn.source == turn.target and arithmetic_dtype(x.dtype, cos.dtype) == torch.float32
    if fast and turn.source == "half":
        (_turn_halves if x.dtype == torch.float32 else _turn_narrow_halves)(x, y, cos, sin)
    elif fast and (x.dtype != torch.float32 or (_pairs_up(x) and _pairs_up(y))):
        _turn_complex(x, y, torch.complex(cos, sin))
    else:
        for a, b, c, s in _pieces((x, y, *_of_rank(x.ndim, cos, sin))):
            b.copy_(turn_slice(a, c, s, turn))


def _turn_halves(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate float32 halves with the products and sums of the definition."""
    room = _room(x)
    for xs, ys, c, s in _pieces((x, y, *_of_rank(x.ndim, cos, sin))):
        (a, b), (new_a, new_b) = xs.chunk(2, dim=-1), ys.chunk(2, dim=-1)
        n = a.numel()
        b_sin = torch.mul(b, s, out=room[:n].view(a.shape))
        a_sin = torch.mul(a, s, out=room[n : 2 * n].view(a.shape))
        torch.mul(a, c, out=new_a).sub_(b_sin)
        torch.mul(b, c, out=new_b).add_(a_sin)


def _turn_narrow_halves(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Do the same with bfloat16 or float16 halves, with whole rows where that is possible.

    Rows are short, so that passes over half of each cost nearly as much as passes over all of it;
    a - b and a + (-b) are the same number.
    """
    both_cos, both_sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    half = cos.shape[-1]
    rooms = _room(x), _room(x)
    for xs, ys, c, s in _pieces((x, y, *_of_rank(x.ndim, both_cos, both_sin))):
        wide, crossed = (room[: xs.numel()].view(xs.shape) for room in rooms)
        wide.copy_(xs)
        torch.mul(wide[..., half:], s[..., :half], out=crossed[..., :half])
        torch.mul(wide[..., :half], s[..., half:], out=crossed[..., half:])
        ys.copy_(wide.mul_(c).add_(crossed))


def _turn_complex(x: Tensor, y: Tensor, turns: Tensor) -> None:
    """Rotate interleaved pairs (a, b) as a + ib times cos + i sin."""
    if x.dtype == torch.float32:
        torch.mul(_as_complex(x), turns, out=_as_complex(y))
        return
    room = _room(x)
    for xs, ys, factors in _pieces((x, y, *_of_rank(x.ndim, turns))):
        wide = room[: xs.numel()].view(xs.shape).copy_(xs)
        _as_complex(wide).mul_(factors)
        ys.copy_(wide)


def _as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _pairs_up(x: Tensor) -> bool:
    """Return whether the pairs of ``x`` lie where complex numbers may."""
    steps = x.stride()
    return (
        steps[-1] == 1 and x.storage_offset() % 2 == 0 and all(step % 2 == 0 for step in steps[:-1])
    )


def _of_rank(ndim: int, *tables: Tensor) -> Iterator[Tensor]:
    return (table[(None,) * (ndim - table.ndim)] for table in tables)


def _room(x: Tensor) -> Tensor:
    """Return memory for the largest piece of ``x`` in float32, to be used for all of them."""
    most = min(x.numel(), max(_PIECE, x.shape[-1]))
    return torch.empty(most, dtype=torch.float32, device=x.device)


def _pieces(group: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors along their leading dimensions into pieces of at most ``_PIECE`` elements.

    Args:
        group: Tensors of one rank; those with size 1 where the first one is larger are shared by
            its pieces.
    """
    x = group[0]
    if x.ndim < 2 or x.numel() <= _PIECE:
        yield group
        return
    rows = x.shape[0]
    inner = x.numel() // rows
    if inner > _PIECE and x.ndim > 2:
        for piece in zip(*(t.unbind() if len(t) == rows else repeat(t[0]) for t in group)):  # noqa: B905
            yield from _pieces(piece)
    else:
        step = max(1, _PIECE // inner)
        yield from zip(*(t.split(step) if len(t) == rows else repeat(t) for t in group))  # noqa: B905
