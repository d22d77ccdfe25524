"""Rows of different lengths to batches: packed without padding, and grouped by length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from ropewalk.errors import ConfigError, DataError, ShapeError
from ropewalk.spec.checks import integer

_POOL = 50
"""Batches that are sorted together: enough for rows of one length, few enough to stay random."""


class PackingCollator:
    """Lay the rows of a batch one behind the other, as models take packed sequences.

    Nothing is padded. What comes out is what transformers' ``DataCollatorWithFlattening`` calls
    ``return_flash_attn_kwargs``: the models here compute it as they would compute the padded
    rows, at the price of the real tokens alone.

    Each row is a mapping with ``input_ids`` and whatever else the model takes; of padded rows
    (``attention_mask``) the real tokens are kept. Documents in a row (``document_ids``) become
    sequences of their own. What is one number a row, such as the label of a class, is stacked.

    Example:
        >>> rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]
        >>> PackingCollator()(rows)["cu_seq_lens_q"]
        tensor([0, 3, 5], dtype=torch.int32)
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return one batch of one row.

        Args:
            rows: At least one; all with the same keys.

        Returns:
            ``input_ids``, ``position_ids`` (those of the rows, or restarting in each sequence) and
            the other keys as ``(1, tokens)`` int64; ``cu_seq_lens_q`` and ``cu_seq_lens_k``
            ``(sequences + 1,)`` int32; ``max_length_q`` and ``max_length_k``, whole numbers.

        Raises:
            DataError: No rows, a row without tokens, or rows with different keys.
            ShapeError: What belongs to the tokens of a row differs in length from them.
        """
        if not rows:
            raise DataError("rows must hold at least one row; got none")
        names = rows[0].keys()
        packed: dict[str, list[Tensor]] = {name: [] for name in names}
        lengths: list[int] = []
        for number, row in enumerate(rows):
            if row.keys() != names:
                raise DataError(
                    f"rows must have the same keys; row {number} has {sorted(row)}, "
                    f"row 0 has {sorted(names)}"
                )
            fields = _real_tokens(row, number)
            lengths += _sequence_lengths(fields, number)
            for name, values in fields.items():
                packed[name].append(values)
        for name in ("attention_mask", "document_ids"):
            packed.pop(name, None)
        batch: dict[str, Any] = {
            name: torch.stack(parts) if parts[0].ndim == 0 else torch.cat(parts)[None]
            for name, parts in packed.items()
        }
        if "position_ids" not in batch:
            batch["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None]
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        longest = max(lengths)
        return batch | {
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "max_length_q": longest,
            "max_length_k": longest,
        }


class LengthGroupedBatches(Sampler[list[int]]):
    """Put rows of about one length into a batch, in an order that a seed decides.

    The rows are shuffled, sorted by length within pools of 50 batches, and cut into batches,
    which are shuffled again. Padding then costs little; packed sequences (`PackingCollator`) gain
    from it too, since attention takes rows of one length together. Every row is in exactly one
    batch of an epoch. A ``batch_sampler`` of torch's ``DataLoader``.

    Args:
        lengths: Tokens of each row, at least 1.
        batch_size: Rows of a batch; or None.
        max_tokens: Most tokens of a batch once it is padded to its longest row; or None. Exactly
            one of the two is given; a longer row is a batch of its own.
        seed: Seed of the order, 0 to 2^32 - 1.

    Raises:
        ConfigError: Both or neither of ``batch_size`` and ``max_tokens``, or one out of range.
        DataError: A row has no tokens, or there are none.

    Example:
        >>> sorted(map(sorted, LengthGroupedBatches([9, 1, 1, 9], batch_size=2, seed=0)))
        [[0, 3], [1, 2]]
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        if (batch_size is None) == (max_tokens is None):
            given = "neither" if batch_size is None else "both"
            raise ConfigError(
                f"exactly one of batch_size and max_tokens must be given; got {given}"
            )
        for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
            if value is not None:
                integer(name, value, at_least=1)
        integer("seed", seed, at_least=0, at_most=2**32 - 1)
        self._lengths = np.asarray(lengths, dtype=np.int64)
        if self._lengths.ndim != 1 or not len(self._lengths) or self._lengths.min() < 1:
            raise DataError(
                "lengths must be whole numbers from 1, one for each row; got "
                f"{self._lengths.tolist()!s:.80}"
            )
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of another epoch.

        Args:
            epoch: Its number, from 0.

        Raises:
            ConfigError: The number is negative.
        """
        self._epoch = integer("epoch", epoch, at_least=0)

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches())

    def _batches(self) -> list[list[int]]:
        generator = np.random.default_rng([self._seed, self._epoch])
        order = generator.permutation(len(self._lengths))
        rows = self._batch_size
        if rows is None:
            assert self._max_tokens is not None
            rows = max(1, self._max_tokens // int(self._lengths.mean()))
        batches: list[list[int]] = []
        for start in range(0, len(order), _POOL * rows):
            pool = order[start : start + _POOL * rows]
            batches += self._cut(pool[np.argsort(self._lengths[pool], kind="stable")].tolist())
        return [batches[place] for place in generator.permutation(len(batches))]

    def _cut(self, rows: list[int]) -> list[list[int]]:
        """Cut rows that rise in length into batches."""
        if self._batch_size is not None:
            size = self._batch_size
            return [rows[start : start + size] for start in range(0, len(rows), size)]
        assert self._max_tokens is not None
        batches: list[list[int]] = [[]]
        for row in rows:
            if batches[-1] and (len(batches[-1]) + 1) * self._lengths[row] > self._max_tokens:
                batches.append([])
            batches[-1].append(row)
        return batches


def _real_tokens(row: Mapping[str, Any], number: int) -> dict[str, Tensor]:
    """Return the fields of a row as tensors, without what belongs to padding."""
    if "input_ids" not in row:
        raise DataError(f"rows must have input_ids; row {number} has {sorted(row)}")
    fields = {name: torch.as_tensor(value) for name, value in row.items()}
    fields = {
        name: value if value.is_floating_point() else value.long() for name, value in fields.items()
    }
    length = fields["input_ids"].shape
    for name, value in fields.items():
        if value.ndim and value.shape != length:
            raise ShapeError(
                f"{name} of row {number} must be of shape {tuple(length)}, one for each token; got "
                f"{tuple(value.shape)}"
            )
    if "attention_mask" in fields:
        real = fields["attention_mask"] == 1
        fields = {name: value[real] if value.ndim else value for name, value in fields.items()}
    if fields["input_ids"].ndim != 1 or not len(fields["input_ids"]):
        raise DataError(
            f"rows must have tokens; the input_ids of row {number} have the shape "
            f"{tuple(fields['input_ids'].shape)}"
        )
    return fields


def _sequence_lengths(fields: Mapping[str, Tensor], number: int) -> list[int]:
    """Return the lengths of the documents in a row, or of the row."""
    documents = fields.get("document_ids")
    if documents is None:
        return [len(fields["input_ids"])]
    numbers, counts = documents.unique_consecutive(return_counts=True)
    if len(numbers.unique()) < len(numbers):
        raise DataError(
            "document_ids must number documents that are each in one piece; got number "
            f"{numbers.mode().values.item()} in several pieces of row {number}"
        )
    lengths: list[int] = counts.tolist()
    return lengths
