"""Every way to rotate the q and k of one case, with its table built and ready to be checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ropewalk._version import __version__
from ropewalk.recipes.bench.exact import THETA, exact_rotation, exact_table
from ropewalk.recipes.bench.peers import PEERS, Peer, Rotate, Setup, absent
from ropewalk.recipes.bench.plain import as_complex, complex_fresh, in_place, plain
from ropewalk.recipes.bench.results import Contender, Form, Mode
from ropewalk.recipes.bench.timing import Call
from ropewalk.rotary import RotaryEmbedding, available_kernels, use_kernel
from ropewalk.spec import RopeSpec

if TYPE_CHECKING:
    from ropewalk.rotary.kernels.registry import Kernel
    from ropewalk.spec import PairLayout

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Largest absolute errors of standard normal vectors, by dtype: of code that has an exact table and
# rounds once, and of peers, whose angles are float32 (3e-4 off at position 4,095) or whose cosines,
# products and sums are bfloat16. A wrong pair, sign or position errs by more than 1 somewhere.
_BOUNDS = {"float32": (1e-5, 5e-3), "bfloat16": (0.04, 0.15)}


class Shape(NamedTuple):
    """The sizes of q and k."""

    batch: int
    query_heads: int
    key_heads: int
    length: int
    head_dim: int
    start: int = 0
    """First position."""


SHAPES = {
    "long": Shape(1, 32, 8, 4096, 128),
    "batch": Shape(8, 12, 12, 512, 64),
    "decode": Shape(1, 32, 8, 1, 128, start=4095),
}
"""One long row with grouped heads, a batch of an encoder, and one token of generation."""


class Setting(NamedTuple):
    """A case before it is measured."""

    shape: Shape
    dtype: str
    layout: PairLayout
    mode: Mode


@dataclass(frozen=True)
class Entry:
    """A contender that can run."""

    contender: Contender
    call: Call
    answer: Callable[[], Sequence[Tensor]] | None
    """What one call gives, stored as (batch, heads, seq, head_dim); None for a copy."""


class Operands:
    """Vectors, gradients and outputs of one case, shared by its contenders.

    Args:
        setting: The case.
        seed: Of the vectors.
    """

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        shape, generator = setting.shape, torch.Generator().manual_seed(seed)

        def vectors(heads: int) -> Tensor:
            sizes = (shape.batch, heads, shape.length, shape.head_dim)
            return torch.randn(sizes, generator=generator).to(DTYPES[setting.dtype])

        self.inputs = (vectors(shape.query_heads), vectors(shape.key_heads))
        self.gradients: tuple[Tensor, ...] = ()
        if setting.mode == "training":
            self.gradients = (vectors(shape.query_heads), vectors(shape.key_heads))
            for x in self.inputs:
                x.requires_grad_()
        self.positions = torch.arange(shape.start, shape.start + shape.length)
        self._transposed: dict[int, Tensor] = {}

    @cached_property
    def outputs(self) -> tuple[Tensor, Tensor]:
        """Memory for results."""
        q, k = self.inputs
        return torch.empty_like(q, requires_grad=False), torch.empty_like(k, requires_grad=False)

    @cached_property
    def overwritten(self) -> tuple[Tensor, Tensor]:
        """Vectors that in-place contenders turn on and on; their length does not change."""
        q, k = self.inputs
        return q.detach().clone(), k.detach().clone()

    @property
    def moved(self) -> int:
        """Bytes that a copy of vectors (and gradients) reads and writes."""
        return 2 * sum(x.numel() * x.element_size() for x in (*self.inputs, *self.gradients))

    def wanted(self) -> list[Tensor]:
        """Return what a right contender answers, in float64."""
        shape, layout = self.setting.shape, self.setting.layout
        cos, sin = exact_table(self.positions, shape.head_dim)
        turned = [exact_rotation(x.detach(), (cos, sin), layout) for x in self.inputs]
        # The gradient of a rotation is the rotation backward.
        return turned + [exact_rotation(g, (cos, -sin), layout) for g in self.gradients]

    def stored(self, storage: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return inputs and gradients in the order of dimensions that a peer wants.

        Args:
            storage: "bhsd" or "bshd".
        """
        if storage == "bhsd":
            return self.inputs, self.gradients
        return (
            tuple(self._stored(x, grad=x.requires_grad) for x in self.inputs),
            tuple(self._stored(x, grad=False) for x in self.gradients),
        )

    def _stored(self, x: Tensor, *, grad: bool) -> Tensor:
        if id(x) not in self._transposed:
            copy = x.detach().transpose(1, 2).contiguous()
            self._transposed[id(x)] = copy.requires_grad_(grad)
        return self._transposed[id(x)]


def entries(operands: Operands, *, peers: bool, compiled: bool) -> Iterator[Entry | Contender]:
    """Yield what can be measured, and a contender with its reason for what cannot.

    Args:
        operands: The vectors.
        peers: Whether other libraries take part.
        compiled: Whether torch.compile does.
    """
    yield from _copies(operands)
    yield from _ours(operands, compiled=compiled)
    yield from _plain(operands, compiled=compiled)
    if operands.setting.layout == "interleaved":
        yield from _complex(operands, compiled=compiled)
    for peer in PEERS if peers else ():
        if peer.layout == operands.setting.layout:
            yield from _peer(operands, peer, compiled=compiled)


