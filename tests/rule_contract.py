"""Checks of the scaling rules that the tests run and that the mutants must fail.

Each looks its functions up when called, so that a patched-in bug is seen.
"""

from __future__ import annotations

import numpy as np
import torch
from oracle import rotated

import ropewalk as rw
from ropewalk.spec import spec_from_rope_parameters

# Values of transformers 5.24, printed with eight digits.
YARN_QWEN = {22: 8.6596432e-3, 24: 5.3753215e-3, 30: 1.064361e-3, 39: 6.4903943e-5}
LLAMA_3_1 = {28: 3.211446e-3, 29: 2.1665708e-3, 32: 5.2484616e-4, 35: 9.5562124e-5, 63: 3.068926e-7}


def assert_pairs(spec, values):
    inv_freq = spec.inv_freq()
    for pair, value in values.items():
        assert abs(inv_freq[pair] / value - 1) < 3e-7, (pair, inv_freq[pair], value)


def check_yarn_of_qwen():
    """Qwen2.5-7B with YaRN times 4."""
    spec = rw.RopeSpec(128, "half", theta=1e6, scaling=rw.Yarn(4.0, 32768))
    assert_pairs(spec, YARN_QWEN)
    assert abs(spec.attention_factor() - 1.1386294) < 1e-7


def check_ramp_ends_beyond_the_last_pair():
    """vllm-project/vllm#27722: high is clamped to d - 1, not to the last pair."""
    spec = rw.RopeSpec(64, "half", scaling=rw.Yarn(4.0, 131_072))
    assert spec.scaling.correction_range(spec.ladder) == (22.0, 35.0)
    ratio = spec.inv_freq()[31] / spec.ladder.inv_freq()[31]
    assert abs(ratio - (1 - 0.75 * 9 / 13)) < 1e-12


def check_llama_3_1():
    spec = rw.RopeSpec(128, "half", theta=5e5, scaling=rw.Llama3(8.0, 8192, 1.0, 4.0))
    assert_pairs(spec, LLAMA_3_1)


def check_gpt_oss_does_not_truncate():
    """vllm-project/vllm#28244: the ramp runs from 8.0928 to 17.3980."""
    parameters = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "rope_theta": 1.5e5}
    parameters["original_max_position_embeddings"] = 4096
    spec = spec_from_rope_parameters(parameters, head_dim=64, layout="half")
    low, high = spec.scaling.correction_range(spec.ladder)
    assert abs(low - 8.0928) < 5e-5
    assert abs(high - 17.3980) < 5e-5
    ladder = spec.ladder.inv_freq()
    assert spec.inv_freq()[8] == ladder[8]
    share = (9 - low) / (high - low)
    assert abs(spec.inv_freq()[9] / ladder[9] - (1 - share * 31 / 32)) < 1e-12


def check_amplitude_is_applied_once():
    """cos and sin carry the attention factor; a score carries its square and no more."""
    spec = rw.RopeSpec(8, "half", scaling=rw.Yarn(32.0, 4096))
    rope, p = rw.RotaryEmbedding(spec), torch.arange(3)
    table = rope.table(p, dtype=torch.float64)
    norm = table.cos**2 + table.sin**2
    torch.testing.assert_close(norm, torch.full_like(norm, 1.3465736**2), atol=1e-6, rtol=0)
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rope.rotate(x, p), rotated(x, spec, p), atol=1e-13, rtol=0)
    torch.testing.assert_close(rope.inverse(rope.rotate(x, p), p), x, atol=1e-13, rtol=0)


def check_table_and_softmax_scale_are_two_numbers():
    """DeepSeek-V3: huggingface/transformers#47435, vllm-project/vllm#48623."""
    rule = rw.Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert rw.RopeSpec(64, "half", scaling=rule).attention_factor() == 1.0
    assert abs(rule.softmax_scale_factor() - 1.8738542) < 1e-7


