"""Cached = uncached, a row in a batch = the row alone, after a long call = fresh: to the last bit.

For every rule, with one axis, several axes and blocks; for tables and for rotated vectors.
huggingface/transformers#25104, QwenLM/Qwen#401, lucidrains/rotary-embedding-torch#11.
"""

import itertools

import pytest
import rules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk import LongRope, RopeSpec, RotaryEmbedding, Yarn

D, L = 2 * rules.PAIRS, rules.L
RULES = {"plain": None, **rules.ALL}
SOME = {"yarn": rules.ALL["yarn"], **rules.BY_LENGTH, **rules.XPOS}
LENGTHS = [L, 3, 7 * L, L + 1]
SEQ = 12


def axes_spec(rule):
    axes = tuple((j % 3, j) for j in range(rules.PAIRS))
    return RopeSpec(D, "half", theta=100.0, scaling=rule, axes=axes)


def block_spec(rule):
    """The rule in one block, one that depends on the length and one that does not in the others."""
    by_length = LongRope((1.0,) * 2, (3.0,) * 2, L, factor=2.0)
    return RopeSpec(
        D + 8,
        "interleaved",
        blocks=(
            RopeSpec(D + 8, "interleaved", rotary_dim=D, theta=100.0, scaling=rule),
            RopeSpec(D + 8, "half", rotary_dim=4, rotary_offset=D, scaling=by_length),
            RopeSpec(D + 8, "half", rotary_dim=4, rotary_offset=D + 4, scaling=Yarn(4.0, L)),
        ),
    )


SPECS = {
    **{name: RopeSpec(D, "half", theta=100.0, scaling=rule) for name, rule in RULES.items()},
    **{f"axes_{name}": axes_spec(rule) for name, rule in SOME.items()},
    **{f"blocks_{name}": block_spec(rule) for name, rule in SOME.items()},
}
any_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def roles(spec):
    return ("query", "key") if spec.has_roles else (None,)


def vectors(spec, *shape):
    return torch.randn(*shape, spec.head_dim, generator=torch.Generator().manual_seed(0))


def places(spec, *shape, start=0):
    """Positions of that shape, unlike on every axis."""
    one = torch.arange(start, start + shape[-1]).expand(shape)
    if spec.n_axes == 1:
        return one
    return torch.stack([one * (axis + 1) + axis for axis in range(spec.n_axes)])


def turned(rope, x, positions, lengths, role):
    """Return the table, and the vectors rotated by it and from positions, as plain tensors."""
    table = rope.table(positions, seq_len=lengths, role=role)
    by_table = rope.rotate(x, table=table)
    by_position = rope.rotate(x, positions, seq_len=lengths, role=role)
    assert torch.equal(by_table, by_position)
    return (*table, by_table)


@any_spec
def test_a_row_in_a_batch_is_the_row_alone(spec):
    rope, x, positions = RotaryEmbedding(spec), vectors(spec, 4, 2, SEQ), places(spec, 4, SEQ)
    for role in roles(spec):
        together = turned(rope, x, positions, LENGTHS, role)
        for row, length in enumerate(LENGTHS):
            alone = RotaryEmbedding(spec)
            cut = positions[..., row : row + 1, :]
            want = turned(alone, x[row : row + 1], cut, length, role)
            for got, lone in zip(together, want, strict=True):
                # a table that depends on no length may have no rows of its own
                assert torch.equal(got[row], lone[0])


@any_spec
def test_after_long_calls_is_like_fresh(spec):
    x, positions = vectors(spec, 1, 2, SEQ), places(spec, 1, SEQ)
    for role in roles(spec):
        fresh = turned(RotaryEmbedding(spec), x, positions, L, role)
        used = RotaryEmbedding(spec)
        for length in (10 * L, L + 1, 200 * L):
            # as far as the amplitude of xPos fits float32
            far = places(spec, 2, SEQ, start=min(length, 10 * L) - SEQ)
            turned(used, vectors(spec, 2, 2, SEQ), far, length, role)
            turned(used, vectors(spec, 2, 2, SEQ), far, [length, 2], role)
        for _ in range(2):  # the second time from what is kept on the device
            for got, want in zip(turned(used, x, positions, L, role), fresh, strict=True):
                assert torch.equal(got, want)


@any_spec
@settings(max_examples=3, deadline=None)
@given(cuts=st.sets(st.integers(1, SEQ - 1)))
def test_any_split_of_a_row_is_the_row_at_once(spec, cuts):
    # pytorch/executorch#2010, NVIDIA/TransformerEngine#536: off by one when decoding in chunks
    rope, x, positions = RotaryEmbedding(spec), vectors(spec, 4, 2, SEQ), places(spec, 4, SEQ)
    edges = [0, *sorted(cuts), SEQ]
    for role in roles(spec):
        whole = turned(rope, x, positions, LENGTHS, role)
        for start, end in itertools.pairwise(edges):
            part = turned(rope, x[..., start:end, :], positions[..., start:end], LENGTHS, role)
            for got, want in zip(part, whole, strict=True):
                assert torch.equal(got, want[..., start:end, :])
