"""Name the entries of a config that look like rotations and that its class does not read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RopeConfigWarning
from ropewalk.spec import checks

if TYPE_CHECKING:
    from ropewalk.spec.family import Family

_READ = frozenset(
    {
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "rope_layout",
        "partial_rotary_factor",
        "qk_rope_head_dim",
        "no_rope_layers",
        "no_rope_layer_interval",
        "layer_rope_theta",
        "num_spatial_rope_pairs_per_axis",
        "num_uid_rope_pairs",
        "spatial_rope_base_frequency",
        "uid_rope_base_frequency",
    }
)
"""Entries about rotations that are read, or checked, for every family."""
_OF_CONVENTION = {"C13": "rotary_dim", "C14": "rotary_value"}


def _bases(family: Family) -> tuple[float, ...]:
    return tuple(family.theta.values()) if isinstance(family.theta, Mapping) else (family.theta,)


def warn_of_unread(family: Family, config: Mapping[str, Any]) -> None:
    """Warn of entries beside the dictionaries that look like rotations and that nobody reads.

    Args:
        family: The family.
        config: The config that holds the rotation.
    """
    read = _READ - {"rope_theta"} if "rope_theta" in family.keys else _READ
    if family.labels and config.get("rope_theta") not in (None, *_bases(family)):
        read = _READ - {"rope_theta"}
    read |= set(" ".join(family.keys.values()).split()) | set(family.theta_keys.values())
    read |= {_OF_CONVENTION.get(family.convention, "rope_layout"), *(family.switch or ())}
    read |= {family.rotates_if[0]} if family.rotates_if else set()
    for key, value in config.items():
        about = "rope" in str(key) or "rotary" in str(key)
        no_rotation = str(key).endswith(("dropout", "_sizes"))  # beside it in memory attention
        if not about or no_rotation or key in read or value is None or value is False:
            continue
        warnings.warn(
            f"the config has the entry {checks.abridged(key)}, which this model_type ignores",
            RopeConfigWarning,
            stacklevel=3,
        )
