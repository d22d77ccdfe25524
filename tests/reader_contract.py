"""Checks of the readers of configs that the tests run and that the mutants must fail.

Each asks the strict and the lenient reader, and looks them up when called, so that a patched-in bug
is seen. Where no source is named, the values are those of transformers 5.24 or worked by hand.
"""

from __future__ import annotations

import copy
import math

from config_files import config

import ropewalk as rw
from ropewalk.errors import ConfigError as Refused
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts

SMALL = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 4096}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


def both(entries):
    """Return the one rotation of a config, on which the two readers must agree."""
    spec = rw.RopeSpec.from_config(copy.deepcopy(entries))
    facts = ModelFacts.of(copy.deepcopy(entries))
    (other,) = read_as(facts, "hf").specs.values()
    assert other == spec
    return spec


def check_two_releases_write_the_same_rotation():
    """huggingface/transformers#32167, vllm-project/vllm#42624."""
    want = rw.RopeSpec(64, "half", theta=1e6, scaling=rw.Yarn(4.0, 1024))
    plain = {"model_type": "qwen2", **SMALL}
    old = {key: value for key, value in YARN.items() if key != "rope_type"} | {"type": "yarn"}
    assert both(plain | {"rope_theta": 1e6, "rope_scaling": old}) == want
    assert both(plain | {"rope_theta": 1e6, "rope_scaling": YARN}) == want
    assert both(plain | {"rope_parameters": YARN | {"rope_theta": 1e6}}) == want
    assert both(plain | {"rope_parameters": old | {"rope_theta": 1e6}}) == want


def check_layer_types_have_their_own_base_and_rule():
    """huggingface/transformers#41922, vllm-project/vllm#29111, in both generations of files."""
    new = config("gemma-3-4b")
    text = {k: v for k, v in new["text_config"].items() if k != "rope_parameters"}
    text |= {"rope_theta": 5e6, "rope_local_base_freq": 2e4}
    text |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    for entries, thetas in ((new, (1e6, 1e4)), (new | {"text_config": text}, (5e6, 2e4))):
        specs = rw.RopeSpec.per_layer_type(entries)
        assert read_as(ModelFacts.of(entries), "hf").specs == specs
        assert specs == {
            "full_attention": rw.RopeSpec(256, "half", theta=thetas[0], scaling=rw.Linear(8.0)),
            "sliding_attention": rw.RopeSpec(256, "half", theta=thetas[1]),
        }


def check_phi_3():
    """su is longrope, and the trained length stands beside the dictionary."""
    entries = config("phi-3-mini-128k")
    entries["rope_scaling"]["type"] = "su"
    rule = rw.RopeSpec.from_config(entries).scaling
    lists = entries["rope_scaling"]
    want = rw.LongRope(
        tuple(lists["short_factor"]), tuple(lists["long_factor"]), 4096, factor=131072 / 4096
    )
    assert rule == want
    assert both(config("phi-3-mini-128k")).scaling == want


