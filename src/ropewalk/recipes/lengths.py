"""One checkpoint at several lengths: does it read past its training, and what repairs it?

Every length predicts the same masked tokens of the same windows, with more or less of the text
around them; so what changes is the context alone, not the difficulty of the text.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import nn
from torch.utils.data import Subset

from ropewalk.analysis.measures import MaskedLMScore, ratio_standard_error
from ropewalk.data import MaskedLanguageModeling, PackedBlocks, cut_windows, long_windows
from ropewalk.errors import ConfigError, DataError
from ropewalk.models import RoFormerForMaskedLM
from ropewalk.recipes.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerFast

MOST_WINDOWS = 128
"""Windows to evaluate at each length, spread evenly over those that the text has."""


@dataclass(frozen=True)
class LengthPoint:
    """What one model gave at one length.

    Args:
        encoding: Position encoding of the model.
        scaling: "none", or the rule that its rotation was scaled with.
        ratio: Context as a multiple of the trained length.
        length: Context in tokens.
        loss: Mean over the masked tokens, nats; None where the model cannot be evaluated.
        standard_error: Of the loss, over windows.
        change: Loss minus that of the unscaled model at the trained length on the same tokens;
            None if that was not measured.
        change_standard_error: Of the change, over windows.
        accuracy: Share of the masked tokens predicted right, 0 to 1.
        tokens: Number of masked tokens.
        windows: Number of windows of text they are in.
        note: Why there is no loss, otherwise empty.
    """

    encoding: str
    scaling: str
    ratio: float
    length: int
    loss: float | None = None
    standard_error: float | None = None
    change: float | None = None
    change_standard_error: float | None = None
    accuracy: float | None = None
    tokens: int = 0
    windows: int = 0
    note: str = ""


@dataclass(frozen=True, eq=False)
class LengthTask:
    """The windows of text that every model is evaluated on.

    Args:
        windows: Windows of the longest context that the text has.
        contexts: Multiple of the trained length to context in tokens, ascending; those that
            ``windows`` can hold.
        missing: The others.
        tokenizer: The tokenizer.
        mask_probability: Share of the tokens to predict.
        whole_word: Whether the tokens of a word are hidden together.
    """

    windows: PackedBlocks | None
    contexts: dict[float, int]
    missing: dict[float, int]
    tokenizer: PreTrainedTokenizerFast
    mask_probability: float
    whole_word: bool

    def rows(self, context: int) -> MaskedLanguageModeling:
        """Return the masked windows, cut to a context.

        Args:
            context: Tokens that the model sees at once.
        """
        assert self.windows is not None
        return MaskedLanguageModeling(
            cut_windows(self.windows, context),
            self.tokenizer,
            probability=self.mask_probability,
            whole_word=self.whole_word,
            seed=0,
        )


def length_task(
    documents: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    contexts: dict[float, int],
    *,
    mask_probability: float,
    whole_word: bool,
) -> LengthTask:
    """Cut the windows for the longest context that at least two windows of the text have.

    Args:
        documents: Held-out texts.
        tokenizer: The tokenizer.
        contexts: Multiple of the trained length to context in tokens.
        mask_probability: Share of the tokens to predict.
        whole_word: Whether the tokens of a word are hidden together.
    """
    ascending = dict(sorted(contexts.items()))
    missing: dict[float, int] = {}
    windows = None
    while ascending and windows is None:
        ratio, context = list(ascending.items())[-1]
        try:
            windows = long_windows(documents, tokenizer, length=context)
        except DataError:
            windows = None
        # One window has no standard error.
        if windows is None or len(windows) < 2:
            windows = None
            missing[ratio] = ascending.pop(ratio)
    return LengthTask(
        windows=None if windows is None else spread(windows, MOST_WINDOWS),
        contexts=ascending,
        missing=dict(sorted(missing.items())),
        tokenizer=tokenizer,
        mask_probability=mask_probability,
        whole_word=whole_word,
    )


def loss_by_length(
    model: RoFormerForMaskedLM,
    task: LengthTask,
    scalings: Sequence[str],
    *,
    precision: str = "fp32",
) -> list[LengthPoint]:
    """Evaluate one model at every length, a rotating one also with its rotation scaled.

    Args:
        model: The model; it is not changed.
        task: The windows.
        scalings: "none" and rules to scale with; only "none" means something to a model without
            a rotation. The factor is the length over the trained length, where that is above 1.
        precision: As in ``TrainingSettings``.

    Returns:
        One point for each rule and length, those that cannot be evaluated with a note.
    """
    encoding = model.config.position_encoding
    trained = model.config.max_position_embeddings
    rules = list(scalings) if encoding == "rope" else ["none"]
    known: dict[tuple[str, float], _Sums] = {}
    for ratio, context in task.contexts.items():
        if encoding == "learned" and context > trained:
            continue
        rows = task.rows(context)
        for rule in {"none", *rules} if ratio > 1 else {"none"}:
            reader = model if rule == "none" else scaled_copy(model, rule, ratio)
            known[rule, ratio] = _Sums.of(reader, rows, precision)
    points = []
    for rule in rules:
        for ratio, context in sorted([*task.contexts.items(), *task.missing.items()]):
            note = ""
            if ratio in task.missing:
                note = f"fewer than two held-out windows of {context} tokens"
            elif encoding == "learned" and context > trained:
                note = f"not possible: past the {trained} learned positions"
            # A factor of 1 changes nothing, and text within the trained length needs none.
            sums = known.get((rule if ratio > 1 else "none", ratio))
            point = LengthPoint(encoding, rule, ratio, context, note=note)
            points.append(point if sums is None else sums.fill(point, known.get(("none", 1.0))))
    return points


def scaled_copy(model: RoFormerForMaskedLM, rule: str, factor: float) -> RoFormerForMaskedLM:
    """Return a model with the same weights and a rotation that is scaled.

    Args:
        model: A model with an unscaled rotation; it is not changed.
        rule: "linear" or "ntk".
        factor: Factor of the rule, greater than 0.

    Raises:
        ConfigError: The model does not rotate, is scaled already, or the rule does not fit.
    """
    parameters = model.config.rope_parameters
    if parameters is None or parameters["rope_type"] != "default":
        raise ConfigError(
            f"model must have an unscaled rotation to be scaled by {rule!r}; "
            f"got rope_parameters={parameters!r}"
        )
    config = copy.deepcopy(model.config)
    config.rope_parameters = {**parameters, "rope_type": rule, "factor": factor}
    config.validate()
    scaled = RoFormerForMaskedLM(config)
    # Frequencies are no state, so the weights of one rotation fit any other.
    scaled.load_state_dict(model.state_dict())
    scaled.train(model.training)
    # mypy loses `self` of the decorated methods of PreTrainedModel.
    nn.Module.to(scaled, device=model.device, dtype=model.dtype)
    return scaled


def spread(blocks: PackedBlocks, most: int) -> PackedBlocks:
    """Return at most so many blocks, evenly spread over those given.

    Args:
        blocks: The blocks.
        most: How many; 0 means all.
    """
    if not 0 < most < len(blocks):
        return blocks
    rows = np.linspace(0, len(blocks) - 1, most).astype(int)
    return PackedBlocks(*(array[rows] for array in vars(blocks).values()))


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the masked tokens of each window."""

    nll: NDArray[np.float64]
    counts: NDArray[np.float64]
    total: MaskedLMScore

    @classmethod
    def of(cls, model: RoFormerForMaskedLM, rows: MaskedLanguageModeling, precision: str) -> _Sums:
        scores = [
            evaluate(model, Subset(rows, [row]), batch_size=1, precision=precision)
            for row in range(len(rows))
        ]
        return cls(
            np.array([score.nll_sum for score in scores]),
            np.array([float(score.count) for score in scores]),
            sum(scores, start=MaskedLMScore(0.0, 0, 0)),
        )

    def fill(self, point: LengthPoint, reference: _Sums | None) -> LengthPoint:
        change = error = None
        if reference is not None:
            change = _number(self.total.loss - reference.total.loss)
            # Same tokens on both sides: what makes a window hard cancels.
            error = _number(ratio_standard_error(self.nll - reference.nll, self.counts))
        return LengthPoint(
            point.encoding,
            point.scaling,
            point.ratio,
            point.length,
            loss=_number(self.total.loss),
            standard_error=_number(ratio_standard_error(self.nll, self.counts)),
            change=change,
            change_standard_error=error,
            accuracy=_number(self.total.accuracy),
            tokens=self.total.count,
            windows=len(self.counts),
        )


def _number(value: float) -> float | None:
    """Return a number that JSON has, or None."""
    return value if math.isfinite(value) else None
