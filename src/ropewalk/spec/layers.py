"""Say of every layer of a model which rotation it applies, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.config_keys import ALL, Merged, gather
from ropewalk.spec.family import CONVENTIONS, Convention, Family
from ropewalk.spec.from_config import rotates, spec_of_label, specs_by_label
from ropewalk.spec.layer_types import NO_ROPE, labels_of_layers, lists_layers
from ropewalk.spec.sources import config_of, tower_of
from ropewalk.spec.use import RopeUse

if TYPE_CHECKING:
    from ropewalk.spec.rope_spec import RopeSpec

_PLAIN = Convention("half")


def spec_from_config(x: object) -> RopeSpec:
    """Return the one rotation of a model; see :meth:`RopeSpec.from_config`."""
    family, config = tower_of(config_of(x))
    per_layer = family.layers == "theta_per_layer" and config.get("layer_rope_theta") is not None
    specs = per_label(family, config) if per_layer else specs_by_label(family, config)
    different = {spec for spec in specs.values() if spec is not None}
    if not different:
        raise ConfigError(
            f"x must be a model with rotary embeddings; this {config['model_type']} has none"
        )
    indexed = family.indexer is not None and family.indexer.is_in(config)
    if len(different) > 1 or indexed:
        names = ", ".join(map(str, specs)) + (" and an indexer" if indexed else "")
        raise ConfigError(
            f"x must have one rotation; this {config['model_type']} has several ({names}); "
            "use RopeSpec.per_layer_type(x) or ropewalk.rope_layers(x)"
        )
    return different.pop()


def per_layer_type(x: object) -> dict[str, RopeSpec | None]:
    """Return the rotation of every layer type; see :meth:`RopeSpec.per_layer_type`."""
    return per_label(*tower_of(config_of(x)))


def per_label(family: Family, config: dict[str, Any]) -> dict[str, RopeSpec | None]:
    """Return the rotation by layer type, or by label where these are not layer types.

    Args:
        family: The family.
        config: The config that holds the rotation.

    Raises:
        ConfigError: An entry is missing, contradicted or out of range.
    """
    specs = specs_by_label(family, config)
    if family.layers == "theta_per_layer":
        bases = {label for label in labels_of_layers(family, config) if label != NO_ROPE}
        if bases and bases != {ALL}:
            return {
                f"rope_theta={base}": _with_theta(specs[ALL], base)
                for base in sorted(bases, key=str)
            }
    unlisted = family.layers == "attention" and not lists_layers(config)
    if family.labels or family.layers == "all" or unlisted:
        return specs if family.labels else {"full_attention": specs[ALL]}
    result: dict[str, RopeSpec | None] = {}
    for label in dict.fromkeys(labels_of_layers(family, config)):
        result[label] = None if label == NO_ROPE else specs[ALL]
    return result


def rope_layers(x: object) -> list[dict[str, RopeUse] | None]:
    """Return what every layer of a model rotates.

    Args:
        x: As :meth:`RopeSpec.from_config` takes it.

    Returns:
        One entry per layer: None where nothing is rotated, else the uses by role, "attention" and,
        in models with sparse attention, "indexer".

    Raises:
        ConfigError: An entry is missing, contradicted or out of range.

    Example:
        >>> config = {"model_type": "smollm3", "hidden_size": 256, "num_attention_heads": 4}
        >>> [layer is not None for layer in rope_layers(config | {"num_hidden_layers": 4})]
        [True, True, True, False]
    """
    family, config = tower_of(config_of(x))
    labels = labels_of_layers(family, config)
    if not rotates(family, config):
        return [None] * len(labels)
    gathered = gather(family, config)
    uses: dict[Any, dict[str, RopeUse] | None] = {NO_ROPE: None}
    for label in dict.fromkeys(labels):
        if label in uses:
            continue
        own = gathered.get(label if label in gathered else ALL)
        if own is not None and label not in gathered:  # a base of this layer alone
            own = replace(own, values={**own.values, "rope_theta": label})
        uses[label] = None if own is None else _uses(family, config, own)
    return [uses[label] for label in labels]


def _uses(family: Family, config: dict[str, Any], merged: Merged) -> dict[str, RopeUse]:
    convention = family.convention_of(config)
    spec = spec_of_label(family, config, merged, convention)
    kind = convention or _PLAIN
    values = family.convention == "C24"
    if family.convention == "C14":
        values = checks.boolean("rotary_value", config.get("rotary_value", False))
    factor = 1.0
    if family.scaled_softmax and spec.scaling is not None:
        factor = spec.scaling.softmax_scale_factor()
    uses = {
        "attention": RopeUse(
            spec,
            values=values,
            output_inverse=kind.output_inverse,
            heads=kind.heads,
            stage=kind.stage,
            softmax_scale_factor=factor,
        )
    }
    sliding = merged.label in ("sliding_attention", "main")
    if family.indexer is not None and family.indexer.is_in(config) and not sliding:
        other = CONVENTIONS[family.indexer.convention]
        key = family.indexer.head_dim_key
        uses["indexer"] = RopeUse(spec_of_label(family, config, merged, other, key))
    return uses


def _with_theta(spec: RopeSpec | None, theta: object) -> RopeSpec | None:
    return None if spec is None else spec.replace(theta=theta)
