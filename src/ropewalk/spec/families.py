"""The model families of transformers and how each applies rotary position embeddings.

The keys are the ``model_type`` of the config that holds the rotation, which for models of several
towers is a sub-config. A number behind an @ is the documented head_dim of a config without one.
Verified against transformers 5.24 by ``tests/conformance``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropewalk.spec.families_layered import LAYERED
from ropewalk.spec.families_towers import TOWERS
from ropewalk.spec.family import Family, Indexer

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNIFORM: dict[tuple[str, float], str] = {
    ("C1", 1e4): """afmoe@128 arcee aria_text chameleon dbrx deepseek_ocr2_encoder
        deepseek_ocr2_text dia_encoder@128 dia_decoder@128 diffllama doge dots1 esmc eurobert
        exaone4 exaone_moe falcon falcon_h1 flint@128 gemma2@256 gemma@256 gradium_phonon_tts
        granite granite4_vision_text granite_docling_text granite_swa granitemoe granitemoe_swa
        granitemoehybrid granitemoeshared hrm_text@128 hunyuan_v1_dense hunyuan_v1_moe hyperclovax
        idefics jais2 jetmoe kolibri1@128 kyutai_speech_to_text lara_mini@128 lasr_encoder llama
        mimi ministral mistral molmo2_text@128 moshi muse_glimmer_text@128 neucodec@64 olmoe
        pocket_tts pocket_tts_audio_tokenizer qwen2 qwen2_moe qwen3@128 qwen3_moe seed_oss@128
        starcoder2 t5_gemma_module@256 timesfm2_5@80 unlimited_ocr_text vaultgemma@256 xcodec2@64
        zamba2 gpt_neox_japanese qwen3_omni_moe_code2wav
        qwen3_omni_moe_talker_text""",
    ("C1", 1e3): "nomic_bert",
    ("C1", 2e4): "jina_embeddings_v3",
    ("C1", 1.6e5): "gte",
    ("C1", 5e5): "bitnet csm mllama_text_model muse_glimmer_assistant@128 muse_spark_text@64",
    ("C1", 1e6): """cwm@128 emu3_text_model lfm2 lfm2_moe minimax ministral3@128 mixtral phimoe
        voxtral_realtime_text""",
    ("C1", 2e6): "smollm3",
    ("C1", 11_158_840.0): "hy_v3@128",
    ("C1", 1.2e7): "apertus apertus1p5_text",
    ("C2", 1e4): "olmo olmo2 olmo_hybrid",
    ("C2", 5e5): "flex_olmo",
    ("C3", 1e4): "esm evolla_saprot",
    ("C3", 5e5): "evolla",
    ("C4", 1.5e5): "gpt_oss@64",
    ("C5", 1e4): """bamba dots3_note_audio_encoder glm4_moe glmasr_encoder gpt_neox
        nemotron nemotron3_5_transcribe_asr_audio nemotron3_diarization_audio phi3 phi4_multimodal
        qwen3_next@256 recurrent_gemma""",
    ("C5", 1e6): "solar_open@128",
    ("C5", 5e6): "minimax_m2@128 minimax_m3_vl_text@128",
    ("C6", 1e4): "persimmon phi stablelm",
    ("C8", 1e4): "cohere2 cohere2_moe@128",
    ("C8", 5e5): "cohere",
    ("C9", 5e5): "ernie4_5@128 ernie4_5_moe",
    ("C10", 1e5): "helium@128",
    ("C10", 2e4): "pe_audio_encoder@128 pe_audio_video_encoder@128 pe_video_encoder@128",
    ("C10", 5e5): """blt blt_local_encoder blt_local_decoder blt_global_transformer blt_patcher""",
    ("C11", 1.5e5): "openai_privacy_filter@64",
    ("C12", 1e4): "glm@128 glm4@128 moonshine moonshine_streaming",
    ("C13", 1e4): "codegen gptj",
    ("C14", 1e4): "roformer ropewalk_roformer",
    ("C15", 5e5): "llama4_text@128",
    ("C15-MLA", 1e4): "deepseek_v2",
    ("C16", 1e4): """axk1 axk2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa mistral4
        youtu""",
    ("C16", 6e6): "bailing_hybrid",
    ("C16", 1e7): "longcat_flash",
    ("C17", 1e4): "hy_v4 minicpm3",
    ("C22", 1e4): "nanochat",
    ("C23", 1e4): "seamless_m4t seamless_m4t_v2 wav2vec2-bert wav2vec2-conformer",
    ("C25", 1e4): "qwen2_5_omni_dit@64",
    ("M1", 1e4): "glm4v_moe_text glm_image_text",
    ("M1", 5e5): "paddleocr_vl_text@128",
    ("M1", 1e6): "qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_talker@128",
    ("M2", 1e4): "glm4v_text glm_ocr_text",
    ("M3", 1e4): "qwen3_5_text@256 qwen3_5_moe_text@256 qwen4_exp_text@256",
    ("M3", 5e5): "qwen3_vl_text@128 qwen3_vl_moe_text",
    ("M3", 1e6): "qwen3_omni_moe_text",
    ("M3", 1e8): "cosmos3_edge_text@128",
    ("M4", 1e4): "hy_v4_vl_text",
    ("M5", 5e5): "ernie4_5_vl_moe_text",
}

_PARTIAL: dict[float, str] = {
    0.2: "musicflamingo",
    0.25: "gpt_neox stablelm qwen3_next qwen3_5_text qwen3_5_moe_text",
    0.5: """bamba dots3_note_audio_encoder glm4_moe glmasr_encoder nemotron persimmon phi
        nemotron3_5_transcribe_asr_audio recurrent_gemma glm glm4 glm4v_moe_text mistral4""",
    0.8: "moonshine_streaming",
    0.9: "moonshine",
    4.0: "efficientloftr",
    1.0: """gpt_neox_japanese minimax_m2 minimax_m3_vl_text nemotron3_diarization_audio phi3
        phi4_multimodal solar_open glm4v_text glm_image_text glm_ocr_text qwen4_exp_text""",
}
"""Classes that read partial_rotary_factor, by the share of a config without one."""

_SECTIONS: dict[tuple[int, int, int], str] = {
    (16, 24, 24): """qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_talker
        paddleocr_vl_text""",
    (8, 12, 12): "glm4v_text glm4v_moe_text glm_image_text glm_ocr_text",
    (24, 20, 20): """qwen3_vl_text qwen3_vl_moe_text qwen3_omni_moe_text cosmos3_edge_text""",
    (11, 11, 10): "qwen3_5_text qwen3_5_moe_text qwen4_exp_text",
    (12, 10, 10): "hy_v4_vl_text",
    (22, 22, 20): "ernie4_5_vl_moe_text",
}

_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_64K = _LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 8192}
_GPT_OSS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_MISTRAL = {
    "rope_type": "yarn",
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_HUNYUAN = frozenset({"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "factor"})
_QUERY_SCALING = frozenset({"llama_4_scaling_beta", "max_position_embeddings"})
_GPT = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
_PYTHIA = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
_SPEECH = {"rope_theta": "rotary_embedding_base"}
_SEAMLESS = {"num_attention_heads": "speech_encoder_attention_heads"} | _SPEECH
_SEAMLESS |= {"num_hidden_layers": "speech_encoder_layers"}
_PHI: dict[str, Any] = {
    "renamed": {"su": "longrope", "yarn": "longrope"},
    "rope_types": ("default", "longrope"),
}
# Their attention cuts the rotated slice out, which the table of "proportional" does not fit.
_CUTS_OUT = {"rope_types": ("default", "linear", "dynamic", "yarn", "llama3", "longrope")}
_IF_ROTARY = ("position_embeddings_type", "rotary", "relative")

_DETAILS: dict[str, dict[str, Any]] = {
    "apertus": {"defaults": _LLAMA3_64K},
    "apertus1p5_text": {"defaults": _LLAMA3_64K},
    "axk2": {"indexer": Indexer("C18")},
    "bailing_hybrid": {
        "layers": "attention",
        "keys": {"max_position_embeddings": "model_max_length"},
    },
    "bamba": {"layers": "attention"},
    "clvp_encoder": {"rotates_if": ("use_rotary_embedding", True, True)},
    "codegen": {"keys": _GPT},
    "cohere2": {"layers": "sliding", "every": ("sliding_window_pattern", 4)},
    "cohere2_moe": {"layers": "sliding_or_dense", "every": ("sliding_window_pattern", 4)},
    "cosmos3_edge_text": {"rope_types": ("default",)},
    "cwm": {"defaults": _LLAMA3 | {"factor": 16.0, "original_max_position_embeddings": 8192}},
    "dbrx": {
        "keys": {
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "max_position_embeddings": "max_seq_len",
        }
    },
    "deepseek_v32": {"indexer": Indexer("C18")},
    "ernie4_5_vl_moe_text": {"rope_types": ("default",)},
    "esm": {"rotates_if": ("position_embedding_type", "rotary", "absolute")},
    "evolla_saprot": {"rotates_if": ("position_embedding_type", "rotary", "rotary")},
    "exaone4": {"layers": "sliding_if_any", "every": ("sliding_window_pattern", 4)},
    "exaone_moe": {"layers": "sliding_if_any", "every": ("sliding_window_pattern", 4)},
    "falcon": {"rotates_if": ("alibi", False, False)},
    "glm_moe_dsa": {"indexer": Indexer("C19")},
    "gpt_neox": {"keys": _PYTHIA},
    "gpt_neox_japanese": {"keys": _PYTHIA},
    "gpt_oss": {"defaults": _GPT_OSS},
    "gptj": {"keys": _GPT},
    "granite_swa": {"layers": "theta_per_layer"},
    "granitemoe_swa": {"layers": "theta_per_layer"},
    "granitemoehybrid": {
        "layers": "attention",
        "rotates_if": ("position_embedding_type", "rope", None),
    },
    "higgs_audio_v2": {
        "theta": 5e5,
        "head_dim": 128,
        "defaults": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 0.125,
            "high_freq_factor": 0.5,
            "original_max_position_embeddings": 1024,
        },
    },
    "hunyuan_v1_dense": {"unused": _HUNYUAN},
    "hunyuan_v1_moe": {"unused": _HUNYUAN},
    "hy_v4": {"indexer": Indexer("C20")},
    "hy_v4_vl_text": {"indexer": Indexer("C20-VL")},
    "jetmoe": {"keys": {"head_dim": "kv_channels"}, "head_dim": 128},
    "kolibri1": {"layers": "sliding_if_any"},
    "lara_mini": {"layers": "sliding"},
    "lfm2": {"layers": "attention"},
    "lfm2_moe": {"layers": "attention"},
    "llama4_text": {"layers": "no_rope_layers"},
    "minimax": {"layers": "attention"},
    "minimax_m2": {"keys": {"rotary_dim": "rotary_dim"}},
    "minimax_m3_vl_text": {"indexer": Indexer("C5")},
    "ministral3": {
        "defaults": _MISTRAL | {"factor": 16.0, "original_max_position_embeddings": 16384},
        "unused": _QUERY_SCALING,
    },
    "mistral4": {
        "defaults": _MISTRAL | {"factor": 128.0, "original_max_position_embeddings": 8192},
        "unused": _QUERY_SCALING,
    },
    "moonshine": {
        "keys": {
            "num_attention_heads": "decoder_num_attention_heads",
            "num_hidden_layers": "decoder_num_hidden_layers",
        }
    },
    "muse_glimmer_text": {"layers": "layer_rope_theta"},
    "muse_spark_text": {"layers": "layer_rope_theta"},
    "olmo_hybrid": {"layers": "full"},
    "openai_privacy_filter": {"defaults": _GPT_OSS},
    "persimmon": _CUTS_OUT,
    "phi": _CUTS_OUT,
    "phi3": _PHI,
    "phi4_multimodal": _PHI,
    "phimoe": {"short_only": True, "rope_types": ("default", "longrope")},
    "qwen2_5_omni_talker": {"renamed": {"mrope": "default"}},
    "qwen2_5_omni_text": {"renamed": {"mrope": "default"}},
    "qwen2_5_vl_text": {"renamed": {"mrope": "default"}},
    "qwen2_vl_text": {"renamed": {"mrope": "default"}},
    "qwen3_5_moe_text": {"layers": "attention"},
    "qwen3_5_text": {"layers": "attention"},
    "qwen3_next": {"layers": "attention"},
    "qwen4_exp_text": {"layers": "attention", "indexer": Indexer("M3", "indexer_head_dim", True)},
    "recurrent_gemma": {"layers": "attention", "rope_types": ("default",)},
    "seamless_m4t": {"rotates_if": _IF_ROTARY, "keys": _SEAMLESS},
    "seamless_m4t_v2": {"rotates_if": _IF_ROTARY, "keys": _SEAMLESS},
    "smollm3": {"layers": "no_rope_layers"},
    "stablelm": _CUTS_OUT,
    "wav2vec2-bert": {"rotates_if": _IF_ROTARY, "keys": _SPEECH},
    "wav2vec2-conformer": {"rotates_if": _IF_ROTARY, "keys": _SPEECH},
    "zamba2": {
        "layers": "attention",
        "keys": {"head_dim": "attention_head_dim"},
        "rotates_if": ("use_mem_rope", True, False),
    },
}

_LOST_THETA = "blt_patcher higgs_audio_v2 ministral3 muse_spark_text voxtral_realtime_text"
"""Classes that take 10,000 for a dictionary without a base."""
_OWN_BASE = """apertus apertus1p5_text cosmos3_edge_text cwm ministral3 mistral4 moonshine_streaming
    nemotron3_5_transcribe_asr_audio"""
"""Classes whose documented dictionary holds a base of its own."""
_FIXED = "codegen gptj roformer"
"""Classes that read no rope entries at all."""
_SWITCHED = "axk1 deepseek_v3 glm4_moe_lite mistral4 youtu"
"""Classes that read rope_interleave."""
_SCALED_SOFTMAX = """axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite
    glm_moe_dsa hy_v4 hy_v4_vl_text longcat_flash minicpm3 mistral4 youtu"""

REFUSED: dict[str, str] = {
    "hunyuan_vl_text": "assigns position axes to single coordinates, so that the two of a pair "
    "may turn by different angles, which is no rotation",
    "vjepa2": "uses a half-ordered table on adjacent pairs, so that the two of a pair turn by "
    "different angles, which is no rotation",
    "lightglue": "learns a projection from (x, y) to the angles; they are in the checkpoint",
    "mistral_large4_text": "multiplies every frequency by a learned factor; with the exponents "
    "alpha of the checkpoint it is CustomFactors over the YaRN of its rope_parameters",
    "kimi_linear": "names a rope slice but never rotates it",
}
"""Families that no spec can describe, with the reason."""


def _named(table: str) -> Iterator[tuple[str, int | None]]:
    for entry in table.split():
        name, _, width = entry.partition("@")
        yield name, int(width) if width else None


def _collected() -> dict[str, Family]:
    families = {
        name: Family(convention, theta, head_dim)
        for (convention, theta), table in _UNIFORM.items()
        for name, head_dim in _named(table)
    }
    families["higgs_audio_v2"] = Family("C1")
    families |= LAYERED | TOWERS
    for partial, table in _PARTIAL.items():
        for name, _ in _named(table):
            families[name] = replace(families[name], partial=partial)
    for sections, table in _SECTIONS.items():
        for name, _ in _named(table):
            families[name] = replace(families[name], sections=sections)
    for name, details in _DETAILS.items():
        families[name] = replace(families[name], **details)
    for name, _ in _named(_LOST_THETA):
        families[name] = replace(families[name], lost_theta=1e4)
    for name, _ in _named(_OWN_BASE):
        families[name] = replace(families[name], own_base=True)
    for name, _ in _named(_FIXED):
        families[name] = replace(families[name], fixed=True)
    for name, _ in _named(_SWITCHED):
        families[name] = replace(families[name], switch=("rope_interleave", "C17"))
    for name, _ in _named(_SCALED_SOFTMAX):
        families[name] = replace(families[name], scaled_softmax=True)
    return families


FAMILIES = _collected()
"""Family of every model_type that has a rotation a spec can describe."""
