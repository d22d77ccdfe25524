"""Where the code of an engine departs from the rule that a configuration names.

Read from the sources that :data:`ropewalk.spec.engines.ENGINES` states: ``get_rope`` and the
classes behind it in vLLM and SGLang, the conversion scripts and ``llama-context.cpp`` in llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.by_length import DynamicNTK, LongRope
from ropewalk.spec.by_pair import CustomFactors, Proportional
from ropewalk.spec.by_parts import Llama3, Yarn, mscale_of
from ropewalk.spec.merged import ORIGINAL
from ropewalk.spec.scaling import NTK

if TYPE_CHECKING:
    from ropewalk.spec.facts import ModelFacts
    from ropewalk.spec.merged import Merged
    from ropewalk.spec.rope_spec import RopeSpec

_BY_TRANSFORMERS = ("hf", "vllm", "sglang")
_PHI3 = ("phi3", "phi4_multimodal")
# Classes that vLLM and SGLang serve with the code of DeepSeek-V2.
_LATENT = ("deepseek_v", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite", "axk1")
# Model types whose conversion to GGUF writes the divisors of Llama 3 into rope_freqs.weight.
_WRITES_LLAMA3 = frozenset(
    (
    "llama", "mistral", "mixtral", "granite", "granite_swa", "granitemoe", "granitemoeshared",
    "granitemoe_swa", "arcee", "smollm3", "apertus", "afmoe", "llama4", "llama4_text", "exaone",
    "exaone4", "exaone_moe", "exaone4_5", "step3p5", "nanbeige", "voxtral",
    )
)  # fmt: skip
# Those whose conversion writes the two lists of LongRoPE, and whether it writes the amplitude.
_WRITES_LONGROPE = {"phi3": True, "phimoe": True, "minicpm": False, "minicpm3": False}
# Those that read the betas of YaRN back from the GGUF file.
_READS_BETAS = ("grok", "mistral3", "ministral3")
_WRITES_ALL_DIM = ("deepseek_v", "kimi_k2", "glm4_moe_lite", "mistral3", "ministral3")


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


def refusal(merged: Merged, facts: ModelFacts, engine: str) -> str | None:
    """Return why an engine stops at a dictionary, or None.

    Args:
        merged: The dictionary of one layer type.
        facts: Its model.
        engine: Name of the engine.
    """
    name, legacy = merged.rope_type, merged.written.get("type")
    renamed = facts.model_type in _PHI3 and legacy == "su" and "rope_type" not in merged.written
    if renamed and ORIGINAL not in merged.written and engine in _BY_TRANSFORMERS:
        return (
            f"rope_type 'su' stops with a KeyError for {ORIGINAL}, which is not in the "
            "dictionary; write 'longrope'"
        )
    agree = legacy in (None, name) or (legacy, name) in (("su", "longrope"), ("mrope", "default"))
    if engine == "vllm" and not agree:
        return (
            f"rope_type {checks.abridged(name)} and type {checks.abridged(legacy)} differ, which "
            "vLLM refuses"
        )
    if name == "ntk" and engine in ("hf", "sglang"):
        return f"rope_type 'ntk' is unknown to {engine}; write its base into rope_theta"
    if name == "su" and engine in ("hf", "sglang"):
        return "rope_type 'su' is not read any more; its name is 'longrope'"
    return None


def completed(merged: Merged, facts: ModelFacts, engine: str) -> Merged:
    """Return the dictionary with a legacy name replaced where an engine does so.

    Args:
        merged: The dictionary of one layer type.
        facts: Its model.
        engine: Name of the engine.
    """
    if merged.rope_type != "su" or engine not in ("vllm", "llama.cpp"):
        return merged
    values = dict(merged.values) | {"rope_type": "longrope"}
    original = facts.config.get(ORIGINAL) or values.get(ORIGINAL) or facts.longest
    return replace(merged, values=values | {ORIGINAL: original})


def rotation(
    spec: RopeSpec, merged: Merged, facts: ModelFacts, engine: str, notes: list[str]
) -> RopeSpec:
    """Return the rotation that an engine computes where the file means another one.

    Args:
        spec: What the file means.
        merged: The dictionary it is from.
        facts: Its model.
        engine: Name of the engine.
        notes: Receives a line for every difference.

    Raises:
        ConfigError: The engine has no rotation for it.
    """
    stored = "rope_layout" in facts.config  # a GGUF file: what conversion writes is written
    match spec.scaling:
        case Yarn() as rule:
            return spec.replace(scaling=_yarn(rule, merged, facts, engine, notes))
        case DynamicNTK() as rule:
            return _dynamic(spec, rule, facts, engine, notes)
        case LongRope() as rule:
            return _longrope(spec, rule, facts, engine, notes)
        case CustomFactors() as rule if not stored and engine in ("vllm", "sglang"):
            return spec.replace(scaling=_carrier(rule, merged, facts, notes))
        case Llama3() if engine == "llama.cpp" and facts.model_type not in _WRITES_LLAMA3:
            notes.append(f"llama3 of {facts.model_type or 'this model'} is not converted: unscaled")
            return spec.replace(scaling=None)
        case Proportional() as rule if engine != "hf":
            return _proportional(spec, rule, facts, engine, notes)
        case NTK() as rule if engine in ("vllm", "llama.cpp") and merged.rope_type == "ntk":
            return _ntk(spec, rule, merged, engine, notes)
    if engine == "sglang" and "gemma3" in facts.model_type and spec.scaling is not None:
        notes.append("on CPUs with AMX the full-attention layers are not scaled")
    return spec


def _yarn(rule: Yarn, merged: Merged, facts: ModelFacts, engine: str, notes: list[str]) -> Yarn:
    latent = facts.model_type.startswith(_LATENT)
    if not rule.truncate:
        if engine == "hf" and merged.nested:
            notes.append("truncate: false is ignored, since it is nested")
            rule = replace(rule, truncate=True)
        elif engine == "llama.cpp" or (engine in ("vllm", "sglang") and latent):
            notes.append("truncate: false is ignored")
            rule = replace(rule, truncate=True)
    own_betas = rule.beta_fast != 32.0 or rule.beta_slow != 1.0
    if engine == "llama.cpp" and own_betas and not facts.model_type.startswith(_READS_BETAS):
        notes.append("the betas in the file are ignored; pass --yarn-beta-fast, --yarn-beta-slow")
        rule = replace(rule, beta_fast=32.0, beta_slow=1.0)
    if engine == "hf":
        return rule
    reach = stretched(rule.original_max_position_embeddings, rule.factor)
    if engine in ("vllm", "sglang") and facts.longest is not None and facts.longest < reach:
        notes.append(
            f"max_position_embeddings = {facts.longest} is the limit; override it for {reach}"
        )
    amplitude, usual = _yarn_amplitude(rule, merged, facts, engine), rule.amplitude(None)
    if math.isclose(amplitude, usual, rel_tol=1e-9):
        return rule
    key = "attention_factor is" if rule.attention_factor is not None else "mscale keys are"
    notes.append(f"{key} not read so: cos and sin times {amplitude:.6g} instead of {usual:.6g}")
    return replace(rule, attention_factor=amplitude, mscale=None, mscale_all_dim=None)


def _yarn_amplitude(rule: Yarn, merged: Merged, facts: ModelFacts, engine: str) -> float:
    """Return the factor on cos and sin in an engine other than transformers."""
    s, mscale, all_dim = rule.factor, rule.mscale, rule.mscale_all_dim
    if engine == "llama.cpp":
        if "rope_layout" in facts.config:
            return rule.amplitude(None)  # a GGUF file is read by llama.cpp's own formula
        if not all_dim or not facts.model_type.startswith(_WRITES_ALL_DIM):
            return mscale_of(s, 1.0)
        deepseek = facts.model_type not in _READS_BETAS
        return mscale_of(s, all_dim if deepseek and all_dim != 1.0 else 1.0) / mscale_of(s, all_dim)
    if facts.model_type.startswith(_LATENT):
        value = mscale_of(s, 1.0 if mscale is None else mscale) / mscale_of(s, all_dim or 0.0)
    elif engine == "vllm":
        if facts.model_type == "gpt_oss":
            return mscale_of(s, 1.0)
        if rule.attention_factor is not None:
            return rule.attention_factor
        value = (
            mscale_of(s, mscale) / mscale_of(s, all_dim)
            if mscale and all_dim
            else mscale_of(s, 1.0)
        )
    else:
        both = mscale is not None and all_dim is not None
        value = (
            mscale_of(s, mscale or 0.0) / mscale_of(s, all_dim or 0.0)
            if both
            else mscale_of(s, 1.0)
        )
    return value * _number(merged, "attn_factor", 1.0) if engine == "sglang" else value


def _number(merged: Merged, key: str, default: float) -> float:
    value: Any = merged.values.get(key)
    return float(value) if isinstance(value, int | float) and value > 0 else default


def _dynamic(
    spec: RopeSpec, rule: DynamicNTK, facts: ModelFacts, engine: str, notes: list[str]
) -> RopeSpec:
    if rule.alpha is not None:
        if engine != "llama.cpp" or facts.model_type.startswith("hunyuan"):
            return spec
        notes.append("rope_type 'dynamic' with alpha is converted for Hunyuan alone: unscaled")
        return spec.replace(scaling=None)
    if engine == "hf":
        notes.append("frequencies depend on the longest row of the batch and on earlier calls")
        return spec
    if engine == "llama.cpp":
        notes.append("rope_type 'dynamic' is not converted: no scaling at all")
        return spec.replace(scaling=None)
    assert rule.factor is not None
    assert rule.original_max_position_embeddings is not None
    trained = rule.original_max_position_embeddings
    longest = stretched(trained, rule.factor)
    if engine == "vllm":
        notes.append(
            f"rope_type 'dynamic' scales nothing: the base is that of {trained} positions, and "
            f"rows of up to {longest} are let in, past the end of the table"
        )
        return spec.replace(scaling=None)
    notes.append("rope_type 'dynamic' is static: the base for the longest context, in every row")
    return spec.replace(scaling=NTK(rule.ntk_factor(longest)))


def _longrope(
    spec: RopeSpec, rule: LongRope, facts: ModelFacts, engine: str, notes: list[str]
) -> RopeSpec:
    if engine == "hf":
        return spec
    stored = "rope_layout" in facts.config
    original = rule.original_max_position_embeddings
    longest = facts.longest or original
    if engine == "llama.cpp":
        if not stored and facts.model_type not in _WRITES_LONGROPE:
            notes.append(f"longrope of {facts.model_type or 'this model'} is not converted")
            return spec.replace(scaling=None)
        if not stored:
            written = _WRITES_LONGROPE[facts.model_type]
            rule = _with_amplitude(rule, _by_lengths(longest, original) if written else 1.0, notes)
        if rule.short_factor != rule.long_factor:
            notes.append(f"long_factor in every row where the context is larger than {original}")
        return spec.replace(scaling=_list_for(rule, longest))
    if rule.short_mscale is None:
        rule = _with_amplitude(rule, _by_lengths(longest, original), notes)
    if engine == "sglang" or not rule.depends_on_length:
        return spec.replace(scaling=rule)
    served = original if facts.config.get(ORIGINAL) is not None else longest
    which = "short_factor" if served <= original else "long_factor"
    notes.append(
        f"{which} in every row of a server with --max-model-len {served}, the default; short up "
        f"to {original}, else long"
    )
    return spec.replace(scaling=_list_for(rule, served))


def _by_lengths(longest: int, original: int) -> float:
    """Return LongRoPE's factor on cos and sin from the two lengths, whatever the file says."""
    if longest <= original or original < 2:
        return 1.0
    return LongRope((1.0,), (1.0,), original, factor=longest / original).amplitude(None)


