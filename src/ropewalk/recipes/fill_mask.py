"""``FillMask``: ask a trained model for the words that are missing from a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ropewalk.data import load_tokenizer
from ropewalk.errors import CheckpointError, ConfigError, DataError
from ropewalk.models import load_masked_lm
from ropewalk.recipes.callbacks import without_bars
from ropewalk.spec.checks import integer

MASK = "[MASK]"
"""How a missing word is written, whatever the tokenizer's own token for it."""


@dataclass(frozen=True)
class Candidate:
    """One proposal for a missing word.

    Args:
        token: The token, as text.
        probability: The model's probability, 0 to 1.
        text: The sentence with this mask filled, as the tokenizer writes it.
    """

    token: str
    probability: float
    text: str


class FillMask:
    """Fill the masks of a sentence.

    With rotary positions a sentence may be longer than the rows the model was trained on.

    Args:
        folder: Folder of a masked language model with its tokenizer.

    Raises:
        CheckpointError: The folder does not hold a model and a tokenizer that fit together.
    """

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder).expanduser()
        with without_bars():
            self.model = load_masked_lm(path)
        self.tokenizer = load_tokenizer(path)
        if self.tokenizer.mask_token is None:
            raise CheckpointError(f"the tokenizer in {str(folder)!r} has no mask token")
        if len(self.tokenizer) > self.model.config.vocab_size:
            raise CheckpointError(
                f"the tokenizer in {str(folder)!r} has {len(self.tokenizer)} tokens, more than "
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
        return [
            [
                Candidate(
                    token=str(tokenizer.decode([token])),
                    probability=probability,
                    text=self._filled(ids[0], int(place), token),
                )
                for token, probability in zip(*row, strict=True)
            ]
            for place, *row in zip(places, tokens.tolist(), probabilities.tolist(), strict=True)
        ]

    def _filled(self, ids: torch.Tensor, place: int, token: int) -> str:
        filled = ids.clone()
        filled[place] = token
        # All special tokens go but for the other masks and the candidate itself.
        kept = [
            identifier
            for position, identifier in enumerate(filled.tolist())
            if position == place
            or identifier == self.tokenizer.mask_token_id
            or identifier not in self.tokenizer.all_special_ids
        ]
        return str(self.tokenizer.decode(kept)).strip()
