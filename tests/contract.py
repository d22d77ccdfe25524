"""Checks of the rotation that the tests run and that the mutants must fail.

Each looks its functions up when called, so that a patched-in bug is seen.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from oracle import assert_within_contract, rotated

import ropewalk as rw

GOLDEN = json.loads((Path(__file__).parent / "golden" / "rotation.json").read_text())


def contract_positions():
    """4,096 seeded positions in 0..10,000,000 and both ends."""
    inside = np.random.default_rng(0).integers(0, 10_000_001, 4096)
    return torch.from_numpy(np.concatenate([[0, 10_000_000], inside]))


def check_golden_vectors():
    for case in GOLDEN["cases"]:
        rope = rw.RotaryEmbedding(
            rw.RopeSpec(case["head_dim"], case["layout"], theta=case["theta"])
        )
        x = torch.tensor(case["x"], dtype=torch.float64)
        y = rope.rotate(x, torch.tensor(case["position"], dtype=torch.float64))
        # the golden values have eleven decimals
        torch.testing.assert_close(y, torch.tensor(case["y"], dtype=y.dtype), atol=2e-11, rtol=0)


def check_precision(rope=None, dtype=torch.bfloat16, device="cpu"):
    """The dtype contract at every position, on vectors of ordinary size."""
    rope = rope or rw.RotaryEmbedding(rw.RopeSpec(8, "interleaved"))
    positions = contract_positions()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, len(positions), 8, generator=generator, dtype=torch.float64).to(dtype)
    y = rope.rotate(x.to(device), positions.to(device))
    assert y.device.type == torch.device(device).type
    assert_within_contract(y.cpu(), x, rope.spec, positions)


def check_relative_scores():
    """Scores of the same vectors at the same distance are the same anywhere."""
    for layout in ("interleaved", "half"):
        rope = rw.RotaryEmbedding(rw.RopeSpec(16, layout))
        q, k = torch.randn(
            2, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        )
        near = rope.rotate(q, torch.tensor([5])) @ rope.rotate(k, torch.tensor([2])).T
        far = rope.rotate(q, torch.tensor([905])) @ rope.rotate(k, torch.tensor([902])).T
        # angles of float64 at position 900: 1e-13 radians
        torch.testing.assert_close(near, far, atol=1e-11, rtol=0)


def check_tables_remember_nothing():
    """A table depends on its arguments alone, whatever was asked before."""
    positions = torch.arange(50)
    rope = rw.RotaryEmbedding(rw.RopeSpec(8, "half"))
    fresh = rope.table(positions)
    for theta in (100.0, 10_000.0):
        for dtype in (torch.float64, torch.float32):
            other = rw.RotaryEmbedding(rw.RopeSpec(8, "half", theta=theta))
            table = other.table(positions + 3, dtype=dtype)
            alpha = (positions + 3).double()[:, None] * theta ** (-torch.arange(4).double() / 4)
            # one rounding to the table's dtype
            torch.testing.assert_close(table.cos, alpha.cos().to(dtype), atol=6e-8, rtol=0)
            rope.rotate(torch.randn(50, 8, dtype=dtype), positions + 7)
    assert torch.equal(rope.table(positions).cos, fresh.cos)


def check_partial_rotation():
    """Coordinates outside the slice are bit-identical; those inside follow the normal form."""
    for layout in ("interleaved", "half"):
        spec = rw.RopeSpec(10, layout, rotary_dim=4, rotary_offset=3)
        x = torch.randn(3, 5, 10, generator=torch.Generator().manual_seed(3))
        y = rw.RotaryEmbedding(spec).rotate(x, torch.arange(5))
        assert torch.equal(y[..., :3], x[..., :3])
        assert torch.equal(y[..., 7:], x[..., 7:])
        assert_within_contract(y, x, spec, torch.arange(5))


def check_inverse_and_shift():
    """inverse undoes rotate; shift moves keys of a cache."""
    rope = rw.RotaryEmbedding(rw.RopeSpec(8, "interleaved", output_layout="half"))
    x = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    here, there = torch.arange(6) + 10, torch.arange(6) + 4
    y = rope.rotate(x, here)
    torch.testing.assert_close(rope.inverse(y, here), x, atol=1e-14, rtol=0)
    torch.testing.assert_close(
        rope.shift(y, here, there), rope.rotate(x, there), atol=1e-13, rtol=0
    )
    torch.testing.assert_close(y, rotated(x, rope.spec, here), atol=1e-13, rtol=0)


CHECKS = {
    check.__name__: check
    for check in (
        check_golden_vectors,
        check_precision,
        check_relative_scores,
        check_tables_remember_nothing,
        check_partial_rotation,
        check_inverse_and_shift,
    )
}
