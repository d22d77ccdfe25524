"""Compare what a live model rotates with the rotation that its config describes, by numbers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ropewalk.errors import ConfigError
from ropewalk.rotary import RotaryEmbedding

if TYPE_CHECKING:
    from ropewalk.extension.methods import Call
    from ropewalk.extension.swapping import Tables

_POSITIONS = (0, 1, 2, 3, 5, 17, 100, 1000, 5000, 30_000, 100_000)
# Rounding of a float32 frequency and of its product with the position, twice over; and of cos,
# sin and the rotation itself.
_ANGLE, _ARITHMETIC = 5e-7, 2e-5


def check_rotary(rotary: nn.Module, tables: Tables) -> None:
    """Refuse a rotary module whose frequencies are not those of its config.

    Args:
        rotary: The model's own module, not yet attached.
        tables: What is to replace it.

    Raises:
        ConfigError: Its frequencies are on no device, or were changed: by a cast, or by hand.
    """
    held = next(rotary.buffers(), None)
    if held is None:
        raise ConfigError("holds neither frequencies nor a table")
    if held.is_meta:
        raise ConfigError("is on the meta device; load the weights first")
    for label, rope in tables.by_label.items():
        live = getattr(rotary, "inv_freq" if label is None else f"{label}_inv_freq", None)
        if not isinstance(live, Tensor) or rope.spec.depends_on_length:
            continue  # a table, or changed with every call; the rotation itself is compared below
        expected = torch.from_numpy(rope.spec.inv_freq())
        found = live.detach().cpu().double()
        if found.shape != expected.shape:
            continue  # kept in another form; likewise
        # float32 powers are off by a few units in the last place.
        off = (found - expected).abs() > 2e-6 * expected
        if bool(off.any()):
            pair = int(off.nonzero()[0])
            raise ConfigError(
                f"turns pair {pair} by {float(found[pair]):.6g} radians per position where its "
                f"config says {float(expected[pair]):.6g} (frequencies are {live.dtype}; a model "
                "that was cast by .to(dtype) or .half() has rounded them: load it with "
                "from_pretrained(..., dtype=...), or attach it before the cast)"
            )


def turning_by_width(
    rotary: nn.Module, tables: Tables, label: str | None, calls: tuple[Call, ...]
) -> dict[tuple[str, int], RotaryEmbedding]:
    """Return our rotation by the model's function and the width of the vectors it is given.

    Args:
        rotary: The model's own rotary module.
        tables: What is to replace it.
        label: Layer type of the attention layer.
        calls: How the layer calls its function.

    Returns:
        The rotations that equal those of the model at 11 positions up to 100,000. A function that
        the config does not select, as half of DeepSeek's are, has none.

    Raises:
        ConfigError: None does.
    """
    rope = tables.by_label[label]
    spec = rope.spec
    candidates = {spec.head_dim: rope}
    if spec.rotary_dim != spec.head_dim and not spec.blocks:
        bare = spec.replace(head_dim=spec.rotary_dim, rotary_offset=0)
        candidates[spec.rotary_dim] = RotaryEmbedding(bare)
    names = sorted({call.name for call in calls})
    found = {
        (name, width): candidate
        for name in names
        for width, candidate in candidates.items()
        if all(_agree(rotary, tables, label, c, candidate) for c in calls if c.name == name)
    }
    if not found:
        raise ConfigError(f"rotates by {', '.join(names)} otherwise than its config says")
    return found


@torch.no_grad()
def _agree(
    rotary: nn.Module, tables: Tables, label: str | None, call: Call, rope: RotaryEmbedding
) -> bool:
    """Whether the model's table and function rotate as ours do."""
    buffer = next(rotary.buffers())
    width = rope.spec.head_dim
    end = getattr(rotary, "max_positions", _POSITIONS[-1] + 1)  # GPT-J: the end of its table
    all_positions = tuple(position for position in _POSITIONS if position < end)
    for positions in (all_positions[:6], all_positions):  # by length: the short list, the long one
        ids = torch.tensor([positions], device=buffer.device)
        x = torch.from_numpy(np.sin(np.arange(1.0, 1 + 2 * len(positions) * width))).float()
        x = x.view(1, 2, len(positions), width).to(buffer.device)
        arguments = () if label is None else (label,)
        # A copy, since the module may remember what it was asked.
        table = copy.deepcopy(rotary)(torch.zeros(1, 1, device=ids.device), ids, *arguments)
        given = x if call.unsqueeze_dim == 1 else x.transpose(1, 2)
        vectors = [given] * len(call.vectors)
        try:
            theirs = call.function(*vectors, *table, **call.keywords)
        except RuntimeError:
            return False  # not made for vectors of this width
        ours = rope.rotate(x, table=tables.table(ids, label, torch.float32))
        allowed = (_ARITHMETIC + _ANGLE * ids[0]) * float(ours.abs().max().clamp(min=1.0))
        for result in theirs if len(vectors) > 1 else [theirs]:
            result = result if call.unsqueeze_dim == 1 else result.transpose(1, 2)
            if result.shape != ours.shape:
                return False
            error = (result - ours).abs().amax(-1)[0]
            if bool((error > allowed).any()):
                return False
    return True
