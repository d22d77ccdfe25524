"""Tensors whose memory is odd: every kernel answers right or refuses, and writes nothing beside."""

import os
import signal

import numpy as np
import pytest
import torch
from rotary_cases import assert_alike

import ropewalk as rw
from ropewalk.errors import ConfigError, ShapeError
from ropewalk.rotary.checks import apart, overlaps_itself
from ropewalk.rotary.kernels import native, native_status, ops

needs_native = pytest.mark.skipif(not native.loaded(), reason=native_status())
kernels = pytest.mark.parametrize("kernel", rw.available_kernels())

ROPE = rw.RotaryEmbedding(rw.RopeSpec(head_dim=16, layout="half"))
TABLE = ROPE.table(torch.arange(3, 10))


def by_definition(x, table=TABLE):
    with rw.use_kernel("reference"):
        return ROPE.rotate(x.contiguous(), table=table)


WINDOWS = [
    ((7, 16), (1, 1)),
    ((3, 7, 16), (16, 1, 1)),
    ((2, 7, 16), (4, 1, 1)),
    ((2, 3, 7, 16), (1, 1, 1, 1)),
    ((7, 16), (8, 1)),
    ((2, 7, 16), (16, 8, 1)),
    ((2, 7, 16), (1, 16, 1)),
    ((2, 3, 7, 16), (336, 112, 112, 1)),
]


@kernels
@pytest.mark.parametrize(("shape", "strides"), WINDOWS)
def test_windows_that_share_memory_turn_into_rows_of_their_own(kernel, shape, strides):
    x = torch.randn(1300).as_strided(shape, strides)
    with rw.use_kernel(kernel):
        found = ROPE.rotate(x, table=TABLE)
    assert found.stride(-1) == 1
    assert not overlaps_itself(found)
    assert torch.equal(found, by_definition(x))


@pytest.mark.parametrize(("shape", "strides"), WINDOWS)
def test_the_operator_says_the_strides_it_returns(shape, strides):
    x = torch.randn(1300).as_strided(shape, strides)
    real = ops.rotate_op(x, *TABLE, -2, 0, False, False, False)
    fake = ops.rotate_op(
        x.to("meta").as_strided(shape, strides),
        *(part.to("meta") for part in TABLE),
        *(-2, 0, False, False, False),
    )
    assert fake.stride() == real.stride()


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_at_odd_addresses_turn_like_others(kernel, dtype):
    x = torch.randn(7, 16).to(dtype)
    table = ROPE.table(torch.arange(7), dtype=torch.promote_types(dtype, torch.float32))
    raw = bytearray(x.nbytes + 1)
    odd = torch.frombuffer(raw, dtype=dtype, offset=1).view(7, 16).copy_(x)
    with rw.use_kernel(kernel):
        assert torch.equal(ROPE.rotate(odd, table=table), by_definition(x, table))
        assert ROPE.rotate(odd, table=table, out=odd) is odd
    assert torch.equal(odd, by_definition(x, table))


@kernels
@pytest.mark.parametrize("strides", [(1, 1), (8, 1), (0, 1), (15, 1)])
def test_an_output_whose_elements_share_memory_is_refused(kernel, strides):
    memory = torch.zeros(200)
    out = memory.as_strided((7, 16), strides)
    with (
        rw.use_kernel(kernel),
        pytest.raises(ShapeError, match=rf"every element; got the strides \({strides[0]}, 1\)"),
    ):
        ROPE.rotate(torch.randn(7, 16), table=TABLE, out=out)
    assert not memory.any()


@kernels
def test_outputs_that_share_a_part_of_their_memory_are_refused(kernel):
    memory = torch.zeros(200)
    out = memory[:112].view(7, 16), memory[8:120].view(7, 16)
    q, k = torch.randn(2, 7, 16)
    with rw.use_kernel(kernel), pytest.raises(ConfigError, match="same memory for q and for k"):
        ROPE(q, k, table=TABLE, out=out)
    assert not memory.any()


@kernels
def test_slices_of_one_buffer_are_outputs_apart(kernel):
    q, k = torch.randn(2, 5, 7, 16)
    buffer = torch.zeros(5, 7, 3, 16)
    out = buffer[:, :, 0], buffer[:, :, 1]
    with rw.use_kernel(kernel):
        ROPE(q, k, table=TABLE, out=out)
    assert torch.equal(out[0], by_definition(q))
    assert torch.equal(out[1], by_definition(k))
    assert not buffer[:, :, 2].any()


@kernels
def test_two_storages_over_one_array_are_seen_to_overlap(kernel):
    memory = np.random.default_rng(0).standard_normal(5000 * 16 + 16).astype(np.float32)
    x = torch.from_numpy(memory[:-16]).view(5000, 16)
    out = torch.from_numpy(memory[16:]).view(5000, 16)
    table = ROPE.table(torch.arange(5000))
    wanted = by_definition(x.clone(), table)
    with rw.use_kernel(kernel):
        ROPE.rotate(x, table=table, out=out)
    assert torch.equal(out, wanted)


def random_view(generator, memory):
    rank = int(torch.randint(1, 4, (), generator=generator))
    sizes = torch.randint(1, 4, (rank,), generator=generator).tolist()
    strides = torch.randint(0, 9, (rank,), generator=generator).tolist()
    offset = int(torch.randint(0, 40, (), generator=generator))
    return memory.as_strided(sizes, strides, offset)


def test_sharing_of_memory_is_told_as_by_counting():
    generator = torch.Generator().manual_seed(0)
    places = torch.arange(200)
    known = 0
    for _ in range(400):
        a, b = random_view(generator, places), random_view(generator, places)
        assert overlaps_itself(a) == (len(a.unique()) < a.numel()), (a.shape, a.stride())
        shared = bool(torch.isin(a.unique(), b.unique()).any())
        assert not (shared and apart(a, b)), (a, b)
        known += apart(a, b)
    assert known > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@needs_native
def test_a_forked_child_rotates_without_the_threads_of_its_parent():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(2, 512, 7, 16)
        wanted = ROPE.rotate(x, table=TABLE)  # large enough for two threads
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that waits for ever dies, and fails the test
            out = torch.empty_like(x)
            ROPE(x, x, table=TABLE, out=(out, torch.empty_like(x)))
            os._exit(0 if native_status().endswith("one thread") else 1)
        _, status = os.waitpid(child, 0)
    finally:
        torch.set_num_threads(threads)
    assert status == 0
    assert_alike(wanted, by_definition(x))
