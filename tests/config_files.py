"""Configurations that several tests read, and the cases S1 to S7 of silent misreading."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "golden" / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def config(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


_SMALL = {"hidden_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
GEMMA_LAYERS = ["sliding_attention", "full_attention"]

SILENT = {
    "S1": _SMALL
    | {
        "model_type": "qwen2",
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "rope_scaling": {"type": "yarn", "factor": 4.0},
    },
    "S2": _SMALL
    | {
        "model_type": "llama",
        "rope_theta": 1e4,
        "max_position_embeddings": 131072,
        "rope_scaling": {"type": "dynamic", "factor": 4.0},
    },
    "S3": _SMALL
    | {
        "model_type": "qwen2",
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "rope_scaling": YARN,
    },
    "S4": _SMALL
    | {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_parameters": YARN},
    "S5": _SMALL
    | {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "layer_types": GEMMA_LAYERS,
        "max_position_embeddings": 32768,
        "rope_parameters": YARN,
    },
    "S6": _SMALL
    | {
        "model_type": "gemma3_text",
        "head_dim": 64,
        "layer_types": GEMMA_LAYERS,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "full_attention": YARN | {"truncate": False, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "S7": _SMALL
    | {
        "model_type": "llama",
        "rope_theta": 5e5,
        "max_position_embeddings": 131072,
        "rope_scaling": YARN | {"type": "linear", "rope_theta": 1e6},
    },
}
CODES = {
    "S1": "ORIGINAL_MISSING",
    "S2": "DYNAMIC_INERT",
    "S3": "THETA_LOST",
    "S4": "THETA_DEFAULTED",
    "S5": "FLAT_IGNORED",
    "S6": "TRUNCATE_IGNORED_NESTED",
    "S7": "KEY_CONFLICT",
}
