"""Turn whatever describes a model into the dictionary that holds its rotation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.families import FAMILIES, REFUSED
from ropewalk.spec.family import Family

_TOWERS = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "decoder",
    "decoder_config",
    "talker_config",
    "audio_config",
    "encoder_config",
)
"""Sub-configs that may hold the rotation of the language model, best first."""
_DEEPEST = 4
_CLASSES = {
    "SaProtConfig": "evolla_saprot",
    "EsmFold2AtomEncoderConfig": "esmfold2_atom_encoder",
    "Qwen3OmniMoeCode2WavConfig": "qwen3_omni_moe_code2wav",
}
"""Config classes of transformers whose model_type is empty."""
_ALIASES = {
    "emu3": "emu3_text_model",
    "mllama": "mllama_text_model",
    "t5gemma": "t5_gemma_module",
    "step3p7": "step3p5",
    "qwen2_vl": "qwen2_vl_text",
    "llama4_vision": "llama4_vision_model",
}
"""Names under which the configs of some sub-configs are found."""
GGUF_FAMILIES = {
    layout: Family(convention, partial=1.0)
    for layout, convention in (("half", "C5"), ("interleaved", "C12"))
}
_NOT_PLAIN = frozenset({"gemma3", "gemma3n", "gemma4", "qwen2vl", "qwen3vl", "qwen3vlmoe", "rwkv7"})
"""Architectures of GGUF files whose header does not say all of the rotation."""


def config_of(source: object) -> dict[str, Any]:
    """Return the config that ``source`` is or names.

    Args:
        source: A dictionary; the path of a config.json, of a model folder or of a GGUF file; or
            an object with ``to_dict()``, such as a ``PretrainedConfig``.

    Raises:
        ConfigError: Anything else, or a file that cannot be read.
    """
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, str | os.PathLike):
        from ropewalk.spec.facts import load_config

        return load_config(source)
    to_dict = getattr(source, "to_dict", None)
    if callable(to_dict) and not isinstance(source, type):
        config = to_dict()
        if isinstance(config, Mapping):
            config = dict(config)
            config["model_type"] = _CLASSES.get(type(source).__name__) or config.get("model_type")
            return config
    raise ConfigError(
        "x must be a dictionary, the path of a config.json, model folder or GGUF file, or a "
        f"PretrainedConfig; got {checks.abridged(source)}"
    )


def tower_of(config: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    """Return the family of a model, and the config or sub-config that holds its rotation.

    Of a model with several towers it is the language model; the sub-config of another tower may
    be handed over by itself.

    Args:
        config: The whole config.

    Raises:
        ConfigError: The model_type is missing, unknown, or cannot be described by a spec.
    """
    for _ in range(_DEEPEST):
        name = _model_type(config)
        inner = next((key for key in _TOWERS if isinstance(config.get(key), Mapping)), None)
        reason = REFUSED.get(name) or (inner is None and REFUSED.get(f"{name}_text"))
        if reason:
            raise ConfigError(f"model_type {name!r} has no RopeSpec: it {reason}")
        layout = config.get("rope_layout")
        if isinstance(layout, str) and layout in GGUF_FAMILIES:
            return _of_gguf(name, config)
        known = _known(name, config)
        if known is not None and (inner is None or _has_width(known, config)):
            return FAMILIES[known], dict(config)
        if inner is None:
            raise ConfigError(
                f"model_type must be one of the {len(FAMILIES)} with rotary embeddings that are "
                f"known; got {checks.abridged(name)}; build the RopeSpec by hand"
            )
        below = dict(config[inner])
        if not below.get("model_type"):
            below["model_type"] = _ALIASES.get(name, f"{name}_text")
        config = below
    raise ConfigError(f"configs must nest at most {_DEEPEST} deep; got more in {_TOWERS[0]!r}")


def _model_type(config: Mapping[str, Any]) -> str:
    name = config.get("model_type")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            "model_type must be given, since the dictionary alone does not tell the pair layout; "
            f"got {checks.abridged(name)}"
        )
    return name


def _known(name: str, config: Mapping[str, Any]) -> str | None:
    """Return the family of a config without sub-configs, or None."""
    if name in ("qwen2_vl", "qwen2_5_vl") and "depth" in config:
        return f"{name}_vision"  # in configs of transformers 4 all towers have the same name
    names = (name, _ALIASES.get(name), f"{name}_text")
    return next((found for found in names if found in FAMILIES), None)


def _has_width(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a config with towers beside it is that of a model itself."""
    key = FAMILIES[name].keys.get("hidden_size", "hidden_size")
    return isinstance(config.get(key), int)


def _of_gguf(name: str, config: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    if name in _NOT_PLAIN:
        raise ConfigError(
            f"the GGUF architecture {name!r} has rotations that its header does not hold; "
            "use the config.json of the model"
        )
    return GGUF_FAMILIES[config["rope_layout"]], dict(config)
