from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ropewalk.data import batching
from ropewalk.data.batching import PackedBlocks, cut_windows, long_windows, pack_documents
from ropewalk.data.text import slice_text
from ropewalk.errors import ConfigError, DataError, ShapeError

CLS, SEP, UNK = 2, 3, 1
documents_of_letters = st.lists(
    st.lists(st.sampled_from("abcdefgh"), max_size=25).map(" ".join), min_size=1, max_size=12
)


def rows(blocks: PackedBlocks) -> dict[str, list[list[int]]]:
    return {name: array.tolist() for name, array in vars(blocks).items()}


def pieces(blocks: PackedBlocks) -> list[list[int]]:
    """Token identifiers of every piece, marks included, in order."""
    found = []
    for ids, numbers in zip(blocks.input_ids, blocks.document_ids, strict=True):
        found += [ids[numbers == number].tolist() for number in range(1, numbers.max() + 1)]
    return found


def test_packing_by_hand(letters):
    a, b, c, d, e, f, g = letters.convert_tokens_to_ids(list("abcdefg"))
    blocks = pack_documents(["a b c d e", "f g"], letters, block_size=6)
    # The fifth token of the first document starts anew; the third block would not be full.
    assert rows(blocks) == {
        "input_ids": [[CLS, a, b, c, d, SEP], [CLS, e, SEP, CLS, f, SEP]],
        "position_ids": [[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]],
        "document_ids": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 2, 2]],
        "word_ids": [[-1, 0, 1, 2, 3, -1], [-1, 0, -1, -1, 1, -1]],
    }
    assert g not in blocks.input_ids


def test_room_for_one_or_two_tokens_takes_an_empty_piece(letters):
    a, b, c, d, e, f = letters.convert_tokens_to_ids(list("abcdef"))
    two = pack_documents(["a b", "c d e f"], letters, block_size=6)
    assert rows(two) == {
        "input_ids": [[CLS, a, b, SEP, CLS, SEP], [CLS, c, d, e, f, SEP]],
        "position_ids": [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 5]],
        "document_ids": [[1, 1, 1, 1, 2, 2], [1, 1, 1, 1, 1, 1]],
        "word_ids": [[-1, 0, 1, -1, -1, -1], [-1, 0, 1, 2, 3, -1]],
    }
    last = pack_documents(["a b"], letters, block_size=6)
    assert rows(last)["input_ids"] == [[CLS, a, b, SEP, CLS, SEP]]
    one = pack_documents(["a b c", "d e f d"], letters, block_size=6)
    assert rows(one)["input_ids"] == [[CLS, a, b, c, SEP, CLS], [CLS, d, e, f, d, SEP]]
    assert rows(one)["document_ids"][0] == [1, 1, 1, 1, 1, 2]
    assert rows(one)["position_ids"][0] == [0, 1, 2, 3, 4, 0]


def test_pieces_of_one_word_share_its_number_and_the_unknown_token_has_none(wordpiece):
    text = "rotator ☃ unhappily"
    assert wordpiece.tokenize(text) == ["rotat", "##or", "[UNK]", "unhapp", "##il", "##y"]
    blocks = pack_documents([text], wordpiece, block_size=8)
    assert blocks.word_ids[0].tolist() == [-1, 0, 0, -1, 1, 1, 1, -1]


def test_equal_words_side_by_side_keep_numbers_of_their_own(letters):
    blocks = pack_documents(["a a", "a"], letters, block_size=7)
    assert blocks.word_ids[0].tolist() == [-1, 0, 1, -1, -1, 2, -1]
    apart = pack_documents(["a", "a"], letters, block_size=6)
    assert apart.word_ids[0].tolist() == [-1, 0, -1, -1, 1, -1]


@settings(deadline=None)
@given(documents=documents_of_letters, block_size=st.integers(3, 20))
def test_packing_keeps_every_token_in_order_and_fills_every_block(letters, documents, block_size):
    tokens = [letters.convert_tokens_to_ids(document.split()) for document in documents]
    total = sum(len(ids) for ids in tokens)
    try:
        blocks = pack_documents(documents, letters, block_size=block_size)
    except DataError:
        # Every document with text costs two marks; room for one or two tokens would be filled.
        used = total + 2 * sum(map(bool, tokens))
        assert used <= block_size - 3 or total == 0
        return
    found = pieces(blocks)
    assert sum(map(len, found)) == len(blocks) * block_size == blocks.input_ids.size
    for piece in found:
        assert piece[0] == CLS
        assert len(piece) == 1 or piece[-1] == SEP
        assert not {CLS, SEP} & set(piece[1:-1])
    # Tokens in order, and no piece reaches over the end of a document.
    inner = [piece[1:-1] for piece in found]
    flat = [token for piece in inner for token in piece]
    whole = [token for ids in tokens for token in ids]
    assert flat == whole[: len(flat)]
    ends = np.cumsum([len(piece) for piece in inner])
    document_ends = np.cumsum([len(ids) for ids in tokens])
    assert set(document_ends[document_ends <= len(flat)]) <= {0, *ends}
    # What is missing would not fill one more block.
    assert len(whole) - len(flat) < block_size


