"""What a model's configuration says about its rotation, before anyone interprets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.config_keys import ROPE_KEYS, entry
from ropewalk.spec.from_config import of_label, rotates, slice_of
from ropewalk.spec.pairs import LAYOUTS
from ropewalk.spec.sources import (
    UnknownModelError,
    load_config,
    text_part,
    tower_of,
    usual_family,
)
from ropewalk.spec.widths import dimension, head_width

if TYPE_CHECKING:
    from ropewalk.spec.config_keys import Merged
    from ropewalk.spec.family import Family
    from ropewalk.spec.pairs import PairLayout

__all__ = ["ROPE_KEYS", "ModelFacts", "load_config", "text_part"]

_ROPE_ENTRIES = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "rotary_dim")


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
                f"{checks.abridged(model_type)}; RopeSpec.from_config describes it"
            )
        _refuse_what_does_not_rotate(text, family)
        layout = text.get("rope_layout", "half") if convention is None else convention.layout
        checks.choice("rope_layout", layout, LAYOUTS)
        reader = family or usual_family(layout, text)
        longest = entry(reader, text, "max_position_embeddings")
        layers = entry(reader, text, "num_hidden_layers")
        latent = convention is not None and convention.slice == "mla"
        return cls(
            model_type,
            dimension(reader, text, "qk_rope_head_dim") if latent else head_width(reader, text),
            layout,
            None if layers is None else checks.integer("num_hidden_layers", layers, at_least=1),
            None if longest is None else checks.length("max_position_embeddings", longest),
            text,
            family,
        )

    @property
    def reader(self) -> Family:
        """How the class reads its configuration; one that is not known, as most classes do."""
        return self.family or usual_family(self.layout, self.config)

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
        labels = {"full_attention", "sliding_attention"}
        return set(keys) == labels and len(set(keys.values())) == 2

    def slice(self, merged: Merged) -> tuple[int, int, int]:
        """Return the width of the vectors, and length and offset of the slice that turns.

        Args:
            merged: The dictionary of one layer type, whose heads may have a width of their own.

        Raises:
            ConfigError: An entry is missing or out of range.
        """
        convention = self.reader.convention_of(self.config)
        assert convention is not None
        config = of_label(self.reader, self.config, merged.label)
        return slice_of(self.reader, config, merged, convention)

    def base(self, label: str | None = None) -> float:
        """Return the base that the class takes where the configuration has none.

        Args:
            label: Layer type, for classes with several bases.
        """
        return self.reader.base(label or "")


def _family_and_text(config: Mapping[str, Any]) -> tuple[Family | None, Mapping[str, Any]]:
    """Return the family, where it is known, and the part of the configuration that it reads."""
    text = text_part(config)
    if text.get("rope_layout") is not None:
        return None, text  # a GGUF file, which holds everything itself
    try:
        return tower_of(config)
    except UnknownModelError:
        return None, text


def _refuse_what_does_not_rotate(config: Mapping[str, Any], family: Family | None) -> None:
    named = config.get("model_type") or "without a model_type"
    if family is not None and not rotates(family, config):
        raise ConfigError(
            f"config must be of a model that rotates; {checks.abridged(named)} is set not to"
        )
    if family is None and not any(config.get(key) is not None for key in _ROPE_ENTRIES):
        raise ConfigError(
            f"config must be of a model that rotates; {checks.abridged(named)} is unknown and "
            "has no rope entries"
        )
