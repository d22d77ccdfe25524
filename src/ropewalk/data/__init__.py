"""Text to tensors: corpora, tokenizers, packed blocks and the masking task, above the errors alone.

The names below load on first use, so that reading a corpus needs neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropewalk.data.batching import PackedBlocks, cut_windows, long_windows, pack_documents
    from ropewalk.data.collating import LengthGroupedBatches, PackingCollator
    from ropewalk.data.corpus import (
        Corpus,
        embedded_corpus,
        load_hub_dataset,
        read_corpus,
        split_documents,
    )
    from ropewalk.data.tasks import MaskedLanguageModeling
    from ropewalk.data.tokenizers import load_tokenizer, train_tokenizer

__all__ = [
    "Corpus",
    "LengthGroupedBatches",
    "MaskedLanguageModeling",
    "PackedBlocks",
    "PackingCollator",
    "cut_windows",
    "embedded_corpus",
    "load_hub_dataset",
    "load_tokenizer",
    "long_windows",
    "pack_documents",
    "read_corpus",
    "split_documents",
    "train_tokenizer",
]

_HOMES = {
    "Corpus": "corpus",
    "LengthGroupedBatches": "collating",
    "MaskedLanguageModeling": "tasks",
    "PackedBlocks": "batching",
    "PackingCollator": "collating",
    "cut_windows": "batching",
    "embedded_corpus": "corpus",
    "load_hub_dataset": "corpus",
    "load_tokenizer": "tokenizers",
    "long_windows": "batching",
    "pack_documents": "batching",
    "read_corpus": "corpus",
    "split_documents": "corpus",
    "train_tokenizer": "tokenizers",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
