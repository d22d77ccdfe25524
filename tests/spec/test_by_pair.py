import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import rotation_matrix

from ropewalk import (
    NTK,
    ConfigError,
    CustomFactors,
    Linear,
    PRope,
    Proportional,
    Resonance,
    RopeSpec,
    XPos,
    Yarn,
)


def test_custom_factors_divide_pair_by_pair_and_infinity_stops_one():
    rule = CustomFactors([1, 4, math.inf], attention_factor=1.5)
    spec = RopeSpec(6, "half", theta=1000.0, scaling=rule)
    np.testing.assert_allclose(spec.inv_freq(), [1.0, 0.025, 0.0], rtol=1e-14)
    assert spec.pairs().amplitude.tolist() == [1.5] * 3
    assert spec.wavelengths()[2] == math.inf


@given(st.sampled_from([Linear(4.0), NTK(8.0), Yarn(16.0, 4096), PRope(0.5)]))
def test_custom_factors_carry_any_static_rule(rule):
    spec = RopeSpec(64, "half", scaling=rule)
    with np.errstate(divide="ignore"):
        factors = spec.ladder.inv_freq() / spec.inv_freq()
    carried = spec.replace(scaling=CustomFactors(factors, spec.attention_factor()))
    # f / (f / f'): two roundings
    np.testing.assert_allclose(carried.inv_freq(), spec.inv_freq(), rtol=5e-16)
    assert carried.attention_factor() == spec.attention_factor()


def test_proportional_pairs_span_the_whole_head_and_the_rest_stands_still():
    # Gemma 4: D = 512, 64 pairs turn; exponents over 512, not over 128
    spec = RopeSpec(512, "half", theta=1e6, scaling=Proportional(0.25))
    pairs = spec.pairs()
    assert spec.n_pairs == 256
    np.testing.assert_array_equal(pairs.in_b - pairs.in_a, 256)
    np.testing.assert_array_equal(pairs.inv_freq[:64], spec.ladder.inv_freq()[:64])
    np.testing.assert_array_equal(pairs.inv_freq[64:], 0.0)
    moved = np.any(rotation_matrix(spec, 3.0) != np.eye(512), axis=1)
    assert np.flatnonzero(moved).tolist() == [*range(64), *range(256, 320)]


def test_proportional_is_not_partial_rotation():
    partial = RopeSpec(8, "half", rotary_dim=4, theta=16.0)
    proportional = RopeSpec(8, "half", theta=16.0, scaling=Proportional(0.5))
    assert partial.inv_freq().tolist() == [1.0, 0.25]
    assert proportional.inv_freq().tolist() == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(("p", "turning"), [(0.0, 0), (0.24, 0), (0.25, 1), (0.99, 3), (1.0, 4)])
def test_share_of_pairs_is_rounded_down(p, turning):
    for rule in (PRope(p), Proportional(p), Proportional(p, factor=3.0)):
        inv_freq = RopeSpec(8, "half", scaling=rule).inv_freq()
        assert np.count_nonzero(inv_freq) == turning
    np.testing.assert_array_equal(
        RopeSpec(8, "half", scaling=PRope(p)).inv_freq(),
        RopeSpec(8, "half", scaling=Proportional(p)).inv_freq(),
    )


def test_proportional_divides_by_its_factor():
    spec = RopeSpec(8, "half", theta=16.0, scaling=Proportional(0.5, factor=4.0))
    assert spec.inv_freq().tolist() == [0.25, 0.125, 0.0, 0.0]


def test_resonance_makes_wavelengths_whole():
    # 2 pi, 2 pi 10^(1/2), 20 pi, ... for theta = 100, d = 8: 6.28, 19.87, 62.83, 198.7
    spec = RopeSpec(8, "half", theta=100.0, scaling=Resonance())
    assert spec.wavelengths().round(9).tolist() == [6.0, 20.0, 63.0, 199.0]
    positions = np.arange(6.0) + 6 * 10_000_000
    np.testing.assert_allclose(
        np.cos(positions * spec.inv_freq()[0]), np.cos(np.arange(6) * math.pi / 3), atol=1e-7
    )


def test_resonance_comes_after_another_rule():
    yarn = Yarn(40.0, 64, mscale=1.0, mscale_all_dim=1.0)
    spec = RopeSpec(64, "half", scaling=Resonance(yarn))
    before = spec.replace(scaling=yarn)
    np.testing.assert_allclose(
        spec.wavelengths(), np.maximum(np.round(before.wavelengths()), 1), rtol=1e-15
    )
    assert spec.attention_factor() == before.attention_factor()
    assert spec.scaling.softmax_scale_factor() == yarn.softmax_scale_factor() > 1.8


def test_resonance_keeps_stopped_pairs_and_needs_at_least_one_position_per_turn():
    stopped = RopeSpec(8, "half", scaling=Resonance(PRope(0.5)))
    assert stopped.inv_freq()[2:].tolist() == [0.0, 0.0]
    fast = RopeSpec(8, "half", scaling=Resonance(Linear(0.001)))
    assert fast.wavelengths()[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CustomFactors((1.0, -1.0)), r"factors\[1\] must be .*got -1\.0"),
        (lambda: CustomFactors((1.0, math.nan)), r"factors\[1\] must be .*got nan"),
        (lambda: CustomFactors("ab"), r"factors must be a sequence of numbers; got 'ab'"),
        (lambda: CustomFactors((1.0,), 0.0), r"attention_factor must be .*got 0\.0"),
        (lambda: CustomFactors((1.0,), None), r"attention_factor must be .*got None"),
        (lambda: Proportional(1.5), r"partial_rotary_factor must be at most 1; got 1\.5"),
        (lambda: Proportional(-0.5), r"partial_rotary_factor must be .*got -0\.5"),
        (lambda: Proportional(0.5, factor=0), r"factor must be .*got 0"),
        (lambda: PRope(2), r"p must be at most 1; got 2\.0"),
        (lambda: PRope("0.5"), r"p must be .*got '0\.5'"),
        (lambda: Resonance("yarn"), r"scaling must be a rule .*got 'yarn'"),
        (lambda: Resonance(XPos()), r"must change frequencies alone; got XPos"),
        (
            lambda: RopeSpec(8, "half", scaling=CustomFactors((1.0,) * 3)),
            r"each of the 4 pairs; got 3",
        ),
        (
            lambda: RopeSpec(2, "half", scaling=Resonance(NTK(2.0))),
            r"at least two frequencies",
        ),
    ],
)
def test_bad_setting_is_refused_with_its_value(build, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)
