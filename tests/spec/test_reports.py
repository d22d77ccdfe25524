"""Reports on configurations that are read wrongly, and the published numbers about them.

The seven silent misreadings are in ``test_diagnose.py``, engines in ``test_engines.py``; here are
the reports and numbers that no other file of this folder names.
"""

import copy
import warnings

import numpy as np
import pytest
from config_files import SILENT, config

import ropewalk as rw
from ropewalk import ConfigError, RopeSpec
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.facts import ModelFacts
from ropewalk.spec.inspection import first_negative, inspect_config

SMALL = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def small(model_type="llama", **entries):
    return {"model_type": model_type, **SMALL, **entries}


def codes(entries, **options):
    return [found.code for found in diagnose(ModelFacts.of(entries), **options)]


# Published numbers


@pytest.mark.parametrize(
    ("theta", "width", "rule", "distance"),
    [
        (1e4, 128, None, 1707),  # Llama-2-7B, trained at 4096
        (1e4, 128, rw.Yarn(16.0, 4096), 11671),
        (1e4, 128, rw.Yarn(32.0, 4096), 25500),
        (5e5, 128, None, 18438),  # Llama-3-8B
        (5e5, 128, rw.Llama3(8.0, 8192), 85133),
        (1e6, 128, None, 27115),  # Qwen2.5-7B
        (1e6, 128, rw.Yarn(4.0, 32768), 66234),
        (1e6, 256, None, 71627),  # Gemma-3, global
        (1e4, 256, None, 2653),  # and local
        (1e5, 64, None, 3616),  # SmolLM2-135M
        (1e5, 64, rw.Yarn(2.0, 8192), 6506),
        (1e5, 64, rw.Yarn(4.0, 8192), 9052),
        (1e5, 64, rw.NTK(4.0), 6669),
        (1e5, 64, rw.Linear(4.0), 14463),
        # a larger base is not always better
        (5e5, 64, None, 9937),
        (1e6, 64, None, 6235),
    ],
)
def test_first_negative_similarity_of_published_models(theta, width, rule, distance):
    spec = RopeSpec(width, "half", theta=theta, scaling=rule)
    assert first_negative(spec.inv_freq(), limit=1 << 17) == distance


def test_half_a_head_that_turns_is_never_negative():
    still = np.zeros(32)
    turning = RopeSpec(64, "half").inv_freq()
    assert first_negative(turning, limit=4096) is not None
    assert first_negative(np.concatenate([turning, still]), limit=4096) is None


@pytest.mark.parametrize(
    ("theta", "width", "trained", "critical"),
    [
        (1e4, 128, 4096, 92),
        (1e5, 64, 8192, 40),
        (5e5, 128, 8192, 70),
        (1e6, 128, 32768, 80),
        (1e6, 256, 32768, 160),  # so 48 of the 128 global pairs of Gemma-3-270m never turn round
    ],
)
def test_critical_dimensions(theta, width, trained, critical):
    entries = {"model_type": "llama", "head_dim": width, "rope_theta": theta}
    (found,) = inspect_config(entries | {"max_position_embeddings": trained}).layers
    assert found.critical_dim == critical
    assert found.never_turning == (width - critical) // 2


def test_turns_and_wavelengths_of_smollm2():
    (found,) = inspect_config(config("smollm2-135m")).layers
    turns = np.array(found.turns)
    assert (np.sum(turns >= 32), np.sum((turns >= 1) & (turns < 32))) == (11, 9)
    assert (found.never_turning, np.sum(turns < 0.5)) == (12, 10)
    waves = RopeSpec(64, "half", theta=1e5).wavelengths()
    assert (waves[0], waves[-1]) == pytest.approx((6.283185, 438460), rel=1e-6)


def test_yarn_of_llama_2_and_the_bases_of_ntk():
    assert rw.Yarn(16.0, 4096).amplitude(None) == pytest.approx(1.277, abs=5e-4)
    ladder = RopeSpec(64, "half", theta=1e5).ladder
    assert rw.NTK(2.0).theta(ladder) == pytest.approx(204522, abs=1)
    assert rw.NTK(4.0).theta(ladder) == pytest.approx(418294, abs=1)


def test_longrope_from_64_to_512():
    rule = rw.LongRope((1.0,), (2.0,), 64, factor=8.0)
    assert rule.amplitude(64) == rule.amplitude(512) == pytest.approx(1.2247, abs=5e-5)


# Shapes of configurations


def test_default_is_a_type_like_any_other():
    """ROCm/aiter#4742, unslothai/unsloth#6223, sgl-project/sglang#14745: taken for YaRN."""
    entries = small(rope_theta=1e6, max_position_embeddings=4096)
    plain = RopeSpec.from_config(entries)
    for name in ("rope_type", "type"):
        given = entries | {"rope_scaling": {name: "default"}}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert RopeSpec.from_config(given) == plain
        assert codes(given) == codes(entries) == []


def test_type_and_rope_type_are_one_key():
    """huggingface/transformers#32167, huggingface/transformers#32182."""
    specs = [
        RopeSpec.from_config(small(rope_theta=1e4, rope_scaling=names | {"factor": 2.0}))
        for names in (
            {"type": "linear"},
            {"rope_type": "linear"},
            {"type": "linear", "rope_type": "linear"},
        )
    ]
    assert specs[0] == specs[1] == specs[2]
    assert specs[0].scaling == rw.Linear(2.0)


