"""Turn whatever describes a model into the dictionary that holds its rotation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.family import Family
from ropewalk.spec.pairs import LAYOUTS

if TYPE_CHECKING:
    from ropewalk.spec.pairs import PairLayout

_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sub-configs of language models, best first."""
_TOWERS = (
    *_TEXT,
    "decoder",
    "decoder_config",
    "talker_config",
    "audio_config",
    "encoder_config",
)
"""Sub-configs that may hold the rotation of the language model, best first."""
_MOST_BYTES = 32 * 1024 * 1024
_DEEPEST = 4
_LONGEST_SHOWN = 300
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
_USUAL_KEYS = {
    "hidden_size": "hidden_size n_embd d_model",
    "num_attention_heads": "num_attention_heads n_head num_heads",
    "num_hidden_layers": "num_hidden_layers n_layer num_layers",
    "max_position_embeddings": "max_position_embeddings n_positions n_ctx seq_length",
    "rope_theta": "rope_theta rotary_emb_base rope_base",
    "partial_rotary_factor": "partial_rotary_factor rotary_pct",
    "rotary_dim": "rotary_dim",
}
_PLAIN: dict[PairLayout, str] = {"half": "C5", "interleaved": "C12"}
_USUAL = {
    layout: Family(convention, partial=1.0, keys=_USUAL_KEYS)
    for layout, convention in _PLAIN.items()
}
"""How files that say everything themselves, and models that nobody knows, are read."""
_NOT_PLAIN = frozenset({"gemma3", "gemma3n", "gemma4", "qwen2vl", "qwen3vl", "qwen3vlmoe", "rwkv7"})
"""Architectures of GGUF files whose header does not say all of the rotation."""


class UnknownModelError(ConfigError):
    """A config that does not lead to a class that is known."""


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


def load_config(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the configuration of a model from a file.

    Args:
        source: A config.json, the folder of a model, or a GGUF file.

    Returns:
        The entries; those of a GGUF file under the names of transformers.

    Raises:
        ConfigError: The file is missing, too large, or not a configuration.
    """
    from ropewalk.spec.gguf import config_of_gguf, is_gguf, read_gguf

    path = Path(os.fsdecode(source))
    try:
        if path.is_dir():
            path = path / "config.json"
        if not path.is_file():
            raise ConfigError(
                "CONFIG must be a config.json, a model folder or a GGUF file; got "
                f"{_shown(path)}, which {_not_a_file(path)}"
            )
        if is_gguf(path):
            return config_of_gguf(read_gguf(path))
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"CONFIG must be at most {_MOST_BYTES} bytes; got {_shown(path)}")
        text = path.read_text(encoding="utf-8")
        config = json.loads(text, object_pairs_hook=_said_once)
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"CONFIG must be JSON or GGUF; got {_shown(path)}: {reason}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"CONFIG must hold a JSON object; got {checks.abridged(config)}")
    return config


def _shown(path: Path) -> str:
    text = str(path)
    return repr(text) if len(text) <= _LONGEST_SHOWN else checks.abridged(text)


def _not_a_file(path: Path) -> str:
    return "is no file" if path.exists() else "does not exist"


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, in which no key may have two values; parsers take either."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            raise ConfigError(
                f"CONFIG must give {checks.abridged(key)} one value; got "
                f"{checks.abridged(found[key])} and {checks.abridged(value)}"
            )
        found[key] = value
    return found


def text_part(config: object, depth: int = 0) -> Mapping[str, Any]:
    """Return the part of a composite configuration that is about text, or all of another.

    Args:
        config: The configuration.
        depth: How deep it stands in another one.

    Raises:
        ConfigError: Not a dictionary.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"config must be a dictionary; got {checks.abridged(config)}")
    for name in _TEXT:
        if isinstance(config.get(name), Mapping) and depth < _DEEPEST:
            return text_part(config[name], depth + 1)
    return config


