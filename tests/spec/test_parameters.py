import json

import numpy as np
import pytest
from hypothesis import given, settings
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
    Resonance,
    RopeSpec,
    XPos,
    Yarn,
)
from ropewalk.spec import spec_from_rope_parameters


def read(parameters, head_dim=64, **beside):
    return spec_from_rope_parameters(parameters, head_dim=head_dim, layout="half", **beside)


LIST = tuple(1.0 + j / 7 for j in range(32))
TWICE = tuple(2.0 * x for x in LIST)


@pytest.mark.parametrize(
    "spec",
    [
        RopeSpec(64, "half"),
        RopeSpec(64, "half", theta=5e5),
        RopeSpec(64, "half", scaling=Linear(4.0)),
        RopeSpec(64, "half", rotary_dim=16, scaling=Linear(4.0)),
        RopeSpec(64, "half", scaling=DynamicNTK(4.0, 4096)),
        RopeSpec(64, "half", scaling=DynamicNTK(alpha=1000.0)),
        RopeSpec(64, "half", scaling=Yarn(4.0, 4096)),
        RopeSpec(
            64, "half", rotary_dim=32, theta=1e6, scaling=Yarn(4.0, 4096, 24.0, 2.0, truncate=False)
        ),
        RopeSpec(64, "half", scaling=Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=0.5)),
        RopeSpec(64, "half", scaling=Yarn(40.0, 4096, attention_factor=1.0)),
        RopeSpec(64, "half", theta=5e5, scaling=Llama3(8.0, 8192, 1.0, 4.0)),
        RopeSpec(64, "half", scaling=LongRope(LIST, TWICE, 4096, factor=32.0)),
        RopeSpec(64, "half", scaling=LongRope(LIST, TWICE, 4096, attention_factor=1.19)),
        RopeSpec(64, "half", scaling=LongRope(LIST, TWICE, 4096, 32.0, attention_factor=1.19)),
        RopeSpec(
            64, "half", scaling=LongRope(LIST, TWICE, 4096, short_mscale=1.0, long_mscale=1.2)
        ),
        RopeSpec(64, "half", scaling=Proportional(0.25, factor=8.0)),
        RopeSpec(64, "half", scaling=Proportional(0.0)),
        RopeSpec(64, "half", scaling=CustomFactors(LIST, attention_factor=1.25)),
    ],
    ids=lambda spec: repr(spec.scaling)[:40],
)
def test_round_trip_is_exact(spec):
    parameters = json.loads(json.dumps(spec.to_rope_parameters()))
    back = read(parameters)
    assert back == spec
    assert back.to_rope_parameters() == parameters


@pytest.mark.parametrize(
    "rule",
    [
        NTK(4.0),
        PRope(0.3),
        Yarn(4.0, 4096, ramp="paper"),
        Resonance(Yarn(4.0, 4096)),
        Yarn(40.0, 4096, mscale=0.707, mscale_all_dim=0.0),
        Yarn(40.0, 4096, mscale_all_dim=1.0),
    ],
)
def test_rule_without_a_name_is_written_as_what_it_is(rule):
    spec = RopeSpec(64, "half", scaling=rule)
    back = read(spec.to_rope_parameters())
    # the carrier divides twice: two roundings
    np.testing.assert_allclose(back.inv_freq(), spec.inv_freq(), rtol=5e-16)
    assert back.attention_factor() == spec.attention_factor()


def test_ntk_is_written_as_a_larger_base():
    spec = RopeSpec(64, "half", scaling=NTK(4.0))
    parameters = spec.to_rope_parameters()
    assert parameters["rope_type"] == "default"
    np.testing.assert_array_equal(read(parameters).inv_freq(), spec.inv_freq())


