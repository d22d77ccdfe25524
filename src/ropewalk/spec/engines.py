"""How transformers, vLLM, llama.cpp and SGLang read one and the same configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.by_length import DynamicNTK, LongRope
from ropewalk.spec.by_pair import CustomFactors
from ropewalk.spec.by_parts import Yarn
from ropewalk.spec.merged import Merged, merge, spec_of
from ropewalk.spec.scaling import NTK, Linear

if TYPE_CHECKING:
    from ropewalk.spec.facts import ModelFacts
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


_READ = "derived from source at {}, not executed"
_VLLM = "07b12f1b16d5568eeb29a52fd8c9296a51f478ed"
_SGLANG = "00a66ebe136b90479f9ccf9fc4f3d1c08251981c"

ENGINES = {
    profile.name: profile
    for profile in (
        EngineProfile(
            "hf",
            "transformers 5.24.0",
            "rules compared with the released package",
            "longest row of the batch, at every forward",
        ),
        EngineProfile(
            "vllm",
            f"vllm-project/vllm@{_VLLM[:8]}",
            _READ.format(f"vllm-project/vllm@{_VLLM[:8]}"),
            "fixed for the server: dynamic at max_position_embeddings * factor, longrope by "
            "max_model_len",
        ),
        EngineProfile(
            "llama.cpp",
            "no version",
            "from public reports about llama.cpp, source not read, not executed",
            "size of the context, not length of the row",
        ),
        EngineProfile(
            "sglang",
            f"sgl-project/sglang@{_SGLANG[:8]}",
            _READ.format(f"sgl-project/sglang@{_SGLANG[:8]} (rotary layer only)"),
            "dynamic fixed at max_position_embeddings * factor; longrope by the positions of the "
            "batch",
        ),
    )
}
"""Every engine that has a profile, by name."""


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
    try:
        for name, merged in merge(facts).items():
            if merged is not None:
                refused = _refusal(merged, engine)
                if refused:
                    raise ConfigError(refused)
                specs[name] = _as_engine(spec_of(merged, facts), merged, facts, engine, notes)
            else:
                specs[name] = None
    except ConfigError as error:
        problem, specs = str(error), {}
    longest = None if problem else _longest(specs, facts, engine)
    return EngineReading(engine, specs, problem, longest, tuple(dict.fromkeys(notes)))


def _refusal(merged: Merged, engine: str) -> str | None:
    """Return why the engine stops at a rope_type, or None."""
    name = merged.rope_type
    if name == "ntk" and engine == "hf":
        return "rope_type 'ntk' is a KeyError in transformers; write its base into rope_theta"
    if name == "su":
        return "rope_type 'su' is not read any more; its name is 'longrope'"
    if name == "ntk" and engine in ("vllm", "sglang"):
        return f"rope_type 'ntk' has another formula in {engine}; write its base into rope_theta"
    return None


def _as_engine(
    spec: RopeSpec, merged: Merged, facts: ModelFacts, engine: str, notes: list[str]
) -> RopeSpec:
    """Return the rotation with the deviations of the engine."""
    rule = spec.scaling
    if isinstance(rule, Yarn):
        return spec.replace(scaling=_yarn(rule, merged, facts, engine, notes))
    if isinstance(rule, DynamicNTK) and rule.depends_on_length:
        return _dynamic(spec, rule, engine, notes)
    if isinstance(rule, LongRope) and rule.depends_on_length and engine in ("vllm", "llama.cpp"):
        return _longrope(spec, rule, facts, engine, notes)
    if isinstance(rule, CustomFactors) and engine in ("vllm", "sglang"):
        given = merged.values.get("short_mscale")
        if given is None and rule.attention_factor != 1.0:
            notes.append("attention_factor is ignored; short_mscale and long_mscale are read")
            longest, original = facts.longest, merged.values.get("original_max_position_embeddings")
            if isinstance(original, int) and longest == original:
                return spec.replace(scaling=replace(rule, attention_factor=1.0))
    return spec


def _yarn(rule: Yarn, merged: Merged, facts: ModelFacts, engine: str, notes: list[str]) -> Yarn:
    if not rule.truncate and (
        engine in ("llama.cpp", "sglang") or (engine, merged.nested) == ("hf", True)
    ):
        notes.append(
            "truncate: false is ignored" + (", since it is nested" if engine == "hf" else "")
        )
        rule = replace(rule, truncate=True)
    if engine == "hf":
        return rule
    if rule.attention_factor is not None:
        notes.append("attention_factor is ignored")
        rule = replace(rule, attention_factor=None)
    latent = facts.model_type.startswith(("deepseek", "kimi"))
    if (rule.mscale is not None or rule.mscale_all_dim is not None) and not latent:
        notes.append("mscale and mscale_all_dim are ignored outside the DeepSeek family")
        rule = replace(rule, mscale=None, mscale_all_dim=None)
    return rule


def _dynamic(spec: RopeSpec, rule: DynamicNTK, engine: str, notes: list[str]) -> RopeSpec:
    if engine == "hf":
        notes.append("frequencies depend on the longest row of the batch and on earlier calls")
        return spec
    if engine == "llama.cpp":
        notes.append("rope_type 'dynamic' is not converted: no scaling at all")
        return spec.replace(scaling=None)
    assert rule.factor is not None
    assert rule.original_max_position_embeddings is not None
    notes.append("rope_type 'dynamic' is static: the base for the longest context, in every row")
    longest = stretched(rule.original_max_position_embeddings, rule.factor)
    return spec.replace(scaling=NTK(rule.ntk_factor(longest)))


def _longrope(
    spec: RopeSpec, rule: LongRope, facts: ModelFacts, engine: str, notes: list[str]
) -> RopeSpec:
    original = rule.original_max_position_embeddings
    if engine == "vllm":
        notes.append(
            f"short_factor in every row unless --max-model-len exceeds {original}, then long_factor"
        )
        length = original
    else:
        notes.append(f"long_factor in every row where the context is larger than {original}")
        length = max(facts.longest or 1, 1)
    long = length > original
    factors = rule.long_factor if long else rule.short_factor
    return spec.replace(scaling=CustomFactors(factors, rule.amplitude(length)))


def _longest(specs: Mapping[str, RopeSpec | None], facts: ModelFacts, engine: str) -> int | None:
    """Return the longest context that the engine derives from the configuration."""
    longest = facts.longest
    if longest is None or engine != "vllm" or facts.two_bases:
        return longest
    try:
        merged = next(m for m in merge(facts).values() if m is not None)
    except StopIteration:
        return longest
    rule = next((s.scaling for s in specs.values() if s is not None), None)
    if isinstance(rule, Yarn):
        return stretched(rule.original_max_position_embeddings, rule.factor)
    if isinstance(rule, Linear):
        return stretched(longest, rule.factor)
    if merged.rope_type == "dynamic" and merged.values.get("factor") is not None:
        return stretched(longest, checks.real("factor", merged.values["factor"], above=0.0))
    if merged.rope_type == "longrope":
        original = merged.values.get("original_max_position_embeddings")
        return original if isinstance(original, int) else longest
    return longest


def stretched(length: int, factor: float) -> int:
    """Return a length times a factor, at least 1 and at most what int64 positions can count.

    Args:
        length: In positions.
        factor: Greater than 0.

    Example:
        >>> stretched(4096, 4.0)
        16384
    """
    return max(1, int(min(length * factor, 2.0**62)))
