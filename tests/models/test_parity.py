"""Our models and transformers' RoFormer: the same names, files and numbers, in both directions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ropewalk.models import (
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerModel,
)

pytestmark = pytest.mark.parity

# fp32: two attention kernels and two orders of summation, at logits of magnitude 1 to 10.
TOLERANCE = 1e-5

VARIANTS = [
    {},
    {"embedding_size": 16},
    {"rotary_value": True},
    {"hidden_act": "relu", "chunk_size_feed_forward": 1, "num_attention_heads": 2},
    {"tie_word_embeddings": False},
]
CLASSES = ["RoFormerModel", "RoFormerForMaskedLM", "RoFormerForSequenceClassification"]
OURS = {c.__name__: c for c in (RoFormerModel, RoFormerForMaskedLM)} | {
    "RoFormerForSequenceClassification": RoFormerForSequenceClassification
}


def answer(model: Any, ids: torch.Tensor, mask: torch.Tensor, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, attention_mask=mask, **inputs)[0]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("embedding_size", [32, 16])
def test_state_dicts_have_the_same_names_and_shapes(
    tiny: dict[str, Any], name: str, embedding_size: int
) -> None:
    fields = tiny | {"embedding_size": embedding_size}
    ours = OURS[name](RoFormerConfig(**fields)).state_dict()
    theirs = getattr(transformers, name)(transformers.RoFormerConfig(**fields)).state_dict()
    constant = [key for key in theirs if key.endswith("encoder.embed_positions.weight")]
    assert len(constant) == 1
    expected = {key: value.shape for key, value in theirs.items() if key not in constant}
    assert {key: value.shape for key, value in ours.items()} == expected


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_our_folder_gives_the_same_answers_in_transformers(
    build: Callable[..., Any],
    ids: torch.Tensor,
    padded: torch.Tensor,
    tmp_path: Path,
    name: str,
    fields: dict[str, Any],
) -> None:
    model = build(OURS[name], **fields)
    model.save_pretrained(tmp_path)
    theirs, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    kinds = torch.randint(0, 2, ids.shape, generator=torch.Generator().manual_seed(2))
    a = answer(model, ids, padded, token_type_ids=kinds)
    b = answer(theirs.eval(), ids, padded, token_type_ids=kinds)
    if name != "RoFormerForSequenceClassification":
        a, b = a[padded.bool()], b[padded.bool()]
    else:  # its first token is padding in the second row
        a, b = a[[0, 2]], b[[0, 2]]
    torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)
    assert a.std() > 0.01


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_their_folder_gives_the_same_answers_here(
    tiny: dict[str, Any],
    ids: torch.Tensor,
    padded: torch.Tensor,
    tmp_path: Path,
    fields: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(3)
    theirs = transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**(tiny | fields)))
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0.0, 0.3)
    theirs.eval().save_pretrained(tmp_path)
    ours = RoFormerForMaskedLM.from_pretrained(tmp_path)
    assert caplog.text == ""
    assert not ours.training
    a, b = answer(ours, ids, padded), answer(theirs, ids, padded)
    torch.testing.assert_close(a[padded.bool()], b[padded.bool()], rtol=0, atol=TOLERANCE)
    fresh = RoFormerForMaskedLM(RoFormerConfig(**(tiny | fields))).eval()
    fresh.load_state_dict(theirs.state_dict())
    assert torch.equal(answer(fresh, ids, padded), a)


@pytest.mark.parametrize("tie", [True, False])
def test_a_resized_model_is_read_on_both_sides(
    build: Callable[..., Any], ids: torch.Tensor, tmp_path: Path, tie: bool
) -> None:
    model = build(RoFormerForMaskedLM, tie_word_embeddings=tie)
    model.resize_token_embeddings(77, mean_resizing=False)
    ids = ids.clamp(max=76)
    expected = answer(model, ids, torch.ones_like(ids))
    assert expected.shape == (3, 20, 77)
    model.save_pretrained(tmp_path / "ours")
    for cls in (RoFormerForMaskedLM, transformers.RoFormerForMaskedLM):
        back, info = cls.from_pretrained(tmp_path / "ours", output_loading_info=True)
        assert not any(info.values())
        logits = answer(back.eval(), ids, torch.ones_like(ids))
        torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)
    # After resizing, transformers stores an untied bias once, and cannot read that itself.
    back.resize_token_embeddings(81, mean_resizing=False)
    back.save_pretrained(tmp_path / "theirs")
    ours = RoFormerForMaskedLM.from_pretrained(tmp_path / "theirs")
    a, b = (answer(m, ids, torch.ones_like(ids)) for m in (ours, back))
    torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


def test_an_untied_bias_that_transformers_never_read_is_not_read_here(
    tiny: dict[str, Any], ids: torch.Tensor, tmp_path: Path
) -> None:
    config = transformers.RoFormerConfig(**tiny, tie_word_embeddings=False)
    theirs = transformers.RoFormerForMaskedLM(config).eval()
    theirs.cls.predictions.bias.data.fill_(5.0)
    theirs.cls.predictions.decoder.bias.data.normal_()
    theirs.save_pretrained(tmp_path)
    ours = RoFormerForMaskedLM.from_pretrained(tmp_path)
    a, b = (answer(m, ids, torch.ones_like(ids)) for m in (ours, theirs))
    torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "fields",
    [
        {"chunk_size_feed_forward": 3},
        {"layer_norm_eps": 1},
        {"initializer_range": 1},
        {"hidden_dropout_prob": 0},
        {"pad_token_id": None},
        {"bos_token_id": 1, "eos_token_id": [2, 3], "use_cache": False},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
        {"output_hidden_states": True, "return_dict": False, "sparse_prediction": False},
        {"type_vocab_size": 1, "max_position_embeddings": 20, "hidden_act": "silu"},
    ],
    ids=str,
)
def test_what_is_called_roformer_runs_in_transformers_at_every_length(
    build: Callable[..., Any], ids: torch.Tensor, tmp_path: Path, fields: dict[str, Any]
) -> None:
    model = build(RoFormerForMaskedLM, **fields)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["model_type"]
    assert (written == "roformer") == ("chunk_size_feed_forward" not in fields)
    if written != "roformer":
        return
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(theirs) is transformers.RoFormerForMaskedLM
    for length in (1, 7, 20):
        cut = ids[:, :length]
        a, b = (answer(m, cut, torch.ones_like(cut)) for m in (model, theirs.eval()))
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


def test_hidden_states_attention_maps_and_tuples_are_those_of_transformers(
    build: Callable[..., Any], ids: torch.Tensor, tmp_path: Path
) -> None:
    model = build(RoFormerModel)
    model.save_pretrained(tmp_path)
    theirs = transformers.RoFormerModel.from_pretrained(tmp_path).eval()
    asked = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        a, b = model(ids, **asked), theirs(ids, **asked)
        pair = model(ids, return_dict=False, **asked), theirs(ids, return_dict=False, **asked)
    for ours, expected in ((a.hidden_states, b.hidden_states), (a.attentions, b.attentions)):
        assert len(ours) == len(expected)
        for x, y in zip(ours, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=TOLERANCE)
    assert [len(x) if isinstance(x, tuple) else x.shape for x in pair[0]] == [
        len(x) if isinstance(x, tuple) else x.shape for x in pair[1]
    ]


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"num_labels": 3}, torch.tensor([0, 2, 1])),
        ({"num_labels": 1}, torch.tensor([0.5, -1.0, 2.0])),
        ({"num_labels": 3}, torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])),
        ({"num_labels": 2, "problem_type": "regression"}, torch.tensor([[0.5, 1.0]] * 3)),
    ],
    ids=["classes", "regression", "several labels", "two numbers"],
)
def test_classification_losses_are_those_of_transformers(
    build: Callable[..., Any],
    ids: torch.Tensor,
    tmp_path: Path,
    fields: dict[str, Any],
    labels: torch.Tensor,
) -> None:
    model = build(RoFormerForSequenceClassification, **fields)
    model.save_pretrained(tmp_path)
    theirs = transformers.RoFormerForSequenceClassification.from_pretrained(tmp_path)
    a, b = model(ids, labels=labels), theirs(ids, labels=labels)
    torch.testing.assert_close(a.loss, b.loss, rtol=0, atol=TOLERANCE)
    assert model.config.problem_type == theirs.config.problem_type


def test_masked_token_loss_and_gradients_are_those_of_transformers(
    build: Callable[..., Any], ids: torch.Tensor, padded: torch.Tensor, tmp_path: Path
) -> None:
    model = build(RoFormerForMaskedLM, embedding_size=16)
    model.save_pretrained(tmp_path)
    theirs = transformers.RoFormerForMaskedLM.from_pretrained(tmp_path)
    labels = ids.masked_fill((torch.arange(20) % 4 != 1) | ~padded.bool(), -100)
    a = model(ids, attention_mask=padded, labels=labels).loss
    b = theirs(ids, attention_mask=padded, labels=labels).loss
    torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)
    a.backward()
    b.backward()
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    # A constant, but transformers gives it a gradient once it has been loaded.
    del expected["roformer.encoder.embed_positions.weight"]
    for name, parameter in model.named_parameters():
        # Sums over 60 rows of products of magnitude 1.
        torch.testing.assert_close(parameter.grad, expected.pop(name), rtol=1e-4, atol=1e-5)
    assert not expected


PLAIN = """
import json, sys
sys.modules["ropewalk"] = None  # importing it would fail
import torch, transformers
folder, other = sys.argv[1:]
ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
with torch.no_grad():
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    logits = model(ids).logits
try:
    transformers.AutoModelForMaskedLM.from_pretrained(other)
    refusal = "none"
except ValueError as error:
    refusal = str(error)
print(json.dumps([type(model).__module__, logits.tolist(), refusal]))
"""


def test_a_process_without_ropewalk_reads_our_folder_or_refuses_it(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    model = build(RoFormerForMaskedLM)
    model.save_pretrained(tmp_path / "vanilla")
    scaled = {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    RoFormerForMaskedLM(RoFormerConfig(**(model.config.to_dict() | scaled))).save_pretrained(
        tmp_path / "scaled"
    )
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(tmp_path / "vanilla"), str(tmp_path / "scaled")],
        capture_output=True,
        text=True,
        check=True,
    )
    module, logits, refusal = json.loads(done.stdout)
    assert module == "transformers.models.roformer.modeling_roformer"
    with torch.no_grad():
        expected = model(torch.tensor([[5, 6, 7, 8, 9, 10]])).logits
    torch.testing.assert_close(torch.tensor(logits), expected, rtol=0, atol=TOLERANCE)
    assert "ropewalk_roformer" in refusal
    assert "MISSING" not in done.stderr
