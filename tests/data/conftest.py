"""Tokenizers and texts small enough to follow by hand."""

from __future__ import annotations

import pytest

from ropewalk.data.tokenizers import train_tokenizer

LETTERS = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
SENTENCES = (
    "The rope turns in the ropewalk and the walker turns the rope.",
    "A walker walks; walking walkers walked the walk.",
    "Rotating ropes rotate, rotated by rotations of the rotor.",
    "Café naïve 東京 tokens: unhappy, happily, happiness!",
) * 2


@pytest.fixture(scope="session")
def sentences():
    return SENTENCES


@pytest.fixture(scope="session")
def letters():
    """A WordPiece tokenizer that knows letters alone: a word of one letter is one token."""
    return train_tokenizer([LETTERS], vocab_size=100)


@pytest.fixture(scope="session")
def wordpiece():
    return train_tokenizer(SENTENCES, vocab_size=120)


@pytest.fixture(scope="session")
def bpe():
    return train_tokenizer(SENTENCES, kind="bpe", vocab_size=320, lowercase=False)
