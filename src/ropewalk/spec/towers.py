"""Rotations of image, audio and structure towers, whose ladders are cut up by axes.

Positions of images are (row, column), those of videos (frame, row, column), as counts from 0
unless the function says otherwise; vision towers leave class and prefix tokens unrotated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import axes, checks
from ropewalk.spec.by_pair import CustomFactors
from ropewalk.spec.rope_spec import RopeSpec
from ropewalk.spec.widths import bounded, dimension, head_width

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ropewalk.spec.family import Family
    from ropewalk.spec.pairs import PairLayout

_ROW, _COLUMN = 0, 1
_RATE = "memory_attention_downsample_rate"


def _plane(
    layout: PairLayout, order: tuple[int, int], *, alternate: bool = False, **fields: Any
) -> Callable[[Family, Mapping[str, Any], dict[str, Any]], RopeSpec]:
    """Return the builder of two copies of the ladder theta^(-4i/D), one per axis."""

    def build(family: Family, config: Mapping[str, Any], parameters: dict[str, Any]) -> RopeSpec:
        width = _width(family, config, multiple_of=4)
        select = axes.axial_alternating if alternate else axes.axial
        return RopeSpec(
            width,
            layout,
            theta=_theta(parameters),
            frequency_dim=width // 2,
            axes=select(order, width // 4),
            **fields,
        )

    return build


def _pixtral(family: Family, config: Mapping[str, Any], parameters: dict[str, Any]) -> RopeSpec:
    """Even rungs of theta^(-2i/D) for rows, odd ones for columns."""
    width = _width(family, config, multiple_of=4)
    return RopeSpec(width, "half", theta=_theta(parameters), axes=axes.axial_split(width // 2))


def _space_time(family: Family, config: Mapping[str, Any], parameters: dict[str, Any]) -> RopeSpec:
    """Frame, row and column with D // 6 pairs each; the rest of the head passes."""
    width = _width(family, config, multiple_of=2)
    pairs = width // 3 // 2
    return RopeSpec(
        width,
        "half",
        theta=_theta(parameters),
        rotary_dim=6 * pairs,
        frequency_dim=2 * pairs,
        axes=axes.axial((0, 1, 2), pairs),
    )


