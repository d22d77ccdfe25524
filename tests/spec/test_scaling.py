import copy
import pickle

import numpy as np
import pytest
import rule_contract
import rules
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import (
    NTK,
    ConfigError,
    CustomFactors,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    PRope,
    Proportional,
    RopeSpec,
    Yarn,
)

dims = st.integers(2, 64).map(lambda n: 2 * n)
thetas = st.floats(2.0, 1e7)
factors = st.floats(1.0, 64.0)
lengths = st.integers(1, 1 << 20)

every_rule = pytest.mark.parametrize("rule", rules.ALL.values(), ids=rules.ALL)
static_rule = pytest.mark.parametrize("rule", rules.STATIC.values(), ids=rules.STATIC)
by_length = pytest.mark.parametrize("rule", rules.BY_LENGTH.values(), ids=rules.BY_LENGTH)


def spec_of(rule):
    return RopeSpec(2 * rules.PAIRS, "half", theta=100.0, scaling=rule)


@given(dims, thetas, factors)
def test_linear_divides_every_frequency(dim, theta, factor):
    plain = RopeSpec(dim, "half", theta=theta)
    scaled = plain.replace(scaling=Linear(factor))
    np.testing.assert_array_equal(scaled.inv_freq(), plain.inv_freq() / factor)


@given(dims, thetas, factors)
def test_ntk_keeps_the_fastest_and_divides_the_slowest(dim, theta, factor):
    plain = RopeSpec(dim, "half", theta=theta)
    ratio = plain.replace(scaling=NTK(factor)).inv_freq() / plain.inv_freq()
    assert ratio[0] == 1.0
    # pow of a rounded base: error grows with the exponent's logarithm, still far below 1e-12
    assert ratio[-1] == pytest.approx(1.0 / factor, rel=1e-12)
    assert np.all(np.diff(ratio) <= 1e-12)


def test_ntk_is_the_published_change_of_base():
    # theta' = theta * s^(d/(d-2)); d = 64, s = 4, theta = 1e4: 1e4 * 4^(64/62)
    spec = RopeSpec(64, "half", scaling=NTK(4.0))
    base = 10_000.0 * 4.0 ** (64 / 62)
    np.testing.assert_allclose(
        spec.inv_freq(), base ** (-np.arange(0, 64, 2, dtype=np.float64) / 64), rtol=1e-13
    )


def test_ntk_has_the_base_that_loaders_print():
    # alpha 2 on a head of 128 is --rope-freq-base 20221; base 35,000 is alpha 3.432
    ladder = RopeSpec(128, "half").ladder
    assert NTK(2.0).theta(ladder) == pytest.approx(20_221.26, abs=0.01)
    assert NTK(3.432).theta(ladder) == pytest.approx(35_000.0, rel=1e-4)


