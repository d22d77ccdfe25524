"""Batches without padding, and batches of rows of about one length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ropewalk.data import LengthGroupedBatches, PackingCollator
from ropewalk.errors import ConfigError, DataError, ShapeError


def test_rows_lie_one_behind_the_other() -> None:
    batch = PackingCollator()(
        [
            {"input_ids": [5, 6, 7], "labels": [-100, 6, -100]},
            {"input_ids": torch.tensor([8, 9]), "labels": torch.tensor([8, -100])},
        ]
    )
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert batch["labels"].tolist() == [[-100, 6, -100, 8, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 5]
    assert batch["max_length_q"] == batch["max_length_k"] == 3
    assert batch["input_ids"].dtype == torch.int64
    assert batch["cu_seq_lens_q"].dtype == torch.int32


def test_padding_is_taken_out_and_documents_are_sequences_of_their_own() -> None:
    batch = PackingCollator()(
        [
            {
                "input_ids": [0, 5, 6, 7, 8],
                "attention_mask": [0, 1, 1, 1, 1],
                "document_ids": [0, 1, 1, 2, 2],
                "position_ids": [0, 0, 1, 0, 1],
                "label": 3,
            }
        ]
    )
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 2, 4]
    assert batch["label"].tolist() == [3]
    assert not {"attention_mask", "document_ids"} & set(batch)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([], DataError, "at least one row; got none"),
        ([{"labels": [1]}], DataError, r"input_ids; row 0 has \['labels'\]"),
        ([{"input_ids": []}], DataError, r"row 0 have the shape \(0,\)"),
        ([{"input_ids": [1]}, {"input_ids": [1], "x": 1}], DataError, "row 1 has .*'x'"),
        ([{"input_ids": [1, 2], "labels": [1]}], ShapeError, r"labels of row 0 .*\(1,\)"),
        (
            [{"input_ids": [1, 2, 3], "document_ids": [4, 5, 4]}],
            DataError,
            "number 4 in several pieces of row 0",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    rows: list[dict[str, Any]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        PackingCollator()(rows)


LENGTHS = torch.randint(1, 200, (997,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("sizes", [{"batch_size": 8}, {"max_tokens": 800}])
def test_every_row_is_in_one_batch_of_about_one_length(sizes: dict[str, int]) -> None:
    batches = list(LengthGroupedBatches(LENGTHS, seed=3, **sizes))
    assert sorted(row for batch in batches for row in batch) == list(range(997))
    assert len(batches) == len(LengthGroupedBatches(LENGTHS, seed=3, **sizes))
    padded = [len(batch) * max(LENGTHS[row] for row in batch) for batch in batches]
    # In random order half of a batch is padding; the pools of 50 batches leave a few tokens a row.
    assert sum(padded) < 1.1 * sum(LENGTHS)
    if "max_tokens" in sizes:
        assert max(padded) <= 800


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = LengthGroupedBatches(LENGTHS, batch_size=8, seed=seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 0)
    assert order(0, 1) != order(1, 1)
    longest = [max(LENGTHS[row] for row in batch) for batch in order(0, 0)]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_a_row_longer_than_a_batch_is_one_of_its_own() -> None:
    batches = LengthGroupedBatches([9, 2, 2], max_tokens=4)
    assert sorted(map(sorted, batches)) == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("lengths", "options", "error", "message"),
    [
        ([1], {}, ConfigError, "got neither"),
        ([1], {"batch_size": 1, "max_tokens": 1}, ConfigError, "got both"),
        ([1], {"batch_size": 0}, ConfigError, "batch_size .*0"),
        ([1], {"batch_size": 1, "seed": -1}, ConfigError, "seed .*-1"),
        ([3, 0], {"batch_size": 1}, DataError, r"lengths .*\[3, 0\]"),
        ([], {"batch_size": 1}, DataError, r"lengths .*\[\]"),
    ],
)
def test_what_gives_no_batches_is_refused(
    lengths: list[int], options: dict[str, int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LengthGroupedBatches(lengths, **options)
