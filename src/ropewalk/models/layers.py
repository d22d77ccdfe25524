"""The parts of a RoFormer encoder, under the parameter names of transformers.

Layers are post-norm, as in BERT, unless the config asks for pre-norm. Module attributes are
parameter names of published checkpoints (``attention.self.query``, ``output.LayerNorm``), so they
keep their spelling; those of pre-norm are as in RobertaPreLayerNorm.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ropewalk.attention import (
    packed_softmax_attention,
    softmax_attention,
    window_mask,
    windowed_attention,
)
from ropewalk.models.layer_options import SLIDING, layer_kinds
from ropewalk.models.packing import PackedSequences
from ropewalk.rotary import RotaryEmbedding, RotaryTable
from ropewalk.rotary.apply import arithmetic_dtype
from ropewalk.spec import RopeSpec

if TYPE_CHECKING:
    from ropewalk.models.config import RopewalkRoFormerConfig


def layer_norm(config: RopewalkRoFormerConfig, width: int) -> nn.LayerNorm:
    """Return a layer norm as the config wants it.

    Args:
        config: The model's configuration.
        width: What is normalised.
    """
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.norm_bias)


class RoFormerEmbeddings(nn.Module):
    """Add word, token type and, for the absolute encodings, position embeddings.

    Sinusoidal positions are scaled to the size of fresh word embeddings, since the layer norm
    after the sum would otherwise leave little of the words. Vaswani et al. scale the words up.

    Args:
        config: The model's configuration.

    References:
        Vaswani et al., 2017, arXiv:1706.03762, sections 3.4 and 3.5.
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__()
        width = config.embedding_size
        self.word_embeddings = nn.Embedding(
            config.vocab_size, width, padding_idx=config.pad_token_id
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        if config.position_encoding == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        elif config.position_encoding == "sinusoidal":
            self.waves = RotaryEmbedding(RopeSpec(width, "interleaved"))
            # Waves of amplitude 1 have a root mean square of 1 / sqrt(2).
            self.amplitude = math.sqrt(2.0) * config.initializer_range
        self.position_encoding = config.position_encoding
        self.LayerNorm = layer_norm(config, width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor,
        inputs_embeds: Tensor | None,
    ) -> Tensor:
        """Return embeddings, ``(batch, seq, embedding_size)``.

        Args:
            input_ids: ``(batch, seq)``, or None.
            token_type_ids: ``(batch, seq)``; None means type 0 everywhere.
            position_ids: ``(seq,)`` or ``(batch, seq)``; read by the absolute encodings only.
            inputs_embeds: ``(batch, seq, embedding_size)`` in place of ``input_ids``.
        """
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = torch.zeros((1, 1), dtype=torch.long, device=words.device)
        embeddings = words + self.token_type_embeddings(token_type_ids)
        if self.position_encoding == "learned":
            embeddings = embeddings + self.position_embeddings(position_ids)
        elif self.position_encoding == "sinusoidal":
            waves = sinusoids(self.waves, position_ids, dtype=arithmetic_dtype(embeddings.dtype))
            embeddings = embeddings + (self.amplitude * waves).to(embeddings.dtype)
        embedded: Tensor = self.dropout(self.LayerNorm(embeddings))
        return embedded


def sinusoids(
    waves: RotaryEmbedding, position_ids: Tensor, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    r"""Return the sinusoidal position vectors, on the same frequencies as the rotation.

    .. math:: (\sin p\omega_0, \cos p\omega_0, \sin p\omega_1, \cos p\omega_1, \dots)

    Args:
        waves: Holds the frequencies, one for every two coordinates.
        position_ids: ``(seq,)`` or ``(batch, seq)``; any position, there is no table.
        dtype: float32 or float64.

    Returns:
        ``(..., seq, width)``, in ``dtype``.

    References:
        Vaswani et al., 2017, arXiv:1706.03762, section 3.5.

    Example:
        >>> sinusoids(RotaryEmbedding(RopeSpec(4, "interleaved")), torch.tensor([0]))
        tensor([[0., 1., 0., 1.]])
    """
    cos, sin = waves.table(position_ids, dtype=dtype)
    return torch.stack((sin, cos), dim=-1).flatten(-2)


class RoFormerSelfAttention(nn.Module):
    """Attend over rotated queries and keys, of the whole row or of a window.

    Args:
        config: The model's configuration.
        kind: Type of the layer.
    """

    def __init__(self, config: RopewalkRoFormerConfig, kind: str) -> None:
        super().__init__()
        # Both sizes, since an empty batch does not tell one from the other.
        self.heads = (config.num_attention_heads, config.head_dim)
        width, bias = config.hidden_size, config.attention_bias
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.dropout_p = float(config.attention_probs_dropout_prob)
        self.rotary_value = config.rotary_value
        spec = config.rope_specs[kind]
        self.rope = None if spec is None else RotaryEmbedding(spec)
        self.window = config.sliding_window if kind == SLIDING else None

    def forward(
        self,
        hidden: Tensor,
        table: RotaryTable | None,
        mask: Tensor | PackedSequences | None,
        explicit: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended values and, if ``explicit``, the attention weights.

        Args:
            hidden: ``(batch, seq, hidden_size)``; one row for packed sequences.
            table: cos and sin of the positions; None where nothing is rotated.
            mask: Broadcastable to ``(batch, heads, seq, seq)``, bool, True where a query may look;
                or the packed sequences that the tokens form, each of which sees only itself.
            explicit: Spell the softmax out instead of calling the fused kernel; not when packed.
        """
        heads = (*hidden.shape[:-1], *self.heads)
        # (batch, seq, heads, head_dim)
        query = self.query(hidden).view(heads)
        key = self.key(hidden).view(heads)
        value = self.value(hidden).view(heads)
        if self.rope is not None:
            query, key = self.rope(query, key, table=table, seq_dim=-3)
            if self.rotary_value:
                value = self.rope.rotate(value, table=table, seq_dim=-3)
        dropout_p = self.dropout_p if self.training else 0.0
        weights: Tensor | None = None
        if isinstance(mask, PackedSequences):
            packed = packed_softmax_attention(
                query[0],
                key[0],
                value[0],
                cu_seqlens=mask.cu_seqlens,
                max_length=mask.max_length,
                window=self.window,
                dropout_p=dropout_p,
            )
            return packed.flatten(1)[None], None
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if explicit:
            if self.window is not None:
                mask = window_mask(query, self.window, mask)
            context, weights = explicit_attention(query, key, value, mask, dropout_p)
        elif self.window is not None:
            context = windowed_attention(
                query, key, value, window=self.window, attn_mask=mask, dropout_p=dropout_p
            )
        else:
            context = softmax_attention(query, key, value, attn_mask=mask, dropout_p=dropout_p)
        return context.transpose(1, 2).flatten(2), weights


def explicit_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """Return what the fused kernel computes, and the weights it does not give out.

    Args:
        query: ``(batch, heads, seq, head_dim)``, like ``key`` and ``value``.
        key: See ``query``.
        value: See ``query``.
        mask: Broadcastable to ``(batch, heads, seq, seq)``, bool, True where a query may look.
        dropout_p: Probability of dropping a weight.

    Returns:
        The attended values, and the weights after dropout, ``(batch, heads, seq, seq)``. A query
        that may look nowhere gets zeros, as from the fused kernel.
    """
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if mask is None:
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.masked_fill(~mask, 0.0)
    weights = F.dropout(weights, dropout_p)
    return weights @ value, weights


class SummedLinear(nn.Linear):
    """A projection whose results are added up over the layers; its fresh weights are smaller."""


class RoFormerResidual(nn.Module):
    """Project, add the input of the sublayer, and normalise unless the config says pre-norm.

    Args:
        config: The model's configuration.
        width: Width of what is projected to ``hidden_size``.
        bias: Whether the projection has a bias.
    """

    def __init__(self, config: RopewalkRoFormerConfig, width: int, *, bias: bool) -> None:
        super().__init__()
        linear = SummedLinear if config.pre_norm else nn.Linear
        self.dense = linear(width, config.hidden_size, bias=bias)
        self.LayerNorm = None if config.pre_norm else layer_norm(config, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, update: Tensor, residual: Tensor) -> Tensor:
        """Return ``LayerNorm(residual + dropout(dense(update)))``, or what pre-norm leaves of it.

        Args:
            update: ``(batch, seq, width)``.
            residual: ``(batch, seq, hidden_size)``.
        """
        total: Tensor = self.dropout(self.dense(update)) + residual
        return total if self.LayerNorm is None else self.LayerNorm(total)


class RoFormerAttention(nn.Module):
    """Self-attention with its residual connection.

    Args:
        config: The model's configuration.
        index: Number of the layer, from 0.
    """

    def __init__(self, config: RopewalkRoFormerConfig, index: int) -> None:
        super().__init__()
        # What the embeddings give has just been normalised, unless it was projected since.
        normed = index == 0 and config.embedding_size == config.hidden_size
        pre_norm = config.pre_norm and not normed
        self.LayerNorm = layer_norm(config, config.hidden_size) if pre_norm else None
        self.self = RoFormerSelfAttention(config, layer_kinds(config)[index])
        self.output = RoFormerResidual(config, config.hidden_size, bias=config.attention_bias)

    def forward(
        self,
        hidden: Tensor,
        table: RotaryTable | None,
        mask: Tensor | PackedSequences | None,
        explicit: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the sublayer's output and, if ``explicit``, the attention weights.

        Args:
            hidden: ``(batch, seq, hidden_size)``.
            table: As in :class:`RoFormerSelfAttention`.
            mask: As in :class:`RoFormerSelfAttention`.
            explicit: As in :class:`RoFormerSelfAttention`.
        """
        inner = hidden if self.LayerNorm is None else self.LayerNorm(hidden)
        context, weights = self.self(inner, table, mask, explicit)
        return self.output(context, hidden), weights


class RoFormerIntermediate(nn.Module):
    """Widen and apply the activation; a gated one multiplies with a second projection.

    Args:
        config: The model's configuration.

    References:
        Shazeer, 2020, arXiv:2002.05202, equation 5.
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__()
        self.LayerNorm = layer_norm(config, config.hidden_size) if config.pre_norm else None
        # Both projections are one matrix, that of the activation first, as in ModernBERT's Wi.
        width = config.intermediate_size * (2 if config.gated_mlp else 1)
        self.dense = nn.Linear(config.hidden_size, width, bias=config.mlp_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.gated = config.gated_mlp

    def forward(self, hidden: Tensor) -> Tensor:
        """Return ``(batch, seq, intermediate_size)``.

        Args:
            hidden: ``(batch, seq, hidden_size)``.
        """
        if self.LayerNorm is not None:
            hidden = self.LayerNorm(hidden)
        wide: Tensor = self.dense(hidden)
        if self.gated:
            wide, gate = wide.chunk(2, dim=-1)
            return self.activation(wide) * gate  # type: ignore[no-any-return]
        return self.activation(wide)  # type: ignore[no-any-return]


class RoFormerLayer(GradientCheckpointingLayer):
    """One encoder layer; recomputed in the backward pass when gradient checkpointing is on.

    Args:
        config: The model's configuration.
        index: Number of the layer, from 0.
    """

    def __init__(self, config: RopewalkRoFormerConfig, index: int) -> None:
        super().__init__()
        self.kind = layer_kinds(config)[index]
        self.attention = RoFormerAttention(config, index)
        self.intermediate = RoFormerIntermediate(config)
        self.output = RoFormerResidual(config, config.intermediate_size, bias=config.mlp_bias)
        self.chunk_size = config.chunk_size_feed_forward

    def forward(
        self,
        hidden: Tensor,
        table: RotaryTable | None,
        mask: Tensor | PackedSequences | None,
        explicit: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the next hidden states and, if ``explicit``, the attention weights.

        Args:
            hidden: ``(batch, seq, hidden_size)``.
            table: As in :class:`RoFormerSelfAttention`.
            mask: As in :class:`RoFormerSelfAttention`.
            explicit: As in :class:`RoFormerSelfAttention`.
        """
        hidden, weights = self.attention(hidden, table, mask, explicit)
        if not self.chunk_size:
            return self._feed_forward(hidden), weights
        # Tokens do not mix here, so a few at a time will do, with less memory.
        parts = [self._feed_forward(part) for part in hidden.split(self.chunk_size, dim=1)]
        return torch.cat(parts, dim=1), weights

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.output(self.intermediate(hidden), hidden)
        return result
