"""Families whose layer types have rotations of their own."""

from __future__ import annotations

from ropewalk.spec.family import Family, Indexer

_FULL, _SLIDING = "full_attention", "sliding_attention"
_LOCAL = {_FULL: "rope_theta", _SLIDING: "rope_local_base_freq"}


def _two(full: float, sliding: float) -> dict[str, float]:
    return {_FULL: full, _SLIDING: sliding}


def _gemma3(head_dim: int) -> Family:
    return Family(
        "C1",
        _two(1e6, 1e4),
        head_dim,
        theta_keys=_LOCAL,
        scaled=(_FULL,),
        old_name_only=True,
        every=("sliding_window_pattern", 6),
    )


def _gemma4() -> Family:
    return Family(
        "C7",
        _two(1e6, 1e4),
        256,
        partial=_two(0.25, 1.0),
        keys={"head_dim/full_attention": "global_head_dim"},
        defaults={
            _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25},
            _SLIDING: {"rope_type": "default"},
        },
    )


def _modernbert() -> Family:
    return Family(
        "C3",
        _two(1.6e5, 1e4),
        theta_keys={_FULL: "global_rope_theta", _SLIDING: "local_rope_theta"},
        scaled=(_FULL, _SLIDING),
        old_name_only=True,
        every=("global_attn_every_n_layers", 3),
    )


LAYERED: dict[str, Family] = {
    "gemma3_text": _gemma3(256),
    "gemma3n_text": _gemma3(256),
    "t5gemma2_text": _gemma3(256),
    "t5gemma2_decoder": _gemma3(256),
    "gemma4_text": _gemma4(),
    "gemma4_unified_text": _gemma4(),
    "diffusion_gemma_text": _gemma4(),
    "embedding_gemma2_text": Family(
        "C1", _two(1e6, 1e4), 256, keys={"head_dim/full_attention": "global_head_dim"}
    ),
    "modernbert": _modernbert(),
    "modernbert-decoder": _modernbert(),
    "olmo3": Family(
        "C2",
        _two(5e5, 5e5),
        theta_keys={_FULL: "rope_theta", _SLIDING: "rope_theta"},
        scaled=(_FULL,),
        old_name_only=True,
        every=("sliding_window_pattern", 4),
    ),
    "lfm3": Family(
        "C7",
        _two(1e6, 1e4),
        128,
        partial=_two(0.5, 1.0),
        defaults={
            _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5},
            _SLIDING: {"rope_type": "default"},
        },
        layers="attention",
    ),
    "dory": Family("C1", _two(1e7, 1e4), 256),
    "ultrabert": Family("C1", _two(2.56e6, 1e4)),
    "mellum": Family("C1", _two(5e5, 1e4), 128),
    "laguna": Family("C5", _two(5e5, 1e4), 128, partial=_two(0.5, 1.0)),
    "mimo_v2_flash": Family("C5", _two(5e6, 1e4), 192, partial=_two(0.334, 0.334)),
    "beam": Family("C2", _two(1e4, 1e4), 128, defaults={_FULL: None, _SLIDING: {}}),
    "neomme": Family("M7", _two(1e6, 1e4), 64, partial=_two(0.25, 1.0)),
    "cohere_compass_text": Family("M3", _two(1e4, 1e4), 128, sections=(24, 20, 20)),
    "step3p5": Family("C5", _two(1e4, 1e4), 128, partial=_two(1.0, 1.0)),
    "zaya": Family(
        "C5",
        {"hybrid": 5e6, "hybrid_sliding": 1e4},
        128,
        partial={"hybrid": 0.5, "hybrid_sliding": 0.5},
    ),
    "dots3_note_text": Family(
        "C16",
        {"indexed_attention": 8e7, _SLIDING: 5e4},
        256,
        partial={"indexed_attention": 0.25, _SLIDING: 0.25},
        theta_keys={"indexed_attention": "rope_theta", _SLIDING: "swa_rope_theta"},
        indexer=Indexer("C19"),
    ),
    "deepseek_v4": Family(
        "C21",
        {"main": 1e4, "compress": 1.6e5},
        512,
        partial={"main": 0.125, "compress": 0.125},
        theta_keys={"main": "rope_theta", "compress": "compress_rope_theta"},
        scaled=("compress",),
        completes={"yarn": {"attention_factor": 1.0}},
        keys={"rotary_dim": "qk_rope_head_dim"},
        label_of={
            _SLIDING: "main",
            "compressed_sparse_attention": "compress",
            "heavily_compressed_attention": "compress",
        },
        indexer=Indexer("C21"),
    ),
}
