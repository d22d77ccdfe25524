"""Checks and cuts of plain Python strings that every other file of the data floor uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ropewalk.errors import DataError

SLICE_CHARACTERS = 4_000
"""Longest text for the tokenizer at once: beyond it time and memory grow faster than the text."""


def check_documents(documents: Iterable[str]) -> tuple[str, ...]:
    """Return the documents as a tuple after refusing what is not a collection of texts.

    Args:
        documents: The texts; at least one of them must hold more than white space.

    Returns:
        The same texts, in the same order.

    Raises:
        DataError: One bare string, an item that is not a valid string, or no text at all.

    Example:
        >>> check_documents(["one", "two"])
        ('one', 'two')
    """
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise DataError(
            "documents must be a collection of texts; "
            f"got one {type(documents).__name__}; pass a list, or corpus.documents"
        )
    texts = tuple(documents)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(
                f"documents must hold strings; got documents[{number}] of type "
                f"{type(text).__name__}; convert it to str"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"documents must be valid Unicode; got {text[error.start]!r}, half a surrogate "
                f"pair, in documents[{number}]; repair or remove it"
            ) from error
    if not any(text.strip() for text in texts):
        raise DataError(
            f"documents must hold some text; got {len(texts)} documents without any; "
            "check the sources"
        )
    return texts


def slice_text(text: str, limit: int = SLICE_CHARACTERS) -> Iterator[str]:
    r"""Cut a long text into slices whose tokens, joined, are the tokens of the whole text.

    A slice ends where a word ends and white space follows: tokenizers that split at white space
    first (WordPiece, byte-level BPE) never join the two sides. A stretch of ``limit`` characters
    without such a place is cut at its end.

    Args:
        text: Any text.
        limit: Longest slice, in characters, at least 1.

    Yields:
        Non-empty slices; joined together they are ``text``.

    Example:
        >>> list(slice_text("some words here", limit=12))
        ['some words', ' here']
    """
    start = 0
    while len(text) - start > limit:
        end = start + limit
        while end > start and not (text[end].isspace() and not text[end - 1].isspace()):
            end -= 1
        end = end if end > start else start + limit
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]
