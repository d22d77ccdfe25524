"""Give a live module another class, that of an attached rotary module or attention, and back.

Only ``__class__`` and one plain attribute change, so that parameters, buffers, hooks, names and
``isinstance`` stay as they are, the state dict too, and undoing it restores the very same objects.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ropewalk.errors import ConfigError, ShapeError
from ropewalk.extension.methods import REDIRECTED, rotating
from ropewalk.rotary import RotaryEmbedding, RotaryTable
from ropewalk.rotary.checks import readable
from ropewalk.spec import LongRope

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropewalk.spec import RopeSpec

_HELD = "_ropewalk"
_ORIGINAL = "_ropewalk_original"


@dataclass(frozen=True)
class Tables:
    """What an attached rotary module computes."""

    by_label: dict[str | None, RotaryEmbedding]
    """Rotation by layer type; by None where the module has one for all layers."""
    sin_first: bool = False
    """Whether the layers take (sin, cos)."""

    def table(self, position_ids: Tensor, label: str | None, dtype: torch.dtype) -> RotaryTable:
        """Return the half-width table of the positions.

        Args:
            position_ids: ``(batch, seq)``.
            label: Layer type.
            dtype: float32 or float64.
        """
        rope = self.by_label.get(label)
        if rope is None:
            raise ConfigError(f"layer_type must be one of {list(self.by_label)}; got {label!r}")
        if not isinstance(rope.spec.scaling, LongRope):
            return rope.table(position_ids, dtype=dtype)
        # As the model itself does it: one list for the whole batch, by its largest position.
        length = rope.spec.scaling.original_max_position_embeddings
        short = rope.table(position_ids, seq_len=length, dtype=dtype)
        long = rope.table(position_ids, seq_len=length + 1, dtype=dtype)
        is_long = position_ids.max() + 1 > length
        return RotaryTable(
            torch.where(is_long, long.cos, short.cos), torch.where(is_long, long.sin, short.sin)
        )


@dataclass(frozen=True)
class Turning:
    """What an attached attention layer rotates with."""

    by_width: dict[tuple[str, int], RotaryEmbedding]
    """Rotation by the function that the layer used to call, and the width of what it hands over:
    the head, or the rotated slice."""
    producers: tuple[str, ...] | None
    """Submodules whose outputs are rotated and seen by nobody else; None: not proved."""


@functools.cache
def attached_rotary(original: type) -> type:
    """Return the class of rotary modules whose forward is ours.

    Args:
        original: Class of the model's own, whose forward takes (x, position_ids[, layer_type]).
    """

    def forward(
        self: nn.Module, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        tables: Tables = self.__dict__[_HELD]
        table = tables.table(position_ids, layer_type, dtype)
        return (table.sin, table.cos) if tables.sin_first else table

    return _derived(original, {"forward": forward}, attached_rotary)


@functools.cache
def attached_attention(original: type) -> type:
    """Return the class of attention layers that rotate with our operator.

    Args:
        original: Class of the model's own.

    Raises:
        ConfigError: What its methods do with cos and sin cannot be proved to be a rotation.
    """
    found = rotating(original)
    applying = {REDIRECTED + call.name: _applying(call.name) for call in found.calls}
    return _derived(original, found.methods | applying, attached_attention)


def _applying(name: str) -> Callable[..., tuple[Tensor, Tensor] | Tensor]:
    """Return the method that stands for the function of that name."""

    def apply(
        self: nn.Module, *vectors_and_table: Tensor, unsqueeze_dim: int
    ) -> tuple[Tensor, Tensor] | Tensor:
        return _apply(self, name, *vectors_and_table, unsqueeze_dim=unsqueeze_dim)

    return apply


def _apply(
    self: nn.Module, name: str, first: Tensor, *others: Tensor, unsqueeze_dim: int
) -> tuple[Tensor, Tensor] | Tensor:
    """Rotate (q, k, cos, sin) or (x, cos, sin) as the function of the model's module does."""
    *second, cos, sin = others
    turning: Turning = self.__dict__[_HELD]
    rope = turning.by_width.get((name, first.shape[-1]))
    if rope is None:
        raise ShapeError(
            f"vectors for {name} must have a width of {sorted(turning.by_width)}, which were "
            f"compared when the model was attached; got {tuple(first.shape)}"
        )
    seq_dim = -2 if unsqueeze_dim == 1 else -3
    if not second:
        return rope.rotate(first, table=(cos, sin), seq_dim=seq_dim)
    k = second[0]
    out = (first, k) if _may_overwrite(self, turning.producers, first) else None
    rotated: tuple[Tensor, Tensor] = rope(first, k, table=(cos, sin), seq_dim=seq_dim, out=out)
    return rotated


