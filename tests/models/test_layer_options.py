"""Encoders of today: local and global layers, pre-norm, gated feed-forward parts, no biases."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk import RopeSpec
from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.models import (
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerModel,
)
from ropewalk.rotary import convert_layout

Build = Callable[..., Any]

FULL, LOCAL = "full_attention", "sliding_attention"
BARE: dict[str, Any] = dict.fromkeys(
    ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False
)
MODERN: dict[str, Any] = BARE | {
    "num_hidden_layers": 4,
    "layer_types": [FULL, LOCAL, LOCAL, FULL],
    "sliding_window": 3,
    "pre_norm": True,
    "gated_mlp": True,
    "layer_norm_eps": 1e-5,
    "rope_parameters": {FULL: {"rope_theta": 160_000.0}, LOCAL: {"rope_theta": 10_000.0}},
}


def encode(model: Any, ids: Tensor, **inputs: Any) -> Tensor:
    with torch.no_grad():
        return model(ids, **inputs)[0]


# --- the same numbers as transformers' ModernBERT


def modernbert(model: Any) -> Any:
    """Transformers' ModernBERT with the weights of a model of ours, pairs in its own order."""
    config = model.config
    theirs = transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            layer_types=config.layer_types,
            local_attention=2 * config.sliding_window,
            rope_parameters=config.rope_parameters,
            hidden_activation=config.hidden_act,
            norm_eps=config.layer_norm_eps,
            pad_token_id=0,
            **{n: getattr(config, n) for n in ("attention_bias", "mlp_bias", "norm_bias")},
            classifier_bias=config.classifier_bias,
            classifier_activation=config.hidden_act,
            attn_implementation="eager",
        )
    ).eval()
    weights = {}
    turned = {"source": "interleaved", "target": "half", "head_dim": config.head_dim}
    for name, weight in model.state_dict().items():
        new = re.sub(r"roformer\.encoder\.layer\.(\d+)\.", r"model.layers.\1.", name)
        for ours, other in {
            "roformer.embeddings.word_embeddings": "model.embeddings.tok_embeddings",
            "roformer.embeddings.LayerNorm": "model.embeddings.norm",
            "roformer.encoder.LayerNorm": "model.final_norm",
            "attention.LayerNorm": "attn_norm",
            "attention.output.dense": "attn.Wo",
            "intermediate.LayerNorm": "mlp_norm",
            "intermediate.dense": "mlp.Wi",
            ".output.dense": ".mlp.Wo",
            "cls.predictions.transform.dense": "head.dense",
            "cls.predictions.transform.LayerNorm": "head.norm",
            "cls.predictions.decoder": "decoder",
        }.items():
            new = new.replace(ours, other)
        weights[new] = weight
    for layer in range(config.num_hidden_layers):
        for part in ("weight", "bias") if config.attention_bias else ("weight",):
            query, key, value = (
                weights.pop(f"model.layers.{layer}.attention.self.{name}.{part}")
                for name in ("query", "key", "value")
            )
            query, key = (convert_layout(x, **turned) for x in (query, key))
            weights[f"model.layers.{layer}.attn.Wqkv.{part}"] = torch.cat((query, key, value))
    # ModernBERT has no token types; ours are all of type 0.
    words = weights["model.embeddings.tok_embeddings.weight"]
    weights["model.embeddings.tok_embeddings.weight"] = (
        words + weights.pop("roformer.embeddings.token_type_embeddings.weight")[0]
    )
    del weights["cls.predictions.bias"]
    theirs.config.tie_word_embeddings = False
    theirs.decoder.weight = torch.nn.Parameter(torch.empty_like(words))
    theirs.load_state_dict(weights, strict=True)
    return theirs


