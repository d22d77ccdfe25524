"""What a training run gives: losses along the way, evaluations, time and tokens."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar, get_type_hints

Point = TypeVar("Point")


@dataclass(frozen=True)
class TrainingPoint:
    """What one stretch of training steps gave.

    Args:
        step: Last step of the stretch, counted from 1.
        loss: Mean of the steps' losses, nats per masked token.
        learning_rate: That of the last step.
    """

    step: int
    loss: float
    learning_rate: float


@dataclass(frozen=True)
class EvaluationPoint:
    """What one evaluation gave.

    Args:
        step: Steps trained before it.
        loss: Mean over the masked tokens of the whole set, nats.
        accuracy: Share of them predicted right, 0 to 1.
        tokens: Number of masked tokens.
    """

    step: int
    loss: float
    accuracy: float
    tokens: int


@dataclass(frozen=True)
class TrainingResult:
    """What a finished run gave.

    Args:
        history: Training losses in the order of the steps.
        evaluations: Evaluations in the order of the steps, the last one after the last step.
        steps: Steps trained.
        tokens: Tokens read by them, padding and special tokens included.
        seconds: Time they took, over all parts of an interrupted run, without evaluating and
            saving.
    """

    history: tuple[TrainingPoint, ...]
    evaluations: tuple[EvaluationPoint, ...]
    steps: int
    tokens: int
    seconds: float

    @property
    def evaluation(self) -> EvaluationPoint | None:
        """The evaluation after the last step; None without an evaluation set."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def tokens_per_second(self) -> float:
        """Tokens read per second of training."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dictionaries and numbers, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, table: Any) -> TrainingResult:
        """Build a result from what :meth:`to_dict` returned.

        Args:
            table: The dictionary, possibly by way of JSON.

        Raises:
            TypeError: It is not such a dictionary.
        """
        if not isinstance(table, dict):
            raise TypeError(f"a result must be a table; got {type(table).__name__}")
        history = _points(TrainingPoint, table.get("history"))
        evaluations = _points(EvaluationPoint, table.get("evaluations"))
        plain = _checked(cls, {**table, "history": history, "evaluations": evaluations})
        return cls(**plain)

    @classmethod
    def from_log(
        cls, log: list[dict[str, Any]], *, steps: int, tokens: int, seconds: float
    ) -> TrainingResult:
        """Build a result from the history that transformers' ``Trainer`` keeps.

        Args:
            log: Its entries.
            steps: Steps trained.
            tokens: Tokens read by them.
            seconds: Time they took.
        """
        history = tuple(
            TrainingPoint(entry["step"], entry["loss"], entry["learning_rate"])
            for entry in log
            if "loss" in entry
        )
        evaluations = tuple(
            EvaluationPoint(
                entry["step"], entry["eval_loss"], entry["eval_accuracy"], entry["eval_tokens"]
            )
            for entry in log
            if "eval_loss" in entry
        )
        return cls(history, evaluations, steps, tokens, seconds)


def _points(kind: type[Point], rows: object) -> tuple[Point, ...]:
    if not isinstance(rows, list | tuple):
        raise TypeError(f"a history must be a list; got {type(rows).__name__}")
    return tuple(kind(**_checked(kind, row)) for row in rows)


def _checked(kind: type, row: Any) -> dict[str, Any]:
    """Return the fields of a dataclass after a look at the type of each."""
    if not isinstance(row, dict) or row.keys() != {field.name for field in fields(kind)}:
        raise TypeError(f"a {kind.__name__} has other fields; got {row!r:.80}")
    for name, hint in get_type_hints(kind).items():
        value = row[name]
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        number = whole or (isinstance(value, float) and math.isfinite(value))
        if (hint is int and not whole) or (hint is float and not number):
            raise TypeError(f"{name} must be a number; got {value!r:.80}")
    return row
