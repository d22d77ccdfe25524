"""Softmax attention on torch's fused kernels, with the masks they are fastest without."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.errors import ConfigError, ShapeError
from ropewalk.rotary.checks import readable, tensors


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    r"""Attend with softmax weights.

    .. math:: \mathrm{softmax}(s \, Q K^T) V, \qquad s = d^{-1/2}

    A query that may see no key at all (its row is all padding) gets zeros, never NaN. A padding
    mask that marks nothing is dropped in eager mode, so that the kernel runs without a mask.

    Args:
        query: ``(batch, heads, seq, head_dim)``.
        key: ``(batch, kv_heads, kv_seq, head_dim)``; ``kv_heads`` divides ``heads``.
        value: ``(batch, kv_heads, kv_seq, value_dim)``.
        key_padding_mask: ``(batch, kv_seq)``, bool, True where the key is padding, as in
            ``torch.nn.MultiheadAttention``. (From a transformers mask: ``attention_mask == 0``.)
        attn_mask: Broadcastable to ``(batch, heads, seq, kv_seq)``: bool, True where the query may
            look; or floating, added to the scores.
        is_causal: A query sees no later key. With fewer queries than keys the queries are the last
            positions, as in decoding with a cache.
        scale: Factor on the scores; None means ``head_dim ** -0.5``.
        dropout_p: Probability of dropping a weight, 0 to 1.

    Returns:
        ``(batch, heads, seq, value_dim)``, in the dtype of ``query``.

    Raises:
        ShapeError: Shapes or dtypes do not fit together.
        ConfigError: ``dropout_p`` is not a probability, ``scale`` is not finite, or there are more
            causal queries than keys.

    References:
        Vaswani et al., 2017, arXiv:1706.03762, equation 1.

    Example:
        >>> x = torch.ones(1, 2, 3, 4)
        >>> softmax_attention(x, x, x, is_causal=True).shape
        torch.Size([1, 2, 3, 4])
    """
    check_inputs(query, key, value, key_padding_mask, attn_mask)
    _check_number("dropout_p", dropout_p, 0.0, 1.0)
    if scale is not None:
        _check_number("scale", scale, -sys.float_info.max, sys.float_info.max)
    # Reading a mask costs a device sync, and is impossible while tracing: there the mask stays.
    if key_padding_mask is not None and readable(key_padding_mask) and not key_padding_mask.any():
        key_padding_mask = None
    mask = attn_mask[None] if attn_mask is not None and attn_mask.ndim == 1 else attn_mask
    if key_padding_mask is not None:
        mask = _both(mask, ~key_padding_mask[:, None, None, :])
    if is_causal and (mask is not None or query.shape[-2] != key.shape[-2]):
        mask = _both(mask, causal_mask(query.shape[-2], key.shape[-2], device=query.device))
        is_causal = False
    grouped = False
    if query.shape[1] != key.shape[1]:  # branching makes a plain bool of symbolic sizes
        grouped = True
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=grouped,
    )


def causal_mask(seq: int, kv_seq: int, *, device: torch.device | None = None) -> Tensor:
    """Return which keys each query may see when the queries are the last ``seq`` positions.

    Args:
        seq: Number of queries.
        kv_seq: Number of keys, at least ``seq``.
        device: Where the mask lives.

    Returns:
        ``(seq, kv_seq)``, bool, True where the query may look.

    Raises:
        ConfigError: More queries than keys.

    Example:
        >>> causal_mask(2, 3)
        tensor([[ True,  True, False],
                [ True,  True,  True]])
    """
    if seq > kv_seq:
        raise ConfigError(
            f"is_causal needs at least as many keys as queries; got {seq} queries, {kv_seq} keys"
        )
    queries = torch.arange(kv_seq - seq, kv_seq, device=device)
    return torch.arange(kv_seq, device=device) <= queries[:, None]


def _both(mask: Tensor | None, allowed: Tensor) -> Tensor:
    """Return a mask that lets through only what ``mask`` and the bool mask ``allowed`` do."""
    if mask is None:
        return allowed
    if mask.dtype == torch.bool:
        return mask & allowed
    return mask.masked_fill(~allowed, -torch.inf)


def _check_number(name: str, number: object, low: float, high: float) -> None:
    """Refuse what is no number from ``low`` to ``high``; compared, so that it can be symbolic."""
    if not isinstance(number, int | float) or not low <= number <= high:
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}; got {number!r}")


def check_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> None:
    """Refuse tensors that do not fit together.

    Args:
        query: As in :func:`softmax_attention`, like the others.
        key: See there.
        value: See there.
        key_padding_mask: See there.
        attn_mask: See there.

    Raises:
        ShapeError: It names what does not fit.
    """
    tensors(query=query, key=key, value=value)
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ShapeError(f"query, key and value must be (batch, heads, seq, dim); got {shapes}")
    fits = (
        key.shape[:3] == value.shape[:3]
        and query.shape[0] == key.shape[0]
        and query.shape[3] == key.shape[3]
        and key.shape[1] > 0
        and query.shape[1] % key.shape[1] == 0
    )
    if not fits:
        raise ShapeError(
            "query, key and value must share batch and head_dim, key and value also heads and seq, "
            f"and kv_heads must divide heads; got {shapes}"
        )
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise ShapeError(
            "query, key and value must have one floating dtype; got "
            f"{query.dtype}, {key.dtype}, {value.dtype}"
        )
    if key_padding_mask is not None:
        tensors(key_padding_mask=key_padding_mask)
        expected = (key.shape[0], key.shape[2])
        if key_padding_mask.dtype != torch.bool or tuple(key_padding_mask.shape) != expected:
            raise ShapeError(
                f"key_padding_mask must be bool of shape {expected}, True at padding; got "
                f"{key_padding_mask.dtype} {tuple(key_padding_mask.shape)}; from a mask of ones "
                "at real tokens pass (mask == 0)"
            )
    if attn_mask is not None:
        tensors(attn_mask=attn_mask)
        if attn_mask.dtype not in (torch.bool, query.dtype):
            raise ShapeError(
                f"attn_mask must be bool, or {query.dtype} as the query; got {attn_mask.dtype}"
            )
        full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        sizes = zip(reversed(attn_mask.shape), reversed(full), strict=False)
        if not 1 <= attn_mask.ndim <= 4 or any(size not in (1, whole) for size, whole in sizes):
            raise ShapeError(
                f"attn_mask must be broadcastable to (batch, heads, seq, kv_seq) = {full}; "
                f"got {tuple(attn_mask.shape)}"
            )
