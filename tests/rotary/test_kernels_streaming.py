"""Stores that go past the caches, which ordinary calls only use for very large outputs."""

import pytest
import torch

import ropewalk as rw
from ropewalk.rotary.kernels import native, native_status

pytestmark = pytest.mark.skipif(not native.loaded(), reason=native_status())

# Bytes that a vector store needs the address to be a multiple of, at most.
LINE = 64


@pytest.fixture(params=["generic", "avx2", "avx512", "avx512_bf16"])
def instruction_set(request):
    if not native.select_instruction_set(request.param):
        pytest.skip(f"this processor has no {request.param}")
    native.stream_above(1)
    yield request.param
    native.stream_above(0)
    native.select_instruction_set(None)


def room(shape, dtype, *, shift):
    """Return memory of that shape, and all around it, that starts ``shift`` elements off a line."""
    size = torch.Size(shape).numel()
    memory = torch.full((size + 3 * LINE,), 7.0, dtype=dtype)
    first = -memory.data_ptr() % LINE // dtype.itemsize + shift
    return memory, memory[first : first + size].view(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("source", ["half", "interleaved"])
@pytest.mark.parametrize("target", ["half", "interleaved"])
def test_streamed_rows_equal_the_reference_at_any_address_and_width(
    instruction_set, dtype, source, target
):
    wide = torch.promote_types(dtype, torch.float32)
    cases = [(head, start, r) for head, start, r in GEOMETRIES if start + r <= head]
    for head, start, r in cases:
        x = torch.randn(2, 2, 3, head).to(dtype)
        angle = torch.rand(3, r // 2, dtype=torch.float64) * 100
        table = angle.cos().to(wide), angle.sin().to(wide)
        how = {"layout": source, "output_layout": target, "rotary_offset": start}
        with rw.use_kernel("reference"):
            wanted = rw.rotate(x, *table, **how)
        for shift in (0, 1, 8):
            memory, out = room(x.shape, dtype, shift=shift)
            assert rw.rotate(x, *table, **how, out=out) is out
            assert torch.equal(out, wanted), (head, start, r, shift)
            assert int((memory == 7).sum()) >= memory.numel() - out.numel()


GEOMETRIES = [
    (head, start, r)
    for head in (64, 96, 128)
    for start in (0, 16, 32, 3)
    for r in (16, 30, 32, 48, 64, 128)
]
