"""Build the specs of a model from its config and its family."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import axes, checks
from ropewalk.spec.by_length import LongRope
from ropewalk.spec.config_keys import ALL, MROPE_KEYS, ORIGINAL, Merged, entry, gather
from ropewalk.spec.family import Convention, Family
from ropewalk.spec.parameters import is_carrier, spec_from_rope_parameters
from ropewalk.spec.rope_spec import RopeSpec
from ropewalk.spec.widths import bounded, dimension, head_width

if TYPE_CHECKING:
    from collections.abc import Mapping

_SELECT = {"contiguous": axes.contiguous, "strided": axes.strided, "ernie": axes.ernie}


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
        if merged is None
        else spec_of_label(family, config, merged, family.convention_of(config))
        for label, merged in gather(family, config).items()
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
    merged: Merged,
    convention: Convention | None,
    head_dim_key: str | None = None,
) -> RopeSpec:
    """Return one rotation.

    Args:
        family: The family.
        config: The config that holds the rotation.
        merged: The complete dictionary.
        convention: How the table is applied; None: the builder of the family knows.
        head_dim_key: Entry with the width of the vectors, where it is not that of a head.

    Raises:
        ConfigError: An entry is missing, contradicted or out of range.
    """
    config, values = of_label(family, config, merged.label), dict(merged.values)
    if convention is None:
        from ropewalk.spec.towers import TOWER_BUILDERS  # few models need them

        return TOWER_BUILDERS[family.convention](family, config, values)
    _check_type(family, convention, values)
    sections = _sections(family, convention, values)
    head_dim, rotary_dim, offset = slice_of(family, config, merged, convention, head_dim_key)
    even = rotary_dim + rotary_dim % 2  # an odd share is rounded up in the table, not in the ladder
    if even > head_dim:
        raise ConfigError(f"head_dim must be even where all of it turns; got {head_dim}")
    rope_type = values.get("rope_type")
    if rope_type != "proportional":
        values.pop("partial_rotary_factor", None)  # which is in the slice
    longest = entry(family, config, "max_position_embeddings")
    if rope_type in ("default", "linear", "proportional"):
        longest = None  # which those types do not read
    if merged.original_assumed and is_carrier(values):
        del values[ORIGINAL]
    base = spec_from_rope_parameters(
        values,
        head_dim=even,
        layout=convention.layout,
        max_position_embeddings=longest,
    )
    scaling = base.scaling
    if family.short_only and isinstance(scaling, LongRope):
        scaling = replace(scaling, long_factor=scaling.short_factor)
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


def slice_of(
    family: Family,
    config: Mapping[str, Any],
    merged: Merged,
    convention: Convention,
    head_dim_key: str | None = None,
) -> tuple[int, int, int]:
    """Return the width of the vectors, and length and offset of the slice that turns.

    Args:
        family: The family.
        config: The config as the layers of that kind see it.
        merged: The complete dictionary.
        convention: How the table is applied.
        head_dim_key: Entry with the width of the vectors, where it is not that of a head.

    Raises:
        ConfigError: An entry is missing or out of range.
    """
    if convention.slice == "mla":
        rope = dimension(family, config, "qk_rope_head_dim")
        nope = checks.integer("qk_nope_head_dim", config.get("qk_nope_head_dim"), at_least=0)
        return bounded("qk_nope_head_dim + qk_rope_head_dim", nope + rope), rope, nope
    if head_dim_key is not None and config.get("qk_rope_head_dim") is not None:
        width = dimension(family, config, head_dim_key)
        rotary_dim = dimension(family, config, "qk_rope_head_dim")
    elif convention.slice == "rotary_dim":
        width = head_width(family, config, merged.label)
        rotary_dim = bounded("rotary_dim", config.get("rotary_dim", 64))
    else:
        width = head_width(family, config, merged.label)
        rotary_dim = _share(family, config, merged, width)
        if head_dim_key is not None:
            width = dimension(family, config, head_dim_key)
            rotary_dim = min(rotary_dim, width)
    offset = width - rotary_dim if convention.slice == "trailing" else 0
    return width, rotary_dim, offset


def _share(family: Family, config: Mapping[str, Any], merged: Merged, head_dim: int) -> int:
    """Return the rotated width from partial_rotary_factor or an absolute rotary_dim."""
    if merged.rope_type == "proportional":
        return head_dim
    share = merged.values.get("partial_rotary_factor")
    absolute = entry(family, config, "rotary_dim") if "rotary_dim" in family.keys else None
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
    if not convention.has_sections:
        return None
    section, *flags = (values.pop(key, None) for key in MROPE_KEYS)
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
