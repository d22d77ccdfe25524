"""Read the widths of a model from its config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.config_keys import ALL, entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ropewalk.spec.family import Family

_MOST = 1 << 16
"""Widest vector that is believed; wider ones would only fill the memory."""


def head_width(family: Family, config: Mapping[str, Any], label: str = ALL) -> int:
    """Return the width of a head: its own entry, the documented one, or hidden size / heads.

    Args:
        family: The family.
        config: The config that holds the rotation.
        label: Kind of layer.

    Raises:
        ConfigError: The entries are missing or out of range.
    """
    given = entry(family, config, "head_dim", label)
    if given is None:
        given = family.head_dim
    if given is None:
        hidden = dimension(family, config, "hidden_size", "; or give head_dim")
        given = hidden // dimension(family, config, "num_attention_heads", "; or give head_dim")
    return bounded("head_dim", given)


def dimension(family: Family, config: Mapping[str, Any], key: str, remedy: str = "") -> int:
    """Return an entry that must be a width or a count.

    Args:
        family: The family.
        config: The config that holds the rotation.
        key: Its usual name.
        remedy: What may be given instead, for the message.

    Raises:
        ConfigError: It is missing, no positive integer, or absurdly large.
    """
    name = family.keys.get(key, key).split()[0]
    value = entry(family, config, key)
    if value is None:
        raise ConfigError(f"{name} must be given to know the width of a head; got None{remedy}")
    return bounded(name, value)


def bounded(name: str, value: object, *, multiple_of: int = 1) -> int:
    """Return a width, or refuse it.

    Args:
        name: The entry.
        value: Its value.
        multiple_of: What it must be divisible by.

    Raises:
        ConfigError: No integer from 1 to 65,536, or not divisible.
    """
    number = checks.integer(name, value, at_least=1)
    if number > _MOST:
        raise ConfigError(f"{name} must be at most {_MOST}; got {checks.abridged(number)}")
    if number % multiple_of:
        raise ConfigError(f"{name} must be a multiple of {multiple_of}; got {number}")
    return number