def _may_overwrite(layer: nn.Module, producers: tuple[str, ...] | None, q: Tensor) -> bool:
    """Return whether nobody but the layer can see the vectors that it rotates."""
    if producers is None or torch.is_grad_enabled() or not readable(q):
        return False
    if nn.modules.module._global_forward_hooks:
        return False
    return all(_makes_fresh(getattr(layer, name, None)) for name in producers)


def _makes_fresh(module: nn.Module | None) -> bool:
    """Return whether the output of a module is new memory that no hook has seen."""
    kind = type(module)
    known = kind in (nn.Linear, nn.LayerNorm, nn.RMSNorm) or (
        kind.__module__.startswith("transformers.models.")
        and kind.__name__.endswith(("RMSNorm", "LayerNorm"))
    )
    return known and not module._forward_hooks and "forward" not in vars(module)  # type: ignore[union-attr]


def swap(module: nn.Module, cls: type, held: Tables | Turning) -> None:
    """Make a module an attached one.

    Args:
        module: Module of a model.
        cls: What :func:`attached_rotary` or :func:`attached_attention` returned for its class.
        held: What it computes with.
    """
    module.__class__ = cls
    module.__dict__[_HELD] = held


def swap_back(module: nn.Module) -> None:
    """Make an attached module what it was.

    Args:
        module: An attached module.
    """
    module.__class__ = original_of(module)
    module.__dict__.pop(_HELD, None)


def is_attached(module: nn.Module) -> bool:
    """Return whether a module has been swapped.

    Args:
        module: Any module.
    """
    return hasattr(type(module), _ORIGINAL)


def is_wrapped(module: nn.Module) -> bool:
    """Return whether something has replaced the forward or the class of an attached module.

    Args:
        module: An attached module.
    """
    return "forward" in vars(module) or _ORIGINAL not in vars(type(module))


def original_of(module: nn.Module) -> type:
    """Return the class that a module has in its own library.

    Args:
        module: Any module, attached or not.
    """
    cls: type = getattr(type(module), _ORIGINAL, type(module))
    return cls


def specs_of(module: nn.Module) -> set[RopeSpec]:
    """Return the rotations that an attached module holds.

    Args:
        module: An attached module.
    """
    held: Tables | Turning = module.__dict__[_HELD]
    ropes = held.by_label if isinstance(held, Tables) else held.by_width
    return {rope.spec for rope in ropes.values()}


def _derived(original: type, namespace: dict[str, Any], factory: Callable[[type], type]) -> type:
    """Return a subclass that looks like its base, and can be copied and pickled."""

    def reduce(self: nn.Module, protocol: int) -> tuple[Any, ...]:  # noqa: ARG001
        return _new, (factory.__wrapped__.__name__, original), self.__getstate__()  # type: ignore[attr-defined]

    names = ("__module__", "__qualname__", "__doc__")
    described = {name: getattr(original, name) for name in names}
    own = {_ORIGINAL: original, "__reduce_ex__": reduce}
    return type(original.__name__, (original,), described | namespace | own)


def _new(factory: str, original: type) -> nn.Module:
    """Return an empty attached module, for copies and unpickling."""
    cls = {"attached_rotary": attached_rotary, "attached_attention": attached_attention}[factory](
        original
    )
    module: nn.Module = object.__new__(cls)
    return module
