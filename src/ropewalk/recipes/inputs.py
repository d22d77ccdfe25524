"""From data settings to masked examples: corpus, split, tokenizer, blocks, masking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropewalk.analysis.measures import IGNORED_LABEL
from ropewalk.data import (
    Corpus,
    MaskedLanguageModeling,
    embedded_corpus,
    load_hub_dataset,
    load_tokenizer,
    pack_documents,
    read_corpus,
    split_documents,
    train_tokenizer,
)
from ropewalk.data.batching import LONGEST_PIECE, SMALLEST_PIECE
from ropewalk.data.tokenizers import MOST_TOKENS, TOKENIZER_KINDS
from ropewalk.errors import ConfigError, DataError
from ropewalk.spec.checks import choice, integer, real

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ropewalk.data import PackedBlocks


@dataclass(frozen=True)
class DataSettings:
    """Say which text a model is trained on, and in which form.

    Args:
        sources: Files, folders and globs.
        dataset: Data sets of the hub, ``NAME`` or ``NAME:config``, or folders of one. Without
            sources and data sets the embedded corpus is used, Python's own documentation.
        split: Split of the data sets.
        field: Key or column of the text in ``.jsonl`` files and data sets.
        validation_fraction: Share of the documents that is held out, in (0, 1).
        tokenizer: Folder of a tokenizer; None trains one on the training documents.
        tokenizer_kind: "wordpiece" or "bpe", for a trained one.
        vocab_size: Most entries of a trained one.
        lowercase: Whether a trained one makes everything lower case.
        block_size: Tokens of a row.
        mask_probability: Share of the tokens to predict, in (0, 1].
        whole_word: Whether the tokens of a word are hidden together.

    Raises:
        ConfigError: A setting is out of range.
    """

    sources: tuple[str, ...] = ()
    dataset: tuple[str, ...] = ()
    split: str = "train"
    field: str = "text"
    validation_fraction: float = 0.1
    tokenizer: str | None = None
    tokenizer_kind: str = "wordpiece"
    vocab_size: int = 2048
    lowercase: bool = True
    block_size: int = 128
    mask_probability: float = 0.15
    whole_word: bool = False

    def __post_init__(self) -> None:
        for name in ("sources", "dataset"):
            given = getattr(self, name)
            if not isinstance(given, tuple) or not all(isinstance(item, str) for item in given):
                raise ConfigError(f"{name} must be a list of strings; got {given!r:.80}")
            if "" in given:  # an unset variable of the shell would name the working folder
                raise ConfigError(f"{name} must not hold an empty string; got {given!r:.80}")
        for name in ("split", "field"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be a string; got {getattr(self, name)!r}")
        tokenizer: object = self.tokenizer
        if not (tokenizer is None or (isinstance(tokenizer, str) and tokenizer)):
            raise ConfigError(f"tokenizer must be the path of a folder; got {tokenizer!r:.80}")
        for name in ("lowercase", "whole_word"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false; got {getattr(self, name)!r}")
        choice("tokenizer_kind", self.tokenizer_kind, TOKENIZER_KINDS)
        integer("vocab_size", self.vocab_size, at_least=1, at_most=MOST_TOKENS)
        integer("block_size", self.block_size, at_least=SMALLEST_PIECE, at_most=LONGEST_PIECE)
        if not 0 < real("validation_fraction", self.validation_fraction) < 1:
            raise ConfigError(
                f"validation_fraction must be in (0, 1); got {self.validation_fraction!r}"
            )
        if not 0 < real("mask_probability", self.mask_probability) <= 1:
            raise ConfigError(f"mask_probability must be in (0, 1]; got {self.mask_probability!r}")


@dataclass(frozen=True, eq=False)
class PreparedData:
    """What a model is trained and evaluated on.

    Args:
        corpus: Name of the corpus.
        fingerprint: SHA-256 of its documents.
        characters: Its length.
        train_documents: The texts trained on.
        validation_documents: The texts held out.
        tokenizer: The tokenizer.
        train_set: Masked blocks of the former.
        validation_set: Masked blocks of the latter.
    """

    corpus: str
    fingerprint: str
    characters: int
    train_documents: tuple[str, ...]
    validation_documents: tuple[str, ...]
    tokenizer: PreTrainedTokenizerFast
    train_set: MaskedLanguageModeling
    validation_set: MaskedLanguageModeling


def prepare_data(settings: DataSettings, *, seed: int) -> PreparedData:
    """Read, split, tokenise, pack and mask; the same settings always give the same examples.

    Args:
        settings: What to read, and how.
        seed: Seed of the split and of the masking.

    Raises:
        DataError: The text is missing, unreadable or too short, or nothing of it is masked.
        ConfigError: The vocabulary is too small for the text.
        CheckpointError: The tokenizer cannot be loaded.
    """
    corpus = read(settings)
    train, validation = split_documents(
        corpus, validation_fraction=settings.validation_fraction, seed=seed
    )
    if settings.tokenizer is None:
        tokenizer = train_tokenizer(
            train,
            kind=settings.tokenizer_kind,
            vocab_size=settings.vocab_size,
            lowercase=settings.lowercase,
        )
    else:
        tokenizer = load_tokenizer(settings.tokenizer)

    def masked(documents: tuple[str, ...], side: str) -> MaskedLanguageModeling:
        try:
            blocks: PackedBlocks = pack_documents(
                documents, tokenizer, block_size=settings.block_size
            )
        except DataError as error:
            raise DataError(f"the {side} part of {corpus.name}: {error}") from error
        return MaskedLanguageModeling(
            blocks,
            tokenizer,
            probability=settings.mask_probability,
            whole_word=settings.whole_word,
            seed=seed,
        )

    validation_set = masked(validation, "validation")
    check_masked(validation_set, corpus.name)
    return PreparedData(
        corpus=corpus.name,
        fingerprint=corpus.fingerprint,
        characters=sum(map(len, corpus.documents)),
        train_documents=train,
        validation_documents=validation,
        tokenizer=tokenizer,
        train_set=masked(train, "training"),
        validation_set=validation_set,
    )


def check_masked(rows: MaskedLanguageModeling, corpus: str) -> None:
    """Refuse rows to evaluate on of which nothing is to be predicted.

    Args:
        rows: The rows.
        corpus: Name of the text.

    Raises:
        DataError: No token is masked.
    """
    labels = (rows[index]["labels"] for index in range(len(rows)))
    if not any((row != IGNORED_LABEL).any() for row in labels):
        raise DataError(
            f"the held-out part of {corpus} must have a masked token to be evaluated on; got none "
            f"in {len(rows)} rows with mask_probability={rows.probability:g}; give more text, or "
            "mask more of it"
        )


def read(settings: DataSettings) -> Corpus:
    """Return all the text that the settings name, as one corpus.

    Args:
        settings: What to read.

    Raises:
        DataError: A source or data set is missing, unreadable or empty.
    """
    parts = [read_corpus(settings.sources, field=settings.field)] if settings.sources else []
    parts += [
        load_hub_dataset(name, split=settings.split, field=settings.field)
        for name in settings.dataset
    ]
    if not parts:
        return embedded_corpus()
    if len(parts) == 1:
        return parts[0]
    documents = tuple(text for part in parts for text in part.documents)
    return Corpus(documents, name=" and ".join(part.name for part in parts))
