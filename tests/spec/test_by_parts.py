import math

import numpy as np
import pytest

from ropewalk import ConfigError, Llama3, RopeSpec, Yarn


def ratio(spec):
    return spec.inv_freq() / spec.replace(scaling=None).inv_freq()


def test_llama3_has_the_frequencies_of_llama_3_1():
    spec = RopeSpec(128, "half", theta=5e5, scaling=Llama3(8.0, 8192, 1.0, 4.0))
    want = {
        0: 1.0,
        28: 3.211446e-3,
        29: 2.1665708e-3,
        32: 5.2484616e-4,
        35: 9.5562124e-5,
        40: 3.4281022e-5,
        63: 3.068926e-7,
    }
    for pair, value in want.items():
        assert spec.inv_freq()[pair] == pytest.approx(value, rel=2e-7)
    assert (ratio(spec) == 1.0).sum() == 29
    assert np.isclose(ratio(spec), 1 / 8, rtol=1e-14).sum() == 29
    assert spec.attention_factor() == 1.0


def test_llama3_by_hand():
    # wavelengths 2 pi, 4 pi, 8 pi, 16 pi make 3.98, 1.99, 0.995, 0.497 turns in 25 positions:
    # the first two lie between 1 and 4, the others below
    spec = RopeSpec(8, "half", theta=16.0, scaling=Llama3(10.0, 25, 1.0, 4.0))
    kept = [(25 / (2 * math.pi) - 1) / 3, (25 / (4 * math.pi) - 1) / 3]
    want = [1 - 0.9 * (1 - kept[0]), 0.5 * (1 - 0.9 * (1 - kept[1])), 0.025, 0.0125]
    np.testing.assert_allclose(spec.inv_freq(), want, rtol=1e-15)


def test_yarn_on_the_papers_ramp_is_llama3():
    paper = Yarn(8.0, 8192, beta_fast=4.0, beta_slow=1.0, ramp="paper")
    a = RopeSpec(128, "half", theta=5e5, scaling=paper)
    b = a.replace(scaling=Llama3(8.0, 8192, 1.0, 4.0))
    np.testing.assert_array_equal(a.inv_freq(), b.inv_freq())
    assert a.attention_factor() == pytest.approx(0.1 * math.log(8) + 1, rel=1e-15)


def test_yarn_by_hand():
    # d = 8, theta = 16: c(R) = log2(L / 2 pi R); L = 2010: c(128) = 1.32, c(64) = 2.32,
    # so the ramp runs from pair 1 to pair 3, and pair 2 stands half way: (1 + 1/4) / 2
    spec = RopeSpec(8, "half", theta=16.0, scaling=Yarn(4.0, 2010, beta_fast=128, beta_slow=64))
    assert spec.scaling.correction_range(spec.ladder) == (1.0, 3.0)
    np.testing.assert_allclose(spec.inv_freq(), [1.0, 0.5, 0.25 * 0.625, 0.125 / 4], rtol=1e-15)
    smooth = spec.replace(scaling=Yarn(4.0, 2010, beta_fast=128, beta_slow=64, truncate=False))
    low = math.log2(2010 / (2 * math.pi * 128))
    assert smooth.scaling.correction_range(smooth.ladder) == pytest.approx((low, low + 1))
    share = 2 - low
    np.testing.assert_allclose(ratio(smooth), [1, 1, 1 - share * 0.75, 0.25], rtol=1e-14)
    paper = spec.replace(
        scaling=Yarn(4.0, 2010, beta_fast=128, beta_slow=64, ramp="paper", attention_factor=2.0)
    )
    kept = (2010 / (8 * math.pi) - 64) / 64  # pair 2 makes 80 turns
    np.testing.assert_allclose(ratio(paper), [1, 1, kept + (1 - kept) / 4, 0.25], rtol=1e-14)
    assert paper.attention_factor() == 2.0


@pytest.mark.parametrize(
    ("head_dim", "theta", "rule", "span", "values"),
    [
        (  # Qwen2.5-7B
            128,
            1e6,
            Yarn(4.0, 32768),
            (23, 40),
            {
                22: 8.6596432e-3,
                24: 5.3753215e-3,
                30: 1.064361e-3,
                39: 6.4903943e-5,
                63: 3.1023444e-7,
            },
        ),
        (  # SmolLM2-135M
            64,
            1e5,
            Yarn(4.0, 8192),
            (10, 20),
            {9: 3.9241898e-2, 12: 1.1334932e-2, 15: 2.8322398e-3, 31: 3.5825314e-6},
        ),
        (128, 1e4, Yarn(16.0, 4096), (20, 46), {0: 1.0}),  # Llama-2-7B
        (64, 1.5e5, Yarn(32.0, 4096), (8, 18), {0: 1.0}),  # gpt-oss, if it truncated
    ],
)
def test_yarn_has_the_known_frequencies(head_dim, theta, rule, span, values):
    spec = RopeSpec(head_dim, "half", theta=theta, scaling=rule)
    assert rule.correction_range(spec.ladder) == span
    for pair, value in values.items():
        assert spec.inv_freq()[pair] == pytest.approx(value, rel=2e-7)


