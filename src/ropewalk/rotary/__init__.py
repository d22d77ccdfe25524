"""Positions to cos and sin to a rotation, in torch."""

from ropewalk.rotary.kernels import available_kernels, use_kernel
from ropewalk.rotary.layout import convert_layout
from ropewalk.rotary.module import RotaryEmbedding
from ropewalk.rotary.operator import rotate
from ropewalk.rotary.positions import (
    positions_for_shard,
    positions_from_attention_mask,
    positions_from_cu_seqlens,
)
from ropewalk.rotary.tables import RotaryTable

__all__ = [
    "RotaryEmbedding",
    "RotaryTable",
    "available_kernels",
    "convert_layout",
    "positions_for_shard",
    "positions_from_attention_mask",
    "positions_from_cu_seqlens",
    "rotate",
    "use_kernel",
]
