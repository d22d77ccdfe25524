"""The rotation as operators of torch, for autograd, ``torch.compile`` and dispatch modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ropewalk.rotary.apply import Turn, apply_turns, has_memory_order
from ropewalk.rotary.kernels import native

if TYPE_CHECKING:
    from ropewalk.spec import PairLayout


def _layout(interleaved: bool) -> PairLayout:
    return "interleaved" if interleaved else "half"


def _reference(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seq_dim: int,
    start: int,
    source: bool,
    target: bool,
    inverse: bool,
) -> Tensor:
    turn = Turn(start, cos, -sin if inverse else sin, _layout(source), _layout(target))
    return apply_turns(x, [turn], seq_dim=seq_dim)


@torch.library.custom_op("ropewalk::rotate", mutates_args=(), device_types="cpu")
def rotate_op(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seq_dim: int,
    start: int,
    source: bool,
    target: bool,
    inverse: bool,
) -> Tensor:
    """Rotate one slice of ``x`` into new memory.

    Args:
        x: Vectors, ``(..., head_dim)``, on the CPU.
        cos: Half-width cosines; they get no gradient.
        sin: Half-width sines; they get no gradient.
        seq_dim: Dimension along which positions run.
        start: First coordinate of the slice.
        source: Whether the layout that is read is interleaved.
        target: Whether the layout that is written is interleaved.
        inverse: Turn the other way.
    """
    shape = native.geometry(start, _layout(source), _layout(target), inverse=inverse)
    result = native.rotate_one(shape, cos, sin, seq_dim, x, None, inside_op=True)
    if result is not None:
        return result
    return _reference(x, cos, sin, seq_dim, start, source, target, inverse)


@torch.library.custom_op("ropewalk::rotate_", mutates_args=("x",), device_types="cpu")
def rotate_in_place_op(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seq_dim: int,
    start: int,
    source: bool,
    target: bool,
    inverse: bool,
) -> None:
    """Rotate one slice of ``x`` where it is.

    Args:
        x: As for :func:`rotate_op`; must not need a gradient.
        cos: As there.
        sin: As there.
        seq_dim: As there.
        start: As there.
        source: As there.
        target: As there.
        inverse: As there.
    """
    shape = native.geometry(start, _layout(source), _layout(target), inverse=inverse)
    if native.rotate_one(shape, cos, sin, seq_dim, x, x, inside_op=True) is None:
        x.copy_(_reference(x, cos, sin, seq_dim, start, source, target, inverse))


@rotate_op.register_fake
def _shape_of(x: Tensor, *_: Any) -> Tensor:
    if has_memory_order(x):
        return torch.empty_like(x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - asked for by name
    _, cos, sin, *ctx.how = inputs
    ctx.save_for_backward(cos, sin)


def _turn_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The transpose of a rotation is the rotation back, amplitude included."""
    seq_dim, start, source, target, inverse = ctx.how
    cos, sin = ctx.saved_tensors
    back = rotate_op(gradient, cos, sin, seq_dim, start, target, source, not inverse)
    return (back, *[None] * 7)


rotate_op.register_autograd(_turn_back, setup_context=_keep)
