"""Findings about entries that get lost, replaced or assumed while dictionaries are merged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ropewalk.spec import checks
from ropewalk.spec.facts import ROPE_KEYS
from ropewalk.spec.findings import Finding, equal_lists, number
from ropewalk.spec.merged import ORIGINAL, written_dictionary

if TYPE_CHECKING:
    from ropewalk.spec.findings import Case


def check_theta(case: Case) -> Iterator[Finding]:
    """S3 and S4: the base comes from nowhere."""
    old, new = case.entry("rope_scaling"), case.entry("rope_parameters")
    written = written_dictionary(case.facts)
    has_base = any(case.entry(name) is not None for name in ("rope_theta", "rotary_emb_base"))
    if (case.facts.family is not None and case.facts.family.labels) or has_base:
        return
    default = case.facts.base()
    if isinstance(old, Mapping) and old and isinstance(new, Mapping) and "rope_theta" in new:
        if "rope_theta" not in old:
            yield Finding(
                "THETA_LOST",
                "error",
                f"rope_scaling replaces rope_parameters as a whole, so rope_theta "
                f"{checks.abridged(new['rope_theta'])} is lost and {default:g} is taken",
                "remove rope_scaling and write its keys into rope_parameters, beside rope_theta",
            )
        return
    for name, merged in case.layers.items():
        if "rope_theta" in merged.written:
            continue
        default = case.facts.base(name)
        scaled = merged.rope_type != "default" and bool(written)
        yield Finding(
            "THETA_DEFAULTED",
            "error" if scaled else "note",
            f"rope_theta is not given; transformers takes {default:g} for "
            f"{case.facts.model_type or 'this model type'}",
            "write rope_theta, the base the model was trained with, into rope_parameters",
            case.where(name),
        )


def check_flat(case: Case) -> Iterator[Finding]:
    """S5: keys that stand where the class does not look."""
    written = case.entry("rope_parameters")
    if not (case.facts.two_bases and isinstance(written, Mapping)):
        return
    flat = sorted(str(key) for key in written if key in ROPE_KEYS)
    if flat:
        yield Finding(
            "FLAT_IGNORED",
            "error",
            f"rope_parameters of {case.facts.model_type} must be nested by layer type; the flat "
            f"keys {', '.join(flat)} reach no layer, which all stay unscaled",
            'write them into rope_parameters["full_attention"]',
        )


def check_conflicts(case: Case) -> Iterator[Finding]:
    """S7: two entries that say different things."""
    for name, merged in case.layers.items():
        pair = [merged.written.get(key) for key in ("rope_type", "type")]
        if None not in pair and pair[0] != pair[1]:
            yield _conflict(
                f"rope_type {pair[0]!r} and type {pair[1]!r} differ; rope_type wins in "
                "transformers and vLLM",
                "keep rope_type",
                case.where(name),
            )
        inside, beside = merged.written.get("rope_theta"), case.entry("rope_theta")
        differs = inside is not None and beside is not None and inside != beside
        if differs and not (case.facts.two_bases and name != "full_attention"):
            yield _conflict(
                f"rope_theta is {inside!r} in the rope dictionary and {beside!r} beside it; the "
                "inner value wins in transformers and vLLM, exllamav2 reads the outer one",
                "keep one of them",
                case.where(name),
            )
        inside, beside = merged.written.get(ORIGINAL), case.entry(ORIGINAL)
        if inside is not None and beside is not None and inside != beside and not merged.nested:
            yield _conflict(
                f"{ORIGINAL} is {inside!r} in the rope dictionary and {beside!r} beside it; the "
                "outer value wins in transformers",
                "keep one of them",
                case.where(name),
            )
    old, new = case.entry("rope_scaling"), case.entry("rope_parameters")
    if isinstance(old, Mapping) and isinstance(new, Mapping) and not case.facts.two_bases:
        shared = [k for k in new if k in old and old[k] != new[k] and k != "rope_theta"]
        if shared or not set(new) <= {*old, "rope_theta", "rope_type", "type"}:
            yield _conflict(
                "rope_scaling and rope_parameters are both given and differ; rope_scaling wins "
                "in transformers",
                "keep rope_parameters alone",
                None,
            )


def _conflict(message: str, remedy: str, layer_type: str | None) -> Finding:
    return Finding("KEY_CONFLICT", "warning", message, remedy, layer_type)


def check_trained_length(case: Case) -> Iterator[Finding]:
    """S1, and factors that do not fit the lengths."""
    longest = case.facts.longest
    for name, merged in case.layers.items():
        kind, factor = merged.rope_type, number(merged.values.get("factor"))
        if kind not in ("yarn", "llama3", "longrope"):
            continue
        given = number(merged.values.get(ORIGINAL))
        stated = ORIGINAL in merged.written or case.entry(ORIGINAL) is not None
        carrier = kind == "longrope" and equal_lists(merged) and "attention_factor" in merged.values
        if not stated and longest is not None and not carrier:
            guess = f" (max / factor = {longest / factor:g})" if factor and factor > 1 else ""
            yield Finding(
                "ORIGINAL_MISSING",
                "warning",
                f"{ORIGINAL} is not given, so max_position_embeddings = {longest} is taken for "
                f"the trained length{guess}",
                f"write {ORIGINAL}, the trained length, into the rope dictionary",
                case.where(name),
            )
        elif kind != "llama3" and given and longest and factor and not carrier:
            ratio = longest / given
            if longest != given and not math.isclose(ratio, factor, rel_tol=1e-6):
                yield Finding(
                    "FACTOR_MISMATCH",
                    "warning",
                    f"factor is {factor:g}, but max_position_embeddings / {ORIGINAL} = "
                    f"{longest} / {given:g} = {ratio:g}; transformers takes the factor",
                    "make them agree; the smallest factor that covers the context costs least",
                    case.where(name),
                )


def check_by_length(case: Case) -> Iterator[Finding]:
    """S2, and rules whose frequencies depend on the length of the row."""
    for name, merged in case.layers.items():
        if merged.rope_type == "dynamic" and merged.values.get("alpha") is None:
            yield Finding(
                "DYNAMIC_INERT",
                "warning",
                "dynamic scaling starts only above max_position_embeddings = "
                f"{case.facts.longest}; rows up to there are not scaled at all",
                "leave max_position_embeddings at the trained length, or use yarn",
                case.where(name),
            )
            yield Finding(
                "CACHE_DEPENDENT",
                "warning",
                "with dynamic scaling, transformers' frequencies depend on the longest row of the "
                "batch and on earlier calls, while cached keys keep older ones "
                "(huggingface/transformers#25104)",
                "use a rule of fixed frequencies such as yarn",
                case.where(name),
            )
        if merged.rope_type == "longrope" and not equal_lists(merged):
            yield Finding(
                "LONGROPE_SWITCH",
                "warning",
                f"the frequencies change where a row passes {merged.values.get(ORIGINAL)} "
                "positions; transformers switches by the longest row of a batch, vLLM by "
                "max_model_len, llama.cpp by the size of the context",
                "start rows that will become long with the long factors, or recompute the cache",
                case.where(name),
            )