def check_partial_factor_narrows_the_ladder():
    """The exponents, the ramp and the pairs are those of the rotated width."""
    parameters = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e5}
    parameters |= {"original_max_position_embeddings": 8192, "partial_rotary_factor": 0.5}
    spec = spec_from_rope_parameters(parameters, head_dim=128, layout="half")
    assert spec.pairs().in_b[0] == 32
    # SmolLM2's head of 64 with YaRN times 4
    assert_pairs(spec, {9: 3.9241898e-2, 12: 1.1334932e-2, 15: 2.8322398e-3, 31: 3.5825314e-6})


def check_longrope_switches_above_the_trained_length():
    """unslothai/unsloth#10681: the short list at exactly the original length."""
    rule = rw.LongRope((1.0, 2.0), (4.0, 8.0), 64, factor=8.0)
    spec = rw.RopeSpec(4, "half", theta=100.0, scaling=rule)
    np.testing.assert_allclose(spec.inv_freq([64, 65]), [[1.0, 0.05], [0.25, 0.0125]], rtol=1e-15)
    assert abs(spec.attention_factor() - 1.2247449) < 1e-7


def check_length_belongs_to_the_row():
    """QwenLM/Qwen#401: a long row, or an earlier call, changes nothing for the others."""
    rope = rw.RotaryEmbedding(rw.RopeSpec(8, "half", scaling=rw.DynamicNTK(2.0, 16)))
    p = torch.arange(16)
    fresh = rope.table(p, seq_len=16)
    rope.table(torch.arange(64), seq_len=64)
    batch = rope.table(p, seq_len=[16, 64])
    assert torch.equal(batch.cos[0], fresh.cos)
    assert torch.equal(rope.table(p, seq_len=16).cos, fresh.cos)
    plain = rw.RotaryEmbedding(rw.RopeSpec(8, "half")).table(p)
    assert torch.equal(fresh.cos, plain.cos)
    # 1 + 2 (64 / 16 - 1) = 7
    ratio = rope.spec.inv_freq(16)[-1] / rope.spec.inv_freq(64)[-1]
    assert abs(ratio - 7.0) < 1e-12


def check_proportional_keeps_the_exponents_of_the_head():
    spec = rw.RopeSpec(8, "half", theta=16.0, scaling=rw.Proportional(0.5))
    assert spec.inv_freq().tolist() == [1.0, 0.5, 0.0, 0.0]


def check_xpos_has_no_hidden_centre():
    """lucidrains/x-transformers#226: cached keys fit queries of every later step."""
    rope = rw.RotaryEmbedding(rw.RopeSpec(8, "half", scaling=rw.XPos()))
    x = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    p = torch.arange(6)
    for role in ("query", "key"):
        whole = rope.rotate(x, p, role=role)
        assert torch.equal(rope.rotate(x[:2], p[:2], role=role), whole[:2])
    near = rope.rotate(x, p, role="query") @ rope.rotate(x, p, role="key").T
    far = rope.rotate(x, p + 70, role="query") @ rope.rotate(x, p + 70, role="key").T
    torch.testing.assert_close(near, far, atol=1e-12, rtol=0)
    # zeta of the fastest pair is 0.4 / 1.4, reached after 512 positions
    first = torch.eye(8, dtype=torch.float64)[:1]
    for role, zeta in (("query", 0.4 / 1.4), ("key", 1.4 / 0.4)):
        assert abs(rope.rotate(first, torch.tensor([512]), role=role).norm() - zeta) < 1e-12


CHECKS = {
    check.__name__: check
    for check in (
        check_yarn_of_qwen,
        check_ramp_ends_beyond_the_last_pair,
        check_llama_3_1,
        check_gpt_oss_does_not_truncate,
        check_amplitude_is_applied_once,
        check_table_and_softmax_scale_are_two_numbers,
        check_partial_factor_narrows_the_ladder,
        check_longrope_switches_above_the_trained_length,
        check_length_belongs_to_the_row,
        check_proportional_keeps_the_exponents_of_the_head,
        check_xpos_has_no_hidden_centre,
    )
}
