"""Name what is wrong with a model's rope configuration, and how to put it right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.spec.findings import Case, Finding
from ropewalk.spec.merge_checks import (
    check_by_length,
    check_conflicts,
    check_shape,
    check_theta,
    check_trained_length,
)
from ropewalk.spec.merged import merge
from ropewalk.spec.target_checks import check_target
from ropewalk.spec.value_checks import (
    check_model,
    check_queries,
    check_reads,
    check_values,
    check_windows,
    check_yarn,
)

if TYPE_CHECKING:
    from ropewalk.spec.facts import ModelFacts

_CHECKS = (
    check_theta,
    check_shape,
    check_conflicts,
    check_trained_length,
    check_by_length,
    check_yarn,
    check_windows,
    check_values,
    check_reads,
    check_queries,
    check_model,
    check_target,
)


def diagnose(
    facts: ModelFacts, *, engines: tuple[str, ...] = ("hf",), target: int | None = None
) -> tuple[Finding, ...]:
    """Return every finding about a configuration, errors first.

    Args:
        facts: The model.
        engines: Engines that shall read it; some findings concern one engine alone.
        target: Context that is wanted, in positions; None: none in particular.

    Raises:
        ConfigError: The configuration cannot be read at all.

    Example:
        >>> from ropewalk.spec.facts import ModelFacts
        >>> config = {"model_type": "llama", "head_dim": 64, "rope_parameters":
        ...     {"rope_type": "linear", "factor": 2.0}, "max_position_embeddings": 4096}
        >>> [finding.code for finding in diagnose(ModelFacts.of(config))]
        ['THETA_DEFAULTED']
    """
    layers = {name: merged for name, merged in merge(facts).items() if merged is not None}
    case = Case(facts, layers, engines, target)
    found = [finding for check in _CHECKS for finding in check(case)]
    order = ("error", "warning", "note")
    return tuple(sorted(dict.fromkeys(found), key=lambda finding: order.index(finding.severity)))
