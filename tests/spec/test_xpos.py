import math

import numpy as np
import pytest

from ropewalk import ConfigError, RopeSpec, XPos


def test_zeta_by_hand():
    # d = 8, gamma = 0.4: (2j/8 + 0.4) / 1.4
    spec = RopeSpec(8, "half", scaling=XPos())
    zeta = np.exp(512.0 * spec.log_gain())
    np.testing.assert_allclose(zeta, np.array([0.4, 0.65, 0.9, 1.15]) / 1.4, rtol=1e-14)
    np.testing.assert_array_equal(spec.inv_freq(), RopeSpec(8, "half").inv_freq())


def test_gain_follows_the_rungs_that_axes_take():
    plain = RopeSpec(8, "half", scaling=XPos())
    turned = plain.replace(axes=((0, 3), (0, 2), (1, 1), (1, 0)))
    np.testing.assert_array_equal(turned.log_gain(), plain.log_gain()[::-1])


def test_rules_without_a_gain_have_none():
    assert RopeSpec(8, "half").log_gain() is None
    assert not RopeSpec(8, "half").has_roles
    assert RopeSpec(8, "half", scaling=XPos()).has_roles


def test_xpos_has_no_pairs_and_says_why():
    spec = RopeSpec(8, "half", scaling=XPos())
    for method in (spec.pairs, spec.attention_factor):
        with pytest.raises(ConfigError, match=r"no pairs\(\), since its amplitude depends on the"):
            method()


def test_blocks_have_roles_but_no_gain_of_their_own():
    left = RopeSpec(8, "half", rotary_dim=4, scaling=XPos())
    right = RopeSpec(8, "half", rotary_dim=4, rotary_offset=4)
    both = RopeSpec(8, "half", blocks=(left, right))
    assert both.has_roles
    with pytest.raises(ConfigError, match="property of single blocks"):
        both.log_gain()


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, "a"])
@pytest.mark.parametrize("name", ["scale_base", "gamma"])
def test_bad_setting_is_refused_with_its_value(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be .*got {value!r}"):
        XPos(**{name: value})
