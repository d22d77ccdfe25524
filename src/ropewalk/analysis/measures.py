"""The one place where losses, accuracies and their uncertainties are defined, above the models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ropewalk.errors import ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

IGNORED_LABEL = -100
"""The label of a token that is not predicted, as in torch and transformers."""


@dataclass(frozen=True)
class MaskedLMScore:
    """Sums over predicted tokens; adding scores weighs every token alike, whatever its batch.

    Averaging the means of batches would weigh a token of a sparsely masked batch more than
    others. Every figure of an empty score is NaN: nothing was measured.

    Args:
        nll_sum: Sum of the negative log-likelihoods, in nats.
        correct: Number of predicted tokens whose most probable candidate is the right one.
        count: Number of predicted tokens.

    Example:
        >>> score = MaskedLMScore(6.0, 1, 2) + MaskedLMScore(2.0, 1, 2)
        >>> score.loss, score.accuracy
        (2.0, 0.5)
    """

    nll_sum: float
    correct: int
    count: int

    def __add__(self, other: MaskedLMScore) -> MaskedLMScore:
        return MaskedLMScore(
            self.nll_sum + other.nll_sum, self.correct + other.correct, self.count + other.count
        )

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of a predicted token, in nats."""
        return self.nll_sum / self.count if self.count else math.nan

    @property
    def accuracy(self) -> float:
        """Share of predicted tokens whose most probable candidate is the right one, 0 to 1."""
        return self.correct / self.count if self.count else math.nan

    @property
    def perplexity(self) -> float:
        """Exponential of the loss; infinite where that overflows."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def bits(self) -> float:
        """The loss in bits per predicted token."""
        return self.loss / math.log(2.0)


def masked_lm_sums(logits: Tensor, labels: Tensor) -> MaskedLMScore:
    r"""Return the sums over the predicted tokens of a batch.

    .. math:: -\sum_{t:\, y_t \ne -100} \log \operatorname{softmax}(z_t)_{y_t}

    Args:
        logits: ``(..., vocab)``, any floating dtype; the softmax is taken in float32 or better.
        labels: ``(...)`` integers, the right token or -100 where nothing is predicted.

    Returns:
        The score; the sum itself is accumulated in float64.

    Raises:
        ShapeError: The shapes do not belong together.

    Example:
        >>> import torch
        >>> score = masked_lm_sums(torch.zeros(1, 3, 4), torch.tensor([[2, -100, 0]]))
        >>> round(score.perplexity, 3), score.count
        (4.0, 2)
    """
    import torch  # here, so that measures of rotations do without

    if logits.shape[:-1] != labels.shape:
        raise ShapeError(
            "labels must have the shape of logits without its last dimension; got "
            f"{tuple(labels.shape)} for logits of {tuple(logits.shape)}"
        )
    chosen = labels != IGNORED_LABEL
    targets = labels[chosen]
    rows = logits[chosen]
    rows = rows if rows.dtype == torch.float64 else rows.float()
    log_likelihoods = rows.log_softmax(-1).gather(-1, targets[:, None])
    correct = (rows.argmax(-1) == targets).sum()
    # On the host, since some devices have no float64.
    total = -log_likelihoods.cpu().double().sum()
    return MaskedLMScore(float(total), int(correct), int(targets.numel()))


def steps_to_reach(history: Iterable[tuple[int, float]], target_loss: float) -> int | None:
    """Return the first measured step whose loss is at or below a target.

    Args:
        history: (step, loss) in the order of the steps.
        target_loss: The loss to reach, in the same unit.

    Returns:
        The step, or None if no measured step reached it. Losses between two measurements are not
        guessed, so the answer is as coarse as the history.

    Example:
        >>> steps_to_reach([(100, 5.0), (200, 4.0), (300, 3.5)], target_loss=4.2)
        200
    """
    return next((step for step, loss in history if loss <= target_loss), None)


class PairedDifference(NamedTuple):
    """A mean difference over matched runs and how uncertain it is."""

    mean: float
    """Mean of a - b."""
    standard_error: float
    """Standard error of that mean; NaN for a single pair."""
    n: int
    """Number of pairs."""


def paired_difference(a: Sequence[float], b: Sequence[float]) -> PairedDifference:
    r"""Return the mean of ``a - b`` over matched measurements, with its standard error.

    .. math:: \bar d = \frac1n \sum_i (a_i - b_i), \qquad
              s = \sqrt{\frac{\sum_i (d_i - \bar d)^2}{n (n - 1)}}

    What the members of a pair share (seed, data order, initial weights) cancels, so the error is
    smaller than that of the difference of two independent means.

    Args:
        a: One measurement per pair.
        b: The other measurement of each pair, in the same order.

    Raises:
        ShapeError: The lengths differ, or there is no pair.

    Example:
        >>> paired_difference([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).mean
        -2.0
    """
    if len(a) != len(b) or not a:
        raise ShapeError(f"a and b must be of one length, at least 1; got {len(a)} and {len(b)}")
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    n = len(differences)
    spread = float(differences.std(ddof=1)) if n > 1 else math.nan
    return PairedDifference(float(differences.mean()), spread / math.sqrt(n), n)


def ratio_standard_error(nll_sums: ArrayLike, counts: ArrayLike) -> float:
    r"""Return the standard error of a loss whose tokens come in groups, such as windows of text.

    .. math:: L = \frac{\sum_g x_g}{\sum_g c_g}, \qquad
              s = \frac{1}{\sum_g c_g} \sqrt{\frac{G}{G - 1} \sum_g (x_g - L c_g)^2}

    Tokens of one text are alike; treating them as independent would promise too much.

    Args:
        nll_sums: Sum of the losses of each group, ``(groups,)``, nats.
        counts: Number of predicted tokens of each group, ``(groups,)``.

    Returns:
        Nats; NaN for fewer than two groups or no tokens.

    Raises:
        ShapeError: The two are not vectors of one length.

    References:
        Cochran, 1977, "Sampling Techniques", chapter 6 (ratio estimator).

    Example:
        >>> ratio_standard_error([2.0, 4.0], [1, 1])
        1.0
    """
    sums = np.asarray(nll_sums, dtype=np.float64)
    sizes = np.asarray(counts, dtype=np.float64)
    if sums.ndim != 1 or sums.shape != sizes.shape:
        raise ShapeError(
            f"nll_sums and counts must be vectors of one length; got {sums.shape}, {sizes.shape}"
        )
    groups, total = len(sums), float(sizes.sum())
    if groups < 2 or not total:
        return math.nan
    residuals = sums - sums.sum() / total * sizes
    return float(np.sqrt(groups / (groups - 1) * np.square(residuals).sum()) / total)
