"""What a user would write in plain torch: the contenders that no library has to be blamed for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ropewalk.recipes.bench.peers import Rotate
    from ropewalk.spec import PairLayout


def plain(cos: Tensor, sin: Tensor, layout: PairLayout) -> Rotate:
    """Return the rotation in float32 out of torch's elementwise operators.

    Args:
        cos: Cosines, ``(seq, head_dim / 2)``, float32.
        sin: Sines.
        layout: Which coordinates form a pair.
    """

    def half(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def interleaved(x: Tensor) -> Tensor:
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)

    turn = half if layout == "half" else interleaved
    return lambda q, k: (turn(q), turn(k))


def in_place(rotate: Rotate) -> Rotate:
    """Return a rotation whose results are copied over its inputs, for a compiler to fuse.

    Args:
        rotate: The rotation.
    """

    def run(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        rotated_q, rotated_k = rotate(q, k)
        return q.copy_(rotated_q), k.copy_(rotated_k)

    return run


def complex_fresh(cos: Tensor, sin: Tensor) -> Rotate:
    """Return the rotation of interleaved pairs as a product of complex numbers.

    Args:
        cos: Cosines, ``(seq, head_dim / 2)``, float32.
        sin: Sines.
    """
    turns = torch.complex(cos, sin)

    def turn(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)

    return lambda q, k: (turn(q), turn(k))


def as_complex(x: Tensor) -> Tensor:
    """Return a complex view of float32 vectors whose pairs are interleaved.

    Args:
        x: ``(..., head_dim)``, contiguous.
    """
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))
