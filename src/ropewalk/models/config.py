"""The configuration of a RoFormer: transformers' fields, and which position encoding is used."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from ropewalk.errors import CheckpointError, ConfigError, RopewalkError
from ropewalk.models.config_checks import (
    PROBLEM_TYPES,
    check_config,
)
from ropewalk.models.file_errors import check_exists, check_path, reason, shown
from ropewalk.models.known_fields import (
    MODEL_TYPE,
    TRANSFORMERS_MODEL_TYPE,
    check_dtype,
    check_model_type,
    refuse_generation,
    refuse_unknown,
)
from ropewalk.models.layer_options import (
    FULL,
    OWN_FIELDS,
    SLIDING,
    check_layer_types,
    is_per_layer_type,
    layer_kinds,
    replaced_rotation,
    rotations,
    with_defaults,
)
from ropewalk.spec import RopeSpec
from ropewalk.spec.checks import abridged, choice, integer

if TYPE_CHECKING:
    import os


class RopewalkRoFormerConfig(PreTrainedConfig):
    """Describe a RoFormer encoder. Fields and defaults are transformers' RoFormer's.

    Those from ``position_encoding`` on are our own, or are transformers' names for what its other
    encoders have; their defaults make the RoFormer of the paper.

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
            transformers 5; None means the plain ladder on base 10,000 for "rope". With
            ``layer_types`` it may be a dictionary of those for each type, with None for a type
            whose layers do not turn.
        sparse_prediction: With labels, decode only the masked rows (same loss, less work).
        layer_types: For each layer "full_attention" or "sliding_attention"; None means all full.
        sliding_window: Largest distance in tokens that a sliding layer sees, on either side
            (``local_attention // 2`` of ModernBERT).
        pre_norm: Normalise what goes into a sublayer and the output of the last layer, instead of
            what comes out of each; the first attention takes the embeddings' norm.
        gated_mlp: Feed forward as ``activation(a) * b`` with two projections to
            ``intermediate_size``: GeGLU with "gelu", SwiGLU with "silu".
        attention_bias: Whether projections of the attention have biases.
        mlp_bias: Whether those of the feed-forward part have.
        norm_bias: Whether layer norms have.
        classifier_bias: Whether hidden projections of heads have; what scores keeps its bias.

    Raises:
        ConfigError: A field is out of range, contradicts another, or is not known. transformers
            would keep an unknown field and ignore it, and so load a RoFormerV2 checkpoint as
            something it is not.

    References:
        Su et al., 2021, arXiv:2104.09864; JunnYu/RoFormer_pytorch#48; Warner et al., 2024,
        arXiv:2412.13663 (local layers, pre-norm, no biases); Shazeer, 2020, arXiv:2002.05202
        (gated_mlp).

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
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    pre_norm: bool = False
    gated_mlp: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    classifier_bias: bool = True

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
        check_layer_types(self)
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
        self.rope_parameters = with_defaults(given)
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
        """The rotation of queries and keys, or None for encodings without one.

        Raises:
            ConfigError: Layers turn differently; :attr:`rope_specs` tells how.
        """
        first, *others = self.rope_specs.values()
        if any(other != first for other in others):
            raise ConfigError(
                f"rope_spec needs layers that all turn alike; got {self.rope_parameters!r}; "
                "use rope_specs, the rotation of each layer type"
            )
        return first

    @property
    def rope_specs(self) -> dict[str, RopeSpec | None]:
        """The rotation of each type of layer that the model has; None where nothing turns."""
        return rotations(self)

    @property
    def is_vanilla(self) -> bool:
        """Whether transformers' own RoFormer computes the same function with the same weights.

        With chunks of more than one token it refuses rows that are not a multiple of them.
        """
        return (
            self._rotates
            and set(self.rope_specs.values()) == {RopeSpec(self.head_dim, "interleaved")}
            and not self._own_fields
            and self.chunk_size_feed_forward <= 1
        )

    @property
    def _own_fields(self) -> dict[str, Any]:
        """Options of today's encoders that are not as in the RoFormer of the paper."""
        return {
            name: getattr(self, name)
            for name, usual in OWN_FIELDS.items()
            if getattr(self, name) != usual
            # A list of full layers says what every RoFormer does.
            and (name != "layer_types" or SLIDING in layer_kinds(self))
        }

    @property
    def _rotates(self) -> bool:
        return bool(self.position_encoding == "rope")

    def validate(self) -> None:
        """Check every field that decides what the model computes; runs again at every save.

        Raises:
            ConfigError: A field is out of range or contradicts another.
        """
        check_config(self)

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
        if "rope_parameters" in replaced:
            replaced["rope_parameters"] = replaced_rotation(
                config_dict.get("rope_parameters"), replaced["rope_parameters"]
            )
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
        for name in OWN_FIELDS.keys() - self._own_fields.keys():
            fields.pop(name, None)
        if "layer_types" not in fields and is_per_layer_type(self.rope_parameters):
            fields["rope_parameters"] = fields["rope_parameters"][FULL]
        if self.is_vanilla:
            del fields["position_encoding"], fields["rope_parameters"]
            # Otherwise kept: a preference for training, which transformers ignores.
            if self.sparse_prediction:
                del fields["sparse_prediction"]
            fields["model_type"] = TRANSFORMERS_MODEL_TYPE
        text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
        Path(json_file_path).write_text(text, encoding="utf-8")


RoFormerConfig = RopewalkRoFormerConfig
