"""What a diagnosis is, and the case that the checks look at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ropewalk.spec.config_keys import ALL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ropewalk.spec.config_keys import Merged
    from ropewalk.spec.facts import ModelFacts

Severity = Literal["error", "warning", "note"]
"""The rotation is wrong; it may be; or it is as it is, and worth knowing."""


@dataclass(frozen=True)
class Finding:
    """One diagnosis."""

    code: str
    """Stable name, such as THETA_LOST."""
    severity: Severity
    message: str
    """What is so, with the values, and what follows."""
    remedy: str
    """What to write instead."""
    layer_type: str | None = None
    """Layers concerned; None: all."""


@dataclass(frozen=True)
class Case:
    """A configuration under examination."""

    facts: ModelFacts
    layers: Mapping[str, Merged]
    engines: tuple[str, ...]
    target: int | None

    def where(self, name: str) -> str | None:
        """Return the layer type a finding is about; None where there is one for all layers."""
        return None if name == ALL else name

    def entry(self, name: str) -> Any:
        """Return an entry of the configuration, or None."""
        return self.facts.config.get(name)


def number(value: object) -> float | None:
    """Return a finite real number as a float, anything else as None.

    Args:
        value: An entry of a configuration.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def equal_lists(merged: Merged) -> bool:
    """Return whether longrope's two lists are the same, so that nothing switches.

    Args:
        merged: The dictionary of one layer type.
    """
    return bool(merged.values.get("short_factor") == merged.values.get("long_factor"))
