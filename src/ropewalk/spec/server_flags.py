"""The arguments of llama.cpp, vLLM and SGLang that change a rotation, written and read."""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.difference import compare_readings
from ropewalk.spec.engine_rules import stretched
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts, text_part
from ropewalk.spec.merged import ALL_LAYERS, ORIGINAL, Merged, merge
from ropewalk.spec.rewrite import checked, convert_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LLAMA_CPP = {
    "--rope-scaling": "type",
    "--rope-scale": "factor",
    "--rope-freq-scale": "inverse",
    "--rope-freq-base": "rope_theta",
    "--yarn-orig-ctx": ORIGINAL,
    "--yarn-beta-fast": "beta_fast",
    "--yarn-beta-slow": "beta_slow",
    "--ctx-size": "context",
    "-c": "context",
}
_OVERRIDES = ("--hf-overrides", "--json-model-override-args")
_OVERRIDE_KV = "--override-kv"
# Architecture that the conversion script of llama.cpp gives a model type. A wrong one would do no
# harm: an override of an entry that the file does not have is passed over.
_ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
}  # fmt: skip


def llama_cpp_flags(config: Mapping[str, Any]) -> list[str]:
    """Return the flags that give llama.cpp the rotation of a configuration.

    Its server keeps the context within the length that the GGUF file states: always for linear
    scaling, and for YaRN in builds before ggml-org/llama.cpp#28030. So where the rotation reaches
    further, and the name of the entry is known, the length is overridden as well.

    Args:
        config: The configuration.

    Raises:
        ConfigError: No flag can say it: layer types, llama3 and longrope are in the GGUF file.

    Example:
        >>> llama_cpp_flags({"model_type": "llama", "head_dim": 64, "rope_theta": 1e5})
        ['--rope-freq-base', '100000', '--rope-scaling', 'none']
    """
    merged, facts = _only(config, "llama.cpp flags")
    values, kind = merged.values, merged.rope_type
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            "llama.cpp has no flag for partial_rotary_factor; got "
            f"{values['partial_rotary_factor']!r}; the converter writes it into the GGUF file"
        )
    flags = ["--rope-freq-base", _plain(values["rope_theta"])]
    if kind == "default":
        flags += ["--rope-scaling", "none"]
    elif kind == "linear":
        flags += ["--rope-scaling", "linear", "--rope-scale", _plain(values["factor"])]
    elif kind == "yarn":
        flags += ["--rope-scaling", "yarn", "--rope-scale", _plain(values["factor"])]
        flags += ["--yarn-orig-ctx", _plain(values[ORIGINAL])]
        flags += _betas(merged, facts)
    else:
        raise ConfigError(
            f"llama.cpp has no flag for rope_type {kind!r}; the converter writes it into the GGUF "
            "file"
        )
    reach = _reach(merged, facts)
    if reach is None:
        return flags
    flags += ["--ctx-size", str(reach)]
    stored = "rope_layout" in facts.config  # a GGUF file, whose model_type is its architecture
    name = facts.model_type if stored else _ARCHITECTURES.get(facts.model_type)
    if name and facts.longest is not None and reach > facts.longest:
        flags += [_OVERRIDE_KV, f"{name}.context_length=int:{reach}"]
    return flags


def server_command(config: Mapping[str, Any], *, engine: Literal["vllm", "sglang"]) -> list[str]:
    """Return the arguments that give vLLM or SGLang the rotation of a configuration.

    The dictionary replaces that of the model, so it repeats rope_theta; and it raises
    max_position_embeddings where the rule reaches further, since both servers refuse more.

    Args:
        config: The configuration.
        engine: "vllm" or "sglang".

    Raises:
        ConfigError: It has an error that would be carried over, or the engine is another one.
    """
    checks.choice("engine", engine, ("vllm", "sglang"))
    facts = checked(config)
    whole = convert_config(config, to="v5")
    text = text_part(whole)
    given = [merged for merged in merge(facts).values() if merged is not None]
    reach = max((_reach(merged, facts) or 0 for merged in given), default=0) or facts.longest
    overrides: dict[str, Any] = {"rope_parameters": text["rope_parameters"]}
    if reach is not None and any(m.rope_type == "yarn" for m in given) and facts.longest != reach:
        overrides["max_position_embeddings"] = reach
    for name in reversed(_path(whole)):
        overrides = {name: overrides}
    names = {
        "vllm": ("--hf-overrides", "--max-model-len"),
        "sglang": ("--json-model-override-args", "--context-length"),
    }[engine]
    written = json.dumps(overrides, separators=(",", ":"))
    return [names[0], written] + ([] if reach is None else [names[1], str(reach)])


def with_flags(config: Mapping[str, Any], flags: Sequence[str]) -> dict[str, Any]:
    """Return the configuration that a server has in effect when it is started with these flags.

    The other direction of :func:`llama_cpp_flags` and :func:`server_command`. Arguments that have
    nothing to do with the rotation are passed over.

    Args:
        config: That of the model.
        flags: Arguments of the server, name and value each, or joined by "=".

    Returns:
        A configuration in the form of transformers 5.

    Raises:
        ConfigError: A flag of the rotation is not understood, has no value, or cannot be joined
            with what the model has.

    Example:
        >>> config = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e4}
        >>> with_flags(config, ["--rope-scale", "4"])["rope_parameters"]["factor"]
        4.0
    """
    result = convert_config(config, to="v5")
    text: dict[str, Any] = text_part(result)  # type: ignore[assignment]
    own: dict[str, str] = {}
    longest = ModelFacts.of(result).longest
    for name, value in _pairs(flags):
        if name in _OVERRIDES:
            _update(result, _object(name, value))
        elif name == _OVERRIDE_KV:
            longest = _overridden_length(value, longest)
        elif name in _LLAMA_CPP:
            own[_LLAMA_CPP[name]] = value
        elif name.startswith(("--rope-", "--yarn-")):
            raise ConfigError(
                f"flags must be among {', '.join(_LLAMA_CPP)}; got {checks.abridged(name)}"
            )
    own.pop("context", None)
    if own:
        text["rope_parameters"] = _scaled(text["rope_parameters"], own, longest)
    return result


