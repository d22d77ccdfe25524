from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ropewalk.analysis import (
    MaskedLMScore,
    masked_lm_sums,
    paired_difference,
    ratio_standard_error,
    steps_to_reach,
)
from ropewalk.errors import ShapeError


def test_masked_lm_sums_of_a_case_worked_by_hand():
    # Two predicted tokens: p(right) = 3/4 (and most probable) and 1/4 (and not).
    logits = torch.log(torch.tensor([[[3.0, 1.0], [5.0, 5.0], [3.0, 1.0]]]))
    score = masked_lm_sums(logits, torch.tensor([[0, -100, 1]]))
    assert score.count == 2
    assert score.correct == 1
    assert score.nll_sum == pytest.approx(math.log(4 / 3) + math.log(4), abs=1e-6)  # float32
    assert score.accuracy == 0.5
    assert score.perplexity == pytest.approx(math.exp(score.loss))
    assert score.bits == pytest.approx(score.loss / math.log(2))


def test_masked_lm_sums_agree_with_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 11, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 11, (3, 7), generator=generator)
    labels[torch.rand(3, 7, generator=generator) < 0.6] = -100
    score = masked_lm_sums(logits, labels)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert score.loss == pytest.approx(float(expected), rel=1e-14)  # float64 throughout


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masked_lm_sums_of_low_precision_logits_are_taken_in_float32(dtype):
    logits = (torch.randn(1, 50, 300, generator=torch.Generator().manual_seed(1)) * 5).to(dtype)
    labels = torch.arange(50)[None] * 3
    score = masked_lm_sums(logits, labels)
    exact = masked_lm_sums(logits.double(), labels)
    assert score.loss == pytest.approx(exact.loss, rel=1e-6)  # a few float32 roundings
    assert score.correct == exact.correct


def test_empty_score_is_not_a_number_and_does_not_disturb_a_sum():
    empty = masked_lm_sums(torch.zeros(2, 3, 5), torch.full((2, 3), -100))
    assert (empty.nll_sum, empty.correct, empty.count) == (0.0, 0, 0)
    assert all(math.isnan(x) for x in (empty.loss, empty.accuracy, empty.perplexity, empty.bits))
    assert empty + MaskedLMScore(3.0, 1, 2) == MaskedLMScore(3.0, 1, 2)


def test_perplexity_of_a_hopeless_model_is_infinite():
    assert MaskedLMScore(1e6, 0, 1).perplexity == math.inf


def test_scores_of_unequal_batches_weigh_every_token_alike():
    a, b = MaskedLMScore(10.0, 0, 1), MaskedLMScore(9.0, 9, 9)
    assert (a + b).loss == 1.9  # the mean of the two batch means would be 5.5
    assert (a + b).accuracy == 0.9


def test_masked_lm_sums_refuse_labels_of_another_shape():
    with pytest.raises(ShapeError, match=r"got \(2, 4\) for logits of \(2, 3, 5\)"):
        masked_lm_sums(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.long))


def test_steps_to_reach_takes_the_first_measured_step_and_none_if_never():
    history = [(10, 3.0), (20, 2.0), (30, 2.5), (40, 1.0)]
    assert steps_to_reach(history, 2.2) == 20
    assert steps_to_reach(history, 2.0) == 20
    assert steps_to_reach(history, 0.9) is None
    assert steps_to_reach([], 1.0) is None


def test_paired_difference_of_a_case_worked_by_hand():
    # Differences -1, -2, -3: mean -2, standard deviation 1, standard error 1 / sqrt(3).
    result = paired_difference([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert result == pytest.approx((-2.0, 1 / math.sqrt(3), 3), rel=1e-15)


def test_paired_difference_of_one_pair_has_no_standard_error():
    result = paired_difference([1.0], [4.0])
    assert (result.mean, result.n) == (-3.0, 1)
    assert math.isnan(result.standard_error)


def test_paired_difference_refuses_unequal_or_empty_samples():
    with pytest.raises(ShapeError, match="got 2 and 1"):
        paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ShapeError, match="got 0 and 0"):
        paired_difference([], [])


def test_ratio_standard_error_of_equal_groups_is_that_of_their_means():
    means = np.array([1.0, 3.0, 2.0, 6.0])
    expected = means.std(ddof=1) / 2
    assert ratio_standard_error(means * 5, np.full(4, 5)) == pytest.approx(expected, rel=1e-14)


def test_ratio_standard_error_covers_the_truth_as_often_as_it_should():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        counts = rng.integers(5, 40, 60)
        levels = rng.normal(4.0, 0.5, 60)  # tokens of one group share a level
        sums = levels * counts + rng.normal(0.0, np.sqrt(counts))
        error = ratio_standard_error(sums, counts)
        hits += abs(sums.sum() / counts.sum() - 4.0) < 1.96 * error
    # 95 % nominal; 400 draws have a standard error of 1.1 points, so 3.3 points either side.
    assert 0.917 <= hits / 400 <= 0.983


def test_ratio_standard_error_of_too_little_is_not_a_number():
    assert math.isnan(ratio_standard_error([3.0], [2]))
    assert math.isnan(ratio_standard_error([0.0, 0.0], [0, 0]))
    with pytest.raises(ShapeError, match=r"got \(2,\), \(3,\)"):
        ratio_standard_error([1.0, 2.0], [1, 2, 3])