def _two_blocks(family: Family, config: Mapping[str, Any], parameters: dict[str, Any]) -> RopeSpec:
    """One half-split rotation per axis, each of half the head."""
    width, theta = _width(family, config, multiple_of=4), _theta(parameters)
    blocks = tuple(
        RopeSpec(
            width,
            "half",
            theta=theta,
            rotary_dim=width // 2,
            rotary_offset=axis * width // 2,
            axes=axes.axial((axis,), width // 4),
        )
        for axis in (_ROW, _COLUMN)
    )
    return RopeSpec(width, "half", blocks=blocks)


def _loftr(family: Family, config: Mapping[str, Any], parameters: dict[str, Any]) -> RopeSpec:
    """Row and column alternate over the whole hidden state; positions count from 1."""
    hidden = bounded("hidden_size", dimension(family, config, "hidden_size"), multiple_of=4)
    share = parameters.pop("partial_rotary_factor", 4.0)
    heads = dimension(family, config, "num_attention_heads")
    if checks.real("partial_rotary_factor", share) * (hidden // heads) != hidden / 2:
        raise ConfigError(
            "partial_rotary_factor must leave a ladder over half the hidden state; "
            f"got {checks.abridged(share)}"
        )
    return RopeSpec(
        hidden,
        "interleaved",
        theta=_theta(parameters),
        frequency_dim=hidden // 2,
        axes=axes.axial_alternating((_ROW, _COLUMN), hidden // 4),
        position_offset=1.0,
    )


def _clvp(family: Family, config: Mapping[str, Any], parameters: dict[str, Any]) -> RopeSpec:
    """The first max(projection_dim / (2 heads), 32) coordinates, of values too."""
    heads = dimension(family, config, "num_attention_heads")
    projection = dimension(family, config, "projection_dim")
    rotary_dim = max(projection // (2 * heads), 32)
    width = _width(family, config, multiple_of=1)
    return RopeSpec(width, "half", theta=_theta(parameters), rotary_dim=rotary_dim)


def _timestamps(family: Family, config: Mapping[str, Any], parameters: dict[str, Any]) -> RopeSpec:
    """Time stamps t in seconds: axis 0 is t times the window, axis 1 is 2 pi t times the frame."""
    longest = checks.real(
        "max_position_embeddings", config.get("max_position_embeddings"), above=0.0
    )
    share = checks.real(
        "partial_rotary_factor", parameters.pop("partial_rotary_factor", 1.0), above=0.0
    )
    if share > 0.5:
        raise ConfigError(
            f"partial_rotary_factor must be at most 0.5, one part for each axis; got {share!r}"
        )
    width = _width(family, config, multiple_of=2)
    part = int(width * share)
    return RopeSpec(
        width,
        "interleaved",
        theta=_theta(parameters),
        rotary_dim=2 * part,
        frequency_dim=part,
        axes=axes.axial((0, 1), part // 2),
        direction=-1,
        position_scale=2.0 * math.pi / longest,
    )


def _coordinates(family: Family, config: Mapping[str, Any], parameters: dict[str, Any]) -> RopeSpec:
    """Real x, y, z with a ladder each, the index of the residue with its own; the rest stands."""
    del parameters
    width = _width(family, config, multiple_of=2)
    spatial, uid = (
        checks.integer(key, config.get(key), at_least=1)
        for key in ("num_spatial_rope_pairs_per_axis", "num_uid_rope_pairs")
    )
    idle = width // 2 - 3 * spatial - uid
    if idle < 0:
        raise ConfigError(
            f"head_dim must hold 3 * {checks.abridged(spatial)} + {checks.abridged(uid)} pairs; "
            f"got {width}"
        )
    theta, uid_theta = (
        checks.real(key, config.get(key), above=1.0)
        for key in ("spatial_rope_base_frequency", "uid_rope_base_frequency")
    )
    # one ladder with the rungs of x, y and z, then those of the residue, then one that stands
    logs = [
        j / uid * math.log(uid_theta) - (spatial + j) / spatial * math.log(theta)
        for j in range(uid)
    ]
    factors = (1.0,) * spatial + tuple(math.exp(log) for log in logs) + (math.inf,) * (idle > 0)
    order = axes.axial((0, 1, 2), spatial)
    order += tuple((3, spatial + j) for j in range(uid)) + ((3, spatial + uid),) * idle
    return RopeSpec(
        width,
        "half",
        theta=theta,
        frequency_dim=2 * spatial,
        scaling=CustomFactors(factors),
        axes=order,
    )


TOWER_BUILDERS: dict[str, Callable[[Family, Mapping[str, Any], dict[str, Any]], RopeSpec]] = {
    "V1": _plane("half", (_ROW, _COLUMN)),
    "V2": _plane("half", (_COLUMN, _ROW)),
    "V3": _plane("half", (_COLUMN, _ROW), alternate=True),
    "V4": _pixtral,
    "V5": _space_time,
    "V6": _plane("interleaved", (_ROW, _COLUMN)),
    "V7": _plane("interleaved", (_COLUMN, _ROW)),
    "V8": _two_blocks,
    # the class token has position -1, which does not turn
    "V9": _plane("interleaved", (_COLUMN, _ROW), position_offset=1.0),
    # positions are the centres of the patches, from -1 to 1
    "V10": _plane("half", (_ROW, _COLUMN), position_scale=2.0 * math.pi),
    "V11": _loftr,
    "C24": _clvp,
    "C26": _timestamps,
    "C27": _coordinates,
}
"""Builder of every convention that :data:`ropewalk.spec.family.CONVENTIONS` does not have."""


def _theta(parameters: dict[str, Any]) -> float:
    """Return the base of a dictionary that must hold nothing else."""
    theta = parameters.pop("rope_theta")
    for key in ("rope_type", "type"):
        name = parameters.pop(key, "default")
        checks.choice(key, name, ("default",))
    if parameters:
        key = min(parameters, key=str)
        raise ConfigError(
            "rope_parameters of this model_type must hold rope_theta alone; got "
            f"{checks.abridged(key)}; remove it"
        )
    return checks.real("rope_theta", theta, above=1.0)


def _width(family: Family, config: Mapping[str, Any], *, multiple_of: int) -> int:
    width = head_width(family, config)
    if "memory_attention_hidden_size" in family.keys.values():
        rate = bounded(_RATE, config.get(_RATE, 1))
        width = max(width // rate, 1)
    return bounded("head_dim", width, multiple_of=multiple_of)
