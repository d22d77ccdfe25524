"""Findings about entries that get lost, replaced or assumed while dictionaries are merged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ropewalk.spec import checks
from ropewalk.spec.config_keys import (
    ORIGINAL,
    ROPE_KEYS,
    entry,
    names_rule_too_late,
)
from ropewalk.spec.findings import Finding, equal_lists, number
from ropewalk.spec.parameters import is_carrier

if TYPE_CHECKING:
    from ropewalk.spec.findings import Case


def check_theta(case: Case) -> Iterator[Finding]:
    """S3 and S4: the base comes from nowhere."""
    old, new = case.entry("rope_scaling"), case.entry("rope_parameters")
    family = case.facts.reader
    beside = entry(family, case.facts.config, "rope_theta")
    for name, merged in case.layers.items():
        taken = merged.values["rope_theta"]
        stated = merged.written.get("rope_theta", None if family.labels else beside)
        if stated is not None and taken != stated and (beside is None or taken != beside):
            yield Finding(
                "THETA_LOST",
                "error",
                f"rope_theta {checks.abridged(stated)} is not read where it stands; "
                f"{case.facts.model_type} takes {checks.abridged(taken)}",
                "write the base where the class reads it: into rope_parameters, or nowhere if it "
                "has one base alone",
                case.where(name),
            )
    known_labels = case.facts.family is not None and family.labels
    if known_labels or beside is not None:
        return
    default = family.base("")
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
        default = merged.values["rope_theta"]
        scaled = merged.rope_type != "default" and bool(merged.written)
        yield Finding(
            "THETA_DEFAULTED",
            "error" if scaled else "note",
            f"rope_theta is not given; transformers takes {default:g} for "
            f"{case.facts.model_type or 'this model type'}",
            "write rope_theta, the base the model was trained with, into rope_parameters",
            case.where(name),
        )


def check_shape(case: Case) -> Iterator[Finding]:
    """S5: keys that stand where the class does not look."""
    written = case.entry("rope_scaling") or case.entry("rope_parameters")
    family, model = case.facts.reader, case.facts.model_type
    if family.old_name_only:
        written, old = case.entry("rope_parameters"), case.entry("rope_scaling")
        if isinstance(old, Mapping) and not written and names_rule_too_late(family, old, {}):
            yield Finding(
                "RULE_IGNORED",
                "error",
                f"type {checks.abridged(old['type'])} in rope_scaling is passed over by the class "
                f"of {model}, which has set rope_type to 'default' before: nothing is scaled",
                "write it as rope_type",
            )
    if not isinstance(written, Mapping):
        return
    kind = written.get("rope_type", written.get("type"))
    if family.fixed and kind not in (None, "default"):
        yield Finding(
            "RULE_IGNORED",
            "error",
            f"rope_type {checks.abridged(kind)} is never applied: {model} reads no rope entries",
            "remove it, or use a class that reads it",
        )
    nested = any(label in written for label in family.labels)
    flat = sorted(str(key) for key in written if key in ROPE_KEYS or not nested)
    if family.old_name_only and flat:
        yield Finding(
            "FLAT_IGNORED",
            "error",
            f"rope_parameters of {model} must be nested by layer type; the flat "
            f"keys {', '.join(flat)} reach no layer, which all stay unscaled",
            'write them into rope_parameters["full_attention"]',
        )
    below = sorted(str(key) for key, value in written.items() if isinstance(value, Mapping))
    if below and not family.labels:
        yield Finding(
            "NESTED_IGNORED",
            "error",
            f"rope_parameters of {model} must be flat; what stands below {', '.join(below)} "
            "reaches no layer",
            "write the keys of one of them into rope_parameters itself",
        )


def check_conflicts(case: Case) -> Iterator[Finding]:
    """S7: two entries that say different things."""
    for name, merged in case.layers.items():
        pair = [merged.written.get(key) for key in ("rope_type", "type")]
        if None not in pair and pair[0] != pair[1]:
            yield _conflict(
                f"rope_type {checks.abridged(pair[0])} and type {checks.abridged(pair[1])} differ; "
                "rope_type wins in transformers, and vLLM refuses both",
                "keep rope_type",
                case.where(name),
            )
        inside, beside = merged.written.get("rope_theta"), case.entry("rope_theta")
        differs = inside is not None and beside is not None and inside != beside
        if differs and not (case.facts.two_bases and name != "full_attention"):
            yield _conflict(
                f"rope_theta is {checks.abridged(inside)} in the rope dictionary and "
                f"{checks.abridged(beside)} beside it; the inner value wins in transformers and "
                "vLLM, exllamav2 reads the outer one",
                "keep one of them",
                case.where(name),
            )
        inside, beside = merged.original_inside, case.entry(ORIGINAL)
        if inside is not None and beside is not None and inside != beside:
            wins = "inner" if merged.nested else "outer"
            yield _conflict(
                f"{ORIGINAL} is {checks.abridged(inside)} in the rope dictionary and "
                f"{checks.abridged(beside)} beside it; the {wins} value wins in transformers",
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
        carrier = kind == "longrope" and is_carrier(merged.values)
        if merged.original_assumed and longest is not None and not carrier:
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
