"""Build the specs of a model from its config and its family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import axes, checks
from ropewalk.spec.by_length import LongRope
from ropewalk.spec.config_keys import ALL, entry, rope_dictionaries
from ropewalk.spec.family import Convention, Family
from ropewalk.spec.parameters import spec_from_rope_parameters
from ropewalk.spec.rope_spec import RopeSpec
from ropewalk.spec.towers import TOWER_BUILDERS
from ropewalk.spec.widths import bounded, dimension, head_width

if TYPE_CHECKING:
    from collections.abc import Mapping

_SELECT = {"contiguous": axes.contiguous, "strided": axes.strided, "ernie": axes.ernie}
_MROPE_KEYS = ("mrope_section", "mrope_interleaved", "interleaved")


def specs_by_label(family: Family, config: Mapping[str, Any]) -> dict[str, RopeSpec | None]:
    """Return the rotation of every kind of layer; None for kinds that do not turn.

    Args:
        family: The family.
        config: The config that holds the rotation.

    Raises:
        ConfigError: An entry is missing, contradicted or out of range.
    """
    if not rotates(family, config):
        return dict.fromkeys(family.labels or (ALL,))
    return {
        label: None
        if parameters is None
        else spec_of_label(family, config, parameters, label, family.convention_of(config))
        for label, parameters in rope_dictionaries(family, config).items()
    }


def rotates(family: Family, config: Mapping[str, Any]) -> bool:
    """Return whether the config asks for rotary embeddings at all.

    Args:
        family: The family.
        config: The config that holds the rotation.
    """
    if family.rotates_if is None:
        return True
    key, wanted, default = family.rotates_if
    return bool(config.get(key, default) == wanted)


def spec_of_label(
    family: Family,
    config: Mapping[str, Any],
    parameters: Mapping[str, Any],
    label: str,
    convention: Convention | None,
    head_dim_key: str | None = None,
) -> RopeSpec:
    """Return one rotation.

    Args:
        family: The family.
        config: The config that holds the rotation.
        parameters: The complete dictionary of the label.
        label: Kind of layer.
        convention: How the table is applied; None: the builder of the family knows.
        head_dim_key: Entry with the width of the vectors, where it is not that of a head.

    Raises:
        ConfigError: An entry is missing, contradicted or out of range.
    """
    config = of_label(family, config, label)
    if convention is None:
        return TOWER_BUILDERS[family.convention](family, config, dict(parameters))
    values = dict(parameters)
    _check_type(family, convention, values)
    sections = _sections(family, convention, values)
    head_dim, rotary_dim, offset = _slice(family, config, convention, values, label, head_dim_key)
    even = rotary_dim + rotary_dim % 2  # an odd share is rounded up in the table, not in the ladder
    if even > head_dim:
        raise ConfigError(f"head_dim must be even where all of it turns; got {head_dim}")
    longest = entry(family, config, "max_position_embeddings")
    if values.get("rope_type") in (None, "default", "linear", "proportional"):
        longest = None  # which those types do not read
    original = config.get("original_max_position_embeddings")
    if values.get("rope_type") not in ("longrope", "yarn", "llama3"):
        original = None
    elif original is not None:
        values.pop("original_max_position_embeddings", None)  # the one beside it wins
    base = spec_from_rope_parameters(
        values,
        head_dim=even,
        layout=convention.layout,
        max_position_embeddings=longest,
        original_max_position_embeddings=original,
    )
    scaling = base.scaling
    if family.short_only and isinstance(scaling, LongRope):
        scaling = LongRope(
            scaling.short_factor,
            scaling.short_factor,
            scaling.original_max_position_embeddings,
            scaling.factor,
            scaling.attention_factor,
            short_mscale=scaling.short_mscale,
            long_mscale=scaling.long_mscale,
        )
    return RopeSpec(
        head_dim,
        convention.layout,
        theta=base.theta,
        rotary_dim=even,
        rotary_offset=offset,
        output_layout=convention.output_layout,  # type: ignore[arg-type]  # None: layout
        frequency_dim=rotary_dim,
        scaling=scaling,
        axes=_axes(convention, sections, even // 2),
        direction=convention.direction,
    )


def of_label(family: Family, config: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return the config as the layers of one kind see it (``per_layer_config``).

    Args:
        family: The family.
        config: The config that holds the rotation.
        label: Kind of layer.
    """
    overrides, types = config.get("per_layer_config"), config.get("layer_types")
    if not isinstance(overrides, dict) or not isinstance(types, list):
        return dict(config)
    kinds = [family.label_of.get(kind, kind) for kind in types if isinstance(kind, str)]
    if label not in kinds:
        return dict(config)
    first = kinds.index(label)
    own: Any = next(
        (overrides[key] for key in (f"{first:02d}", str(first)) if key in overrides), {}
    )
    if not isinstance(own, dict):
        raise ConfigError(
            f"per_layer_config must hold dictionaries; got {checks.abridged(own)} for layer {first}"
        )
    return dict(config) | own


