"""Rotary position embeddings for PyTorch: right, fast and explainable.

``import ropewalk`` loads only the description of rotations (numpy); the other public names load
torch or transformers when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ropewalk._version import __version__
from ropewalk.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    RopeConfigWarning,
    RopewalkError,
    ShapeError,
)
from ropewalk.spec import (
    NTK,
    CustomFactors,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    PRope,
    Proportional,
    Resonance,
    RopeSpec,
    RopeUse,
    XPos,
    Yarn,
    rope_layers,
)

if TYPE_CHECKING:
    from ropewalk.attention import packed_softmax_attention, softmax_attention, windowed_attention
    from ropewalk.extension import attach
    from ropewalk.models import (
        RoFormerConfig,
        RoFormerForMaskedLM,
        RoFormerForSequenceClassification,
        RoFormerModel,
    )
    from ropewalk.rotary import (
        RotaryEmbedding,
        RotaryTable,
        available_kernels,
        convert_layout,
        positions_for_shard,
        positions_from_attention_mask,
        positions_from_cu_seqlens,
        rotate,
        use_kernel,
    )

# Floor of every name that is loaded on first use, with the extra that the floor needs.
_LAZY = {
    "packed_softmax_attention": ("attention", None),
    "windowed_attention": ("attention", None),
    "softmax_attention": ("attention", None),
    "RotaryEmbedding": ("rotary", None),
    "RotaryTable": ("rotary", None),
    "available_kernels": ("rotary", None),
    "convert_layout": ("rotary", None),
    "positions_for_shard": ("rotary", None),
    "positions_from_attention_mask": ("rotary", None),
    "positions_from_cu_seqlens": ("rotary", None),
    "rotate": ("rotary", None),
    "use_kernel": ("rotary", None),
    "attach": ("extension", "hf"),
    "RoFormerConfig": ("models", "hf"),
    "RoFormerForMaskedLM": ("models", "hf"),
    "RoFormerForSequenceClassification": ("models", "hf"),
    "RoFormerModel": ("models", "hf"),
}

__all__ = [
    "NTK",
    "CheckpointError",
    "ConfigError",
    "CustomFactors",
    "DataError",
    "DynamicNTK",
    "Linear",
    "Llama3",
    "LongRope",
    "PRope",
    "Proportional",
    "Resonance",
    "RoFormerConfig",
    "RoFormerForMaskedLM",
    "RoFormerForSequenceClassification",
    "RoFormerModel",
    "RopeConfigWarning",
    "RopeSpec",
    "RopeUse",
    "RopewalkError",
    "RotaryEmbedding",
    "RotaryTable",
    "ShapeError",
    "XPos",
    "Yarn",
    "__version__",
    "attach",
    "available_kernels",
    "convert_layout",
    "packed_softmax_attention",
    "positions_for_shard",
    "positions_from_attention_mask",
    "positions_from_cu_seqlens",
    "rope_layers",
    "rotate",
    "softmax_attention",
    "use_kernel",
    "windowed_attention",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its floor on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    floor, extra = _LAZY[name]
    try:
        value = getattr(importlib.import_module(f"ropewalk.{floor}"), name)
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").partition(".")[0] == "ropewalk":
            raise
        raise ImportError(
            f"ropewalk.{name} needs {error.name}: pip install 'ropewalk[{extra}]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
