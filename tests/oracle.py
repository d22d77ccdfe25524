"""The float64 answers that everything is compared with, written from the formulas alone."""

from __future__ import annotations

import numpy as np
import torch

# Explicit mantissa bits and smallest exponent of a normal number.
_FORMAT = {
    torch.float64: (52, -1022),
    torch.float32: (23, -126),
    torch.float16: (10, -14),
    torch.bfloat16: (7, -126),
}


def rotation_matrix(spec, position, seq_len=None):
    """Return R with y = R x at one position (a number, or one per axis), from spec.pairs()."""
    p = np.atleast_1d(np.asarray(position, dtype=np.float64))
    p = (p + spec.position_offset) * spec.position_scale
    pairs = spec.pairs(seq_len)
    angle = pairs.sign * p[pairs.axis] * pairs.inv_freq
    c, s = np.cos(angle) * pairs.amplitude, np.sin(angle) * pairs.amplitude
    matrix = np.eye(spec.head_dim)
    matrix[np.concatenate([pairs.out_a, pairs.out_b])] = 0.0
    matrix[pairs.out_a, pairs.in_a], matrix[pairs.out_a, pairs.in_b] = c, -s
    matrix[pairs.out_b, pairs.in_a], matrix[pairs.out_b, pairs.in_b] = s, c
    return matrix


def rotated(x, spec, positions):
    """Return the float64 rotation of x (..., S, D) at positions (S,), as a float64 tensor."""
    x64, pairs = x.detach().double().numpy(), spec.pairs()
    p = (np.asarray(positions, dtype=np.float64) + spec.position_offset) * spec.position_scale
    angle = p[:, None] * (pairs.sign * pairs.inv_freq)
    cos, sin = np.cos(angle) * pairs.amplitude, np.sin(angle) * pairs.amplitude
    out, a, b = x64.copy(), x64[..., pairs.in_a], x64[..., pairs.in_b]
    out[..., pairs.out_a] = a * cos - b * sin
    out[..., pairs.out_b] = b * cos + a * sin
    return torch.from_numpy(out)


def half_ulp(reference, dtype):
    """Return half the distance between neighbours of ``dtype`` around each reference value."""
    bits, smallest = _FORMAT[dtype]
    _, exponent = np.frexp(np.abs(reference.numpy()))
    return torch.from_numpy(np.ldexp(0.5, np.maximum(exponent - 1, smallest) - bits))


def partner_sum(x, spec):
    """Return |x1| + |x2| of the pair that each output coordinate is made of, float64."""
    total = torch.zeros(x.shape, dtype=torch.float64)
    a = x.detach().double().abs()
    for row in spec.pairs():
        total[..., row.out_a] = total[..., row.out_b] = a[..., row.in_a] + a[..., row.in_b]
    return total


def assert_within_contract(y, x, spec, positions):
    """Assert |y - ref| <= half an ulp of the output dtype at ref + 2^-22 (|x1| + |x2|)."""
    assert y.dtype == x.dtype
    reference = rotated(x, spec, positions)
    bound = half_ulp(reference, y.dtype) + 2.0**-22 * partner_sum(x, spec)
    excess = (y.detach().double() - reference).abs() - bound
    assert excess.max().item() <= 0.0, f"over the bound by {excess.max().item():.3g}"
