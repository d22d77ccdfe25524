"""Scaling rules that depend on the length of a row, inside the encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ropewalk import DynamicNTK, LongRope, positions_from_attention_mask
from ropewalk.errors import ConfigError
from ropewalk.models import RoFormerConfig, RoFormerForMaskedLM, RoFormerModel

Build = Callable[..., Any]
TRAINED = 6
RULES: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10.0, "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10.0,
        "original_max_position_embeddings": TRAINED,
        "short_factor": [1.0, 1.0, 1.0, 1.0],
        "long_factor": [2.0, 4.0, 8.0, 16.0],
        "attention_factor": 1.0,
    },
}
rules = pytest.mark.parametrize("rule", RULES)
# fp32: the same sums in another order, at hidden states of magnitude 1.
TOLERANCE = 1e-6


def fields(rule: str) -> dict[str, Any]:
    longest = TRAINED if rule == "dynamic" else 4 * TRAINED
    return {"rope_parameters": RULES[rule], "max_position_embeddings": longest}


def encoder(build: Build, rule: str, cls: Any = RoFormerModel) -> Any:
    return build(cls, **fields(rule))


def encode(model: Any, *args: Any, **kwargs: Any) -> Tensor:
    with torch.no_grad():
        return model(*args, **kwargs).last_hidden_state


def test_the_trained_length_is_that_of_the_config() -> None:
    config = RoFormerConfig(**fields("dynamic"))
    assert config.rope_spec is not None
    assert config.rope_spec.scaling == DynamicNTK(4.0, TRAINED)
    assert config.rope_spec.depends_on_length
    stretched = RoFormerConfig(**fields("longrope"), hidden_size=32, num_attention_heads=4)
    assert stretched.rope_spec is not None
    assert isinstance(stretched.rope_spec.scaling, LongRope)
    assert stretched.rope_spec.scaling.factor == 4.0  # max / original
    both = RULES["dynamic"] | {"original_max_position_embeddings": 5}
    with pytest.raises(ConfigError, match=r"original_max_position_embeddings .*got 5 and 1536"):
        RoFormerConfig(rope_parameters=both)
    with pytest.raises(ConfigError, match="needs the key 'original_max_position_embeddings'"):
        RoFormerConfig(rope_parameters={"rope_type": "yarn", "factor": 2.0})


@rules
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_row_in_a_batch_is_the_row_alone(
    build: Build, ids: Tensor, rule: str, implementation: str
) -> None:
    model = encoder(build, rule)
    model.set_attn_implementation(implementation)
    mask = torch.ones_like(ids)
    mask[0, 4:] = 0  # within the trained length
    mask[1, :11] = 0  # beyond it, padded on the left
    batch = encode(model, ids, attention_mask=mask)
    by_position = encode(
        model,
        ids,
        attention_mask=mask,
        position_ids=positions_from_attention_mask(mask),
    )
    lone = []
    for row in range(3):
        real = mask[row].bool()
        alone = encode(model, ids[row][real][None])[0]
        torch.testing.assert_close(batch[row][real], alone, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(by_position[row][real], alone, rtol=0, atol=TOLERANCE)
        lone.append(alone)
    # The rule is at work: within the trained length nothing is scaled, beyond it much is.
    plain = model.config.to_dict() | {"rope_parameters": {"rope_theta": 10.0}}
    unscaled = RoFormerModel(RoFormerConfig(**plain)).eval()
    unscaled.load_state_dict(model.state_dict())
    torch.testing.assert_close(encode(unscaled, ids[:1, :4])[0], lone[0], rtol=0, atol=TOLERANCE)
    assert (encode(unscaled, ids[2:])[0] - lone[2]).abs().max() > 0.01


@rules
def test_tables_of_rows_in_a_batch_are_those_of_the_rows_alone(
    build: Build, ids: Tensor, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = encoder(build, rule)
    model.unpads = False  # so that the table has rows
    tables: list[Any] = []
    layer = type(model.encoder.layer[0])
    real = layer.forward

    def spy(self: Any, hidden: Tensor, table: Any, *rest: Any) -> Any:
        tables.append(table)
        return real(self, hidden, table, *rest)

    monkeypatch.setattr(layer, "forward", spy)
    mask = torch.ones_like(ids)
    mask[0, 3:] = 0
    mask[2, 9:] = 0
    encode(model, ids, attention_mask=mask)
    (together, same) = tables
    assert together is same  # built once, for all layers
    for row, length in enumerate((3, 20, 9)):
        tables.clear()
        encode(model, ids[row : row + 1, :length])
        for got, want in zip(together, tables[0], strict=True):
            want = want if want.ndim == 2 else want[0]
            assert torch.equal(got[row, :length], want)


@rules
def test_documents_of_a_row_have_lengths_of_their_own(build: Build, rule: str) -> None:
    model = encoder(build, rule)
    lengths = (3, 12, 5)
    ids = torch.arange(1, 21)[None]
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    restarting = torch.cat([torch.arange(n) for n in lengths])
    for positions in (None, restarting, restarting[None]):
        packed = encode(
            model, ids, attention_mask=mask, position_ids=positions, document_ids=documents
        )
        start = 0
        for length, real in zip(lengths, (3, 12, 3), strict=True):
            alone = encode(model, ids[:, start : start + real])
            torch.testing.assert_close(
                packed[:, start : start + real], alone, rtol=0, atol=TOLERANCE
            )
            start += length


@rules
def test_a_shift_of_all_positions_changes_nothing(build: Build, ids: Tensor, rule: str) -> None:
    model = encoder(build, rule)
    here = encode(model, ids)
    for shift in (7, -3, 1000):
        moved = encode(model, ids, position_ids=torch.arange(20) + shift)
        # float64 angles, of another multiple of the same frequency
        torch.testing.assert_close(moved, here, rtol=0, atol=1e-5)
    spread = encode(model, ids[:, :4], position_ids=torch.arange(4) * 5)
    want = encode(model, ids[:, :4], position_ids=torch.arange(4.0) * 5.0)
    assert torch.equal(spread, want)
    assert (spread - encode(model, ids[:, :4])).abs().max() > 0.01


@rules
def test_an_earlier_long_row_leaves_nothing_behind(build: Build, ids: Tensor, rule: str) -> None:
    model = encoder(build, rule)
    fresh = encode(model, ids[:, :5])
    encode(model, ids)
    assert torch.equal(encode(model, ids[:, :5]), fresh)


@rules
def test_rows_of_padding_and_empty_batches_pass(build: Build, ids: Tensor, rule: str) -> None:
    model = encoder(build, rule, RoFormerForMaskedLM)
    mask = torch.ones_like(ids)
    mask[1] = 0
    documents = torch.zeros_like(ids)
    documents[:, 10:] = 1
    for given in (None, documents):
        assert model(ids, attention_mask=mask, document_ids=given).logits.isfinite().all()
    none = ids[:0]
    assert model(none, attention_mask=none, document_ids=none).logits.shape == (0, 20, 97)
    on_meta = model.to("meta")
    out = on_meta(ids.to("meta"), attention_mask=mask.to("meta"), document_ids=documents.to("meta"))
    assert out.logits.shape == (3, 20, 97)


@rules
def test_it_is_saved_under_our_name_and_read_back_alike(
    build: Build, ids: Tensor, tmp_path: Path, rule: str
) -> None:
    model = encoder(build, rule, RoFormerForMaskedLM)
    assert not model.config.is_vanilla
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "ropewalk_roformer"
    back = RoFormerForMaskedLM.from_pretrained(tmp_path)
    assert back.config.rope_spec == model.config.rope_spec
    assert torch.equal(back(ids).logits, model(ids).logits)
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)) is type(back)
    model.config.max_position_embeddings *= 2
    with pytest.raises(ConfigError, match=r"config\.rope_parameters must be what the model was"):
        model.save_pretrained(tmp_path)


def test_a_traced_graph_takes_one_length_and_refuses_to_read_others(
    build: Build, ids: Tensor
) -> None:
    torch._dynamo.reset()
    model = build(RoFormerModel, num_hidden_layers=1, **fields("dynamic"))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    out = encode(compiled, ids)
    torch.testing.assert_close(out, encode(model, ids), rtol=0, atol=TOLERANCE)
    with pytest.raises(Exception, match=r"attention_mask must be left out under torch\.compile"):
        compiled(ids, attention_mask=torch.ones_like(ids))


@rules
def test_gradients_and_low_precision_pass(build: Build, ids: Tensor, rule: str) -> None:
    model = encoder(build, rule, RoFormerForMaskedLM).train()
    model.activation_checkpointing_enable()
    mask = torch.ones_like(ids)
    mask[0, 4:] = 0
    loss = model(ids, attention_mask=mask, labels=ids).loss
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert (
        encode(model.roformer.bfloat16().eval(), ids, attention_mask=mask).dtype == torch.bfloat16
    )
