"""What a model's configuration says about its rotation, before anyone interprets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.config_keys import entry
from ropewalk.spec.families import REFUSED
from ropewalk.spec.from_config import of_label, rotates
from ropewalk.spec.pairs import LAYOUTS
from ropewalk.spec.sources import tower_of
from ropewalk.spec.widths import bounded, head_width

if TYPE_CHECKING:
    import os

    from ropewalk.spec.family import Convention, Family
    from ropewalk.spec.pairs import PairLayout

_MOST_BYTES = 32 * 1024 * 1024
_COMPOSITES = ("text_config", "llm_config", "language_config", "thinker_config")
_ROPE_ENTRIES = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "rotary_dim")
ROPE_KEYS = frozenset(
    (
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
    "short_factor", "long_factor", "short_mscale", "long_mscale", "low_freq_factor",
    "high_freq_factor", "partial_rotary_factor", "alpha", "mrope_section", "mrope_interleaved",
    "llama_4_scaling_beta",
    )
)  # fmt: skip
"""Keys that some reader of a rope dictionary uses."""


@dataclass(frozen=True)
class ModelFacts:
    """The entries of a configuration that decide on the rotation, as they are written.

    Example:
        >>> facts = ModelFacts.of({"model_type": "llama", "head_dim": 64, "rope_theta": 1e5})
        >>> facts.head_dim, facts.form
        (64, 'v4')
    """

    model_type: str
    """The model class, "" where the file does not say."""
    head_dim: int
    """Width of the rotated head; of the rotary slice in multi-head latent attention."""
    layout: PairLayout
    """Pair layout of that class in transformers, or of the GGUF file."""
    layers: int | None
    """Number of layers."""
    longest: int | None
    """max_position_embeddings."""
    config: Mapping[str, Any]
    """The text part of the configuration."""
    family: Family | None = None
    """What the code of the model class adds; None where the class is not known."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ModelFacts:
        """Collect the facts of a configuration.

        Args:
            config: The content of a config.json, or of :func:`ropewalk.spec.gguf.config_of_gguf`.

        Raises:
            ConfigError: The width of a head cannot be derived, or an entry has a wrong type.
        """
        family, text = _family_and_text(config)
        model_type = text.get("model_type") or ""
        if not isinstance(model_type, str):
            raise ConfigError(f"model_type must be a string; got {checks.abridged(model_type)}")
        convention = None if family is None else family.convention_of(text)
        if family is not None and convention is None:
            raise ConfigError(
                f"model_type must rotate along one axis of text to be inspected; got "
                f"{model_type!r}; RopeSpec.from_config describes it"
            )
        _refuse_what_does_not_rotate(text, family)
        longest = _first(text, "max_position_embeddings", "n_positions", "n_ctx", "seq_length")
        layers = _first(text, "num_hidden_layers", "n_layer", "num_layers")
        return cls(
            model_type,
            _head_dim(text, family),
            _layout(text, convention),
            None if layers is None else checks.integer("num_hidden_layers", layers, at_least=1),
            None if longest is None else checks.length("max_position_embeddings", longest),
            text,
            family,
        )

    @property
    def form(self) -> str:
        """Which generation of transformers wrote the rope entries: "v4", "v5" or "v4+v5"."""
        new = isinstance(self.config.get("rope_parameters"), Mapping)
        old = self.config.get("rope_scaling") is not None or "rope_theta" in self.config
        return "v4+v5" if new and old else "v5" if new else "v4"

    @property
    def two_bases(self) -> bool:
        """Whether the class of transformers has a base for full and one for sliding attention."""
        keys = {} if self.family is None else self.family.theta_keys
        return len(set(keys.values())) == 2

    def width(self, label: str) -> int:
        """Return the width of a head in layers of one type, which may have heads of their own.

        Args:
            label: Layer type.
        """
        if self.family is None or not self.family.labels or "qk_rope_head_dim" in self.config:
            return self.head_dim
        return head_width(self.family, of_label(self.family, self.config, label), label)

    def base(self, label: str | None = None) -> float:
        """Return the base that the class takes where the configuration has none.

        Args:
            label: Layer type, for classes with several bases.
        """
        if self.family is None:
            return 10_000.0
        theta = self.family.theta
        if isinstance(theta, Mapping):
            return theta.get(label or "", next(iter(theta.values())))
        return theta


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

    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"CONFIG must be a config.json, a model folder or a GGUF file; got {str(path)!r}, "
            "which does not exist"
        )
    try:
        if is_gguf(path):
            return config_of_gguf(read_gguf(path))
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"CONFIG must be at most {_MOST_BYTES} bytes; got {str(path)!r}")
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"CONFIG must be JSON or GGUF; got {str(path)!r}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"CONFIG must hold a JSON object; got {checks.abridged(config)}")
    return config


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
    for name in _COMPOSITES:
        if isinstance(config.get(name), Mapping) and depth < 4:
            return text_part(config[name], depth + 1)
    return config


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _family_and_text(config: Mapping[str, Any]) -> tuple[Family | None, Mapping[str, Any]]:
    """Return the family, where it is known, and the part of the configuration that it reads."""
    text = text_part(config)
    if text.get("rope_layout") is not None:
        return None, text  # a GGUF file, which holds everything itself
    try:
        return tower_of(config)
    except ConfigError:
        names = (config.get("model_type"), text.get("model_type"))
        if any(isinstance(name, str) and name in REFUSED for name in names):
            raise
        return None, text


def _refuse_what_does_not_rotate(config: Mapping[str, Any], family: Family | None) -> None:
    named = config.get("model_type") or "without a model_type"
    if family is not None and not rotates(family, config):
        raise ConfigError(f"config must be of a model that rotates; {named!r} is set not to")
    if family is None and not any(config.get(key) is not None for key in _ROPE_ENTRIES):
        raise ConfigError(
            f"config must be of a model that rotates; {named!r} is unknown and has no rope entries"
        )


def _layout(config: Mapping[str, Any], convention: Convention | None) -> PairLayout:
    if convention is not None:
        return convention.layout
    layout: PairLayout = config.get("rope_layout", "half")
    checks.choice("rope_layout", layout, LAYOUTS)
    return layout


def _head_dim(config: Mapping[str, Any], family: Family | None) -> int:
    def get(key: str) -> Any:
        return config.get(key) if family is None else entry(family, config, key)

    for key in ("qk_rope_head_dim", "head_dim"):
        if get(key) is not None:
            return bounded(key, get(key))
    if family is not None and family.head_dim is not None:
        return family.head_dim
    width = get("hidden_size") or _first(config, "n_embd", "d_model")
    heads = get("num_attention_heads") or _first(config, "n_head", "num_heads")
    if width is None or heads is None:
        raise ConfigError(
            "config must hold head_dim, or hidden_size and num_attention_heads; "
            f"got the keys {checks.abridged(sorted(map(str, config)))}"
        )
    width, heads = bounded("hidden_size", width), bounded("num_attention_heads", heads)
    if width < heads:
        raise ConfigError(
            f"hidden_size must be at least num_attention_heads; got {width} and {heads}"
        )
    return width // heads
