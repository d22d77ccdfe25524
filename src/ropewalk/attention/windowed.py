"""Softmax attention over a window around every query, in memory linear in the length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.attention.softmax import check_inputs, softmax_attention
from ropewalk.errors import ConfigError
from ropewalk.rotary.checks import readable
from ropewalk.spec.checks import integer

_SMALLEST_BLOCK = 64
"""Queries per block at least: with fewer the kernel's own overhead shows."""


def windowed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    r"""Attend with softmax weights to the keys at most ``window`` tokens away, on either side.

    .. math:: o_m = \sum_{|m - n| \le w} \operatorname{softmax}_n(s \, q_m^T k_n) \, v_n

    Long rows are cut into blocks of queries, each with its own stretch of keys, so that neither
    time nor memory grows with the square of the length. While a graph is traced the window is a
    mask over all keys instead. Distances count tokens of the row, whatever their positions are.

    Args:
        query: ``(batch, heads, seq, head_dim)``.
        key: ``(batch, kv_heads, seq, head_dim)``, as many tokens as queries.
        value: ``(batch, kv_heads, seq, value_dim)``.
        window: Largest distance, in tokens, that a query sees; 0 means itself alone.
        key_padding_mask: As in :func:`softmax_attention`.
        attn_mask: Bool, broadcastable to ``(batch, heads, seq, seq)``, True where the query may
            look if the window lets it.
        scale: As in :func:`softmax_attention`.
        dropout_p: As in :func:`softmax_attention`.

    Returns:
        ``(batch, heads, seq, value_dim)``, in the dtype of ``query``.

    Raises:
        ShapeError: Shapes or dtypes do not fit together.
        ConfigError: ``window`` is not a whole number from 0, ``attn_mask`` is not bool, or there
            are more or fewer keys than queries.

    References:
        Beltagy et al., 2020, arXiv:2004.05150, section 3.1; Warner et al., 2024, arXiv:2412.13663,
        section 2.1.2.

    Example:
        >>> x = torch.eye(3)[None, None]
        >>> windowed_attention(x, x, x, window=0).equal(x)
        True
    """
    window = integer("window", window, at_least=0)
    check_inputs(query, key, value, key_padding_mask, attn_mask)
    length = query.shape[2]
    if length != key.shape[2]:
        raise ConfigError(
            "window needs as many keys as queries, to count their distance; "
            f"got {length} queries, {key.shape[2]} keys"
        )
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        raise ConfigError(f"attn_mask must be bool beside a window; got {attn_mask.dtype}")
    block = max(2 * window, _SMALLEST_BLOCK)
    # Measured: below this the copies of keys cost what the saved scores do.
    if not readable(query) or length <= 2 * (block + 2 * window):
        return softmax_attention(
            query,
            key,
            value,
            key_padding_mask=key_padding_mask,
            attn_mask=window_mask(query, window, attn_mask),
            scale=scale,
            dropout_p=dropout_p,
        )
    if key_padding_mask is not None:
        real = ~key_padding_mask[:, None, None, :]
        attn_mask = real if attn_mask is None else attn_mask & real
    masks = _block_masks(attn_mask, length, block, window, query.device)
    attended = softmax_attention(
        _blocks(query, block, 0),
        _blocks(key, block, window),
        _blocks(value, block, window),
        attn_mask=masks.expand(query.shape[0], -1, -1, -1, -1).flatten(0, 1),
        scale=scale,
        dropout_p=dropout_p,
    )
    # (batch * blocks, heads, block, dim) back to (batch, heads, seq, dim)
    parts: Tensor = attended.unflatten(0, (query.shape[0], masks.shape[1])).movedim(1, 2)
    return parts.flatten(2, 3)[:, :, :length]


def window_mask(query: Tensor, window: int, attn_mask: Tensor | None = None) -> Tensor | None:
    """Return which keys each query may see within a window, over all of them.

    Args:
        query: ``(..., seq, head_dim)``; only its length and device matter.
        window: Largest distance in tokens.
        attn_mask: What else limits a query: bool, broadcastable to ``(batch, heads, seq, seq)``.

    Returns:
        Broadcastable to ``(batch, heads, seq, seq)``, bool, True where the query may look; None
        where it may look everywhere.

    Example:
        >>> window_mask(torch.zeros(3, 2), 1).int()
        tensor([[1, 1, 0],
                [1, 1, 1],
                [0, 1, 1]], dtype=torch.int32)
    """
    length = query.shape[-2]
    if readable(query) and window >= length - 1:
        return attn_mask
    places = torch.arange(length, device=query.device)
    near = (places - places[:, None]).abs() <= window
    return near if attn_mask is None else attn_mask & near


def _blocks(tokens: Tensor, block: int, window: int) -> Tensor:
    """Cut ``(batch, heads, seq, dim)`` into blocks, each with ``window`` more tokens per side.

    Returns:
        ``(batch * blocks, heads, block + 2 * window, dim)``; zeros stand beyond the ends.
    """
    missing = -tokens.shape[2] % block
    if window or missing:
        tokens = F.pad(tokens, (0, 0, window, window + missing))
    cut = tokens.unfold(2, block + 2 * window, block)  # (batch, heads, blocks, dim, size)
    return cut.permute(0, 2, 1, 4, 3).flatten(0, 1)


def _block_masks(
    mask: Tensor | None, length: int, block: int, window: int, device: torch.device
) -> Tensor:
    """Return ``(batch or 1, blocks, heads or 1, block, block + 2 * window)``, True where visible.

    Queries beyond the end, which only fill the last block, see everything: one that sees nothing
    would have no finite gradient in every kernel, and what they give is dropped.
    """
    missing, size = -length % block, block + 2 * window
    queries, keys = torch.arange(block, device=device), torch.arange(size, device=device) - window
    near = (keys - queries[:, None]).abs() <= window
    inside = F.pad(torch.ones(length, dtype=torch.bool, device=device), (window, window + missing))
    visible = near & inside.unfold(0, size, block)[:, None]  # (blocks, block, size)
    visible = visible[None, :, None]
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
        if mask.shape[-1] == 1:
            mask = mask.expand(*mask.shape[:-1], length)
        spread = F.pad(mask, (window, window + missing)).unfold(-1, size, block)
        if mask.shape[-2] == 1:  # (batch, heads, 1, blocks, size)
            spread = spread.movedim(3, 1)
        else:  # of every block of queries the stretch of keys that is its own
            rows = F.pad(spread, (0, 0, 0, 0, 0, missing)).unfold(2, block, block)
            spread = rows.diagonal(dim1=2, dim2=3).permute(0, 4, 1, 3, 2)
        visible = visible & spread
    if missing:
        beyond = torch.arange(length + missing, device=device).view(-1, block, 1) >= length
        visible = visible | beyond[None, :, None]
    return visible
