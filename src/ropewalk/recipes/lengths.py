"""One checkpoint at several lengths: does it read past its training, and what repairs it?

Every length predicts the same masked tokens of the same windows, with more or less of the text
around them; so what changes is the context alone, not the difficulty of the text.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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

Status = Literal["measured", "not measured", "not possible"]
"""Whether there is a loss; "not possible" for every text, or "not measured" for lack of one."""
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
        standard_error: Of the loss, over documents.
        change: Loss minus that of the unscaled model at the trained length on the same tokens;
            None if that was not measured.
        change_standard_error: Of the change, over documents.
        accuracy: Share of the masked tokens predicted right, 0 to 1.
        tokens: Number of masked tokens.
        windows: Number of windows of text they are in.
        documents: Number of documents that the windows are from.
        status: Whether there is a loss, and if not, whether there could be one.
        note: Why there is none, otherwise empty.
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
    documents: int = 0
    status: Status = "measured"
    note: str = ""


@dataclass(frozen=True, eq=False)
class LengthTask:
    """The windows of text that every model is evaluated on.

    Args:
        windows: Windows of the longest context that the text has.
        documents: For each window, the number of its document among those used, from 0.
        contexts: Multiple of the trained length to context in tokens, ascending; those that
            ``windows`` can hold.
        missing: The others.
        tokenizer: The tokenizer.
        mask_probability: Share of the tokens to predict.
        whole_word: Whether the tokens of a word are hidden together.
    """

    windows: PackedBlocks | None
    documents: NDArray[np.int64]
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
    """Cut the windows for the longest context that at least two documents have.

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
    kept = np.zeros(0, dtype=np.int64)
    while ascending and windows is None:
        ratio, context = list(ascending.items())[-1]
        try:
            found, numbers = long_windows(documents, tokenizer, length=context)
        except DataError:
            found, numbers = None, np.zeros(0, dtype=np.int32)
        # The windows of one document have no standard error: they are no independent samples.
        if found is None or len(np.unique(numbers)) < 2:
            missing[ratio] = ascending.pop(ratio)
        else:
            rows = _spread_rows(len(found), MOST_WINDOWS)
            windows = spread(found, MOST_WINDOWS)
            kept = np.unique(numbers[rows], return_inverse=True)[1].astype(np.int64)
    return LengthTask(
        windows=windows,
        documents=kept,
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
            known[rule, ratio] = _Sums.of(reader, rows, task.documents, precision)
    points = []
    for rule in rules:
        for ratio, context in sorted([*task.contexts.items(), *task.missing.items()]):
            status: Status = "measured"
            note = ""
            if ratio in task.missing:
                status, note = "not measured", f"fewer than two held-out texts of {context} tokens"
            elif encoding == "learned" and context > trained:
                status, note = "not possible", f"past the {trained} learned positions"
            # A factor of 1 changes nothing, and text within the trained length needs none.
            sums = known.get((rule if ratio > 1 else "none", ratio))
            point = LengthPoint(encoding, rule, ratio, context, status=status, note=note)
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
    rows = _spread_rows(len(blocks), most)
    return PackedBlocks(*(array[rows] for array in vars(blocks).values()))


def _spread_rows(count: int, most: int) -> NDArray[np.int64]:
    """Return the numbers of at most so many rows, the first and the last among them."""
    if not 0 < most < count:
        return np.arange(count)
    return np.linspace(0, count - 1, most).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the masked tokens of each document."""

    nll: NDArray[np.float64]
    counts: NDArray[np.float64]
    total: MaskedLMScore
    windows: int

    @classmethod
    def of(
        cls,
        model: RoFormerForMaskedLM,
        rows: MaskedLanguageModeling,
        documents: NDArray[np.int64],
        precision: str,
    ) -> _Sums:
        scores = [
            evaluate(model, Subset(rows, [row]), batch_size=1, precision=precision)
            for row in range(len(rows))
        ]
        return cls(
            np.bincount(documents, [score.nll_sum for score in scores]).astype(np.float64),
            np.bincount(documents, [float(score.count) for score in scores]).astype(np.float64),
            sum(scores, start=MaskedLMScore(0.0, 0, 0)),
            len(scores),
        )

    def fill(self, point: LengthPoint, reference: _Sums | None) -> LengthPoint:
        change = error = None
        if reference is not None:
            change = _number(self.total.loss - reference.total.loss)
            # Same tokens on both sides: what makes a document hard cancels.
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
            windows=self.windows,
            documents=len(self.counts),
        )


def _number(value: float) -> float | None:
    """Return a number that JSON has, or None."""
    return value if math.isfinite(value) else None
