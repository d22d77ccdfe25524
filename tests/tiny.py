"""A model, a tokenizer and masked rows small enough to train in a second, for tests of recipes."""

from __future__ import annotations

import functools

import torch

from ropewalk.data import MaskedLanguageModeling, pack_documents, train_tokenizer
from ropewalk.models import RoFormerConfig, RoFormerForMaskedLM

LENGTH = 16
ROWS = 40
SENTENCE = "rope walk turns pairs of numbers by angles that grow with the place of a word"
WORDS = SENTENCE.split()


def documents(count=200):
    return [
        " ".join(WORDS[(i * 7 + k * (1 + i % 5)) % len(WORDS)] for k in range(4 + i % 9))
        for i in range(count)
    ]


@functools.cache
def tokenizer():
    return train_tokenizer(documents(), vocab_size=90)


@functools.cache
def rows(rows=ROWS, seed=1):
    """Masked rows; a multiple of 4 and 8, so that steps of such batches end with the epoch."""
    blocks = pack_documents(documents(), tokenizer(), block_size=LENGTH)
    assert len(blocks) >= rows, len(blocks)
    kept = type(blocks)(**{name: array[:rows] for name, array in vars(blocks).items()})
    return MaskedLanguageModeling(kept, tokenizer(), seed=seed)


def config(**changes):
    sizes = {
        "vocab_size": len(tokenizer()),
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "max_position_embeddings": LENGTH,
    }
    return RoFormerConfig(**(sizes | changes))


def model(dropout=0.1, seed=0, **changes):
    torch.manual_seed(seed)
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return RoFormerForMaskedLM(config(**(dropouts | changes)))
