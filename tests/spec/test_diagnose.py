import copy

import pytest
from config_files import CODES, NAMES, SILENT, config

from ropewalk.errors import ConfigError
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.facts import ModelFacts

PLAIN = {
    "model_type": "llama",
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 1e5,
}


def findings(entries, **options):
    return {found.code: found for found in diagnose(ModelFacts.of(entries), **options)}


def scaled(rope_type, **keys):
    return PLAIN | {"rope_scaling": {"rope_type": rope_type} | keys}


@pytest.mark.parametrize("case", SILENT)
def test_each_silent_misreading_is_named(case):
    found = findings(copy.deepcopy(SILENT[case]))
    assert CODES[case] in found
    assert found[CODES[case]].remedy


def test_errors_come_first_and_say_their_values():
    found = diagnose(ModelFacts.of(SILENT["S3"]))
    assert (found[0].code, found[0].severity) == ("THETA_LOST", "error")
    assert "1000000.0 is lost and 10000 is taken" in found[0].message
    assert findings(SILENT["S4"])["THETA_DEFAULTED"].severity == "error"
    assert "max / factor = 32768" in findings(SILENT["S1"])["ORIGINAL_MISSING"].message


def test_a_v4_file_with_its_base_beside_keeps_it():
    entries = {**SILENT["S4"], "rope_scaling": SILENT["S4"]["rope_parameters"], "rope_theta": 1e6}
    del entries["rope_parameters"]
    assert not findings(entries)


def test_the_three_conflicts_name_the_winner():
    both = diagnose(ModelFacts.of(SILENT["S7"]))
    messages = " ".join(f.message for f in both if f.code == "KEY_CONFLICT")
    assert "rope_type wins" in messages
    assert "the inner value wins" in messages
    phi = config("phi-3-mini-128k")
    phi["rope_scaling"]["original_max_position_embeddings"] = 8192
    assert "outer value wins" in findings(phi)["KEY_CONFLICT"].message


@pytest.mark.parametrize("name", NAMES)
def test_published_configurations_are_clean_but_for_the_switch_of_longrope(name):
    assert set(findings(config(name))) == ({"LONGROPE_SWITCH"} if "phi-3" in name else set())


YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize(
    ("code", "entries"),
    [
        ("FACTOR_MISMATCH", scaled("yarn", **YARN | {"factor": 2.0})),
        ("BETA_ORDER", scaled("yarn", **YARN, beta_fast=1, beta_slow=32)),
        ("ATTN_FACTOR_SUSPECT", scaled("yarn", **YARN, attention_factor=1.1386294**2)),
        ("ATTN_FACTOR_SUSPECT", scaled("yarn", **YARN, attention_factor=0.1)),
        ("UNKNOWN_KEY", scaled("yarn", **YARN, attn_factor=1.0)),
        ("INVERTED_SCALE", scaled("linear", factor=0.125)),
        ("CACHE_DEPENDENT", scaled("dynamic", factor=2.0)),
        ("UNKNOWN_TYPE", scaled("ntk", factor=2.0)),
        ("UNKNOWN_TYPE", scaled("su", short_factor=[1.0] * 32, long_factor=[2.0] * 32)),
        ("BAD_VALUE", scaled("linear", factor="4.0")),
        ("BAD_VALUE", scaled("linear")),
        ("ODD_DIM", PLAIN | {"head_dim": 63}),
        (
            "LIST_LENGTH",
            scaled(
                "longrope",
                short_factor=[1.0] * 32,
                long_factor=[2.0] * 31,
                original_max_position_embeddings=1024,
            ),
        ),
        (
            "WINDOW_WITHOUT_SCALING",
            PLAIN | {"vocab_size": 128256, "rope_theta": 5e5, "max_position_embeddings": 65536},
        ),
    ],
)
def test_every_other_code_has_a_case(code, entries):
    assert code in findings(entries)
    assert code not in findings(PLAIN)


def test_vllm_multiplies_a_window_that_may_be_extended_already():
    entries = scaled("linear", factor=4.0) | {"max_position_embeddings": 32768}
    assert "131072" in findings(entries, engines=("vllm",))["DOUBLE_EXTENSION"].message
    assert not findings(entries, engines=("hf",))


def test_scaled_sliding_layers_are_named_with_their_layer_type():
    entries = copy.deepcopy(SILENT["S6"])
    entries["rope_parameters"]["sliding_attention"] = {"rope_type": "linear", "factor": 8.0}
    assert findings(entries)["SLIDING_LAYERS_SCALED"].layer_type == "sliding_attention"


def test_an_unknown_key_is_met_with_the_nearest_known_one():
    found = findings(scaled("yarn", **YARN, attentio_factor=1.0))["UNKNOWN_KEY"]
    assert "'attention_factor'" in found.message


@pytest.mark.parametrize("entries", [{}, {"head_dim": 64, "rope_scaling": 3}, {"head_dim": "x"}])
def test_what_is_no_configuration_is_refused(entries):
    with pytest.raises(ConfigError, match=r"config must hold|must be"):
        findings(entries)
