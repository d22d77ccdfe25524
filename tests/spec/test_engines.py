import copy

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


def test_dynamic_is_stateful_static_or_absent():
    entries = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 4096}
    entries |= {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "rope_theta": 1e4}
    facts = ModelFacts.of(entries)
    assert read_as(facts, "hf").specs["all"].depends_on_length
    # (factor * longest / L - (factor - 1)) with longest = 4 L
    assert read_as(facts, "vllm").specs["all"].scaling == NTK(13.0)
    assert read_as(facts, "llama.cpp").specs["all"].scaling is None


def test_longrope_is_switched_by_the_server_or_the_context():
    phi = entries("phi-3-mini-128k")["rope_scaling"]
    vllm, cpp = (specs("phi-3-mini-128k", name) for name in ("vllm", "llama.cpp"))
    assert vllm.specs["all"].scaling.factors == tuple(phi["short_factor"])
    assert vllm.specs["all"].attention_factor() == pytest.approx(1.1902380714)
    assert cpp.specs["all"].scaling.factors == tuple(phi["long_factor"])
    assert (vllm.longest, cpp.longest) == (4096, 131072)


def test_vllm_derives_the_longest_context_from_the_rule():
    assert specs("qwen2.5-7b-yarn", "vllm").longest == 131072
    assert specs("qwen2.5-7b-yarn", "hf").longest == 32768
    assert specs("gemma-3-4b", "vllm").longest == 131072


def test_an_unread_rope_type_is_a_problem_and_no_exception():
    facts = ModelFacts.of({"head_dim": 64, "rope_scaling": {"type": "ntk", "factor": 2.0}})
    assert "KeyError" in read_as(facts, "hf").problem
    assert read_as(facts, "hf").specs == {}


def test_profiles_say_where_they_come_from():
    with pytest.raises(ConfigError, match="tgi"):
        read_as(ModelFacts.of({"model_type": "llama", "head_dim": 64}), "tgi")
    for name in ("vllm", "llama.cpp", "sglang"):
        assert "not executed" in ENGINES[name].provenance
    for name in ("vllm", "sglang"):
        assert "derived from source at" in ENGINES[name].provenance
