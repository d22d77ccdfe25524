"""The same answers on a CUDA device."""

import contract
import pytest
import torch

from ropewalk import RopeSpec, RotaryEmbedding, softmax_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rotation_keeps_its_precision(dtype):
    assert contract.check_precision(dtype=dtype, device="cuda") is None


def test_a_module_serves_several_devices_in_turn():
    rope = RotaryEmbedding(RopeSpec(8, "half"))
    x = torch.randn(5, 8)
    want = rope.rotate(x, torch.arange(5))
    got = rope.cuda().rotate(x.cuda(), torch.arange(5).cuda()).cpu()
    torch.testing.assert_close(got, want, atol=2e-7, rtol=0)
    assert torch.equal(rope.cpu().rotate(x, torch.arange(5)), want)


def test_autocast_changes_nothing():
    rope = RotaryEmbedding(RopeSpec(8, "interleaved"))
    x, positions = torch.randn(5, 8, device="cuda"), torch.arange(5, device="cuda") + 999_000
    want = rope.rotate(x, positions)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(rope.rotate(x, positions), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_of_nothing_but_padding_is_finite(dtype):
    q, k, v = (torch.randn(2, 2, 64, 32, device="cuda", dtype=dtype) for _ in range(3))
    mask = torch.zeros(2, 64, dtype=torch.bool, device="cuda")
    mask[1] = True
    assert softmax_attention(q, k, v, key_padding_mask=mask).isfinite().all()
