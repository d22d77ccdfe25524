"""Configs in every shape found in the wild, and what each means."""

import json
import math

import numpy as np
import pytest

import ropewalk as rw
from ropewalk import ConfigError, RopeConfigWarning, RopeSpec

LLAMA31 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "num_hidden_layers": 8,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window_pattern": 6,
    },
}
PHI3 = {
    "model_type": "phi3",
    "hidden_size": 384,
    "num_attention_heads": 4,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "su",
        "short_factor": [1.0] * 48,
        "long_factor": [float(j + 1) for j in range(48)],
    },
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
SMALL = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4}


def small(model_type, **entries):
    return {"model_type": model_type, **SMALL, **entries}


def test_llama3_of_transformers_4():
    spec = RopeSpec.from_config(LLAMA31)
    rule = rw.Llama3(8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    assert spec == RopeSpec(128, "half", theta=500000.0, scaling=rule)


def test_the_shape_of_transformers_5_means_the_same():
    config = {k: v for k, v in LLAMA31.items() if k not in ("rope_theta", "rope_scaling")}
    config["rope_parameters"] = LLAMA31["rope_scaling"] | {"rope_theta": 500000.0}
    assert RopeSpec.from_config(config) == RopeSpec.from_config(LLAMA31)


def test_a_file_a_folder_and_an_object_mean_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA31))

    class Config:
        def to_dict(self):
            return LLAMA31

    want = RopeSpec.from_config(LLAMA31)
    for x in (tmp_path, str(tmp_path), tmp_path / "config.json", Config()):
        assert RopeSpec.from_config(x) == want


def test_gemma3_has_a_base_and_a_rule_per_layer_type():
    specs = RopeSpec.per_layer_type(GEMMA3)
    assert specs == {
        "full_attention": RopeSpec(256, "half", theta=1e6, scaling=rw.Linear(8.0)),
        "sliding_attention": RopeSpec(256, "half", theta=1e4),
    }
    layers = rw.rope_layers(GEMMA3)
    thetas = [layer["attention"].spec.theta for layer in layers]
    assert thetas == [1e4] * 5 + [1e6] + [1e4] * 2
    with pytest.raises(ConfigError, match=r"several .*per_layer_type.*rope_layers"):
        RopeSpec.from_config(GEMMA3)


def test_phi3_calls_longrope_su():
    spec = RopeSpec.from_config(PHI3)
    assert isinstance(spec.scaling, rw.LongRope)
    assert spec.scaling.factor == 32.0
    assert spec.attention_factor(100) == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    assert spec.inv_freq(5000)[-1] == pytest.approx(spec.inv_freq(4096)[-1] / 48)


def test_deepseek_rotates_a_slice_and_scales_the_softmax():
    spec = RopeSpec.from_config(DEEPSEEK)
    assert (spec.head_dim, spec.rotary_dim, spec.rotary_offset) == (192, 64, 128)
    assert (spec.layout, spec.output_layout) == ("interleaved", "half")
    assert spec.attention_factor() == 1.0
    use = rw.rope_layers(DEEPSEEK)[0]["attention"]
    assert use.softmax_scale_factor == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    other = RopeSpec.from_config(DEEPSEEK | {"rope_interleave": False})
    assert other.layout == other.output_layout == "half"


def test_gpt_oss_without_a_dictionary_is_the_documented_one():
    spec = RopeSpec.from_config({"model_type": "gpt_oss"})
    assert spec.theta == 150000.0
    assert spec.attention_factor() == pytest.approx(1.3466, abs=1e-4)
    assert spec.scaling.truncate is False


def test_legacy_keys():
    neox = RopeSpec.from_config(small("gpt_neox", rotary_pct=0.5, rotary_emb_base=20000))
    assert (neox.rotary_dim, neox.theta) == (32, 20000.0)
    assert RopeSpec.from_config(small("gpt_neox")).rotary_dim == 16
    gptj = RopeSpec.from_config({"model_type": "gptj", "n_embd": 4096, "n_head": 16})
    assert (gptj.head_dim, gptj.rotary_dim, gptj.layout) == (256, 64, "interleaved")
    bert = RopeSpec.per_layer_type(
        small("modernbert", global_rope_theta=80000.0, local_rope_theta=5000.0)
    )
    assert [spec.theta for spec in bert.values()] == [80000.0, 5000.0]


