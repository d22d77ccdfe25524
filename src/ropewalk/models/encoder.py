"""``RoFormerModel``: the layers as one transformers model; positions, masks and loading."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.models import exchange, file_errors, inputs
from ropewalk.models.config import ATTENTION_IMPLEMENTATIONS, RopewalkRoFormerConfig
from ropewalk.models.layers import RoFormerEmbeddings, RoFormerLayer
from ropewalk.rotary import RotaryEmbedding, RotaryTable
from ropewalk.rotary.apply import arithmetic_dtype

_BUILT_IN = (
    "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "intermediate_size", "hidden_act", "type_vocab_size", "layer_norm_eps", "rotary_value",
    "position_encoding", "tie_word_embeddings",
)  # fmt: skip


class RoFormerPreTrainedModel(PreTrainedModel):
    """What all RoFormer models share: fresh weights, saving and loading.

    Folders are exchanged with transformers in both directions; see :meth:`save_pretrained` and
    :meth:`from_pretrained`.
    """

    config: RopewalkRoFormerConfig
    config_class = RopewalkRoFormerConfig
    base_model_prefix = "roformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _no_split_modules = ["RoFormerLayer"]  # noqa: RUF012 (declared by the base class)
    # Checked, and written for transformers, by ropewalk.models.exchange.
    _keys_to_ignore_on_load_unexpected = [r"encoder\.embed_positions\.weight$"]  # noqa: RUF012
    # Prefix of the head's parameters, and whether a checkpoint may come without them.
    _head: ClassVar[str | None] = None
    _fresh_head: ClassVar[bool] = False
    # Config fields that were built into the modules, and decide what they compute.
    _built_in: ClassVar[tuple[str, ...]] = _BUILT_IN

    def __init__(self, config: RopewalkRoFormerConfig, *inputs: Any, **kwargs: Any) -> None:
        if not isinstance(config, RopewalkRoFormerConfig):
            raise ConfigError(
                "config must be a ropewalk RoFormerConfig; got "
                f"{type(config).__module__}.{type(config).__name__}; "
                "from transformers' own, make RoFormerConfig(**config.to_dict())"
            )
        config.validate()  # fields may have been set since it was made
        super().__init__(config, *inputs, **kwargs)
        self._built = self._describe()

    def _describe(self) -> dict[str, Any]:
        """Return what the config says now of what is built into the modules."""
        config = self.config
        names = list(self._built_in)
        if config.position_encoding == "learned":
            names.append("max_position_embeddings")
        elif config.position_encoding == "sinusoidal":
            names.append("initializer_range")
        return {name: getattr(config, name) for name in names} | {
            "rope_parameters": config.rope_spec
        }

    def _check_config(self) -> None:
        """Refuse to write a config that does not describe the modules, or cannot be read back."""
        self.config.check_readable()
        now = self._describe()
        words: Any = self.get_input_embeddings()  # resizing changes it
        for name, built in (self._built | {"vocab_size": words.weight.shape[0]}).items():
            if now.get(name) != built:
                raise ConfigError(
                    f"config.{name} must be what the model was built with, {built!r}, to save it; "
                    f"got {now.get(name)!r}; put it back, or build a model with the new config"
                )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str] | None,
        *model_args: Any,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load a model, or refuse a folder that does not hold exactly this model.

        Args:
            pretrained_model_name_or_path: A folder written by ropewalk or by transformers'
                RoFormer, or a name on the hub.
            *model_args: As in transformers.
            ignore_mismatched_sizes: Start parameters of another size fresh instead of refusing.
            output_loading_info: Also return what was missing, unexpected or mismatched.
            **kwargs: As in transformers; config fields replace the saved ones.

        Returns:
            The model in evaluation mode; with ``output_loading_info`` a pair.

        Raises:
            CheckpointError: Files are missing, damaged or of another model; parameters are
                missing, left over or of another shape; a stored rotary table disagrees with
                the formula. A fresh classification head is allowed and reported.
            ConfigError: The config has a field that is unknown or out of range.
        """
        path = pretrained_model_name_or_path
        if path is not None or not {"config", "state_dict"} <= kwargs.keys():
            file_errors.check_path(path)
        if not kwargs.get("weights_only", True):
            raise ConfigError(
                "weights_only must be True, since a pickle can run any code; got False"
            )
        with file_errors.loading_errors(path), exchange.without_load_report():
            # With peft installed transformers would look for an adapter first, on the hub.
            file_errors.check_exists(path)
            loaded: Any = super().from_pretrained(
                path,
                *model_args,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **kwargs,
            )
            model, info = loaded
            exchange.check_loaded(
                model,
                info,
                path,
                head=cls._head,
                fresh_head=cls._fresh_head,
                allow_mismatch=ignore_mismatched_sizes,
            )
            exchange.check_stored_table(model.config.head_dim, path, kwargs)
        return (model, info) if output_loading_info else model

    def save_pretrained(  # type: ignore[override]  # the rest goes by keyword
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write config and weights, readable by plain transformers where it can compute the model.

        Then the constant table that transformers expects is written too, so that it reports
        nothing missing there. Weight files of an earlier save that are not part of this one are
        removed once it is complete, since loading might prefer them.

        Args:
            save_directory: Folder, made if missing.
            is_main_process: As in transformers.
            state_dict: Weights to save in place of the model's.
            **kwargs: As in transformers.

        Raises:
            CheckpointError: The folder cannot be written, e.g. because the disk is full.
            ConfigError: The config was changed since the model was built, so that it does not
                describe it any more, or could not be read back.
        """
        file_errors.check_path(save_directory)
        self._check_config()
        state_dict = dict(self.state_dict() if state_dict is None else state_dict)
        if not self.config.tie_word_embeddings and exchange.BIAS_KEY in state_dict:
            # transformers wants both names then, but files hold shared memory once.
            state_dict[exchange.BIAS_KEY] = state_dict[exchange.BIAS_KEY].clone()
        spec = self.config.rope_spec
        if spec is not None and self.config.is_vanilla:
            prefix = "" if self.base_model is self else f"{self.base_model_prefix}."
            state_dict[prefix + exchange.TABLE_KEY] = exchange.position_table(
                spec, self.config.max_position_embeddings
            ).to(self.dtype)
        with file_errors.writing_errors(save_directory):
            if Path(save_directory).is_file():
                raise CheckpointError(
                    "save_directory must be a folder; got the file "
                    f"{file_errors.shown(save_directory)}"
                )
            super().save_pretrained(
                save_directory, is_main_process=is_main_process, state_dict=state_dict, **kwargs
            )
            if is_main_process and not kwargs.get("distributed_checkpoint"):
                exchange.remove_older_weights(Path(save_directory), kwargs.get("variant"))


class RoFormerEncoder(nn.Module):
    """The stack of layers.

    Args:
        config: The model's configuration.
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__()
        spec = config.rope_spec
        self.rope = None if spec is None else RotaryEmbedding(spec)
        self.layer = nn.ModuleList(RoFormerLayer(config) for _ in range(config.num_hidden_layers))
        if self.rope is not None:
            # What transformers stores beside the weights.
            self.register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
                partial(exchange.drop_table, config.head_dim)
            )

    def forward(
        self,
        hidden: Tensor,
        position_ids: Tensor,
        mask: Tensor | None,
        *,
        lengths: int | Tensor | None = None,
        explicit: bool = False,
        keep_weights: bool = False,
        keep_states: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the last hidden states, and of every layer what is kept.

        Args:
            hidden: ``(batch, seq, hidden_size)``.
            position_ids: ``(seq,)`` or ``(batch, seq)``.
            mask: Broadcastable to ``(batch, heads, seq, seq)``, bool, True where a query may look.
            lengths: What :func:`ropewalk.models.inputs.row_lengths` returns, if the rotation
                depends on it.
            explicit: Spell the softmax out instead of calling the fused kernel.
            keep_weights: Also return the attention weights of every layer; needs ``explicit``.
            keep_states: Also return the input of every layer and the output of the last.

        Returns:
            Hidden states ``(batch, seq, hidden_size)``; those kept; the weights kept.
        """
        table: RotaryTable | None = None
        if self.rope is not None:
            dtype = arithmetic_dtype(hidden.dtype)
            table = _table_of_rows(self.rope, position_ids, lengths, dtype)
        states: tuple[Tensor, ...] = (hidden,) if keep_states else ()
        maps: tuple[Tensor, ...] = ()
        for layer in self.layer:
            hidden, weights = layer(hidden, table, mask, explicit)
            if keep_states:
                states = (*states, hidden)
            if keep_weights:
                maps = (*maps, weights)
        return hidden, states, maps


def _table_of_rows(
    rope: RotaryEmbedding, position_ids: Tensor, lengths: int | Tensor | None, dtype: torch.dtype
) -> RotaryTable:
    """Return the table of positions in rows, or documents, of those lengths."""
    if not isinstance(lengths, Tensor) or lengths.ndim == 1:
        return rope.table(position_ids, seq_len=lengths, dtype=dtype)
    places = position_ids.expand(lengths.shape)
    cos = torch.empty((*lengths.shape, rope.spec.n_pairs), dtype=dtype, device=position_ids.device)
    sin = torch.empty_like(cos)
    for length in lengths.unique().tolist():
        chosen = (lengths == length).to(places.device)
        cos[chosen], sin[chosen] = rope.table(places[chosen], seq_len=length, dtype=dtype)
    return RotaryTable(cos, sin)


class RoFormerModel(RoFormerPreTrainedModel):
    """A RoFormer encoder: tokens to hidden states.

    Rotations are computed from the positions, so rows of any length run, and ``position_ids``
    mean what they say. The table of rotations is built once per forward.

    Args:
        config: The model's configuration.

    References:
        Su et al., 2021, arXiv:2104.09864.

    Example:
        >>> import torch
        >>> config = RopewalkRoFormerConfig(hidden_size=8, num_attention_heads=2)
        >>> RoFormerModel(config)(torch.tensor([[5, 6, 7]])).last_hidden_state.shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__(config)
        self.embeddings = RoFormerEmbeddings(config)
        if config.embedding_size != config.hidden_size:
            self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size)
        self.encoder = RoFormerEncoder(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embedding."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embedding.

        Args:
            value: The new one.
        """
        self.embeddings.word_embeddings = value  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple[Tensor, ...]:
        """Encode rows of tokens.

        Args:
            input_ids: ``(batch, seq)``.
            attention_mask: ``(batch, seq)``, 1 for real tokens, 0 for padding.
            token_type_ids: ``(batch, seq)``; None means type 0.
            position_ids: ``(seq,)`` or ``(batch, seq)``; None means 0 to ``seq - 1``, padding
                counted. For left padding under an absolute encoding, give them. Where the
                rope_type depends on the length of a row ("dynamic", "longrope"), that is the span
                of positions of its real tokens, or of those of each document.
            document_ids: ``(batch, seq)`` integers for rows of several documents: a token attends
                only to tokens with its own number. None means one document per row.
            inputs_embeds: ``(batch, seq, embedding_size)`` in place of ``input_ids``.
            output_attentions: Return the attention weights of every layer; the softmax is then
                spelled out, whatever the attention implementation. None means as the config says.
            output_hidden_states: Return the hidden states before and after every layer.
            return_dict: False for a tuple. None means as the config says.

        Returns:
            ``last_hidden_state`` ``(batch, seq, hidden_size)``, and where asked for
            ``hidden_states`` and ``attentions``.

        Raises:
            ShapeError: Shapes do not fit together, something is not a tensor of the right dtype,
                a token does not exist, or the mask is not of zeros and ones.
            ConfigError: Both or neither of ``input_ids`` and ``inputs_embeds``; a position past
                the learned table; documents whose positions are not given although they matter;
                a mask, positions or documents in a traced graph, if the rotation depends on
                the length of rows.
        """
        config = self.config
        implementation = config._attn_implementation
        if implementation not in ATTENTION_IMPLEMENTATIONS:
            raise ConfigError(
                f"attn_implementation must be one of {', '.join(ATTENTION_IMPLEMENTATIONS)}; "
                f"got {implementation!r}"
            )
        if output_attentions is None:
            output_attentions = config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states
        shape, device = inputs.rows(config, input_ids, token_type_ids, inputs_embeds)
        if input_ids is not None and document_ids is None:
            self.warn_if_padding_and_no_attention_mask(  # type: ignore[no-untyped-call]
                input_ids, attention_mask
            )
        mask = inputs.visible_keys(attention_mask, document_ids, shape)
        places = inputs.positions(config, position_ids, document_ids, shape, device)
        lengths: int | Tensor | None = None
        if self.encoder.rope is not None and self.encoder.rope.spec.depends_on_length:
            lengths = inputs.row_lengths(position_ids, attention_mask, document_ids, shape)

        hidden = self.embeddings(input_ids, token_type_ids, places, inputs_embeds)
        if config.embedding_size != config.hidden_size:
            hidden = self.embeddings_project(hidden)
        hidden, states, maps = self.encoder(
            hidden,
            places,
            mask,
            lengths=lengths,
            explicit=bool(output_attentions) or implementation == "eager",
            keep_weights=bool(output_attentions),
            keep_states=bool(output_hidden_states),
        )
        return inputs.pack(
            BaseModelOutput(
                last_hidden_state=hidden,
                hidden_states=states if output_hidden_states else None,
                attentions=maps if output_attentions else None,
            ),
            config.return_dict if return_dict is None else return_dict,
        )
