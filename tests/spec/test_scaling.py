import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import NTK, ConfigError, Linear, RopeSpec

dims = st.integers(2, 64).map(lambda n: 2 * n)
thetas = st.floats(2.0, 1e7)
factors = st.floats(1.0, 64.0)


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


@pytest.mark.parametrize("rule", [Linear, NTK])
def test_factor_one_changes_nothing(rule):
    plain = RopeSpec(64, "half", theta=5e5)
    np.testing.assert_array_equal(plain.replace(scaling=rule(1.0)).inv_freq(), plain.inv_freq())


@pytest.mark.parametrize("rule", [Linear, NTK])
def test_answer_is_the_same_for_every_length(rule):
    spec = RopeSpec(8, "half", scaling=rule(3.0))
    np.testing.assert_array_equal(spec.inv_freq(), spec.inv_freq(seq_len=7))
    assert spec.attention_factor() == spec.attention_factor(seq_len=7) == 1.0


@pytest.mark.parametrize("rule", [Linear, NTK])
@pytest.mark.parametrize("factor", [0.0, -2.0, float("nan"), float("inf"), "2", None, True])
def test_bad_factor_is_refused_with_its_value(rule, factor):
    with pytest.raises(ConfigError, match=f"factor must be .*got {factor!r}"):
        rule(factor)


def test_ntk_refuses_a_single_pair():
    with pytest.raises(ConfigError, match=r"at least two frequencies .*got 1; use Linear"):
        RopeSpec(2, "half", scaling=NTK(2.0))
