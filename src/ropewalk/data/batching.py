"""From documents to full blocks of tokens: packing, long windows, and windows cut shorter.

Every piece of text is ``[CLS] tokens [SEP]``, in training, in packing and in every chunk of an
evaluation window, so a model never meets a form that it was not trained on.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.data.text import check_documents, slice_text
from ropewalk.errors import ConfigError, DataError, ShapeError
from ropewalk.spec.checks import integer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerFast

    IntArray = NDArray[np.int32]

SMALLEST_PIECE = 3
"""Tokens of the shortest piece with text: ``[CLS] token [SEP]``."""
LONGEST_PIECE = 2**31 - 1
"""Most tokens of a block, whose positions are int32."""
_CALL_CHARACTERS = 1_000_000
"""Text per call of the tokenizer: enough to keep its threads busy, little enough for memory."""


@dataclass(frozen=True, eq=False)
class PackedBlocks:
    """Hold blocks of equal length, without padding, as a map-style data set.

    Item ``i`` is a dictionary of the four arrays, each of shape ``(block_size,)``. All arrays are
    int32 of shape ``(blocks, block_size)``.

    Args:
        input_ids: Token identifiers.
        position_ids: 0, 1, 2, ... from the start of each piece.
        document_ids: 1, 2, ... within a block: the number of the piece a token belongs to.
            Attention must stay within one number.
        word_ids: 0, 1, 2, ... within a block: the word a token belongs to; -1 for special tokens
            (the unknown token too), which are neither masked nor predicted.

    Raises:
        ShapeError: The arrays are not two-dimensional, or differ in shape.
    """

    input_ids: IntArray
    position_ids: IntArray
    document_ids: IntArray
    word_ids: IntArray

    def __post_init__(self) -> None:
        shapes = {name: array.shape for name, array in vars(self).items()}
        if self.input_ids.ndim != 2 or len(set(shapes.values())) > 1:
            raise ShapeError(
                f"PackedBlocks needs four arrays of one shape (blocks, block_size); got {shapes}"
            )

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return int(self.input_ids.shape[1])

    def __len__(self) -> int:
        return int(self.input_ids.shape[0])

    def __getitem__(self, index: int) -> dict[str, IntArray]:
        row = operator.index(index)
        return {name: array[row] for name, array in vars(self).items()}


def pack_documents(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, *, block_size: int
) -> PackedBlocks:
    """Pack documents one after another into blocks of exactly ``block_size`` tokens.

    A document fills what is left of the current block; the rest of it begins anew, with position
    0 and a number of its own, in the next one. Each such piece is ``[CLS] tokens [SEP]``. Room
    for one or two tokens at the end of a block takes an empty piece. No token of a document is
    lost or moved, except that the last block is dropped when it is not full. Special tokens
    spelled out in a document are ordinary text.

    Args:
        documents: The texts, in the order to pack them.
        tokenizer: A fast tokenizer with ``[CLS]`` and ``[SEP]``.
        block_size: Tokens in a block, at least 3.

    Returns:
        The full blocks.

    Raises:
        ConfigError: ``block_size`` is too small, or the tokenizer lacks a special token.
        DataError: The documents do not fill one block.

    References:
        Krell et al., 2021, arXiv:2107.02027 (packing without attention between documents).
    """
    marks = _Marks.of(tokenizer)
    _check_length("block_size", block_size)
    texts = check_documents(documents)
    try:
        rows, rest = _fill(_tokenised(texts, tokenizer), marks, block_size)
    except MemoryError as error:
        raise ConfigError(
            f"block_size must be small enough for this machine's memory; got {block_size}; "
            "give a smaller one"
        ) from error
    if not rows:
        raise DataError(
            f"documents must fill at least one block; got {rest} tokens with "
            f"block_size={block_size}; give more text or smaller blocks"
        )
    return _blocks(np.stack(rows, axis=1), tokenizer)


def long_windows(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, *, length: int
) -> tuple[PackedBlocks, IntArray]:
    """Cut windows of ``length`` tokens, each ``[CLS] tokens [SEP]`` from inside one document.

    Windows do not overlap; what is left at the end of a document is not used. Position
    identifiers run from 0 to ``length - 1``, document identifiers are all 1.

    Args:
        documents: The texts, for instance the validation side of a split.
        tokenizer: A fast tokenizer with ``[CLS]`` and ``[SEP]``.
        length: Tokens in a window, at least 3.

    Returns:
        The windows, in the order of the documents, and for each the number of its document, from
        0, ``(windows,)``: windows of one document are alike and no independent samples.

    Raises:
        ConfigError: ``length`` is too small, or the tokenizer lacks a special token.
        DataError: No document is long enough.
    """
    marks = _Marks.of(tokenizer)
    _check_length("length", length)
    texts = check_documents(documents)
    windows: list[IntArray] = []
    numbers: list[int] = []
    tokens_of: list[int] = []
    for number, (ids, words) in enumerate(_tokenised(texts, tokenizer)):
        tokens_of.append(len(ids))
        for start in range(0, len(ids) - (length - 2) + 1, length - 2):
            stop = start + length - 2
            window = np.empty((4, length), dtype=np.int32)
            _write_piece(window, marks, ids[start:stop], words[start:stop], number=1)
            windows.append(window)
            numbers.append(number)
    if not windows:
        longest = int(np.argmax(tokens_of))
        raise DataError(
            f"length must be at most {tokens_of[longest] + 2}, what the longest document "
            f"({texts[longest][:30]!r}...) gives; got length={length}; "
            "shorten it or give longer documents"
        )
    return _blocks(np.stack(windows, axis=1), tokenizer), np.array(numbers, dtype=np.int32)


def cut_windows(windows: PackedBlocks, context: int) -> PackedBlocks:
    """Cut each window into chunks of ``context`` tokens: the same text, seen with less context.

    Every chunk is again ``[CLS] tokens [SEP]``, counts its positions from 0 and has its own
    document number, so rows grow by two tokens a cut. Tokens and words keep their order and
    numbers: masked with the same seed, all contexts predict the same tokens. The last chunk is
    shorter unless ``length - 2`` is a multiple of ``context - 2``.

    Args:
        windows: Those of `long_windows`.
        context: Tokens in a chunk, at least 3; at or above the window length nothing changes.

    Returns:
        As many rows as there are windows.

    Raises:
        ConfigError: ``context`` is too small.
        DataError: A row holds more than one piece, so it is no window.

    Example:
        >>> row = np.array([[2, 7, 8, 9, 3]], dtype=np.int32)
        >>> whole = PackedBlocks(row, np.arange(5)[None], row * 0 + 1, row * 0)
        >>> cut_windows(whole, 4).input_ids
        array([[2, 7, 8, 3, 2, 9, 3]], dtype=int32)
    """
    _check_length("context", context)
    if (windows.document_ids != 1).any():
        row = int(np.flatnonzero((windows.document_ids != 1).any(axis=1))[0])
        raise DataError(
            f"windows must hold one piece a row; got {int(windows.document_ids[row].max())} pieces "
            f"in row {row}; make them with long_windows"
        )
    last = windows.block_size - 1
    # Column 0 holds [CLS] and the last one [SEP]: every chunk borrows them.
    chunks = [
        np.r_[0, start : min(start + context - 2, last), last]
        for start in range(1, last, context - 2)
    ]
    columns = np.concatenate(chunks)
    positions = np.concatenate([np.arange(len(chunk), dtype=np.int32) for chunk in chunks])
    numbers = np.repeat(np.arange(len(chunks), dtype=np.int32) + 1, [len(c) for c in chunks])
    shape = (len(windows), len(columns))
    return PackedBlocks(
        input_ids=windows.input_ids[:, columns],
        position_ids=np.broadcast_to(positions, shape).copy(),
        document_ids=np.broadcast_to(numbers, shape).copy(),
        word_ids=windows.word_ids[:, columns],
    )


@dataclass(frozen=True)
class _Marks:
    start: int
    end: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> _Marks:
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                "tokenizer must be a fast one of transformers, which knows the words of its "
                f"tokens; got {type(tokenizer).__name__}; load it with load_tokenizer"
            )
        found = {"cls_token": tokenizer.cls_token_id, "sep_token": tokenizer.sep_token_id}
        for name, identifier in found.items():
            if identifier is None:
                raise ConfigError(f"tokenizer must have a {name}; got None; set tokenizer.{name}")
        return cls(found["cls_token"], found["sep_token"])


def _check_length(name: str, value: int) -> None:
    # [CLS], one token, [SEP]; positions are int32.
    integer(name, value, at_least=SMALLEST_PIECE, at_most=LONGEST_PIECE)


def _tokenised(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield token identifiers and running word numbers of each document, without marks."""
    ids: list[IntArray] = []
    starts: list[NDArray[np.bool_]] = []
    words_before = 0
    for call in _calls(texts):
        encoded = tokenizer(
            [part for part, _ in call],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            split_special_tokens=True,
            verbose=False,
        )
        for row, (_, is_last) in enumerate(call):
            ids.append(np.array(encoded["input_ids"][row], dtype=np.int32))
            # float64 turns the None of a token outside any word into NaN: a word of its own.
            words = np.array(encoded.word_ids(row), dtype=np.float64)
            starts.append(np.diff(words, prepend=np.nan) != 0)
            if is_last:
                numbers = np.cumsum(np.concatenate(starts), dtype=np.int32) + words_before
                yield np.concatenate(ids), numbers
                words_before = int(numbers[-1]) if len(numbers) else words_before
                ids, starts = [], []


