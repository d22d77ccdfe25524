"""Checks of the fields of a config, against their ranges and against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers.activations import ACT2FN

from ropewalk.errors import ConfigError
from ropewalk.models.layer_options import check_layers
from ropewalk.spec.checks import abridged, boolean, choice, integer, real

if TYPE_CHECKING:
    from ropewalk.models.config import RopewalkRoFormerConfig

POSITION_ENCODINGS = ("rope", "learned", "sinusoidal", "none")
"""What ``position_encoding`` may be: rotated queries and keys, a trained table added to the
embeddings, a computed one (Vaswani et al., 2017), or nothing."""

ATTENTION_IMPLEMENTATIONS = ("sdpa", "eager")
"""Attention kernels the models have; "eager" spells the softmax out."""

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

_SIZES = (
    "vocab_size",
    "hidden_size",
    "embedding_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "num_labels",
)

_FLAGS = (
    "rotary_value",
    "tie_word_embeddings",
    "sparse_prediction",
    "use_cache",
    "output_hidden_states",
    "return_dict",
)

ACTIVATIONS = frozenset(ACT2FN) - {"prelu", "xielu"}
"""What ``hidden_act`` may be: the activations of transformers that have no parameters."""


def check_config(config: RopewalkRoFormerConfig) -> None:
    """Check every field that decides what the model computes.

    Args:
        config: The model's configuration; numbers get the type that transformers demands of them.

    Raises:
        ConfigError: A field is out of range or contradicts another.
    """
    for name in _SIZES:
        setattr(config, name, integer(name, getattr(config, name), at_least=1))
    integer("chunk_size_feed_forward", config.chunk_size_feed_forward, at_least=0)
    for name in ("initializer_range", "layer_norm_eps"):
        setattr(config, name, real(name, getattr(config, name), above=0.0))
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        probability = real(name, getattr(config, name))
        if not 0.0 <= probability <= 1.0:
            raise ConfigError(f"{name} must be between 0 and 1; got {probability!r}")
        setattr(config, name, probability)
    for name in _FLAGS:
        boolean(name, getattr(config, name))
    # A parameter of the activation would have no name that both implementations know.
    if not isinstance(config.hidden_act, str) or config.hidden_act not in ACTIVATIONS:  # type: ignore[redundant-expr]
        raise ConfigError(
            "hidden_act must name an activation of transformers without parameters, such as "
            f"'gelu' or 'relu'; got {abridged(config.hidden_act)}"
        )
    _check_tokens(config)
    choice("attn_implementation", config._attn_implementation, (None, *ATTENTION_IMPLEMENTATIONS))
    _check_encoder_only(config)
    check_layers(config)
    _check_positions(config)


def _check_encoder_only(config: RopewalkRoFormerConfig) -> None:
    for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
        if getattr(config, name) is not False:
            raise ConfigError(
                f"{name} must be False, since these models are encoders; "
                f"got {getattr(config, name)!r}"
            )
    if getattr(config, "pruned_heads", None):
        raise ConfigError(f"pruned_heads must be empty; got {config.pruned_heads!r}")


def _check_tokens(config: RopewalkRoFormerConfig) -> None:
    if config.pad_token_id is not None:
        integer("pad_token_id", config.pad_token_id, at_least=0)
        if config.pad_token_id >= config.vocab_size:
            raise ConfigError(
                f"pad_token_id must be less than vocab_size={config.vocab_size}; "
                f"got {abridged(config.pad_token_id)}"
            )
    if config.bos_token_id is not None:
        integer("bos_token_id", config.bos_token_id, at_least=0)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    for end in ends:
        if end is not None:
            integer("eos_token_id", end, at_least=0)


def _check_positions(config: RopewalkRoFormerConfig) -> None:
    choice("position_encoding", config.position_encoding, POSITION_ENCODINGS)
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"hidden_size must be a multiple of num_attention_heads={config.num_attention_heads}"
            f"; got {config.hidden_size}"
        )
    if config.position_encoding == "rope":
        if config.head_dim % 2:
            raise ConfigError(
                "hidden_size / num_attention_heads must be even to be rotated in pairs; got "
                f"{config.hidden_size} / {config.num_attention_heads} = {config.head_dim}"
            )
        if not isinstance(config.rope_parameters, dict):
            raise ConfigError(
                f"rope_parameters must be a dictionary; got {config.rope_parameters!r}"
            )
        assert any(config.rope_specs.values())
        return
    # An option without effect is a misunderstanding.
    for name in ("rotary_value", "rope_parameters"):
        if getattr(config, name):
            raise ConfigError(
                f"{name} has no effect with position_encoding={config.position_encoding!r}; "
                f"got {getattr(config, name)!r}; remove it or use position_encoding='rope'"
            )
    if config.position_encoding == "sinusoidal" and config.embedding_size % 2:
        raise ConfigError(
            "embedding_size must be even for position_encoding='sinusoidal'; "
            f"got {config.embedding_size}"
        )
