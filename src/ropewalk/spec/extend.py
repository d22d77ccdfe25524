"""Stretch a rotation to longer rows by one of the rules of a single factor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.by_length import DynamicNTK
from ropewalk.spec.by_parts import Llama3, Yarn
from ropewalk.spec.scaling import NTK, Linear, ScalingRule

if TYPE_CHECKING:
    from ropewalk.spec.rope_spec import RopeSpec

METHODS: dict[str, type[ScalingRule]] = {
    "linear": Linear,
    "ntk": NTK,
    "dynamic": DynamicNTK,
    "yarn": Yarn,
    "llama3": Llama3,
}


def extended(
    spec: RopeSpec, *, to: int, method: str, original_max_position_embeddings: int | None
) -> RopeSpec:
    """Return ``spec`` with the rule that stretches it from its trained length to another.

    A rule of the same method is replaced and keeps its other settings; the dynamic rule gets the
    factor 1, with which it divides the slowest pair by the ratio of lengths exactly.

    Args:
        spec: The rotation, without blocks.
        to: Longest row to be read, in positions.
        method: A key of :data:`METHODS`.
        original_max_position_embeddings: Trained length; None where the rule of ``spec`` has it.

    Raises:
        ConfigError: As :meth:`RopeSpec.extend` says.
    """
    checks.choice("method", method, tuple(METHODS))
    rule = METHODS[method]
    if spec.blocks:
        raise ConfigError("extend needs a spec without blocks; extend the blocks one by one")
    present = spec.scaling
    static = isinstance(present, DynamicNTK) and present.alpha is not None
    if present is not None and (type(present) is not rule or static):
        raise ConfigError(
            f"method must be that of the rule already at work, {checks.abridged(present)}; "
            f"got {method!r}; "
            "spec.replace(scaling=None) discards the rule, and with it what the model knows"
        )
    length = checks.length("to", to)
    trained = _trained_length(present, original_max_position_embeddings)
    if length < trained:
        raise ConfigError(f"to must be at least the trained length {trained}; got {length}")
    if rule is DynamicNTK:
        return spec.replace(scaling=DynamicNTK(1.0, trained))
    settings = {"factor": length / trained}
    if rule in (Yarn, Llama3):
        settings["original_max_position_embeddings"] = trained
    if present is not None:
        return spec.replace(scaling=replace(present, **settings))  # type: ignore[type-var]
    return spec.replace(scaling=rule(**settings))


def _trained_length(present: ScalingRule | None, given: int | None) -> int:
    """Return the trained length that the rule holds or the caller gives."""
    name = "original_max_position_embeddings"
    known: int | None = getattr(present, name, None)
    if given is None and known is None:
        raise ConfigError(
            f"{name} must be given, since the spec does not hold the trained length; got None"
        )
    trained = checks.length(name, known if given is None else given)
    if known is not None and trained != known:
        raise ConfigError(
            f"{name} must be that of the rule already at work, {known}; got "
            f"{checks.abridged(given)}"
        )
    return trained