def _with_amplitude(rule: LongRope, amplitude: float, notes: list[str]) -> LongRope:
    usual = rule.amplitude(rule.original_max_position_embeddings)
    if math.isclose(usual, amplitude, rel_tol=1e-9):
        return rule
    notes.append(
        "attention_factor and factor are ignored: cos and sin times "
        f"{amplitude:.6g} instead of {usual:.6g}"
    )
    return replace(rule, attention_factor=amplitude, short_mscale=None, long_mscale=None)


def _list_for(rule: LongRope, length: int) -> CustomFactors:
    long = length > rule.original_max_position_embeddings
    factors = rule.long_factor if long else rule.short_factor
    return CustomFactors(factors, rule.amplitude(length))


def _carrier(
    rule: CustomFactors, merged: Merged, facts: ModelFacts, notes: list[str]
) -> CustomFactors:
    """Two equal lists with an attention_factor, which vLLM and SGLang do not read."""
    if merged.values.get("short_mscale") is not None:
        return rule
    original = merged.values.get(ORIGINAL, facts.longest)
    known = isinstance(original, int) and facts.longest is not None
    amplitude = _by_lengths(facts.longest or 1, original) if known else 1.0
    if math.isclose(amplitude, rule.attention_factor, rel_tol=1e-9):
        return rule
    notes.append("attention_factor is ignored; short_mscale and long_mscale are read")
    return replace(rule, attention_factor=amplitude)