def tower_of(config: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    """Return the family of a model, and the config or sub-config that holds its rotation.

    Of a model with several towers it is the language model; the sub-config of another tower may
    be handed over by itself.

    Args:
        config: The whole config.

    Raises:
        UnknownModelError: The model_type is missing or unknown.
        ConfigError: It cannot be described by a spec.
    """
    from ropewalk.spec.families import FAMILIES, REFUSED  # large, and not needed for a spec by hand

    for _ in range(_DEEPEST):
        name = _model_type(config)
        inner = next((key for key in _TOWERS if isinstance(config.get(key), Mapping)), None)
        reason = REFUSED.get(name) or (inner is None and REFUSED.get(f"{name}_text"))
        if reason:
            raise ConfigError(f"model_type {name!r} has no RopeSpec: it {reason}")
        if config.get("rope_layout") in LAYOUTS:
            return _of_gguf(name, config)
        known = _known(name, config)
        if known is not None and (inner is None or _has_width(known, config)):
            return _by_layer_type(known, FAMILIES[known], config), dict(config)
        if inner is None:
            raise UnknownModelError(
                f"model_type must be one of the {len(FAMILIES)} with rotary embeddings that are "
                f"known; got {checks.abridged(name)}; build the RopeSpec by hand"
            )
        below = dict(config[inner])
        if not below.get("model_type"):
            below["model_type"] = _ALIASES.get(name, f"{name}_text")
        config = below
    raise UnknownModelError(f"configs must nest at most {_DEEPEST} deep; got more in {_TEXT[0]!r}")


def _by_layer_type(name: str, family: Family, config: Mapping[str, Any]) -> Family:
    """Return how a RoFormer of ropewalk is read, whose layer types may turn differently."""
    given = config.get("rope_parameters")
    if name != "ropewalk_roformer" or not isinstance(given, Mapping):
        return family
    bases = {label: 1e4 for label in ("full_attention", "sliding_attention") if label in given}
    return replace(family, theta=bases) if bases else family


def usual_family(layout: PairLayout, config: Mapping[str, Any]) -> Family:
    """Return how a config is read whose class is not known, or that needs none.

    Args:
        layout: Pair layout.
        config: The config. What its dictionary has below layer types makes these differ.
    """
    family = _USUAL[layout]
    if config.get("qk_rope_head_dim") is not None:  # the slice of latent attention that turns
        family = replace(family, keys={**_USUAL_KEYS, "head_dim": "qk_rope_head_dim"})
    written = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(written, Mapping):
        return family
    declared = config.get("layer_types")
    labels = [
        str(key)
        for key, value in written.items()
        if (key in declared if isinstance(declared, list) and declared else _below(key, value))
    ]
    if not labels:
        return family
    theta, base = dict.fromkeys(labels, 10_000.0), dict.fromkeys(labels, "rope_theta")
    partial = dict.fromkeys(labels, 1.0)
    return replace(family, theta=theta, theta_keys=base, partial=partial)


def _below(key: object, value: object) -> bool:
    return isinstance(value, Mapping) or (value is None and str(key).endswith("attention"))


def _model_type(config: Mapping[str, Any]) -> str:
    name = config.get("model_type")
    if not isinstance(name, str) or not name:
        raise UnknownModelError(
            "model_type must be given, since the dictionary alone does not tell the pair layout; "
            f"got {checks.abridged(name)}"
        )
    return name


def _known(name: str, config: Mapping[str, Any]) -> str | None:
    """Return the family of a config without sub-configs, or None."""
    if name in ("qwen2_vl", "qwen2_5_vl") and "depth" in config:
        return f"{name}_vision"  # in configs of transformers 4 all towers have the same name
    from ropewalk.spec.families import FAMILIES

    names = (name, _ALIASES.get(name), f"{name}_text")
    return next((found for found in names if found in FAMILIES), None)


def _has_width(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a config with towers beside it is that of a model itself."""
    from ropewalk.spec.families import FAMILIES

    key = FAMILIES[name].keys.get("hidden_size", "hidden_size")
    return isinstance(config.get(key), int)


def _of_gguf(name: str, config: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    if name in _NOT_PLAIN:
        raise ConfigError(
            f"the GGUF architecture {name!r} has rotations that its header does not hold; "
            "use the config.json of the model"
        )
    return _USUAL[config["rope_layout"]], dict(config)
