"""Find every rotary class of the installed transformers, and the config that it reads."""

import functools
import importlib
import inspect
import pathlib
import re
from dataclasses import dataclass
from typing import Any

import transformers

_DEFINITION = re.compile(r"^class (\w+)\(", re.MULTILINE)
_ROTARY = re.compile(
    r"Rotary|Rope(?!n)|RoPE|RoFormerSinusoidalPositionalEmbedding|LightGluePositionalEncoder"
)
_APPLY = re.compile(r"^def (\w*(?:apply_\w*rotary|rotate_half|rotate_queries)\w*)\(", re.MULTILINE)

# Classes that hold no table: they apply one that they are given, and stand for no rotation of
# their own.
CONSUMERS = frozenset(
    {
        "EdgeTamVideoRoPECrossAttention",
        "EdgeTamVideoRoPESelfAttention",
        "Sam2VideoRoPEAttention",
        "Sam3TrackerVideoRoPEAttention",
        "Sam3ViTRoPEAttention",
    }
)

# Models whose code defines the function and never calls it.
UNUSED_FUNCTIONS = ("jamba", "nemotron_asr_streaming", "nemotron_h", "parakeet")


@dataclass(frozen=True)
class Found:
    """A rotary class where it is defined."""

    model: str
    name: str

    @functools.cached_property
    def module(self) -> Any:
        return importlib.import_module(f"transformers.models.{self.model}.modeling_{self.model}")

    @property
    def cls(self) -> type:
        return getattr(self.module, self.name)


@functools.cache
def rotary_classes() -> tuple[Found, ...]:
    """Every class that builds a rotary table, consumers left out, in order of the model."""
    return tuple(found for found in _classes(_ROTARY) if found.name not in CONSUMERS)


@functools.cache
def indexer_classes() -> tuple[Found, ...]:
    """Every class that chooses keys by scores of its own, in order of the model."""
    return tuple(_classes(re.compile(r"Indexer$")))


def _classes(pattern):
    return [
        Found(path.parent.name, name)
        for path in sorted(_modeling_files())
        for name in _DEFINITION.findall(path.read_text(encoding="utf-8"))
        if pattern.search(name)
    ]


@functools.cache
def models_with_a_rotation() -> frozenset[str]:
    """Every model whose code defines a function that applies a rotation."""
    files = [p for p in _modeling_files() if _APPLY.search(p.read_text(encoding="utf-8"))]
    return frozenset(path.parent.name for path in files)


def _modeling_files():
    root = pathlib.Path(transformers.__file__).parent / "models"
    return [path for path in root.glob("*/modeling_*.py") if path.stem[9:] == path.parent.name]


# Sub-config that a class reads, where its annotation names the whole and it is not the language
# model.
_SUB = {
    "BltRotaryEmbedding": "encoder_config",
    "DeepseekOcr2VisionRotaryEmbedding": "encoder_config",
    "DiaRotaryEmbedding": "decoder_config",
    "GlmAsrRotaryEmbedding": "audio_config",
    "Nemotron3DiarizationRotaryEmbedding": "audio_config",
    "Qwen2_5OmniRotaryEmbedding": "talker_config",
    "Qwen3OmniMoeRotaryEmbedding": "code2wav_config",
    "T5GemmaRotaryEmbedding": "decoder",
}
# Config class that a class reads, where its annotation names another one or none.
_CLASS = {
    "ClvpRotaryPositionalEmbedding": "ClvpEncoderConfig",
    "PaddleOCRRotaryEmbedding": "PaddleOCRTextConfig",
    "Qwen3OmniMoeTalkerRotaryEmbedding": "Qwen3OmniMoeTalkerTextConfig",
    "RoFormerSinusoidalPositionalEmbedding": "RoFormerConfig",
    "SeamlessM4TConformerRotaryPositionalEmbedding": "SeamlessM4TConfig",
    "Wav2Vec2BertRotaryPositionalEmbedding": "Wav2Vec2BertConfig",
    "Wav2Vec2ConformerRotaryPositionalEmbedding": "Wav2Vec2ConformerConfig",
}
_ROTARY_TYPE = {"position_embeddings_type": "rotary"}
_HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
# What the defaults must be told before they make a model that rotates.
_SETTINGS = {
    "CohereCompassRotaryEmbedding": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_attention": None,
        }
    },
    "EsmRotaryEmbedding": {"position_embedding_type": "rotary"},
    "Glm4MoeRotaryEmbedding": {"head_dim": 128},
    "Glm4vMoeTextRotaryEmbedding": {"head_dim": 128},
    "Glm4vTextRotaryEmbedding": {"rope_parameters": _HALF},
    "GlmImageTextRotaryEmbedding": {"rope_parameters": _HALF},
    "GraniteMoeHybridRotaryEmbedding": {"position_embedding_type": "rope"},
    "Qwen3OmniMoeThinkerTextRotaryEmbedding": {"head_dim": 128},
    "SeamlessM4TConformerRotaryPositionalEmbedding": _ROTARY_TYPE,
    "Wav2Vec2BertRotaryPositionalEmbedding": _ROTARY_TYPE,
    "Wav2Vec2ConformerRotaryPositionalEmbedding": _ROTARY_TYPE,
    "Zamba2RotaryEmbedding": {"use_mem_rope": True},
}


def config_for(found, **settings):
    """Return a config that the class can be built from, with everything else at its default."""
    settings = _SETTINGS.get(found.name, {}) | settings
    make = _config_class(found)
    sub = _SUB.get(found.name)
    whole = make()
    if sub is None and _has_rope(whole):
        return make(**settings) if settings else whole
    part = getattr(whole, sub) if sub else whole.get_text_config()
    return type(part)(**settings) if settings else part


def _config_class(found):
    name = _CLASS.get(found.name)
    if name is None:
        parameters = inspect.signature(found.cls.__init__).parameters.values()
        named = [p.annotation for p in parameters if "onfig" in str(p.annotation)]
        annotation = named[0]
        name = annotation if isinstance(annotation, str) else annotation.__name__
    package = importlib.import_module(
        f"transformers.models.{found.model}.configuration_{found.model}"
    )
    return getattr(package, name, None) or getattr(found.module, name)


def _has_rope(config):
    names = ("rope_theta", "rotary_dim", "spatial_rope_base_frequency", "rotary_embedding_base")
    has = getattr(config, "rope_parameters", None) or any(hasattr(config, n) for n in names)
    whole = config.get_text_config() is not config
    return bool(has) or not (whole or getattr(config, "sub_configs", {}))
