"""Windows: the definition, the blocks of long rows, masks, gradients and memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk.attention import (
    packed_softmax_attention,
    softmax_attention,
    window_mask,
    windowed_attention,
)
from ropewalk.errors import ConfigError, ShapeError

# Rows longer than this are cut into blocks when the window is 2.
LONG = 150


def qkv(
    length: int, *, batch: int = 2, heads: int = 3, kv_heads: int = 3, dtype: Any = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(length)
    query, key, value = (
        torch.randn(batch, n, length, 8, generator=source, dtype=dtype)
        for n in (heads, kv_heads, kv_heads)
    )
    return query, key, value


def defined(query: Tensor, key: Tensor, value: Tensor, window: int, mask: Any = None) -> Tensor:
    """Every query on its own, over the slice of keys that its window names."""
    rows = []
    for place in range(query.shape[2]):
        low, high = max(0, place - window), place + window + 1
        scores = query[:, :, place, None] @ key[:, :, low:high].transpose(-1, -2) / 8**0.5
        if mask is not None:
            scores = scores.masked_fill(
                ~mask.expand(2, 3, -1, -1)[:, :, place, None, low:high], -9e9
            )
        rows.append(scores.softmax(-1) @ value[:, :, low:high])
    return torch.cat(rows, dim=2)


@pytest.mark.parametrize("length", [1, 2, 5, 100, 144, 145, 192, 200, 257])
@pytest.mark.parametrize("window", [0, 1, 2, 40])
def test_a_query_attends_to_the_keys_in_its_window_alone(length: int, window: int) -> None:
    query, key, value = qkv(length)
    found = windowed_attention(query, key, value, window=window)
    # float64: only the order of the sums differs
    torch.testing.assert_close(found, defined(query, key, value, window), atol=1e-12, rtol=0)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 400),
    window=st.integers(0, 70),
    kind=st.sampled_from(["none", "keys", "documents", "both", "square", "heads"]),
    seed=st.integers(0, 9),
)
def test_blocks_of_a_long_row_give_what_the_mask_over_all_keys_gives(
    length: int, window: int, kind: str, seed: int
) -> None:
    query, key, value = qkv(length)
    source = torch.Generator().manual_seed(seed)
    padding, mask = None, None
    if kind in ("keys", "both"):
        padding = torch.rand(2, length, generator=source) < 0.3
    if kind in ("documents", "both"):
        documents = torch.randint(3, (2, length), generator=source).sort(dim=1).values
        mask = documents[:, None, :, None] == documents[:, None, None, :]
    elif kind == "square":
        mask = torch.rand(length, length, generator=source) < 0.5
    elif kind == "heads":
        mask = torch.rand(3, 1, length, generator=source) < 0.5
    found = windowed_attention(
        query, key, value, window=window, key_padding_mask=padding, attn_mask=mask
    )
    near = (torch.arange(length) - torch.arange(length)[:, None]).abs() <= window
    expected = softmax_attention(
        query, key, value, key_padding_mask=padding, attn_mask=near if mask is None else near & mask
    )
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)  # float64, other sums


@pytest.mark.parametrize("padded", [False, True])
def test_gradients_of_blocks_are_those_of_the_mask_and_finite(padded: bool) -> None:
    tensors = qkv(LONG + 7)
    padding = None
    if padded:  # far more than the window, so that padded queries see nothing at all
        padding = torch.zeros(2, LONG + 7, dtype=torch.bool)
        padding[0, 60:] = True
    results = []
    for blocks in (True, False):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        if blocks:
            out = windowed_attention(*leaves, window=2, key_padding_mask=padding)
        else:
            out = softmax_attention(
                *leaves, attn_mask=window_mask(leaves[0], 2), key_padding_mask=padding
            )
        out.square().sum().backward()
        results.append([out, *[leaf.grad for leaf in leaves]])
    for ours, theirs in zip(*results, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)  # float64, other sums


@pytest.mark.parametrize("length", [40, LONG + 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_what_lies_outside_the_window_does_not_change_a_bit(length: int, dtype: Any) -> None:
    query, key, value = qkv(length, dtype=dtype)
    before = windowed_attention(query, key, value, window=3)
    place = length // 2
    key[:, :, place], value[:, :, place] = 50.0, -50.0
    after = windowed_attention(query, key, value, window=3)
    near = (torch.arange(length) - place).abs() <= 3
    assert torch.equal(before[:, :, ~near], after[:, :, ~near])
    changed = (before != after).any(-1)
    assert changed[:, :, near].all()


@pytest.mark.parametrize("window", [0, 2, 300])
def test_packed_sequences_see_windows_of_their_own(window: int) -> None:
    lengths = (3, LONG, LONG, 1, 40)
    ends = torch.tensor((0, *lengths)).cumsum(0)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in qkv(sum(lengths)))
    found = packed_softmax_attention(query, key, value, cu_seqlens=ends, window=window)
    alone = [
        windowed_attention(*(x.transpose(0, 1)[None] for x in parts), window=window)[0]
        for parts in zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
    ]
    expected = torch.cat([part.transpose(0, 1) for part in alone])
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)  # float64, other batches


def test_grouped_heads_share_their_keys() -> None:
    query, key, value = qkv(LONG, heads=6, kv_heads=2)
    found = windowed_attention(query, key, value, window=2)
    whole = [tensor.repeat_interleave(3, dim=1) for tensor in (key, value)]
    expected = windowed_attention(query, *whole, window=2)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)  # float64, other kernel


def test_a_window_over_the_whole_row_needs_no_mask() -> None:
    query, key, value = qkv(20)
    assert window_mask(query, 19) is None
    assert torch.equal(
        windowed_attention(query, key, value, window=19), softmax_attention(query, key, value)
    )


def test_an_empty_batch_is_possible() -> None:
    query, key, value = qkv(LONG, batch=0)
    assert windowed_attention(query, key, value, window=2).shape == (0, 3, LONG, 8)


def test_dropout_leaves_the_mean_of_what_it_drops() -> None:
    query, key, value = qkv(LONG, dtype=torch.float32)
    torch.manual_seed(0)
    value = torch.ones_like(value)
    mean = windowed_attention(query, key, value, window=2, dropout_p=0.5).mean()
    # 7,200 outputs of standard deviation below 1, of which 8 share their weights
    assert abs(float(mean) - 1.0) < 5 / 900**0.5


def test_one_graph_serves_every_length() -> None:
    class Module(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return windowed_attention(query, key, value, window=2)

    length = torch.export.Dim("length", min=4, max=4096)
    traced = torch.export.export(Module(), qkv(20), dynamic_shapes=({2: length},) * 3).module()
    for size in (10, LONG):
        inputs = qkv(size)
        expected = windowed_attention(*inputs, window=2)
        torch.testing.assert_close(traced(*inputs), expected, atol=1e-12, rtol=0)  # float64


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"window": -1}, ConfigError, "window must be an integer of at least 0; got -1"),
        ({"window": 1.5}, ConfigError, "window must be an integer of at least 0; got 1.5"),
        ({"key": torch.ones(2, 3, 4, 8), "value": torch.ones(2, 3, 4, 8)}, ConfigError,
         "window needs as many keys as queries, to count their distance; got 9 queries, 4 keys"),
        ({"attn_mask": torch.zeros(9, 9)}, ConfigError,
         "attn_mask must be bool beside a window; got torch.float32"),
        ({"query": torch.ones(9)}, ShapeError, "got query (9,)"),
        ({"key_padding_mask": torch.zeros(2, 5, dtype=torch.bool)}, ShapeError,
         "key_padding_mask must be bool of shape (2, 9)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(change: dict[str, Any], kind: type, message: str) -> None:
    arguments = dict(zip(("query", "key", "value"), qkv(9, dtype=torch.float32), strict=True))
    with pytest.raises(kind, match=re.escape(message)):
        windowed_attention(**(arguments | {"window": 2} | change))
