import numpy as np
import pytest

from ropewalk import NTK, ConfigError, Linear, RopeSpec
from ropewalk.spec import spec_from_rope_parameters


@pytest.mark.parametrize(
    "spec",
    [
        RopeSpec(64, "interleaved"),
        RopeSpec(64, "half", theta=5e5),
        RopeSpec(64, "half", scaling=Linear(4.0)),
        RopeSpec(64, "half", rotary_dim=16, scaling=Linear(4.0)),
        RopeSpec(64, "half", scaling=NTK(4.0)),
    ],
)
def test_round_trip_keeps_the_frequencies(spec):
    parameters = spec.to_rope_parameters()
    back = spec_from_rope_parameters(parameters, head_dim=64, layout=spec.layout)
    assert back.rotary_dim == spec.rotary_dim
    np.testing.assert_array_equal(back.inv_freq(), spec.inv_freq())


def test_nothing_means_the_plain_ladder():
    assert spec_from_rope_parameters(None, head_dim=64, layout="half") == RopeSpec(64, "half")


def test_ntk_is_read_by_name():
    parameters = {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2}
    spec = spec_from_rope_parameters(parameters, head_dim=8, layout="half")
    assert spec.scaling == NTK(2.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "foo"}, "rope_type must be one of .*got 'foo'"),
        ({"rope_type": "linear"}, "rope_type 'linear' needs the key 'factor'"),
        ({"rope_type": "default", "factor": 2.0}, "key 'factor', which rope_type 'default'"),
        ({"theta": 1e4}, "key 'theta'"),
        ({"rope_theta": 0.5}, "theta must be .*got 0.5"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be at most 1; got 1.5"),
        ({"partial_rotary_factor": 0.4}, "rotary_dim must be even; got rotary_dim=25"),
    ],
)
def test_what_is_not_understood_is_refused(parameters, message):
    with pytest.raises(ConfigError, match=message):
        spec_from_rope_parameters(parameters, head_dim=64, layout="half")


@pytest.mark.parametrize(
    "change",
    [
        {"rotary_dim": 8, "rotary_offset": 8},
        {"direction": -1},
        {"position_scale": 2.0},
        {"frequency_dim": 8},
        {"output_layout": "half"},
    ],
)
def test_a_spec_the_dictionary_cannot_say_is_refused(change):
    with pytest.raises(ConfigError, match="rope_parameters can hold theta"):
        RopeSpec(64, "interleaved", **change).to_rope_parameters()
