import numpy as np
import pytest

from ropewalk.spec import Ladder, wavelengths


def test_ladder_is_the_papers_formula():
    # theta_i = 10000^(-2(i-1)/d), i = 1..d/2, arXiv 2104.09864 eq. 15; d = 4: 1, 10000^(-1/2)
    assert Ladder(10_000.0, 4, 2).inv_freq().tolist() == [1.0, 0.01]
    assert Ladder(100.0, 4, 2).inv_freq().tolist() == pytest.approx([1.0, 0.1], rel=1e-15)


def test_ladder_equals_the_textbook_snippet_in_float64():
    d = 128
    snippet = 1.0 / 500_000.0 ** (np.arange(0, d, 2, dtype=np.float64) / d)
    # two roundings apart at most
    np.testing.assert_allclose(Ladder(500_000.0, d, d // 2).inv_freq(), snippet, rtol=5e-16)


def test_frequency_dim_stretches_the_exponent():
    # a ladder over 8 dimensions of which only two rungs are used: 10000^(-2j/8)
    assert Ladder(10_000.0, 8, 2).inv_freq().tolist() == pytest.approx([1.0, 0.1], rel=1e-15)


def test_wavelength_is_one_turn():
    assert wavelengths(np.array([2 * np.pi, -np.pi])).tolist() == [1.0, 2.0]
    assert wavelengths(np.array([0.0])).tolist() == [np.inf]
