"""Positions to cos and sin: angles from Python numbers, in float64 by default, cast last."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import ConfigError, ShapeError
from ropewalk.rotary.apply import Turn, check_pair
from ropewalk.rotary.checks import readable, tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.rotary.rates import Rates
    from ropewalk.spec import RopeSpec

# Backends without float64 (huggingface/diffusers#12665, #13432): tables are built on the host.
_NO_FLOAT64 = ("mps", "npu")


class RotaryTable(NamedTuple):
    """Cosines and sines of every position and pair, half width.

    The amplitude and the direction of the spec are already in them.
    """

    cos: Tensor
    """``(seq, r/2)``, ``(batch, seq, r/2)``, or ``(r/2,)`` for a 0-d position."""
    sin: Tensor
    """Like ``cos``."""


AnyTable = RotaryTable | tuple[Tensor, Tensor]


def given_table(table: AnyTable, **left_out: object) -> RotaryTable:
    """Return a table that the caller built.

    Args:
        table: What was given as one.
        **left_out: Arguments that only the building of a table can answer to.

    Raises:
        ConfigError: One of those was given all the same.
        ShapeError: Not a pair of tensors.
    """
    for name, value in left_out.items():
        if value is not None:
            raise ConfigError(
                f"{name} must be left out with table, which was built for one already; "
                f"got {value!r}"
            )
    pair: object = table
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ShapeError(
            "table must be a pair (cos, sin), as table(position_ids) returns it; "
            f"got {type(table).__name__}"
        )
    check_pair(*pair)
    return RotaryTable(*pair)


def check_positions(position_ids: object, n_axes: int) -> None:
    """Refuse positions that cannot be what they claim.

    Args:
        position_ids: ``()``, ``(seq,)``, ``(batch, seq)``; with more than one axis
            ``(axes,)``, ``(axes, seq)`` or ``(axes, batch, seq)``.
        n_axes: How many axes the rotation reads.

    Raises:
        ShapeError: Not a tensor, wrong shape, or a dtype in which large positions collide.
    """
    tensors(position_ids=position_ids)
    assert isinstance(position_ids, Tensor)
    dtype = position_ids.dtype
    if (
        dtype.is_complex
        or dtype == torch.bool
        or (dtype.is_floating_point and dtype.itemsize < 4)
        or position_ids.is_quantized
    ):
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
        inv_freq: ``(r/2,)``, or ``(batch, 1, r/2)`` for one length per row; radians per scaled
            position, on the device of ``position_ids``, in the dtype of the arithmetic.

    Returns:
        Radians, ``(..., r/2)``, in the dtype of ``inv_freq``.
    """
    return _scaled_positions(spec, position_ids, inv_freq.dtype) * (inv_freq * spec.direction)


def gains(spec: RopeSpec, position_ids: Tensor, log_gain: Tensor) -> Tensor:
    r"""Return the amplitude at every position and pair, for rules in which it depends on both.

    .. math:: \exp(p'_{axis(j)} \, g_j)

    Args:
        spec: The rotation, without blocks.
        position_ids: As in :func:`angles`.
        log_gain: ``(r/2,)``, g, natural logarithm per scaled position; negated for keys.

    Returns:
        ``(..., r/2)``, in the dtype of ``log_gain``.
    """
    return (_scaled_positions(spec, position_ids, log_gain.dtype) * log_gain).exp()


def block_table(
    spec: RopeSpec, position_ids: Tensor, rates: Rates, role: str | None
) -> RotaryTable:
    """Return cos and sin of one block, amplitude included, in the dtype of the rates.

    Args:
        spec: The rotation, without blocks.
        position_ids: As in :func:`angles`.
        rates: Its frequencies, amplitude and gain.
        role: "query" or "key" where the rates have a gain.
    """
    alpha = angles(spec, position_ids, rates.inv_freq)
    cos, sin = alpha.cos(), alpha.sin()
    amplitude = rates.amplitude
    if rates.log_gain is not None:
        log_gain = rates.log_gain if role == "query" else -rates.log_gain
        amplitude = gains(spec, position_ids, log_gain)
    if isinstance(amplitude, float) and amplitude == 1.0:
        return RotaryTable(cos, sin)
    return RotaryTable(cos * amplitude, sin * amplitude)


