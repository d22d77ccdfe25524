from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk import (
    NTK,
    CustomFactors,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    PRope,
    Proportional,
    RopeSpec,
    XPos,
    Yarn,
)
from ropewalk.analysis import (
    bound_curve,
    distance_bound,
    pair_factors,
    similarity_curve,
    unscaled,
    wavelength_ladder,
)
from ropewalk.errors import ConfigError, ShapeError

# Mean |S_j| of equation 37, summed from the definition in 30-digit arithmetic (mpmath).
FIGURE_2 = {
    64: {0: 16.5, 1: 15.94776, 2: 14.48452, 5: 10.42763, 10: 8.814334, 20: 8.010578,
         50: 5.733077, 100: 7.465277, 150: 4.224175, 200: 3.860478, 250: 3.6687},
    128: {0: 32.5, 1: 31.53817, 2: 28.95599, 5: 20.84536, 10: 17.95414, 20: 15.24243,
          50: 12.62945, 100: 10.22733, 150: 7.588477, 200: 7.244771, 250: 6.548179},
}  # fmt: skip


@pytest.mark.parametrize("rotary_dim", FIGURE_2)
def test_distance_bound_has_the_values_of_the_papers_formula(rotary_dim):
    points = FIGURE_2[rotary_dim]
    curve = distance_bound(rotary_dim, 10_000.0, list(points))
    np.testing.assert_allclose(curve, list(points.values()), rtol=5e-7)  # seven digits given


def test_distance_bound_of_four_dimensions_worked_by_hand():
    # |S_1| = 1 always; |S_2| = |e^{i t} + e^{i t/10}| = 2 |cos(0.45 t)| for theta = 100.
    t = np.array([0.0, 1.0, 7.5])
    expected = (1 + 2 * np.abs(np.cos(0.45 * t))) / 2
    np.testing.assert_allclose(distance_bound(4, 100.0, t), expected, rtol=1e-14)


def test_distance_bound_is_neither_monotone_nor_vanishing():
    curve = distance_bound(128, distances=np.arange(257))
    assert (np.diff(curve) > 0).sum() == 115
    assert distance_bound(128, distances=[4096])[0] > distance_bound(128, distances=[2048])[0]


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    st.integers(1, 40).map(lambda n: 2 * n),
    st.floats(1.5, 1e6),
    st.floats(-1e5, 1e5, allow_nan=False),
)
def test_distance_bound_is_symmetric_and_greatest_at_distance_zero(rotary_dim, theta, distance):
    here, mirrored, zero = distance_bound(rotary_dim, theta, [distance, -distance, 0.0])
    assert here == mirrored
    assert here <= zero * (1 + 1e-14)
    assert zero == pytest.approx((rotary_dim / 2 + 1) / 2, rel=1e-14)


def test_distance_bound_refuses_odd_widths_and_small_bases():
    for width in (7, 0, -2, 2.5, "64", None):
        with pytest.raises(ConfigError, match=f"rotary_dim must be .*; got {width!r}"):
            distance_bound(width)
    for theta in (1.0, math.nan, "1e4"):
        with pytest.raises(ConfigError, match=f"theta must be .*; got {theta!r}"):
            distance_bound(8, theta)


SPEC = RopeSpec(64, "half")
WIDTHS = st.integers(1, 40).map(lambda n: 2 * n)
FACTORS = st.floats(1.0, 64.0)


def test_bound_curve_of_a_plain_rotation_is_the_papers():
    distances = np.arange(300)
    for width in (64, 128):
        spec = RopeSpec(width, "interleaved", theta=500.0)
        np.testing.assert_array_equal(
            bound_curve(spec, distances), distance_bound(width, 500.0, distances)
        )