def test_mrope_of_transformers_4():
    config = small(
        "qwen2_vl",
        head_dim=128,
        rope_theta=1e6,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
    )
    spec = RopeSpec.from_config(config)
    assert [axis for axis, _ in spec.axes] == [0] * 16 + [1] * 24 + [2] * 24
    with pytest.raises(ConfigError, match=r"add up to the 64 .*\[1, 2, 3\]"):
        RopeSpec.from_config(config | {"rope_scaling": {"mrope_section": [1, 2, 3]}})
    with pytest.raises(ConfigError, match=r"mrope_interleaved must be .*False; got True"):
        RopeSpec.from_config(config | {"rope_scaling": {"mrope_interleaved": True}})


def test_proportional_pairs_reach_over_the_whole_head():
    config = {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text"}}
    config["text_config"] |= {"head_dim": 256, "global_head_dim": 512}
    spec = RopeSpec.per_layer_type(config)["full_attention"]
    pairs = spec.pairs()
    assert (pairs.in_a[0], pairs.in_b[0]) == (0, 256)
    assert np.count_nonzero(pairs.inv_freq) == 64


def test_hunyuan_keys_that_nobody_reads_are_named():
    unused = {"beta_fast": 32, "factor": 1.0}
    config = small("hunyuan_v1_dense", rope_scaling={"type": "dynamic", "alpha": 1000.0, **unused})
    config["rope_theta"] = 1e4
    with pytest.warns(RopeConfigWarning) as caught:
        spec = RopeSpec.from_config(config)
    assert spec.scaling == rw.DynamicNTK(alpha=1000.0)
    assert sorted(str(w.message).split("'")[1] for w in caught) == sorted(unused)


def test_an_entry_beside_the_dictionary_that_nobody_reads_is_named():
    with pytest.warns(RopeConfigWarning, match="'rope_local_base_freq', which .* ignores"):
        RopeSpec.from_config(small("llama", rope_local_base_freq=1e4))
    with pytest.warns(RopeConfigWarning, match="'rotary_dim', which .* ignores"):
        RopeSpec.from_config(small("llama", rotary_dim=32))


def test_a_missing_trained_length_has_a_named_stand_in():
    scaling = {"type": "yarn", "factor": 4.0, "rope_theta": 1e6}
    config = small("qwen2", max_position_embeddings=32768, rope_scaling=scaling)
    with pytest.warns(RopeConfigWarning, match="max_position_embeddings, 32768"):
        spec = RopeSpec.from_config(config)
    assert spec.scaling.original_max_position_embeddings == 32768


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA31 | {"rope_parameters": {"rope_type": "default"}}, "must agree"),
        (small("llama", rope_theta=1e4, rope_parameters={"rope_theta": 5e5}), "must be the same"),
        (small("llama", partial_rotary_factor=0.5), r"partial_rotary_factor must be 1.*got 0\.5"),
        (small("llama", rope_scaling={"type": "su"}), "rope_type must be one of .*'su'"),
        (small("llama", rope_scaling={"factor": 2.0}), "'factor'.*does not use"),
        (small("llama", rope_scaling={"mrope_section": [1]}), "'mrope_section'"),
        (small("llama", rope_scaling=[1]), r"rope_scaling must be a dictionary.*\[1\]"),
        (small("llama", rope_theta=None, head_dim=9), r"head_dim must be even.*9"),
        (small("bert"), "model_type must be one of .*'bert'"),
        (dict(SMALL), "model_type must be given"),
        ({"model_type": "llama", "hidden_size": 256}, "num_attention_heads must be given"),
        (small("hunyuan_vl"), "no rotation"),
        (small("vjepa2"), "no rotation"),
        (small("lightglue"), "learns"),
        (small("mistral_large4"), "learned"),
        (small("kimi_linear"), "never rotates"),
        (small("falcon", alibi=True), "has none"),
        (small("esm"), "has none"),
        (small("beam", rope_parameters={"rope_type": "default"}), "one dictionary for each"),
    ],
)
def test_what_has_no_meaning_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        RopeSpec.from_config(config)


