"""Folders of ours in sentence-transformers: pooling written, read and giving the same vectors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from ropewalk.data import train_tokenizer
from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.models import RoFormerConfig, RoFormerForMaskedLM, RoFormerModel
from ropewalk.models.sentences import POOLINGS, configure_pooling

Build = Callable[..., Any]
FULL, LOCAL = "full_attention", "sliding_attention"
MODERN: dict[str, Any] = {"layer_types": [FULL, LOCAL], "sliding_window": 3, "pre_norm": True}
TEXTS = ["The ant carries a leaf.", "An anchor", "The bees and the ants " * 8]


def pooled(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    real = mask[..., None].bool()
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "max":
        return hidden.masked_fill(~real, -torch.inf).amax(1)
    return (hidden * real).sum(1) / real.sum(1)


@pytest.mark.parametrize("fields", [{}, MODERN], ids=["roformer", "modern"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_sentence_transformers_gives_our_pooled_states(
    tmp_path: Path, fields: dict[str, Any], pooling: str
) -> None:
    library = pytest.importorskip(
        "sentence_transformers", reason="needs sentence-transformers, of the extra ropewalk[dev]"
    )
    tokenizer = train_tokenizer(tiny.documents(), vocab_size=90)
    torch.manual_seed(0)
    model = RoFormerForMaskedLM(
        RoFormerConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48, max_position_embeddings=200, **fields,
        )
    ).eval()  # fmt: skip
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    configure_pooling(tmp_path, pooling)
    found = library.SentenceTransformer(str(tmp_path), device="cpu").encode(
        TEXTS, convert_to_tensor=True
    )
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = RoFormerModel.from_pretrained(tmp_path)(
            batch["input_ids"], attention_mask=batch["attention_mask"]
        )[0]
    expected = pooled(hidden, batch["attention_mask"], pooling)
    # fp32: rows are sorted and padded otherwise there, and a plain folder runs in transformers
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_folder_says_how_texts_are_cut_and_pooled(build: Build, tmp_path: Path) -> None:
    build(RoFormerModel).save_pretrained(tmp_path)
    configure_pooling(tmp_path, "cls", max_length=300)
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"]
    assert json.loads((tmp_path / "1_Pooling" / "config.json").read_text()) == {
        "word_embedding_dimension": 32,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_cls_token": True,
        "pooling_mode_max_tokens": False,
    }
    cut = json.loads((tmp_path / "sentence_bert_config.json").read_text())
    assert cut["max_seq_length"] == 300
    configure_pooling(tmp_path)
    cut = json.loads((tmp_path / "sentence_bert_config.json").read_text())
    assert cut["max_seq_length"] == 24
    assert RoFormerModel.from_pretrained(tmp_path).config.hidden_size == 32


def test_pooling_needs_a_model_and_a_known_name(build: Build, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape("must be the folder of a saved model")):
        configure_pooling(tmp_path)
    build(RoFormerModel).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"pooling must be one of .*; got 'median'"):
        configure_pooling(tmp_path, "median")
    with pytest.raises(ConfigError, match="max_length must be an integer of at least 1; got 0"):
        configure_pooling(tmp_path, max_length=0)
