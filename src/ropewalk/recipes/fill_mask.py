"""``FillMask``: ask a trained model for the words that are missing from a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ropewalk.data import load_tokenizer
from ropewalk.data.files import given_path
from ropewalk.errors import CheckpointError, ConfigError, DataError
from ropewalk.models import load_masked_lm
from ropewalk.recipes.callbacks import without_bars
from ropewalk.spec.checks import integer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MASK = "[MASK]"
"""How a missing word is written, whatever the tokenizer's own token for it."""


@dataclass(frozen=True)
class Candidate:
    """One proposal for a missing word.

    Args:
        token: The token, as text.
        probability: The model's probability, 0 to 1.
    """

    token: str
    probability: float
    _sentence: _Sentence = field(repr=False)
    _place: int = field(repr=False)
    _identifier: int = field(repr=False)

    @property
    def text(self) -> str:
        """The sentence with this mask filled, as the tokenizer writes it; made when asked for."""
        return self._sentence.filled(self._place, self._identifier)


@dataclass(frozen=True)
class _Sentence:
    """The tokens of a sentence with its masks, and how they are written."""

    identifiers: tuple[int, ...]
    tokenizer: PreTrainedTokenizerFast = field(compare=False)

    def filled(self, place: int, identifier: int) -> str:
        # All special tokens go but for the other masks and the candidate itself.
        dropped = set(self.tokenizer.all_special_ids) - {self.tokenizer.mask_token_id}
        before, after = (
            [token for token in part if token not in dropped]
            for part in (self.identifiers[:place], self.identifiers[place + 1 :])
        )
        return str(self.tokenizer.decode([*before, identifier, *after])).strip()


class FillMask:
    """Fill the masks of a sentence.

    With rotary positions a sentence may be longer than the rows the model was trained on.

    Args:
        folder: Folder of a masked language model with its tokenizer.

    Raises:
        CheckpointError: The folder does not hold a model and a tokenizer that fit together.
    """

    def __init__(self, folder: str | Path) -> None:
        path = given_path("model", folder, error=CheckpointError)
        with without_bars():
            self.model = load_masked_lm(path)
        self.tokenizer = load_tokenizer(path)
        if self.tokenizer.mask_token is None:
            raise CheckpointError(f"the tokenizer in {str(folder)!r} has no mask token")
        largest = max(self.tokenizer.get_vocab().values())  # numbers may leave gaps
        if largest >= self.model.config.vocab_size:
            raise CheckpointError(
                f"the tokenizer in {str(folder)!r} has a token of number {largest}, too large for "
                f"vocab_size={self.model.config.vocab_size} of the model beside it"
            )

    @torch.no_grad()
    def __call__(self, text: str, top: int = 5) -> list[list[Candidate]]:
        """Return the most probable words for each mask, the other masks left open.

        Args:
            text: A sentence with ``[MASK]`` or the tokenizer's own mask token in it.
            top: Candidates per mask, at least 1.

        Returns:
            One list for each mask, in the order of the text, the most probable word first.

        Raises:
            DataError: There is no mask in the text.
            ConfigError: ``top`` is more than the vocabulary, or the text is longer than the
                model's learned positions.
        """
        integer("top", top, at_least=1)
        vocab_size = self.model.config.vocab_size
        if top > vocab_size:
            raise ConfigError(f"top must be at most vocab_size={vocab_size}; got {top}")
        tokenizer = self.tokenizer
        encoded = tokenizer(text.replace(MASK, tokenizer.mask_token), return_tensors="pt")
        ids = encoded["input_ids"].long()
        places = (ids[0] == tokenizer.mask_token_id).nonzero()[:, 0]
        if not len(places):
            raise DataError(
                f"text must have a mask, written {MASK}, where a word is missing; got {text!r:.80}"
            )
        logits = self.model(input_ids=ids).logits[0, places]
        probabilities, tokens = logits.float().softmax(-1).topk(top)
        sentence = _Sentence(tuple(ids[0].tolist()), tokenizer)
        return [
            [
                Candidate(str(tokenizer.decode([token])), probability, sentence, place, token)
                for token, probability in zip(*row, strict=True)
            ]
            for place, *row in zip(
                places.tolist(), tokens.tolist(), probabilities.tolist(), strict=True
            )
        ]
