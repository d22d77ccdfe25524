"""Attention functions over rotated queries and keys."""

from ropewalk.attention.packed import packed_softmax_attention
from ropewalk.attention.softmax import softmax_attention
from ropewalk.attention.windowed import window_mask, windowed_attention

__all__ = [
    "packed_softmax_attention",
    "softmax_attention",
    "window_mask",
    "windowed_attention",
]
