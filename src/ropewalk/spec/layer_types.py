"""Find out from a config which of its layers turn, and with which of its rotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.config_keys import ALL, entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ropewalk.spec.family import Family

NO_ROPE = "no_rope"
"""Label of layers that do not turn."""
_MOST_LAYERS = 4096
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NOT_ATTENTION = frozenset(
    {"linear_attention", "conv", "mamba", "mamba2", "recurrent", "moe", "mlp", "hybrid_mamba"}
)
_TYPE_KEYS = ("layer_types", "layers_block_type", "block_types")
_INDEX_KEYS = ("attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids")


def labels_of_layers(family: Family, config: Mapping[str, Any]) -> list[Any]:
    """Return the label of every layer: a key of its rotation, its own base, or "no_rope".

    Args:
        family: The family.
        config: The config that holds the rotation.

    Raises:
        ConfigError: The number of layers, or what tells them apart, is missing or malformed.
    """
    count = _count(family, config)
    return _RULES[family.layers](family, config, count)


def lists_layers(config: Mapping[str, Any]) -> bool:
    """Return whether the config says which of its layers are attention.

    Args:
        config: The config that holds the rotation.
    """
    keys = (*_TYPE_KEYS, *_INDEX_KEYS, "full_attention_interval")
    return any(config.get(key) is not None for key in keys)


def _count(family: Family, config: Mapping[str, Any]) -> int:
    value = entry(family, config, "num_hidden_layers")
    if value is None:
        value = config.get("depth")
    if value is None and isinstance(config.get("layer_types"), list):
        value = len(config["layer_types"])
    count = checks.integer("num_hidden_layers", value, at_least=1)
    if count > _MOST_LAYERS:
        raise ConfigError(
            f"num_hidden_layers must be at most {_MOST_LAYERS}; got {checks.abridged(count)}"
        )
    return count


def _types(family: Family, config: Mapping[str, Any], count: int) -> list[str] | None:
    """Return the type of every layer as it is listed or follows from a period, or None."""
    for key in _TYPE_KEYS:
        listed = config.get(key)
        if listed is None:
            continue
        if not isinstance(listed, list) or not all(isinstance(kind, str) for kind in listed):
            raise ConfigError(f"{key} must be a list of strings; got {checks.abridged(listed)}")
        if key == "block_types":  # RecurrentGemma repeats them
            listed = (listed * (count // max(len(listed), 1) + 1))[:count]
        if len(listed) != count:
            raise ConfigError(f"{key} must have {count} entries, one per layer; got {len(listed)}")
        return listed
    if family.every is not None:
        key, default = family.every
        value = config.get(key, config.get(f"_{key}", default))
        period = checks.integer(key, value, at_least=1)
        first = key == "global_attn_every_n_layers"  # ModernBERT starts with a full layer
        return [_FULL if (i + (not first)) % period == 0 else _SLIDING for i in range(count)]
    return None


def _needed_types(family: Family, config: Mapping[str, Any], count: int) -> list[str]:
    types = _types(family, config, count)
    if types is None:
        raise ConfigError(
            "layer_types must be given, since not all layers of this model_type are alike; got None"
        )
    return types


def _all(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:
    if not family.labels:
        return [ALL] * count
    labels = [family.label_of.get(kind, kind) for kind in _needed_types(family, config, count)]
    return [_checked(label, family) for label in labels]


def _checked(label: str, family: Family) -> str:
    if label in family.labels:
        return label
    if label in _NOT_ATTENTION:
        return NO_ROPE
    raise ConfigError(
        f"layer_types must be among {list(family.labels)}; got {checks.abridged(label)}"
    )


def _attention(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:
    """All attention layers turn; convolutions, state spaces and recurrences do not."""
    if family.labels:
        return _all(family, config, count)
    for key in _INDEX_KEYS:
        indices = config.get(key)
        if isinstance(indices, list) and config.get("layer_types") is None:
            return [ALL if i in indices else NO_ROPE for i in range(count)]
    period = config.get("full_attention_interval")
    if config.get("layer_types") is None and period is not None:
        period = checks.integer("full_attention_interval", period, at_least=1)
        return [ALL if (i + 1) % period == 0 else NO_ROPE for i in range(count)]
    types = _needed_types(family, config, count)
    return [NO_ROPE if kind in _NOT_ATTENTION else ALL for kind in types]


def _sliding(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:
    types = _needed_types(family, config, count)
    return [ALL if kind == _SLIDING else NO_ROPE for kind in types]


def _sliding_if_any(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:
    """EXAONE 4: full layers turn only in models without sliding ones."""
    if config.get("sliding_window") is None:
        return [ALL] * count
    return _sliding(family, config, count)


def _sliding_or_dense(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:
    """Cohere 2 MoE: dense layers at the front turn too where their pattern is 1."""
    labels = _sliding(family, config, count)
    kinds = config.get("mlp_layer_types")
    if config.get("prefix_dense_sliding_window_pattern") == 1 and isinstance(kinds, list):
        pairs = zip(labels, [*kinds, *[None] * count], strict=False)
        return [ALL if kind == "dense" else label for label, kind in pairs]
    return labels


def _full(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:
    types = _needed_types(family, config, count)
    return [ALL if kind == _FULL else NO_ROPE for kind in types]


def _flags(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:  # noqa: ARG001
    """A list of 1 (turns) and 0, or every n-th layer without; huggingface calls it no_rope."""
    flags = config.get("no_rope_layers")
    if not flags:
        period = checks.integer(
            "no_rope_layer_interval", config.get("no_rope_layer_interval", 4), at_least=1
        )
        return [ALL if (i + 1) % period else NO_ROPE for i in range(count)]
    if not isinstance(flags, list) or len(flags) != count:
        raise ConfigError(
            f"no_rope_layers must be a list of {count} flags; got {checks.abridged(flags)}"
        )
    return [ALL if flag else NO_ROPE for flag in flags]


def _bases(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:  # noqa: ARG001
    """A base per layer, 0 or null for none."""
    bases = config.get("layer_rope_theta")
    if bases is None:
        return [ALL] * count
    if not isinstance(bases, list) or len(bases) != count:
        raise ConfigError(
            f"layer_rope_theta must be a list of {count} numbers; got {checks.abridged(bases)}"
        )
    return [checks.real("layer_rope_theta", base, above=1.0) if base else NO_ROPE for base in bases]


def _base_flags(family: Family, config: Mapping[str, Any], count: int) -> list[Any]:
    """A base per layer of which the class reads only whether it is 0."""
    return [label if label == NO_ROPE else ALL for label in _bases(family, config, count)]


_RULES: dict[str, Callable[[Family, Mapping[str, Any], int], list[Any]]] = {
    "all": _all,
    "attention": _attention,
    "sliding": _sliding,
    "sliding_if_any": _sliding_if_any,
    "sliding_or_dense": _sliding_or_dense,
    "full": _full,
    "no_rope_layers": _flags,
    "theta_per_layer": _bases,
    "layer_rope_theta": _base_flags,
}
"""Which layers turn, by the name that a family gives."""
