"""Training tasks over packed blocks: what to hide, and what to predict.

Item ``i`` of epoch ``e`` under seed ``s`` is a pure function of ``(s, e, i)``: workers, order,
number of processes and resuming do not change it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ropewalk.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ropewalk.data.batching import PackedBlocks

IGNORED = -100
"""Label of a token that is not predicted, torch's default ``ignore_index``."""
_MASKED, _MASKED_OR_RANDOM = 0.8, 0.9


class MaskedLanguageModeling(Dataset[dict[str, Tensor]]):
    """Hide some tokens of each block and ask for them, as BERT does.

    Each ordinary token is chosen with the given probability, on its own, or all tokens of a word
    together with ``whole_word``. Of the chosen tokens 80 % become ``[MASK]``, 10 % a random
    ordinary token, 10 % stay. Special tokens, ``[UNK]`` among them, are never chosen and never
    put in. The draws belong to the ordinary tokens in their order, so a window and the same
    window cut by `ropewalk.data.cut_windows` hide the same tokens.

    Args:
        blocks: The blocks to mask.
        tokenizer: The tokenizer that made them.
        probability: Share of the ordinary tokens to predict, in (0, 1].
        whole_word: Whether all tokens of a word are chosen together.
        seed: A whole number from 0 to 2^64 - 1.

    Raises:
        ConfigError: A setting is out of range, or the tokenizer has no ``[MASK]``.
        DataError: The blocks hold tokens that the tokenizer does not know.

    References:
        Devlin et al., 2018, arXiv:1810.04805, section 3.1. Salmon et al., 2011, "Parallel random
        numbers: as easy as 1, 2, 3" (Philox, the counter-based generator).
    """

    def __init__(
        self,
        blocks: PackedBlocks,
        tokenizer: PreTrainedTokenizerFast,
        *,
        probability: float = 0.15,
        whole_word: bool = False,
        seed: int = 0,
    ) -> None:
        kind: object = probability
        if isinstance(kind, bool) or not isinstance(kind, int | float) or not 0 < kind <= 1:
            raise ConfigError(
                f"probability must be in (0, 1]; got probability={probability!r}; the usual is 0.15"
            )
        _check_counter("seed", seed)
        if tokenizer.mask_token_id is None:
            raise ConfigError(
                "tokenizer must have a mask_token; got None; set tokenizer.mask_token"
            )
        largest = int(blocks.input_ids.max(initial=-1))
        if largest >= len(tokenizer):
            raise DataError(
                f"blocks must be made with this tokenizer; got token {largest}, but it has "
                f"{len(tokenizer)} entries; pack the documents again"
            )
        ordinary = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
        if not ordinary:
            raise ConfigError("tokenizer must have ordinary tokens; got special ones alone")
        self.blocks = blocks
        self.probability = probability
        self.whole_word = whole_word
        self.seed = seed
        self.epoch = 0
        self._mask = tokenizer.mask_token_id
        self._ordinary = np.array(sorted(ordinary), dtype=np.int64)

    def set_epoch(self, epoch: int) -> None:
        """Draw other tokens from now on: those of this epoch, counted from 0.

        Call it before the loader is iterated: workers that live across epochs
        (``persistent_workers=True``) keep their own copy and would not see it.

        Args:
            epoch: A whole number from 0 to 2^64 - 1.

        Raises:
            ConfigError: The number is out of range.
        """
        _check_counter("epoch", epoch)
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return example ``index`` of the current epoch.

        Args:
            index: Number of the block.

        Returns:
            ``input_ids``, ``labels`` (-100 = not to be predicted), ``position_ids`` and
            ``document_ids``: int64 tensors of shape ``(block_size,)``.
        """
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be below {len(self)}; got index={index}")
        index %= len(self)
        block = self.blocks[index]
        words = block["word_ids"]
        places = np.flatnonzero(words >= 0)
        choice, action, substitute = self._generator(index).random((3, len(places)))
        if self.whole_word:
            choice = choice[words[places]]  # one draw a word: words are no more than tokens
        chosen = choice < self.probability
        places, action, substitute = places[chosen], action[chosen], substitute[chosen]

        input_ids = block["input_ids"].astype(np.int64)
        labels = np.full_like(input_ids, IGNORED)
        labels[places] = input_ids[places]
        input_ids[places[action < _MASKED]] = self._mask
        swapped = (action >= _MASKED) & (action < _MASKED_OR_RANDOM)
        drawn = (substitute[swapped] * len(self._ordinary)).astype(np.int64)
        input_ids[places[swapped]] = self._ordinary[drawn]
        return {
            "input_ids": torch.from_numpy(input_ids),
            "labels": torch.from_numpy(labels),
            "position_ids": torch.from_numpy(block["position_ids"].astype(np.int64)),
            "document_ids": torch.from_numpy(block["document_ids"].astype(np.int64)),
        }

    def _generator(self, index: int) -> np.random.Generator:
        # The example is the highest word of the counter: streams of 2^192 draws cannot overlap.
        key = np.array([self.seed, self.epoch], dtype=np.uint64)
        counter = np.array([0, 0, 0, index], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


def _check_counter(name: str, value: object) -> None:
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value < 2**64:
        return
    raise ConfigError(f"{name} must be a whole number from 0 to 2^64 - 1; got {name}={value!r}")
