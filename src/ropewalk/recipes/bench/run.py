"""The parts of the benchmark as one run: plan, estimate, measure, report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from ropewalk.errors import ConfigError
from ropewalk.recipes.bench import accuracy, encoder, kernels, operator
from ropewalk.recipes.bench.accuracy import AccuracySettings
from ropewalk.recipes.bench.encoder import EncoderSettings
from ropewalk.recipes.bench.environment import machine, versions
from ropewalk.recipes.bench.operator import OperatorSettings
from ropewalk.recipes.bench.progress import Show
from ropewalk.recipes.bench.results import Report
from ropewalk.spec.checks import choice, integer


@dataclass(frozen=True)
class Plan:
    """What to measure; a part that is None is left out."""

    operator: OperatorSettings | None = None
    accuracy: AccuracySettings | None = None
    encoder: EncoderSettings | None = None
    threads: int | None = None
    """Threads of torch; None leaves them as they are."""

    def __post_init__(self) -> None:
        if self.threads is not None:
            integer("threads", self.threads, at_least=1, at_most=os.cpu_count())
        if not (self.operator or self.accuracy or self.encoder):
            raise ConfigError("a plan must have a part to measure; got none")

    def estimate(self) -> list[str]:
        """Return a line of time and memory for every part."""
        lines = []
        if self.operator is not None:
            lines.append(f"operator: {operator.estimate(self.operator)}")
        if self.accuracy is not None:
            lines.append(f"accuracy: {accuracy.estimate(self.accuracy)}")
        if self.encoder is not None:
            lines.append(f"encoder: {encoder.estimate(self.encoder)}")
        return lines


_PARTS = {
    "operator": OperatorSettings,
    "accuracy": AccuracySettings,
    "encoder": EncoderSettings,
}


def plan(subject: str, options: dict[str, Any], *, threads: int | None, **common: Any) -> Plan:
    """Return the plan for one part, or for all of them.

    Args:
        subject: "operator", "accuracy", "encoder" or "all".
        options: Fields of the part's settings; a part that has no such field refuses it.
        threads: Threads of torch.
        **common: Fields that a part takes if it has them: seconds, seed, peers.

    Raises:
        ConfigError: An unknown subject, an option without effect, or a value out of range.
    """
    choice("subject", subject, (*_PARTS, "all"))
    if subject == "all" and options:
        raise ConfigError(
            f"{', '.join(options)} must be left out with 'all', which measures everything; "
            f"got {options}; or name one of {', '.join(_PARTS)}"
        )
    parts = {}
    for name, kind in _PARTS.items():
        if subject in (name, "all"):
            known = {field.name for field in fields(kind)}
            for option, value in options.items():
                if option not in known:
                    raise ConfigError(
                        f"{option} must be left out for {name!r}, where it has no effect; "
                        f"got {value!r}"
                    )
            taken = {option: value for option, value in common.items() if option in known}
            parts[name] = kind(**taken | options)
    return Plan(**parts, threads=threads)


def run(plan: Plan, *, threads_sleep: bool, progress: bool = True) -> Report:
    """Measure every part of a plan; Ctrl-C ends it with what is there so far.

    Args:
        plan: What to measure.
        threads_sleep: What ``wait_passively`` returned before torch was loaded.
        progress: Whether estimate and progress are shown, on the standard error stream.

    Returns:
        What was measured; ``complete`` is false after Ctrl-C.
    """
    parts = {
        name: settings
        for name in ("operator", "accuracy", "encoder")
        if (settings := getattr(plan, name)) is not None
    }
    found: dict[str, list[Any]] = {name: [] for name in parts}
    complete = True
    with _threads(plan.threads), Show(_size(plan), shown=progress) as show:
        for line in plan.estimate():
            show.say(line)
        settings = {"threads": torch.get_num_threads(), "threads_sleep": threads_sleep}
        about = Report(
            machine(),
            versions(),
            settings | {name: asdict(part) for name, part in parts.items()},
            kernels.states(),
        )
        measures = {"operator": operator, "accuracy": accuracy, "encoder": encoder}
        try:
            for name, part in parts.items():
                for result in measures[name].measure(part, show):
                    found[name].append(result)
        except KeyboardInterrupt:
            complete = False
    return Report(about.machine, about.versions, about.settings, about.kernels, complete, **found)


def _size(plan: Plan) -> int:
    """Return how many steps the bar has."""
    return (
        (len(plan.operator.cases) if plan.operator else 0)
        + (len(plan.accuracy.positions) if plan.accuracy else 0)
        + (len(plan.encoder.cases) if plan.encoder else 0)
    )


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
