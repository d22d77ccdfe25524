"""What a config.json of a RoFormer may hold beside the fields that describe the model."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig

from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.spec.checks import abridged

TRANSFORMERS_MODEL_TYPE = "roformer"
MODEL_TYPE = "ropewalk_roformer"

# What transformers reads or once wrote into config.json beside the declared fields, and what
# BERT converters left there. None of it changes what an encoder computes.
# fmt: off
_INERT_FIELDS = frozenset((
    "model_type", "name_or_path", "_name_or_path", "_commit_hash", "auto_map", "tokenizer_class",
    "torch_dtype", "num_labels", "output_attentions", "attn_implementation",
    "experts_implementation", "_attn_implementation_autoset", "quantization_config",
    "gradient_checkpointing", "finetuning_task", "task_specific_params", "prefix", "sep_token_id",
    "decoder_start_token_id", "torchscript", "use_bfloat16", "tf_legacy_loss",
    "tie_encoder_decoder", "cross_attention_hidden_size", "summary_type", "summary_use_proj",
    "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    "summary_last_dropout", "directionality", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
))
# fmt: on


def check_model_type(model_type: object, where: str = "") -> None:
    """Refuse the config of another kind of model.

    Args:
        model_type: What it calls itself.
        where: Where that was read, for the message; begins with a space.

    Raises:
        CheckpointError: Not a RoFormer's.
    """
    known = (TRANSFORMERS_MODEL_TYPE, MODEL_TYPE)
    if model_type not in known:
        raise CheckpointError(
            f"model_type{where} must be {' or '.join(map(repr, known))}; "
            f"got {abridged(model_type)}; this is another kind of model"
        )


def check_dtype(name: str, dtype: object) -> None:
    """Refuse what names no dtype; transformers would fail over it without a reason.

    Args:
        name: The field.
        dtype: A dtype, the name of one, or None.

    Raises:
        ConfigError: Something else.
    """
    if dtype is not None and not isinstance(dtype, torch.dtype):
        found = getattr(torch, dtype, None) if isinstance(dtype, str) else None
        if not isinstance(found, torch.dtype):
            raise ConfigError(
                f"{name} must name a dtype of torch, such as 'float32'; got {abridged(dtype)}"
            )


def refuse_unknown(fields: dict[str, Any]) -> None:
    """Refuse fields that nobody here knows, since they may change what the model computes.

    Args:
        fields: Those beside the declared ones.

    Raises:
        ConfigError: It names the first.
    """
    unknown = sorted(set(fields) - _INERT_FIELDS - {"pruned_heads"})
    if unknown:
        # Generation settings of old configs; transformers drops them as well.
        unknown = sorted(set(unknown) - set(GenerationConfig().to_dict()))
    if not unknown:
        return
    name = unknown[0]
    remedy = "remove it if the model is a plain RoFormer without it"
    if name in ("rope_theta", "rope_scaling"):
        remedy = "give rope_parameters={'rope_type': ..., 'rope_theta': ...}"
    raise ConfigError(
        f"config has the unknown field {name!r}; got {abridged(fields[name])}; {remedy}"
    )


def refuse_generation(fields: dict[str, Any]) -> None:
    """Refuse settings of text generation, which transformers does not write into a config.

    Args:
        fields: Those set beside the declared ones.

    Raises:
        ConfigError: It names the first.
    """
    for name in sorted(set(fields) & set(GenerationConfig().to_dict())):
        raise ConfigError(
            f"config must not hold {name}, a setting of text generation; "
            f"got {abridged(fields[name])}; remove it"
        )
