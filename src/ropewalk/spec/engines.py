"""How transformers, vLLM, llama.cpp and SGLang read one and the same configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.engine_rules import completed, refusal, rotation, stretched
from ropewalk.spec.merged import ORIGINAL, merge, spec_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ropewalk.spec.facts import ModelFacts
    from ropewalk.spec.merged import Merged
    from ropewalk.spec.rope_spec import RopeSpec


@dataclass(frozen=True)
class EngineProfile:
    """One engine as it was at one time."""

    name: str
    version: str
    """Release or commit of the source."""
    provenance: str
    """How the profile came about."""
    length_rule: str
    """What the engine takes as the length of a row in rules that depend on it."""


_VLLM = "vllm-project/vllm@4ba787ec9 (0.33.0)"
_LLAMA_CPP = "ggml-org/llama.cpp@0c1e57098"
_SGLANG = "sgl-project/sglang@v0.5.23"

ENGINES = {
    profile.name: profile
    for profile in (
        EngineProfile(
            "hf",
            "transformers 5.24.0",
            "rules compared with the released transformers 5.24.0",
            "longest row of the batch, at every forward",
        ),
        EngineProfile(
            "vllm",
            _VLLM,
            f"derived from source at {_VLLM}, not executed",
            "none: dynamic at max_position_embeddings, where it scales nothing; longrope by "
            "--max-model-len, for the whole server",
        ),
        EngineProfile(
            "llama.cpp",
            _LLAMA_CPP,
            f"derived from source at {_LLAMA_CPP}, not executed",
            "size of the context of a sequence, not length of the row",
        ),
        EngineProfile(
            "sglang",
            _SGLANG,
            f"derived from source at {_SGLANG}, not executed",
            "dynamic fixed at max_position_embeddings * factor; longrope by whether any position "
            "of the batch is above the trained length",
        ),
    )
}
"""Every engine that has a profile, by name."""
_SCALED_ALREADY = ("su", "longrope", "llama3", "yarn")


@dataclass(frozen=True)
class EngineReading:
    """What an engine makes of a configuration.

    Example:
        >>> from ropewalk.spec.facts import ModelFacts
        >>> config = {"model_type": "llama", "head_dim": 64, "rope_theta": 1e5}
        >>> read_as(ModelFacts.of(config), "hf").specs["all"].theta
        100000.0
    """

    engine: str
    specs: Mapping[str, RopeSpec | None]
    """Rotation of every layer type; None for layers without one, or where problem says why."""
    problem: str | None
    """Why the engine has no rotation for this configuration."""
    longest: int | None
    """Longest context it allows unless told otherwise; None: it must be told."""
    notes: tuple[str, ...]
    """Where it differs from what the file says."""


def read_as(facts: ModelFacts, engine: str) -> EngineReading:
    """Return the rotation that an engine computes from a configuration.

    A configuration for llama.cpp is converted by its own script first; a GGUF file holds what
    that script wrote.

    Args:
        facts: The model.
        engine: A key of :data:`ENGINES`.

    Raises:
        ConfigError: The engine is not known.
    """
    checks.choice("engine", engine, tuple(ENGINES))
    notes: list[str] = []
    specs: dict[str, RopeSpec | None] = {}
    problem = None
    longest = None
    try:
        dictionaries = merge(facts)
        for name, merged in dictionaries.items():
            if merged is None:
                specs[name] = None
                continue
            refused = refusal(merged, facts, engine)
            if refused:
                raise ConfigError(refused)
            whole = completed(merged, facts, engine)
            specs[name] = rotation(spec_of(whole, facts), whole, facts, engine, notes)
        longest = _longest(dictionaries, facts, engine)
    except ConfigError as error:
        problem, specs = str(error), {}
    return EngineReading(engine, specs, problem, longest, tuple(dict.fromkeys(notes)))


def _longest(
    dictionaries: Mapping[str, Merged | None], facts: ModelFacts, engine: str
) -> int | None:
    """Return the longest context that the engine derives from the configuration."""
    longest = facts.longest
    given = [merged for merged in dictionaries.values() if merged is not None]
    if longest is None or engine not in ("vllm", "sglang") or not given:
        return longest
    if engine == "sglang":
        flat = given[0]
        if flat.nested or ORIGINAL in flat.values or flat.rope_type == "llama3":
            return longest
        return stretched(longest, checks.real("factor", flat.values.get("factor", 1), above=0.0))
    if any(merged.rope_type == "longrope" for merged in given):
        beside = facts.config.get(ORIGINAL)
        return longest if beside is None else checks.length(ORIGINAL, beside)
    if "gemma3" in facts.model_type:
        return longest
    factor = 1.0
    for merged in given:
        if merged.rope_type not in _SCALED_ALREADY:
            factor = checks.real("factor", merged.values.get("factor", factor), above=0.0)
    return stretched(longest, factor)
