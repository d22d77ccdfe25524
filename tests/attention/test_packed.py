"""Packed attention: each sequence as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.attention import packed, packed_softmax_attention, softmax_attention
from ropewalk.errors import ConfigError, ShapeError

LENGTHS = (3, 3, 7, 0, 1, 3, 7, 7)
TOTAL = sum(LENGTHS)
CU = torch.tensor([0, *LENGTHS]).cumsum(0)
# fp32: the same products in another order.
TOLERANCE = 1e-6


def inputs(heads: int = 4, kv_heads: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((TOTAL, heads, 8), (TOTAL, kv_heads, 8), (TOTAL, kv_heads, 6))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def alone(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Attend each sequence by itself."""
    parts = [
        softmax_attention(*(x.transpose(0, 1)[None] for x in part), **options)[0].transpose(0, 1)
        for part in zip(*(x.split(LENGTHS) for x in (query, key, value)), strict=True)
        if len(part[0])
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_packed_sequences_are_those_alone(kv_heads: int, scale: float | None) -> None:
    given = inputs(kv_heads=kv_heads)
    got = packed_softmax_attention(*given, cu_seqlens=CU, max_length=7, scale=scale)
    assert got.shape == (TOTAL, 4, 6)
    torch.testing.assert_close(got, alone(*given, scale=scale), rtol=0, atol=TOLERANCE)


def test_gradients_are_those_of_the_sequences_alone() -> None:
    weights = torch.randn(TOTAL, 4, 6, generator=torch.Generator().manual_seed(1))
    gradients = []
    for attend in (lambda *x: packed_softmax_attention(*x, cu_seqlens=CU.int()), alone):
        given = [x.requires_grad_() for x in inputs()]
        (attend(*given) * weights).sum().backward()
        gradients.append([x.grad for x in given])
    for got, want in zip(*gradients, strict=True):
        # fp32: sums over seven keys in another order.
        torch.testing.assert_close(got, want, rtol=0, atol=5e-6)


def test_strided_slices_of_one_buffer_are_taken_as_they_are() -> None:
    together = torch.randn(TOTAL, 3, 4, 8, generator=torch.Generator().manual_seed(2))
    parts = together.unbind(1)
    got = packed_softmax_attention(*parts, cu_seqlens=CU)
    want = packed_softmax_attention(*(x.contiguous() for x in parts), cu_seqlens=CU)
    assert torch.equal(got, want)


def test_neighbours_of_one_length_take_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[Any] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spy(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        shapes.append(tuple(query.shape))
        assert kwargs["attn_mask"] is None
        return real(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    packed_softmax_attention(*inputs(), cu_seqlens=CU)
    assert [(rows, length) for rows, _, length, _ in shapes] == [
        (2, 3), (1, 7), (1, 1), (1, 3), (2, 7),
    ]  # fmt: skip


def test_no_tokens_give_no_tokens() -> None:
    empty = [x[:0] for x in inputs()]
    for ends in ([0], [0, 0, 0]):
        got = packed_softmax_attention(*empty, cu_seqlens=torch.tensor(ends))
        assert got.shape == (0, 4, 6)


def test_half_precision_comes_back_in_its_dtype() -> None:
    given = inputs(dtype=torch.bfloat16)
    got = packed_softmax_attention(*given, cu_seqlens=CU)
    assert got.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits of averages of values around 1.
    torch.testing.assert_close(got.float(), alone(*inputs()), rtol=0, atol=0.05)


def test_all_weights_dropped_give_zeros() -> None:
    assert not packed_softmax_attention(*inputs(), cu_seqlens=CU, dropout_p=1.0).any()


def test_it_pays_on_a_cpu_and_not_where_no_kernel_serves() -> None:
    assert packed.packing_pays(torch.device("cpu"), torch.float32, 64, 0.1)
    assert not packed.packing_pays(torch.device("meta"), torch.float32, 64, 0.0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"cu_seqlens": torch.tensor([0, 5])}, ShapeError, "number of tokens, 31; got 0 to 5"),
        ({"cu_seqlens": torch.tensor([0, 9, 5, 31])}, ShapeError, "0 to 31, not rising"),
        ({"cu_seqlens": torch.tensor([0.0, 31.0])}, ShapeError, "int32 or int64 .*float32"),
        ({"cu_seqlens": [0, 31]}, ShapeError, "cu_seqlens must be a tensor; got list"),
        ({"max_length": 6}, ShapeError, "longest sequence, 7; got 6"),
        ({"max_length": -1}, ConfigError, "max_length .*-1"),
        ({"dropout_p": 2.0}, ConfigError, "dropout_p .*2.0"),
        ({"query": torch.zeros(1, TOTAL, 4, 8)}, ShapeError, r"\(tokens, heads, dim\).*1, 31, 4"),
        ({"key": torch.zeros(5, 4, 8)}, ShapeError, "the same tokens; got 31, 5 and 31"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    query, key, value = inputs()
    given: dict[str, Any] = {"query": query, "key": key, "value": value, "cu_seqlens": CU}
    given |= change
    with pytest.raises(error, match=message):
        packed_softmax_attention(given.pop("query"), given.pop("key"), given.pop("value"), **given)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gives_what_the_cpu_gives(dtype: torch.dtype) -> None:
    query, key, _ = inputs(dtype=dtype)
    lengths = CU.int().cuda()
    got = packed_softmax_attention(
        query.cuda(), key.cuda(), key.cuda(), cu_seqlens=lengths, max_length=7
    )
    want = packed_softmax_attention(query.float(), key.float(), key.float(), cu_seqlens=CU)
    # fp32 may run in TF32, with 10 bits; bfloat16 has 8.
    torch.testing.assert_close(got.float().cpu(), want, rtol=0, atol=0.03)