def _pairs(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of the arguments that matter."""
    known = (*_LLAMA_CPP, *_OVERRIDES, _OVERRIDE_KV)
    waiting = iter(flags)
    for flag in waiting:
        name, joined, value = flag.partition("=")
        if name not in known and not name.startswith(("--rope-", "--yarn-")):
            continue
        if not joined:
            found = next(waiting, None)
            if found is None:
                raise ConfigError(f"flag {name} must have a value; got none")
            value = found
        yield name, value


def _overridden_length(overrides: str, length: int | None) -> int | None:
    """Return the context length of a GGUF file after KEY=TYPE:VALUE,...; YaRN starts from it."""
    for override in overrides.split(","):
        key, _, typed = override.partition("=")
        if ".rope." in key:
            raise ConfigError(
                f"{_OVERRIDE_KV} must leave the rotation to the flags --rope-* and --yarn-*; got "
                f"{override!r}"
            )
        if key.endswith(".context_length"):
            length = int(_number(key, typed.removeprefix("int:")))
    return length


def _scaled(dictionary: Any, own: dict[str, str], longest: int | None) -> dict[str, Any]:
    """Return a rope dictionary after the flags of llama.cpp."""
    now = dictionary.get("rope_type") if isinstance(dictionary, dict) else None
    if now not in ("default", "linear", "yarn"):
        raise ConfigError(
            "flags of llama.cpp can be joined with one rotation of rope_type default, linear or "
            f"yarn; got {checks.abridged(now or dictionary)}"
        )
    kind = own.pop("type", "linear" if now == "default" else now)
    checks.choice("--rope-scaling", kind, ("none", "linear", "yarn"))
    numbers = {key: _number(key, value) for key, value in own.items()}
    if "inverse" in numbers:
        numbers["factor"] = 1.0 / numbers.pop("inverse")
    theta = numbers.get("rope_theta", dictionary["rope_theta"])
    factor = numbers.get("factor", dictionary.get("factor", 1.0))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    result = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = numbers.get(ORIGINAL, dictionary.get(ORIGINAL, longest))
        result[ORIGINAL] = None if original is None else int(original)
        for key in ("beta_fast", "beta_slow"):
            if key in numbers:
                result[key] = numbers[key]
    return result


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(
            f"the flag for {name} must be a number greater than 0; got {checks.abridged(value)}"
        )
    return number


def _object(name: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name} must be a JSON object; got {checks.abridged(value)}: {error}"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} must be a JSON object; got {checks.abridged(value)}")
    return found


def _update(target: dict[str, Any], updates: Mapping[str, Any]) -> None:
    """Set entries; sub-configs are updated, dictionaries of values are replaced."""
    for key, value in updates.items():
        inner = target.get(key)
        if isinstance(inner, dict) and isinstance(value, dict) and key.endswith("_config"):
            _update(inner, value)
        else:
            target[key] = copy.deepcopy(value)


def _path(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the sub-configs down to the part about text."""
    text = text_part(config)
    if text is config:
        return []
    for key, value in config.items():
        if isinstance(value, dict):
            below = [key] if value is text else [key, *_path(value)]
            if value is text or text_part(value) is text:
                return below
    raise ConfigError("config must hold its text part as a sub-config; got none")


def _reach(merged: Merged, facts: ModelFacts) -> int | None:
    """Return the context that a rotation is meant for."""
    longest, factor = facts.longest, merged.values.get("factor")
    if longest is None:
        return None
    if merged.rope_type == "yarn" and factor is not None:
        return max(longest, stretched(int(merged.values[ORIGINAL]), float(factor)))
    if merged.rope_type in ("linear", "longrope"):
        return read_as(facts, "vllm").longest
    return longest


def _betas(merged: Merged, facts: ModelFacts) -> list[str]:
    """Return the flags of YaRN's betas; whatever else has no flag must not matter."""
    flags, plain = [], dict(facts.config)
    for key, flag in (("beta_fast", "--yarn-beta-fast"), ("beta_slow", "--yarn-beta-slow")):
        if merged.values.get(key):
            flags += [flag, _plain(merged.values[key])]
    values = {k: v for k, v in merged.values.items() if k not in ("beta_fast", "beta_slow", "type")}
    for name in ("rope_scaling", "rope_theta"):
        plain.pop(name, None)
    without = ModelFacts.of(plain | {"rope_parameters": values})
    readings = [read_as(without, name) for name in ("hf", "llama.cpp")]
    if not compare_readings(readings[0], readings[1])[0].is_none:
        raise ConfigError(
            f"llama.cpp has no flag for what differs there: {'; '.join(readings[1].notes)}"
        )
    return flags


def _only(config: Mapping[str, Any], what: str) -> tuple[Merged, ModelFacts]:
    facts = checked(config)
    layers = merge(facts)
    merged = layers.get(ALL_LAYERS)
    if merged is None:
        raise ConfigError(
            f"{what} can hold one rotation for all layers; got layer types {sorted(layers)}"
        )
    return merged, facts


def _plain(value: Any) -> str:
    return np.format_float_positional(float(value), trim="-")
