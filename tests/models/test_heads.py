"""The heads: which rows are decoded, and what the loss is divided by."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.errors import ShapeError
from ropewalk.models import (
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    masked_lm_loss,
)

Build = Callable[..., Any]


@pytest.fixture
def labels(ids: Tensor) -> Tensor:
    """Every third token is to be predicted."""
    return ids.masked_fill(torch.arange(20) % 3 > 0, -100)


def gradients(model: Any) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def test_loss_of_a_worked_example() -> None:
    # Two masked tokens of four words: probabilities 1/4, and e^1 / (e^1 + 3).
    logits = torch.tensor([[0.0, 0, 0, 0], [9.0, 9, 9, 9], [1.0, 0, 0, 0]], requires_grad=True)
    labels = torch.tensor([2, -100, 0])
    expected = math.log(4) + math.log(math.e + 3) - 1
    assert masked_lm_loss(logits, labels).item() == pytest.approx(expected / 2)
    assert masked_lm_loss(logits, labels, 8).item() == pytest.approx(expected / 8)
    assert masked_lm_loss(logits, labels, torch.tensor(8)).item() == pytest.approx(expected / 8)


@pytest.mark.parametrize("items", [None, 0, torch.tensor(0)])
def test_loss_without_a_masked_token_is_zero_and_differentiable(items: Any) -> None:
    for logits, labels in (
        (torch.ones(0, 5, requires_grad=True), torch.ones(0, dtype=torch.long)),
        (torch.ones(3, 5, requires_grad=True), torch.full((3,), -100)),
    ):
        loss = masked_lm_loss(logits, labels, items)
        assert loss.item() == 0.0
        loss.backward()
        assert not logits.grad.any()


def test_loss_of_half_precision_logits_is_computed_in_float32() -> None:
    logits = torch.tensor([[8.0, 0.0]], dtype=torch.bfloat16)
    loss = masked_lm_loss(logits, torch.tensor([0]))
    assert loss.dtype == torch.float32
    # bfloat16 has 8 bits: log(e^8 + 1) - 8 would be 0 there.
    assert loss.item() == pytest.approx(math.log1p(math.exp(-8)), rel=1e-4)


def test_without_labels_every_token_is_scored(build: Build, ids: Tensor) -> None:
    out = build(RoFormerForMaskedLM)(ids)
    assert out.logits.shape == (3, 20, 97)
    assert out.loss is None


@pytest.mark.parametrize("items", [None, 50])
@pytest.mark.parametrize("embedding_size", [32, 16])
def test_decoding_masked_rows_alone_gives_the_same_loss_and_gradients(
    build: Build,
    ids: Tensor,
    padded: Tensor,
    labels: Tensor,
    items: int | None,
    embedding_size: int,
) -> None:
    model = build(RoFormerForMaskedLM, embedding_size=embedding_size)
    inputs = {"attention_mask": padded, "labels": labels, "num_items_in_batch": items}
    sparse = model(ids, **inputs)
    sparse.loss.backward()
    sparse_gradients = gradients(model)
    model.config.sparse_prediction = False
    dense = model(ids, **inputs)
    dense.loss.backward()
    assert dense.logits.shape == (3, 20, 97)
    # fp32: the same rows, in products of other shapes.
    torch.testing.assert_close(sparse.logits, dense.logits[labels != -100], rtol=0, atol=1e-5)
    torch.testing.assert_close(sparse.loss, dense.loss, rtol=1e-6, atol=0)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(sparse_gradients[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sparse", [True, False])
def test_a_batch_without_masked_tokens_trains_on(build: Build, ids: Tensor, sparse: bool) -> None:
    model = build(RoFormerForMaskedLM, sparse_prediction=sparse)
    out = model(ids, labels=torch.full_like(ids, -100))
    assert out.loss.item() == 0.0
    out.loss.backward()
    # Distributed training waits for a gradient of every parameter.
    for name, gradient in gradients(model).items():
        assert not gradient.any(), name


def test_accumulated_batches_give_the_gradient_of_one_large_batch(
    build: Build, ids: Tensor, labels: Tensor
) -> None:
    labels = labels.clone()
    labels[0, 5:] = -100  # batches of unequal weight
    whole = build(RoFormerForMaskedLM)
    parts = copy.deepcopy(whole)
    whole(ids, labels=labels).loss.backward()
    count = (labels != -100).sum()
    for row in range(3):
        pair = ids[row : row + 1], labels[row : row + 1]
        parts(pair[0], labels=pair[1], num_items_in_batch=count).loss.backward()
    expected = gradients(whole)
    for name, gradient in gradients(parts).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_trainer_is_told_which_loss_is_already_divided() -> None:
    assert RoFormerForMaskedLM.accepts_loss_kwargs
    assert not RoFormerForSequenceClassification.accepts_loss_kwargs


def test_tuples_leave_out_what_is_none(build: Build, ids: Tensor, labels: Tensor) -> None:
    model = build(RoFormerForMaskedLM)
    named = model(ids, labels=labels)
    loss, logits = model(ids, labels=labels, return_dict=False)
    assert torch.equal(loss, named.loss)
    assert torch.equal(logits, named.logits)
    (only,) = build(RoFormerForSequenceClassification)(ids, return_dict=False)
    assert only.shape == (3, 2)


def test_classification_reads_the_first_token(build: Build, ids: Tensor) -> None:
    model = build(RoFormerForSequenceClassification, num_labels=3)
    hidden = model.roformer(ids).last_hidden_state[:, 0]
    head = model.classifier
    expected = head.out_proj(torch.nn.functional.gelu(head.dense(hidden)))
    # fp32: the same products.
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-6)


def test_labels_of_another_shape_are_refused(build: Build, ids: Tensor, labels: Tensor) -> None:
    with pytest.raises(ShapeError, match=r"labels must be \(3, 20\); got \(3, 19\)"):
        build(RoFormerForMaskedLM)(ids, labels=labels[:, :19])


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(("label", "named"), [(97, "97"), (-1, "-1"), (-101, "-101")])
def test_labels_that_are_no_tokens_are_refused(
    build: Build, ids: Tensor, labels: Tensor, sparse: bool, label: int, named: str
) -> None:
    model = build(RoFormerForMaskedLM, sparse_prediction=sparse)
    labels[1, 4] = label
    with pytest.raises(ShapeError, match=rf"labels must be from 0 to 96 .* got {named}$"):
        model(ids, labels=labels)
    with pytest.raises(ShapeError, match=r"labels must be of dtype .* got torch\.float32"):
        model(ids, labels=labels.float())
    with pytest.raises(ShapeError, match="labels must be a torch tensor; got a list"):
        model(ids, labels=labels.tolist())


CLASS_LABELS: list[tuple[dict[str, Any], Any, str]] = [
    ({"num_labels": 3}, torch.tensor([0, 3, 1]), "from 0 to 2 .* got 3"),
    ({"num_labels": 3}, torch.tensor([0, -5, 1]), "from 0 to 2 .* got -5"),
    ({"num_labels": 3}, torch.tensor([0, 1]), r"\(3,\); got \(2,\)"),
    ({"num_labels": 3}, torch.zeros(3, 3).long(), r"\(3,\); got \(3, 3\)"),
    ({"num_labels": 3}, [0, 1, 2], "a torch tensor; got a list"),
    ({"num_labels": 3}, torch.zeros(3, 2), r"\(3, 3\); got \(3, 2\)"),
    ({"num_labels": 1}, torch.tensor([0, 1, 2]), r"real numbers for regression; got torch\.int64"),
    ({"num_labels": 1}, torch.zeros(2), r"\(3, 1\); got \(2,\)"),
    (
        {"num_labels": 3, "problem_type": "single_label_classification"},
        torch.zeros(3),
        r"of dtype torch\.int64; got torch\.float32",
    ),
    (
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        torch.zeros(3, 3).long(),
        "real numbers for multi_label_classification",
    ),
]


@pytest.mark.parametrize(("fields", "labels", "message"), CLASS_LABELS)
def test_labels_that_no_loss_fits_are_refused(
    build: Build, ids: Tensor, fields: dict[str, Any], labels: Any, message: str
) -> None:
    model = build(RoFormerForSequenceClassification, **fields)
    with pytest.raises(ShapeError, match="labels must be " + message) as caught:
        model(ids, labels=labels)
    assert "\n" not in str(caught.value)


def test_ignored_labels_are_left_out_of_the_loss(build: Build, ids: Tensor) -> None:
    model = build(RoFormerForSequenceClassification, num_labels=3)
    some = model(ids, labels=torch.tensor([2, -100, 0])).loss
    expected = model(ids[[0, 2]], labels=torch.tensor([2, 0])).loss
    # fp32: the same rows in a smaller batch.
    torch.testing.assert_close(some, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tie", [True, False])
def test_every_parameter_has_a_gradient(
    build: Build, ids: Tensor, labels: Tensor, tie: bool
) -> None:
    model = build(RoFormerForMaskedLM, tie_word_embeddings=tie)
    model(ids, labels=labels).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    words = model.get_input_embeddings().weight
    assert (model.get_output_embeddings().weight is words) == tie


def test_dropout_works_in_training_and_not_in_evaluation(build: Build, ids: Tensor) -> None:
    model = build(RoFormerForMaskedLM)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, model(ids).logits)
        model.train()
        for implementation in ("sdpa", "eager"):
            model.set_attn_implementation(implementation)
            assert not torch.equal(model(ids).logits, model(ids).logits)
