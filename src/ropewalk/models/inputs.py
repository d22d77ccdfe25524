"""Inputs of a forward: which positions, and which keys a query may see; checked once, up front."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput
from transformers.utils.import_utils import is_tracing

from ropewalk.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from ropewalk.models.config import RopewalkRoFormerConfig

Output = TypeVar("Output", bound=ModelOutput)

IGNORED_LABEL = -100
"""Label of what is not to be predicted, as everywhere in torch and transformers."""


def readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor may decide what is computed: not while tracing.

    Args:
        tensor: Any tensor.
    """
    return not (is_tracing(tensor) or tensor.is_meta)


def check_tensor(name: str, value: object) -> None:
    """Refuse what is no tensor.

    Args:
        name: The argument.
        value: What was given.

    Raises:
        ShapeError: It is something else.
    """
    if not isinstance(value, Tensor):
        raise ShapeError(f"{name} must be a torch tensor; got a {type(value).__name__}")


def check_numbers(name: str, tensor: Tensor, size: int, rule: str) -> None:
    """Refuse what cannot index a table: torch's own error names neither, and kills a GPU process.

    Args:
        name: The argument.
        tensor: What was given; its values are checked unless a graph is traced.
        size: Rows of the table.
        rule: What sets the size, for the message.

    Raises:
        ShapeError: Not integers, or one is negative or too large.
    """
    if tensor.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"{name} must be of dtype torch.int64; got {tensor.dtype}")
    if readable(tensor) and tensor.numel():
        lowest, highest = (int(end) for end in torch.aminmax(tensor))
        if lowest < 0 or highest >= size:
            raise ShapeError(
                f"{name} must be from 0 to {size - 1} ({rule}); "
                f"got {lowest if lowest < 0 else highest}"
            )


def rows(
    config: RopewalkRoFormerConfig,
    input_ids: Tensor | None,
    token_type_ids: Tensor | None,
    inputs_embeds: Tensor | None,
) -> tuple[tuple[int, int], torch.device]:
    """Check the tokens; return (batch, seq) and the device of whichever input is given.

    Args:
        config: The model's configuration.
        input_ids: ``(batch, seq)``, or None.
        token_type_ids: ``(batch, seq)``, or None.
        inputs_embeds: ``(batch, seq, embedding_size)``, or None.

    Raises:
        ConfigError: Both or neither is given.
        ShapeError: Wrong shape or dtype, rows without tokens, or a token that does not exist.
    """
    if input_ids is not None and inputs_embeds is None:
        name, tokens, expected = "input_ids", input_ids, "(batch, seq)"
    elif inputs_embeds is not None and input_ids is None:
        name, tokens, expected = "inputs_embeds", inputs_embeds, "(batch, seq, embedding_size)"
    else:
        given = "neither" if input_ids is None else "both"
        raise ConfigError(f"exactly one of input_ids and inputs_embeds must be given; got {given}")
    check_tensor(name, tokens)
    if tokens.ndim != expected.count(",") + 1:
        raise ShapeError(f"{name} must be {expected}; got {tuple(tokens.shape)}")
    if tokens.shape[1] == 0:
        raise ShapeError(f"{name} must have at least one token per row; got {tuple(tokens.shape)}")
    shape = (tokens.shape[0], tokens.shape[1])
    if input_ids is not None:
        check_numbers("input_ids", input_ids, config.vocab_size, "vocab_size - 1")
    if token_type_ids is not None:
        _shaped("token_type_ids", token_type_ids, shape)
        check_numbers(
            "token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size - 1"
        )
    return shape, tokens.device