@pytest.mark.parametrize(("rotary_dim", "values"), [
    (64, [16.50, 15.95, 14.49, 10.43, 8.81, 8.01, 5.73, 7.47, 4.22, 3.86, 3.67]),
    (128, [32.50, 31.54, 28.96, 20.85, 17.95, 15.24, 12.63, 10.23, 7.59, 7.25, 6.55]),
])  # fmt: skip
def test_decay_of_the_paper_to_a_hundredth(rotary_dim, values):
    # Figure 2 of arXiv:2104.09864, by its formula, at these distances; given with two decimals.
    distances = [0, 1, 2, 5, 10, 20, 50, 100, 150, 200, 250]
    curve = bound_curve(RopeSpec(rotary_dim, "half"), distances)
    np.testing.assert_allclose(curve, values, rtol=0, atol=0.01)


def test_decay_of_the_paper_for_d_256():
    np.testing.assert_allclose(distance_bound(256, distances=[0, 250]), [64.5, 12.79], atol=0.01)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.floats(1.0, 100.0), st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=5))
def test_linear_scaling_stretches_distances_by_its_factor(factor, distances):
    scaled = SPEC.replace(scaling=Linear(factor))
    distances = np.array(distances)
    for measure in (similarity_curve, bound_curve):
        stretched = measure(scaled, distances * factor)
        # Angles of up to 1e4 are rounded to 2e-12, and 32 pairs add up in the bound.
        np.testing.assert_allclose(stretched, measure(SPEC, distances), rtol=0, atol=2e-10)


def test_linear_scaling_by_a_power_of_two_stretches_exactly():
    scaled, distances = SPEC.replace(scaling=Linear(4.0)), np.arange(1000)
    for clamped in (False, True):
        np.testing.assert_array_equal(
            similarity_curve(scaled, 4 * distances, clamped=clamped),
            similarity_curve(SPEC, distances, clamped=clamped),
        )


@settings(deadline=None, derandomize=True, max_examples=25)
@given(WIDTHS, st.floats(1.5, 1e6), FACTORS, st.booleans())
def test_similarity_is_one_at_distance_zero_and_never_more(width, theta, factor, clamped):
    spec = RopeSpec(width, "half", theta=theta, scaling=Yarn(factor, 1024))
    curve = similarity_curve(spec, np.arange(-50, 51), clamped=clamped)
    assert curve[50] == pytest.approx(1.0, abs=1e-14)  # a sum of up to 40 equal terms
    assert np.abs(curve).max() <= 1.0 + 1e-14
    np.testing.assert_array_equal(curve, curve[::-1])


def test_similarity_is_the_score_of_equal_vectors_turned_by_the_operator():
    torch = pytest.importorskip("torch")
    from ropewalk import RotaryEmbedding

    spec = RopeSpec(32, "interleaved", rotary_dim=16, scaling=Yarn(4.0, 64))
    vector = torch.ones(1, 16, dtype=torch.float64)
    vector = torch.cat([vector, torch.zeros(1, 16, dtype=torch.float64)], -1)
    rope, far = RotaryEmbedding(spec), 77
    scores = [
        float(rope.rotate(vector, torch.tensor([0])) @ rope.rotate(vector, torch.tensor([p])).T)
        for p in (0, far)
    ]
    # cos and sin of the table are float32.
    assert similarity_curve(spec, far) == pytest.approx(scores[1] / scores[0], abs=1e-6)


def test_similarity_of_two_pairs_worked_by_hand():
    # theta = 16, d = 4: angular frequencies 1 and 1/4.
    spec = RopeSpec(4, "half", theta=16.0)
    expected = [(math.cos(2 * math.pi / 3) + math.cos(math.pi / 6)) / 2, (1 + 0) / 2]
    curve = similarity_curve(spec, [2 * math.pi / 3, 2 * math.pi])
    np.testing.assert_allclose(curve, expected, atol=1e-15)
    clamped = similarity_curve(spec, [2 * math.pi, 9 * math.pi], clamped=True)
    np.testing.assert_allclose(clamped, [(-1 + 0) / 2, -1.0], atol=1e-15)