def _calls(texts: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """Group slices of texts for one call each; True marks the last slice of a document."""
    call: list[tuple[str, bool]] = []
    characters = 0
    for text in texts:
        slices = list(slice_text(text)) or [""]
        for number, part in enumerate(slices, start=1):
            call.append((part, number == len(slices)))
            characters += len(part)
            if characters >= _CALL_CHARACTERS:
                yield call
                call, characters = [], 0
    if call:
        yield call


def _fill(
    documents: Iterable[tuple[IntArray, IntArray]], marks: _Marks, block_size: int
) -> tuple[list[IntArray], int]:
    """Return the full blocks, each ``(4, block_size)``, and the tokens in the unfinished one."""
    rows: list[IntArray] = []
    row = np.empty((4, block_size), dtype=np.int32)
    used = pieces = 0
    for ids, words in documents:
        done = 0
        while done < len(ids):
            stop = min(len(ids), done + block_size - used - 2)
            piece = row[:, used : used + stop - done + 2]
            pieces += 1
            _write_piece(piece, marks, ids[done:stop], words[done:stop], number=pieces)
            done, used = stop, used + piece.shape[1]
            if 0 < block_size - used < SMALLEST_PIECE:
                empty = np.array([marks.start, marks.end], dtype=np.int32)[: block_size - used]
                row[0, used:], row[1, used:] = empty, range(len(empty))
                row[2, used:], row[3, used:] = pieces + 1, -1
                used = block_size
            if used == block_size:
                rows.append(row)
                row = np.empty_like(row)
                used = pieces = 0
    return rows, used


def _write_piece(
    piece: IntArray, marks: _Marks, ids: IntArray, words: IntArray, *, number: int
) -> None:
    """Fill ``(4, n + 2)`` with identifiers, positions, piece number and word numbers."""
    piece[0, 0], piece[0, 1:-1], piece[0, -1] = marks.start, ids, marks.end
    piece[1] = np.arange(piece.shape[1])
    piece[2] = number
    piece[3, 0], piece[3, 1:-1], piece[3, -1] = -1, words, -1


def _blocks(rows: IntArray, tokenizer: PreTrainedTokenizerFast) -> PackedBlocks:
    """Turn ``(4, blocks, block_size)`` into blocks whose words are numbered from 0 in each."""
    ids, positions, documents, words = rows
    ordinary = (words >= 0) & ~np.isin(ids, tokenizer.all_special_ids)
    places = np.flatnonzero(ordinary)
    block = places // ids.shape[1]
    # A word begins where its number or the block changes; -1 differs from every number.
    begins = np.diff(words.flat[places], prepend=-1) != 0
    begins |= np.diff(block, prepend=-1) != 0
    rank = np.cumsum(begins)
    before = np.zeros(len(ids) + 1, dtype=rank.dtype)
    np.maximum.at(before, block + 1, rank)
    np.maximum.accumulate(before, out=before)
    numbered = np.full(ids.shape, -1, dtype=np.int32)
    numbered.flat[places] = rank - before[block] - 1
    return PackedBlocks(*map(np.ascontiguousarray, (ids, positions, documents, numbered)))
