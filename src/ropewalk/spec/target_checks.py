"""Findings about a longer context that is wanted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ropewalk.spec.config_keys import ORIGINAL
from ropewalk.spec.findings import Finding, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropewalk.spec.findings import Case
    from ropewalk.spec.merged import Merged


def check_target(case: Case) -> Iterator[Finding]:
    """A longer context for a rotation that is scaled already.

    Whether a model was trained with its rule cannot be read off a file. But a window that counts
    the factor in says that its makers meant it to be used so; then rule and factor belong to the
    model, in short rows too (MoonshotAI/Kimi-K2#55, FranxYao/Long-Context-Data-Engineering#6).
    """
    for name, merged in case.layers.items():
        if case.target is None or merged.rope_type == "default" or name == "sliding_attention":
            continue
        factor, longest = number(merged.values.get("factor")), case.facts.longest
        rule = f"rope_type {merged.rope_type!r}" + (f" with factor {factor:g}" if factor else "")
        if longest is not None and _counts_factor_in(merged, longest):
            so = f"is part of the model, whose max_position_embeddings = {longest} counts it in"
        else:
            so = "is in the file; whether the model was trained with it, the file does not say"
        yield Finding(
            "TRAINED_WITH_SCALING",
            "note",
            f"{rule} {so}: for {case.target} positions no rule is proposed in its place or on top "
            "of it",
            "if the model was trained so, keep the rule and its factor for rows of every length; "
            "else inspect the configuration without it",
            case.where(name),
        )


def _counts_factor_in(merged: Merged, longest: int) -> bool:
    """Return whether the window is that after scaling."""
    original = number(merged.values.get(ORIGINAL)) or math.inf
    if merged.rope_type in ("llama3", "longrope"):  # whose windows need not be factor * original
        return longest > original
    return longest >= original * (number(merged.values.get("factor")) or math.inf)