def joined(parts: Sequence[RotaryTable], device: torch.device, dtype: torch.dtype) -> RotaryTable:
    """Return the tables of several blocks as one, cast last.

    Args:
        parts: One table per block, of the same positions.
        device: Where the result lives.
        dtype: What it is cast to.
    """
    cos, sin = parts[0]
    if len(parts) > 1:
        # Where only some of the blocks depend on lengths per row, the others have no rows.
        shape = torch.broadcast_shapes(*(part.cos.shape[:-1] for part in parts))
        cos, sin = (
            torch.cat([part[i].expand(*shape, part[i].shape[-1]) for part in parts], -1)
            for i in (0, 1)
        )
    return RotaryTable(cos.to(device, dtype), sin.to(device, dtype))


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on backends that have no wider one.

    Args:
        device: Where the arithmetic is to be done.
    """
    return torch.float32 if device.type in _NO_FLOAT64 else torch.float64


def undo(table: RotaryTable) -> RotaryTable:
    """Return the table of turning back, amplitude divided out.

    Args:
        table: How the vectors were turned.
    """
    norm = table.cos**2 + table.sin**2
    return RotaryTable(table.cos / norm, -table.sin / norm)


def combine(there: RotaryTable, here: RotaryTable) -> RotaryTable:
    """Return the table of turning back by ``here`` and then on by ``there``.

    Args:
        there: Where the vectors go.
        here: Where they come from; its amplitude is divided out.
    """
    back = undo(here)
    cos = there.cos * back.cos - there.sin * back.sin
    sin = there.sin * back.cos + there.cos * back.sin
    return RotaryTable(cos, sin)


def check_finite(table: RotaryTable) -> None:
    """Refuse a table whose amplitude has left the range of its dtype.

    Only tables on the CPU are read, outside tracing and functorch transforms; elsewhere that
    would wait for the device.

    Args:
        table: A table of a rule whose amplitude depends on the position.

    Raises:
        ConfigError: An entry is not finite, or a pair has become 0.
    """
    if not readable(table.cos) or table.cos.device.type != "cpu":
        return
    largest = torch.maximum(table.cos.abs(), table.sin.abs())
    smallest = torch.finfo(largest.dtype).tiny
    if not bool(((largest >= smallest) & (largest < torch.inf)).all()):
        raise ConfigError(
            "position_ids must stay where the amplitude of xPos fits "
            f"{str(largest.dtype).removeprefix('torch.')}; got positions too far from 0; use a "
            "larger scale_base, or position_offset as a centre"
        )


def _scaled_positions(spec: RopeSpec, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scaled position that drives every pair, ``(..., r/2)`` or ``(..., 1)``."""
    positions = position_ids.to(dtype)
    if spec.position_offset or spec.position_scale != 1.0:
        positions = (positions + spec.position_offset) * spec.position_scale
    if spec.axes is not None and spec.n_axes > 1:
        return torch.stack([positions[axis] for axis, _ in spec.axes], -1)
    return positions.unsqueeze(-1)


def geometry(spec: RopeSpec) -> list[tuple[str, int, int]]:
    """Return where the rotated pairs of a spec lie: layout, first coordinate and width.

    Args:
        spec: A rotation, with blocks or without.
    """
    return [(b.output_layout, b.rotary_offset, b.rotary_dim) for b in spec.parts]


def turns(spec: RopeSpec, x: Tensor, table: RotaryTable, layouts: tuple[str, str]) -> list[Turn]:
    """Return how every block turns its slice of a head.

    Args:
        spec: A rotation, with blocks or without.
        x: Vectors ``(..., head_dim)``.
        table: One column for each of its pairs, block by block.
        layouts: Names of the layouts that are read and written, "layout" or "output_layout".

    Raises:
        ShapeError: The vectors or the table are not as wide as the spec says.
    """
    if x.ndim and x.shape[-1] != spec.head_dim:
        raise ShapeError(
            f"x must have head_dim={spec.head_dim} coordinates in its last dimension; "
            f"got {tuple(x.shape)}"
        )
    if table.cos.ndim and table.cos.shape[-1] != spec.n_pairs:
        raise ShapeError(
            f"table must have one column for each of the {spec.n_pairs} pairs; "
            f"got {tuple(table.cos.shape)}"
        )
    table = on_mesh_of(x, table)
    column, parts = 0, []
    for block in spec.parts:
        columns = slice(column, column + block.n_pairs)
        column += block.n_pairs
        cos, sin = table.cos[..., columns], table.sin[..., columns]
        source, target = (getattr(block, name) for name in layouts)
        parts.append(Turn(block.rotary_offset, cos, sin, source, target))
    return parts


def on_mesh_of(x: Tensor, table: RotaryTable) -> RotaryTable:
    """Return the table replicated on the mesh of a distributed tensor; beside others, as it is.

    Args:
        x: What is to be rotated.
        table: A plain table, the same on every rank, or one that is distributed already.

    References:
        pytorch/pytorch#187443, huggingface/transformers#45028.
    """
    mesh = getattr(x, "device_mesh", None)
    if mesh is None or hasattr(table.cos, "device_mesh"):
        return table
    from torch.distributed.tensor import DTensor, Replicate

    placements = [Replicate()] * mesh.ndim
    return RotaryTable(
        *(DTensor.from_local(part, mesh, placements, run_check=False) for part in table)
    )
