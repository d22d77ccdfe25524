"""The rotation for users: checked arguments, and the fastest kernel that fits the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ropewalk.rotary.apply import Turn, apply_turns, check_out, check_turn
from ropewalk.rotary.checks import readable, tensors
from ropewalk.rotary.kernels import native, registry
from ropewalk.rotary.kernels.ops import rotate_in_place_op, rotate_op
from ropewalk.rotary.pieces import rotate_pieces
from ropewalk.spec.checks import choice, integer
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
    if inverse:
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
    compiling = torch.compiler.is_compiling()
    if registry.native_chosen():
        result = None if compiling else _by_native(x, turns, seq_dim, out)
        if result is not None:
            return result
        if _fits_op(x, turns, compiling):
            return _by_op(x, turns, seq_dim, out)
    elif registry.eager_chosen() and readable(x):
        result = rotate_pieces(x, turns, seq_dim, out)
        if result is not None:
            return result
    return apply_turns(x, turns, seq_dim=seq_dim, out=out)


def _by_native(
    x: Tensor, turns: Sequence[Turn], seq_dim: int, out: Tensor | None
) -> Tensor | None:
    """Rotate a plain tensor in C; None where that does not fit."""
    result: tuple[Tensor, ...] | None = None
    for turn in turns:
        shape = native.geometry(turn.start, turn.source, turn.target)
        # The first slice goes to where the rest is copied as well; the others are turned there.
        given = (x, out) if result is None else (result[0], result[0])
        result = native.rotate_plain(shape, turn.cos, turn.sin, seq_dim, *given)
        if result is None:
            return None
        if out is not None and len(turns) > 1:
            return None
    return None if result is None else result[0]