@settings(deadline=None)
@given(documents=documents_of_letters, block_size=st.integers(3, 20))
def test_positions_restart_exactly_where_the_document_changes(letters, documents, block_size):
    try:
        blocks = pack_documents(documents, letters, block_size=block_size)
    except DataError:
        return
    change = np.diff(blocks.document_ids, prepend=0, axis=1)
    assert set(np.unique(change)) <= {0, 1}
    assert (blocks.document_ids[:, 0] == 1).all()
    assert ((blocks.position_ids == 0) == (change == 1)).all()
    step = np.diff(blocks.position_ids, axis=1)
    assert (step[change[:, 1:] == 0] == 1).all()


words = st.sampled_from(["rope", "walkers", "unhappily", "rotator", "☃", "!"])


@settings(deadline=None, max_examples=50)
@given(
    documents=st.lists(st.lists(words, min_size=8, max_size=20).map(" ".join), min_size=4),
    block_size=st.integers(8, 30),
)
def test_words_are_numbered_from_zero_without_gaps_in_each_block(wordpiece, documents, block_size):
    blocks = pack_documents(documents, wordpiece, block_size=block_size)
    special = np.isin(blocks.input_ids, wordpiece.all_special_ids)
    assert ((blocks.word_ids == -1) == special).all()
    for row in blocks.word_ids:
        steps = np.diff(row[row >= 0], prepend=-1)
        assert set(steps) <= {0, 1}
        assert steps[:1].sum() == min(1, len(steps))
    # A token goes on with the word before it if it begins with "##", unless a block cut the word.
    tokens = wordpiece.convert_ids_to_tokens(range(len(wordpiece)))
    inner = np.array([token.startswith("##") for token in tokens])
    pair = (blocks.word_ids[:, 1:] >= 0) & (blocks.word_ids[:, :-1] >= 0)
    goes_on = np.diff(blocks.word_ids, axis=1) == 0
    assert (goes_on[pair] == inner[blocks.input_ids[:, 1:]][pair]).all()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_long_documents_tokenised_in_slices_and_calls_give_the_same_blocks(
    kind, request, sentences, monkeypatch
):
    tokenizer = request.getfixturevalue(kind)
    documents = [*sentences, "", "\n\n".join(sentences), "  x "]
    whole = pack_documents(documents, tokenizer, block_size=16)
    monkeypatch.setattr(batching, "slice_text", lambda text: slice_text(text, 20))
    monkeypatch.setattr(batching, "_CALL_CHARACTERS", 50)
    assert rows(pack_documents(documents, tokenizer, block_size=16)) == rows(whole)


def test_special_tokens_spelled_out_in_a_document_are_text(letters, wordpiece):
    blocks = pack_documents(["a [SEP] [MASK] [CLS]"] * 3, letters, block_size=8)
    assert 4 not in blocks.input_ids
    assert all({CLS, SEP}.isdisjoint(piece[1:-1]) for piece in pieces(blocks))
    # The tokenizer itself still knows them.
    assert letters("a [MASK]")["input_ids"][2] == 4


def test_blocks_are_small_arrays_and_survive_pickling(letters):
    blocks = pack_documents(["a b c d e"], letters, block_size=5)
    assert {array.dtype for array in vars(blocks).values()} == {np.dtype("int32")}
    copy = pickle.loads(pickle.dumps(blocks))
    assert rows(copy) == rows(blocks)
    assert (len(copy), copy.block_size) == (2, 5)


def test_an_item_is_a_dictionary_of_rows(letters):
    blocks = pack_documents(["a b c d e f"], letters, block_size=5)
    item = blocks[-1]
    assert {name: row.tolist() for name, row in item.items()} == {
        name: array[1] for name, array in rows(blocks).items()
    }
    with pytest.raises(IndexError):
        blocks[2]
    with pytest.raises(TypeError):
        blocks["input_ids"]


def test_arrays_of_different_shapes_are_refused():
    array = np.zeros((2, 3), dtype=np.int32)
    with pytest.raises(ShapeError, match=r"'word_ids': \(2, 4\)"):
        PackedBlocks(array, array, array, np.zeros((2, 4), dtype=np.int32))
    with pytest.raises(ShapeError, match=r"'input_ids': \(3,\)"):
        PackedBlocks(*[array[0]] * 4)


