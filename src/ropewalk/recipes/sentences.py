"""Sentences with a word missing, to show side by side what models put there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ropewalk.recipes.fill_mask import MASK, FillMask

DEFAULT_SENTENCES = (
    f"This method {MASK} called by the server.",
    f"Raises ValueError if the value is {MASK} found.",
    f"Create {MASK} new object.",
    f"Return the {MASK} of the list.",
)
"""For the embedded corpus, which explains functions, classes and the language."""
CANDIDATES = 3
"""Words that are shown for each mask."""
_WORDS = range(7, 17)
_LONG_WORD = 4


@dataclass(frozen=True)
class Blank:
    """A sentence with a word missing.

    Args:
        text: The sentence with ``[MASK]``.
        answer: The word that was there; None if nobody knows.
    """

    text: str
    answer: str | None = None


@dataclass(frozen=True)
class Filled:
    """What each model puts into the masks of a sentence.

    Args:
        text: The sentence with ``[MASK]``.
        answer: The word that was there; None if nobody knows.
        candidates: For each encoding, for each mask, words with probabilities, best first.
    """

    text: str
    answer: str | None
    candidates: dict[str, list[list[tuple[str, float]]]]


def held_out_blanks(documents: Iterable[str], count: int = len(DEFAULT_SENTENCES)) -> list[Blank]:
    """Take plain sentences from different texts and hide a long word near the middle of each.

    Args:
        documents: Texts that no model was trained on.
        count: Most sentences to take.

    Example:
        >>> held_out_blanks(["See. The cat sat quietly on the old mat. It slept."])[0].text
        'The cat sat [MASK] on the old mat.'
    """
    found = (next(_blanks(document), None) for document in documents)
    return list(islice((blank for blank in found if blank is not None), count))


def _blanks(document: str) -> Iterator[Blank]:
    for sentence in re.split(r"(?<=[.!?])\s+", document):
        words = sentence.split()
        plain = all(re.fullmatch(r"[^\W\d_]+,?", word) for word in words[:-1])
        if len(words) not in _WORDS or not plain or not sentence.endswith((".", "!", "?")):
            continue
        places = [i for i, w in enumerate(words[:-1]) if w.isalpha() and len(w) >= _LONG_WORD]
        if places:
            middle = min(places, key=lambda place: abs(place - len(words) // 2))
            text = " ".join([*words[:middle], MASK, *words[middle + 1 :]])
            yield Blank(text, words[middle])


def fill(blanks: Iterable[Blank], models: Mapping[str, Path]) -> list[Filled]:
    """Ask every model for the missing words.

    Args:
        blanks: The sentences.
        models: Name of each encoding to the folder of its model.
    """
    readers = {name: FillMask(folder) for name, folder in models.items()}
    return [
        Filled(
            blank.text,
            blank.answer,
            {
                name: [
                    [(candidate.token, candidate.probability) for candidate in row]
                    for row in reader(blank.text, top=CANDIDATES)
                ]
                for name, reader in readers.items()
            },
        )
        for blank in blanks
    ]
