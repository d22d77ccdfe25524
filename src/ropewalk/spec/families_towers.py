"""Families with positions of several axes, or of an unusual kind: built in ``towers``."""

from __future__ import annotations

from ropewalk.spec.family import Family

_HEADS = {"num_attention_heads": "num_heads"}
_MEMORY = {
    "hidden_size": "memory_attention_hidden_size",
    "num_attention_heads": "memory_attention_num_attention_heads",
}

TOWERS: dict[str, Family] = {
    name: Family(convention, theta, keys=keys)
    for convention, theta, keys, names in (
        (
            "V1",
            1e4,
            _HEADS,
            """cohere_compass_vision ernie4_5_vl_moe_vision exaone4_5_vision glm4v_vision
            glm4v_moe_vision glm5_next_vision glm_ocr_vision qwen2_5_vl_vision qwen3_vl_vision
            qwen2_5_omni_vision_encoder qwen3_5_vision qwen3_5_moe_vision qwen3_vl_moe_vision
            qwen3_omni_moe_vision_encoder qwen4_exp_vision""",
        ),
        ("V1", 1e4, _HEADS | {"hidden_size": "embed_dim"}, "qwen2_vl_vision"),
        (
            "V1",
            1e4,
            {},
            """dots3_note_vision_encoder mlcd_vision_model paddleocr_vl_vision muse_glimmer_vision
            muse_spark_vision video_llama_3_vision""",
        ),
        ("V1", 1e6, {}, "lfm3_vl_vision"),
        ("V2", 1e4, {}, "step3p5_vision"),
        ("V3", 1e4, {}, "kimi_k25_vision"),
        ("V4", 1e4, {}, "pixtral"),
        ("V5", 1e4, {}, "minimax_m3_vl_vision"),
        ("V6", 1e4, _MEMORY, "sam2_video sam3_tracker_video edgetam_video"),
        ("V6", 1e4, {}, "sam3_vit_model"),
        ("V7", 1e4, {}, "inkling2_vision"),
        ("V8", 1e2, {}, "gemma4_vision"),
        ("V9", 1e4, {}, "llama4_vision_model"),
        ("V10", 1e2, {}, "dinov3_vit eomt_dinov3 sapiens2"),
        ("V11", 1e4, {}, "efficientloftr"),
        ("C24", 1e4, {}, "clvp_encoder"),
        ("C26", 1.2e3, {}, "musicflamingo"),
        ("C27", 2e1, {}, "esmfold2_atom_encoder"),
    )
    for name in names.split()
}
