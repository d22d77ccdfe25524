"""The rotation for users: checked arguments, and the fastest kernel that fits the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ropewalk.rotary.apply import (
    Turn,
    apply_turns,
    arithmetic_dtype,
    check_out,
    check_pair,
    check_turn,
)
from ropewalk.rotary.checks import apart, readable, tensors
from ropewalk.rotary.kernels import native, registry
from ropewalk.rotary.kernels.ops import rotate_in_place_op, rotate_op
from ropewalk.rotary.pieces import rotate_pieces
from ropewalk.spec.checks import boolean, choice, integer
from ropewalk.spec.pairs import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.spec import PairLayout


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    layout: PairLayout,
    output_layout: PairLayout | None = None,
    rotary_offset: int = 0,
    seq_dim: int = -2,
    inverse: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    r"""Rotate the coordinate pairs of ``x`` by the angles whose cosines and sines are given.

    .. math:: (x_a, x_b) \mapsto (x_a \cos - x_b \sin, \; x_b \cos + x_a \sin)

    Arithmetic is in float32 or better, whatever the dtype of ``x``; the result is rounded once.

    Args:
        x: Vectors, ``(..., seq, head_dim)``, usually ``(batch, heads, seq, head_dim)``; floating.
        cos: Cosines, half width: ``(seq, r/2)``, ``(batch, seq, r/2)``, or ``(r/2,)`` for one
            position shared by all vectors. float32 or float64.
        sin: Sines, like ``cos``.
        layout: Which coordinates form a pair, "interleaved" or "half".
        output_layout: Where the rotated pair is written; None means ``layout``.
        rotary_offset: First coordinate of the rotated slice of width r; the others pass unchanged.
        seq_dim: Dimension of ``x`` that ``seq`` of the table runs along, not the last; -3 for
            ``(batch, seq, heads, head_dim)`` and packed ``(tokens, heads, head_dim)``.
        inverse: Undo the call that has the same other arguments: turn back by the same angles,
            reading ``output_layout`` and writing ``layout``. Where cos and sin carry an amplitude
            A, the result is A squared times the input of that call.
        out: Write here, and return it; may be ``x`` itself. Not while gradients are recorded.

    Returns:
        The rotated vectors: shape, dtype and memory order of ``x``.

    Raises:
        ShapeError: Shapes or dtypes do not fit together.
        ConfigError: ``layout`` is unknown, or ``out`` is given while gradients are recorded.

    References:
        Su et al., 2021, arXiv:2104.09864, equation 34.

    Example:
        >>> x = torch.tensor([1.0, 0.0])
        >>> rotate(x, torch.tensor([0.0]), torch.tensor([1.0]), layout="half")
        tensor([0., 1.])
    """
    choice("layout", layout, LAYOUTS)
    if output_layout is None:
        output_layout = layout
    choice("output_layout", output_layout, LAYOUTS)
    start = integer("rotary_offset", rotary_offset, at_least=0)
    tensors(x=x, cos=cos, sin=sin)
    if boolean("inverse", inverse):
        check_pair(cos, sin)
        turn = Turn(start, cos, -sin, source=output_layout, target=layout)
    else:
        turn = Turn(start, cos, sin, source=layout, target=output_layout)
    return turn_vectors(x, [turn], seq_dim=seq_dim, out=out)


def turn_vectors(
    x: Tensor, turns: Sequence[Turn], *, seq_dim: int = -2, out: Tensor | None = None
) -> Tensor:
    """Do what ``apply_turns`` defines, by the fastest kernel that fits.

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
    if out is not None:
        tensors(out=out)
    if registry.native_chosen():
        if not torch.compiler.is_compiling():
            result = _by_native(x, turns, seq_dim, out)
            if result is not None:
                return result
        if _fits_op(x, turns):
            return _by_op(x, turns, seq_dim, out)
    elif registry.eager_chosen() and readable(x):
        result = rotate_pieces(x, turns, seq_dim, out)
        if result is not None:
            return result
    return apply_turns(x, turns, seq_dim=seq_dim, out=out)


