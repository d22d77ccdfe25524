import contract
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_within_contract, rotated, rotation_matrix
from rotary_cases import assert_alike

from ropewalk import ConfigError, RopeSpec, RotaryEmbedding, ShapeError, rotate


@pytest.mark.parametrize("check", contract.CHECKS.values(), ids=contract.CHECKS.keys())
def test_rotation_keeps_its_contract(check):
    assert check() is None


def four_forms(x, position, theta=10_000.0):
    """The paper's four ways to write the interleaved rotation, in float64."""
    d = len(x)
    freqs = theta ** (-np.arange(0, d, 2) / d)
    angle = position * freqs
    pairs = x.reshape(-1, 2)
    as_complex = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * angle)  # eq. 12
    complex_form = np.stack([as_complex.real, as_complex.imag], -1).ravel()
    matrix = np.zeros((d, d))  # eq. 15
    for i, a in enumerate(angle):
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
            [np.cos(a), -np.sin(a)],
            [np.sin(a), np.cos(a)],
        ]
    cos, sin = np.repeat(np.cos(angle), 2), np.repeat(np.sin(angle), 2)  # eq. 34
    crossed = np.stack([-pairs[:, 1], pairs[:, 0]], -1).ravel()
    two_d = [
        np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) @ pair
        for a, pair in zip(angle, pairs, strict=True)
    ]
    return complex_form, matrix @ x, x * cos + crossed * sin, np.concatenate(two_d)


@given(st.integers(1, 16), st.floats(-1e4, 1e4), st.integers(0, 2**32 - 1))
def test_the_four_forms_of_the_paper_are_one(pairs, position, seed):
    x = np.random.default_rng(seed).standard_normal(2 * pairs)
    rope = RotaryEmbedding(RopeSpec(2 * pairs, "interleaved"))
    y = rope.rotate(torch.from_numpy(x), torch.tensor(position, dtype=torch.float64))
    for form in four_forms(x, position):
        # float64 angles up to 1e4 are known to 2e-12
        np.testing.assert_allclose(y.numpy(), form, atol=2e-11)
    assert np.linalg.norm(y.numpy()) == pytest.approx(np.linalg.norm(x), rel=1e-13)


@settings(max_examples=60)
@given(
    layout=st.sampled_from(["interleaved", "half"]),
    output=st.sampled_from([None, "interleaved", "half"]),
    pairs=st.integers(1, 9),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    lead=st.lists(st.integers(1, 3), max_size=3),
    seq=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_every_shape_and_layout_follows_the_normal_form(
    layout, output, pairs, before, after, lead, seq, dtype, seed
):
    spec = RopeSpec(
        2 * pairs + before + after,
        layout,
        rotary_dim=2 * pairs,
        rotary_offset=before,
        output_layout=output,
    )
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*lead, seq, spec.head_dim, generator=generator).to(dtype)
    positions = torch.randint(-5000, 100_000, (seq,), generator=generator)
    y = RotaryEmbedding(spec).rotate(x, positions)
    assert_within_contract(y, x, spec, positions)


def test_scores_depend_on_the_relative_position_only_in_the_papers_equation_16():
    rope = RotaryEmbedding(RopeSpec(8, "interleaved"))
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    at = lambda x, p: rope.rotate(x, torch.tensor(p))  # noqa: E731
    # q_m . k_n = q . R_{n-m} k
    torch.testing.assert_close(at(q, 7) @ at(k, 3), q @ at(k, -4), atol=1e-13, rtol=0)


def test_rotation_fits_linear_attention():
    # eq. 19: features are rotated after the feature map, in the numerator only
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 6, 8, generator=generator, dtype=torch.float64)
    v = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    rope = RotaryEmbedding(RopeSpec(8, "interleaved"))
    fq, fk = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    rq, rk = rope(fq, fk, torch.arange(6))
    state = rk.T @ v  # the sum over keys is taken once, before any query is known
    linear = (rq @ state) / (fq @ fk.sum(0))[:, None]
    scores = torch.stack(
        [
            torch.stack([fq[m] @ rope.rotate(fk[n], torch.tensor(n - m)) for n in range(6)])
            for m in range(6)
        ]
    )
    quadratic = scores @ v / (fq @ fk.T).sum(-1, keepdim=True)
    torch.testing.assert_close(linear, quadratic, atol=1e-13, rtol=0)


