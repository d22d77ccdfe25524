"""The encoder: positions, padding, documents, and everything torch does to a module."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ropewalk.errors import ConfigError, ShapeError
from ropewalk.models import (
    POSITION_ENCODINGS,
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerModel,
)
from ropewalk.rotary import RotaryEmbedding

Build = Callable[..., Any]

# fp32: the same sums in another order, at hidden states of magnitude 1.
TOLERANCE = 1e-5


def encode(model: Any, *args: Any, **kwargs: Any) -> Tensor:
    with torch.no_grad():
        return model(*args, **kwargs).last_hidden_state


def test_fresh_weights_follow_the_config() -> None:
    torch.manual_seed(0)
    config = RoFormerConfig(
        vocab_size=500,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        initializer_range=0.05,
        embedding_size=32,
        pad_token_id=3,
    )
    model = RoFormerForMaskedLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "LayerNorm" in name:
            assert (parameter == 1).all(), name
        elif parameter.numel() > 1000:
            # Standard error of a deviation from 1,000 draws or more: 2.3 %.
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), name
    words = model.get_input_embeddings().weight
    assert not words[3].any()
    assert words[4].any()


@pytest.mark.parametrize("rotary_value", [False, True])
def test_rows_four_times_longer_than_trained_run(build: Build, rotary_value: bool) -> None:
    model = build(RoFormerModel, rotary_value=rotary_value)
    ids = torch.arange(1, 97)[None]
    assert ids.shape[1] == 4 * model.config.max_position_embeddings
    out = encode(model, ids)
    assert out.shape == (1, 96, 32)
    assert out.isfinite().all()
    # The first tokens see more now, but each is where it was.
    near = encode(model, ids, document_ids=(ids > 24).long(), position_ids=torch.arange(96))
    torch.testing.assert_close(near[:, :24], encode(model, ids[:, :24]), rtol=0, atol=TOLERANCE)


def test_the_output_depends_on_differences_of_positions_only(build: Build, ids: Tensor) -> None:
    model = build(RoFormerModel)
    here = encode(model, ids)
    for shift in (7, -3, 1_000_000):
        moved = encode(model, ids, position_ids=torch.arange(20) + shift)
        torch.testing.assert_close(moved, here, rtol=0, atol=TOLERANCE)
    rows = torch.stack([torch.arange(20), torch.arange(20) + 5, torch.arange(20) + 50])
    torch.testing.assert_close(encode(model, ids, position_ids=rows), here, rtol=0, atol=TOLERANCE)
    spread = encode(model, ids, position_ids=torch.arange(20) * 2)
    assert (spread - here).abs().max() > 0.01


@pytest.mark.parametrize(
    "fields",
    [
        {"rotary_value": True},
        {"position_encoding": "learned"},
        {"position_encoding": "sinusoidal", "initializer_range": 0.3},
    ],
    ids=str,
)
def test_absolute_encodings_see_a_shift(build: Build, ids: Tensor, fields: dict[str, Any]) -> None:
    model = build(RoFormerModel, **fields)
    moved = encode(model, ids, position_ids=torch.arange(20) + 3)
    assert (moved - encode(model, ids)).abs().max() > 0.01


def test_without_positions_the_order_of_tokens_does_not_matter(build: Build, ids: Tensor) -> None:
    model = build(RoFormerModel, position_encoding="none")
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        encode(model, ids[:, order]), encode(model, ids)[:, order], rtol=0, atol=TOLERANCE
    )
    shuffled = encode(build(RoFormerModel), ids[:, order])
    assert (shuffled - encode(build(RoFormerModel), ids)[:, order]).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sinusoidal_positions_are_those_of_the_formula(
    build: Build, ids: Tensor, dtype: torch.dtype
) -> None:
    fields = {"position_encoding": "sinusoidal", "embedding_size": 6, "initializer_range": 0.3}
    model = build(RoFormerModel, **fields).to(dtype)
    positions = [0, 1, 5000]
    size = 0.3 * math.sqrt(2)  # root mean square 0.3, as fresh words have
    expected = [
        [
            size * (math.cos if i % 2 else math.sin)(p / 10_000 ** (2 * (i // 2) / 6))
            for i in range(6)
        ]
        for p in positions
    ]
    words = model.embeddings.word_embeddings(ids[:, :3])
    added = encode(model, inputs_embeds=words, position_ids=torch.tensor(positions))
    model.embeddings.position_encoding = "none"
    assert (encode(model, inputs_embeds=words) - added).abs().max() > 0.01
    by_hand = encode(model, inputs_embeds=words + torch.tensor(expected, dtype=dtype))
    # One rounding of the sines, and of the sums after them, in either precision.
    atol = TOLERANCE if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(added, by_hand, rtol=0, atol=atol)


@pytest.mark.parametrize("encoding", ["learned", "sinusoidal"])
@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_fresh_words_and_positions_have_about_the_same_size(encoding: str, spread: float) -> None:
    torch.manual_seed(0)
    config = RoFormerConfig(
        vocab_size=500,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        position_encoding=encoding,
        initializer_range=spread,
    )
    embeddings = RoFormerModel(config).embeddings
    seen: list[Tensor] = []
    embeddings.LayerNorm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    nothing = torch.zeros(1, 400, 64)
    embeddings.token_type_embeddings.weight.data.zero_()
    embeddings(None, None, torch.arange(400), nothing)
    words = embeddings.word_embeddings.weight[1:].square().mean().sqrt()
    positions = seen[0].square().mean().sqrt()
    # Else the layer norm after the sum leaves only the larger of the two.
    assert 0.5 < (positions / words).item() < 2.0


def test_learned_positions_are_rows_of_their_table(build: Build, ids: Tensor) -> None:
    model = build(RoFormerModel, position_encoding="learned", embedding_size=16)
    table = model.state_dict()["embeddings.position_embeddings.weight"]
    assert table.shape == (24, 16)
    words = model.embeddings.word_embeddings(ids)
    here = encode(model, ids)
    model.embeddings.position_encoding = "none"
    torch.testing.assert_close(
        encode(model, inputs_embeds=words + table[:20]), here, rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize(
    ("length", "positions", "named"),
    [(25, None, 24), (5, torch.tensor([0, 1, 2, 3, 30]), 30), (2, torch.tensor([-1, 0]), -1)],
)
def test_positions_past_the_learned_table_are_not_possible(
    build: Build, length: int, positions: Tensor | None, named: int
) -> None:
    model = build(RoFormerModel, position_encoding="learned")
    with pytest.raises(
        ConfigError, match=rf"position {named} is not possible: .*24 positions.* {length} tokens"
    ):
        model(torch.ones(1, length, dtype=torch.long), position_ids=positions)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_rows_past_the_learned_table_are_refused_when_compiled(
    build: Build, fullgraph: bool
) -> None:
    model = build(RoFormerModel, position_encoding="learned", num_hidden_layers=1)
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    assert encode(compiled, torch.ones(1, 24, dtype=torch.long)).shape == (1, 24, 32)
    # With fullgraph torch wraps the error, and quotes it.
    with pytest.raises(Exception, match=r"position 24 is not possible: .*24 positions"):
        encode(compiled, torch.ones(1, 25, dtype=torch.long))


@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_an_empty_batch_gives_an_empty_answer(
    build: Build, ids: Tensor, encoding: str, implementation: str
) -> None:
    model = build(RoFormerForMaskedLM, position_encoding=encoding)
    model.set_attn_implementation(implementation)
    none = ids[:0]
    out = model(
        none,
        attention_mask=torch.ones_like(none),
        token_type_ids=none,
        position_ids=torch.arange(20),
        document_ids=none,
        labels=none,
    )
    assert model(none).logits.shape == (0, 20, 97)
    assert out.loss.item() == 0.0


def test_packed_rows_longer_than_the_learned_table_run(build: Build) -> None:
    model = build(RoFormerModel, position_encoding="learned")
    ids = torch.arange(1, 41)[None]
    packed = encode(
        model, ids, position_ids=torch.arange(40) % 20, document_ids=torch.arange(40)[None] // 20
    )
    torch.testing.assert_close(packed[:, 20:], encode(model, ids[:, 20:]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_on_either_side_changes_nothing(
    build: Build, ids: Tensor, padded: Tensor, implementation: str
) -> None:
    model = build(RoFormerModel)
    model.set_attn_implementation(implementation)
    batch = encode(model, ids, attention_mask=padded)
    for row in range(3):
        real = padded[row].bool()
        alone = encode(model, ids[row][real][None])
        torch.testing.assert_close(batch[row][real], alone[0], rtol=0, atol=TOLERANCE)


def test_a_row_of_padding_alone_gives_finite_numbers_and_gradients(
    build: Build, ids: Tensor
) -> None:
    mask = torch.ones_like(ids)
    mask[1] = 0
    outs = []
    for implementation in ("sdpa", "eager"):
        model = build(RoFormerModel)
        model.set_attn_implementation(implementation)
        outs.append(model(ids, attention_mask=mask).last_hidden_state)
        outs[-1].sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
    assert outs[0].isfinite().all()
    assert not outs[0][1].any()  # padding is not computed
    real = mask.bool()
    torch.testing.assert_close(outs[0][real], outs[1][real], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_packed_documents_equal_separate_ones(
    build: Build, encoding: str, implementation: str
) -> None:
    model = build(RoFormerModel, position_encoding=encoding)
    model.set_attn_implementation(implementation)
    lengths = (5, 9, 6)
    ids = torch.arange(1, 21)[None]
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(n) for n in lengths])
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0  # the last document is padded
    packed = encode(model, ids, attention_mask=mask, position_ids=positions, document_ids=documents)
    start = 0
    for length, real in zip(lengths, (5, 9, 4), strict=True):
        alone = encode(model, ids[:, start : start + real])
        torch.testing.assert_close(packed[:, start : start + real], alone, rtol=0, atol=TOLERANCE)
        start += length


def test_documents_need_positions_where_absolute_ones_matter(build: Build, ids: Tensor) -> None:
    documents = (torch.arange(20) > 8).long().expand(3, -1)
    for fields in ({"position_encoding": "learned"}, {"rotary_value": True}):
        with pytest.raises(ConfigError, match="position_ids must be given with document_ids"):
            build(RoFormerModel, **fields)(ids, document_ids=documents)
    assert encode(build(RoFormerModel), ids, document_ids=documents).isfinite().all()


def test_the_kernel_gets_no_mask_when_nothing_is_hidden(
    build: Build, ids: Tensor, padded: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spy(*args: Any, **kwargs: Any) -> Tensor:
        seen.append(kwargs.get("attn_mask"))
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    model = build(RoFormerModel)
    model(ids, attention_mask=torch.ones_like(ids), document_ids=torch.full_like(ids, 7))
    assert seen == [None, None]
    model(ids, attention_mask=padded)
    assert seen[2:] == [None] * 6  # three lengths in each of two layers
    model.unpads = False
    model(ids, attention_mask=padded)
    assert [mask.shape for mask in seen[8:]] == [(3, 1, 1, 20)] * 2


def test_the_table_of_rotations_is_built_once_per_forward(
    build: Build, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Tensor] = []
    real = RotaryEmbedding.table

    def spy(self: RotaryEmbedding, position_ids: Tensor, **kwargs: Any) -> Any:
        calls.append(position_ids)
        return real(self, position_ids, **kwargs)

    monkeypatch.setattr(RotaryEmbedding, "table", spy)
    encode(build(RoFormerModel), ids)
    assert len(calls) == 1


def test_eager_and_fused_attention_agree_and_both_give_their_weights(
    build: Build, ids: Tensor, padded: Tensor
) -> None:
    model = build(RoFormerModel)
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        fused = model(ids, attention_mask=padded)
        asked = model(ids, attention_mask=padded, output_attentions=True)
    assert fused.attentions is None
    real = padded.bool()
    torch.testing.assert_close(
        asked.last_hidden_state[real], fused.last_hidden_state[real], rtol=0, atol=TOLERANCE
    )
    weights = asked.attentions[1]
    assert weights.shape == (3, 4, 20, 20)
    # Rows of a softmax over 20 numbers.
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 20), rtol=0, atol=1e-5)
    assert not weights[0, :, :, 15:].any()


def test_hidden_states_begin_with_the_embeddings_and_end_with_the_output(
    build: Build, ids: Tensor
) -> None:
    model = build(RoFormerModel)
    with torch.no_grad():
        out = model(ids, output_hidden_states=True)
        first = model.embeddings(ids, None, torch.arange(20), None)
    assert len(out.hidden_states) == 3
    assert torch.equal(out.hidden_states[0], first)
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)


def test_double_precision_reaches_the_rotation(build: Build, ids: Tensor) -> None:
    model = build(RoFormerModel).double()
    here = encode(model, ids)
    assert here.dtype == torch.float64
    # float64 angles at a million are exact to 1e-10; float32 tables would be off by 1e-7.
    moved = encode(model, ids, position_ids=torch.arange(20) + 1_000_000)
    torch.testing.assert_close(moved, here, rtol=0, atol=1e-8)


def test_token_types_and_embeddings_may_be_given(build: Build, ids: Tensor) -> None:
    model = build(RoFormerModel, embedding_size=16)
    here = encode(model, ids)
    words = model.get_input_embeddings()(ids)
    assert torch.equal(encode(model, inputs_embeds=words), here)
    assert torch.equal(encode(model, ids, token_type_ids=torch.zeros_like(ids)), here)
    assert (encode(model, ids, token_type_ids=torch.ones_like(ids)) - here).abs().max() > 0.01


def test_feed_forward_in_chunks_of_any_size_changes_nothing(build: Build, ids: Tensor) -> None:
    here = encode(build(RoFormerModel), ids)
    chunked = encode(build(RoFormerModel, chunk_size_feed_forward=3), ids)
    torch.testing.assert_close(chunked, here, rtol=0, atol=TOLERANCE)


def test_gradient_checkpointing_gives_the_same_gradients(
    build: Build, ids: Tensor, padded: Tensor
) -> None:
    plain = build(RoFormerModel, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    saving = copy.deepcopy(plain)
    # Its name before transformers 5.10.
    getattr(saving, "activation_checkpointing_enable", saving.gradient_checkpointing_enable)()
    calls = []
    saving.encoder.layer[0].attention.register_forward_hook(lambda *_: calls.append(1))
    for model in (plain, saving):
        model(ids, attention_mask=padded).last_hidden_state.square().sum().backward()
    assert len(calls) == 2  # once forward, once again in the backward pass
    for (name, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name


def test_autocast_stays_close_to_full_precision(build: Build, ids: Tensor, padded: Tensor) -> None:
    model = build(RoFormerForMaskedLM)
    with torch.no_grad():
        full = model(ids, attention_mask=padded).logits
        with torch.autocast("cpu", torch.bfloat16):
            low = model(ids, attention_mask=padded).logits
    assert low.isfinite().all()
    # bfloat16 keeps 8 bits: 0.4 % per product, over two layers and sums of 32.
    assert (low.float() - full)[padded.bool()].abs().max() < 0.05 * full.abs().max()


def test_casting_the_model_leaves_the_rotation_alone(build: Build) -> None:
    model = build(RoFormerModel)
    positions = torch.tensor([1, 1000, 9_999_999])
    before = model.encoder.ropes["full_attention"].table(positions)
    for cast in (model.to(torch.bfloat16), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        after = cast.encoder.ropes["full_attention"].table(positions)
        assert torch.equal(after.cos, before.cos)
        assert torch.equal(after.sin, before.sin)
    assert encode(model, torch.ones(1, 4, dtype=torch.long)).dtype == torch.bfloat16
    assert not [name for name, _ in model.named_buffers()]


@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
def test_a_model_made_on_the_meta_device_computes_the_same(
    build: Build, ids: Tensor, tiny: dict[str, Any], encoding: str
) -> None:
    model = build(RoFormerModel, position_encoding=encoding)
    with torch.device("meta"):
        empty = RoFormerModel(RoFormerConfig(**tiny, position_encoding=encoding))
    assert empty(ids.to("meta"), torch.ones_like(ids).to("meta"))[0].shape == (3, 20, 32)
    empty.to_empty(device="cpu").load_state_dict(model.state_dict())
    assert torch.equal(encode(empty.eval(), ids), encode(model, ids))


@pytest.mark.parametrize("encoding", ["rope", "learned"])
def test_compiling_breaks_no_graph(
    build: Build, ids: Tensor, padded: Tensor, encoding: str
) -> None:
    model = build(RoFormerForMaskedLM, position_encoding=encoding, num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    documents = (torch.arange(20) > 9).long().expand(3, -1)
    for length in (20, 12):
        cut = [tensor[:, :length] for tensor in (ids, padded, documents)]
        inputs = {
            "attention_mask": cut[1],
            "document_ids": cut[2],
            "position_ids": torch.arange(length),
            "labels": cut[0].masked_fill((torch.arange(length) % 3 > 0) | (cut[1] == 0), -100),
        }
        a, b = compiled(cut[0], **inputs), model(cut[0], **inputs)
        torch.testing.assert_close(a.loss, b.loss, rtol=0, atol=TOLERANCE)
        assert a.logits.shape == (3, length, 97)


def test_an_exported_model_runs_at_other_sizes(build: Build, ids: Tensor, padded: Tensor) -> None:
    model = build(RoFormerForMaskedLM)
    sizes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("seq", min=2, max=4096)}
    exported = torch.export.export(
        model,
        (ids, padded),
        dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        strict=False,
    ).module()
    longer = torch.arange(100).remainder(97).view(2, 50)
    mask = (torch.arange(50) < torch.tensor([[50], [30]])).long()
    with torch.no_grad():
        a, b = (call(longer, mask).logits[mask.bool()] for call in (exported, model))
    torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


def test_the_vocabulary_can_be_resized(build: Build, ids: Tensor) -> None:
    model = build(RoFormerForMaskedLM)
    before = model(ids).logits
    model.resize_token_embeddings(104, mean_resizing=False)
    after = model(ids).logits
    assert after.shape == (3, 20, 104)
    torch.testing.assert_close(after[..., :97], before, rtol=0, atol=TOLERANCE)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.cls.predictions.bias is model.get_output_embeddings().bias


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({}, ConfigError, "exactly one of input_ids and inputs_embeds .* got neither"),
        (
            {"input_ids": torch.ones(1, 2).long(), "inputs_embeds": torch.ones(1, 2, 32)},
            ConfigError,
            "got both",
        ),
        ({"input_ids": torch.ones(4).long()}, ShapeError, r"\(batch, seq\); got \(4,\)"),
        ({"inputs_embeds": torch.ones(4, 32)}, ShapeError, r"got \(4, 32\)"),
        ({"input_ids": torch.ones(4, 0).long()}, ShapeError, r"one token per row; got \(4, 0\)"),
        ({"attention_mask": torch.ones(2, 19)}, ShapeError, r"\(2, 20\); got \(2, 19\)"),
        ({"attention_mask": torch.ones(2, 1, 20, 20)}, ShapeError, r"got \(2, 1, 20, 20\)"),
        ({"attention_mask": torch.arange(40).view(2, 20)}, ShapeError, "values from 0 to 39"),
        ({"document_ids": torch.ones(20)}, ShapeError, r"document_ids .* got \(20,\)"),
        ({"position_ids": torch.arange(19)}, ShapeError, r"position_ids .* got \(19,\)"),
        ({"input_ids": [[1, 2]]}, ShapeError, "input_ids must be a torch tensor; got a list"),
        ({"inputs_embeds": [[[1.0]]]}, ShapeError, "inputs_embeds must be a torch .* got a list"),
        ({"attention_mask": [[1] * 20] * 2}, ShapeError, "attention_mask .* got a list"),
        ({"token_type_ids": [[1] * 20] * 2}, ShapeError, "token_type_ids .* got a list"),
        ({"position_ids": list(range(20))}, ShapeError, "position_ids .* got a list"),
        ({"document_ids": [[1] * 20] * 2}, ShapeError, "document_ids .* got a list"),
        ({"input_ids": torch.ones(1, 2)}, ShapeError, r"input_ids .* got torch\.float32"),
        ({"input_ids": torch.tensor([[5, 97]])}, ShapeError, "from 0 to 96 .*vocab_size.* got 97"),
        ({"input_ids": torch.tensor([[5, -1]])}, ShapeError, "input_ids .* got -1"),
        (
            {"token_type_ids": torch.ones(4, 20).long()},
            ShapeError,
            r"token_type_ids must be \(2, 20\); got \(4, 20\)",
        ),
        (
            {"token_type_ids": torch.full((2, 20), 2)},
            ShapeError,
            "token_type_ids must be from 0 to 1 .* got 2",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused_in_one_line(
    build: Build, inputs: dict[str, Any], error: type[Exception], message: str
) -> None:
    if inputs and not {"input_ids", "inputs_embeds"} & set(inputs):
        inputs = {"input_ids": torch.ones(2, 20, dtype=torch.long)} | inputs
    with pytest.raises(error, match=message) as caught:
        build(RoFormerModel)(**inputs)
    assert "\n" not in str(caught.value)


def test_real_positions_rotate_but_do_not_index_a_table(build: Build, ids: Tensor) -> None:
    halves = torch.arange(20) / 2
    assert encode(build(RoFormerModel), ids, position_ids=halves).isfinite().all()
    with pytest.raises(ShapeError, match=r"must be integers .*got torch\.float32"):
        build(RoFormerModel, position_encoding="learned")(ids, position_ids=halves)


def test_a_config_of_transformers_is_refused_with_the_remedy(tiny: dict[str, Any]) -> None:
    theirs = transformers.RoFormerConfig(**tiny)
    with pytest.raises(ConfigError, match=r"got transformers.*RoFormerConfig\(\*\*config"):
        RoFormerModel(theirs)
    assert RoFormerModel(RoFormerConfig(**theirs.to_dict())).config.is_vanilla


def test_an_attention_that_knows_no_padding_is_refused(build: Build, ids: Tensor) -> None:
    model = build(RoFormerModel)
    model.config._attn_implementation = "custom"
    with pytest.raises(ConfigError, match="must be one of sdpa, eager; got 'custom'"):
        model(ids)
