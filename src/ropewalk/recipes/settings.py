"""Settings as tables: read from TOML, laid over one another, checked, and written back."""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from ropewalk.data.files import given_path
from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Settings = TypeVar("Settings")


def load_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The file.

    Raises:
        ConfigError: It is missing, unreadable or no TOML.
    """
    try:
        return tomllib.loads(given_path("config", path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config: cannot read {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"config: {str(path)!r} is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:  # ValueError: long numbers and dates too
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"config: {str(path)!r} is not TOML: {error}") from error


def check_keys(kind: type, table: Mapping[str, Any], source: str, name: str = "") -> None:
    """Refuse keys that mean nothing, and tables where there should be none.

    Args:
        kind: The dataclass the table is for; fields that are dataclasses are tables in it.
        table: The settings.
        source: Where they come from, for the message.
        name: Path of the table in the source.

    Raises:
        ConfigError: A key is unknown, or a table or value stands where the other belongs.
    """
    known = {field.name: _section(kind, field.name) for field in fields(kind)}
    for key, value in table.items():
        path = f"{name}.{key}" if name else key
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"it may be {', '.join(known)}"
            raise ConfigError(f"{source} has the unknown key {path!r}; {remedy}")
        section = known[key]
        if section is None:
            continue
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: {path} must be a table [{path}]; got {value!r}")
        check_keys(section, value, source, path)


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lay tables over one another; a later value replaces an earlier one, tables are merged.

    Args:
        *layers: From the weakest to the strongest.

    Example:
        >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
        {'a': {'x': 1, 'y': 3}}
    """
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            before = result.get(key)
            both = isinstance(before, dict) and isinstance(value, dict)
            result[key] = merge(before, value) if both else value  # type: ignore[arg-type]
    return result


def build(kind: type[Settings], table: Mapping[str, Any]) -> Settings:
    """Make a settings object of a table whose keys have been checked; lists become tuples.

    Args:
        kind: The dataclass.
        table: Its fields; fields left out keep their defaults.

    Raises:
        ConfigError: A value is refused, or a field without a default is missing.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        section = _section(kind, key)
        if section is not None:
            values[key] = build(section, value)
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"settings are incomplete or of a wrong type: {error}") from error


def assemble(
    kind: type[Settings],
    flags: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    chosen: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    resume: bool = False,
) -> Settings:
    """Put the settings of a recipe together; each of these replaces what came before it.

    The defaults, a preset, with ``resume`` what the output folder was started with, the config
    file, the flags.

    Args:
        kind: The dataclass, with a field ``output``.
        flags: Tables as in a config file.
        defaults: All fields, as tables.
        chosen: Those of a preset.
        config: A TOML file.
        resume: Whether the ``config.toml`` of the output folder counts.

    Raises:
        ConfigError: A name or a value is refused, or there is no output folder.
    """
    given = {} if config is None else load_toml(config)
    check_keys(kind, given, str(config))
    check_keys(kind, flags, "the call")
    output = merge(given, flags).get("output")
    if output is None:
        raise ConfigError(
            "output must name the folder for the results; give --output, or output in the config"
        )
    stored = given_path("output", output) / "config.toml"
    before = load_toml(stored) if resume and stored.is_file() else {}
    check_keys(kind, before, str(stored))
    return build(kind, merge(defaults, chosen or {}, before, given, flags))


def to_toml(table: Mapping[str, Any]) -> str:
    """Write a table of values and tables of values; None is left out.

    Args:
        table: Strings, numbers, booleans, lists of them; one level of tables; inside those,
            dictionaries are written inline.

    Example:
        >>> print(to_toml({"a": 1, "b": {"c": [0.5, "x"], "d": None}}))
        a = 1
        <BLANKLINE>
        [b]
        c = [0.5, "x"]
    """
    top = [*_lines({key: value for key, value in table.items() if not isinstance(value, dict)})]
    for key, value in table.items():
        if isinstance(value, dict):
            top += ["", f"[{key}]", *_lines(value)]
    return "\n".join(top).lstrip("\n")


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if value is not None:
            yield f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's strings, numbers and booleans are TOML's, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _section(kind: type, name: str) -> type | None:
    """Return the dataclass of a field that is one."""
    hint = get_type_hints(kind).get(name)
    return hint if isinstance(hint, type) and is_dataclass(hint) else None
