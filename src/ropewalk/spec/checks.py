"""Checks of single values, so that every setting is refused in the same words."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def integer(name: str, value: object, *, at_least: int) -> int:
    """Return ``value`` as an int, or refuse it.

    Args:
        name: The argument, as the user wrote it.
        value: Any integer type; bool and floats are refused.
        at_least: Smallest value allowed.

    Raises:
        ConfigError: Not an integer, or too small.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least:
        raise ConfigError(f"{name} must be an integer of at least {at_least}; got {value!r}")
    return number


def real(name: str, value: object, *, above: float = -math.inf) -> float:
    """Return ``value`` as a finite float greater than ``above``, or refuse it.

    Args:
        name: The argument, as the user wrote it.
        value: Any real number; bool, nan and infinities are refused.
        above: Exclusive lower bound.

    Raises:
        ConfigError: Not a finite number, or not above the bound.
    """
    number = math.nan
    if not isinstance(value, bool | str | bytes):
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number) or number <= above:
        bound = "" if above == -math.inf else f" greater than {above:g}"
        raise ConfigError(f"{name} must be a finite number{bound}; got {value!r}")
    return number


def choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Refuse a value that is not one of the allowed ones.

    Args:
        name: The argument, as the user wrote it.
        value: The value received.
        allowed: Every value that has a meaning.

    Raises:
        ConfigError: ``value`` is not among them.
    """
    if isinstance(value, bool) or value not in allowed:
        options = ", ".join(repr(option) for option in allowed)
        raise ConfigError(f"{name} must be one of {options}; got {value!r}")