def turn_both(
    q: Tensor,
    k: Tensor,
    turns_q: Sequence[Turn],
    turns_k: Sequence[Turn],
    seq_dim: int,
    out: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Rotate two tensors into given ones; all is checked before anything is written.

    Args:
        q: Vectors ``(..., head_dim)``.
        k: Vectors ``(..., head_dim)``.
        turns_q: One rotation per slice of ``q``.
        turns_k: One rotation per slice of ``k``.
        seq_dim: Dimension along which positions run.
        out: Where the results go; each may be any of the inputs.

    Returns:
        ``out``.

    Raises:
        ShapeError: Shapes or dtypes do not fit together.
        ConfigError: Gradients are recorded.
    """
    if out[0] is q and out[1] is k and apart(q, k):
        for x, turns in ((q, turns_q), (k, turns_k)):
            check_out(x, x)
            for turn in turns:
                check_turn(x, turn, seq_dim)
        return (
            turn_vectors(q, turns_q, seq_dim=seq_dim, out=q),
            turn_vectors(k, turns_k, seq_dim=seq_dim, out=k),
        )
    # An output may be the other input: all is read before anything is written.
    rotated = (turn_vectors(q, turns_q, seq_dim=seq_dim), turn_vectors(k, turns_k, seq_dim=seq_dim))
    check_out(rotated[0], out[0])
    check_out(rotated[1], out[1])
    return out[0].copy_(rotated[0]), out[1].copy_(rotated[1])


def turn_plain(
    shape: native.Geometry | None,
    q: Tensor,
    k: Tensor,
    table: object,
    seq_dim: int,
    out: object,
) -> tuple[Tensor, Tensor] | None:
    """Rotate plain eager tensors of the CPU in one call of the compiled kernel.

    Args:
        shape: The one rotation of every head; None where there are several.
        q: Vectors ``(..., head_dim)``.
        k: Vectors ``(..., head_dim)``.
        table: Cosines and sines, half width.
        seq_dim: Dimension along which positions run.
        out: Where the results go, or None.

    Returns:
        The rotated vectors, or None where the call is anything else; nothing is written then.
    """
    if shape is None or not registry.native_chosen() or torch.compiler.is_compiling():
        return None
    to = (None, None) if out is None else out
    if not (isinstance(table, tuple) and isinstance(to, tuple) and len(table) == len(to) == 2):
        return None
    if out is not None and (to[0] is None or to[1] is None):
        return None
    return native.rotate_pair(shape, *table, seq_dim, q, to[0], k, to[1])


def _by_native(x: Tensor, turns: Sequence[Turn], seq_dim: int, out: Tensor | None) -> Tensor | None:
    """Rotate a plain eager tensor in C; None where that does not fit."""
    # The first slice goes where the rest is copied as well, the others are turned there. What was
    # given to write to is touched once all has gone well.
    target = out if len(turns) == 1 else None
    result: Tensor | None = None
    for turn in turns:
        shape = native.geometry(turn.start, turn.source, turn.target)
        operands = (x, target) if result is None else (result, result)
        result = native.rotate_one(shape, turn.cos, turn.sin, seq_dim, *operands)
        if result is None:
            return None
    if result is None or out is None or result is out:
        return result
    check_out(result, out)
    return out.copy_(result)


def _fits_op(x: Tensor, turns: Sequence[Turn]) -> bool:
    """Return whether the custom operator computes what the reference would, gradients included."""
    if torch.compiler.is_exporting() or not _plain(x) or native.transforms_at_work():
        return False
    table_dtype = arithmetic_dtype(x.dtype)
    recording = torch.is_grad_enabled()
    return all(
        _plain(part) and part.dtype == table_dtype and not (recording and part.requires_grad)
        for turn in turns
        for part in (turn.cos, turn.sin)
    )


def _plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"


def _by_op(x: Tensor, turns: Sequence[Turn], seq_dim: int, out: Tensor | None) -> Tensor:
    for turn in turns:
        check_turn(x, turn, seq_dim)
    if out is not None:
        check_out(x, out)
    in_place = out is x
    for turn in turns:
        how = (seq_dim, turn.start, turn.source == "interleaved", turn.target == "interleaved")
        if in_place:
            rotate_in_place_op(x, turn.cos, turn.sin, *how, False)
        else:
            x = rotate_op(x, turn.cos, turn.sin, *how, False)
    return x if out is None or in_place else out.copy_(x)
