import copy

import numpy as np
import pytest
from config_files import NAMES, SILENT, config

from ropewalk.errors import ConfigError
from ropewalk.spec import Linear, RopeSpec
from ropewalk.spec.difference import compare_readings, compare_specs
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts
from ropewalk.spec.rewrite import convert_config


def reading(entries, engine="hf"):
    return read_as(ModelFacts.of(entries), engine)


def test_the_first_position_is_where_the_error_passes_a_tenth_of_a_radian():
    a = RopeSpec(4, "half", theta=1e4)
    b = a.replace(scaling=Linear(1.001))
    found = compare_specs(a, b)
    gap = 1 - 1 / 1.001
    assert (found.first_position, found.worst_pair) == (int(0.1 / gap) + 1, 0)
    assert (found.first_position - 1) * gap <= 0.1 < found.first_position * gap
    np.testing.assert_allclose(found.ratios, 1 / 1.001, rtol=1e-15)


def test_alike_is_alike_and_layouts_count():
    a = RopeSpec(8, "half")
    assert compare_specs(a, a).is_none
    assert compare_specs(a, a).first_position is None
    assert not compare_specs(a, a.replace(layout="interleaved")).is_none
    with pytest.raises(ConfigError, match="got 4 and 2"):
        compare_specs(a, RopeSpec(4, "half"))


def test_a_lost_base_shows_from_the_first_token_on():
    right = copy.deepcopy(SILENT["S4"])
    right["rope_parameters"] = right["rope_parameters"] | {"rope_theta": 1e6}
    (found,) = compare_readings(reading(right), reading(SILENT["S4"]))
    assert not found.is_none
    assert (found.first_position, found.worst_pair) == (1, 6)


def test_one_rotation_is_compared_with_each_layer_type():
    gemma = config("gemma-3-4b")
    flat = {"model_type": "llama", "head_dim": 256, "rope_theta": 1e4}
    flat["max_position_embeddings"] = 8192
    full, local = compare_readings(reading(gemma), reading(flat))
    assert (full.layer_type, full.is_none) == ("full_attention", False)
    assert (local.layer_type, local.is_none) == ("sliding_attention", True)


@pytest.mark.parametrize("form", ["v4", "v5"])
@pytest.mark.parametrize("name", NAMES)
def test_another_form_rotates_alike(name, form):
    before = config(name)
    after = convert_config(before, to=form)
    assert ModelFacts.of(after).form == form
    assert before == config(name)
    for found in compare_readings(reading(before), reading(after), seq_len=10_000):
        assert found.is_none
    back = convert_config(after, to="v5" if form == "v4" else "v4")
    for found in compare_readings(reading(before), reading(back), seq_len=10_000):
        assert found.is_none


@pytest.mark.parity
@pytest.mark.parametrize("name", ["qwen2.5-7b-yarn", "llama-3.1-8b", "gpt-oss-20b"])
def test_what_is_written_loads_in_transformers_with_its_base(name):
    transformers = pytest.importorskip("transformers")
    entries = convert_config(config(name), to="v5")
    loaded = transformers.AutoConfig.for_model(**entries)
    assert loaded.rope_parameters == entries["rope_parameters"]


def test_errors_are_not_carried_over():
    with pytest.raises(ConfigError, match="THETA_LOST"):
        convert_config(SILENT["S3"], to="v5")
    nested = {"head_dim": 64, "layer_types": ["a", "b"], "rope_parameters": {}}
    for name, theta in (("a", 1e4), ("b", 1e6)):
        nested["rope_parameters"][name] = {"rope_type": "default", "rope_theta": theta}
    with pytest.raises(ConfigError, match="cannot hold layer types"):
        convert_config(nested, to="v4")
