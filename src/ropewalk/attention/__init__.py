"""Attention functions over rotated queries and keys."""

from ropewalk.attention.softmax import softmax_attention

__all__ = ["softmax_attention"]
