"""WordPiece and byte-level BPE vocabularies learned from a corpus, as transformers tokenizers.

Training is done by the `tokenizers` library; this file makes it repeatable and gives the result
BERT's special tokens. A saved folder opens with plain ``transformers.AutoTokenizer``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.data.files import given_path
from ropewalk.data.text import check_documents, slice_text
from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.spec.checks import integer

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

TOKENIZER_KINDS = ("wordpiece", "bpe")
"""The kinds of `train_tokenizer`."""
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The special tokens, by identifier: 0 to 4."""
MOST_TOKENS = 2**31 - 1
"""Largest vocabulary, whose identifiers are int32."""
CHARACTERS_PER_RARE = 10_000
"""The alphabet of a WordPiece vocabulary leaves out one character of the text in this many."""


def train_tokenizer(
    documents: Iterable[str],
    *,
    kind: str = "wordpiece",
    vocab_size: int = 2048,
    lowercase: bool = True,
) -> PreTrainedTokenizerFast:
    """Learn a vocabulary from documents; the same documents always give the same vocabulary.

    ``"wordpiece"`` normalises and splits text as BERT does (each Chinese character is a word;
    accents go when ``lowercase``) and knows the characters that make up 99.99 % of the text.
    ``"bpe"`` is byte-level as in GPT-2: it encodes any text, and decoding gives the text back
    (in lower case when ``lowercase``). Both wrap a text as ``[CLS] text [SEP]``.

    Args:
        documents: The texts to learn from: the training side of a split alone.
        kind: ``"wordpiece"`` or ``"bpe"``.
        vocab_size: Most entries of the vocabulary, the five special tokens included. A short text
            gives fewer: ``len(tokenizer)`` is the size a model needs.
        lowercase: Whether upper and lower case are the same.

    Returns:
        A fast tokenizer with ``[PAD]``, ``[UNK]``, ``[CLS]``, ``[SEP]``, ``[MASK]`` = 0 to 4.

    Raises:
        ConfigError: The kind is unknown, or the vocabulary cannot hold the alphabet.
        DataError: The documents hold no text.

    References:
        Devlin et al., 2018, arXiv:1810.04805 (WordPiece); Sennrich et al., 2015,
        arXiv:1508.07909 (BPE). Repeatable order: huggingface/tokenizers#1794.

    Example:
        >>> tokenizer = train_tokenizer(["low lower lowest slow"] * 2, vocab_size=40)
        >>> tokenizer.tokenize("Lowest slower")
        ['lowest', 'slow', '##e', '##r']
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    backend = train_backend(documents, kind=kind, vocab_size=vocab_size, lowercase=lowercase)
    pad, unknown, start, end, _ = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        unk_token=unknown,
        cls_token=start,
        sep_token=end,
        mask_token=_mask_token(AddedToken, kind),
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def train_backend(
    documents: Iterable[str], *, kind: str, vocab_size: int, lowercase: bool
) -> Tokenizer:
    """Do the work of `train_tokenizer` without transformers: same arguments, a bare tokenizer."""
    if kind not in TOKENIZER_KINDS:
        raise ConfigError(f"kind must be one of {', '.join(TOKENIZER_KINDS)}; got kind={kind!r}")
    from tokenizers import AddedToken, processors

    integer("vocab_size", vocab_size, at_least=1, at_most=MOST_TOKENS)
    texts = check_documents(documents)
    mask = _mask_token(AddedToken, kind)
    train = _train_wordpiece if kind == "wordpiece" else _train_bpe
    tokenizer = train(texts, vocab_size, lowercase=lowercase)
    tokenizer.add_special_tokens([*SPECIAL_TOKENS[:-1], mask])
    _, _, start, end, _ = SPECIAL_TOKENS
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in (start, end)],
    )
    return tokenizer


def _mask_token(added_token: type[AddedToken], kind: str) -> AddedToken:
    # In byte-level BPE the space belongs to the word after it, so the mask must take it along.
    return added_token(SPECIAL_TOKENS[-1], lstrip=kind == "bpe", special=True, normalized=False)


def _train_bpe(texts: Sequence[str], vocab_size: int, *, lowercase: bool) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_size(vocab_size, len(alphabet), "bytes")
    tokenizer = Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_slices(texts), trainer)
    return tokenizer


def _train_wordpiece(texts: Sequence[str], vocab_size: int, *, lowercase: bool) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    def untrained(vocabulary: dict[str, int] | None = None) -> Tokenizer:
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS[1]))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        return tokenizer

    tokenizer = untrained()
    alphabet = _alphabet(tokenizer, texts)
    inner = [f"##{character}" for character in alphabet if _joins_words(tokenizer, character)]
    _check_size(vocab_size, len(alphabet) + len(inner), "characters and inner characters")
    # The trainer numbers the pieces "##x" in the order of a hash table and breaks ties between
    # merges by number, so it would learn something else each time. Given first, as if they were
    # special, they have fixed numbers; and every word of known characters can be written.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[*SPECIAL_TOKENS, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_slices(texts), trainer)
    return untrained(tokenizer.get_vocab())


def _alphabet(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Return the characters that make up the normalised text, sorted, without the rarest."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for normal in "".join(tokenizer.normalizer.normalize_str(character).split()):
            counts[normal] += count
    ranked = sorted(counts, key=lambda character: (counts[character], -ord(character)))
    kept = 0
    missing = counts.total() // CHARACTERS_PER_RARE
    while kept < len(ranked) and (missing := missing - counts[ranked[kept]]) >= 0:
        kept += 1
    return sorted(ranked[kept:])


def _joins_words(tokenizer: Tokenizer, character: str) -> bool:
    """Tell whether a character can stand inside a word; punctuation and Chinese cannot."""
    text = tokenizer.normalizer.normalize_str(f"a{character}")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def _slices(texts: Sequence[str]) -> Iterator[str]:
    return (part for text in texts for part in slice_text(text))


def _check_size(vocab_size: int, needed: int, what: str) -> None:
    if vocab_size < needed + len(SPECIAL_TOKENS):
        raise ConfigError(
            f"vocab_size must be at least {needed + len(SPECIAL_TOKENS)} for this text "
            f"({len(SPECIAL_TOKENS)} special tokens, {needed} {what}); "
            f"got vocab_size={vocab_size}"
        )


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Load a tokenizer that ``tokenizer.save_pretrained(folder)`` wrote.

    Args:
        folder: A folder with ``tokenizer.json`` in it, for instance a saved model.

    Returns:
        The tokenizer, whatever ``config.json`` beside it says.

    Raises:
        CheckpointError: The folder or the file is missing, or the file is damaged.
    """
    path = given_path("tokenizer", folder, error=CheckpointError)
    if not (path / "tokenizer.json").is_file():
        raise CheckpointError(
            f"tokenizer: there is no tokenizer.json in {str(folder)!r}; name a folder written by "
            "tokenizer.save_pretrained"
        )
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
            path, local_files_only=True
        )
    except Exception as error:  # the Rust parser raises bare Exception
        lines = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"tokenizer: cannot load {str(path / 'tokenizer.json')!r}: {lines[0][:300]}; "
            "write it again with tokenizer.save_pretrained"
        ) from error
    return tokenizer
