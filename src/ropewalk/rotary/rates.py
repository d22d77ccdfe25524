"""The numbers of a spec on a device: how fast every pair turns, and by how much it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import CheckpointError, ConfigError, ShapeError
from ropewalk.spec import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ropewalk.spec import RopeSpec

    SeqLen = int | Sequence[int] | NDArray[np.integer[Any]] | Tensor
    """Length of the row, or one length per row, as callers write it."""
    Lengths = int | tuple[int, ...] | None
    """The same once checked; None where no rule depends on it."""

# Entries kept on devices; a served model meets a new length with every token.
_MOST_KEPT = 64


class Rates(NamedTuple):
    """What turns positions into a table, for one block and one length, or one length per row."""

    inv_freq: Tensor
    """``(r/2,)``, or ``(rows, 1, r/2)`` for one length per row; radians per scaled position."""
    amplitude: Tensor | float
    """Factor on cos and sin, a number or ``(rows, 1, 1)``."""
    log_gain: Tensor | None
    """``(r/2,)`` for rules whose amplitude depends on position and role, else None."""


def kept_rates(
    kept: dict[tuple[Any, ...], Rates],
    block: RopeSpec,
    rows: Lengths,
    device: torch.device,
    dtype: torch.dtype,
) -> Rates:
    """Return the rates of a block from a store, which is filled as far as it is bounded.

    Args:
        kept: The store; under a tracer it is left alone, and the rates are constants.
        block: A rotation without blocks.
        rows: Length of the row, or one per row; None where the rule does not depend on it.
        device: Where the tensors shall live.
        dtype: What they are cast to, after all arithmetic in float64 on the host.

    Raises:
        ConfigError: The rule depends on a length, and there is none.
    """
    if torch.compiler.is_compiling():
        constant: Rates = _constant_rates(block, rows, device, dtype)
        return constant
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return _rates(block, rows, device, dtype)  # fake tensors mix with no kept ones
    key = (block, rows, device, dtype)
    found = kept.get(key)
    if found is None:
        # An inference tensor kept here would fail in a later training step.
        with torch.inference_mode(False):
            found = _rates(block, rows, device, dtype)
        if type(found.inv_freq) is Tensor:  # not the fake tensor of a tracer
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            kept[key] = found
    return found


def check_stored(stored: Tensor, spec: RopeSpec, name: str) -> None:
    """Refuse frequencies of a checkpoint that are not those of the spec.

    Modules that keep frequencies as a buffer store them, perhaps rounded with the model; where
    they depend on the length, those of a short row.

    Args:
        stored: As read from the checkpoint.
        spec: The rotation.
        name: Key of the checkpoint, for the message.

    Raises:
        CheckpointError: Other frequencies, or another number of them.
    """
    if stored.is_meta:
        return
    ours = torch.from_numpy(spec.inv_freq(1 if spec.depends_on_length else None))
    theirs = stored.detach().cpu().double()
    if theirs.shape != ours.shape:
        raise CheckpointError(
            f"{name} must have one frequency for each of the {len(ours)} pairs; "
            f"got {tuple(theirs.shape)}"
        )
    # Half a unit in the last place of bfloat16, and of the smallest float16.
    differs = ~((theirs - ours).abs() <= 2.0**-8 * ours + 2.0**-25)
    if bool(differs.any()):
        pair = int(differs.nonzero()[0])
        raise CheckpointError(
            f"{name} must be the frequencies of the spec, {ours[pair]:.6g} for pair {pair}; got "
            f"{theirs[pair]:.6g}; build the spec from the config of the checkpoint"
        )


def row_lengths(seq_len: SeqLen | None, spec: RopeSpec, position_ids: Tensor) -> Lengths:
    """Return the length, or one per row of the positions; None where no rule depends on it.

    Args:
        seq_len: What the caller gave.
        spec: The rotation.
        position_ids: Checked positions.

    Raises:
        ConfigError: Not a positive integer, or a tensor under a tracer.
        ShapeError: The positions are of one vector, or of another number of rows.
    """
    tracing = torch.compiler.is_compiling()
    if seq_len is None or (tracing and not spec.depends_on_length):
        return None
    if tracing and isinstance(seq_len, Tensor):
        raise ConfigError(
            "seq_len must be an int under torch.compile and torch.export, where frequencies are "
            "constants of the graph; got a tensor; build the table outside"
        )
    rows = checks.lengths("seq_len", seq_len)
    if isinstance(rows, tuple):
        shape = tuple(position_ids.shape)[1 if spec.n_axes > 1 else 0 :]
        if not shape or (len(shape) == 2 and shape[0] not in (1, len(rows))):
            raise ShapeError(
                "seq_len with one length per row needs positions (seq,) or (batch, seq) of as many "
                f"rows; got {len(rows)} lengths, position_ids {tuple(position_ids.shape)}"
            )
    return rows if spec.depends_on_length else None


def _rates(block: RopeSpec, rows: Lengths, device: torch.device, dtype: torch.dtype) -> Rates:
    inv_freq = torch.from_numpy(block.inv_freq(rows)).to(device, dtype)
    gain = block.log_gain()
    if gain is not None:
        return Rates(inv_freq, 1.0, torch.from_numpy(gain).to(device, dtype))
    if not isinstance(rows, tuple):
        return Rates(inv_freq, block.attention_factor(rows), None)
    amplitude = torch.from_numpy(block.attention_factor(rows)).to(device, dtype)
    return Rates(inv_freq[:, None], amplitude[:, None, None], None)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_rates(
    block: RopeSpec, rows: Lengths, device: torch.device, dtype: torch.dtype
) -> Rates:
    """Return the rates as constants of the graph that is being traced."""
    return _rates(block, rows, device, dtype)
