"""``RoFormerModel``: the layers as one transformers model; positions, masks and packing."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from ropewalk.attention.packed import packing_pays
from ropewalk.errors import ConfigError
from ropewalk.models import exchange, inputs
from ropewalk.models.config import RopewalkRoFormerConfig
from ropewalk.models.config_checks import ATTENTION_IMPLEMENTATIONS
from ropewalk.models.layer_options import SLIDING, layer_kinds
from ropewalk.models.layers import RoFormerEmbeddings, RoFormerLayer, layer_norm
from ropewalk.models.packing import PackedInput, PackedSequences, Packing, pack_rows, packed_input
from ropewalk.models.pretrained import RoFormerPreTrainedModel
from ropewalk.rotary import RotaryEmbedding, RotaryTable
from ropewalk.rotary.apply import arithmetic_dtype


class RoFormerEncoder(nn.Module):
    """The stack of layers.

    Args:
        config: The model's configuration.
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__()
        # By type of layer, for those that turn.
        self.ropes: dict[str, RotaryEmbedding] = {
            kind: RotaryEmbedding(spec)
            for kind, spec in config.rope_specs.items()
            if spec is not None
        }
        self.depends_on_length = any(rope.spec.depends_on_length for rope in self.ropes.values())
        self.layer = nn.ModuleList(
            RoFormerLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.has_windows = SLIDING in layer_kinds(config)
        self.LayerNorm = layer_norm(config, config.hidden_size) if config.pre_norm else None
        if self.ropes:
            # What transformers stores beside the weights.
            self.register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
                partial(exchange.drop_table, config.head_dim)
            )

    def forward(
        self,
        hidden: Tensor,
        position_ids: Tensor,
        mask: Tensor | PackedSequences | None,
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
            mask: Broadcastable to ``(batch, heads, seq, seq)``, bool, True where a query may look;
                or the packed sequences of one row.
            lengths: What :func:`ropewalk.models.inputs.row_lengths` returns, if the rotation
                depends on it.
            explicit: Spell the softmax out instead of calling the fused kernel.
            keep_weights: Also return the attention weights of every layer; needs ``explicit``.
            keep_states: Also return the input of every layer and the output of the last.

        Returns:
            Hidden states ``(batch, seq, hidden_size)``; those kept; the weights kept.
        """
        dtype = arithmetic_dtype(hidden.dtype)
        tables: dict[str, RotaryTable] = {}
        for kind, rope in self.ropes.items():
            tables[kind] = _table_of_rows(rope, position_ids, lengths, dtype)
        states: tuple[Tensor, ...] = (hidden,) if keep_states else ()
        maps: tuple[Tensor, ...] = ()
        for layer in self.layer:
            hidden, weights = layer(hidden, tables.get(str(layer.kind)), mask, explicit)
            if keep_states:
                states = (*states, hidden)
            if keep_weights:
                maps = (*maps, weights)
        if self.LayerNorm is not None:
            hidden = self.LayerNorm(hidden)
            states = (*states[:-1], hidden) if keep_states else states
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

    Padding is not computed: the real tokens of a batch are packed before the embedding, each row
    (or document) attends to itself, and the output is padded again with zeros. That needs to read
    the mask, so traced graphs (``torch.compile``, ``torch.export``), eager attention, and devices
    without a kernel for it compute all rows under a mask instead, with the same result at real
    tokens; so does a model whose attribute ``unpads`` is set to False.

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

    unpads: bool = True

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
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
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
            cu_seq_lens_q: ``(sequences + 1,)`` integers, for one row of packed sequences: their
                cumulative lengths, from 0 to ``seq``. A token attends only to its own sequence;
                ``position_ids=None`` then restarts in each.
            cu_seq_lens_k: The same, as transformers' collators give both.
            max_length_q: Length of the longest sequence; None reads it.
            max_length_k: The same.

        Returns:
            ``last_hidden_state`` ``(batch, seq, hidden_size)``, zeros at padding where that was
            not computed, and where asked for
            ``hidden_states`` and ``attentions``.

        Raises:
            ShapeError: Shapes do not fit together, something is not a tensor of the right dtype,
                a token does not exist, or the mask is not of zeros and ones.
            ConfigError: Both or neither of ``input_ids`` and ``inputs_embeds``; masks beside
                packed sequences; a position past
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
        explicit = bool(output_attentions) or implementation == "eager"
        shape, device = inputs.rows(config, input_ids, token_type_ids, inputs_embeds)
        if input_ids is not None and document_ids is None:
            self.warn_if_padding_and_no_attention_mask(  # type: ignore[no-untyped-call]
                input_ids, attention_mask
            )
        packed = packed_input(
            cu_seq_lens_q,
            cu_seq_lens_k,
            max_length_q,
            max_length_k,
            shape,
            (attention_mask, document_ids),
        )
        if packed is not None:
            document_ids = packed.document_ids(shape[1])
            if position_ids is None:
                position_ids = packed.position_ids(shape[1])
        real, documents = inputs.checked_masks(attention_mask, document_ids, shape)
        packing = None if explicit else self._packing(packed, real, documents, shape, device)
        places = inputs.positions(config, position_ids, document_ids, shape, device)
        lengths: int | Tensor | None = None
        if self.encoder.depends_on_length:
            lengths = inputs.row_lengths(position_ids, attention_mask, document_ids, shape)
        mask: Tensor | PackedSequences | None = None
        if packing is None:
            mask = inputs.visible_keys(real, documents)
        else:
            mask = packing.sequences
            given = (input_ids, token_type_ids, inputs_embeds)
            input_ids, token_type_ids, inputs_embeds = (
                None if x is None else packing.pack(x) for x in given
            )
            places = packing.pack(places if places.ndim == 2 else places[None])[0]
            lengths = packing.pack_lengths(lengths)

        hidden = self.embeddings(input_ids, token_type_ids, places, inputs_embeds)
        if config.embedding_size != config.hidden_size:
            hidden = self.embeddings_project(hidden)
        hidden, states, maps = self.encoder(
            hidden,
            places,
            mask,
            lengths=lengths,
            explicit=explicit,
            keep_weights=bool(output_attentions),
            keep_states=bool(output_hidden_states),
        )
        if packing is not None:
            hidden = packing.unpack(hidden)
            states = tuple(packing.unpack(state) for state in states)
        return inputs.pack(
            BaseModelOutput(
                last_hidden_state=hidden,
                hidden_states=states if output_hidden_states else None,
                attentions=maps if output_attentions else None,
            ),
            config.return_dict if return_dict is None else return_dict,
        )

    def _packing(
        self,
        packed: PackedInput | None,
        real: Tensor | None,
        documents: Tensor | None,
        shape: tuple[int, int],
        device: torch.device,
    ) -> Packing | None:
        """Return how the tokens that masks leave visible are packed; None where they are not."""
        masks = [mask for mask in (real, documents) if mask is not None]
        if not (self.unpads and masks and all(map(inputs.readable, masks))):
            return None
        dtype = self.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        dropout_p = self.config.attention_probs_dropout_prob if self.training else 0.0
        if not packing_pays(device, dtype, self.config.head_dim, dropout_p):
            return None
        packing = packed.packing(shape) if packed else pack_rows(real, documents, shape)
        # Where packing would bring tokens closer to each other, a window would mean another one.
        if packing is not None and self.encoder.has_windows and not packing.keeps_neighbours():
            return None
        return packing
