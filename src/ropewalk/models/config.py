"""The configuration of a RoFormer: transformers' fields, and which position encoding is used."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from ropewalk.errors import CheckpointError, ConfigError, RopewalkError
from ropewalk.models.file_errors import check_exists, check_path, reason, shown
from ropewalk.models.known_fields import (
    MODEL_TYPE,
    TRANSFORMERS_MODEL_TYPE,
    check_dtype,
    check_model_type,
    refuse_generation,
    refuse_unknown,
)
from ropewalk.spec import RopeSpec, spec_from_rope_parameters
from ropewalk.spec.checks import abridged, boolean, choice, integer, real

if TYPE_CHECKING:
    import os

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


class RopewalkRoFormerConfig(PreTrainedConfig):
    """Describe a RoFormer encoder. Fields and defaults are transformers', plus the last three.

    Args:
        vocab_size: Rows of the word embedding.
        embedding_size: Width of the embeddings, projected to ``hidden_size`` where it differs;
            None means ``hidden_size``.
        hidden_size: Width of the layers, a multiple of ``num_attention_heads``.
        num_hidden_layers: Number of layers.
        num_attention_heads: Heads per layer.
        intermediate_size: Width of the feed-forward part.
        hidden_act: Name of an activation in transformers that has no parameters; "gelu" is the
            exact one (erf).
        hidden_dropout_prob: Dropout of embeddings, projections and heads, 0 to 1.
        attention_probs_dropout_prob: Dropout of attention weights, 0 to 1.
        max_position_embeddings: Length the model is trained at. Only "learned" positions are
            limited by it; the rule "dynamic" stretches rows that are longer.
        type_vocab_size: Rows of the token type embedding.
        initializer_range: Standard deviation of fresh weights, and root mean square of
            "sinusoidal" positions.
        layer_norm_eps: Epsilon of the layer norms.
        pad_token_id: Token whose embedding starts as zero and gets no gradient, or None.
        bos_token_id: Kept for tokenizers.
        eos_token_id: Kept for tokenizers.
        rotary_value: Rotate the values too, as the English ELECTRA checkpoints do. The output
            then depends on absolute positions.
        use_cache: Kept for transformers; an encoder has no cache.
        is_decoder: Must be False.
        add_cross_attention: Must be False.
        tie_word_embeddings: Decode masked tokens with the word embedding.
        position_encoding: One of ``POSITION_ENCODINGS``.
        rope_parameters: ``rope_type``, ``rope_theta`` and the keys of the scaling rule, as in
            transformers 5; None means the plain ladder on base 10,000 for "rope".
        sparse_prediction: With labels, decode only the masked rows (same loss, less work).

    Raises:
        ConfigError: A field is out of range, contradicts another, or is not known. transformers
            would keep an unknown field and ignore it, and so load a RoFormerV2 checkpoint as
            something it is not.

    References:
        Su et al., 2021, arXiv:2104.09864; JunnYu/RoFormer_pytorch#48.

    Example:
        >>> config = RopewalkRoFormerConfig(hidden_size=64, num_attention_heads=4)
        >>> config.rope_spec.head_dim, config.is_vanilla
        (16, True)
    """

    model_type = MODEL_TYPE

    vocab_size: int = 50000
    embedding_size: int = None  # type: ignore[assignment]  # hidden_size once constructed
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 1536
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    rotary_value: bool = False
    use_cache: bool = True
    is_decoder: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    position_encoding: str = "rope"
    rope_parameters: dict[str, Any] | None = None
    sparse_prediction: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse what is not known, fill in what follows from other fields, and check all."""
        check_model_type(kwargs.pop("model_type", MODEL_TYPE))
        refuse_unknown(kwargs)
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size  # type: ignore[unreachable]
        for name in ("dtype", "torch_dtype"):
            check_dtype(name, self.dtype if name == "dtype" else kwargs.get(name))
        if kwargs.get("num_labels") is not None:
            integer("num_labels", kwargs["num_labels"], at_least=1)
        if self.id2label is not None and not isinstance(self.id2label, dict):
            raise ConfigError(f"id2label must be a dictionary; got {abridged(self.id2label)}")
        # The base class would fill in a rotation for encodings that have none.
        given, self.rope_parameters = self.rope_parameters, None
        try:
            super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        except RopewalkError:
            raise
        except Exception as error:
            raise ConfigError(f"config has a field of a wrong kind: {reason(error)}") from error
        if given is None:
            given = {} if self._rotates else None
        if isinstance(given, dict):
            given = {"rope_type": "default", "rope_theta": 10_000.0} | given
        self.rope_parameters = given
        self.validate()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; transformers checks the types of those it declares for every model."""
        if name == "problem_type":
            choice(name, value, (None, *PROBLEM_TYPES))
        try:
            super().__setattr__(name, value)  # type: ignore[no-untyped-call]
        except StrictDataclassError as error:
            declared = self.__dataclass_fields__[name].type
            raise ConfigError(
                f"{name} must be of type {declared}; got {abridged(value)}"
            ) from error

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return int(self.hidden_size // self.num_attention_heads)

    @property
    def rope_spec(self) -> RopeSpec | None:
        """The rotation of queries and keys, or None for encodings without one."""
        if self.position_encoding != "rope":
            return None
        return spec_from_rope_parameters(
            self.rope_parameters,
            head_dim=self.head_dim,
            layout="interleaved",
            max_position_embeddings=self.max_position_embeddings,
        )

    @property
    def is_vanilla(self) -> bool:
        """Whether transformers' own RoFormer computes the same function with the same weights.

        With chunks of more than one token it refuses rows that are not a multiple of them.
        """
        return (
            self._rotates
            and self.rope_spec == RopeSpec(self.head_dim, "interleaved")
            and self.chunk_size_feed_forward <= 1
        )

    @property
    def _rotates(self) -> bool:
        return bool(self.position_encoding == "rope")

    def validate(self) -> None:
        """Check every field that decides what the model computes; runs again at every save.

        Numbers get the type that transformers demands of them.

        Raises:
            ConfigError: A field is out of range or contradicts another.
        """
        for name in _SIZES:
            setattr(self, name, integer(name, getattr(self, name), at_least=1))
        integer("chunk_size_feed_forward", self.chunk_size_feed_forward, at_least=0)
        for name in ("initializer_range", "layer_norm_eps"):
            setattr(self, name, real(name, getattr(self, name), above=0.0))
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            probability = real(name, getattr(self, name))
            if not 0.0 <= probability <= 1.0:
                raise ConfigError(f"{name} must be between 0 and 1; got {probability!r}")
            setattr(self, name, probability)
        for name in _FLAGS:
            boolean(name, getattr(self, name))
        # A parameter of the activation would have no name that both implementations know.
        if not isinstance(self.hidden_act, str) or self.hidden_act not in ACTIVATIONS:  # type: ignore[redundant-expr]
            raise ConfigError(
                "hidden_act must name an activation of transformers without parameters, such as "
                f"'gelu' or 'relu'; got {abridged(self.hidden_act)}"
            )
        self._check_tokens()
        choice("attn_implementation", self._attn_implementation, (None, *ATTENTION_IMPLEMENTATIONS))
        self._check_encoder_only()
        self._check_positions()

    def check_readable(self) -> None:
        """Make sure that this config can be written, and read back.

        Raises:
            ConfigError: A field is out of range, unknown, or not possible in JSON.
        """
        self.validate()
        declared = {field.name for field in dataclasses.fields(self)}
        refuse_generation({k: v for k, v in vars(self).items() if k not in declared})
        try:
            fields = json.loads(self.to_json_string())
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"config cannot be written as JSON: {reason(error)}") from error
        self.from_dict(fields)

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read config.json; one written for transformers' own RoFormer is read as ours.

        Args:
            pretrained_model_name_or_path: A folder, a file or a name on the hub.
            **kwargs: As in transformers.

        Returns:
            The fields, and the keyword arguments not used.

        Raises:
            CheckpointError: There is no such file, it is not JSON, or it describes another model.
        """
        path = pretrained_model_name_or_path
        check_path(path)
        try:
            check_exists(path)
            fields, rest = super().get_config_dict(path, **kwargs)
        except (RopewalkError, MemoryError):
            raise
        except (TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{shown(path)} has a config.json that is not a JSON object"
            ) from error
        except Exception as error:
            raise CheckpointError(
                f"{shown(path)} has no readable config.json: {reason(error)}"
            ) from error
        if not isinstance(fields, dict):
            raise CheckpointError(f"{shown(path)} has a config.json that is not a JSON object")
        if not fields:
            raise CheckpointError(f"{shown(path)} has no config.json with the fields of a model")
        check_model_type(fields.get("model_type"), f" in {shown(path)}")
        return fields | {"model_type": MODEL_TYPE}, rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a config from fields and overriding keyword arguments, as in transformers.

        Args:
            config_dict: Fields, as saved.
            **kwargs: Fields that replace the saved ones; ``return_unused_kwargs``.

        Raises:
            ConfigError: A field, saved or replaced, is not valid.
        """
        # The base class sets overrides after construction, where nothing checks them.
        names = {field.name for field in dataclasses.fields(cls)} - {"dtype"}
        replaced = {name: kwargs.pop(name) for name in list(kwargs) if name in names}
        saved, given = config_dict.get("rope_parameters"), replaced.get("rope_parameters")
        if isinstance(saved, dict) and isinstance(given, dict):
            # Another scaling rule is no reason to forget the base the model was trained with.
            kept = {k: saved[k] for k in ("rope_theta", "partial_rotary_factor") if k in saved}
            replaced["rope_parameters"] = kept | given
        return super().from_dict(config_dict | replaced, **kwargs)

    def to_json_file(self, json_file_path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """Write config.json, as transformers' own RoFormer where that computes the same function.

        Otherwise the model type is one that transformers without ropewalk refuses, so that no
        checkpoint is misread.

        Args:
            json_file_path: Where to write.
            use_diff: Leave out what equals the defaults of every transformers config.
        """
        fields = json.loads(self.to_json_string(use_diff=use_diff))
        if self.is_vanilla:
            del fields["position_encoding"], fields["rope_parameters"]
            # Otherwise kept: a preference for training, which transformers ignores.
            if self.sparse_prediction:
                del fields["sparse_prediction"]
            fields["model_type"] = TRANSFORMERS_MODEL_TYPE
        text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
        Path(json_file_path).write_text(text, encoding="utf-8")

    def _check_encoder_only(self) -> None:
        for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
            if getattr(self, name) is not False:
                raise ConfigError(
                    f"{name} must be False, since these models are encoders; "
                    f"got {getattr(self, name)!r}"
                )
        if getattr(self, "pruned_heads", None):
            raise ConfigError(f"pruned_heads must be empty; got {self.pruned_heads!r}")

    def _check_tokens(self) -> None:
        if self.pad_token_id is not None:
            integer("pad_token_id", self.pad_token_id, at_least=0)
            if self.pad_token_id >= self.vocab_size:
                raise ConfigError(
                    f"pad_token_id must be less than vocab_size={self.vocab_size}; "
                    f"got {abridged(self.pad_token_id)}"
                )
        if self.bos_token_id is not None:
            integer("bos_token_id", self.bos_token_id, at_least=0)
        ends = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        for end in ends:
            if end is not None:
                integer("eos_token_id", end, at_least=0)

    def _check_positions(self) -> None:
        choice("position_encoding", self.position_encoding, POSITION_ENCODINGS)
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size must be a multiple of num_attention_heads={self.num_attention_heads}"
                f"; got {self.hidden_size}"
            )
        if self._rotates:
            if self.head_dim % 2:
                raise ConfigError(
                    "hidden_size / num_attention_heads must be even to be rotated in pairs; got "
                    f"{self.hidden_size} / {self.num_attention_heads} = {self.head_dim}"
                )
            if not isinstance(self.rope_parameters, dict):
                raise ConfigError(
                    f"rope_parameters must be a dictionary; got {self.rope_parameters!r}"
                )
            assert self.rope_spec is not None
            return
        # An option without effect is a misunderstanding.
        for name in ("rotary_value", "rope_parameters"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name} has no effect with position_encoding={self.position_encoding!r}; "
                    f"got {getattr(self, name)!r}; remove it or use position_encoding='rope'"
                )
        if self.position_encoding == "sinusoidal" and self.embedding_size % 2:
            raise ConfigError(
                "embedding_size must be even for position_encoding='sinusoidal'; "
                f"got {self.embedding_size}"
            )


RoFormerConfig = RopewalkRoFormerConfig
