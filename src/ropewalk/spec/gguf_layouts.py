"""Which pairs llama.cpp rotates in the rows of a GGUF file, by architecture.

Read from ``llama_model_rope_type`` of ggml-org/llama.cpp@0c1e57098. The layout is in no metadata:
it follows from the name of the architecture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec import checks

if TYPE_CHECKING:
    from ropewalk.spec.pairs import PairLayout

# LLAMA_ROPE_TYPE_NORM: pairs of neighbours.
_INTERLEAVED = frozenset(
    (
    "arcee", "arctic", "baichuan", "bailingmoe", "chameleon", "chatglm", "cohere2", "cohere2moe",
    "command-r", "deci", "deepseek", "deepseek2", "deepseek2-ocr", "deepseek32", "deepseek4",
    "dots3note", "eagle3", "ernie4_5", "ernie4_5-moe", "glm-dsa", "granite", "granite_swa",
    "granitehybrid", "granitemoe", "graniteswitch", "hy_v4", "internlm2", "llada", "llama",
    "llama-embed", "llama4", "maincoder", "minicpm", "mistral3", "mistral4", "muse-glimmer",
    "nanbeige", "neo-bert", "olmo", "plm", "pockettts", "smollm3", "starcoder", "xverse",
    )
)  # fmt: skip
# LLAMA_ROPE_TYPE_NEOX: pairs half the rotated width apart.
_HALF = frozenset(
    (
    "afmoe", "apertus", "bailingmoe2", "bert", "bitnet", "codeshell", "cogvlm", "dbrx", "dots1",
    "dream", "eurobert", "exaone", "exaone-moe", "exaone4", "falcon", "falcon-h1", "gemma",
    "gemma-embedding", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma4-assistant", "gpt-oss",
    "gptneox", "grok", "grovemoe", "hrm_text", "hunyuan-dense", "hunyuan-moe", "hy_v3", "jais2",
    "jina-bert-v3", "laguna", "lfm2", "lfm2moe", "llada-moe", "maple", "mellum", "mimo2",
    "minicpm3", "minimax-01", "minimax-m2", "minimax-m3", "modern-bert", "nemotron", "nomic-bert",
    "nomic-bert-moe", "olmo2", "olmoe", "openelm", "orion", "pangu-embedded", "phi2", "phi3",
    "phimoe", "plamo", "plamo2", "plamo3", "qwen", "qwen2", "qwen2moe", "qwen3", "qwen3moe",
    "qwen3next", "rnd1", "seed_oss", "smallthinker", "spark2_5", "stablelm", "starcoder2", "step35",
    "talkie",
    )
)  # fmt: skip
# LLAMA_ROPE_TYPE_MROPE and _IMROPE: several axes, pairs as in the half layout.
_SEVERAL_AXES = frozenset(
    (
    "paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3tts", "qwen3vl", "qwen3vlmoe", "qwen4exp",
    )
)  # fmt: skip
# One of the two types above where the file has sections for several axes, else the stated one.
_BY_SECTIONS: dict[str, PairLayout] = {
    "bailingmoe3": "interleaved",
    "glm4": "interleaved",
    "glm4moe": "half",
    "hunyuan_vl": "half",
}
# LLAMA_ROPE_TYPE_NONE.
_NONE = frozenset(
    (
    "arwkv7", "bloom", "clip", "glm5-next", "gpt2", "gptj", "jais", "jamba", "jina-bert-v2",
    "kimi-k3", "kimi-linear", "mamba", "mamba2", "mpt", "nemotron_h", "nemotron_h_moe", "refact",
    "rwkv6", "rwkv6qwen2", "rwkv7", "t5", "t5encoder", "wavtokenizer-dec",
    )
)  # fmt: skip


def layout_of(architecture: str, *, has_sections: bool) -> PairLayout:
    """Return the pair layout of the rows of a GGUF file.

    Args:
        architecture: The entry general.architecture.
        has_sections: Whether rope.dimension_sections names more than one axis.

    Raises:
        ConfigError: The architecture does not rotate, or is not known.

    Example:
        >>> layout_of("llama", has_sections=False), layout_of("qwen2", has_sections=False)
        ('interleaved', 'half')
    """
    if architecture in _INTERLEAVED:
        return "interleaved"
    if architecture in _HALF or architecture in _SEVERAL_AXES:
        return "half"
    if architecture in _BY_SECTIONS:
        return "half" if has_sections else _BY_SECTIONS[architecture]
    if architecture in _NONE:
        raise ConfigError(
            f"general.architecture must be one that rotates; llama.cpp turns nothing in "
            f"{checks.abridged(architecture)}"
        )
    raise ConfigError(
        "general.architecture must be one whose pair layout is known (llama.cpp at commit "
        f"0c1e57098); got {checks.abridged(architecture)}; use the config.json of the model"
    )
