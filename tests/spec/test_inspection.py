import json

import numpy as np
import pytest
from config_files import NAMES, config

from ropewalk.spec.inspection import SCHEMA, inspect_config


def layer(name, layer_type="all", **options):
    return {x.layer_type: x for x in inspect_config(config(name), **options).layers}[layer_type]


def near(value):
    return pytest.approx(value, rel=2e-7)  # the values are stated with eight digits


GOLDEN = {
    "llama-3.1-8b": {
        28: 3.211446e-3,
        29: 2.1665708e-3,
        32: 5.2484616e-4,
        35: 9.5562124e-5,
        40: 3.4281022e-5,
        63: 3.068926e-7,
    },
    "qwen2.5-7b-yarn": {
        22: 8.6596432e-3,
        24: 5.3753215e-3,
        30: 1.064361e-3,
        39: 6.4903943e-5,
        63: 3.1023444e-7,
    },
}


@pytest.mark.parametrize("name", GOLDEN)
def test_frequencies_are_the_published_ones(name):
    found = layer(name)
    for pair, value in GOLDEN[name].items():
        assert found.inv_freq[pair] == near(value)


@pytest.mark.parametrize(
    ("name", "ramp", "amplitude", "softmax"),
    [
        ("qwen2.5-7b-yarn", (23, 40), 1.1386294, 1.0),
        ("gpt-oss-20b", (8.0928, 17.3980), 1.3465736, 1.0),
        ("deepseek-v3", (10, 23), 1.0, 1.8738542),  # (0.1 ln 40 + 1)^2
        ("phi-3-mini-128k", None, 1.190238, 1.0),
        ("llama-3.1-8b", None, 1.0, 1.0),
    ],
)
def test_ramp_amplitude_and_softmax_scale(name, ramp, amplitude, softmax):
    found = layer(name)
    assert found.ramp == (None if ramp is None else pytest.approx(ramp, abs=5e-5))
    assert found.attention_factor == pytest.approx(amplitude, abs=5e-7)
    assert found.softmax_scale_factor == pytest.approx(softmax, abs=5e-8)


@pytest.mark.parametrize(
    ("name", "untouched", "critical", "never"),
    [
        ("llama-3.1-8b", 29, 70, 29),
        ("qwen2.5-7b-yarn", 24, 80, 24),
        ("smollm2-135m", 32, 40, 12),
    ],
)
def test_pairs_that_never_turn_in_the_trained_window(name, untouched, critical, never):
    found = layer(name)
    assert sum(abs(factor - 1) < 1e-12 for factor in found.pair_factors) == untouched
    assert (found.critical_dim, found.never_turning) == (critical, never)


@pytest.mark.parametrize(
    ("name", "distance"),
    [("smollm2-135m", 3616), ("qwen2.5-7b", 27115), ("llama-3.1-8b", 85133)],
)
def test_first_negative_similarity(name, distance):
    assert layer(name).first_negative == distance


def test_gemma_has_two_tables():
    full, local = (layer("gemma-3-4b", f"{kind}_attention") for kind in ("full", "sliding"))
    assert (full.theta, full.pair_factors[0], full.trained) == (1e6, 8.0, None)
    assert (local.theta, local.rope_type, local.first_negative) == (1e4, "default", 2653)
    assert full.never_turning == 0  # the trained length is not known, so nothing is claimed


def test_candidates_for_four_times_the_context():
    found = layer("smollm2-135m", target=32768)
    assert [
        (c.method, c.pairs_changed, round(c.attention_factor, 3), c.never_turning, c.first_negative)
        for c in found.candidates
    ] == [
        ("yarn", 21, 1.139, 14, 9052),
        ("llama3", 15, 1.0, 13, 9052),
        ("ntk", 31, 1.0, 14, 6669),
        ("linear", 32, 1.0, 15, 14463),
    ]
    assert layer("llama-3.1-8b", target=262144).candidates == ()  # never replace a rule blindly


def test_the_smallest_factor_that_covers_the_target():
    (yarn, *_) = layer("qwen2.5-7b", target=65536).candidates
    assert (yarn.factor, yarn.attention_factor) == (2.0, pytest.approx(1.0693, abs=5e-5))


def test_the_effective_factor_is_that_of_the_first_pair_that_never_turns():
    found = layer("llama-3.1-8b")
    assert found.critical_factor == pytest.approx(8.0)
    assert max(found.pair_factors) == pytest.approx(8.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_json_form_is_plain_and_versioned(name):
    form = inspect_config(config(name), target=8192).to_json()
    assert form["schema"] == SCHEMA == "ropewalk.inspect/1"
    assert json.loads(json.dumps(form, allow_nan=False))["schema"] == SCHEMA
    assert {row["engine"] for row in form["engines"]} == {"hf", "vllm", "llama.cpp", "sglang"}
    assert np.isfinite(form["layer_types"][0]["inv_freq"]).all()