@given(st.integers(1, 512).map(lambda n: 2 * n), st.data())
def test_every_partial_width_comes_back(head_dim, data):
    rotary_dim = 2 * data.draw(st.integers(1, head_dim // 2))
    spec = RopeSpec(head_dim, "half", rotary_dim=rotary_dim)
    assert read(spec.to_rope_parameters(), head_dim) == spec


def test_nothing_means_the_plain_ladder():
    assert read(None) == read({}) == RopeSpec(64, "half")
    assert read({}, rope_theta=1e6).theta == 1e6
    assert read({"rope_theta": 5e5}, rope_theta=1e6).theta == 5e5


@pytest.mark.parametrize(
    ("parameters", "beside", "rule"),
    [
        ({"rope_type": "ntk", "factor": 2}, {}, NTK(2.0)),
        ({"type": "linear", "factor": 2}, {}, Linear(2.0)),
        ({"type": "linear", "rope_type": "linear", "factor": 2}, {}, Linear(2.0)),
        (
            {"rope_type": "dynamic", "factor": 2.0},
            {"max_position_embeddings": 2048},
            DynamicNTK(2.0, 2048),
        ),
        (
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048},
            {"max_position_embeddings": 2048},
            DynamicNTK(2.0, 2048),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0},
            {"original_max_position_embeddings": 2048, "max_position_embeddings": 9999},
            Yarn(4.0, 2048),
        ),
        (
            {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 4096},
            {"max_position_embeddings": 163840},
            Yarn(40.0, 4096),
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 4096,
                "attention_factor": None,
                "beta_fast": None,
                "truncate": False,
            },
            {},
            Yarn(4.0, 4096, truncate=False),
        ),
        (  # Phi-3: the length stands beside the dictionary
            {"type": "longrope", "short_factor": [*LIST], "long_factor": [*TWICE]},
            {"original_max_position_embeddings": 4096, "max_position_embeddings": 131072},
            LongRope(LIST, TWICE, 4096, factor=32.0),
        ),
        ({"rope_type": "proportional"}, {}, Proportional(1.0)),
        (
            {
                "rope_type": "longrope",
                "short_factor": [*LIST],
                "long_factor": [*LIST],
                "attention_factor": 1.5,
            },
            {},
            CustomFactors(LIST, 1.5),
        ),
    ],
)
def test_config_beside_the_dictionary_is_taken_where_given(parameters, beside, rule):
    assert read(parameters, **beside).scaling == rule


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [*LIST],
    "long_factor": [*TWICE],
    "original_max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("parameters", "beside", "message"),
    [
        ({"rope_type": "foo"}, {}, r"rope_type must be one of .*got 'foo'"),
        ({"rope_type": "su"}, {}, r"rope_type must be one of .*got 'su'"),
        ({"rope_type": ["yarn"]}, {}, r"rope_type must be one of .*got \['yarn'\]"),
        ({"type": "linear", "rope_type": "yarn"}, {}, r"got rope_type='yarn', type='linear'"),
        ([("rope_type", "yarn")], {}, r"rope_parameters must be a dictionary or None; got \[\("),
        ({"rope_type": "linear"}, {}, r"rope_type 'linear' needs the key 'factor'"),
        ({"rope_type": "linear", "factor": None}, {}, r"needs the key 'factor'"),
        ({"rope_type": "linear", "factor": "4.0"}, {}, r"factor must be .*got '4\.0'"),
        ({"rope_type": "default", "factor": 2.0}, {}, r"key 'factor', which rope_type 'default'"),
        ({"theta": 1e4}, {}, r"key 'theta'"),
        ({3: 1e4}, {}, r"key 3, which"),
        ({"full_attention": {"rope_type": "default"}}, {}, r"key 'full_attention'"),
        ({"rope_theta": 0.5}, {}, r"theta must be .*got 0\.5"),
        ({"partial_rotary_factor": 1.5}, {}, r"partial_rotary_factor must be at most 1; got 1\.5"),
        ({"partial_rotary_factor": 0.4}, {}, r"rotary_dim must be even; got rotary_dim=25"),
        ({"rope_type": "dynamic", "factor": 2.0}, {}, r"or max_position_embeddings as an argument"),
        (
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048},
            {"max_position_embeddings": 4096},
            r"must be max_position_embeddings beside it, which transformers takes; got 2048 and 40",
        ),
        (
            {"rope_type": "dynamic", "alpha": 8.0, "factor": 1.0},
            {},
            r"key 'factor', which rope_type 'dynamic' does not use; got 1\.0",
        ),
        (
            {"rope_type": "yarn", "factor": 4.0},
            {"max_position_embeddings": 4096},
            r"needs the key 'original_max_position_embeddings', the trained length",
        ),
        (
            {"rope_type": "yarn", "original_max_position_embeddings": 4096},
            {},
            r"needs the key 'factor'",
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
            {"original_max_position_embeddings": 4096},
            r"got 8192 and 4096",
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 0,
            },
            {},
            r"beta_fast must be .*got 0",
        ),
        (LLAMA3 | {"low_freq_factor": None}, {}, r"needs the key 'low_freq_factor'"),
        (LLAMA3 | {"attention_factor": 1.0}, {}, r"key 'attention_factor'"),
        (LONGROPE, {}, r"LongRope needs factor or attention_factor; got neither"),
        (LONGROPE | {"factor": 2.0, "mscale": 1.0}, {}, r"key 'mscale'"),
        (LONGROPE | {"long_factor": [1.0]}, {"max_position_embeddings": 8192}, r"got 32 and 1"),
        (LONGROPE | {"short_factor": 5}, {}, r"short_factor must be a sequence .*got 5"),
        ({"rope_type": "proportional", "partial_rotary_factor": 2}, {}, r"at most 1; got 2\.0"),
        ({}, {"head_dim": "64"}, r"head_dim must be an integer .*got '64'"),
    ],
)
def test_what_is_not_understood_is_refused(parameters, beside, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(parameters, **beside)
    assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([10**400, 1e308, 5e-324, -1.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FOUR = [1.0, 1.5, 2.0, 4.0]
WHOLE = {
    "default": {},
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic": {"factor": 4.0, "original_max_position_embeddings": 64, "alpha": None},
    "yarn": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "attention_factor": None,
        "truncate": True,
    },
    "llama3": LLAMA3,
    "longrope": LONGROPE | {"short_factor": FOUR, "long_factor": FOUR, "factor": 4.0},
    "proportional": {"partial_rotary_factor": 0.5, "factor": 2.0},
}
numbers = st.floats(0.0, exclude_min=True) | st.integers(1, 1 << 70)


@settings(max_examples=500)
@given(st.data(), st.sampled_from(sorted(WHOLE)), json_values)
def test_arbitrary_json_is_read_or_refused_in_our_words(data, rope_type, beside):
    whole = {"rope_theta": 1e4, "type": None} | WHOLE[rope_type]
    changes = data.draw(
        st.dictionaries(st.sampled_from(sorted(whole)), numbers | json_values, max_size=3)
    )
    refusal = ""
    try:
        spec = read(whole | changes | {"rope_type": rope_type}, 8, max_position_embeddings=beside)
        values = np.append(spec.inv_freq(1 << 40), spec.attention_factor(1 << 40))
    except ConfigError as error:
        refusal, values = str(error), np.zeros(1)
    assert "\n" not in refusal
    assert len(refusal) < 600
    assert np.isfinite(values).all()


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scaling": XPos()}, r"no rope_type for XPos"),
        ({"scaling": Resonance(DynamicNTK(2.0, 64))}, r"no rope_type for Resonance"),
        ({"scaling": CustomFactors((1.0,) * 31 + (float("inf"),))}, r"JSON has no infinity"),
        ({"scaling": Resonance(PRope(0.5))}, r"JSON has no infinity"),
        ({"scaling": PRope(0.5), "rotary_dim": 32}, r"the whole head; got rotary_dim=32"),
    ],
)
def test_a_rule_the_dictionary_cannot_say_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        RopeSpec(64, "half").replace(**changes).to_rope_parameters()