def test_layers_without_a_rotation():
    layers = rw.rope_layers(small("smollm3"))
    assert [layer is None for layer in layers] == [False, False, False, True]
    assert RopeSpec.per_layer_type(small("smollm3"))["no_rope"] is None
    assert RopeSpec.from_config(small("smollm3")).theta == 2e6
    cohere = rw.rope_layers(small("cohere2"))
    assert [layer is None for layer in cohere] == [False, False, False, True]
    hybrid = small("qwen3_next", layer_types=["linear_attention"] * 3 + ["full_attention"])
    assert [layer is None for layer in rw.rope_layers(hybrid)] == [True, True, True, False]


def test_bases_per_layer():
    config = small("granite_swa", layer_rope_theta=[1e4, 0, 5e5, 1e4])
    layers = rw.rope_layers(config)
    assert [layer and layer["attention"].spec.theta for layer in layers] == [1e4, None, 5e5, 1e4]
    with pytest.raises(ConfigError, match="several"):
        RopeSpec.from_config(config)


def test_sparse_attention_has_a_second_layout():
    config = DEEPSEEK | {"model_type": "deepseek_v32", "index_head_dim": 128}
    layer = rw.rope_layers(config)[0]
    assert layer["attention"].spec.layout == "interleaved"
    index = layer["indexer"].spec
    assert (index.layout, index.head_dim, index.rotary_dim, index.rotary_offset) == (
        ("half", 128, 64, 0)
    )
    with pytest.raises(ConfigError, match="indexer"):
        RopeSpec.from_config(config)


def test_where_a_rotation_is_applied():
    v4 = {"model_type": "deepseek_v4", "num_hidden_layers": 2, "index_head_dim": 128}
    v4["layer_types"] = ["sliding_attention", "compressed_sparse_attention"]
    v4["qk_rope_head_dim"] = 64
    first, second = rw.rope_layers(v4)
    assert first["attention"].output_inverse
    assert first["attention"].spec.rotary_offset == 448
    assert (first["attention"].spec.theta, second["attention"].spec.theta) == (1e4, 1.6e5)
    assert second["indexer"].spec.rotary_offset == 64
    assert rw.rope_layers(small("qwen2_5_omni_dit"))[0]["attention"].heads == (0,)
    assert rw.rope_layers(small("roformer", rotary_value=True))[0]["attention"].values
    speech = small("wav2vec2-conformer", position_embeddings_type="rotary")
    assert rw.rope_layers(speech)[0]["attention"].stage == "before_projection"
    assert RopeSpec.from_config(small("nanochat")).direction == -1


def test_use_refuses_nonsense():
    spec = RopeSpec(64, "half")
    for wrong, message in (
        ({"values": 1}, "values must be True or False; got 1"),
        ({"heads": (-1,)}, "heads must be an integer of at least 0; got -1"),
        ({"stage": "later"}, "stage must be one of .*'later'"),
        ({"softmax_scale_factor": 0.0}, "softmax_scale_factor must be .*0"),
    ):
        with pytest.raises(ConfigError, match=message):
            rw.RopeUse(spec, **wrong)
    with pytest.raises(ConfigError, match="spec must be a RopeSpec"):
        rw.RopeUse(None)


def gguf_file(tmp_path, **metadata):
    from gguf_writer import gguf

    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(metadata))
    return path


def test_a_gguf_file_says_its_own_layout(tmp_path):
    entries = {
        "general.architecture": "llama",
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.block_count": 2,
        "llama.rope.freq_base": 1e5,
        "llama.rope.dimension_count": 64,
    }
    spec = RopeSpec.from_config(gguf_file(tmp_path, **entries))
    assert spec == RopeSpec(64, "interleaved", theta=1e5)
    neox = {key.replace("llama.", "phi2."): value for key, value in entries.items()}
    neox |= {"general.architecture": "phi2", "phi2.rope.dimension_count": 32}
    spec = RopeSpec.from_config(gguf_file(tmp_path, **neox))
    assert spec == RopeSpec(64, "half", theta=1e5, rotary_dim=32)


def test_a_gguf_file_with_more_than_its_header_says_is_refused(tmp_path):
    path = gguf_file(tmp_path, **{"general.architecture": "gemma3", "gemma3.block_count": 2})
    with pytest.raises(ConfigError, match=r"'gemma3' has rotations .* config\.json"):
        RopeSpec.from_config(path)