def test_pairs_count_by_the_square_of_their_amplitude():
    loud = RopeSpec(6, "half", rotary_dim=2, scaling=CustomFactors((1.0,), 2.0))
    slow = RopeSpec(6, "half", rotary_dim=2, rotary_offset=2, scaling=CustomFactors((4.0,), 1.0))
    both = RopeSpec(6, "half", blocks=(loud, slow))
    expected = (4 * math.cos(1.0) + 1 * math.cos(0.25)) / 5
    assert similarity_curve(both, 1.0) == pytest.approx(expected, abs=1e-15)
    np.testing.assert_allclose(pair_factors(both), [1.0, 4.0])
    assert unscaled(both).blocks == (loud.replace(scaling=None), slow.replace(scaling=None))


@pytest.mark.parametrize("scaling", [None, Linear(3.0), NTK(4.0), Yarn(4.0, 128)])
def test_clamped_similarity_falls_strictly_and_then_stays(scaling):
    spec = RopeSpec(16, "half", theta=50.0, scaling=scaling)
    settled = spec.wavelengths().max() / 2  # where the slowest pair has turned by pi
    # The last steps before the end change a flat cosine by less than a float64 can show.
    falling = similarity_curve(spec, np.linspace(0, settled * 0.999, 400), clamped=True)
    assert (np.diff(falling) < 0).all()
    rest = similarity_curve(spec, settled * np.array([1 + 1e-12, 1.5, 3.0, 1e6]), clamped=True)
    assert (rest == rest[0]).all()
    assert rest[0] == pytest.approx(-1.0, abs=1e-14)
    assert rest[0] < falling[-1]


def test_clamped_similarity_is_the_plain_one_until_the_fastest_pair_has_turned_half():
    distances = np.array([0.0, 1.0, 2.0, 3.0, 3.14])
    plain, clamped = (similarity_curve(SPEC, distances, clamped=c) for c in (False, True))
    np.testing.assert_array_equal(plain, clamped)
    assert similarity_curve(SPEC, 6.0, clamped=True) < similarity_curve(SPEC, 6.0)


def test_pairs_that_stand_still_stay_similar():
    spec = RopeSpec(4, "half", theta=4.0, scaling=PRope(0.5))
    curve = similarity_curve(spec, [0.0, math.pi, 1e6], clamped=True)
    np.testing.assert_allclose(curve, [1.0, 0.0, 0.0], atol=1e-15)
    assert wavelength_ladder(spec, 100).wavelengths[1] == math.inf
    assert not wavelength_ladder(spec, 100).completes_turn[1]
    np.testing.assert_array_equal(pair_factors(spec), [1.0, math.inf])


def test_positions_that_are_scaled_count_as_such():
    spec = SPEC.replace(position_scale=0.5)
    np.testing.assert_array_equal(similarity_curve(spec, [10]), similarity_curve(SPEC, [5]))
    np.testing.assert_array_equal(bound_curve(spec, [10]), bound_curve(SPEC, [5]))


def test_a_rule_that_depends_on_the_length_needs_it():
    spec = SPEC.replace(scaling=DynamicNTK(1.0, 512))
    np.testing.assert_array_equal(
        similarity_curve(spec, [9], seq_len=512), similarity_curve(SPEC, [9])
    )
    assert pair_factors(spec, seq_len=2048)[-1] == pytest.approx(4.0, rel=1e-12)
    assert wavelength_ladder(spec, 512, seq_len=2048).turns[-1] == pytest.approx(
        wavelength_ladder(SPEC, 512).turns[-1] / 4, rel=1e-12
    )
    for measure in (pair_factors, lambda s: similarity_curve(s, 1), lambda s: bound_curve(s, 1)):
        with pytest.raises(ConfigError, match="seq_len"):
            measure(spec)


def test_xpos_has_no_similarity_of_this_kind():
    with pytest.raises(ConfigError, match="XPos has no attention factor"):
        similarity_curve(SPEC.replace(scaling=XPos()), [1])


@pytest.mark.parametrize("distances", [[1.0, math.nan], math.inf, "far", [[1], [2, 3]]])
def test_distances_that_are_no_numbers_are_refused(distances):
    for measure in (similarity_curve, bound_curve):
        with pytest.raises(ShapeError, match="distances must be"):
            measure(SPEC, distances)


