"""Rules that depend on the length of the row: one length per row, no memory, moving caches."""

import numpy as np
import pytest
import rules
import torch
from oracle import rotation_matrix
from torch.autograd import gradcheck

from ropewalk import (
    ConfigError,
    DynamicNTK,
    LongRope,
    RopeSpec,
    RotaryEmbedding,
    ShapeError,
    Yarn,
)

D = 2 * rules.PAIRS
ROWS = [rules.L, 3, 10 * rules.L, rules.L + 1, 7 * rules.L]
by_length = pytest.mark.parametrize("rule", rules.BY_LENGTH.values(), ids=rules.BY_LENGTH)
any_rule = pytest.mark.parametrize(
    "rule", {**rules.BY_LENGTH, **rules.STATIC}.values(), ids={**rules.BY_LENGTH, **rules.STATIC}
)


def rope_of(rule, **fields):
    return RotaryEmbedding(RopeSpec(D, "half", theta=100.0, scaling=rule, **fields))


def vectors(*shape, dtype=torch.float32, grad=False):
    x = torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(grad)


def equal_tables(a, b):
    return torch.equal(a.cos, b.cos) and torch.equal(a.sin, b.sin)


@any_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("angle_dtype", ["float64", "float32"])
def test_row_in_a_batch_is_the_row_alone(rule, dtype, angle_dtype):
    rope = rope_of(rule, angle_dtype=angle_dtype)
    positions = torch.arange(37) + torch.tensor(ROWS)[:, None]
    x = vectors(5, 2, 37, D)
    together = rope.table(positions, seq_len=torch.tensor(ROWS), dtype=dtype)
    rotated = rope.rotate(x, positions, seq_len=ROWS)
    back = rope.inverse(rotated, positions, seq_len=np.array(ROWS))
    for row, length in enumerate(ROWS):
        p = positions[row : row + 1]
        alone = RotaryEmbedding(rope.spec)  # fresh, and never told of the other rows
        table = alone.table(p, seq_len=length, dtype=dtype)
        assert torch.equal(together.cos[row], table.cos[0])
        assert torch.equal(together.sin[row], table.sin[0])
        one = x[row : row + 1]
        assert torch.equal(rotated[row], alone.rotate(one, p, seq_len=length)[0])
        assert torch.equal(back[row], alone.inverse(rotated[row : row + 1], p, seq_len=[length])[0])


@by_length
def test_rows_share_positions_where_these_have_no_batch(rule):
    rope, positions = rope_of(rule), torch.arange(11)
    table = rope.table(positions, seq_len=ROWS)
    assert table.cos.shape == (5, 11, rules.PAIRS)
    assert equal_tables(table, rope.table(positions.expand(5, -1), seq_len=ROWS))
    assert equal_tables(table, rope.table(positions[None], seq_len=ROWS))
    x = vectors(5, 11, 3, D)
    a = rope.rotate(x, positions, seq_len=ROWS, seq_dim=-3)
    b = rope.rotate(x.transpose(1, 2), table=table).transpose(1, 2)
    assert torch.equal(a, b)


@any_rule
def test_rotation_of_every_length_is_the_normal_form(rule):
    spec = RopeSpec(D, "interleaved", theta=100.0, scaling=rule, output_layout="half")
    x = vectors(2, 3, D, dtype=torch.float64)
    lengths = [5, 20 * rules.L]
    got = RotaryEmbedding(spec).rotate(x, torch.tensor([0, 4, 900]), seq_len=lengths)
    for row, length in enumerate(lengths):
        for column, position in enumerate((0, 4, 900)):
            R = torch.from_numpy(rotation_matrix(spec, position, length))
            # angles of float64 at 900
            torch.testing.assert_close(got[row, column], R @ x[row, column], atol=1e-12, rtol=0)


@by_length
def test_after_a_long_call_is_like_fresh(rule):
    # huggingface/transformers dynamic NTK: cos of the first 100 positions changes by up to 1.99
    positions = torch.arange(rules.L)
    used = rope_of(rule)
    for length in (10 * rules.L, rules.L + 1, 200 * rules.L):
        used.table(torch.arange(length), seq_len=length)
    fresh = rope_of(rule).table(positions, seq_len=rules.L)
    assert equal_tables(used.table(positions, seq_len=rules.L), fresh)


@any_rule
def test_one_token_at_a_time_is_the_whole_row_at_once(rule):
    rope, x = rope_of(rule), vectors(2, 3, 20, D)
    lengths, positions = [20, 5 * rules.L], torch.arange(20)
    whole = rope.rotate(x, positions, seq_len=lengths)
    for t in range(20):
        token = rope.rotate(x[..., t : t + 1, :], positions[t : t + 1], seq_len=lengths)
        assert torch.equal(token, whole[..., t : t + 1, :])


