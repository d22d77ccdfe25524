"""From finished runs to what they show: means, paired differences, and one honest sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.analysis.measures import (
    MaskedLMScore,
    PairedDifference,
    paired_difference,
    ratio_standard_error,
    steps_to_reach,
)
from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ropewalk.recipes.lengths import LengthPoint
    from ropewalk.recipes.training import EvaluationPoint, TrainingResult

SUBJECT = "rope"
"""The encoding that the others are baselines of."""
CLEAR = 2.0
"""Standard errors from which on a difference is called one."""


@dataclass(frozen=True)
class Run:
    """One encoding trained with one seed.

    Args:
        encoding: The position encoding.
        seed: The seed.
        parameters: Number of weights.
        training: Losses, evaluations and speed.
    """

    encoding: str
    seed: int
    parameters: int
    training: TrainingResult

    @property
    def last(self) -> EvaluationPoint:
        """The evaluation after the last step."""
        evaluation = self.training.evaluation
        if evaluation is None:
            raise ConfigError(f"run {self.encoding!r}, seed {self.seed}: it was never evaluated")
        return evaluation


@dataclass(frozen=True)
class Summary:
    """What one encoding gave, over all seeds.

    Args:
        encoding: The position encoding.
        parameters: Number of weights.
        loss: Mean validation loss after the last step, nats per masked token.
        loss_standard_error: Of that mean, over seeds; None for a single seed.
        accuracy: Mean share of masked tokens predicted right.
        perplexity: Exponential of the mean loss.
        tokens_per_second: Mean speed of training.
        reached: Seeds for which a measured loss was at or below the best baseline's last one.
        steps_to_baseline: Mean of the first such steps; None unless all seeds reached it.
        tokens_to_baseline: The same in tokens read.
    """

    encoding: str
    parameters: int
    loss: float
    loss_standard_error: float | None
    accuracy: float
    perplexity: float
    tokens_per_second: float
    reached: int
    steps_to_baseline: float | None
    tokens_to_baseline: float | None


@dataclass(frozen=True)
class Difference:
    """Loss of rope minus that of a baseline, over the seeds they share.

    Args:
        baseline: The other encoding.
        mean: Mean difference, nats; negative where rope is better.
        standard_error: Of the mean; None for a single seed.
        n: Number of seeds.
    """

    baseline: str
    mean: float
    standard_error: float | None
    n: int


@dataclass(frozen=True)
class Findings:
    """All that the runs show.

    Args:
        summaries: One for each encoding, best first.
        best_baseline: The encoding other than rope with the lowest loss; None if there is none.
        differences: Rope against each baseline, the best one first; empty without rope.
        headline: The result in a sentence or two.
    """

    summaries: tuple[Summary, ...]
    best_baseline: str | None
    differences: tuple[Difference, ...]
    headline: str


def findings(runs: Sequence[Run]) -> Findings:
    """Summarise runs of which each encoding has the same seeds.

    Args:
        runs: At least one.
    """
    encodings = list(dict.fromkeys(run.encoding for run in runs))
    losses = {name: [run.last.loss for run in runs if run.encoding == name] for name in encodings}
    ranked = sorted(encodings, key=lambda name: float(np.mean(losses[name])))
    baselines = [name for name in ranked if name != SUBJECT]
    best = baselines[0] if baselines else None
    summaries = tuple(
        _summary([run for run in runs if run.encoding == name], losses.get(best or ""))
        for name in ranked
    )
    differences: tuple[Difference, ...] = ()
    if SUBJECT in encodings:
        differences = tuple(
            _difference(name, paired_difference(losses[SUBJECT], losses[name]))
            for name in baselines
        )
    return Findings(
        summaries, best, differences, _headline(summaries, differences, runs[0].training.steps)
    )


def _summary(runs: Sequence[Run], targets: Sequence[float] | None) -> Summary:
    losses = [run.last.loss for run in runs]
    loss = float(np.mean(losses))
    steps = [
        steps_to_reach([(point.step, point.loss) for point in run.training.evaluations], target)
        for run, target in zip(runs, targets or (), strict=targets is not None)
    ]
    found = [step for step in steps if step is not None]
    all_reached = bool(found) and len(found) == len(runs)
    mean_steps = float(np.mean(found)) if all_reached else None
    training = runs[0].training
    return Summary(
        encoding=runs[0].encoding,
        parameters=runs[0].parameters,
        loss=loss,
        loss_standard_error=_finite(ratio_standard_error(losses, np.ones(len(losses)))),
        accuracy=float(np.mean([run.last.accuracy for run in runs])),
        perplexity=MaskedLMScore(loss, 0, 1).perplexity,
        tokens_per_second=float(np.mean([run.training.tokens_per_second for run in runs])),
        reached=len(found),
        steps_to_baseline=mean_steps,
        tokens_to_baseline=(
            None if mean_steps is None else mean_steps * training.tokens / training.steps
        ),
    )


def _difference(name: str, difference: PairedDifference) -> Difference:
    return Difference(name, difference.mean, _finite(difference.standard_error), difference.n)


def _headline(summaries: Sequence[Summary], differences: Sequence[Difference], steps: int) -> str:
    if not differences:
        shown = ", ".join(f"{summary.encoding} {summary.loss:.2f}" for summary in summaries)
        return f"Validation loss after {steps:,} steps, in nats per masked token: {shown}."
    by_name = {summary.encoding: summary for summary in summaries}
    subject, best = by_name[SUBJECT], differences[0]
    baseline = by_name[best.baseline]
    better = "lower" if best.mean < 0 else "higher"
    text = (
        f"After {steps:,} steps the validation loss of {SUBJECT} is {subject.loss:.2f} nats per "
        f"masked token, {abs(best.mean):.2f} {better} than that of the best baseline, "
        f"{best.baseline} ({baseline.loss:.2f})"
    )
    if best.mean < 0 and subject.steps_to_baseline is not None:
        text += f"; it passed that loss by step {subject.steps_to_baseline:,.0f}"
    if best.standard_error is None:
        return f"{text}. One seed: how much of this is chance was not measured."
    clear = abs(best.mean) > CLEAR * best.standard_error
    verdict = "" if clear else ", too close to tell them apart"
    return (
        f"{text}. The difference has a standard error of {best.standard_error:.3f} over "
        f"{best.n} paired seeds{verdict}."
    )


def length_headline(points: Sequence[LengthPoint]) -> str:
    """Say what happens to rope past its trained length, and which scaling repairs most.

    Args:
        points: All points of a comparison; empty where rope was not measured past its length.
    """
    past = [
        point
        for point in points
        if point.encoding == SUBJECT and point.change is not None and point.ratio > 1
    ]
    if not past:
        return ""
    longest = max(point.ratio for point in past)
    shown = {point.scaling: _change(point) for point in past if point.ratio == longest}
    parts = []
    if "none" in shown:
        parts.append(f"by {shown.pop('none')} nats without scaling")
    parts += [f"by {change} nats with {rule} scaling" for rule, change in shown.items()]
    return (
        f"At {longest:g} times its trained length the loss of {SUBJECT} on the same masked tokens "
        f"changes {', '.join(parts)}."
    )


def _change(point: LengthPoint) -> str:
    error = point.change_standard_error
    shown = "" if error is None else f" ± {error:.2f}"
    return f"{point.change:+.2f}{shown}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