def _slice(
    family: Family,
    config: Mapping[str, Any],
    convention: Convention,
    values: dict[str, Any],
    label: str,
    head_dim_key: str | None,
) -> tuple[int, int, int]:
    """Return width, rotated width and offset, and take the share out of ``values``."""
    if convention.slice == "mla":
        values.pop("partial_rotary_factor", None)  # it restates qk_rope_head_dim
        rope = dimension(family, config, "qk_rope_head_dim")
        nope = checks.integer("qk_nope_head_dim", config.get("qk_nope_head_dim"), at_least=0)
        return bounded("qk_nope_head_dim + qk_rope_head_dim", nope + rope), rope, nope
    if head_dim_key is not None and config.get("qk_rope_head_dim") is not None:
        values.pop("partial_rotary_factor", None)
        width = dimension(family, config, head_dim_key)
        rotary_dim = dimension(family, config, "qk_rope_head_dim")
    elif convention.slice == "rotary_dim":
        width = head_width(family, config, label)
        rotary_dim = bounded("rotary_dim", config.get("rotary_dim", 64))
    else:
        width = head_width(family, config, label)
        rotary_dim = _share(family, config, values, width)
        if head_dim_key is not None:
            width = dimension(family, config, head_dim_key)
            rotary_dim = min(rotary_dim, width)
    offset = width - rotary_dim if convention.slice == "trailing" else 0
    return width, rotary_dim, offset


def _share(family: Family, config: Mapping[str, Any], values: dict[str, Any], head_dim: int) -> int:
    """Return the rotated width from partial_rotary_factor or an absolute rotary_dim."""
    if values.get("rope_type") == "proportional":
        return head_dim
    share = values.pop("partial_rotary_factor", None)
    absolute = config.get("rotary_dim") if "rotary_dim" in family.keys else None
    if share is None and absolute is not None:
        return bounded("rotary_dim", absolute)
    if share is None:
        return head_dim
    number = checks.real("partial_rotary_factor", share, above=0.0)
    if number > 1.0:
        raise ConfigError(f"partial_rotary_factor must be at most 1; got {number!r}")
    return bounded("rotary_dim", int(head_dim * number))


def _sections(
    family: Family, convention: Convention, values: dict[str, Any]
) -> tuple[int, int, int] | None:
    """Take the keys of M-RoPE out of the dictionary, and refuse those of another selector."""
    if convention.axes not in _SELECT:
        return None
    section, *flags = (values.pop(key, None) for key in _MROPE_KEYS)
    for flag in flags:
        if flag is not None and flag is not (convention.axes == "strided"):
            raise ConfigError(
                "mrope_interleaved must be what the class of this model_type does, "
                f"{convention.axes == 'strided'}; got {checks.abridged(flag)}"
            )
    return axes.checked_sections(family.sections if section is None else section)


def _axes(
    convention: Convention, sections: tuple[int, int, int] | None, pairs: int
) -> axes.Axes | None:
    if convention.axes == "alternating":
        return axes.alternating(pairs)
    if convention.axes is None or sections is None:
        return None
    return _SELECT[convention.axes](sections, pairs)


def _check_type(family: Family, convention: Convention, values: Mapping[str, Any]) -> None:
    """Refuse a rope_type that the class refuses, or whose share it does not read."""
    rope_type = values.get("rope_type", "default")
    if family.rope_types is not None:
        checks.choice("rope_type of this model_type", rope_type, family.rope_types)
    share = values.get("partial_rotary_factor", 1.0)
    covers_head = rope_type == "proportional"
    cuts = covers_head and convention.slice == "mla"
    if share != 1.0 and (cuts or (family.convention == "C7" and not covers_head)):
        raise ConfigError(
            f"partial_rotary_factor must be 1 or absent with rope_type {rope_type!r} here, where "
            f"it is not read; got {checks.abridged(share)}"
        )