def test_frequencies_kept_on_a_device_are_bounded():
    rope = rope_of(rules.BY_LENGTH["dynamic"])
    want = [RotaryEmbedding(rope.spec).table(torch.tensor(9), seq_len=n) for n in range(1, 300)]
    for _ in range(2):
        for length in range(1, 300):
            table = rope.table(torch.tensor(9), seq_len=length)
            assert equal_tables(table, want[length - 1])
            assert len(rope._on_device) <= 64


def test_static_rules_keep_one_entry_whatever_the_length():
    rope = rope_of(rules.STATIC["yarn"])
    for length in range(1, 10):
        rope.table(torch.arange(3), seq_len=length)
        rope.table(torch.arange(3), seq_len=[length, 2])
    assert len(rope._on_device) == 1


def test_blocks_may_depend_on_the_length_each_for_itself():
    left = RopeSpec(12, "half", rotary_dim=4, scaling=DynamicNTK(2.0, 8))
    right = RopeSpec(12, "half", rotary_dim=4, rotary_offset=4, scaling=Yarn(4.0, 8))
    both = RotaryEmbedding(RopeSpec(12, "half", blocks=(left, right)))
    x, positions = vectors(2, 5, 12), torch.arange(5)
    got = both.rotate(x, positions, seq_len=[5, 90])
    want = RotaryEmbedding(left).rotate(
        RotaryEmbedding(right).rotate(x, positions), positions, seq_len=[5, 90]
    )
    assert torch.equal(got, want)
    torch.testing.assert_close(both.inverse(got, positions, seq_len=[5, 90]), x, atol=1e-6, rtol=0)


CHANGES = {
    "longrope_short_to_long": (rules.BY_LENGTH["longrope"], rules.L, rules.L + 1),
    "longrope_mscales": (rules.BY_LENGTH["longrope_mscales"], rules.L, 5 * rules.L),
    "dynamic_grows": (rules.BY_LENGTH["dynamic"], rules.L, 4 * rules.L),
    "dynamic_shrinks": (rules.BY_LENGTH["dynamic"], 4 * rules.L, 2 * rules.L),
}


