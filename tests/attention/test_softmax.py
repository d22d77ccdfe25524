import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import ConfigError, ShapeError, softmax_attention
from ropewalk.attention.softmax import causal_mask


def naive(q, k, v, allowed=None, bias=None, scale=None):
    """Attention written from the formula, in the dtype of q."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ v


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def qkv(b=2, h=4, kv=4, s=5, t=5, d=8, dtype=torch.float64):
    return draw(b, h, s, d, dtype=dtype), draw(b, kv, t, d, seed=1), draw(b, kv, t, d + 2, seed=2)


@given(
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.integers(1, 6),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "bool", "float"]),
    st.sampled_from([None, 0.5]),
)
def test_every_combination_of_masks_is_the_formula(heads, s, more, causal, padded, extra, scale):
    q, k, v = qkv(h=heads[0], kv=heads[1], s=s, t=s + more)
    t = s + more
    padding = torch.zeros(2, t, dtype=torch.bool)
    if padded:
        padding[0, : t // 2] = True
        padding[1, -1:] = True
    allowed = ~padding[:, None, None, :].expand(2, 1, s, t)
    if causal:
        allowed = allowed & (torch.arange(t) <= torch.arange(t - s, t)[:, None])
    mask = bias = None
    if extra == "bool":
        mask = torch.arange(s * t).view(s, t) % 3 > 0
        allowed = allowed & mask
    elif extra == "float":
        mask = bias = draw(2, heads[0], s, t, seed=3)
    got = softmax_attention(
        q, k, v, key_padding_mask=padding, attn_mask=mask, is_causal=causal, scale=scale
    )
    # float64 softmax of a few keys
    torch.testing.assert_close(got, naive(q, k, v, allowed, bias, scale), atol=1e-12, rtol=0)


def test_padding_changes_nothing_for_real_tokens_and_gradients():
    q, k, v = (t.requires_grad_() for t in qkv(b=1))
    want = softmax_attention(q, k, v)
    want_grads = torch.autograd.grad(want.square().sum(), (q, k, v))
    pad = lambda t: torch.cat([t, draw(1, 4, 3, t.shape[-1], seed=9)], 2)  # noqa: E731
    mask = torch.tensor([[False] * 5 + [True] * 3])
    got = softmax_attention(pad(q), pad(k), pad(v), key_padding_mask=mask)[:, :, :5]
    torch.testing.assert_close(got, want, atol=1e-14, rtol=0)
    for a, b in zip(torch.autograd.grad(got.square().sum(), (q, k, v)), want_grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-13, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_row_of_nothing_but_padding_is_zero_with_finite_gradients(dtype, causal):
    q, k, v = (draw(2, 2, 4, 8, seed=i).to(dtype).requires_grad_() for i in range(3))
    mask = torch.tensor([[False] * 4, [True] * 4])
    out = softmax_attention(q, k, v, key_padding_mask=mask, is_causal=causal)
    assert out.dtype == dtype
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_mask_that_marks_nothing_never_reaches_the_kernel(monkeypatch):
    import torch.nn.functional as F

    seen = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *args, **kw: seen.append((kw["attn_mask"], kw["is_causal"])) or real(*args, **kw),
    )
    q, k, v = qkv()
    softmax_attention(q, k, v, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool), is_causal=True)
    assert seen == [(None, True)]


def test_decoding_step_sees_all_earlier_keys():
    q, k, v = qkv()
    full = softmax_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(
        softmax_attention(q[:, :, -1:], k, v, is_causal=True), full[:, :, -1:], atol=1e-14, rtol=0
    )


def test_the_future_does_not_change_the_past():
    q, k, v = qkv()
    before = softmax_attention(q, k, v, is_causal=True)
    k[:, :, 3:], v[:, :, 3:] = 100.0, -100.0
    assert torch.equal(softmax_attention(q, k, v, is_causal=True)[:, :, :3], before[:, :, :3])


def test_compile_keeps_the_mask_and_has_no_breaks():
    compiled = torch.compile(softmax_attention, fullgraph=True, backend="eager", dynamic=True)
    for s in (4, 7):
        q, k, v = qkv(s=s, t=s)
        mask = torch.zeros(2, s, dtype=torch.bool)
        mask[0, -1] = True
        got = compiled(q, k, v, key_padding_mask=mask)
        torch.testing.assert_close(
            got, softmax_attention(q, k, v, key_padding_mask=mask), atol=1e-14, rtol=0
        )


def test_one_dimensional_mask_is_the_same_for_every_query():
    q, k, v = qkv()
    mask = torch.tensor([True, True, False, True, True])
    got = softmax_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(got, naive(q, k, v, mask), atol=1e-14, rtol=0)


def test_padding_masks_work_under_vmap_and_without_values():
    q, k, v = qkv()
    masks = torch.zeros(3, 2, 5, dtype=torch.bool)
    masks[1:, 0, -1] = True
    got = torch.func.vmap(lambda m: softmax_attention(q, k, v, key_padding_mask=m))(masks)
    want = torch.stack([softmax_attention(q, k, v, key_padding_mask=m) for m in masks])
    torch.testing.assert_close(got, want, atol=1e-14, rtol=0)
    q, k, v, mask = (t.to("meta") for t in (q, k, v, masks[0]))
    assert softmax_attention(q, k, v, key_padding_mask=mask).shape == (2, 4, 5, 10)


def test_causal_mask_aligns_at_the_end():
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True] * 4]


q, k, v = qkv()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_attention(q[0], k, v), r"got query \(4, 5, 8\)"),
        (lambda: softmax_attention(q, k, v[:, :, :3]), r"value \(2, 4, 3, 10\)"),
        (lambda: softmax_attention(q, k[:, :3], v[:, :3]), r"kv_heads must divide heads"),
        (lambda: softmax_attention(q, k.float(), v.float()), r"torch.float64, torch.float32"),
        (
            lambda: softmax_attention(q, k, v, key_padding_mask=torch.ones(2, 5).long()),
            r"key_padding_mask must be bool of shape \(2, 5\).*got torch.int64.*mask == 0",
        ),
        (
            lambda: softmax_attention(q, k, v, key_padding_mask=torch.ones(2, 4) > 0),
            r"key_padding_mask must be .*got torch.bool \(2, 4\)",
        ),
        (
            lambda: softmax_attention(q, k, v, attn_mask=torch.ones(5, 5).long()),
            r"attn_mask must be bool, or torch.float64 .*got torch.int64",
        ),
        (
            lambda: softmax_attention(q, k, v, attn_mask=torch.ones(5, 5)),
            r"attn_mask must be bool, or torch.float64 .*got torch.float32",
        ),
        (
            lambda: softmax_attention(q, k, v, attn_mask=torch.ones(4, 5) > 0),
            r"broadcastable to .*\(2, 4, 5, 5\); got \(4, 5\)",
        ),
        (
            lambda: softmax_attention(q, k, v, attn_mask=torch.ones(1, 1, 1, 5, 5) > 0),
            r"broadcastable to .*got \(1, 1, 1, 5, 5\)",
        ),
        (lambda: softmax_attention(q, k, [v]), r"value must be a tensor; got list"),
        (lambda: softmax_attention(q, k, v, attn_mask=[1]), r"attn_mask must be a tensor"),
        (lambda: softmax_attention(q.long(), k.long(), v.long()), r"one floating dtype"),
        (lambda: softmax_attention(q, k, v, scale=float("nan")), r"scale must be .*got nan"),
        (lambda: softmax_attention(q, k, v, dropout_p="a"), r"dropout_p must be .*got 'a'"),
        (lambda: softmax_attention(q, k, v, dropout_p=1.5), r"dropout_p must be .*got 1.5"),
        (
            lambda: softmax_attention(q, k[:, :, :3], v[:, :, :3], is_causal=True),
            r"got 5 queries, 3 keys",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(call, message):
    with pytest.raises((ShapeError, ConfigError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
