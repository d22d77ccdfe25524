"""Checks of tensors, so that what is no tensor is refused in the same words everywhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ropewalk.errors import ConfigError, ShapeError


def tensors(**named: object) -> None:
    """Refuse arguments that are not dense tensors.

    Args:
        **named: Values by the name of the argument.

    Raises:
        ShapeError: One of them is something else; the message names it.
    """
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise ShapeError(f"{name} must be a tensor; got {type(value).__name__}")
        if value.layout != torch.strided:
            raise ShapeError(
                f"{name} must be a dense tensor; got one of layout {value.layout}; use to_dense()"
            )
        if value.is_nested:
            raise ShapeError(
                f"{name} must be a dense tensor; got a nested one; use to_padded_tensor()"
            )


def readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor may decide what is computed.

    They may not while a graph is traced, under functorch transforms, or where there are none.

    Args:
        tensor: Any tensor.
    """
    return not (
        torch.compiler.is_compiling()
        or type(tensor) not in (Tensor, nn.Parameter)  # a tracer's stand-in, or distributed
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
    if a.device != b.device or a.numel() == 0 or b.numel() == 0:
        return True
    start_a, start_b = a.data_ptr(), b.data_ptr()
    if start_a + _reach(a) * a.itemsize <= start_b or start_b + _reach(b) * b.itemsize <= start_a:
        return True
    steps, rest = divmod(start_b - start_a, a.itemsize)
    if rest or a.itemsize != b.itemsize:
        return False
    # Slices of one buffer, like q and k of a fused projection, lie in different parts of every
    # period of it.
    periods = {s for s, size in zip(a.stride(), a.shape, strict=True) if size > 1 and s > 1}
    return any(_reach(a, p) <= steps % p <= p - _reach(b, p) for p in periods)


def _reach(tensor: Tensor, period: int | None = None) -> int:
    """Return how many elements lie from the first to the last, both included.

    Args:
        tensor: A strided tensor that is not empty.
        period: Only dimensions that step less count; where another one does not step by whole
            periods, the answer is more than a period.
    """
    reach = 1
    for step, size in zip(tensor.stride(), tensor.shape, strict=True):
        if period is None or step < period:
            reach += step * (size - 1)
        elif step % period and size > 1:
            return period + 1
    return reach


def overlaps_itself(tensor: Tensor) -> bool:
    """Return whether two indices of a tensor mean one element of memory.

    Args:
        tensor: A strided tensor.
    """
    dims = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
    if tensor.numel() == 0 or not dims:
        return False
    reach = 1
    for step, size in dims:
        if step < reach:  # as good as always; the elements tell
            return step == 0 or len(_places(tensor).unique()) < tensor.numel()
        reach += step * (size - 1)
    return False


def _places(tensor: Tensor) -> Tensor:
    """Return the address of every element, in bytes, one after another."""
    places = torch.full((), tensor.data_ptr())
    for step, size in zip(tensor.stride(), tensor.shape, strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * (step * tensor.itemsize)
    return places.flatten()


def outputs(out: object) -> tuple[Tensor, Tensor]:
    """Return the two tensors to write q and k to.

    Args:
        out: A pair of different tensors.

    Raises:
        ShapeError: Not a pair of tensors.
        ConfigError: They share memory, so that one result would overwrite the other.
    """
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise ShapeError(f"out must be two tensors, for q and for k; got {type(out).__name__}")
    out_q, out_k = out
    tensors(**{"out for q": out_q, "out for k": out_k})
    if out_q is out_k or _collide(out_q, out_k):
        raise ConfigError("out must be two different tensors; got the same memory for q and for k")
    return out_q, out_k


def _collide(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are known to share an element."""
    if not (readable(a) and readable(b)) or apart(a, b):
        return False
    if a.itemsize != b.itemsize or (a.data_ptr() - b.data_ptr()) % a.itemsize:
        return True
    return bool(torch.isin(_places(a), _places(b)).any())
