"""Findings about single values: keys nobody reads, factors, lists, widths, windows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.by_parts import mscale_of
from ropewalk.spec.config_keys import QUERY_SCALING, ROPE_KEYS
from ropewalk.spec.findings import Finding, number
from ropewalk.spec.merged import spec_of
from ropewalk.spec.parameters import ROPE_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropewalk.spec.findings import Case
    from ropewalk.spec.merged import Merged

_SCALED = ("linear", "dynamic", "yarn", "llama3", "longrope")
# Trained window of models whose entries identify them: (model type, vocabulary, base).
_TRAINED_WINDOW = {("llama", 32_000, 1e4): 4096, ("llama", 128_256, 5e5): 8192}


def check_yarn(case: Case) -> Iterator[Finding]:
    """S6, betas, and attention factors that look applied twice."""
    for name, merged in case.layers.items():
        values = merged.values
        if merged.rope_type != "yarn":
            continue
        if merged.nested and values.get("truncate") is False and "hf" in case.engines:
            yield Finding(
                "TRUNCATE_IGNORED_NESTED",
                "warning",
                "truncate: false is ignored by transformers in a nested dictionary, so the ramp "
                "is rounded to whole pairs",
                "for other engines leave it; in transformers only a flat dictionary is obeyed",
                case.where(name),
            )
        fast, slow = number(values.get("beta_fast")) or 32.0, number(values.get("beta_slow")) or 1
        if fast <= slow:
            yield Finding(
                "BETA_ORDER",
                "error",
                f"beta_fast {fast:g} must be greater than beta_slow {slow:g}; as it is the ramp is "
                "inverted and fast pairs are slowed",
                "exchange the two",
                case.where(name),
            )
        given, factor = number(values.get("attention_factor")), number(values.get("factor"))
        usual = mscale_of(factor or 1.0, 1.0)
        squared = given is not None and usual > 1 and math.isclose(given, usual**2, rel_tol=1e-3)
        if given is not None and (squared or not 0.5 <= given <= 2.0):
            yield Finding(
                "ATTN_FACTOR_SUSPECT",
                "warning",
                f"attention_factor {given:g} multiplies cos and sin; the formula gives {usual:g}"
                + (", of which this is the square" if squared else ""),
                "remove it, or write the factor on cos and sin, not that on scores",
                case.where(name),
            )


def check_windows(case: Case) -> Iterator[Finding]:
    """A longer window without a rule, the same extension twice, scaled windows."""
    longest = case.facts.longest
    for name, merged in case.layers.items():
        theta = number(merged.values.get("rope_theta"))
        key = (case.facts.model_type, case.entry("vocab_size"), theta)
        window = _TRAINED_WINDOW.get(key) if isinstance(key[1], int) and theta else None  # type: ignore[arg-type]
        if merged.rope_type == "default" and window and longest and longest > window:
            yield Finding(
                "WINDOW_WITHOUT_SCALING",
                "warning",
                f"max_position_embeddings is {longest}, but models with these entries are trained "
                f"with {window}, and nothing is scaled",
                f"add a rule, for example yarn with factor {longest / window:g}, unless the model "
                "was trained further",
            )
        factor = number(merged.values.get("factor"))
        multiplied = merged.rope_type in ("linear", "dynamic") and not case.facts.two_bases
        if "vllm" in case.engines and multiplied and factor and factor > 1 and longest:
            yield Finding(
                "DOUBLE_EXTENSION",
                "warning",
                f"vLLM allows max_position_embeddings * factor = {longest} * {factor:g} = "
                f"{longest * factor:g} positions",
                f"pass --max-model-len {longest} if max_position_embeddings is extended already",
            )
        if name == "sliding_attention" and merged.rope_type in _SCALED:
            yield Finding(
                "SLIDING_LAYERS_SCALED",
                "warning",
                f"rope_type {checks.abridged(merged.rope_type)} slows layers that never look "
                "further than their window",
                'scale rope_parameters["full_attention"] alone',
                name,
            )


def check_values(case: Case) -> Iterator[Finding]:
    """Keys nobody reads, and values no reader accepts."""
    for name, merged in case.layers.items():
        where = case.where(name)
        for key in merged.ignored:
            hint = _nearest(key)
            if key != QUERY_SCALING or key not in merged.unused:
                yield Finding(
                    "UNKNOWN_KEY",
                    "warning",
                    f"key {checks.abridged(key)} is not read for rope_type "
                    f"{checks.abridged(merged.rope_type)}{hint}",
                    "remove it, or correct its name",
                    where,
                )
        yield from _unread_share(case, merged, where)
        factor = number(merged.values.get("factor"))
        if factor is not None and factor < 1:
            yield Finding(
                "INVERTED_SCALE",
                "error" if merged.rope_type in _SCALED else "warning",
                f"factor {factor:g} is below 1, which turns pairs faster",
                f"write {1 / factor:g}, new length / trained length" if factor > 0 else "write s",
                where,
            )
        yield from _lists(case, merged, where)
        if merged.rope_type not in ROPE_TYPES or merged.rope_type == "ntk":
            known = ", ".join(kind for kind in ROPE_TYPES if kind != "ntk")
            yield Finding(
                "UNKNOWN_TYPE",
                "error",
                f"rope_type {checks.abridged(merged.rope_type)} is unknown to transformers",
                f"use one of {known}; 'su' is now 'longrope', 'ntk' is a larger rope_theta",
                where,
            )


def _nearest(key: object) -> str:
    import difflib  # slow to load, and seldom needed

    near = difflib.get_close_matches(str(key), sorted(ROPE_KEYS), 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near and near[0] != key else ""


def _unread_share(case: Case, merged: Merged, where: str | None) -> Iterator[Finding]:
    family = case.facts.reader
    name = family.keys.get("partial_rotary_factor", "partial_rotary_factor")
    part = merged.written.get(name, case.entry(name))
    if part is None or part == 1.0 or family.partial is not None:
        return
    breaks = merged.rope_type != "default"  # the shared rules read it, the class does not
    yield Finding(
        "UNKNOWN_KEY",
        "error" if breaks else "warning",
        f"partial_rotary_factor {checks.abridged(part)} is not read by the class of "
        f"{case.facts.model_type}, which turns the whole head"
        + (
            f", with a table for a part of it from {checks.abridged(merged.rope_type)}"
            if breaks
            else ""
        ),
        "remove it, or use a class that reads it",
        where,
    )


def _lists(case: Case, merged: Merged, where: str | None) -> Iterator[Finding]:
    pairs = (_widths(case, merged)[1] + 1) // 2
    for key in ("short_factor", "long_factor"):
        value = merged.values.get(key)
        if merged.rope_type != "longrope" or not isinstance(value, list) or not pairs:
            continue
        if len(value) != pairs:
            yield Finding(
                "LIST_LENGTH",
                "error",
                f"{key} has {len(value)} entries for {pairs} pairs",
                "write one entry per pair, half the rotated width",
                where,
            )


def _widths(case: Case, merged: Merged) -> tuple[int, int]:
    """Return how wide a head is and how much of it turns; 0 where that cannot be said."""
    try:
        return case.facts.slice(merged)[:2]
    except ConfigError:
        return 0, 0


def check_queries(case: Case) -> Iterator[Finding]:
    """Factors on queries that grow with the position, beside the rotation."""
    for name, merged in case.layers.items():
        beta = merged.values.get(QUERY_SCALING)
        if beta is not None and QUERY_SCALING in merged.unused:
            yield _query_scaling(f"{QUERY_SCALING} {checks.abridged(beta)}", case.where(name))
    if case.facts.family is not None and case.entry("attn_temperature_tuning"):
        yield _query_scaling("attn_temperature_tuning", None)


def _query_scaling(entry: str, where: str | None) -> Finding:
    return Finding(
        "QUERY_SCALING",
        "note",
        f"{entry} multiplies queries by a factor that grows with the position, which is no part "
        "of the rotation",
        "apply it beside the rotation, as the code of the model does",
        where,
    )


def check_model(case: Case) -> Iterator[Finding]:
    """A model type whose code is not known."""
    if case.facts.family is None and "rope_layout" not in case.facts.config:
        yield Finding(
            "UNKNOWN_MODEL",
            "note",
            f"model_type {checks.abridged(case.facts.model_type)} is not known, so pair layout, "
            "base and share of the head are taken for the usual ones "
            f"({case.facts.layout}, 10000, all)",
            "compare with the code of the model",
        )


def check_reads(case: Case) -> Iterator[Finding]:
    """Odd widths, and whatever the rules themselves refuse."""
    for name, merged in case.layers.items():
        head, width = _widths(case, merged)
        if width % 2:
            refused = width == head
            yield Finding(
                "ODD_DIM",
                "error" if refused else "warning",
                f"the rotated width must be even; of head_dim {head}, {width} coordinates turn"
                + ("" if refused else f"; transformers turns {width + 1} on the ladder of {width}"),
                "choose a head_dim and a partial_rotary_factor with an even product",
                case.where(name),
            )
            if refused:
                continue
        known = {f.code for f in (*check_values(case), *check_yarn(case)) if f.severity == "error"}
        try:
            spec_of(merged, case.facts)
        except ConfigError as error:
            if not known:
                yield Finding(
                    "BAD_VALUE",
                    "error",
                    str(error),
                    "correct the value; engines warn at best, or stop later with another message",
                    case.where(name),
                )
