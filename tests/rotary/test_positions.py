import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import (
    ConfigError,
    RopeSpec,
    RotaryEmbedding,
    ShapeError,
    positions_for_shard,
    positions_from_attention_mask,
    positions_from_cu_seqlens,
)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32])
def test_padding_on_either_side_does_not_shift_real_tokens(dtype):
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    positions = positions_from_attention_mask(mask.to(dtype))
    assert positions.tolist() == [
        [0, 0, 0, 1, 2],
        [0, 1, 2, 2, 2],
        [0, 0, 1, 1, 1],
        [0, 0, 0, 0, 0],
    ]
    assert positions.dtype == torch.int64


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_packed_positions_are_the_positions_of_each_sequence(lengths):
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    want = [p for n in lengths for p in range(n)]
    assert positions_from_cu_seqlens(cu, sum(lengths)).tolist() == want


@given(st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_shards_together_are_the_whole_sequence(world, per_chunk, zigzag):
    total = 2 * world * per_chunk
    parts = [
        positions_for_shard(total, rank=r, world_size=world, zigzag=zigzag) for r in range(world)
    ]
    assert sorted(torch.cat(parts).tolist()) == list(range(total))
    assert len({len(part) for part in parts}) == 1


def test_zigzag_pairs_the_first_chunk_with_the_last():
    assert positions_for_shard(8, rank=0, world_size=2, zigzag=True).tolist() == [0, 1, 6, 7]
    assert positions_for_shard(8, rank=1, world_size=2).tolist() == [4, 5, 6, 7]


def test_positions_compile_without_breaks():
    compiled = torch.compile(positions_from_cu_seqlens, fullgraph=True, backend="eager")
    assert compiled(torch.tensor([0, 2, 5]), 5).tolist() == [0, 1, 0, 1, 2]


cu = torch.tensor


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: positions_from_attention_mask(torch.ones(3)), r"got \(3,\)"),
        (lambda: positions_from_attention_mask(torch.ones(2, 3)), r"torch.float32"),
        (lambda: positions_from_cu_seqlens(cu([0, 3]), 4), r"total=4; got 0 to 3"),
        (lambda: positions_from_cu_seqlens(cu([1, 4]), 4), r"total=4; got 1 to 4"),
        (lambda: positions_from_cu_seqlens(cu([0, 3, 2, 4]), 4), r"got 0 to 4, not rising"),
        (lambda: positions_from_cu_seqlens(cu([[0, 3]]), 3), r"got \(1, 2\)"),
        (lambda: positions_from_cu_seqlens(cu([0.0, 3.0]), 3), r"torch.float32"),
        (lambda: positions_from_cu_seqlens(cu([0, 3]), -3), r"total must be .*got -3"),
        (lambda: positions_for_shard(8, rank=2, world_size=2), r"world_size=2; got 2"),
        (lambda: positions_for_shard(9, rank=0, world_size=2), r"multiple of 2 .*got 9"),
        (
            lambda: positions_for_shard(6, rank=0, world_size=2, zigzag=True),
            r"multiple of 4 .*got 6",
        ),
        (lambda: positions_for_shard(8, rank=0, world_size=0), r"world_size must be .*got 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(call, message):
    with pytest.raises((ConfigError, ShapeError), match=message):
        call()


def test_positions_are_dense():
    rope = RotaryEmbedding(RopeSpec(8, "half"))
    with pytest.raises(ShapeError, match=r"dense tensor; got .*sparse_coo"):
        rope.table(torch.arange(3).to_sparse())


def test_a_rank_makes_its_own_positions_alone():
    far = positions_for_shard(2**40, rank=2**38 - 1, world_size=2**38)
    assert far.tolist() == [2**40 - 4, 2**40 - 3, 2**40 - 2, 2**40 - 1]
    with pytest.raises(ConfigError, match="zigzag must be True or False; got 1"):
        positions_for_shard(8, rank=0, world_size=2, zigzag=1)