def test_head_and_sequence_may_be_swapped():
    rope = RotaryEmbedding(RopeSpec(8, "half"))
    x = torch.randn(2, 5, 3, 8)
    positions = torch.randint(0, 100, (2, 5))
    rotated_bshd = rope.rotate(x, positions, seq_dim=-3)
    rotated_bhsd = rope.rotate(x.transpose(1, 2), positions).transpose(1, 2)
    assert torch.equal(rotated_bshd, rotated_bhsd)
    packed = rope.rotate(x[0], positions[0], seq_dim=-3)
    assert torch.equal(packed, rotated_bshd[0])
    assert torch.equal(rope.rotate(x[0], positions[0], seq_dim=0), packed)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.transpose(1, 2),
        lambda x: x.permute(2, 0, 1, 3),
        lambda x: x[:, :, ::2],
        lambda x: x[..., 4:],
        lambda x: x[:1, :1],
        lambda x: x[:, :, :1].expand(2, 4, 5, 16),
        lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    ],
)
def test_any_strides_give_the_same_values_and_dense_ones_are_kept(view):
    x = view(torch.randn(2, 4, 6, 16, generator=torch.Generator().manual_seed(0)))
    rope = RotaryEmbedding(RopeSpec(x.shape[-1], "interleaved"))
    y = rope.rotate(x, torch.arange(x.shape[-2]))
    assert_alike(y, rope.rotate(x.contiguous(), torch.arange(x.shape[-2])))
    dense = 0 not in x.stride() and x.stride(-1) == 1
    if dense:
        want = torch.empty_like(x).stride()
        # the stride of a dimension of size 1 means nothing
        assert all(a == b or n == 1 for a, b, n in zip(y.stride(), want, y.shape, strict=True))
    else:
        assert y.is_contiguous()


def test_rows_with_their_own_positions_are_rows_rotated_alone():
    rope = RotaryEmbedding(RopeSpec(8, "half"))
    x = torch.randn(3, 2, 4, 8)
    positions = torch.tensor([[0, 1, 2, 3], [9, 8, 7, 6], [5, 5, 0, 100]])
    y = rope.rotate(x, positions)
    for row in range(3):
        assert torch.equal(y[row], rope.rotate(x[row], positions[row]))


def test_empty_sequences_and_batches_pass():
    rope = RotaryEmbedding(RopeSpec(8, "half"))
    assert rope.rotate(torch.empty(2, 3, 0, 8), torch.arange(0)).shape == (2, 3, 0, 8)
    assert rope.rotate(torch.empty(0, 3, 2, 8), torch.arange(2)).shape == (0, 3, 2, 8)


def test_inverse_of_the_function_is_its_transpose():
    cos, sin = torch.randn(2, 5, 3, dtype=torch.float64)
    x, g = torch.randn(2, 5, 8, dtype=torch.float64)
    options = {"layout": "interleaved", "output_layout": "half", "rotary_offset": 1}
    y = rotate(x, cos, sin, **options)
    back = rotate(g, cos, sin, inverse=True, **options)
    # <g, R x> = <R^T g, x>
    torch.testing.assert_close((g * y).sum(), (back * x).sum(), atol=1e-13, rtol=0)


def test_output_argument_is_written_and_returned_and_may_be_the_input():
    rope = RotaryEmbedding(RopeSpec(8, "half"))
    q, k = torch.randn(2, 2, 3, 5, 8)
    want_q, want_k = rope(q, k, torch.arange(5))
    out = (torch.empty_like(q), torch.empty_like(k))
    got = rope(q, k, torch.arange(5), out=out)
    assert all(a is b for a, b in zip(got, out, strict=True))
    assert torch.equal(out[0], want_q)
    in_place = rope(q, k, torch.arange(5), out=(q, k))
    assert in_place[0] is q
    assert torch.equal(q, want_q)
    assert torch.equal(k, want_k)