def test_wavelength_ladder_of_a_case_worked_by_hand():
    # theta = 100, d = 4: frequencies 1 and 0.1, wavelengths 2 pi and 20 pi = 62.8.
    ladder = wavelength_ladder(RopeSpec(4, "half", theta=100.0), 50)
    np.testing.assert_allclose(ladder.wavelengths, [2 * math.pi, 20 * math.pi], rtol=1e-15)
    np.testing.assert_allclose(ladder.turns, [25 / math.pi, 2.5 / math.pi], rtol=1e-15)
    assert ladder.completes_turn.tolist() == [True, False]


def test_wavelength_ladder_of_smollm2_has_twelve_pairs_without_a_turn():
    ladder = wavelength_ladder(RopeSpec(64, "half", theta=1e5), 8192)
    assert (~ladder.completes_turn).sum() == 12
    assert (ladder.turns >= 32).sum() == 11
    assert ladder.wavelengths[[0, -1]].round().tolist() == [6, 438460]


@pytest.mark.parametrize("window", [0, -1, 2.5, True])
def test_a_window_that_is_no_length_is_refused(window):
    with pytest.raises(ConfigError, match="window must be an integer"):
        wavelength_ladder(SPEC, window)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    WIDTHS.filter(lambda n: n > 2),
    st.floats(100.0, 1e6),
    FACTORS,
    st.sampled_from(["linear", "ntk", "yarn", "llama3"]),
)
def test_factors_of_the_common_rules_lie_between_one_and_their_factor(width, theta, factor, name):
    rule = {
        "linear": Linear(factor),
        "ntk": NTK(factor),
        "yarn": Yarn(factor, 4096),
        "llama3": Llama3(factor, 4096),
    }[name]
    factors = pair_factors(RopeSpec(width, "half", theta=theta, scaling=rule))
    assert factors.min() >= 1 - 1e-12  # a few float64 roundings, as below
    assert factors.max() <= factor * (1 + 1e-12)
    assert (np.diff(factors) >= -1e-9 * factor).all()  # slower pairs are slowed by no less
    if name == "ntk":
        np.testing.assert_allclose(factors[[0, -1]], [1.0, factor], rtol=1e-11)
    if name == "linear":
        np.testing.assert_allclose(factors, factor, rtol=1e-14)


def test_factors_of_llama_3_1_have_29_of_one_29_of_eight_and_6_between():
    rule = Llama3(8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    factors = pair_factors(RopeSpec(128, "half", theta=5e5, scaling=rule))
    assert (factors == 1.0).sum() == 29
    assert np.isclose(factors, 8.0, rtol=1e-12, atol=0).sum() == 29  # one float64 division
    np.testing.assert_allclose(factors[29], 5e5 ** (-29 / 64) / 2.1665708e-3, rtol=1e-7)


def test_factors_of_lists_are_the_lists():
    short, long = tuple(np.linspace(1, 2, 32)), tuple(np.linspace(1, 40, 32))
    spec = SPEC.replace(scaling=LongRope(short, long, 4096, factor=32.0))
    np.testing.assert_allclose(pair_factors(spec, seq_len=4096), short, rtol=1e-14)
    np.testing.assert_allclose(pair_factors(spec, seq_len=4097), long, rtol=1e-14)
    stopped = pair_factors(SPEC.replace(scaling=Proportional(0.25, 8.0)))
    assert stopped[:8].tolist() == [8.0] * 8
    assert np.isinf(stopped[8:]).all()


def test_factors_of_no_rule_are_one():
    assert (pair_factors(SPEC.replace(position_scale=0.25)) == 1.0).all()


def test_measures_of_rotations_load_neither_torch_nor_matplotlib():
    code = (
        "import sys; from ropewalk import RopeSpec; from ropewalk.analysis import similarity_curve;"
        "similarity_curve(RopeSpec(4, 'half'), [1]);"
        "print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
