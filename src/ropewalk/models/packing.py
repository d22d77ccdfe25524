"""Which tokens of a batch are computed, and how they lie one behind the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ropewalk.attention.packed import sequence_lengths
from ropewalk.errors import ConfigError, ShapeError
from ropewalk.models.inputs import check_tensor, readable
from ropewalk.rotary import positions_from_cu_seqlens

if TYPE_CHECKING:
    from collections.abc import Sequence


class PackedSequences(NamedTuple):
    """What attention takes in place of a mask when sequences are packed."""

    cu_seqlens: Tensor
    """``(sequences + 1,)`` int32, cumulative lengths."""
    max_length: int
    """Length of the longest."""


@dataclass(frozen=True, eq=False)
class Packing:
    """Lay the tokens of a batch that are computed one behind the other, and put them back.

    Args:
        sequences: The sequences that the packed tokens form.
        chosen: ``(tokens,)``, where each packed token stands among the ``batch * seq`` of the
            batch; None when the batch is packed already.
        shape: (batch, seq).
    """

    sequences: PackedSequences
    chosen: Tensor | None
    shape: tuple[int, int]

    def keeps_neighbours(self) -> bool:
        """Return whether the tokens of every sequence are neighbours in the batch too.

        Only then do windows mean the same in both: padding inside a row, or documents that take
        turns in it, would come closer to each other.
        """
        if self.chosen is None or len(self.chosen) < 2:
            return True
        follows = self.chosen.diff() == 1
        follows[self.sequences.cu_seqlens[1:-1].long() - 1] = True
        return bool(follows.all())

    def pack(self, batch: Tensor) -> Tensor:
        """Return the chosen tokens as one row.

        Args:
            batch: ``(batch, seq, ...)``, or what broadcasts to it along batch and seq.

        Returns:
            ``(1, tokens, ...)``.
        """
        if self.chosen is None:
            return batch
        if batch.shape[:2] != self.shape:
            batch = batch.expand(*self.shape, *batch.shape[2:])
        return batch.flatten(0, 1).index_select(0, self.chosen)[None]

    def pack_lengths(self, lengths: int | Tensor | None) -> int | Tensor | None:
        """Return the lengths that a rotation depends on as one for all tokens, or one for each.

        Args:
            lengths: What :func:`ropewalk.models.inputs.row_lengths` returns, or None.
        """
        if not isinstance(lengths, Tensor):
            return lengths
        each = lengths[:, None] if lengths.ndim == 1 else lengths
        if self.chosen is None:
            return each
        return each.expand(self.shape).flatten()[self.chosen.to(each.device)][None]

    def unpack(self, row: Tensor) -> Tensor:
        """Put packed tokens where they came from, with zeros elsewhere.

        Args:
            row: ``(1, tokens, ...)``.

        Returns:
            ``(batch, seq, ...)``.
        """
        if self.chosen is None:
            return row
        batch, seq = self.shape
        padded = row.new_zeros((batch * seq, *row.shape[2:])).index_copy_(0, self.chosen, row[0])
        return padded.view(batch, seq, *row.shape[2:])


def pack_rows(
    attention_mask: Tensor | None, document_ids: Tensor | None, shape: tuple[int, int]
) -> Packing | None:
    """Return how the real tokens of rows are packed, sequences of one length side by side.

    A sequence is what a token may see: the real tokens of its row, or those of its document in
    that row. Attention takes neighbours of one length in one call, so sequences are sorted.

    Args:
        attention_mask: ``(batch, seq)``, checked, or None.
        document_ids: ``(batch, seq)``, checked, or None.
        shape: (batch, seq).

    Returns:
        None if no token is real.
    """
    given = document_ids if attention_mask is None else attention_mask
    assert given is not None
    rows = torch.arange(shape[0], device=given.device)[:, None].expand(shape).flatten()
    chosen = torch.arange(len(rows), device=given.device)
    if attention_mask is not None:
        chosen = (attention_mask == 1).flatten().nonzero()[:, 0]
    if not len(chosen):
        return None
    owners = rows[chosen]
    if document_ids is not None:
        pairs = torch.stack((owners, document_ids.flatten()[chosen]), dim=1)
        owners = pairs.unique(dim=0, return_inverse=True)[1]
    # Equal lengths together, and the tokens of a sequence in their order.
    counts = owners.bincount()
    by_length = counts.argsort(stable=True)
    place = torch.empty_like(by_length)
    place[by_length] = torch.arange(len(by_length), device=by_length.device)
    chosen = chosen[place[owners].argsort(stable=True)]
    lengths = counts[by_length]
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return Packing(PackedSequences(ends, int(lengths[-1])), chosen, shape)


@dataclass(frozen=True, eq=False)
class PackedInput:
    """Describe a batch that comes packed, under the names transformers gives such inputs.

    Args:
        cu_seqlens: ``(sequences + 1,)``, cumulative lengths.
        max_length: Length of the longest sequence, or None if it was not given.
    """

    cu_seqlens: Tensor
    max_length: int | None

    def position_ids(self, total: int) -> Tensor:
        """Return positions that restart in each sequence, ``(1, tokens)``.

        Args:
            total: Tokens in all.
        """
        return positions_from_cu_seqlens(self.cu_seqlens, total)[None]

    def document_ids(self, total: int) -> Tensor:
        """Return the number of each token's sequence, ``(1, tokens)``.

        Args:
            total: Tokens in all.
        """
        ends = self.cu_seqlens[1:].contiguous().long()
        tokens = torch.arange(total, device=ends.device)
        return torch.searchsorted(ends, tokens, right=True)[None]

    def packing(self, shape: tuple[int, int]) -> Packing:
        """Return the packing that the batch is in.

        Args:
            shape: (1, tokens).
        """
        longest = self.max_length
        if longest is None:
            longest = max(sequence_lengths(self.cu_seqlens, shape[1]), default=0)
        return Packing(PackedSequences(self.cu_seqlens.to(torch.int32), longest), None, shape)


def packed_input(
    cu_seq_lens_q: Tensor | None,
    cu_seq_lens_k: Tensor | None,
    max_length_q: int | Tensor | None,
    max_length_k: int | Tensor | None,
    shape: tuple[int, int],
    masks: Sequence[Tensor | None],
) -> PackedInput | None:
    """Check the description of a packed batch.

    Args:
        cu_seq_lens_q: ``(sequences + 1,)`` integers, or None for a batch that is not packed.
        cu_seq_lens_k: The same; None means the same.
        max_length_q: Length of the longest sequence, or None.
        max_length_k: The same, or None.
        shape: (batch, seq) of the tokens.
        masks: ``attention_mask`` and ``document_ids``, which have no place beside it.

    Returns:
        None for a batch that is not packed.

    Raises:
        ConfigError: Something is given without ``cu_seq_lens_q``, or beside it.
        ShapeError: More than one row, or the lengths are not those of the tokens.
    """
    names = {
        "cu_seq_lens_k": cu_seq_lens_k,
        "max_length_q": max_length_q,
        "max_length_k": max_length_k,
    }
    if cu_seq_lens_q is None:
        for name, value in names.items():
            if value is not None:
                raise ConfigError(f"{name} needs cu_seq_lens_q beside it; got None for that")
        return None
    if any(mask is not None for mask in masks):
        raise ConfigError(
            "attention_mask and document_ids must be left out beside cu_seq_lens_q, which says "
            "what a token sees; got one of them"
        )
    if shape[0] != 1:
        raise ShapeError(
            f"a batch with cu_seq_lens_q must be one row of packed tokens; got {shape[0]} rows"
        )
    check_tensor("cu_seq_lens_q", cu_seq_lens_q)
    if readable(cu_seq_lens_q) and cu_seq_lens_q.device.type == "cpu":
        if 0 in sequence_lengths(cu_seq_lens_q, shape[1]):
            raise ShapeError(
                "cu_seq_lens_q must hold no empty sequence; got "
                f"{cu_seq_lens_q.tolist()!s:.80}; leave it out"
            )
        if cu_seq_lens_k is not None and not torch.equal(cu_seq_lens_q, cu_seq_lens_k):
            raise ConfigError(
                "cu_seq_lens_k must equal cu_seq_lens_q, since an encoder's queries and keys are "
                f"the same tokens; got {cu_seq_lens_k.tolist()!s:.80}"
            )
    longest = max_length_q if max_length_k is None else max_length_k
    return PackedInput(cu_seq_lens_q, None if longest is None else int(longest))


def first_tokens(
    hidden: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None
) -> Tensor:
    """Return the first real token of every row, or of every packed sequence.

    Args:
        hidden: ``(batch, seq, hidden_size)``.
        attention_mask: ``(batch, seq)``, 1 for real tokens, or None; a row of padding alone gives
            its first token.
        cu_seqlens: ``(sequences + 1,)``, cumulative lengths of the sequences in a single row, or
            None.

    Returns:
        ``(batch, hidden_size)`` or ``(sequences, hidden_size)``.

    Example:
        >>> first_tokens(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[0, 1]]), None)
        tensor([[2.]])
    """
    if cu_seqlens is not None:
        return hidden[0].index_select(0, cu_seqlens[:-1].to(hidden.device))
    if attention_mask is None:
        return hidden[:, 0]
    # Left padding stands before it.
    places = attention_mask.to(torch.int32).argmax(dim=1).to(hidden.device)
    return hidden.gather(1, places[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)