def test_output_argument_under_grad_is_refused():
    rope = RotaryEmbedding(RopeSpec(8, "half"))
    x = torch.randn(5, 8, requires_grad=True)
    with pytest.raises(ConfigError, match=r"out must not be given while gradients are recorded"):
        rope.rotate(x, torch.arange(5), out=torch.empty(5, 8))
    with pytest.raises(ConfigError, match=r"out must not be given while gradients are recorded"):
        rope.rotate(torch.randn(5, 8), torch.arange(5), out=x)
    with torch.no_grad():
        assert rope.rotate(x, torch.arange(5), out=torch.empty(5, 8)).shape == (5, 8)


cos = torch.ones(5, 4)
x58 = torch.randn(2, 3, 5, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rotate(x58, cos, cos, layout="neox"), r"layout must be one of .*got 'neox'"),
        (
            lambda: rotate(x58, cos, cos, layout="half", output_layout=""),
            r"output_layout must be one of .*got ''",
        ),
        (
            lambda: rotate(x58, cos, cos, layout="half", rotary_offset=-1),
            r"rotary_offset must be .*got -1",
        ),
        (
            lambda: rotate(x58, cos, cos, layout="half", rotary_offset=1),
            r"got rotary_offset=1, cos \(5, 4\), x \(2, 3, 5, 8\)",
        ),
        (
            lambda: rotate(x58.long(), cos, cos, layout="half"),
            r"x must be float64.*got torch.int64",
        ),
        (lambda: rotate(torch.tensor(1.0), cos, cos, layout="half"), r"got a 0-d tensor"),
        (lambda: rotate(x58, cos, cos[:3], layout="half"), r"one shape .*\(5, 4\) and \(3, 4\)"),
        (
            lambda: rotate(x58, cos.bfloat16(), cos.bfloat16(), layout="half"),
            r"cos must be float32 or float64.*got torch.bfloat16",
        ),
        (
            lambda: rotate(x58, cos[:1], cos[:1], layout="half"),
            r"table \(1, 4\), x \(2, 3, 5, 8\), seq_dim=-2",
        ),
        (
            lambda: rotate(x58, cos.expand(3, 5, 4), cos.expand(3, 5, 4), layout="half"),
            r"table \(3, 5, 4\), x \(2, 3, 5, 8\)",
        ),
        (
            lambda: rotate(x58[0, 0], cos[None], cos[None], layout="half"),
            r"table \(1, 5, 4\), x \(5, 8\)",
        ),
        (
            lambda: rotate(x58.transpose(1, 2), cos, cos, layout="half"),
            r"table \(5, 4\), x \(2, 5, 3, 8\).*pass seq_dim=-3",
        ),
        (lambda: rotate(x58, cos, cos, layout="half", seq_dim=-1), r"got seq_dim=-1"),
        (lambda: rotate(x58, cos, cos, layout="half", seq_dim=4), r"got seq_dim=4"),
        (
            lambda: rotate(x58, cos, cos, layout="half", out=torch.empty(5, 8)),
            r"out must have shape.*\(2, 3, 5, 8\).*got \(5, 8\)",
        ),
        (
            lambda: rotate(x58, cos, cos, layout="half", out=x58.half()),
            r"out must have .*got \(2, 3, 5, 8\) torch.float16",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(call, message):
    with pytest.raises((ShapeError, ConfigError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_oracle_itself_agrees_with_the_golden_vectors():
    for case in contract.GOLDEN["cases"]:
        spec = RopeSpec(case["head_dim"], case["layout"], theta=case["theta"])
        y = rotated(torch.tensor([case["x"]], dtype=torch.float64), spec, [case["position"]])
        np.testing.assert_allclose(y[0].numpy(), case["y"], atol=2e-11)
        R = rotation_matrix(spec, case["position"])
        np.testing.assert_allclose(R @ np.array(case["x"]), case["y"], atol=2e-11)
