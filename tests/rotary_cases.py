"""Random calls of ``rotate``: every shape, stride, dtype, table and output that it takes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk import available_kernels, rotate

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
VECTORS = ("whole", "heads inside", "sliced", "fused", "every other", "expanded", "strided head")
OUTPUTS = ("none", "none", "in place", "fresh", "sliced", "heads inside")


@dataclass(frozen=True)
class Case:
    """One call, and the memory that it reads and writes."""

    name: str
    x: Tensor
    memory: list[Tensor]
    """Whole buffers, of which vectors and output are parts."""
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a call returned, and what the memory looks like after it."""

    result: Tensor
    memory: list[Tensor]
    is_out: bool


def outcome(case: Case, call: Callable[..., Tensor] = rotate) -> Outcome:
    """Do the call of a case that nobody has called yet."""
    result = call(case.x, **case.arguments)
    return Outcome(result, case.memory, result is case.arguments["out"])


def assert_same(got: Outcome, want: Outcome, name: str) -> None:
    """Assert equality bit for bit: values, strides, and all memory around them."""
    assert torch.equal(got.result, want.result), name
    assert got.is_out == want.is_out, name
    for a, b in zip(got.memory, want.memory, strict=True):
        assert torch.equal(a, b), f"{name}: memory beside the output"
    steps = [
        tuple(step for step, size in zip(one.stride(), one.shape, strict=True) if size > 1)
        for one in (got.result, want.result)
    ]
    assert steps[0] == steps[1], f"{name}: strides"


def random_case(seed: int, scale: int = 1) -> Case:
    """Return the case of a seed, on new memory at every call.

    Args:
        seed: Any integer.
        scale: Factor on the number of positions.
    """
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dtype = rng.choice(DTYPES)
    pairs = rng.choice((1, 2, 3, 5, 8, 12, 16, 20, 32, 33, 48, 64))
    before = rng.choice((0, 0, 0, 1, 2, 7, 16))
    width = before + 2 * pairs + rng.choice((0, 0, 0, 1, 6, 32))
    seq = rng.choice((1, 2, 3, 5, 17, 64, 65, 130)) * scale
    batch, heads = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 4, 5))
    kind = rng.choice(VECTORS)
    shape, seq_dim = rng.choice(
        (
            ((seq, width), -2),
            ((heads, seq, width), -2),
            ((batch, heads, seq, width), -2),
            ((batch, heads, seq, width), 2),
            ((batch, seq, heads, width), -3),
            ((seq, heads, width), -3),
            ((batch, 2, heads, seq, width), -2),
        )
    )
    x, whole = _vectors(kind, shape, dtype, rng, generator)
    cos, sin, table = _table(shape, seq_dim, pairs, dtype, rng, generator)
    wanted = rng.choice(OUTPUTS)
    if wanted == "in place" and kind == "expanded":
        wanted = "fresh"
    out, room = _output(wanted, x)
    layout, target = (rng.choice(("half", "interleaved")) for _ in range(2))
    arguments = {
        "cos": cos,
        "sin": sin,
        "layout": layout,
        "output_layout": rng.choice((None, None, target)),
        "rotary_offset": before,
        "seq_dim": seq_dim,
        "inverse": rng.random() < 0.3,
        "out": out,
    }
    told = {name: value for name, value in arguments.items() if not isinstance(value, Tensor)}
    name = f"seed {seed}: {kind} {shape} {dtype}, {pairs} pairs, {table}, out {wanted}, {told}"
    return Case(name, x, [whole, *room], arguments)


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def _vectors(
    kind: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    rng: random.Random,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return vectors of a shape, and the memory they are part of."""
    *lead, seq, width = shape
    if kind == "heads inside" and lead:
        whole = _random((*lead[:-1], seq, lead[-1], width), dtype, generator)
        return whole.transpose(-2, -3), whole
    if kind == "sliced":
        left = rng.choice((0, 1, 3, 4))
        whole = _random((*lead, seq + 2, left + width + 5), dtype, generator)
        return whole[..., 1 : seq + 1, left : left + width], whole
    if kind == "fused":
        whole = _random((*lead, seq, 3 * width), dtype, generator)
        return whole[..., width : 2 * width], whole
    if kind == "every other":
        whole = _random((*lead, 2 * seq, width), dtype, generator)
        return whole[..., ::2, :], whole
    if kind == "expanded":
        some = tuple(1 if rng.random() < 0.5 else size for size in (*lead, seq))
        whole = _random((*some, width), dtype, generator)
        return whole.expand(shape), whole
    if kind == "strided head":
        whole = _random((*lead, seq, 2 * width), dtype, generator)
        return whole[..., ::2], whole
    whole = _random(shape, dtype, generator)
    return whole, whole


def _table(
    shape: tuple[int, ...],
    seq_dim: int,
    pairs: int,
    dtype: torch.dtype,
    rng: random.Random,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, str]:
    seq = shape[seq_dim]
    kinds = ["(seq)", "(seq)", "sliced", "one position", "columns apart"]
    if seq_dim % len(shape) > 0:
        kinds += ["(batch, seq)", "(1, seq)", "(batch expanded, seq)"]
    kind = rng.choice(kinds)
    wide = torch.float64 if dtype == torch.float64 or rng.random() < 0.05 else torch.float32
    lead = {"(batch, seq)": (shape[0], seq), "(1, seq)": (1, seq), "one position": ()}
    lead["(batch expanded, seq)"] = (1, seq)
    angle = 100 * torch.rand(
        (*lead.get(kind, (seq,)), pairs), generator=generator, dtype=torch.float64
    )
    tables = [part.to(wide) for part in (angle.cos(), angle.sin())]
    if kind == "sliced":
        tables = [torch.cat([part, part], -1)[..., pairs:] for part in tables]
    if kind == "columns apart":
        tables = [part.T.contiguous().T for part in tables]
    if kind == "(batch expanded, seq)":
        tables = [part.expand(shape[0], seq, pairs) for part in tables]
    return tables[0], tables[1], f"table {kind} {wide}"


def _output(kind: str, x: Tensor) -> tuple[Tensor | None, list[Tensor]]:
    """Return where to write, and the memory that it is part of."""
    if kind == "none":
        return None, []
    if kind == "in place":
        return x, []
    if kind == "sliced":
        room = torch.zeros((*x.shape[:-1], x.shape[-1] + 4), dtype=x.dtype)
        return room[..., 2:-2], [room]
    if kind == "heads inside" and x.ndim > 2:
        room = torch.zeros_like(x.transpose(-2, -3), memory_format=torch.contiguous_format)
        return room.transpose(-2, -3), [room]
    room = torch.zeros(x.shape, dtype=x.dtype)
    return room, [room]


def assert_alike(got: Tensor, want: Tensor) -> None:
    """Demand the same rotation from two ways of computing it, bit for bit where kernels promise so.

    Args:
        got: Rotated vectors of ordinary size.
        want: What they are to be.
    """
    # Without the compiled kernel pairs turn by complex products, 2^-22 (|a| + |b|) from the rest.
    slack = 0.0 if "native" in available_kernels() else 2.0**-19
    torch.testing.assert_close(got, want, atol=slack, rtol=0)
