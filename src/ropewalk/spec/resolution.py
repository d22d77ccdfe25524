"""Check the fields of a spec, and fill in those that follow from others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.blocks import check_blocks, tuple_of_blocks
from ropewalk.spec.pairs import LARGEST, LAYOUTS, tuple_of_axes
from ropewalk.spec.scaling import ScalingRule

if TYPE_CHECKING:
    from ropewalk.spec.rope_spec import RopeSpec


def resolve(spec: RopeSpec) -> None:
    """Check every field of a new spec and store what its defaults stand for.

    Args:
        spec: A spec under construction.

    Raises:
        ConfigError: A field is out of range or contradicts another; the message names it.
    """
    _set(spec, "head_dim", checks.integer("head_dim", spec.head_dim, at_least=1, at_most=LARGEST))
    checks.choice("layout", spec.layout, LAYOUTS)
    _set(spec, "theta", checks.real("theta", spec.theta, above=1.0))
    _set(spec, "blocks", tuple_of_blocks(spec.blocks))
    if spec.blocks:
        check_blocks(spec)
    _resolve_slice(spec)
    _default(spec, "output_layout", spec.layout)
    checks.choice("output_layout", spec.output_layout, LAYOUTS)
    _default(spec, "frequency_dim", spec.rotary_dim)
    dim = checks.integer("frequency_dim", spec.frequency_dim, at_least=1, at_most=LARGEST)
    _set(spec, "frequency_dim", dim)
    _set(spec, "position_scale", checks.real("position_scale", spec.position_scale))
    if spec.position_scale == 0:
        raise ConfigError("position_scale must not be 0, which would rotate nothing; got 0")
    _set(spec, "position_offset", checks.real("position_offset", spec.position_offset))
    furthest = (abs(spec.position_offset) + 2.0**63) * abs(spec.position_scale)
    if math.isinf(furthest):
        raise ConfigError(
            "position_scale and position_offset must keep every int64 position finite; got "
            f"position_scale={spec.position_scale!r}, position_offset={spec.position_offset!r}"
        )
    checks.choice("direction", spec.direction, (1, -1))
    checks.choice("angle_dtype", spec.angle_dtype, ("float64", "float32"))
    _check_axes(spec)
    _check_scaling(spec)


def _set(spec: RopeSpec, name: str, value: object) -> None:
    object.__setattr__(spec, name, value)


def _default(spec: RopeSpec, name: str, value: object) -> None:
    if getattr(spec, name) is None:
        _set(spec, name, value)


def _resolve_slice(spec: RopeSpec) -> None:
    offset = checks.integer("rotary_offset", spec.rotary_offset, at_least=0, at_most=LARGEST)
    _set(spec, "rotary_offset", offset)
    # With blocks the parent rotates nothing itself: its slice is the whole head, odd or not.
    _default(spec, "rotary_dim", spec.head_dim)
    width = checks.integer("rotary_dim", spec.rotary_dim, at_least=1, at_most=LARGEST)
    _set(spec, "rotary_dim", width)
    if spec.blocks:
        return
    if spec.rotary_dim % 2:
        raise ConfigError(
            f"rotary_dim must be even; got rotary_dim={spec.rotary_dim}, "
            f"head_dim={spec.head_dim}; rotate an even slice of the head"
        )
    if spec.rotary_offset + spec.rotary_dim > spec.head_dim:
        raise ConfigError(
            "rotary_offset + rotary_dim must be at most head_dim; got "
            f"rotary_offset={spec.rotary_offset}, rotary_dim={spec.rotary_dim}, "
            f"head_dim={spec.head_dim}"
        )


def _check_scaling(spec: RopeSpec) -> None:
    if spec.scaling is None:
        return
    scaling: object = spec.scaling
    if not isinstance(scaling, ScalingRule):
        raise ConfigError(
            "scaling must be a rule such as Linear(factor=2.0), or None; got "
            f"{checks.abridged(scaling)}"
        )
    scaling.check(spec.ladder)


def _check_axes(spec: RopeSpec) -> None:
    if spec.axes is None:
        return
    axes = tuple_of_axes(spec.axes)
    if len(axes) != spec.n_pairs:
        raise ConfigError(
            f"axes must have one (axis, rung) for each of the {spec.n_pairs} pairs; got {len(axes)}"
        )
    _set(spec, "axes", axes)