def test_windows_by_hand(letters):
    a, b, c, d, e = letters.convert_tokens_to_ids(list("abcde"))
    windows, numbers = long_windows(["a b", "c d e f g", "a b c"], letters, length=5)
    assert rows(windows) == {
        "input_ids": [[CLS, c, d, e, SEP], [CLS, a, b, c, SEP]],
        "position_ids": [[0, 1, 2, 3, 4]] * 2,
        "document_ids": [[1] * 5] * 2,
        "word_ids": [[-1, 0, 1, 2, -1]] * 2,
    }
    assert numbers.tolist() == [1, 2]  # the first document is too short
    _, numbers = long_windows(["a b c d e f g", "a b"], letters, length=4)
    assert numbers.tolist() == [0, 0, 0, 1]  # 7 // 2 windows


def test_windows_cut_by_hand(letters):
    a, b, c, d, e = letters.convert_tokens_to_ids(list("abcde"))
    windows, _ = long_windows(["a b c d e"], letters, length=7)
    assert rows(cut_windows(windows, 4)) == {
        "input_ids": [[CLS, a, b, SEP, CLS, c, d, SEP, CLS, e, SEP]],
        "position_ids": [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]],
        "document_ids": [[1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]],
        "word_ids": [[-1, 0, 1, -1, -1, 2, 3, -1, -1, 4, -1]],
    }
    for context in (7, 8, 1000):
        assert rows(cut_windows(windows, context)) == rows(windows)


@settings(deadline=None)
@given(length=st.integers(3, 40), context=st.integers(3, 45), count=st.integers(1, 3))
def test_a_cut_window_keeps_tokens_and_words_and_restarts_positions(
    letters, length, context, count
):
    documents = [" ".join("abcdefgh"[(n + k) % 8] for n in range(length)) for k in range(count)]
    windows, _ = long_windows(documents, letters, length=length)
    cut = cut_windows(windows, context)
    for name in ("input_ids", "word_ids"):
        for before, after in zip(windows, cut, strict=True):
            kept = [row[name][row["word_ids"] >= 0].tolist() for row in (before, after)]
            assert kept[0] == kept[1]
    assert cut.position_ids.max() == min(length, context) - 1
    assert ((cut.position_ids == 0) == (cut.input_ids == CLS)).all()
    assert (np.cumsum(cut.position_ids == 0, axis=1) == cut.document_ids).all()
    sizes = np.bincount(cut.document_ids[0])[1:]
    assert (sizes[:-1] == context).all()
    assert cut.block_size == length + 2 * (len(sizes) - 1)


@pytest.mark.parametrize("ratio", [1, 1.5, 2, 4])
def test_a_window_of_every_ratio_cuts_into_the_trained_length(letters, ratio):
    trained = 16
    windows, _ = long_windows(["a b c d " * 50], letters, length=int(ratio * trained))
    assert cut_windows(windows, trained).position_ids.max() == trained - 1


def test_documents_below_one_block_are_refused(letters):
    with pytest.raises(DataError, match=r"got 5 tokens with block_size=8; give more text"):
        pack_documents(["a b c"], letters, block_size=8)


def test_a_window_longer_than_every_document_is_refused_with_the_longest(letters):
    message = r"at most 5, what the longest document \('c d e'...\) gives; got length=6"
    with pytest.raises(DataError, match=message):
        long_windows(["a b", "c d e", "f"], letters, length=6)


@pytest.mark.parametrize("value", [2, 0, -1, 16.0, "x", None, True])
def test_a_length_without_room_for_text_is_refused(letters, value):
    windows, _ = long_windows(["a b"], letters, length=4)
    rule = f"must be .* of at least 3; got {value!r}$"
    with pytest.raises(ConfigError, match=f"block_size {rule}"):
        pack_documents(["a"], letters, block_size=value)
    with pytest.raises(ConfigError, match=f"length {rule}"):
        long_windows(["a"], letters, length=value)
    with pytest.raises(ConfigError, match=f"context {rule}"):
        cut_windows(windows, value)


def test_packed_blocks_are_no_windows(letters):
    blocks = pack_documents(["a b c d", "e", "f"], letters, block_size=6)
    with pytest.raises(DataError, match="got 2 pieces in row 1; make them with long_windows"):
        cut_windows(blocks, 4)


def test_one_bare_string_is_refused(letters):
    with pytest.raises(DataError, match="got one str"):
        pack_documents("a b c d e f", letters, block_size=3)


def test_a_tokenizer_that_cannot_mark_or_find_words_is_refused(letters):
    plain = PreTrainedTokenizerFast(tokenizer_object=letters.backend_tokenizer, cls_token="[CLS]")
    with pytest.raises(ConfigError, match="must have a sep_token; got None"):
        pack_documents(["a b c"], plain, block_size=3)
    with pytest.raises(ConfigError, match=r"must be a fast one .* got object"):
        long_windows(["a b c"], object(), length=3)
