"""Gather what a config says about its rotations, whichever release of transformers wrote it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError, RopeConfigWarning
from ropewalk.spec import checks

if TYPE_CHECKING:
    from ropewalk.spec.family import Family

ALL = "all"
"""Label of the one rotation of a model whose layers do not differ."""
_ORIGINAL = "original_max_position_embeddings"
_NEED_ORIGINAL = ("llama3", "yarn", "longrope")


def entry(family: Family, config: Mapping[str, Any], key: str, label: str = ALL) -> Any:
    """Return an entry under the name that the family has for it, or None.

    Args:
        family: The family.
        config: The config.
        key: Its usual name.
        label: Layer type, where the name depends on it.
    """
    names = (family.keys.get(f"{key}/{label}"), family.keys.get(key), key)
    values = (config.get(name) for name in names if name is not None)
    return next((value for value in values if value is not None), None)


def rope_dictionaries(
    family: Family, config: Mapping[str, Any]
) -> dict[str, dict[str, Any] | None]:
    """Return the complete ``rope_parameters`` by label; None for layers that do not turn.

    Args:
        family: The family.
        config: The config that holds the rotation.

    Raises:
        ConfigError: Two entries contradict each other, or an entry has no meaning here.
    """
    _warn_of_unread(family, config)
    written = _written(config)
    if not family.labels:
        if any(isinstance(value, Mapping) for value in (written or {}).values()):
            raise ConfigError(
                "rope_parameters of this model_type must be one flat dictionary; "
                f"got {checks.abridged(written)}"
            )
        return {ALL: _completed(family, config, written, ALL)}
    nested = {} if written is None else {k: written[k] for k in family.labels if k in written}
    if nested and all(value is None or isinstance(value, Mapping) for value in nested.values()):
        return _of_nested(family, config, written or {}, nested)
    if nested:
        raise ConfigError(
            f"rope_parameters must have a dictionary or null for each of {list(family.labels)}; "
            f"got {checks.abridged(written)}"
        )
    if written and family.scaled is None:
        raise ConfigError(
            "rope_parameters of this model_type must have one dictionary for each of "
            f"{list(family.labels)}; got {checks.abridged(written)}"
        )
    result: dict[str, dict[str, Any] | None] = {}
    for label in family.labels:
        own = written if label in (family.scaled or ()) else None
        result[label] = _completed(family, config, own, label)
    return result


def _written(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the one dictionary that the config holds under its old or its new name."""
    found = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be a dictionary or null; got {checks.abridged(value)}")
        if value:
            found[name] = {str(key): item for key, item in value.items()}
    if len(found) == 2:
        old, new = found["rope_scaling"], found["rope_parameters"]
        missing = {key: value for key, value in old.items() if new.get(key) != value}
        missing.pop("type", None)
        if missing:
            raise ConfigError(
                "rope_scaling and rope_parameters must agree where both are given; "
                f"got {checks.abridged(missing)} in rope_scaling alone"
            )
        return new
    return next(iter(found.values()), None)


def _of_nested(
    family: Family, config: Mapping[str, Any], written: Mapping[str, Any], nested: Mapping[str, Any]
) -> dict[str, dict[str, Any] | None]:
    """Return the dictionaries of a nested entry, each completed by itself."""
    outside = sorted(set(written) - set(family.labels) - {"rope_theta", "rope_type"})
    if outside:
        _warn(f"rope_parameters has the key {checks.abridged(outside[0])} beside its layer types")
    result: dict[str, dict[str, Any] | None] = {}
    for label in family.labels:
        if label in nested and nested[label] is None:
            result[label] = None
        else:
            result[label] = _completed(family, config, nested.get(label), label)
    return result


def _completed(
    family: Family, config: Mapping[str, Any], written: Mapping[str, Any] | None, label: str
) -> dict[str, Any] | None:
    """Return one dictionary with the entries beside it and the documented defaults."""
    if not written:
        defaults: Any = family.defaults or {}
        written = defaults.get(label) if family.labels and defaults else defaults
        if written is None:
            return None
    values = {str(key): value for key, value in written.items() if value is not None}
    _rename_type(family, values)
    theta = _beside_theta(family, config, label)
    if theta is not None and not family.labels and values.get("rope_theta", theta) != theta:
        raise ConfigError(
            "rope_theta must be the same beside rope_parameters and inside; got "
            f"{checks.abridged(theta)} and {checks.abridged(values['rope_theta'])}"
        )
    if "rope_theta" not in values:
        values["rope_theta"] = _documented_theta(family, label) if theta is None else theta
    _complete_partial(family, config, values, label)
    _complete_original(family, config, values)
    for key in sorted(family.unused & set(values)):
        if key == "factor" and "alpha" not in values:
            continue
        _warn(f"rope_parameters has the key {key!r}, which this model_type stores and ignores")
        del values[key]
    return values


