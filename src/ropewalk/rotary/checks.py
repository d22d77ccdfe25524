"""Checks of tensors, so that what is no tensor is refused in the same words everywhere."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.errors import ConfigError, ShapeError


def tensors(**named: object) -> None:
    """Refuse arguments that are not tensors.

    Args:
        **named: Values by the name of the argument.

    Raises:
        ShapeError: One of them is something else; the message names it.
    """
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise ShapeError(f"{name} must be a tensor; got {type(value).__name__}")


def readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor may decide what is computed.

    They may not while a graph is traced, under functorch transforms, or where there are none.

    Args:
        tensor: Any tensor.
    """
    return not (
        torch.compiler.is_compiling()
        or type(tensor) is not Tensor  # a tracer's stand-in, or distributed
        or tensor.is_meta
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
    )


def apart(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are known to lie in different memory.

    Args:
        a: Any tensor.
        b: Any tensor.
    """
    if not (readable(a) and readable(b)):
        return False
    return a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def outputs(out: object) -> tuple[Tensor, Tensor]:
    """Return the two tensors to write q and k to.

    Args:
        out: A pair of different tensors.

    Raises:
        ShapeError: Not a pair of tensors.
        ConfigError: Both are the same memory, so that one result would overwrite the other.
    """
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise ShapeError(f"out must be two tensors, for q and for k; got {type(out).__name__}")
    out_q, out_k = out
    tensors(**{"out for q": out_q, "out for k": out_k})
    same = out_q is out_k or (
        readable(out_q) and out_q.numel() > 0 and out_q.data_ptr() == out_k.data_ptr()
    )
    if same:
        raise ConfigError("out must be two different tensors; got the same memory for q and for k")
    return out_q, out_k