@pytest.mark.parametrize(("rule", "before", "after"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_cached_keys_move_to_the_frequencies_of_another_length(rule, before, after, dtype):
    rope, k = rope_of(rule), vectors(1, 2, 30, D, dtype=torch.float64)
    here, there = torch.arange(30) + 20, torch.arange(30)
    cached = rope.rotate(k, here, seq_len=before).to(dtype)
    moved = rope.shift(cached, here, there, seq_len=after, from_seq_len=before)
    want = rope.rotate(k, there, seq_len=after)
    stale = rope.rotate(k, here, seq_len=before)
    assert (want - stale).abs().max() > 0.1
    # one rounding of the cache, one of the result, of values up to 4
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(moved.double(), want, atol=tolerance, rtol=0)


def test_each_row_of_a_cache_moves_by_its_own_lengths():
    rope, k = rope_of(rules.BY_LENGTH["longrope"]), vectors(3, 2, 9, D, dtype=torch.float64)
    p, before, after = torch.arange(9), [3, rules.L, 90], [rules.L + 1, rules.L, 91]
    cached = rope.rotate(k, p, seq_len=before)
    moved = rope.shift(cached, p, p, seq_len=after, from_seq_len=before)
    torch.testing.assert_close(moved, rope.rotate(k, p, seq_len=after), atol=1e-12, rtol=0)
    one_for_all = rope.shift(cached, p, p, seq_len=200, from_seq_len=before)
    torch.testing.assert_close(one_for_all, rope.rotate(k, p, seq_len=200), atol=1e-12, rtol=0)


def test_cached_keys_move_from_one_rule_to_another():
    yarn = RopeSpec(D, "half", theta=100.0, scaling=Yarn(4.0, rules.L))
    rope, k, p = (
        rope_of(rules.BY_LENGTH["longrope_mscales"]),
        vectors(9, D).double(),
        torch.arange(9),
    )
    cached = RotaryEmbedding(yarn).rotate(k, p)
    moved = rope.shift(cached, p, p, from_spec=yarn, seq_len=100)
    torch.testing.assert_close(moved, rope.rotate(k, p, seq_len=100), atol=1e-12, rtol=0)


@by_length
def test_gradients_pass_through_moving_and_undoing(rule):
    rope, k = rope_of(rule), vectors(2, 3, D, dtype=torch.float64, grad=True)
    p = torch.tensor([0.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda k, p: rope.inverse(k, p, seq_len=[70, 5]), (k, p))
    assert gradcheck(lambda k, p: rope.shift(k, p, p + 1, seq_len=[70, 5], from_seq_len=3), (k, p))


@any_rule
def test_inverse_needs_no_length_beside_a_table(rule):
    rope, x, p = rope_of(rule), vectors(2, 4, D), torch.arange(4)
    table = rope.table(p, seq_len=[5, 500])
    y = rope.rotate(x, table=table)
    # a rounding of cos and sin, one of the norm, one each way
    torch.testing.assert_close(rope.inverse(y, table=table), x, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda r, p: r.table(p), ConfigError, r"seq_len must be given for scaling=DynamicNTK"),
        (lambda r, p: r.table(p, seq_len=[3, 0]), ConfigError, r"seq_len must be .*got 0"),
        (lambda r, p: r.table(p, seq_len=2.0), ConfigError, r"seq_len must be .*got 2\.0"),
        (
            lambda r, p: r.table(p, seq_len=torch.tensor([2.0])),
            ConfigError,
            r"seq_len must be .*got 2\.0",
        ),
        (
            lambda r, p: r.table(p, seq_len=torch.ones(2, 1, dtype=torch.long)),
            ConfigError,
            r"seq_len must be .*got \[1\]",
        ),
        (
            lambda r, p: r.table(p.expand(3, -1), seq_len=[3, 4]),
            ShapeError,
            r"as many rows; got 2 lengths, position_ids \(3, 4\)",
        ),
        (
            lambda r, p: r.table(torch.tensor(3), seq_len=[3, 4]),
            ShapeError,
            r"needs positions \(seq,\) or \(batch, seq\) .*got 2 lengths, position_ids \(\)",
        ),
        (
            lambda r, p: r.rotate(vectors(3, 4, D), p, seq_len=[3, 4]),
            ShapeError,
            r"seq \(and batch\) sizes of x; got table \(2, 4, 8\), x \(3, 4, 16\)",
        ),
        (
            lambda r, p: r.shift(vectors(4, D), p, p, seq_len=4),
            ConfigError,
            r"seq_len must be given",
        ),
    ],
)
def test_length_that_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call(rope_of(DynamicNTK(2.0, 64)), torch.arange(4))
    assert "\n" not in str(caught.value)


def test_axes_and_rows_go_together():
    axes = tuple((j % 3, j) for j in range(rules.PAIRS))
    rope = rope_of(LongRope((1.0,) * 8, (2.0,) * 8, 64, 4.0), axes=axes)
    positions = torch.randint(0, 500, (3, 2, 5), generator=torch.Generator().manual_seed(0))
    together = rope.table(positions, seq_len=[5, 500])
    for row, length in enumerate((5, 500)):
        alone = rope.table(positions[:, row], seq_len=length)
        assert torch.equal(together.cos[row], alone.cos)
    shared = rope.table(positions[:, 0], seq_len=[5, 500])
    assert torch.equal(shared.cos[0], together.cos[0])
    with pytest.raises(ShapeError, match=r"got 4 lengths, position_ids \(3, 2, 5\)"):
        rope.table(positions, seq_len=[1, 2, 3, 4])


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [("dynamic", None), ("dynamic", True), ("longrope_mscales", None), ("yarn", True)],
)
def test_compile_has_no_breaks_for_any_length(name, dynamic):
    torch._dynamo.reset()
    rope = rope_of(rules.ALL[name])

    def turned(q, k, p, n):
        q, k = rope(q, k, p, seq_len=n)
        return q, rope.shift(k, p, p + 1, seq_len=n + 1, from_seq_len=n)

    compiled = torch.compile(turned, fullgraph=True, backend="eager", dynamic=dynamic)
    for length in (rules.L, 5 * rules.L, rules.L):
        q, k = vectors(2, 2, 3, 6, D)
        p = torch.arange(6) + length - 6
        for got, want in zip(compiled(q, k, p, length), turned(q, k, p, length), strict=True):
            assert torch.equal(got, want)


def test_compile_takes_one_length_per_row_from_the_host_only():
    torch._dynamo.reset()
    rope, x, p = rope_of(rules.BY_LENGTH["dynamic"]), vectors(2, 4, D), torch.arange(4)
    compiled = torch.compile(
        lambda n: rope.rotate(x, p, seq_len=n), fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled([5, 500]), rope.rotate(x, p, seq_len=[5, 500]))
    with pytest.raises(Exception, match=r"seq_len must be an int under torch\.compile"):
        compiled(torch.tensor([5, 500]))


def test_export_fixes_the_length():
    # pytorch/pytorch#163791: a branch on the length stops the export of Phi-3.5
    class Turn(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rope = rope_of(rules.BY_LENGTH["longrope"])

        def forward(self, x, position_ids):
            return self.rope.rotate(x, position_ids, seq_len=4 * rules.L)

    x, p = vectors(2, 6, D), torch.arange(6) + 3
    program = torch.export.export(Turn(), (x, p))
    assert torch.equal(program.module()(x, p + 5), Turn()(x, p + 5))


def test_vmap_is_a_loop():
    rope, x = rope_of(rules.BY_LENGTH["dynamic"]), vectors(4, 3, D)
    p = torch.arange(12).view(4, 3)
    got = torch.func.vmap(lambda x, p: rope.rotate(x, p, seq_len=500))(x, p)
    assert torch.equal(got, rope.rotate(x, p, seq_len=500))
