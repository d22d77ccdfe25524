import copy
import math

import numpy as np
import pytest
from config_files import NAMES, SILENT, config

from ropewalk.errors import ConfigError
from ropewalk.spec import NTK
from ropewalk.spec.engines import ENGINES, read_as
from ropewalk.spec.facts import ModelFacts

BUILT_ALIKE = [*SILENT, *NAMES]


def entries(name):
    return copy.deepcopy(SILENT[name]) if name in SILENT else config(name)


def tables_of_transformers(name):
    """Frequencies and amplitude per layer type, as transformers' own module computes them."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    transformers.logging.set_verbosity_error()
    loaded = transformers.AutoConfig.for_model(**entries(name)).get_text_config()
    parameters = loaded.rope_parameters
    nested = {
        k: v for k, v in parameters.items() if k in (getattr(loaded, "layer_types", None) or ())
    }
    for layer_type, values in (nested or {"all": parameters}).items():
        given = {"layer_type": layer_type} if nested else {}
        if values["rope_type"] == "default":
            dim = getattr(loaded, "head_dim", None)
            dim = dim or loaded.hidden_size // loaded.num_attention_heads
            yield layer_type, values["rope_theta"] ** (-np.arange(0, dim, 2) / dim), 1.0
            continue
        table, amplitude = ROPE_INIT_FUNCTIONS[values["rope_type"]](
            loaded, "cpu", seq_len=4096, **given
        )
        yield layer_type, table.double().numpy(), amplitude


@pytest.mark.parity
@pytest.mark.parametrize("name", BUILT_ALIKE)
def test_the_profile_of_transformers_is_what_transformers_computes(name):
    reading = read_as(ModelFacts.of(entries(name)), "hf")
    assert reading.problem is None
    for layer_type, inv_freq, amplitude in tables_of_transformers(name):
        spec = reading.specs[layer_type]
        # transformers computes in float32, with powers of a few ulp
        np.testing.assert_allclose(spec.inv_freq(4096), inv_freq, rtol=1e-6)
        assert spec.attention_factor(4096) == pytest.approx(amplitude, rel=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("model_type", ["llama", "gpt_oss", "cohere", "smollm3", "olmo3", "qwen2"])
def test_default_bases_are_those_of_transformers(model_type):
    transformers = pytest.importorskip("transformers")
    assert (
        transformers.CONFIG_MAPPING[model_type].default_theta
        == ModelFacts.of({"model_type": model_type, "head_dim": 64}).base()
    )


def specs(name, engine):
    return read_as(ModelFacts.of(entries(name)), engine)


def test_only_truncation_moves_gpt_oss_between_engines():
    exact, rounded = specs("gpt-oss-20b", "vllm"), specs("gpt-oss-20b", "llama.cpp")
    ratio = exact.specs["all"].inv_freq() / rounded.specs["all"].inv_freq()
    assert exact.notes == ()
    assert rounded.notes == ("truncate: false is ignored",)
    assert np.max(np.abs(ratio - 1)) == pytest.approx(0.43, abs=0.01)
    assert int(np.argmax(np.abs(ratio - 1))) == 17


PLAIN = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 4096, "rope_theta": 1e4}


def reading(engine, /, model_type="llama", **keys):
    scaling = {"rope_scaling": keys} if keys else {}
    return read_as(ModelFacts.of(PLAIN | {"model_type": model_type} | scaling), engine)


def rule(*arguments, **keys):
    found = reading(*arguments, **keys)
    assert found.problem is None
    return found.specs["all"].scaling


def test_dynamic_is_stateful_static_or_absent():
    dynamic = {"rope_type": "dynamic", "factor": 4.0}
    assert rule("hf", **dynamic).depends_on_length
    # (factor * longest / L - (factor - 1)) with longest = 4 L
    assert rule("sglang", **dynamic) == NTK(13.0)
    # the same formula at the end of its table, which is L
    assert rule("vllm", **dynamic) is None
    assert "past the end of the table" in reading("vllm", **dynamic).notes[0]
    assert rule("llama.cpp", **dynamic) is None


YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}


def m(k):
    return 0.1 * k * math.log(16.0) + 1


@pytest.mark.parametrize(
    ("engine", "model_type", "keys", "amplitude"),
    [
        ("vllm", "llama", {"attention_factor": 1.5}, 1.5),
        ("vllm", "llama", {"mscale": 1.0, "mscale_all_dim": 0.5}, m(1) / m(0.5)),
        ("vllm", "llama", {"mscale": 0.7}, m(1)),
        ("vllm", "gpt_oss", {"attention_factor": 1.5}, m(1)),
        ("sglang", "llama", {"attention_factor": 1.5}, m(1)),
        ("sglang", "llama", {"attn_factor": 1.5}, 1.5 * m(1)),
        ("sglang", "llama", {"mscale": 1.0, "mscale_all_dim": 0.5}, m(1) / m(0.5)),
        ("llama.cpp", "llama", {"attention_factor": 1.5}, m(1)),
        ("llama.cpp", "llama", {"mscale": 1.0, "mscale_all_dim": 1.0}, m(1)),
    ],
)
def test_every_engine_has_its_own_factor_on_cos_and_sin(engine, model_type, keys, amplitude):
    found = reading(engine, model_type=model_type, **YARN, **keys)
    assert found.specs["all"].attention_factor() == pytest.approx(amplitude, rel=1e-12)
    usual = reading("hf", model_type=model_type, **YARN, **keys).specs["all"].attention_factor()
    assert any("cos and sin times" in note for note in found.notes) == (
        abs(usual - amplitude) > 1e-9
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_deepseek_v3_is_read_alike_everywhere(engine):
    theirs = specs("deepseek-v3", engine).specs["all"]
    ours = specs("deepseek-v3", "hf").specs["all"]
    np.testing.assert_allclose(theirs.inv_freq(), ours.inv_freq(), rtol=1e-12)
    assert theirs.attention_factor() == ours.attention_factor() == 1.0


def test_the_betas_of_a_file_reach_few_architectures_of_llama_cpp():
    betas = {"beta_fast": 16.0, "beta_slow": 2.0}
    assert rule("llama.cpp", **YARN, **betas) == rule("hf", **YARN)
    assert rule("llama.cpp", model_type="ministral3", **YARN, **betas).beta_fast == 16.0


def test_what_llama_cpp_does_not_convert_is_not_scaled():
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024}
    llama3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert rule("llama.cpp", **llama3) == rule("hf", **llama3)
    assert rule("llama.cpp", model_type="qwen2", **llama3) is None
    lists = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    assert rule("llama.cpp", original_max_position_embeddings=1024, **lists) is None
    assert rule("llama.cpp", rope_type="ntk", factor=4.0) is None
    alpha = {"rope_type": "dynamic", "alpha": 1000.0}
    assert rule("llama.cpp", **alpha) is None
    assert rule("llama.cpp", model_type="hunyuan_v1_dense", **alpha).alpha == 1000.0


def test_ntk_of_vllm_divides_every_pair():
    factors = np.array(rule("vllm", rope_type="ntk", factor=4.0).factors)
    np.testing.assert_allclose(factors, 4.0 ** (np.arange(1, 33) / 32), rtol=1e-12)
    mixed = np.array(rule("vllm", rope_type="ntk", factor=4.0, mixed_b=0.625).factors)
    rate = math.log(4.0) / 32**0.625
    np.testing.assert_allclose(mixed, np.exp(rate * np.arange(1, 33) ** 0.625), rtol=1e-12)


def test_two_names_that_differ_stop_vllm_alone():
    two = YARN | {"type": "linear"}
    assert "'yarn' and type 'linear' differ" in reading("vllm", **two).problem
    assert reading("sglang", **two).problem is None


def test_su_is_read_by_vllm_and_the_script_of_llama_cpp():
    lists = {"type": "su", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    lists |= {"original_max_position_embeddings": 1024}
    assert "'longrope'" in reading("hf", **lists).problem
    assert rule("vllm", **lists).factors == (2.0,) * 32


@pytest.mark.parity
@pytest.mark.parametrize("inside", [True, False])
def test_su_of_phi_3_stops_transformers_unless_the_length_is_inside(inside):
    transformers = pytest.importorskip("transformers")
    given = config("phi-3-mini-128k")
    original = given["original_max_position_embeddings"]
    given["rope_scaling"] = {
        k: v for k, v in given["rope_scaling"].items() if k in ("short_factor", "long_factor")
    } | {"type": "su"}
    if inside:
        given["rope_scaling"]["original_max_position_embeddings"] = original
    problem = read_as(ModelFacts.of(copy.deepcopy(given)), "hf").problem
    if inside:
        assert problem is None
        assert transformers.AutoConfig.for_model(**given).rope_parameters["rope_type"] == "longrope"
        return
    assert "KeyError" in problem
    with pytest.raises(KeyError):
        transformers.AutoConfig.for_model(**given)
    assert read_as(ModelFacts.of(given), "llama.cpp").problem is None


def test_lists_of_longrope_take_their_amplitude_from_the_lengths():
    lists = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    lists |= {"attention_factor": 1.9, "original_max_position_embeddings": 1024}
    by_lengths = math.sqrt(1 + math.log(4) / math.log(1024))
    for engine in ("vllm", "sglang"):
        assert reading(engine, **lists).specs["all"].attention_factor(9) == pytest.approx(
            by_lengths, rel=1e-12
        )
    assert rule("vllm", **lists).factors == (2.0,) * 32  # nothing beside the dictionary
    equal = lists | {"long_factor": [1.0] * 32, "short_mscale": 1.5, "long_mscale": 1.5}
    del equal["attention_factor"]
    assert reading("vllm", **equal).specs["all"].attention_factor() == 1.5


def test_longrope_is_switched_by_the_server_or_the_context():
    phi = entries("phi-3-mini-128k")["rope_scaling"]
    vllm, cpp = (specs("phi-3-mini-128k", name) for name in ("vllm", "llama.cpp"))
    assert vllm.specs["all"].scaling.factors == tuple(phi["short_factor"])
    assert vllm.specs["all"].attention_factor() == pytest.approx(1.1902380714)
    assert cpp.specs["all"].scaling.factors == tuple(phi["long_factor"])
    assert (vllm.longest, cpp.longest) == (4096, 131072)


def test_vllm_derives_the_longest_context_from_the_rule():
    qwen = specs("qwen2.5-7b-yarn", "vllm")
    assert qwen.longest == 32768  # yarn counts as applied; another factor multiplies
    assert qwen.notes == ("max_position_embeddings = 32768 is the limit; override it for 131072",)
    for engine, longest in (("vllm", 16384), ("sglang", 16384), ("hf", 4096), ("llama.cpp", 4096)):
        assert reading(engine, rope_type="linear", factor=4.0).longest == longest
    assert specs("qwen2.5-7b-yarn", "hf").longest == 32768
    assert specs("gemma-3-4b", "vllm").longest == 131072


def test_an_unread_rope_type_is_a_problem_and_no_exception():
    facts = ModelFacts.of({"head_dim": 64, "rope_scaling": {"type": "ntk", "factor": 2.0}})
    assert "'ntk' is unknown to hf" in read_as(facts, "hf").problem
    assert read_as(facts, "hf").specs == {}


def test_profiles_say_where_they_come_from():
    with pytest.raises(ConfigError, match="tgi"):
        read_as(ModelFacts.of({"model_type": "llama", "head_dim": 64}), "tgi")
    for name in ("vllm", "llama.cpp", "sglang"):
        assert "not executed" in ENGINES[name].provenance
        assert f"derived from source at {ENGINES[name].version}" in ENGINES[name].provenance
