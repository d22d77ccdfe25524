"""xPos: queries and keys with tables of their own, by absolute position."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from ropewalk import ConfigError, RopeSpec, RotaryEmbedding, XPos

SPEC = RopeSpec(8, "half", scaling=XPos(scale_base=64.0))


def rope_of(**changes):
    return RotaryEmbedding(SPEC.replace(**changes))


def vectors(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def by_hand(x, positions, role):
    """Return the rotation times zeta^(+-p/B), from the formula."""
    zeta = (np.arange(4) / 4 + 0.4) / 1.4
    plain = RotaryEmbedding(SPEC.replace(scaling=None)).rotate(x, positions)
    exponent = positions.double().numpy()[:, None] / 64.0 * (1 if role == "query" else -1)
    factor = torch.from_numpy(zeta**exponent)
    return plain * torch.cat([factor, factor], -1)


@pytest.mark.parametrize("role", ["query", "key"])
def test_queries_are_multiplied_and_keys_divided(role):
    x, positions = vectors(2, 5, 8), torch.tensor([-7, 0, 3, 64, 900])
    got = rope_of().rotate(x, positions, role=role)
    want = by_hand(x, positions, role)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


def test_scores_depend_on_the_distance_alone_and_decay():
    rope, (q, k) = rope_of(), vectors(2, 1, 8)

    def score(m, n):
        a = rope.rotate(q, torch.tensor([m]), role="query")
        return (a @ rope.rotate(k, torch.tensor([n]), role="key").T).item()

    # 900 positions are a gain of e^18 each way, rounded in float64
    assert score(905, 902) == pytest.approx(score(5, 2), rel=1e-12)
    torch.manual_seed(0)
    u = torch.ones(1, 8, dtype=torch.float64)
    near = (rope.rotate(u, torch.tensor([0]), role="query") @ u.T).item()
    far = (rope.rotate(u, torch.tensor([640]), role="query") @ u.T).item()
    assert abs(far) < near / 2


@pytest.mark.parametrize("length", [64, 1024, 4096])
def test_cached_keys_fit_queries_of_any_later_step(length):
    # lucidrains/rotary-embedding-torch 0.9.1 centres both by their own length: 79 % off at 4096
    rope = RotaryEmbedding(RopeSpec(8, "half", scaling=XPos()))
    q, k = vectors(2, length, 8)
    p = torch.arange(length)
    whole = rope.rotate(q, p, role="query")[-1] @ rope.rotate(k, p, role="key").T
    cached = torch.cat(
        [rope.rotate(k[:-1], p[:-1], role="key"), rope.rotate(k[-1:], p[-1:], role="key")]
    )
    step = rope.rotate(q[-1:], p[-1:], role="query") @ cached.T
    torch.testing.assert_close(step[0], whole, atol=1e-12, rtol=1e-12)


def test_forward_gives_each_its_own_table():
    rope, (q, k), p = rope_of(), vectors(2, 3, 5, 8), torch.arange(5)
    turned_q, turned_k = rope(q, k, p)
    assert torch.equal(turned_q, rope.rotate(q, p, role="query"))
    assert torch.equal(turned_k, rope.rotate(k, p, role="key"))
    assert torch.equal(turned_k, rope.rotate(k, table=rope.table(p, role="key", dtype=k.dtype)))


def test_inverse_and_shift_know_the_role():
    rope, x = rope_of(), vectors(2, 5, 8)
    here, there = torch.arange(5) + 300, torch.arange(5) + 1
    for role in ("query", "key"):
        y = rope.rotate(x, here, role=role)
        torch.testing.assert_close(rope.inverse(y, here, role=role), x, atol=1e-12, rtol=0)
    cached = rope.rotate(x, here, role="key")
    want = rope.rotate(x, there, role="key")
    torch.testing.assert_close(rope.shift(cached, here, there), want, atol=1e-11, rtol=0)
    x = vectors(2, 8).requires_grad_()
    assert gradcheck(lambda x: rope.shift(x, here[:2], there[:2]), (x,))


def test_position_offset_is_a_fixed_centre():
    rope, (q, k) = rope_of(), vectors(2, 6, 8)
    centred = rope_of(position_offset=-3.0)
    p = torch.arange(6)
    a = rope.rotate(q, p, role="query") @ rope.rotate(k, p, role="key").T
    b = centred.rotate(q, p, role="query") @ centred.rotate(k, p, role="key").T
    torch.testing.assert_close(a, b, atol=1e-13, rtol=1e-12)


def test_one_block_may_have_roles():
    left = RopeSpec(8, "half", rotary_dim=4, scaling=XPos())
    right = RopeSpec(8, "half", rotary_dim=4, rotary_offset=4)
    both = RotaryEmbedding(RopeSpec(8, "half", blocks=(left, right)))
    x, p = vectors(5, 8), torch.arange(5)
    want = RotaryEmbedding(left).rotate(RotaryEmbedding(right).rotate(x, p), p, role="key")
    assert torch.equal(both.rotate(x, p, role="key"), want)


def test_axes_scale_by_their_own_positions():
    rope = rope_of(axes=((0, 0), (1, 1), (0, 2), (1, 3)))
    x, p = vectors(5, 8), torch.stack([torch.arange(5), torch.arange(5) * 10])
    got = rope.rotate(x, p, role="query")
    rows, columns = by_hand(x, p[0], "query"), by_hand(x, p[1], "query")
    even = torch.tensor([0, 2, 4, 6])
    torch.testing.assert_close(got[:, even], rows[:, even], atol=1e-13, rtol=1e-12)
    torch.testing.assert_close(got[:, even + 1], columns[:, even + 1], atol=1e-13, rtol=1e-12)


def test_range_of_the_amplitude_is_as_documented():
    rope = RotaryEmbedding(RopeSpec(64, "half", scaling=XPos()))
    for sign in (1, -1):
        edge = torch.tensor([sign * 35_000])
        for role in ("query", "key"):
            table = rope.table(edge, role=role)
            assert table.cos.isfinite().all()
            with pytest.raises(ConfigError, match=r"amplitude of xPos fits float32"):
                rope.table(edge + sign * 2_000, role=role)
    assert rope.table(edge * 2, role="key", dtype=torch.float64).cos.isfinite().all()
    assert 4_500 / 512 * -math.log(0.4 / 1.4) == pytest.approx(math.log(65_504), abs=0.1)


def test_compile_and_vmap():
    torch._dynamo.reset()
    rope, (q, k), p = rope_of(), vectors(2, 2, 3, 5, 8), torch.arange(5)
    compiled = torch.compile(lambda q, k, p: rope(q, k, p), fullgraph=True, backend="eager")
    for got, want in zip(compiled(q, k, p), rope(q, k, p), strict=True):
        assert torch.equal(got, want)
    mapped = torch.func.vmap(lambda x, p: rope.rotate(x, p, role="key"))(k, torch.stack([p, p]))
    assert torch.equal(mapped, rope.rotate(k, p, role="key"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r, x, p: r.table(p), r"role must be 'query' or 'key'.*got None"),
        (lambda r, x, p: r.rotate(x, p), r"role must be 'query' or 'key'.*got None"),
        (lambda r, x, p: r.inverse(x, p), r"role must be 'query' or 'key'.*got None"),
        (lambda r, x, p: r.table(p, role="value"), r"role must be one of .*got 'value'"),
        (
            lambda r, x, p: r(x, x, table=r.table(p, role="key")),
            r"table must be left out, since queries and keys have different tables",
        ),
    ],
)
def test_missing_role_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call(rope_of(), vectors(5, 8), torch.arange(5))


def test_role_means_nothing_to_other_rules():
    rope, x, p = RotaryEmbedding(RopeSpec(8, "half")), vectors(5, 8), torch.arange(5)
    assert torch.equal(rope.rotate(x, p, role="query"), rope.rotate(x, p, role="key"))
