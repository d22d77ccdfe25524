"""Write the rotation of a configuration in another form, and read it back to be sure."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.difference import compare_readings
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts, text_part
from ropewalk.spec.merged import ALL_LAYERS, ORIGINAL, Merged, merge

if TYPE_CHECKING:
    from collections.abc import Mapping

Form = Literal["v4", "v5"]
_FORMS = ("v4", "v5")
_LEGACY = ("rope_scaling", "rope_theta", "rope_local_base_freq", "rope_parameters")


def convert_config(config: Mapping[str, Any], *, to: Form) -> dict[str, Any]:
    """Return a configuration with its rope entries in the form of transformers 4 or 5.

    Args:
        config: The configuration; it is not changed.
        to: "v4" writes rope_theta and rope_scaling, "v5" one rope_parameters.

    Raises:
        ConfigError: It has an error that would be carried over, or the form cannot hold it.

    Example:
        >>> config = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e5}
        >>> convert_config(config, to="v5")["rope_parameters"]
        {'rope_theta': 100000.0, 'rope_type': 'default'}
    """
    checks.choice("to", to, _FORMS)
    facts = checked(config)
    layers = merge(facts)
    result = copy.deepcopy(dict(config))
    text: dict[str, Any] = text_part(result)  # type: ignore[assignment]
    if {**text, "model_type": facts.model_type} != {**facts.config, "model_type": facts.model_type}:
        raise ConfigError("config must be that of the language model alone; pass its sub-config")
    outer_original = ORIGINAL in text
    for name in (*_LEGACY, *facts.reader.theta_keys.values(), _name(facts, "rope_theta")):
        text.pop(name, None)
    dictionaries = {
        name: None if merged is None else _dictionary(merged, drop_original=outer_original)
        for name, merged in layers.items()
    }
    if to == "v5":
        flat = dictionaries.get(ALL_LAYERS) if ALL_LAYERS in dictionaries else None
        text["rope_parameters"] = flat if flat is not None else dictionaries
    else:
        _write_v4(text, dictionaries, facts)
    before, after = read_as(facts, "hf"), read_as(ModelFacts.of(result), "hf")
    length = facts.longest or 1
    if not all(found.is_none for found in compare_readings(before, after, seq_len=length)):
        raise ConfigError(f"form {to!r} cannot hold this rotation; got {checks.abridged(layers)}")
    return result


def checked(config: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of a configuration without errors.

    Args:
        config: The configuration.

    Raises:
        ConfigError: It has an error that would be carried over.
    """
    facts = ModelFacts.of(config)
    errors = [finding for finding in diagnose(facts) if finding.severity == "error"]
    if errors:
        raise ConfigError(
            f"config must be free of errors to be converted; got {errors[0].code}: "
            f"{errors[0].message}; {errors[0].remedy}"
        )
    return facts


def _dictionary(merged: Merged, *, drop_original: bool) -> dict[str, Any]:
    values = {key: value for key, value in merged.values.items() if key != "type"}
    if drop_original:
        values.pop(ORIGINAL, None)  # it stays beside the dictionary, where it has precedence
    return values


def _write_v4(
    text: dict[str, Any], dictionaries: Mapping[str, dict[str, Any] | None], facts: ModelFacts
) -> None:
    """Write rope_theta and rope_scaling, and the local base where the class has one."""
    one, base = dictionaries.get(ALL_LAYERS), _name(facts, "rope_theta")
    if facts.two_bases:
        local = dict(dictionaries["sliding_attention"] or {})
        one = dictionaries["full_attention"]
        base = facts.reader.theta_keys["full_attention"]
        text[facts.reader.theta_keys["sliding_attention"]] = local.pop("rope_theta", None)
        if local != {"rope_type": "default"}:
            raise ConfigError(f"form 'v4' cannot scale sliding layers; got {local}")
    if one is None:
        raise ConfigError(f"form 'v4' cannot hold layer types; got {sorted(dictionaries)}")
    values = dict(one)
    text[base] = values.pop("rope_theta")
    partial = values.pop("partial_rotary_factor", None)
    if partial is not None:
        text[_name(facts, "partial_rotary_factor")] = partial
    text["rope_scaling"] = None if values == {"rope_type": "default"} else values


def _name(facts: ModelFacts, key: str) -> str:
    """Return what the class calls an entry beside the dictionary."""
    return facts.reader.keys.get(key, key).split()[0]
