import copy
import json

import pytest
from config_files import NAMES, SILENT, config

from ropewalk.errors import ConfigError
from ropewalk.spec.difference import compare_readings
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts
from ropewalk.spec.server_flags import (
    _ARCHITECTURES,
    llama_cpp_flags,
    server_command,
    with_flags,
)

LLAMA = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 4096, "rope_theta": 1e5}


def reading(entries):
    return read_as(ModelFacts.of(entries), "hf")


def rotate_alike(a, b):
    return all(found.is_none for found in compare_readings(reading(a), reading(b), seq_len=10_000))


def scaled(**keys):
    return LLAMA | {"rope_scaling": keys}


def test_flags_of_llama_cpp():
    flags = " ".join(llama_cpp_flags(config("qwen2.5-7b-yarn")))
    assert flags == (
        "--rope-freq-base 1000000 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768 "
        "--ctx-size 131072 --override-kv qwen2.context_length=int:131072"
    )
    with pytest.raises(ConfigError, match="'llama3'"):
        llama_cpp_flags(config("llama-3.1-8b"))
    with pytest.raises(ConfigError, match="truncate: false"):
        llama_cpp_flags(config("gpt-oss-20b"))
    with pytest.raises(ConfigError, match="layer types"):
        llama_cpp_flags(config("gemma-3-4b"))


def gguf_entries(architecture, **scaling):
    return {
        "model_type": architecture,
        "rope_layout": "half",
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"} | scaling,
    }


def test_the_length_in_the_file_is_overridden_where_the_rotation_reaches_further():
    """ggml-org/llama.cpp#17459, #22140: the server caps the context; #28030 for YaRN alone."""
    linear = llama_cpp_flags(gguf_entries("qwen3", rope_type="linear", factor=4.0))
    assert linear[-4:] == [
        *("--ctx-size", "16384"),
        *("--override-kv", "qwen3.context_length=int:16384"),
    ]
    assert llama_cpp_flags(gguf_entries("qwen3"))[-2:] == ["--ctx-size", "4096"]
    # no guess where the name of the entry is not known
    other = scaled(rope_type="linear", factor=4.0) | {"model_type": "granite"}
    assert llama_cpp_flags(other)[-2:] == ["--ctx-size", "16384"]


@pytest.mark.parametrize("architecture", sorted(set(_ARCHITECTURES.values())))
def test_architectures_are_those_of_gguf(architecture):
    gguf = pytest.importorskip("gguf")
    assert architecture in gguf.MODEL_ARCH_NAMES.values()


def test_yarn_starts_from_an_overridden_length():
    flags = ["--rope-scaling", "yarn", "--rope-scale", "2"]
    override = [
        "--override-kv",
        "tokenizer.ggml.add_bos_token=bool:false,llama.context_length=int:8192",
    ]
    originals = [
        with_flags(LLAMA, given)["rope_parameters"]["original_max_position_embeddings"]
        for given in (flags, flags + override, [*flags, *override, "--yarn-orig-ctx", "2048"])
    ]
    assert originals == [4096, 8192, 2048]


def test_overrides_repeat_the_base_and_raise_the_limit():
    name, overrides, *length = server_command(config("qwen2.5-7b-yarn"), engine="vllm")
    assert (name, length) == ("--hf-overrides", ["--max-model-len", "131072"])
    written = json.loads(overrides)
    assert written["rope_parameters"]["rope_theta"] == 1e6
    assert written["max_position_embeddings"] == 131072  # vLLM refuses more than that
    command = server_command(config("llama-3.1-8b"), engine="sglang")
    assert command[0] == "--json-model-override-args"
    assert command[2:] == ["--context-length", "131072"]
    assert list(json.loads(command[1])) == ["rope_parameters"]


def test_overrides_of_a_composite_stand_below_its_text_part():
    overrides = json.loads(server_command(config("gemma-3-4b"), engine="vllm")[1])
    assert overrides["text_config"]["rope_parameters"]["full_attention"]["factor"] == 8.0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("name", NAMES)
def test_overrides_over_an_unscaled_file_give_the_rotation_back(name, engine):
    wanted = config(name)
    plain = copy.deepcopy(wanted)
    text = plain.get("text_config", plain)
    for key in ("rope_scaling", "rope_parameters", "rope_theta"):
        text.pop(key, None)
    given = with_flags(plain, server_command(wanted, engine=engine))
    assert rotate_alike(given, wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        LLAMA,
        scaled(rope_type="linear", factor=4.0),
        scaled(rope_type="yarn", factor=8.0, original_max_position_embeddings=2048),
        scaled(
            rope_type="yarn",
            factor=2.5,
            original_max_position_embeddings=4096,
            beta_fast=16,
            beta_slow=2,
        ),
    ],
)
def test_flags_of_llama_cpp_over_an_unscaled_file_give_the_rotation_back(wanted):
    plain = {key: value for key, value in wanted.items() if key != "rope_scaling"}
    assert rotate_alike(with_flags(plain, llama_cpp_flags(wanted)), wanted)


def test_a_scale_may_be_given_as_its_inverse_and_joined_by_an_equals_sign():
    half = with_flags(LLAMA, ["--host", "0.0.0.0", "--rope-freq-scale=0.25", "-c", "16384"])
    assert half["rope_parameters"] == {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}
    assert with_flags(scaled(rope_type="linear", factor=4.0), ["--rope-scaling", "none"])[
        "rope_parameters"
    ] == {"rope_type": "default", "rope_theta": 1e5}


def test_an_override_without_the_base_loses_it():
    given = with_flags(LLAMA, ["--hf-overrides", '{"rope_parameters": {"rope_type": "default"}}'])
    assert reading(given).specs["all"].theta == 1e4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rope-scale", "x"], "'x'"),
        (["--rope-scale", "-1"], "'-1'"),
        (["--rope-scale", "nan"], "'nan'"),
        (["--rope-scaling", "ntk"], "'ntk'"),
        (["--rope-freq-base"], "must have a value"),
        (["--yarn-ext-factor", "0"], "--yarn-ext-factor"),
        (["--override-kv", "llama.rope.freq_base=float:1e6"], "freq_base=float:1e6"),
        (["--override-kv", "llama.context_length=int:no"], "'no'"),
        (["--hf-overrides", "{"], "JSON object"),
        (["--hf-overrides", "[]"], "JSON object"),
    ],
)
def test_flags_that_are_not_understood_are_refused(flags, message):
    with pytest.raises(ConfigError, match=message):
        with_flags(LLAMA, flags)


def test_flags_are_not_joined_with_divisors_or_errors():
    with pytest.raises(ConfigError, match="llama3"):
        with_flags(config("llama-3.1-8b"), ["--rope-scale", "2"])
    with pytest.raises(ConfigError, match="THETA_LOST"):
        with_flags(SILENT["S3"], [])
