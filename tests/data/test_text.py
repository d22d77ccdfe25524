from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.data.text import check_documents, slice_text
from ropewalk.errors import DataError


@settings(deadline=None)
@given(text=st.text(alphabet="ab \n\t中", max_size=60), limit=st.integers(1, 12))
def test_slices_joined_are_the_text_and_none_is_longer_than_the_limit(text, limit):
    slices = list(slice_text(text, limit))
    assert "".join(slices) == text
    assert all(0 < len(part) <= limit for part in slices)


@settings(deadline=None)
@given(words=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=12))
def test_words_shorter_than_the_limit_are_never_cut(words):
    parts = [part for piece in slice_text(" ".join(words), 7) for part in piece.split()]
    assert parts == words


def test_a_slice_ends_at_the_last_word_border_within_the_limit():
    assert list(slice_text("aa bb  cc dddddddd", limit=7)) == ["aa bb", "  cc", " dddddd", "dd"]


def test_one_string_in_place_of_a_list_is_refused():
    with pytest.raises(DataError, match=r"got one str; pass a list"):
        check_documents("not a list")


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (["text", 7], r"documents\[1\] of type int"),
        (["", " \n"], r"got 2 documents without any"),
        ([], r"got 0 documents without any"),
        (["fine", "bad \ud83d"], r"got '\\ud83d'.* in documents\[1\]"),
        (3, r"got one int"),
    ],
)
def test_what_is_no_text_is_refused_by_name(documents, message):
    with pytest.raises(DataError, match=message):
        check_documents(documents)
