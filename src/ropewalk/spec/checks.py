"""Checks of single values, so that every setting is refused in the same words."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


# Largest number of positions: what int64 position ids can count.
_MOST_POSITIONS = 2**63 - 1


def integer(name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
    """Return ``value`` as an int, or refuse it.

    Args:
        name: The argument, as the user wrote it.
        value: Any integer type; bool and floats are refused.
        at_least: Smallest value allowed.
        at_most: Largest value allowed; None means any.

    Raises:
        ConfigError: Not an integer, too small or too large.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < at_least:
        raise ConfigError(
            f"{name} must be an integer of at least {at_least}; got {abridged(value)}"
        )
    if at_most is not None and number > at_most:
        raise ConfigError(f"{name} must be at most {at_most}; got {abridged(number)}")
    return number


def length(name: str, value: object) -> int:
    """Return ``value`` as a number of positions, or refuse it.

    Args:
        name: The argument, as the user wrote it.
        value: A positive integer that fits int64.

    Raises:
        ConfigError: Not such an integer.
    """
    return integer(name, value, at_least=1, at_most=_MOST_POSITIONS)


def lengths(name: str, value: object) -> int | tuple[int, ...]:
    """Return one length, or one per row, or refuse them.

    Args:
        name: The argument, as the user wrote it.
        value: A positive integer; or a sequence, array or tensor of them, shape ``(rows,)``.

    Raises:
        ConfigError: Anything else.
    """
    if isinstance(value, int):  # first, since torch.compile may pass a symbol that is no more
        return length(name, value)
    rows: object = value
    if getattr(value, "ndim", 0):  # arrays and tensors, on any device
        try:
            rows = value.tolist()  # type: ignore[attr-defined]
        except (NotImplementedError, RuntimeError):  # a tensor without values, or a sparse one
            raise ConfigError(
                f"{name} must hold its lengths as plain numbers; got {abridged(value)}"
            ) from None
    if isinstance(rows, list | tuple):
        return tuple(length(name, row) for row in rows)
    return length(name, value)


def real(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """Return ``value`` as a finite float within a bound, or refuse it.

    Args:
        name: The argument, as the user wrote it.
        value: Any real number; bool, nan and infinities are refused.
        above: Exclusive lower bound.
        at_least: Inclusive lower bound.
        at_most: Inclusive upper bound.

    Raises:
        ConfigError: Not a finite number, or out of bounds.
    """
    number = math.nan
    if not isinstance(value, bool | str | bytes):
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number) or number <= above or number < at_least:
        bound = "" if above == -math.inf else f" greater than {above:g}"
        bound = bound if at_least == -math.inf else f" of at least {at_least:g}"
        raise ConfigError(f"{name} must be a finite number{bound}; got {abridged(value)}")
    if number > at_most:
        raise ConfigError(f"{name} must be at most {at_most:g}; got {abridged(value)}")
    return number


def reals(name: str, values: object, *, above: float, infinite: bool = False) -> tuple[float, ...]:
    """Return ``values`` as a tuple of floats greater than ``above``, or refuse them.

    Args:
        name: The argument, as the user wrote it.
        values: A sequence or array of numbers.
        above: Exclusive lower bound.
        infinite: Whether infinity is allowed.

    Raises:
        ConfigError: Not a sequence, or one of the numbers is refused.
    """
    rows: object = values.tolist() if getattr(values, "ndim", 0) else values  # type: ignore[attr-defined]
    if not isinstance(rows, list | tuple):
        raise ConfigError(f"{name} must be a sequence of numbers; got {abridged(values)}")
    return tuple(
        math.inf
        if infinite and isinstance(row, float) and row == math.inf
        else real(f"{name}[{i}]", row, above=above)
        for i, row in enumerate(rows)
    )


def boolean(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False, or refuse it.

    Args:
        name: The argument, as the user wrote it.
        value: The value received; 0, 1 and strings are refused.

    Raises:
        ConfigError: Not a bool.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False; got {abridged(value)}")
    return value


def abridged(value: object) -> str:
    """Return the repr of ``value`` on one line, cut to a length that fits a message.

    Args:
        value: Anything, even what has no repr.
    """
    if isinstance(value, int) and value.bit_length() > 128:  # repr refuses 4,300 digits
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except Exception:  # a repr may fail in any way, and the message must come out
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}..."


def choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Refuse a value that is not one of the allowed ones.

    Args:
        name: The argument, as the user wrote it.
        value: The value received.
        allowed: Every value that has a meaning.

    Raises:
        ConfigError: ``value`` is not among them.
    """
    try:
        fits = not isinstance(value, bool) and value in allowed
    except Exception:  # an array or tensor answers with an array or tensor
        fits = False
    if not fits:
        options = ", ".join(repr(option) for option in allowed)
        raise ConfigError(f"{name} must be one of {options}; got {abridged(value)}")