@given(dims, thetas, st.integers(1, 1 << 40))
def test_factor_one_changes_nothing(dim, theta, length):
    plain = RopeSpec(dim, "half", theta=theta)
    ones = (1.0,) * (dim // 2)
    for rule in (
        Linear(1.0),
        NTK(1.0),
        DynamicNTK(1.0, length),
        DynamicNTK(alpha=1.0),
        Yarn(1.0, length),
        Yarn(1.0, length, ramp="paper"),
        Llama3(1.0, length),
        LongRope(ones, ones, length, factor=1.0),
        Proportional(1.0),
        PRope(1.0),
        CustomFactors(ones),
    ):
        spec = plain.replace(scaling=rule)
        # h * f + (1 - h) * f: one rounding away from f inside a ramp
        np.testing.assert_allclose(spec.inv_freq(length), plain.inv_freq(), rtol=4e-16)
        assert spec.attention_factor(length) == 1.0


@given(dims, thetas, st.floats(1.0, 64.0), st.integers(2, 1 << 20), lengths)
def test_every_frequency_is_divided_by_one_to_factor_and_slow_pairs_more(
    dim, theta, factor, trained, length
):
    plain = RopeSpec(dim, "half", theta=theta)
    rising = tuple(np.linspace(1.0, factor, dim // 2))
    for rule in (
        Linear(factor),
        NTK(factor),
        DynamicNTK(factor, trained),
        Yarn(factor, trained),
        Yarn(factor, trained, truncate=False),
        Yarn(factor, trained, ramp="paper"),
        Llama3(factor, trained),
        LongRope((1.0,) * (dim // 2), rising, trained, factor),
    ):
        ratio = plain.replace(scaling=rule).inv_freq(length) / plain.inv_freq()
        # roundings of a power with a large base
        assert np.all(np.diff(ratio) <= 1e-12), rule
        assert ratio[0] <= 1.0 + 1e-12
        most = rule.ntk_factor(length) if isinstance(rule, DynamicNTK) else factor
        assert ratio[-1] >= 1.0 / most - 1e-12


@static_rule
def test_answer_of_a_static_rule_is_the_same_for_every_length(rule):
    spec = spec_of(rule)
    assert not spec.depends_on_length
    for length in (1, rules.L, 10 * rules.L):
        np.testing.assert_array_equal(spec.inv_freq(), spec.inv_freq(seq_len=length))
        assert spec.attention_factor() == spec.attention_factor(seq_len=length)


@by_length
def test_rule_that_depends_on_the_length_does_not_guess_it(rule):
    spec = spec_of(rule)
    assert spec.depends_on_length
    message = r"seq_len must be given for scaling=(DynamicNTK|LongRope).*got None"
    for method in (spec.inv_freq, spec.wavelengths, spec.pairs):
        with pytest.raises(ConfigError, match=message):
            method()
    assert not np.array_equal(spec.inv_freq(rules.L), spec.inv_freq(4 * rules.L))


@pytest.mark.parametrize("rule", {**rules.STATIC, **rules.BY_LENGTH}.values())
def test_one_length_per_row_gives_the_rows_alone(rule):
    spec = spec_of(rule)
    rows = [rules.L, 3, 10 * rules.L, rules.L + 1, 3]
    for given_as in (rows, tuple(rows), np.array(rows), np.array(rows, dtype=np.int32)):
        together = spec.inv_freq(given_as)
        assert together.shape == (5, rules.PAIRS)
        np.testing.assert_array_equal(together, np.stack([spec.inv_freq(n) for n in rows]))
        factors = spec.attention_factor(given_as)
        assert factors.tolist() == [spec.attention_factor(n) for n in rows]
        assert spec.wavelengths(given_as).shape == (5, rules.PAIRS)
    assert spec.inv_freq(np.array([], dtype=int)).shape == (0, rules.PAIRS)


def test_blocks_take_one_length_per_row_each():
    left = RopeSpec(12, "half", rotary_dim=4, scaling=DynamicNTK(1.0, 8))
    right = RopeSpec(12, "half", rotary_dim=4, rotary_offset=4)
    both = RopeSpec(12, "half", blocks=(left, right))
    assert both.depends_on_length
    got = both.inv_freq([4, 32])
    np.testing.assert_array_equal(got[:, :2], left.inv_freq([4, 32]))
    np.testing.assert_array_equal(got[:, 2:], right.inv_freq([4, 32]))


@pytest.mark.parametrize("bad", [[4, 0], [4.0], [True], [[4]], np.array([2.0]), "8", 2**63])
def test_bad_length_of_a_row_is_refused(bad):
    with pytest.raises(ConfigError, match=r"seq_len must be .*got") as caught:
        spec_of(DynamicNTK(4.0, 64)).inv_freq(bad)
    assert "\n" not in str(caught.value)


def test_pairs_take_one_length():
    with pytest.raises(ConfigError, match=r"seq_len must be an integer .*got \[3, 4\]"):
        RopeSpec(8, "half").pairs([3, 4])


@every_rule
def test_rules_are_values(rule):
    for other in (copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        assert other == rule
        assert hash(other) == hash(rule)
    with pytest.raises(AttributeError):
        rule.factor = 2.0


@every_rule
def test_rule_follows_the_rungs_that_axes_take(rule):
    plain = spec_of(rule)
    axes = tuple((j % 2, rules.PAIRS - 1 - j) for j in range(rules.PAIRS))
    got = plain.replace(axes=axes).inv_freq(rules.L)
    np.testing.assert_array_equal(got, plain.inv_freq(rules.L)[::-1])


@pytest.mark.parametrize("rule", [Linear, NTK, lambda f: Yarn(f, 64), lambda f: Llama3(f, 64)])
@pytest.mark.parametrize("factor", [0.0, -2.0, float("nan"), float("inf"), "2", None, True])
def test_bad_factor_is_refused_with_its_value(rule, factor):
    with pytest.raises(ConfigError, match=f"factor must be .*got {factor!r}"):
        rule(factor)


@pytest.mark.parametrize("rule", [NTK(2.0), DynamicNTK(2.0, 64), DynamicNTK(alpha=2.0)])
def test_change_of_base_refuses_a_single_pair(rule):
    with pytest.raises(ConfigError, match=r"at least two frequencies .*got 1; use Linear"):
        RopeSpec(2, "half", scaling=rule)


@pytest.mark.parametrize("rule", [NTK(1e308), DynamicNTK(alpha=1e308)])
def test_change_of_base_refuses_a_base_beyond_floats(rule):
    with pytest.raises(ConfigError, match=r"number above 0; got factor=1e\+308, theta=10000"):
        RopeSpec(4, "half", scaling=rule)


def test_frequency_beyond_floats_is_refused():
    with pytest.raises(ConfigError, match=r"keep frequencies finite; got Linear\(factor=5e-324\)"):
        RopeSpec(4, "half", scaling=Linear(5e-324)).inv_freq()


def test_rules_of_one_number_have_no_softmax_factor():
    for rule in (Linear(4.0), NTK(4.0), DynamicNTK(4.0, 64), Llama3(4.0, 64), Yarn(4.0, 64)):
        assert rule.softmax_scale_factor() == 1.0


@pytest.mark.parametrize("check", rule_contract.CHECKS.values(), ids=rule_contract.CHECKS)
def test_rules_keep_their_contract(check):
    assert check() is None
