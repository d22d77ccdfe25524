"""Every model under every position encoding: the same answer in whatever form the batch comes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.models import (
    POSITION_ENCODINGS,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerModel,
)
from ropewalk.rotary import positions_from_attention_mask

Build = Callable[..., Any]
# fp32: two layers of the same products, summed in another order.
TOLERANCE = 1e-5
LENGTHS = (15, 16, 20, 16)
TOTAL = sum(LENGTHS)
LONGEST = max(LENGTHS)

MODELS = {
    "encoder": RoFormerModel,
    "masked": RoFormerForMaskedLM,
    "classifier": RoFormerForSequenceClassification,
}
CASES = [
    pytest.param(name, encoding, id=f"{name}-{encoding}")
    for name in MODELS
    for encoding in POSITION_ENCODINGS
]
every_case = pytest.mark.parametrize(("name", "encoding"), CASES)


def tokens() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(1, 97, (length,), generator=generator) for length in LENGTHS]


def padded(side: str) -> dict[str, Tensor]:
    """Rows padded on one side, with the positions that their tokens have alone."""
    ids = torch.zeros(len(LENGTHS), LONGEST, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (length, words) in enumerate(zip(LENGTHS, tokens(), strict=True)):
        place = slice(0, length) if side == "right" else slice(LONGEST - length, LONGEST)
        ids[row, place], mask[row, place] = words, 1
    positions = positions_from_attention_mask(mask)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def flat(*, longest: bool = True) -> dict[str, Any]:
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    batch = {"input_ids": torch.cat(tokens())[None], "cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
    return batch | ({"max_length_q": LONGEST, "max_length_k": LONGEST} if longest else {})


def make(build: Build, name: str, encoding: str, **fields: Any) -> Any:
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return build(MODELS[name], position_encoding=encoding, **(off | fields))


def answer(model: Any, batch: dict[str, Any]) -> Tensor:
    """Return what the model says of the real tokens, one behind the other, or of the rows."""
    output = model(**batch)[0]
    if isinstance(model, RoFormerForSequenceClassification) or len(output) == 1:
        return output.flatten(0, -2)
    return output[batch["attention_mask"].bool()]


def alone(model: Any) -> Tensor:
    return torch.cat([model(words[None])[0].flatten(0, -2) for words in tokens()])


def gradients(model: Any, compute: Callable[[Any], Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    said = compute(model)
    weights = torch.randn(said.shape, generator=torch.Generator().manual_seed(6))
    (said * weights).mean().backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_close_gradients(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, gradient in got.items():
        scale = float(want[name].abs().max()) + 1e-6
        torch.testing.assert_close(
            gradient, want[name], rtol=0, atol=max(TOLERANCE, TOLERANCE * scale), msg=name
        )


@every_case
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("unpads", [True, False])
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(
    build: Build, name: str, encoding: str, side: str, unpads: bool
) -> None:
    model = make(build, name, encoding)
    model.base_model.unpads = unpads
    torch.testing.assert_close(answer(model, padded(side)), alone(model), rtol=0, atol=TOLERANCE)


@every_case
@pytest.mark.parametrize("longest", [True, False])
@torch.no_grad()
def test_packed_sequences_are_those_alone(
    build: Build, name: str, encoding: str, longest: bool
) -> None:
    model = make(build, name, encoding)
    got = answer(model, flat(longest=longest))
    torch.testing.assert_close(got, alone(model), rtol=0, atol=TOLERANCE)


@every_case
def test_packed_and_padded_batches_give_the_gradients_of_masked_rows(
    build: Build, name: str, encoding: str
) -> None:
    model = make(build, name, encoding).train()
    model.base_model.unpads = False
    want = gradients(model, lambda model: answer(model, padded("right")))
    model.base_model.unpads = True
    for batch in (flat(), padded("right"), padded("left")):
        assert_close_gradients(gradients(model, lambda model, b=batch: answer(model, b)), want)


@every_case
def test_gradient_checkpointing_changes_nothing(build: Build, name: str, encoding: str) -> None:
    model = make(build, name, encoding).train()
    saving = copy.deepcopy(model)
    # Its name before transformers 5.10.
    getattr(saving, "activation_checkpointing_enable", saving.gradient_checkpointing_enable)()
    for batch in (padded("right"), flat()):
        plain = gradients(model, lambda model, b=batch: answer(model, b))
        again = gradients(saving, lambda model, b=batch: answer(model, b))
        assert all(torch.equal(again[key], plain[key]) for key in plain)


@every_case
@torch.no_grad()
def test_autocast_and_bfloat16_stay_close(build: Build, name: str, encoding: str) -> None:
    model = make(build, name, encoding)
    full = answer(model, padded("right"))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = [answer(model, batch).float() for batch in (padded("right"), flat())]
    low = answer(copy.deepcopy(model).to(torch.bfloat16), flat()).float()
    for got in (*mixed, low):
        # bfloat16 keeps 8 bits: 0.4 % a product, over two layers and sums of 32.
        assert (got - full).abs().max() < 0.08 * full.abs().max()


@every_case
def test_dropout_repeats_with_its_seed(build: Build, name: str, encoding: str) -> None:
    model = make(
        build, name, encoding, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2
    ).train()
    for batch in (padded("right"), flat()):
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            runs.append(answer(model, batch))
        assert torch.equal(runs[0], runs[1])
        assert (runs[0] - runs[2]).abs().max() > 0.01


@every_case
@torch.no_grad()
def test_compiled_models_take_other_lengths_without_compiling_again(
    build: Build, name: str, encoding: str
) -> None:
    model = make(build, name, encoding, num_hidden_layers=1)
    torch._dynamo.reset()  # graphs of other models of the class would be tried first
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length, rows in ((20, 3), (17, 2), (16, 3)):
            batch = {k: x[:rows, :length].clone() for k, x in padded("right").items()}
            got, want = compiled(**batch)[0], model(**batch)[0]
            if name != "classifier":
                real = batch["attention_mask"].bool()
                got, want = got[real], want[real]
            torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE)


@every_case
@torch.no_grad()
def test_exported_models_run_at_other_sizes(build: Build, name: str, encoding: str) -> None:
    model = make(build, name, encoding, num_hidden_layers=1, max_position_embeddings=64)
    batch = padded("right")
    given = (batch["input_ids"], batch["attention_mask"])
    sizes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("seq", min=2, max=64)}
    shapes = {"input_ids": sizes, "attention_mask": sizes}
    exported = torch.export.export(model, given, dynamic_shapes=shapes, strict=False).module()
    ids = torch.arange(1, 61).view(2, 30)
    mask = (torch.arange(30) < torch.tensor([[30], [11]])).long()
    got, want = exported(ids, mask)[0], model(ids, mask)[0]
    if name != "classifier":
        got, want = got[mask.bool()], want[mask.bool()]
    torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
@torch.no_grad()
def test_documents_in_several_pieces_see_all_of_their_own(build: Build, encoding: str) -> None:
    model = make(build, "encoder", encoding)
    ids = torch.stack([words[:15] for words in tokens()])
    documents = torch.tensor([0, 1, 1, 0, 2] * 3).expand(4, 15)
    batch = {"document_ids": documents, "position_ids": torch.arange(15)}
    got = model(ids, **batch)[0]
    model.unpads = False
    torch.testing.assert_close(got, model(ids, **batch)[0], rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_hidden_states_of_packed_rows_are_padded_again(build: Build) -> None:
    model = make(build, "encoder", "rope")
    batch = padded("left")
    real = batch["attention_mask"].bool()
    states = model(**batch, output_hidden_states=True).hidden_states
    model.unpads = False
    for got, want in zip(
        states, model(**batch, output_hidden_states=True).hidden_states, strict=True
    ):
        assert got.shape == want.shape
        assert not got[~real].any()
        torch.testing.assert_close(got[real], want[real], rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_packed_sequences_run_where_they_are_masked_rows(build: Build) -> None:
    model = make(build, "masked", "rope")
    want = answer(model, flat())
    model.set_attn_implementation("eager")
    torch.testing.assert_close(answer(model, flat()), want, rtol=0, atol=TOLERANCE)