def test_truncation_changes_gpt_oss():
    # vllm-project/vllm#28244: 8.0928 to 17.3980; rounding changes pair 17 by 43 %
    smooth = RopeSpec(64, "half", theta=1.5e5, scaling=Yarn(32.0, 4096, truncate=False))
    low, high = smooth.scaling.correction_range(smooth.ladder)
    assert (low, high) == pytest.approx((8.0928, 17.3980), abs=5e-5)
    rounded = smooth.replace(scaling=Yarn(32.0, 4096))
    assert smooth.inv_freq()[17] / rounded.inv_freq()[17] == pytest.approx(1 - 0.43, abs=5e-3)


def test_ramps_of_code_and_paper_differ_threefold_for_llama_2():
    code = RopeSpec(128, "half", scaling=Yarn(16.0, 4096))
    paper = code.replace(scaling=Yarn(16.0, 4096, ramp="paper"))
    assert (code.inv_freq() / paper.inv_freq()).max() == pytest.approx(3.04, abs=5e-3)


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        (Yarn(40.0, 4096), 1.36889),
        (Yarn(32.0, 4096), 1.3465736),
        (Yarn(4.0, 32768), 1.1386294),
        (Yarn(2.0, 32768), 1.0693147),
        (Yarn(0.5, 32768), 1.0),
        (Yarn(16.0, 4096, mscale=1.0, mscale_all_dim=1.0), 1.0),
        (Yarn(40.0, 4096, mscale=0.707, mscale_all_dim=0.0), 1.2608038),
        (Yarn(40.0, 4096, mscale=0.707, mscale_all_dim=0.707), 1.0),
        (Yarn(40.0, 4096, mscale=0.707), 1.2608038),
        (Yarn(40.0, 4096, mscale_all_dim=1.0), 1.0),
        (Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=0.5, attention_factor=1.5), 1.5),
        (Yarn(40.0, 4096, attention_factor=1.0), 1.0),
    ],
)
def test_yarn_attention_factor(rule, want):
    assert rule.amplitude(None) == pytest.approx(want, rel=5e-7, abs=5e-6)
    # gpt-oss: logits get the square of 1.3466
    assert Yarn(32.0, 4096).amplitude(None) ** 2 == pytest.approx(1.8133, abs=5e-5)


def test_factor_on_the_softmax_scale_is_another_number_than_the_amplitude():
    # DeepSeek-V3: table 1.0, scores times (0.1 ln 40 + 1)^2
    rule = Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert rule.amplitude(None) == 1.0
    assert rule.softmax_scale_factor() == pytest.approx(1.3688879**2, rel=1e-7)
    assert Yarn(40.0, 4096, attention_factor=1.3).softmax_scale_factor() == 1.0


def test_partial_rotation_measures_the_ramp_in_the_rotated_width():
    # d in c(R) is the rotary width, as the ladder's exponent
    spec = RopeSpec(128, "half", rotary_dim=64, theta=1e5, scaling=Yarn(4.0, 8192))
    assert spec.scaling.correction_range(spec.ladder) == (10.0, 20.0)


@pytest.mark.parametrize(
    ("theta", "trained", "want"),
    [
        (1e4, 2, [1.0, 0.25, 0.25, 0.25]),  # nothing completes a turn, yet pair 0 stays
        (2.0, 1_000_000, [1.0, 1.0, 1.0, 1.0]),  # everything turns more than beta_fast times
    ],
)
def test_ramp_without_room_is_a_step_and_never_runs_backwards(theta, trained, want):
    spec = RopeSpec(8, "half", theta=theta, scaling=Yarn(4.0, trained))
    np.testing.assert_allclose(ratio(spec), want, rtol=1e-15)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Yarn(4.0, 0), r"original_max_position_embeddings must be .*got 0"),
        (lambda: Yarn(4.0, 4096.0), r"original_max_position_embeddings must be .*got 4096\.0"),
        (lambda: Yarn(4.0, 10**30), r"original_max_position_embeddings must be at most"),
        (lambda: Yarn(4.0, 64, beta_fast=1, beta_slow=32), r"got beta_fast=1\.0, beta_slow=32\.0"),
        (lambda: Yarn(4.0, 64, beta_fast=2, beta_slow=2), r"beta_fast must be greater"),
        (lambda: Yarn(4.0, 64, beta_slow=0), r"beta_slow must be .*got 0"),
        (lambda: Yarn(4.0, 64, mscale=-1.0), r"mscale must be .*of at least 0; got -1\.0"),
        (lambda: Yarn(1e200, 64, mscale=1e308), r"factor finite; got mscale=1e\+308"),
        (lambda: Yarn(4.0, 64, attention_factor=0), r"attention_factor must be .*got 0"),
        (lambda: Yarn(4.0, 64, truncate=1), r"truncate must be True or False; got 1"),
        (lambda: Yarn(4.0, 64, ramp="linear"), r"ramp must be one of .*got 'linear'"),
        (lambda: Llama3(8.0, 64, 4.0, 1.0), r"got high_freq_factor=1\.0, low_freq_factor=4\.0"),
        (lambda: Llama3(8.0, 64, -1.0), r"low_freq_factor must be .*got -1\.0"),
        (lambda: Llama3(8.0, None), r"original_max_position_embeddings must be .*got None"),
    ],
)
def test_bad_setting_is_refused_with_its_value(build, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)