def _shaped(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    check_tensor(name, value)
    if tuple(value.shape) != shape:
        raise ShapeError(f"{name} must be {shape}; got {tuple(value.shape)}")


def checked_masks(
    attention_mask: Tensor | None, document_ids: Tensor | None, shape: tuple[int, int]
) -> tuple[Tensor | None, Tensor | None]:
    """Check what hides tokens from each other, and drop what hides nothing.

    The fused kernels are fastest without a mask; while a graph is traced its values cannot be
    read and it stays.

    Args:
        attention_mask: ``(batch, seq)``, 1 for real tokens, 0 for padding, or None.
        document_ids: ``(batch, seq)``; a token sees only tokens with its own number; or None.
        shape: (batch, seq).

    Returns:
        The two, each None where it hides nothing.

    Raises:
        ShapeError: Shapes do not fit, or the mask holds something else than zeros and ones.
    """
    for name, given in (("attention_mask", attention_mask), ("document_ids", document_ids)):
        if given is not None:
            _shaped(name, given, shape)
    if attention_mask is not None and readable(attention_mask):
        real = attention_mask == 1
        if real.all():
            attention_mask = None
        elif not (real | (attention_mask == 0)).all():
            raise ShapeError(
                "attention_mask must hold 1 for real tokens and 0 for padding only; got values "
                f"from {attention_mask.min()} to {attention_mask.max()}; number documents with "
                "document_ids"
            )
    if document_ids is not None and readable(document_ids):
        several = bool((document_ids != document_ids[:, :1]).any())
        document_ids = document_ids if several else None
    return attention_mask, document_ids


def visible_keys(attention_mask: Tensor | None, document_ids: Tensor | None) -> Tensor | None:
    """Return which keys each query may see.

    Args:
        attention_mask: From :func:`checked_masks`.
        document_ids: From there too.

    Returns:
        ``(batch, 1, 1 or seq, seq)`` bool, True where the query may look; None for everywhere.
    """
    mask: Tensor | None = None
    if attention_mask is not None:
        mask = (attention_mask == 1)[:, None, None, :]
    if document_ids is not None:
        together = document_ids[:, None, :, None] == document_ids[:, None, None, :]
        mask = together if mask is None else mask & together
    return mask


def positions(
    config: RopewalkRoFormerConfig,
    position_ids: Tensor | None,
    document_ids: Tensor | None,
    shape: tuple[int, int],
    device: torch.device,
) -> Tensor:
    """Return the positions of the tokens.

    Args:
        config: The model's configuration.
        position_ids: ``(seq,)`` or ``(batch, seq)``; None for 0 to ``seq - 1``.
        document_ids: ``(batch, seq)`` or None.
        shape: (batch, seq).
        device: Where they are wanted.

    Returns:
        ``(seq,)`` or ``(batch, seq)``.

    Raises:
        ShapeError: Shape or dtype does not fit.
        ConfigError: A position is past the learned table; or there are several documents, the
            model depends on absolute positions, and none are given.
    """
    length = shape[1]
    if position_ids is None:
        absolute = config.rotary_value or config.position_encoding in ("learned", "sinusoidal")
        if document_ids is not None and absolute:
            raise ConfigError(
                "position_ids must be given with document_ids where absolute positions matter "
                f"(position_encoding={config.position_encoding!r}, "
                f"rotary_value={config.rotary_value}); got None; restart them in each document"
            )
        if config.position_encoding == "learned":
            _check_table(0, length - 1, length, config.max_position_embeddings)
        return torch.arange(length, device=device)
    check_tensor("position_ids", position_ids)
    if tuple(position_ids.shape) not in ((length,), (1, length), shape):
        raise ShapeError(
            f"position_ids must be ({length},) or {shape}; got {tuple(position_ids.shape)}"
        )
    if config.position_encoding == "learned":
        if position_ids.is_floating_point():
            raise ShapeError(
                "position_ids must be integers for position_encoding='learned'; "
                f"got {position_ids.dtype}"
            )
        if readable(position_ids) and position_ids.numel():
            lowest, highest = (int(end) for end in torch.aminmax(position_ids))
            _check_table(lowest, highest, length, config.max_position_embeddings)
    return (
        position_ids[0] if position_ids.ndim == 2 and position_ids.shape[0] == 1 else position_ids
    )


def _check_table(lowest: int, highest: int, length: int, size: int) -> None:
    if lowest >= 0 and highest < size:
        return
    raise ConfigError(
        f"position {highest if lowest >= 0 else lowest} is not possible: "
        f"position_encoding='learned' has a table of {size} positions (max_position_embeddings); "
        f"got rows of {length} tokens; use position_encoding='rope' for longer ones"
    )


def row_lengths(
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    shape: tuple[int, int],
) -> int | Tensor:
    """Return how long the rows are, for scaling rules that depend on it.

    The length of a row is the span of positions that its real tokens cover: their number, where
    positions follow each other. So padding on either side, other rows of the batch and a shift of
    all positions change nothing. Documents that share a row have lengths of their own.

    Args:
        position_ids: As the caller gave them, and :func:`positions` found them right.
        attention_mask: ``(batch, seq)``, checked, or None.
        document_ids: ``(batch, seq)``, checked, or None.
        shape: (batch, seq).

    Returns:
        One length for all rows; or one per row, ``(batch,)``; or with documents one per token,
        ``(batch, seq)``. What has no real token has length 1.

    Raises:
        ConfigError: Values would have to be read while a graph is traced.
    """
    given = {
        "position_ids": position_ids,
        "attention_mask": attention_mask,
        "document_ids": document_ids,
    }
    for name, tensor in given.items():
        if tensor is not None and not (readable(tensor) or tensor.is_meta):
            raise ConfigError(
                f"{name} must be left out under torch.compile and torch.export if the rope_type "
                "depends on the length of the row, which is a constant of the graph; got a tensor; "
                "run such a model eagerly"
            )
    tensors = [tensor for tensor in given.values() if tensor is not None]
    if not tensors or tensors[0].is_meta or 0 in shape:
        return shape[1]
    # On the host, where lengths are needed, and where float64 holds every position.
    places = torch.arange(shape[1]) if position_ids is None else position_ids.detach().cpu()
    places = places.double().expand(shape)
    real = torch.ones(shape, dtype=torch.bool)
    if attention_mask is not None:
        real = attention_mask.cpu() == 1
    group = torch.arange(shape[0])[:, None].expand(shape)
    if document_ids is not None:
        pairs = torch.stack((group, document_ids.cpu()), dim=-1)
        group = pairs.flatten(0, 1).unique(dim=0, return_inverse=True)[1].view(shape)
    lowest = torch.full((int(group.max()) + 1,), torch.inf, dtype=torch.float64)
    highest = -lowest
    lowest.scatter_reduce_(0, group[real], places[real], "amin")
    highest.scatter_reduce_(0, group[real], places[real], "amax")
    spans = (highest - lowest).ceil().clamp(min=0.0).long() + 1
    if bool((spans == spans[0]).all()):
        return int(spans[0])
    return spans if document_ids is None else spans[group]


def masked_tokens(labels: Tensor, shape: tuple[int, int]) -> None:
    """Check the labels of a masked language model, but for their values.

    Args:
        labels: ``(batch, seq)`` integers.
        shape: (batch, seq).

    Raises:
        ShapeError: Another shape or dtype.
    """
    _shaped("labels", labels, shape)
    if labels.dtype != torch.int64:
        raise ShapeError(f"labels must be of dtype torch.int64; got {labels.dtype}")


def class_labels(config: RopewalkRoFormerConfig, labels: Tensor, batch: int) -> None:
    """Check the labels of a classifier against the loss that transformers chooses for them.

    Args:
        config: The model's configuration; its ``problem_type`` may be None.
        labels: ``(batch,)`` or ``(batch, num_labels)``.
        batch: Number of rows.

    Raises:
        ShapeError: Shape or dtype is not that of the loss, or there is no such class.
    """
    check_tensor("labels", labels)
    assert config.num_labels is not None
    size = config.num_labels
    kind = config.problem_type
    if kind is None and size == 1:
        kind = "regression"
    elif kind is None:
        real = labels.is_floating_point()
        kind = "multi_label_classification" if real else "single_label_classification"
    if kind == "single_label_classification":
        _shaped("labels", labels, (batch,))
        kept = labels[labels != IGNORED_LABEL] if readable(labels) else labels
        check_numbers("labels", kept, size, "num_labels - 1")
        return
    if not labels.is_floating_point():
        raise ShapeError(f"labels must be real numbers for {kind}; got {labels.dtype}")
    if not (size == 1 and tuple(labels.shape) == (batch,)):
        _shaped("labels", labels, (batch, size))


def pack(output: Output, return_dict: bool | None) -> Output | tuple[Tensor, ...]:
    """Return a model output as it is, or as the tuple that ``return_dict=False`` asks for.

    Args:
        output: What a model returns.
        return_dict: False for a tuple of what is not None.
    """
    return output if return_dict else output.to_tuple()
