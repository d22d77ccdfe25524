import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import NTK, ConfigError, DynamicNTK, LongRope, RopeSpec


def test_dynamic_ntk_by_hand():
    # d = 4, theta = 100, n = 2 L, s = 2: 100 * (2 * 2 - 1)^(4/2) = 900, so 1 and 1/30
    spec = RopeSpec(4, "half", theta=100.0, scaling=DynamicNTK(2.0, 64))
    np.testing.assert_allclose(spec.inv_freq(128), [1.0, 1 / 30], rtol=1e-15)
    np.testing.assert_array_equal(spec.inv_freq(64), spec.replace(scaling=None).inv_freq())


@pytest.mark.parametrize(("factor", "want"), [(1.0, 4.0), (2.0, 7.0), (4.0, 13.0)])
def test_factor_of_dynamic_ntk_is_not_the_ratio_of_lengths(factor, want):
    # at four times the trained length; asked in jquesnelle/yarn#53
    spec = RopeSpec(128, "half", scaling=DynamicNTK(factor, 4096))
    ratio = spec.replace(scaling=None).inv_freq() / spec.inv_freq(4 * 4096)
    assert spec.scaling.ntk_factor(4 * 4096) == want
    assert ratio[-1] == pytest.approx(want, rel=1e-12)
    assert ratio[0] == 1.0


@given(st.floats(0.1, 64.0), st.integers(1, 4096))
def test_rows_within_the_trained_length_are_not_changed(factor, length):
    # vllm-project/vllm#52665: a ratio below 1 must not enter the formula
    spec = RopeSpec(64, "half", scaling=DynamicNTK(factor, 4096))
    plain = spec.replace(scaling=None)
    np.testing.assert_array_equal(spec.inv_freq(length), plain.inv_freq())


def test_alpha_is_static_ntk():
    spec = RopeSpec(128, "half", scaling=DynamicNTK(alpha=1000.0))
    assert not spec.depends_on_length
    want = 1.0 / (1e4 * 1000.0 ** (128 / 126)) ** (np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose(spec.inv_freq(), want, rtol=1e-13)
    np.testing.assert_array_equal(
        spec.inv_freq(), spec.replace(scaling=NTK(1000.0)).inv_freq(seq_len=3)
    )


@pytest.mark.parametrize(
    "arguments",
    [{}, {"factor": 2.0}, {"original_max_position_embeddings": 64}, {"alpha": 2.0, "factor": 1.0}],
)
def test_dynamic_ntk_is_either_of_its_forms(arguments):
    with pytest.raises(ConfigError, match="needs factor and original_max_position_embeddings, or"):
        DynamicNTK(**arguments)


SHORT, LONG = (1.0, 2.0), (4.0, 8.0)


def test_longrope_takes_the_long_list_beyond_the_trained_length_only():
    # unslothai/unsloth#10681: short at exactly the original length
    spec = RopeSpec(4, "half", theta=100.0, scaling=LongRope(SHORT, LONG, 64, factor=8.0))
    np.testing.assert_allclose(spec.inv_freq(64), [1.0, 0.05], rtol=1e-15)
    np.testing.assert_allclose(spec.inv_freq(65), [0.25, 0.0125], rtol=1e-15)
    np.testing.assert_array_equal(spec.inv_freq(1), spec.inv_freq(64))
    np.testing.assert_array_equal(spec.inv_freq(10**9), spec.inv_freq(65))


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        (LongRope(SHORT, LONG, 64, factor=8.0), 1.2247449),  # sqrt(1 + ln 8 / ln 64)
        (LongRope(SHORT, LONG, 4096, factor=32.0), 1.190238),  # Phi-3-mini-128k
        (LongRope(SHORT, LONG, 4096, factor=1.0), 1.0),
        (LongRope(SHORT, LONG, 1, factor=0.5), 1.0),
        (LongRope(SHORT, LONG, 64, factor=8.0, attention_factor=1.0), 1.0),
        (LongRope(SHORT, LONG, 64, attention_factor=1.5), 1.5),
    ],
)
def test_longrope_attention_factor_is_the_same_for_both_lists(rule, want):
    for length in (None, 64, 65):
        assert rule.amplitude(length) == pytest.approx(want, rel=1e-6)


def test_mscales_go_with_the_lists():
    spec = RopeSpec(
        4, "half", scaling=LongRope(SHORT, LONG, 64, short_mscale=1.25, long_mscale=1.5)
    )
    assert spec.attention_factor([1, 64, 65]).tolist() == [1.25, 1.25, 1.5]
    with pytest.raises(ConfigError, match="seq_len must be given for scaling=LongRope"):
        spec.attention_factor()
    switch = LongRope(SHORT, SHORT, 64, short_mscale=1.0, long_mscale=1.5)  # as Phi-3.5-MoE runs
    assert switch.depends_on_length
    assert switch.inv_freq(spec.ladder, None).shape == (2,)


def test_equal_lists_need_no_length():
    rule = LongRope(LONG, LONG, 64, attention_factor=1.0)
    spec = RopeSpec(4, "half", theta=100.0, scaling=rule)
    assert not spec.depends_on_length
    np.testing.assert_allclose(spec.inv_freq(), [0.25, 0.0125], rtol=1e-15)
    assert math.isclose(spec.attention_factor(), 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"needs factor or attention_factor; got neither"),
        ({"short_factor": (1.0,), "factor": 2.0}, r"one entry per pair each; got 1 and 2"),
        ({"short_factor": 1.0, "factor": 2.0}, r"short_factor must be a sequence .*got 1\.0"),
        ({"long_factor": (1.0, 0.0), "factor": 2.0}, r"long_factor\[1\] must be .*got 0\.0"),
        ({"long_factor": (1.0, "a"), "factor": 2.0}, r"long_factor\[1\] must be .*got 'a'"),
        ({"long_factor": (1.0, math.inf), "factor": 2.0}, r"long_factor\[1\] must be .*got inf"),
        ({"short_mscale": 1.0}, r"given together; got short_mscale=1\.0, long_mscale=None"),
        (
            {"attention_factor": 1.0, "short_mscale": 1.0, "long_mscale": 1.0},
            r"beside short_mscale and long_mscale.*got attention_factor=1\.0",
        ),
        ({"factor": 2.0, "original_max_position_embeddings": 1}, r"at least 2 .*got 1"),
    ],
)
def test_bad_longrope_is_refused_with_its_value(arguments, message):
    defaults = {
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 64,
    }
    with pytest.raises(ConfigError, match=message):
        LongRope(**(defaults | arguments))


def test_lists_must_have_one_entry_per_pair():
    with pytest.raises(ConfigError, match=r"each of the 4 pairs; got 2"):
        RopeSpec(8, "half", scaling=LongRope(SHORT, LONG, 64, factor=2.0))
