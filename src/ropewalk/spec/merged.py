"""The rope dictionary of every layer type, merged from a configuration as transformers 5 does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError, RopeConfigWarning
from ropewalk.spec import checks
from ropewalk.spec.config_keys import documented_partial, rope_dictionaries
from ropewalk.spec.parameters import spec_from_rope_parameters

if TYPE_CHECKING:
    from ropewalk.spec.facts import ModelFacts
    from ropewalk.spec.family import Family
    from ropewalk.spec.rope_spec import RopeSpec

ORIGINAL = "original_max_position_embeddings"
ALL_LAYERS = "all"
"""The layer type of models whose layers all rotate alike."""
_WITH_ORIGINAL = ("llama3", "yarn", "longrope")
_KEYS_OF_TYPE = {
    "default": "",
    "linear": "factor",
    "ntk": "factor",
    "dynamic": "factor alpha",
    "yarn": f"factor {ORIGINAL} beta_fast beta_slow mscale mscale_all_dim attention_factor "
    "truncate",
    "llama3": f"factor {ORIGINAL} low_freq_factor high_freq_factor",
    "longrope": f"factor {ORIGINAL} short_factor long_factor attention_factor short_mscale "
    "long_mscale",
    "proportional": "factor",
}


@dataclass(frozen=True)
class Merged:
    """One rope dictionary after merging, and what was dropped on the way.

    Example:
        >>> from ropewalk.spec.facts import ModelFacts
        >>> facts = ModelFacts.of({"model_type": "llama", "head_dim": 64, "rope_theta": 1e5})
        >>> merge(facts)["all"].values
        {'rope_theta': 100000.0, 'rope_type': 'default'}
    """

    values: Mapping[str, Any]
    """Keys and values that the rotary module receives."""
    written: Mapping[str, Any]
    """The dictionary as the file has it, before defaults."""
    nested: bool
    """Whether it stood below a layer type."""
    label: str = ALL_LAYERS
    """The layer type that it is for."""

    @property
    def rope_type(self) -> str:
        """The rule's name."""
        return str(self.values.get("rope_type"))

    @property
    def used(self) -> tuple[str, ...]:
        """Keys that the rule reads."""
        known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
        known |= set(_KEYS_OF_TYPE.get(self.rope_type, "").split())
        return tuple(key for key in self.values if key in known)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys that nothing reads."""
        return tuple(key for key in self.values if key not in self.used)


def written_dictionary(facts: ModelFacts) -> dict[str, Any]:
    """Return the dictionary that wins: rope_scaling where it is set, else rope_parameters.

    Args:
        facts: The model.

    Raises:
        ConfigError: One of them is not a dictionary.
    """
    for name in ("rope_scaling", "rope_parameters"):
        value = facts.config.get(name)
        if value:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name} must be a dictionary; got {checks.abridged(value)}")
            return dict(value)
    return {}


def merge(facts: ModelFacts) -> dict[str, Merged | None]:
    """Return the dictionary of every layer type; None for layers without a rotation.

    Args:
        facts: The model.

    Raises:
        ConfigError: A dictionary has the wrong type.

    References:
        ``RotaryEmbeddingConfigMixin`` and ``Gemma3TextConfig`` of transformers 5.24.
    """
    if facts.two_bases:
        return _merge_two_bases(facts)
    if facts.family is not None and facts.family.labels:
        return _merge_labels(facts, facts.family)
    written = written_dictionary(facts)
    theta = _theta(facts)
    nested = {key: value for key, value in written.items() if _is_layer_type(facts, key, value)}
    if not nested:
        return {ALL_LAYERS: _complete(facts, written, theta, ALL_LAYERS, nested=False)}
    for key, value in nested.items():
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"rope_parameters[{key!r}] must be a dictionary; got {value!r}")
    return {
        key: None if value is None else _complete(facts, value, theta, key, nested=True)
        for key, value in nested.items()
    }


def spec_of(merged: Merged, facts: ModelFacts) -> RopeSpec:
    """Return the rotation that a merged dictionary means; keys that nothing reads are left out.

    Args:
        merged: The dictionary.
        facts: Its model.

    Raises:
        ConfigError: A value is missing or out of range.
    """
    values = {key: merged.values[key] for key in merged.used if key != "type"}
    if merged.rope_type == "longrope" and values.get("attention_factor") is not None:
        lists = [values.get(name) for name in ("short_factor", "long_factor")]
        if lists[0] == lists[1] and ORIGINAL not in merged.written:
            values.pop(ORIGINAL, None)
            values.pop("factor", None)
    return spec_from_rope_parameters(
        values,
        head_dim=facts.width(merged.label),
        layout=facts.layout,
        max_position_embeddings=facts.longest,
    )


def _theta(facts: ModelFacts) -> Any:
    for name in ("rope_theta", "rotary_emb_base", "rope_base"):
        if facts.config.get(name) is not None:
            return facts.config[name]
    return facts.base()


def _is_layer_type(facts: ModelFacts, key: str, value: object) -> bool:
    declared = facts.config.get("layer_types")
    if isinstance(declared, list) and declared:
        return key in declared
    return isinstance(value, Mapping) or (value is None and key.endswith("attention"))


def _complete(
    facts: ModelFacts, written: Mapping[str, Any], theta: Any, label: str, *, nested: bool
) -> Merged:
    values = {key: value for key, value in written.items() if value is not None}
    values.setdefault("rope_theta", theta)
    if facts.model_type in ("phi3", "phi4_multimodal") and values.get("rope_type") is None:
        values["rope_type"] = {"su": "longrope", "yarn": "longrope"}.get(
            str(values.get("type", "default")), values.get("type", "default")
        )
    values.setdefault("rope_type", values.get("type", "default"))
    _complete_partial(facts, values, label)
    if values["rope_type"] in _WITH_ORIGINAL:
        beside = facts.config.get(ORIGINAL)
        if beside is not None and not nested:
            values[ORIGINAL] = beside  # the entry beside the dictionary wins
        elif facts.longest is not None:
            values.setdefault(ORIGINAL, facts.longest)
    return Merged(values, dict(written), nested, label)


def _merge_two_bases(facts: ModelFacts) -> dict[str, Merged | None]:
    """Merge for classes that know full and sliding attention; flat keys reach neither."""
    config = facts.config
    written = config.get("rope_parameters") or {}
    if not isinstance(written, Mapping):
        raise ConfigError(f"rope_parameters must be a dictionary; got {checks.abridged(written)}")
    assert facts.family is not None
    result: dict[str, Merged | None] = {}
    for name, legacy in facts.family.theta_keys.items():
        own = written.get(name) or {}
        scaled = facts.family.scaled or ()
        if name in scaled and isinstance(config.get("rope_scaling"), Mapping):
            own = {**own, **config["rope_scaling"]}
        if not isinstance(own, Mapping):
            raise ConfigError(f"rope_parameters[{name!r}] must be a dictionary; got {own!r}")
        theta = config.get(legacy)
        theta = facts.base(name) if theta is None else theta
        result[name] = _complete(facts, own, theta, name, nested=True)
    return result


def _merge_labels(facts: ModelFacts, family: Family) -> dict[str, Merged | None]:
    """Merge for classes with other layer types, which have rules and defaults of their own."""
    written = written_dictionary(facts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RopeConfigWarning)  # the diagnosis says the same
        found = rope_dictionaries(family, facts.config)
    result: dict[str, Merged | None] = {}
    for name, values in found.items():
        own = written.get(name)
        stated = own if isinstance(own, Mapping) else written
        nested = isinstance(own, Mapping)
        complete = None if values is None else {"rope_type": "default"} | values
        result[name] = None if complete is None else Merged(complete, dict(stated), nested, name)
    return result


def _complete_partial(facts: ModelFacts, values: dict[str, Any], label: str) -> None:
    """Add the share of the head that turns, or drop it where the class does not read it."""
    key = "partial_rotary_factor"
    for name in (key, "rotary_pct"):
        if facts.config.get(name) is not None:
            values.setdefault(key, facts.config[name])
    if facts.family is None:
        return
    convention = facts.family.convention_of(facts.config)
    if convention is not None and convention.slice == "rotary_dim":
        absolute = checks.integer("rotary_dim", facts.config.get("rotary_dim", 64), at_least=2)
        values[key] = absolute / facts.head_dim
        return
    documented = documented_partial(facts.family, label)
    if documented is None or "qk_rope_head_dim" in facts.config:
        values.pop(key, None)
    else:
        values.setdefault(key, documented)
        if values[key] == 1.0:
            del values[key]
