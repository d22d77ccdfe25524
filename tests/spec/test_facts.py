import contextlib
import json
import time

import numpy as np
import pytest
from config_files import NAMES, config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.errors import ConfigError
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ROPE_KEYS, ModelFacts
from ropewalk.spec.inspection import inspect_config


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_profile_and_from_config_agree(name):
    ours, read = (
        rw.RopeSpec.per_layer_type(config(name)),
        read_as(ModelFacts.of(config(name)), "hf"),
    )
    for label, spec in ours.items():
        other = read.specs.get(label, read.specs.get("all"))
        np.testing.assert_allclose(other.inv_freq(100), spec.inv_freq(100), rtol=1e-12)
        assert other.attention_factor(100) == pytest.approx(spec.attention_factor(100))
        assert other.layout == spec.layout


@pytest.mark.filterwarnings("ignore::ropewalk.errors.RopeConfigWarning")
@pytest.mark.slow
@pytest.mark.parity
def test_profile_and_from_config_agree_on_every_config_of_transformers():
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity(50)
    compared = 0
    for model_type, kind in transformers.CONFIG_MAPPING.items():
        try:
            entries = kind().to_dict()
        except Exception:
            continue
        try:
            ours = rw.RopeSpec.per_layer_type(entries)
            read = read_as(ModelFacts.of(entries), "hf")
        except ConfigError:
            continue
        for label, spec in ours.items():
            other = read.specs.get(label, read.specs.get("all"))
            if spec is None or other is None:
                continue
            np.testing.assert_allclose(
                other.inv_freq(100), spec.inv_freq(100), rtol=1e-9, err_msg=model_type
            )
            compared += 1
    assert compared > 250


def test_unknown_models_are_read_as_usual_and_said_to_be_unknown():
    facts = ModelFacts.of({"model_type": "mine", "head_dim": 64, "rope_theta": 1e6})
    assert (facts.layout, facts.family) == ("half", None)
    assert [found.code for found in diagnose(facts)] == ["UNKNOWN_MODEL"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12}, "no rope entries"),
        ({"model_type": "kimi_linear", "head_dim": 64}, "never rotates"),
        ({"model_type": "dinov3_vit", "hidden_size": 64, "num_attention_heads": 2}, "one axis"),
        ({"model_type": "esm", "hidden_size": 64, "num_attention_heads": 2}, "set not to"),
    ],
)
def test_models_without_a_rotation_of_text_are_refused_by_name(entries, message):
    with pytest.raises(ConfigError, match=message):
        ModelFacts.of(entries)


def test_layouts_bases_and_parts_come_from_the_class():
    def facts(**entries):
        return ModelFacts.of({"head_dim": 64, "max_position_embeddings": 64} | entries)

    assert facts(model_type="cohere").layout == "interleaved"
    assert facts(model_type="gpt_oss").base() == 1.5e5
    gemma = facts(model_type="gemma3_text")
    assert (gemma.base("full_attention"), gemma.base("sliding_attention")) == (1e6, 1e4)
    spec = read_as(facts(model_type="gpt_neox"), "hf").specs["all"]
    assert (spec.head_dim, spec.rotary_dim) == (64, 16)
    ignored = facts(model_type="llama", partial_rotary_factor=0.5, rope_theta=1e4)
    assert read_as(ignored, "hf").specs["all"].rotary_dim == 64
    assert "turns the whole head" in diagnose(ignored)[0].message


ODD = [10**400, -(10**400), 10**30, 0, -1, 1e308, 1e-308, float("inf"), float("nan"), True, "", "x"]
ODD += [[], [[]], {}, {"a": 1}]


@pytest.mark.parametrize(
    "rope_type", ["default", "linear", "dynamic", "yarn", "llama3", "longrope"]
)
def test_no_odd_value_of_any_key_ends_in_another_error(rope_type):
    rope = {"rope_type": rope_type, "factor": 2.0, "original_max_position_embeddings": 64}
    if rope_type == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    plain = {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 128}
    outside = [*plain, "rope_theta", "layer_types", "vocab_size", "partial_rotary_factor"]
    tried = 0
    for odd in ODD:
        cases = [plain | {"rope_scaling": rope | {key: odd}} for key in sorted(ROPE_KEYS)]
        cases += [plain | {"rope_scaling": rope, key: odd} for key in outside]
        for case in cases:
            with contextlib.suppress(ConfigError):
                json.dumps(inspect_config(case).to_json(), allow_nan=False)
            tried += 1
    assert tried == len(ODD) * (len(ROPE_KEYS) + len(outside))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([64, 1e4, 10**400, -1, "yarn", "longrope", "llama3", "dynamic", "linear"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(sorted(ROPE_KEYS)), inner, max_size=5),
    ),
    max_leaves=12,
)
NAMES_OF_KEYS = st.sampled_from(
    [
        "model_type",
        "head_dim",
        "hidden_size",
        "num_attention_heads",
        "max_position_embeddings",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "layer_types",
        "text_config",
        "partial_rotary_factor",
        "vocab_size",
        "original_max_position_embeddings",
        "rotary_dim",
        "rope_local_base_freq",
        "qk_rope_head_dim",
        "num_hidden_layers",
        "rope_layout",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(NAMES_OF_KEYS, VALUES, max_size=6),
    st.sampled_from(["llama", "gemma3_text", "phi3", "gpt_neox", "deepseek_v3", "gptj", "mine"]),
    st.dictionaries(st.sampled_from(sorted(ROPE_KEYS)), VALUES, max_size=5),
    st.booleans(),
)
def test_any_configuration_is_inspected_or_refused_as_a_config_error(entries, name, rope, sane):
    if sane:
        entries = {"model_type": name, "head_dim": 64, "max_position_embeddings": 512} | entries
        entries.setdefault("rope_scaling", rope)
    start = time.monotonic()
    try:
        found = inspect_config(entries, target=1024)
    except ConfigError as error:
        assert str(error) == " ".join(str(error).split())  # noqa: PT017 (either is right)
    else:
        json.dumps(found.to_json(), allow_nan=False)
    assert time.monotonic() - start < 10  # bounded: nothing is sized by a number in the file
