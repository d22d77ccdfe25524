"""Errors of tables and of rotated vectors against float64, near positions up to ten million."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ropewalk.recipes.bench.contenders import one_line
from ropewalk.recipes.bench.exact import THETA, exact_rotation, exact_table, largest_error
from ropewalk.recipes.bench.operator import check_peers
from ropewalk.recipes.bench.peers import PEERS, Peer, Setup, absent
from ropewalk.recipes.bench.results import Accuracy
from ropewalk.rotary import RotaryEmbedding
from ropewalk.spec import RopeSpec
from ropewalk.spec.checks import integer

if TYPE_CHECKING:
    from ropewalk.recipes.bench.peers import Rotate
    from ropewalk.recipes.bench.progress import Show
    from ropewalk.spec import PairLayout

POSITIONS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
"""Last positions of the stretches that are measured."""

_LENGTH = 64
_HEAD_DIM = 128
_HEADS = 4


@dataclass(frozen=True)
class AccuracySettings:
    """What to measure."""

    positions: tuple[int, ...] = POSITIONS
    """Last positions of stretches of 64."""
    seed: int = 0
    """Of the vectors."""
    peers: str = "installed"
    """As in OperatorSettings."""

    def __post_init__(self) -> None:
        for position in self.positions:
            integer("positions", position, at_least=_LENGTH, at_most=POSITIONS[-1])
        integer("seed", self.seed, at_least=0, at_most=2**63 - 1)
        check_peers(self.peers)


class _Code(NamedTuple):
    """A rotation whose errors are measured."""

    code: str
    layout: PairLayout
    table: tuple[Tensor, Tensor]
    rotate: Callable[[torch.dtype], Rotate]
    """Prepared for vectors of one dtype, stored as (batch, heads, seq, head_dim)."""


def estimate(settings: AccuracySettings) -> str:
    """Return what a run will take, in one line.

    Args:
        settings: What to measure.
    """
    # RoFormer's table is a loop in Python; GPT-J's and torchtune's reach from 0 to the position.
    last = max(settings.positions) if settings.peers != "none" else 0
    memory = 2 if last >= 1_000_000 else 0.1
    return (
        f"{len(settings.positions)} positions, about {1 if last else 0.1:g} min and "
        f"{memory:g} GiB of memory"
    )


def measure(settings: AccuracySettings, show: Show) -> Iterator[Accuracy]:
    """Measure ours and every peer at every position.

    Args:
        settings: What to measure.
        show: Where progress is shown.

    Yields:
        One row per code and position; what a peer cannot reach is left out.
    """
    for position in settings.positions:
        for peer in (None, *(PEERS if settings.peers != "none" else ())):
            if peer is not None and (position > peer.longest or absent(peer)):
                continue
            show.now(f"accuracy of {peer.code if peer else 'ropewalk'} at {position:,}")
            try:
                code = _ours(position) if peer is None else _theirs(peer, position)
                yield _row(code, position, settings.seed)
            except Exception as error:  # other people's code may raise anything
                if peer is None:
                    raise
                show.say(f"{peer.code} failed at position {position:,}: {one_line(error)}")
        show.done(f"accuracy at {position:,}: done")


def _row(code: _Code, position: int, seed: int) -> Accuracy:
    exact = exact_table(_stretch(position), _HEAD_DIM)
    x = torch.randn(1, _HEADS, _LENGTH, _HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    wanted = exact_rotation(x, exact, code.layout)
    with torch.no_grad():
        rotated = code.rotate(torch.float32)(x, x)[0]
        narrow = x.bfloat16()
        rounded = code.rotate(torch.bfloat16)(narrow, narrow)[0]
    ideal = exact_rotation(narrow, exact, code.layout)
    return Accuracy(
        code.code,
        position,
        table=largest_error(code.table, exact),
        rotated=largest_error([rotated], [wanted]),
        bf16_rms=_rms(rounded.double() - ideal) / _rms(ideal.bfloat16().double() - ideal),
    )


def _ours(position: int) -> _Code:
    rope = RotaryEmbedding(RopeSpec(_HEAD_DIM, "interleaved", theta=THETA))
    table = rope.table(_stretch(position))
    return _Code(
        "ropewalk",
        "interleaved",
        (table.cos, table.sin),
        lambda _: lambda q, k: rope(q, k, table=table),
    )


def _theirs(peer: Peer, position: int) -> _Code:
    def prepare(dtype: torch.dtype) -> Rotate:
        # As a user has it: a cache is filled by the first call, in that call's dtype.
        setup = Setup(_HEAD_DIM, position - _LENGTH + 1, _LENGTH, dtype, warm=False)
        rotate = peer.prepare(setup).rotate
        if peer.storage == "bhsd":
            return rotate

        def transposed(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            q, k = rotate(q.transpose(1, 2), k.transpose(1, 2))
            return q.transpose(1, 2), k.transpose(1, 2)

        return transposed

    setup = Setup(_HEAD_DIM, position - _LENGTH + 1, _LENGTH, torch.float32)
    prepared = peer.prepare(setup)
    return _Code(peer.code, peer.layout, (prepared.cos, prepared.sin), prepare)


def _stretch(position: int) -> Tensor:
    return torch.arange(position - _LENGTH + 1, position + 1)


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()