def _rename_type(family: Family, values: dict[str, Any]) -> None:
    """Write the type under its new name, and as the class takes it."""
    for key in ("rope_type", "type"):
        name = values.get(key)
        if isinstance(name, str):
            # the axial classes are named by what they are, and their ladder is a plain one
            axial = name == "axial" and family.convention[0] == "V"
            values[key] = "default" if axial else family.renamed.get(name, name)
    if values.get("type") is not None and values.get("rope_type") in (None, values["type"]):
        values["rope_type"] = values.pop("type")


def _beside_theta(family: Family, config: Mapping[str, Any], label: str) -> Any:
    if family.labels:
        key = family.theta_keys.get(label)
        return None if key is None else config.get(key)
    return entry(family, config, "rope_theta")


def _documented_theta(family: Family, label: str) -> float:
    return family.theta[label] if isinstance(family.theta, Mapping) else family.theta


def documented_partial(family: Family, label: str) -> float | None:
    """Return the documented share of the head that turns, or None where none is read.

    Args:
        family: The family.
        label: Layer type.
    """
    return family.partial[label] if isinstance(family.partial, Mapping) else family.partial


def _complete_partial(
    family: Family, config: Mapping[str, Any], values: dict[str, Any], label: str
) -> None:
    beside = entry(family, config, "partial_rotary_factor", label)
    if beside is not None and "partial_rotary_factor" not in values:
        values["partial_rotary_factor"] = beside
    documented = documented_partial(family, label)
    if documented is not None:
        values.setdefault("partial_rotary_factor", documented)
        if values["partial_rotary_factor"] == 1.0 and values.get("rope_type") != "proportional":
            del values["partial_rotary_factor"]
    elif values.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            "partial_rotary_factor must be 1 or absent, since this model_type does not read it; "
            f"got {checks.abridged(values['partial_rotary_factor'])}"
        )


def _complete_original(family: Family, config: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Take the trained length from beside the dictionary, as transformers does."""
    if values.get("rope_type") not in _NEED_ORIGINAL:
        return
    beside = config.get(_ORIGINAL)
    longest = entry(family, config, "max_position_embeddings")
    carried = values.get("short_factor") is not None and "attention_factor" in values
    if beside is not None or _ORIGINAL in values or longest is None or carried:
        return
    values[_ORIGINAL] = longest
    _warn(
        f"rope_parameters has no {_ORIGINAL}; transformers takes max_position_embeddings, "
        f"{checks.abridged(longest)}"
    )


_READ = frozenset(
    {
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "rope_layout",
        "partial_rotary_factor",
        "qk_rope_head_dim",
        "no_rope_layers",
        "no_rope_layer_interval",
        "layer_rope_theta",
        "num_spatial_rope_pairs_per_axis",
        "num_uid_rope_pairs",
        "spatial_rope_base_frequency",
        "uid_rope_base_frequency",
    }
)
"""Entries about rotations that are read, or checked, for every family."""
_OF_CONVENTION = {"C13": "rotary_dim", "C14": "rotary_value"}


def _warn_of_unread(family: Family, config: Mapping[str, Any]) -> None:
    """Name entries beside the dictionaries that look like rotations and that nobody reads."""
    read = _READ | set(family.keys.values()) | set(family.theta_keys.values())
    read |= {_OF_CONVENTION.get(family.convention, "rope_theta"), *(family.switch or ())}
    read |= {family.rotates_if[0]} if family.rotates_if else set()
    for key, value in config.items():
        about = "rope" in str(key) or "rotary" in str(key)
        no_rotation = str(key).endswith(("dropout", "_sizes"))  # beside it in memory attention
        if not about or no_rotation or key in read or value is None or value is False:
            continue
        _warn(f"the config has the entry {checks.abridged(key)}, which this model_type ignores")


def _warn(message: str) -> None:
    warnings.warn(message, RopeConfigWarning, stacklevel=3)
