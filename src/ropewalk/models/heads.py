"""RoFormer with a head: masked-token prediction and sequence classification."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput

from ropewalk.models.config import RopewalkRoFormerConfig
from ropewalk.models.encoder import RoFormerModel
from ropewalk.models.exchange import BIAS_KEY, forgive_tied
from ropewalk.models.inputs import (
    IGNORED_LABEL,
    check_numbers,
    class_labels,
    masked_tokens,
    pack,
    readable,
)
from ropewalk.models.layers import layer_norm
from ropewalk.models.losses import masked_lm_loss
from ropewalk.models.packing import first_tokens
from ropewalk.models.pretrained import RoFormerPreTrainedModel


class RoFormerPredictionTransform(nn.Module):
    """Bring hidden states to the width of the word embedding.

    Args:
        config: The model's configuration.
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(
            config.hidden_size, config.embedding_size, bias=config.classifier_bias
        )
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = layer_norm(config, config.embedding_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return ``(..., embedding_size)``.

        Args:
            hidden: ``(..., hidden_size)``.
        """
        transformed: Tensor = self.LayerNorm(self.activation(self.dense(hidden)))
        return transformed


class RoFormerLMPredictionHead(nn.Module):
    """Score every word of the vocabulary.

    Args:
        config: The model's configuration.
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__()
        self.transform = RoFormerPredictionTransform(config)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        # The decoder's bias under the name that checkpoints store; tied to it by the model.
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, ``(..., vocab_size)``.

        Args:
            hidden: ``(..., hidden_size)``.
        """
        logits: Tensor = self.decoder(self.transform(hidden))
        return logits


class RoFormerMLMHead(nn.Module):
    """Hold the prediction head under the name that checkpoints use.

    Args:
        config: The model's configuration.
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__()
        self.predictions = RoFormerLMPredictionHead(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, ``(..., vocab_size)``.

        Args:
            hidden: ``(..., hidden_size)``.
        """
        logits: Tensor = self.predictions(hidden)
        return logits


class RoFormerForMaskedLM(RoFormerPreTrainedModel):
    """Predict masked tokens.

    Args:
        config: The model's configuration.

    References:
        Devlin et al., 2018, arXiv:1810.04805, section 3.1; Su et al., 2021, arXiv:2104.09864.

    Example:
        >>> config = RopewalkRoFormerConfig(vocab_size=9, hidden_size=8, num_attention_heads=2)
        >>> RoFormerForMaskedLM(config)(torch.tensor([[5, 6, 7]])).logits.shape
        torch.Size([1, 3, 9])
    """

    _tied_weights_keys = {  # noqa: RUF012 (declared by the base class)
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
    }
    _head = "cls."
    # Makes Trainer pass num_items_in_batch, and leave the division to the model.
    accepts_loss_kwargs = True

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__(config)
        self.roformer = RoFormerModel(config)
        self.cls = RoFormerMLMHead(config)
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            forgive_tied
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RoFormerLMPredictionHead):
            initialization.zeros_(module.bias)

    def tie_weights(
        self, missing_keys: set[str] | None = None, recompute_mapping: bool = True
    ) -> None:
        """Share the parameters that are one, after building, loading or replacing some.

        The bias of the decoder has a second name in checkpoints. With
        ``tie_word_embeddings=False`` transformers keeps a second parameter under it that nothing
        reads; here both names stay one parameter, so that every parameter has a gradient.

        Args:
            missing_keys: What a checkpoint lacked; changed in place.
            recompute_mapping: As in transformers.
        """
        super().tie_weights(missing_keys, recompute_mapping)
        if self.config.tie_word_embeddings:
            return
        head, decoder = self.cls.predictions, "cls.predictions.decoder.bias"
        missing = set() if missing_keys is None else missing_keys
        if decoder in missing and BIAS_KEY not in missing:
            # Saved by transformers after resizing, when they were one and stored once.
            head.decoder.bias = head.bias
            missing.discard(decoder)
        head.bias = head.decoder.bias
        missing.discard(BIAS_KEY)

    def get_output_embeddings(self) -> nn.Module:
        """Return the layer that scores the vocabulary."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the layer that scores the vocabulary, as resizing the vocabulary does.

        Args:
            new_embeddings: The new one, with a bias.
        """
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
    ) -> MaskedLMOutput | tuple[Tensor, ...]:
        """Score the vocabulary at every token, or at the masked ones, and compute the loss.

        Args:
            input_ids: As in :meth:`RoFormerModel.forward`.
            attention_mask: As there.
            token_type_ids: As there.
            position_ids: As there.
            document_ids: As there.
            inputs_embeds: As there.
            labels: ``(batch, seq)``, the original token where one was masked, -100 elsewhere.
            output_attentions: As there.
            output_hidden_states: As there.
            num_items_in_batch: Masked tokens of the whole optimiser step, by which the summed loss
                is divided; None means those of this batch.
            return_dict: As there.
            cu_seq_lens_q: As there.
            cu_seq_lens_k: As there.
            max_length_q: As there.
            max_length_k: As there.

        Returns:
            ``logits`` ``(batch, seq, vocab_size)``; with labels also ``loss``. With labels and
            ``config.sparse_prediction`` only the masked rows are decoded, and ``logits`` is
            ``(masked tokens, vocab_size)`` in the order of the tokens, as in transformers'
            ModernBERT. While compiling or exporting all rows are decoded, since the number of
            masked ones depends on the data. The loss of a batch without masked tokens is 0.

        Raises:
            ShapeError: ``labels`` or another input has a shape, dtype or value that does not fit.
            ConfigError: As in :meth:`RoFormerModel.forward`.
        """
        outputs = self.roformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            document_ids=document_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            cu_seq_lens_q=cu_seq_lens_q,
            cu_seq_lens_k=cu_seq_lens_k,
            max_length_q=max_length_q,
            max_length_k=max_length_k,
        )
        hidden = outputs.last_hidden_state
        if labels is not None:
            masked_tokens(labels, (hidden.shape[0], hidden.shape[1]))
            if readable(labels):
                masked = labels != IGNORED_LABEL
                chosen = labels[masked]
                check_numbers("labels", chosen, self.config.vocab_size, "vocab_size - 1, or -100")
                if self.config.sparse_prediction:
                    hidden, labels = hidden[masked], chosen
        logits = self.cls(hidden)
        loss = None if labels is None else masked_lm_loss(logits, labels, num_items_in_batch)
        return pack(
            MaskedLMOutput(
                loss=loss,
                logits=logits,
                hidden_states=outputs.hidden_states,
                attentions=outputs.attentions,
            ),
            self.config.return_dict if return_dict is None else return_dict,
        )


class RoFormerClassificationHead(nn.Module):
    """Classify by the first token of a row.

    Args:
        config: The model's configuration.
    """

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.classifier_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        assert config.num_labels is not None
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits, ``(batch, num_labels)``.

        Args:
            hidden: ``(batch, hidden_size)``, the first token of each row.
        """
        # Published heads use the model's own activation here, not tanh as BERT's pooler.
        first = self.activation(self.dense(self.dropout(hidden)))
        logits: Tensor = self.out_proj(self.dropout(first))
        return logits


class RoFormerForSequenceClassification(RoFormerPreTrainedModel):
    """Classify or score whole rows.

    Args:
        config: The model's configuration; ``num_labels`` and ``problem_type`` as in transformers.

    Example:
        >>> config = RopewalkRoFormerConfig(vocab_size=9, hidden_size=8, num_attention_heads=2)
        >>> RoFormerForSequenceClassification(config)(torch.tensor([[5, 6, 7]])).logits.shape
        torch.Size([1, 2])
    """

    _built_in = (*RoFormerPreTrainedModel._built_in, "num_labels")
    _head = "classifier."
    _fresh_head = True
    # The loss is a mean over rows; Trainer divides it among accumulated batches.
    accepts_loss_kwargs = False

    def __init__(self, config: RopewalkRoFormerConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.roformer = RoFormerModel(config)
        self.classifier = RoFormerClassificationHead(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
    ) -> SequenceClassifierOutput | tuple[Tensor, ...]:
        """Score rows and compute the loss.

        Args:
            input_ids: As in :meth:`RoFormerModel.forward`.
            attention_mask: As there.
            token_type_ids: As there.
            position_ids: As there.
            document_ids: As there.
            inputs_embeds: As there.
            labels: ``(batch,)`` integers for classes; ``(batch,)`` or ``(batch, num_labels)`` real
                numbers for regression and for several labels at once; a packed sequence counts as
                a row. ``config.problem_type`` decides; if it is None it is set from the labels,
                as in transformers.
            output_attentions: As there.
            output_hidden_states: As there.
            return_dict: As there.
            cu_seq_lens_q: As there.
            cu_seq_lens_k: As there.
            max_length_q: As there.
            max_length_k: As there.

        Returns:
            ``logits`` ``(batch, num_labels)``, one row for each packed sequence; with labels also
            ``loss``.

        Raises:
            ShapeError: ``labels`` or another input has a shape, dtype or value that does not fit.
            ConfigError: As in :meth:`RoFormerModel.forward`.
        """
        outputs = self.roformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            document_ids=document_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            cu_seq_lens_q=cu_seq_lens_q,
            cu_seq_lens_k=cu_seq_lens_k,
            max_length_q=max_length_q,
            max_length_k=max_length_k,
        )
        first = first_tokens(outputs.last_hidden_state, attention_mask, cu_seq_lens_q)
        logits = self.classifier(first)
        loss: Any = None
        if labels is not None:
            class_labels(self.config, labels, logits.shape[0])
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return pack(
            SequenceClassifierOutput(
                loss=loss,
                logits=logits,
                hidden_states=outputs.hidden_states,
                attentions=outputs.attentions,
            ),
            self.config.return_dict if return_dict is None else return_dict,
        )