@pytest.mark.parity
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"hidden_act": "silu", "sliding_window": 1},
        dict.fromkeys(BARE, True),
        {"layer_types": [LOCAL, LOCAL, FULL, LOCAL], "norm_bias": True},
    ],
    ids=["modernbert", "swiglu", "biases", "local-first"],
)
@pytest.mark.parametrize("length", [20, 300], ids=["short", "blocks"])
@pytest.mark.parametrize("padding", [False, True], ids=["full", "padded"])
def test_matching_options_compute_what_transformers_modernbert_does(
    build: Build, fields: dict[str, Any], length: int, padding: bool
) -> None:
    model = build(RoFormerForMaskedLM, **(MODERN | fields))
    # Logits of magnitude 1, where 1e-5 is meant.
    model.cls.predictions.transform.LayerNorm.weight.data.mul_(0.3)
    theirs = modernbert(model)
    ids = torch.randint(1, 97, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padding:
        mask[0, -length // 3 :] = 0
    found = encode(model, ids, attention_mask=mask)
    expected = encode(theirs, ids, attention_mask=mask)
    # fp32, four layers, other kernels and other orders of summation
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)


# --- windows


def reach(config: RoFormerConfig) -> int:
    return config.sliding_window * config.num_hidden_layers


@pytest.mark.parametrize("length", [40, 400], ids=["short", "blocks"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
def test_tokens_out_of_reach_of_local_layers_do_not_change_a_bit(
    build: Build, length: int, implementation: str, pre_norm: bool
) -> None:
    fields = {"layer_types": [LOCAL, LOCAL], "sliding_window": 2, "pre_norm": pre_norm}
    model = build(RoFormerModel, **fields, attn_implementation=implementation)
    ids = torch.randint(1, 97, (2, length), generator=torch.Generator().manual_seed(0))
    before, place = encode(model, ids), length // 2
    changed = ids.clone()
    changed[:, place] = ids[:, place] % 96 + 1
    after = encode(model, changed)
    near = (torch.arange(length) - place).abs() <= reach(model.config)
    assert torch.equal(before[:, ~near], after[:, ~near])
    # Two layers reach two windows, and all of it.
    assert (before != after).any(-1)[:, near].all()


@settings(max_examples=15, deadline=None)
@given(window=st.integers(1, 30), length=st.integers(2, 300), row=st.integers(0, 3))
def test_kernels_agree_on_local_layers_with_padding_and_documents(
    build: Build, window: int, length: int, row: int
) -> None:
    model = build(RoFormerModel, **(MODERN | {"sliding_window": 3}))
    for layer in model.encoder.layer[1:3]:
        layer.attention.self.window = window
    source = torch.Generator().manual_seed(row)
    ids = torch.randint(1, 97, (2, length), generator=source)
    mask = torch.ones_like(ids)
    mask[0, length // 2 + row :] = 0
    documents = torch.randint(3, (2, length), generator=source).sort(dim=1).values
    inputs = {"attention_mask": mask, "document_ids": documents}
    fused = encode(model, ids, **inputs)
    spelled = encode(model, ids, **inputs, output_attentions=True)
    assert fused.isfinite().all()
    # fp32: two attention kernels, four layers
    torch.testing.assert_close(fused[mask.bool()], spelled[mask.bool()], atol=2e-5, rtol=1e-5)


def test_attention_weights_outside_the_window_are_zero(build: Build, ids: Tensor) -> None:
    model = build(RoFormerModel, **MODERN)
    with torch.no_grad():
        maps = model(ids, output_attentions=True).attentions
    far = (torch.arange(20) - torch.arange(20)[:, None]).abs() > 3
    for kind, weights in zip(MODERN["layer_types"], maps, strict=True):
        assert bool((weights[..., far] == 0).all()) == (kind == LOCAL)
        # A softmax over what is visible; rounding of 20 terms.
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 20), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pad", ["right", "left"])
def test_padding_changes_nothing(build: Build, ids: Tensor, pad: str) -> None:
    model = build(RoFormerModel, **MODERN)
    alone = encode(model, ids)
    width = 200
    filler = torch.zeros(3, width, dtype=torch.long)
    rows = [filler, ids] if pad == "left" else [ids, filler]
    mask = torch.cat([(row > 0).long() for row in rows], dim=1)
    found = encode(model, torch.cat(rows, dim=1), attention_mask=mask)
    # fp32: rows of another length take other kernels; a shift turns by other angles
    torch.testing.assert_close(found[mask.bool()].view(3, 20, -1), alone, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["holes", "turns"])
def test_windows_count_the_tokens_of_the_row_and_not_those_left_of_it(
    build: Build, ids: Tensor, kind: str
) -> None:
    model = build(RoFormerModel, **(MODERN | {"layer_types": [LOCAL] * 4}
                                    | {"rope_parameters": None, "sliding_window": 1}))  # fmt: skip
    mask = torch.ones_like(ids)
    if kind == "holes":
        mask[:, 5:15] = 0
        inputs = {"attention_mask": mask}
    else:
        inputs = {"document_ids": torch.arange(20).expand(3, 20) % 2}
    found = encode(model, ids, **inputs)
    spelled = encode(model, ids, **inputs, output_attentions=True)
    # fp32: two attention kernels, four layers
    torch.testing.assert_close(found[mask.bool()], spelled[mask.bool()], atol=2e-5, rtol=1e-5)


# --- rotations per layer type


def test_every_layer_turns_as_its_type_says(build: Build) -> None:
    rotations = {FULL: {"rope_theta": 500.0}, LOCAL: {"rope_type": "linear", "factor": 2.0}}
    config = RoFormerConfig(**(MODERN | {"hidden_size": 32, "num_attention_heads": 4}
                               | {"rope_parameters": rotations}))  # fmt: skip
    assert config.rope_specs[FULL] == RopeSpec(8, "interleaved", theta=500.0)
    local = config.rope_specs[LOCAL]
    assert local is not None
    assert local.theta == 10_000.0
    assert local.scaling is not None
    model = RoFormerModel(config)
    found = [layer.attention.self.rope.spec for layer in model.encoder.layer]
    assert found == [config.rope_specs[kind] for kind in MODERN["layer_types"]]
    with pytest.raises(
        ConfigError, match=r"rope_spec needs layers that all turn alike.*rope_specs"
    ):
        _ = config.rope_spec


def test_a_layer_type_may_not_turn_at_all(build: Build, ids: Tensor) -> None:
    fields = MODERN | {"layer_types": [FULL] * 2 + [LOCAL] * 2, "num_hidden_layers": 4}
    none = build(RoFormerModel, **(fields | {"rope_parameters": {FULL: None, LOCAL: {}}}))
    assert none.config.rope_specs[FULL] is None
    assert [layer.attention.self.rope is None for layer in none.encoder.layer] == [
        True, True, False, False,
    ]  # fmt: skip
    # Without any window to see it, and without local layers, positions do not matter.
    none.encoder.layer = none.encoder.layer[:2]
    shuffled = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    # fp32: sums in another order
    torch.testing.assert_close(
        encode(none, ids[:, shuffled]), encode(none, ids)[:, shuffled], atol=1e-5, rtol=1e-5
    )


def test_one_rotation_serves_all_layer_types(build: Build, ids: Tensor) -> None:
    fields = MODERN | {"rope_parameters": {"rope_theta": 500.0}}
    alike = build(RoFormerModel, **fields)
    assert alike.config.rope_spec == RopeSpec(8, "interleaved", theta=500.0)
    each = fields | {"rope_parameters": {FULL: {"rope_theta": 500.0}, LOCAL: {"rope_theta": 500.0}}}
    assert torch.equal(encode(alike, ids), encode(build(RoFormerModel, **each), ids))


def test_a_rule_that_depends_on_the_length_acts_on_its_layers_alone(build: Build) -> None:
    rule = {"rope_type": "dynamic", "factor": 4.0}
    model = build(RoFormerModel, **(MODERN | {"rope_parameters": {FULL: rule, LOCAL: {}}}))
    plain = build(RoFormerModel, **(MODERN | {"rope_parameters": {FULL: {}, LOCAL: {}}}))
    short, long = torch.arange(1, 21)[None], torch.arange(1, 49)[None]
    assert torch.equal(encode(model, short), encode(plain, short))  # trained at 24
    assert not torch.equal(encode(model, long), encode(plain, long))


# --- pre-norm and gates


def test_a_gate_multiplies_what_the_activation_gives(build: Build) -> None:
    part = build(RoFormerModel, gated_mlp=True, hidden_act="gelu").encoder.layer[0].intermediate
    hidden = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    weight, bias = part.dense.weight, part.dense.bias
    first = torch.nn.functional.gelu(hidden @ weight[:48].T + bias[:48])
    expected = first * (hidden @ weight[48:].T + bias[48:])
    # fp32: sums of 32 terms, one matrix product or two
    torch.testing.assert_close(part(hidden), expected, atol=1e-5, rtol=1e-5)


def test_a_pre_norm_model_is_the_sum_of_its_sublayers(build: Build, ids: Tensor) -> None:
    model = build(RoFormerModel, pre_norm=True)
    parts: list[Tensor] = []
    for layer in model.encoder.layer:
        for output in (layer.attention.output, layer.output):
            output.dense.register_forward_hook(lambda _m, _i, result: parts.append(result))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
        total = states[0] + sum(parts)
        # fp32: the same additions in another order
        torch.testing.assert_close(model.encoder.LayerNorm(total), states[-1], atol=1e-5, rtol=1e-5)
    assert torch.equal(encode(model, ids), states[-1])


def test_gradients_of_a_modern_model_are_those_of_differences(build: Build) -> None:
    model = build(RoFormerForMaskedLM, **MODERN).double().train()
    model.config.hidden_dropout_prob = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for layer in model.roformer.encoder.layer:
        layer.attention.self.dropout_p = 0.0
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 97, (2, 9), generator=source)

    def loss() -> Tensor:
        return model(ids, labels=ids).loss

    loss().backward()
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
        assert parameter.grad is not None, name
        slope = float((parameter.grad * direction).sum())
        with torch.no_grad():
            ends = []
            for sign in (1, -1):
                parameter.add_(direction, alpha=sign * 1e-6)
                ends.append(float(loss()))
                parameter.sub_(direction, alpha=sign * 1e-6)
        # float64 central differences of step 1e-6: cancellation leaves about nine digits
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("chunk", [0, 3])
def test_checkpointing_and_chunks_give_the_same_gradients(
    build: Build, ids: Tensor, chunk: int
) -> None:
    fields = MODERN | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    plain = build(RoFormerModel, **fields).train()
    saving = build(RoFormerModel, **fields, chunk_size_feed_forward=chunk).train()
    saving.activation_checkpointing_enable()
    for model in (plain, saving):
        model(ids).last_hidden_state.square().sum().backward()
    for (name, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        # fp32: with chunks the sums over tokens are cut
        torch.testing.assert_close(a.grad, b.grad, atol=1e-3, rtol=1e-4, msg=name)


def test_deep_pre_norm_models_start_with_small_residual_projections() -> None:
    fields = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": 9}
    model = RoFormerModel(RoFormerConfig(**fields, pre_norm=True))
    # 65,536 fresh weights: their standard deviation is known to 0.3 %
    for layer in model.encoder.layer:
        assert layer.attention.output.dense.weight.std().item() == pytest.approx(0.005, rel=0.02)
        assert layer.attention.self.query.weight.std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("fields", [{}, {"embedding_size": 16}], ids=["plain", "projected"])
def test_the_first_attention_is_normalised_once(build: Build, fields: dict[str, Any]) -> None:
    model = build(RoFormerModel, pre_norm=True, **fields)
    norms = [layer.attention.LayerNorm is not None for layer in model.encoder.layer]
    # A projection of the embeddings comes after their norm, so it is not normalised.
    assert norms == [bool(fields), True]


def test_no_bias_is_left_but_those_that_score() -> None:
    names = {
        cls: [n for n in cls(RoFormerConfig(vocab_size=9, hidden_size=32, intermediate_size=48,
                                            num_attention_heads=4, **MODERN)).state_dict()
              if n.endswith("bias")]
        for cls in (RoFormerForMaskedLM, RoFormerForSequenceClassification)
    }  # fmt: skip
    assert names == {
        RoFormerForMaskedLM: ["cls.predictions.bias", "cls.predictions.decoder.bias"],
        RoFormerForSequenceClassification: ["classifier.out_proj.bias"],
    }


# --- folders


@pytest.mark.parametrize(
    "cls", [RoFormerModel, RoFormerForMaskedLM, RoFormerForSequenceClassification]
)
def test_a_modern_model_comes_back_from_its_folder(
    build: Build, ids: Tensor, tmp_path: Path, cls: Any
) -> None:
    model = build(cls, **MODERN)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "ropewalk_roformer"
    assert saved["layer_types"] == MODERN["layer_types"]
    assert saved["rope_parameters"][FULL] == {"rope_type": "default", "rope_theta": 160_000.0}
    again = cls.from_pretrained(tmp_path)
    assert torch.equal(encode(again, ids), encode(model, ids))
    assert again.config.rope_specs == model.config.rope_specs
    again.save_pretrained(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with pytest.raises(ValueError, match="ropewalk_roformer"):
        transformers.AutoConfig.for_model("unknown_" + saved["model_type"])


@pytest.mark.parametrize("name", ["pre_norm", "gated_mlp", *BARE])
def test_no_option_is_saved_as_a_roformer_of_transformers(name: str, tmp_path: Path) -> None:
    config = RoFormerConfig(**{name: name not in BARE})
    assert not config.is_vanilla
    config.to_json_file(tmp_path / "config.json")
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "ropewalk_roformer"
    assert saved[name] is (name not in BARE)
    others = {"pre_norm", "gated_mlp", *BARE} - {name}
    assert not others & saved.keys()


def test_full_layers_alone_are_the_roformer_of_transformers(tmp_path: Path) -> None:
    listed = RoFormerConfig(num_hidden_layers=2, layer_types=[FULL, FULL])
    assert listed.is_vanilla
    for name, config in (("a", listed), ("b", RoFormerConfig(num_hidden_layers=2))):
        config.to_json_file(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_folder_with_other_layers_is_refused(build: Build, tmp_path: Path) -> None:
    build(RoFormerModel, **MODERN).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="does not hold a RoFormerModel of its config"):
        RoFormerModel.from_pretrained(tmp_path, pre_norm=False)
    with pytest.raises(CheckpointError, match=r"of another shape .*intermediate.dense"):
        RoFormerModel.from_pretrained(tmp_path, gated_mlp=False)


def test_a_model_is_not_saved_with_options_it_was_not_built_with(
    build: Build, tmp_path: Path
) -> None:
    model = build(RoFormerModel, **MODERN)
    model.config.layer_types[1] = FULL
    with pytest.raises(ConfigError, match=r"config.layer_types must be what the model was built"):
        model.save_pretrained(tmp_path)
    model = build(RoFormerModel, **MODERN)
    model.config.sliding_window = 9
    with pytest.raises(ConfigError, match=r"config.sliding_window must be .* 3, to save it; got 9"):
        model.save_pretrained(tmp_path)


def test_another_rule_keeps_the_base_of_each_layer_type() -> None:
    saved = RoFormerConfig(**MODERN).to_dict()
    yarn = {"rope_type": "linear", "factor": 2.0}
    config = RoFormerConfig.from_dict(saved, rope_parameters={FULL: yarn, LOCAL: {}})
    assert config.rope_parameters == {
        FULL: {"rope_theta": 160_000.0, **yarn},
        LOCAL: {"rope_type": "default", "rope_theta": 10_000.0},
    }
    with pytest.raises(ConfigError, match="rope_parameters must be given per layer type"):
        RoFormerConfig.from_dict(saved, rope_parameters=yarn)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sliding_window": 4}, "sliding_window has no effect without 'sliding_attention' in "
         "layer_types; got 4; remove it or name the layers"),
        ({"layer_types": [FULL, LOCAL]}, "sliding_window must be an integer of at least 1; got No"),
        ({"layer_types": [FULL, LOCAL], "sliding_window": 0}, "sliding_window must be an integer "
         "of at least 1; got 0"),
        ({"layer_types": [FULL]}, "layer_types must have num_hidden_layers=2 entries; got 1"),
        ({"layer_types": ["local", FULL]}, "layer_types must be a list of 'full_attention' and "
         "'sliding_attention'; got ['local', 'full_attention']"),
        ({"layer_types": "full_attention"}, "layer_types must be"),
        ({"layer_types": [[1], FULL]}, "layer_types must be a list of"),
        ({"rope_parameters": {LOCAL: {}}}, "rope_parameters must have an entry for "
         "'full_attention', which layer_types names; got sliding_attention"),
        ({"rope_parameters": {FULL: {}, LOCAL: {"rope_theta": 5.0}}}, "rope_parameters has the key "
         "'sliding_attention', but layer_types has only full_attention; got"),
        ({"rope_parameters": {FULL: {}, "rope_theta": 5.0}}, "rope_parameters has the key "
         "'rope_theta', but layer_types has only full_attention; got 5.0; remove it"),
        ({"rope_parameters": {FULL: None}}, "rope_parameters must turn at least one layer type"),
        ({"rope_parameters": {FULL: 7}}, "rope_parameters must be a dictionary or None; got 7"),
        ({"rope_parameters": {FULL: {"rope_type": "linear"}}}, "needs the key 'factor'"),
        ({"position_encoding": "none", "rope_parameters": {FULL: {}}}, "rope_parameters has no "),
        ({"pre_norm": 1}, "pre_norm must be"),
        ({"gated_mlp": "yes"}, "gated_mlp must be"),
        ({"attention_bias": None}, "attention_bias must be"),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused_in_one_line(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        RoFormerConfig(**({"num_hidden_layers": 2} | fields))
    assert "\n" not in str(refused.value)