def one_line(error: Exception) -> str:
    """Return what was raised, short enough for a table.

    Args:
        error: An exception of other people's code.
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _copies(operands: Operands) -> Iterator[Entry]:
    pairs = [x.detach() for x in (*operands.inputs, *operands.gradients)]
    targets = [*operands.outputs, *(torch.empty_like(x) for x in operands.gradients)]

    def copy() -> None:
        for target, x in zip(targets, pairs, strict=True):
            target.copy_(x)

    torch_version = f"torch {torch.__version__}"
    yield Entry(Contender("copy", form="out", source=torch_version), Call(copy), None)
    yield Entry(
        Contender("clone", source=torch_version), Call(lambda: [x.clone() for x in pairs]), None
    )


def _ours(operands: Operands, *, compiled: bool) -> Iterator[Entry]:
    shape, layout = operands.setting.shape, operands.setting.layout
    rope = RotaryEmbedding(RopeSpec(shape.head_dim, layout, theta=THETA))
    table = rope.table(operands.positions)

    def fresh(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rope(q, k, table=table)  # type: ignore[no-any-return]

    def into(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rope(q, k, table=table, out=operands.outputs)  # type: ignore[no-any-return]

    def over(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rope(q, k, table=table, out=(q, k))  # type: ignore[no-any-return]

    forms: dict[Form, Rotate] = {"fresh": fresh}
    if operands.setting.mode == "forward":
        forms |= {"out": into, "in place": over}
    source = f"ropewalk {__version__}"
    for kernel in available_kernels():
        for form, rotate in forms.items():
            about = Contender("ropewalk", form, kernel, source=source)
            yield _entry(operands, about, rotate, kernel=kernel)
    if compiled:
        about = Contender("ropewalk", kernel="auto", compiled=True, source=source)
        yield _entry(operands, about, fresh)


def _plain(operands: Operands, *, compiled: bool) -> Iterator[Entry]:
    rotate = plain(*_table(operands), operands.setting.layout)
    about = Contender("plain torch", source=f"torch {torch.__version__}")
    yield _entry(operands, about, rotate)
    if not compiled:
        return
    about = Contender("plain torch", compiled=True, source=about.source)
    yield _entry(operands, about, rotate)
    if operands.setting.mode == "forward":
        about = Contender("plain torch", "in place", compiled=True, source=about.source)
        yield _entry(operands, about, in_place(rotate))


def _complex(operands: Operands, *, compiled: bool) -> Iterator[Entry]:
    cos, sin = _table(operands)
    source = f"torch {torch.__version__}"
    rotate = complex_fresh(cos, sin)
    yield _entry(operands, Contender("complex multiply", source=source), rotate)
    if compiled:
        about = Contender("complex multiply", compiled=True, source=source)
        yield _entry(operands, about, rotate)
    if operands.setting.mode == "training" or operands.setting.dtype != "float32":
        return  # only float32 vectors can be seen as complex numbers
    turns = torch.complex(cos, sin)
    # The views are made outside the timing: this is the floor of what torch itself can do.
    views = {id(x): as_complex(x) for x in (*operands.inputs, *operands.overwritten)}
    results = [as_complex(x) for x in operands.outputs]

    def into(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        torch.mul(views[id(q)], turns, out=results[0])
        torch.mul(views[id(k)], turns, out=results[1])
        return operands.outputs

    def over(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        views[id(q)].mul_(turns)
        views[id(k)].mul_(turns)
        return q, k

    yield _entry(operands, Contender("complex multiply", "out", source=source), into)
    about = Contender("complex multiply", "in place", source=source)
    yield _entry(operands, about, over)


def _peer(operands: Operands, peer: Peer, *, compiled: bool) -> Iterator[Entry | Contender]:
    shape = operands.setting.shape
    setup = Setup(shape.head_dim, shape.start, shape.length, DTYPES[operands.setting.dtype])
    about = Contender(peer.code, source=peer.source)
    try:
        reason = absent(peer)
        if reason is not None:
            yield replace(about, status="absent", note=reason)
            return
        rotate = peer.prepare(setup).rotate
    except Exception as error:  # a release whose names have changed
        yield replace(about, status="failed", note=one_line(error))
        return
    for made in (False, True) if compiled else (False,):
        about = replace(about, compiled=made)
        yield _entry(operands, about, rotate, strict=False, storage=peer.storage)


def _entry(
    operands: Operands,
    about: Contender,
    rotate: Rotate,
    *,
    strict: bool = True,
    storage: str = "bhsd",
    kernel: Kernel | None = None,
) -> Entry:
    """Return a contender that runs ``rotate`` forward, or forward and backward."""
    if about.compiled:
        rotate = torch.compile(rotate, dynamic=False)
    inputs, gradients = operands.stored(storage)
    targets = operands.overwritten if about.form == "in place" else inputs
    q, k = targets

    def forward() -> tuple[Tensor, Tensor]:
        return rotate(q, k)

    def training() -> tuple[Tensor, ...]:
        return torch.autograd.grad(rotate(q, k), (q, k), gradients)

    def scope() -> AbstractContextManager[object]:
        return nullcontext() if kernel is None else use_kernel(kernel)

    def answer() -> list[Tensor]:
        if about.form == "in place":
            for target, x in zip(targets, inputs, strict=True):
                target.copy_(x)
        elif about.form == "out":  # what an earlier contender left there is no answer
            for target in operands.outputs:
                target.zero_()
        with scope():
            found = list(rotate(q, k))
            if gradients:
                found += torch.autograd.grad(found, (q, k), gradients)
        return [x.detach().transpose(1, 2) if storage == "bshd" else x.detach() for x in found]

    bound = _BOUNDS[operands.setting.dtype][0 if strict else 1]
    about = replace(about, bound=bound)
    return Entry(about, Call(training if gradients else forward, scope), answer)


def _table(operands: Operands) -> tuple[Tensor, Tensor]:
    cos, sin = exact_table(operands.positions, operands.setting.shape.head_dim)
    return cos.float(), sin.float()
