"""The rope dictionary of every layer type, merged from a configuration as transformers 5 does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.facts import TWO_BASES
from ropewalk.spec.parameters import spec_from_rope_parameters

if TYPE_CHECKING:
    from ropewalk.spec.facts import ModelFacts
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
_DEFAULT_THETA = {
    "apertus": 1.2e7,
    "bitnet": 5e5,
    "cohere": 5e5,
    "cwm": 1e6,
    "ernie4_5": 5e5,
    "ernie4_5_moe": 5e5,
    "exaone": 5e5,
    "gpt_oss": 1.5e5,
    "helium": 1e5,
    "hy_v3": 11_158_840.0,
    "llama4": 5e5,
    "llama4_text": 5e5,
    "minimax_m2": 5e6,
    "mllama": 5e5,
    "mllama_text_model": 5e5,
    "nomic_bert": 1e3,
    "olmo3": 5e5,
    "qwen3_vl": 5e5,
    "qwen3_vl_text": 5e5,
    "smollm3": 2e6,
    "solar_open": 1e6,
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


def default_theta(model_type: str) -> float:
    """Return the base that transformers 5.24 takes for a model type without rope_theta.

    Args:
        model_type: The model type; unknown ones get 10,000, the value of nearly all classes.

    Example:
        >>> default_theta("gpt_oss"), default_theta("llama")
        (150000.0, 10000.0)
    """
    return _DEFAULT_THETA.get(model_type, 10_000.0)


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
    written = written_dictionary(facts)
    theta = _theta(facts)
    nested = {key: value for key, value in written.items() if _is_layer_type(facts, key, value)}
    if not nested:
        return {ALL_LAYERS: _complete(facts, written, theta, nested=False)}
    for key, value in nested.items():
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"rope_parameters[{key!r}] must be a dictionary; got {value!r}")
    return {
        key: None if value is None else _complete(facts, value, theta, nested=True)
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
        head_dim=facts.head_dim,
        layout=facts.layout,
        max_position_embeddings=facts.longest,
    )


def _theta(facts: ModelFacts) -> Any:
    for name in ("rope_theta", "rotary_emb_base", "rope_base"):
        if facts.config.get(name) is not None:
            return facts.config[name]
    return default_theta(facts.model_type)


def _is_layer_type(facts: ModelFacts, key: str, value: object) -> bool:
    declared = facts.config.get("layer_types")
    if isinstance(declared, list) and declared:
        return key in declared
    return isinstance(value, Mapping) or (value is None and key.endswith("attention"))


def _complete(facts: ModelFacts, written: Mapping[str, Any], theta: Any, *, nested: bool) -> Merged:
    values = {key: value for key, value in written.items() if value is not None}
    values.setdefault("rope_theta", theta)
    if facts.model_type in ("phi3", "phi4_multimodal") and values.get("rope_type") is None:
        values["rope_type"] = {"su": "longrope", "yarn": "longrope"}.get(
            str(values.get("type", "default")), values.get("type", "default")
        )
    values.setdefault("rope_type", values.get("type", "default"))
    for name in ("partial_rotary_factor", "rotary_pct"):
        if facts.config.get(name) is not None:
            values.setdefault("partial_rotary_factor", facts.config[name])
    if values["rope_type"] in _WITH_ORIGINAL:
        beside = facts.config.get(ORIGINAL)
        if beside is not None and not nested:
            values[ORIGINAL] = beside  # the entry beside the dictionary wins
        elif facts.longest is not None:
            values.setdefault(ORIGINAL, facts.longest)
    return Merged(values, dict(written), nested)


def _merge_two_bases(facts: ModelFacts) -> dict[str, Merged | None]:
    """Merge for classes that know full and sliding attention; flat keys reach neither."""
    config = facts.config
    written = config.get("rope_parameters") or {}
    if not isinstance(written, Mapping):
        raise ConfigError(f"rope_parameters must be a dictionary; got {checks.abridged(written)}")
    bases = TWO_BASES[facts.model_type]
    old = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
    result: dict[str, Merged | None] = {}
    for (name, legacy), base in zip(old.items(), bases, strict=True):
        own = written.get(name) or {}
        if name == "full_attention" and isinstance(config.get("rope_scaling"), Mapping):
            own = {**own, **config["rope_scaling"]}
        if not isinstance(own, Mapping):
            raise ConfigError(f"rope_parameters[{name!r}] must be a dictionary; got {own!r}")
        theta = config.get(legacy)
        result[name] = _complete(facts, own, base if theta is None else theta, nested=True)
    return result