def test_the_base_is_found_on_both_sides_of_transformers_5():
    """vllm-project/vllm#42624, #44158, Open-Athena/MarinFold#184, deepspeedai/DeepSpeed#8345."""
    old = small(rope_theta=5e5, rope_scaling={"rope_type": "linear", "factor": 2.0})
    new = small(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    assert RopeSpec.from_config(old) == RopeSpec.from_config(new)
    assert RopeSpec.from_config(new).theta == 5e5


def test_scaling_that_is_declared_is_applied():
    """Blaizzy/mlx-vlm#1710, unslothai/unsloth#6197, felafax/felafax#59: llama3 only parsed."""
    entries = config("llama-3.1-8b")
    spec = RopeSpec.from_config(entries)
    plain = spec.replace(scaling=None)
    assert isinstance(spec.scaling, rw.Llama3)
    # alike in the first 29 pairs, which is why short prompts showed nothing
    ratio = spec.inv_freq() / plain.inv_freq()
    assert (ratio[:29] == 1.0).all()
    assert ratio[-1] == pytest.approx(1 / 8)


def test_a_spec_cannot_be_changed_without_effect():
    """MakazhanAlpamys/Soup#793: scaling was set on the config after the table was made."""
    spec = RopeSpec(64, "half")
    with pytest.raises(AttributeError):
        spec.scaling = rw.Linear(2.0)
    assert spec.replace(scaling=rw.Linear(2.0)).inv_freq()[0] == 0.5


def test_composite_configs_are_read_in_their_text_part():
    """NVIDIA-NeMo/Automodel#2652, QwenLM/Qwen2.5-Omni#373: KeyError, "unrecognized keys"."""
    scaling = {"type": "yarn", "factor": 4.0}
    text = small("qwen2", rope_theta=1e6, max_position_embeddings=32768, rope_scaling=scaling)
    whole = {"model_type": "llava", "text_config": text}
    with pytest.warns(rw.RopeConfigWarning, match="max_position_embeddings, 32768"):
        spec = RopeSpec.from_config(whole)
    assert spec.scaling == rw.Yarn(4.0, 32768)
    assert "ORIGINAL_MISSING" in codes(whole)


def test_nested_yarn_is_read_in_its_own_dictionary():
    """huggingface/transformers#45887 (KeyError), and truncate, which transformers still loses."""
    entries = copy.deepcopy(SILENT["S6"])
    own = entries["rope_parameters"]["full_attention"]
    assert own["truncate"] is False
    specs = RopeSpec.per_layer_type(entries)
    assert specs["full_attention"].scaling.original_max_position_embeddings == 32768
    assert specs["sliding_attention"].scaling is None
    found = {f.code: f for f in diagnose(ModelFacts.of(entries))}
    assert found["TRUNCATE_IGNORED_NESTED"].layer_type == "full_attention"


@pytest.mark.parametrize("name", ["su", "mrope", "longrope_", "xdrope"])
def test_names_of_other_classes_are_refused(name):
    """huggingface/transformers 5.24 warns, and then dies with a KeyError."""
    with pytest.raises(ConfigError, match=f"rope_type must be one of .*{name}"):
        RopeSpec.from_config(small(rope_scaling={"type": name, "factor": 2.0}))


def test_a_partial_factor_that_the_class_ignores_is_refused():
    """huggingface/transformers 5.24: no effect for default, a shape error for linear."""
    for rule in ({}, {"rope_type": "linear", "factor": 2.0}):
        entries = small(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5} | rule)
        with pytest.raises(ConfigError, match=r"partial_rotary_factor must be 1.*got 0\.5"):
            RopeSpec.from_config(entries)


def test_phimoe_reads_the_short_list_at_every_length():
    """huggingface/transformers 5.24: its rope_init_fn is called without a length."""
    lists = {"short_factor": [1.5] * 64, "long_factor": [4.0] * 64}
    scaling = {"type": "longrope", "short_mscale": 1.1, "long_mscale": 1.3} | lists
    scaling["original_max_position_embeddings"] = 4096
    entries = small("phimoe", rope_theta=1e4, max_position_embeddings=131072, rope_scaling=scaling)
    spec = RopeSpec.from_config(entries)
    ladder = spec.ladder.inv_freq()
    np.testing.assert_allclose(spec.inv_freq(100), ladder / 1.5, rtol=1e-15)
    np.testing.assert_allclose(spec.inv_freq(100_000), ladder / 1.5, rtol=1e-15)
    assert (spec.attention_factor(4096), spec.attention_factor(4097)) == (1.1, 1.3)


@pytest.mark.parametrize("model_type", ["gpt_neox", "gpt_neox_japanese"])
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_share_of_the_head_turns(model_type, share):
    """huggingface/transformers#48652, #48630: a refactor took Llama's formula."""
    spec = RopeSpec.from_config(small(model_type, rotary_pct=share))
    assert spec.rotary_dim == int(128 * share)
    np.testing.assert_allclose(
        spec.inv_freq(), 1e4 ** (-np.arange(0, spec.rotary_dim, 2) / spec.rotary_dim), rtol=1e-14
    )


def test_yarn_in_gemma_reaches_global_layers_only():
    """huggingface/transformers#41922, vllm-project/vllm#29111, Blaizzy/mlx-vlm#1709."""
    specs = RopeSpec.per_layer_type(config("gemma-3-4b"))
    assert specs["full_attention"].scaling == rw.Linear(8.0)
    assert specs["sliding_attention"] == RopeSpec(256, "half", theta=1e4)


def test_an_indexer_that_the_config_leaves_out_is_not_there():
    entries = small("qwen4_exp_text", head_dim=128, layer_types=["full_attention"] * 2)
    entries["rope_parameters"] = {"rope_theta": 1e4, "mrope_section": [24, 20, 20]}
    layers = rw.rope_layers(entries)
    assert [list(layer) for layer in layers] == [["attention"]] * 2
    assert RopeSpec.from_config(entries) == layers[0]["attention"].spec
    layers = rw.rope_layers(entries | {"indexer_head_dim": 128})
    assert [list(layer) for layer in layers] == [["attention", "indexer"]] * 2