def check_part_of_the_head():
    """huggingface/transformers#48652; an odd share of 21 has a table of 22."""
    small = {"model_type": "gpt_neox", **SMALL, "rotary_emb_base": 2e4}
    assert both(small) == rw.RopeSpec(64, "half", theta=2e4, rotary_dim=16)
    assert both(small | {"rotary_pct": 0.5}).rotary_dim == 32
    odd = both(small | {"rotary_pct": 0.334})
    assert (odd.rotary_dim, odd.frequency_dim) == (22, 21)
    phi = {"model_type": "phi", **SMALL, "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    assert both(phi).rotary_dim == 16


def check_gpt_oss():
    """vllm-project/vllm#28244: the ramp is not rounded, from 8.0928 to 17.3980."""
    for entries in (config("gpt-oss-20b"), {"model_type": "gpt_oss"}):
        spec = both(entries)
        assert isinstance(spec.scaling, rw.Yarn)
        low, high = spec.scaling.correction_range(spec.ladder)
        assert abs(low - 8.0928) < 5e-5
        assert abs(high - 17.3980) < 5e-5
        assert spec.theta == 1.5e5


def check_factors_on_the_table():
    """vllm-project/vllm#46280, #48623: stated, or a ratio."""
    plain = {"model_type": "llama", **SMALL, "rope_theta": 1e4}

    def factor(**keys):
        return both(plain | {"rope_scaling": YARN | keys}).attention_factor()

    assert factor(attention_factor=1.0) == 1.0
    assert abs(factor() - 1.1386294) < 1e-7
    want = (0.08 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    assert abs(factor(mscale=0.8, mscale_all_dim=0.5) - want) < 1e-12
    use = rw.rope_layers(config("deepseek-v3"))[0]["attention"]
    assert use.spec.attention_factor() == 1.0
    assert abs(use.softmax_scale_factor - 1.8738542) < 5e-8  # (0.1 ln 40 + 1)^2


def check_trained_and_longest_length():
    """NVIDIA/Megatron-LM#1418: DeepSeek-V3 is trained at 4096; dynamic starts at the longest."""
    rule = both(config("deepseek-v3")).scaling
    assert (rule.original_max_position_embeddings, rule.factor) == (4096, 40.0)
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    entries = {"model_type": "llama", **SMALL, "rope_theta": 1e4, "rope_scaling": dynamic}
    entries |= {"original_max_position_embeddings": 1024}
    assert both(entries).scaling == rw.DynamicNTK(2.0, 4096)


def check_width_of_a_head():
    """huggingface/transformers#35233: the entry, not hidden size / heads."""
    entries = {"model_type": "llama", **SMALL, "rope_theta": 1e4}
    assert both(entries).head_dim == 64
    assert both(entries | {"head_dim": 96}).head_dim == 96


def check_both_dictionaries():
    """rope_scaling replaces rope_parameters as a whole, and is refused where it differs."""
    entries = {"model_type": "llama", **SMALL, "rope_theta": 1e4, "rope_scaling": YARN}
    entries |= {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}}
    read = read_as(ModelFacts.of(entries), "hf").specs["all"]
    assert read == rw.RopeSpec(64, "half", theta=1e4, scaling=rw.Yarn(4.0, 1024))
    same = entries | {"rope_parameters": YARN | {"rope_theta": 1e4}}
    assert both(same) == read


def check_contradictions_are_refused():
    """Right or refused."""
    plain = {"model_type": "llama", **SMALL, "rope_theta": 1e4}
    for entries in (
        plain | {"rope_scaling": YARN, "rope_parameters": YARN | {"factor": 2.0}},
        plain | {"rope_parameters": {"rope_theta": 5e5}},
        plain | {"partial_rotary_factor": 0.5},
        plain | {"rope_scaling": YARN, "original_max_position_embeddings": 512},
        plain | {"rope_scaling": YARN | {"attn_factor": 1.0}},
        plain | {"rope_parameters": {"full_attention": YARN}},
        {"model_type": "gemma3_text", "rope_parameters": YARN},
        {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}},
        {"model_type": "gptj", "n_embd": 256, "n_head": 4, "rope_theta": 5e5},
        {"model_type": "deepseek_v4", "rope_parameters": YARN | {"rope_theta": 5e5}},
        {"model_type": "cwm", "rope_theta": 5e5},
    ):
        try:
            rw.RopeSpec.per_layer_type(entries)
        except Refused:
            continue
        raise AssertionError(f"read without a word: {entries}")


CHECKS = {
    check.__name__: check
    for check in (
        check_two_releases_write_the_same_rotation,
        check_layer_types_have_their_own_base_and_rule,
        check_phi_3,
        check_part_of_the_head,
        check_gpt_oss,
        check_factors_on_the_table,
        check_trained_and_longest_length,
        check_width_of_a_head,
        check_both_dictionaries,
        check_contradictions_are_refused,
    )
}