def _proportional(
    spec: RopeSpec, rule: Proportional, facts: ModelFacts, engine: str, notes: list[str]
) -> RopeSpec:
    if engine == "llama.cpp" and not facts.model_type.startswith(("gemma4", "diffusion_gemma")):
        raise ConfigError(f"rope_type 'proportional' of {facts.model_type!r} is not converted")
    if rule.factor != 1.0:
        notes.append("factor of rope_type 'proportional' is ignored")
        return spec.replace(scaling=replace(rule, factor=1.0))
    return spec


def _ntk(spec: RopeSpec, rule: NTK, merged: Merged, engine: str, notes: list[str]) -> RopeSpec:
    if engine == "llama.cpp":
        notes.append("rope_type 'ntk' is not converted: no scaling at all")
        return spec.replace(scaling=None)
    notes.append("rope_type 'ntk' also divides every pair: by s^(2(j+1)/d), or as mixed_b says")
    pairs, power = spec.n_pairs, merged.values.get("mixed_b")
    if power is None:
        factors = [rule.factor ** ((j + 1) / pairs) for j in range(pairs)]
    else:
        rate = math.log(rule.factor) / pairs ** _number(merged, "mixed_b", 1.0)
        factors = [
            math.exp(rate * (j + 1) ** _number(merged, "mixed_b", 1.0)) for j in range(pairs)
        ]
    return spec.replace(scaling=CustomFactors(tuple(factors)))
