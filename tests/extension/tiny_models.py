"""Causal language models of every family of transformers, small enough to be built in a moment."""

import functools
import inspect
import warnings

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LAYERS, VOCABULARY = 4, 64
_MOST_PARAMETERS = 20_000_000
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "intermediate_size": 48,
    "ffn_hidden_size": 48,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "intermediate_size_mlp": 48,
    "num_hidden_layers": LAYERS,
    "n_layer": LAYERS,
    "n_layers": LAYERS,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "max_seq_len": 256,
    "sliding_window": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "laurel_rank": 4,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "mamba_d_ssm": 128,
    "lru_width": 64,
    "kv_channels": 16,
}
_OWN = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {
        "layer_types": ["attention", "mamba"] * 2,
        "position_embedding_type": "rope",
    },
    "lfm2_moe": {"layer_types": ["full_attention", "conv"] * 2},
}
"""What single families need beside."""


class NotBuiltError(Exception):
    """A family whose config cannot be made small by setting the usual names."""


@functools.cache
def causal_families():
    """model_type to class name of every causal language model."""
    families = {}
    for model_type, names in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        name = names if isinstance(names, str) else names[0]
        own = name.lower().startswith(model_type.replace("_", ""))
        if own or name not in families:  # EXAONE 3 is a Llama by another name
            families[name] = model_type
    return {model_type: name for name, model_type in families.items()}


def tiny_config(model_type, **changes):
    """A config with small sizes where its class knows the names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cls = CONFIG_MAPPING[model_type]
        known = set(inspect.signature(cls.__init__).parameters) | set(dir(cls))
        known |= set(cls().to_dict())
        small = {key: value for key, value in _SMALL.items() if key in known}
        if "qk_rope_head_dim" in known:
            small["head_dim"] = small["qk_rope_head_dim"]
        if isinstance(inspect.getattr_static(cls, "head_dim", None), property):
            small.pop("head_dim", None)
        small |= _OWN.get(model_type, {})
        config = cls(**small | changes)
        kinds = list(dict.fromkeys(getattr(cls(), "layer_types", None) or ()))
        if len(kinds) > 1 and not _OWN.get(model_type) and "layer_types" in known:
            kinds = [kinds[i % len(kinds)] for i in range(LAYERS)]
            config = cls(**small | {"layer_types": kinds} | changes)
        return config


def tiny_model(model_type, dtype=torch.float32, **changes):
    """A model with random weights, in evaluation mode."""
    name = causal_families()[model_type]
    try:
        config = tiny_config(model_type, **changes)
        cls = getattr(transformers, name)
        with torch.device("meta"):
            count = sum(p.numel() for p in cls(config).parameters())
    except NotBuiltError:
        raise
    except Exception as error:
        raise NotBuiltError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    if count > _MOST_PARAMETERS:
        raise NotBuiltError(f"has {count:,} parameters with the usual names set")
    torch.manual_seed(0)
    model = cls(config).to(dtype).eval()
    for parameter in model.parameters():  # what starts at 0 or 1 would hide a difference
        torch.nn.init.normal_(parameter.data, std=0.2) if parameter.ndim > 1 else None
    return model


def tokens(batch=2, length=21, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)
