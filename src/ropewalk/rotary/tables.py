"""Positions to cos and sin: angles from Python numbers, in float64 by default, cast last."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import ShapeError

if TYPE_CHECKING:
    from ropewalk.spec import RopeSpec


class RotaryTable(NamedTuple):
    """Cosines and sines of every position and pair, half width.

    The amplitude and the direction of the spec are already in them.
    """

    cos: Tensor
    """``(seq, r/2)``, ``(batch, seq, r/2)``, or ``(r/2,)`` for a 0-d position."""
    sin: Tensor
    """Like ``cos``."""


def check_positions(position_ids: object, n_axes: int) -> None:
    """Refuse positions that cannot be what they claim.

    Args:
        position_ids: ``()``, ``(seq,)``, ``(batch, seq)``; with more than one axis
            ``(axes,)``, ``(axes, seq)`` or ``(axes, batch, seq)``.
        n_axes: How many axes the rotation reads.

    Raises:
        ShapeError: Not a tensor, wrong shape, or a dtype in which large positions collide.
    """
    if not isinstance(position_ids, Tensor):
        raise ShapeError(f"position_ids must be a tensor; got {type(position_ids).__name__}")
    dtype = position_ids.dtype
    if dtype.is_complex or dtype == torch.bool or (dtype.is_floating_point and dtype.itemsize < 4):
        raise ShapeError(
            "position_ids must be integers, float32 or float64, since bfloat16 cannot tell 256 "
            f"from 257; got {dtype}"
        )
    ndim = position_ids.ndim - (n_axes > 1)
    if not 0 <= ndim <= 2 or (n_axes > 1 and position_ids.shape[0] != n_axes):
        expected = "(seq,) or (batch, seq)"
        if n_axes > 1:
            expected = f"({n_axes}, seq) or ({n_axes}, batch, seq)"
        raise ShapeError(
            f"position_ids must be {expected} for a rotation that reads {n_axes} axes; "
            f"got {tuple(position_ids.shape)}"
        )


def angles(spec: RopeSpec, position_ids: Tensor, inv_freq: Tensor) -> Tensor:
    r"""Return the angle of every position and pair.

    .. math:: \alpha_j = \text{direction} \cdot (p_{axis(j)} + o) \, s \, \omega_j

    Args:
        spec: The rotation, without blocks.
        position_ids: Checked positions, ``(...)`` or ``(axes, ...)``; integer or real.
        inv_freq: ``(r/2,)``, radians per scaled position, on the device of ``position_ids``, in
            the dtype of the arithmetic.

    Returns:
        Radians, ``(..., r/2)``, in the dtype of ``inv_freq``.
    """
    positions = position_ids.to(inv_freq.dtype)
    if spec.position_offset or spec.position_scale != 1.0:
        positions = (positions + spec.position_offset) * spec.position_scale
    if spec.axes is not None and spec.n_axes > 1:
        positions = torch.stack([positions[axis] for axis, _ in spec.axes], -1)
    else:
        positions = positions.unsqueeze(-1)
    return positions * (inv_freq * spec.direction)


def combine(there: RotaryTable, here: RotaryTable) -> RotaryTable:
    """Return the table of turning back by ``here`` and then on by ``there``.

    Args:
        there: Where the vectors go.
        here: Where they come from; its amplitude is divided out.
    """
    gain = 1.0 / (here.cos**2 + here.sin**2)
    cos = (there.cos * here.cos + there.sin * here.sin) * gain
    sin = (there.sin * here.cos - there.cos * here.sin) * gain
    return RotaryTable(cos, sin)
