"""The rope dictionary of every layer type as transformers 5 merges it, and what it means."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ropewalk.spec.config_keys import ALL as ALL_LAYERS
from ropewalk.spec.config_keys import ORIGINAL, Merged, gather
from ropewalk.spec.from_config import spec_of_label

if TYPE_CHECKING:
    from ropewalk.spec.facts import ModelFacts
    from ropewalk.spec.rope_spec import RopeSpec

__all__ = ["ALL_LAYERS", "ORIGINAL", "Merged", "merge", "spec_of"]


def merge(facts: ModelFacts) -> dict[str, Merged | None]:
    """Return the dictionary of every layer type; None for layers without a rotation.

    What :func:`ropewalk.spec.config_keys.gather` refuses if strict is decided as transformers
    decides it.

    Args:
        facts: The model.

    Raises:
        ConfigError: A dictionary has the wrong type.

    Example:
        >>> from ropewalk.spec.facts import ModelFacts
        >>> facts = ModelFacts.of({"model_type": "llama", "head_dim": 64, "rope_theta": 1e5})
        >>> merge(facts)["all"].values
        {'rope_theta': 100000.0, 'rope_type': 'default'}
    """
    return gather(facts.reader, facts.config, strict=False)


def spec_of(merged: Merged, facts: ModelFacts) -> RopeSpec:
    """Return the rotation that a merged dictionary means; keys that nothing reads are left out.

    Args:
        merged: The dictionary.
        facts: Its model.

    Raises:
        ConfigError: A value is missing or out of range.
    """
    values = {key: merged.values[key] for key in merged.used}
    family = facts.reader
    convention = family.convention_of(facts.config)
    return spec_of_label(family, facts.config, replace(merged, values=values), convention)
