"""The compiled extension: loaded if it is there, asked first, spared every doubtful call."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from collections.abc import Callable

_extension: Any = None
_status = ""

Geometry = tuple[int, int, int, int, int, int]
"""First coordinate; is the source, is the target interleaved; sign; width and pairs, 0 for any."""


def geometry(
    start: int, source: str, target: str, *, inverse: bool = False, width: int = 0, pairs: int = 0
) -> Geometry:
    """Return what the extension has to know of a rotation.

    Args:
        start: First coordinate of the slice.
        source: Layout that is read.
        target: Layout that is written.
        inverse: Turn the other way.
        width: head_dim that the vectors must have; 0 for any.
        pairs: Columns that the table must have; 0 for any.
    """
    return (
        start,
        int(source == "interleaved"),
        int(target == "interleaved"),
        -1 if inverse else 1,
        width,
        pairs,
    )


def native_status() -> str:
    """Return in one line what the compiled kernel runs on, or why it is not there."""
    if _extension is None:
        return _status
    instruction_set, library = _extension.status()
    threads = f"threads of {Path(library).name}" if library else "one thread"
    return f"native: {instruction_set}, {threads}"


def loaded() -> bool:
    """Return whether the compiled kernel is there."""
    return _extension is not None


def instruction_sets() -> dict[str, bool]:
    """Return the names of the instruction sets there is code for, and whether each runs here."""
    return {} if _extension is None else dict(_extension.instruction_sets())


def select_instruction_set(name: str | None) -> bool:
    """Use one instruction set, for tests; return False if it does not run here.

    Args:
        name: One of :func:`instruction_sets`; None for the largest.
    """
    return bool(_extension.select(name))


def stream_above(n_bytes: int) -> None:
    """Send larger outputs past the caches, for tests.

    Args:
        n_bytes: Size of one output; 0 for that of the last-level cache.
    """
    _extension.stream_above(n_bytes)


def rotate_one(
    geometry: Geometry,
    cos: Tensor,
    sin: Tensor,
    seq_dim: int,
    x: Tensor,
    out: Tensor | None,
    *,
    inside_op: bool = False,
) -> Tensor | None:
    """Rotate a plain eager tensor of the CPU; None where the call is anything else.

    Nothing is written where the answer is None. Not to be called while a graph is compiled.

    Args:
        geometry: The rotation.
        cos: Half-width cosines, as for ``rotate``.
        sin: Half-width sines.
        seq_dim: Dimension along which positions run.
        x: Vectors.
        out: Where to write; None for new memory.
        inside_op: Below autograd and every mode, where only memory decides.
    """
    if _extension is None:
        return None
    result = _extension.rotate(not inside_op, geometry, seq_dim, cos, sin, x, out)
    return None if result is None else result[0]


def rotate_pair(
    geometry: Geometry,
    cos: Tensor,
    sin: Tensor,
    seq_dim: int,
    q: Tensor,
    out_q: Tensor | None,
    k: Tensor,
    out_k: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """Rotate two tensors at once, as :func:`rotate_one` does one.

    Args:
        geometry: The rotation.
        cos: Half-width cosines.
        sin: Half-width sines.
        seq_dim: Dimension along which positions run.
        q: Vectors.
        out_q: Where they go; None for new memory.
        k: Vectors.
        out_k: Where they go; None for new memory.
    """
    if _extension is None:
        return None
    result: tuple[Tensor, Tensor] | None = _extension.rotate(
        True, geometry, seq_dim, cos, sin, q, out_q, k, out_k
    )
    return result


def transforms_at_work() -> bool:
    """Return whether functorch, forward-mode differentiation or a tracer wants to see every step.

    A custom operator would give them a zero tangent, no batching rule, or a node that exists
    nowhere else.
    """
    return bool(
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def _load() -> None:
    global _extension, _status
    wanted = os.environ.get("ROPEWALK_NATIVE", "")
    if wanted == "off":
        _status = "native: off, as ROPEWALK_NATIVE says"
        return
    try:
        from ropewalk.rotary.kernels import _native  # type: ignore[attr-defined]
    except ImportError as error:
        built = any(Path(__file__).parent.glob("_native*"))
        reason = f"cannot be loaded ({error})" if built else "was not built"
        _status = (
            f"native: the extension {reason}; reinstall ropewalk where a C compiler is, "
            "with --no-cache-dir --force-reinstall"
        )
        return
    sets = _native.instruction_sets()
    if wanted and not (wanted in sets and _native.select(wanted)):
        here = ", ".join(name for name, runs in sets.items() if runs)
        _status = f"native: ROPEWALK_NATIVE must be off or one of {here}; got {wanted!r}"
        # An import must not fail for it, but nobody shall wonder why rotations are slow.
        warnings.warn(f"{_status}; plain torch serves", RuntimeWarning, stacklevel=2)
        return
    _native.bind(_asked_of_torch(), str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    # GNU's OpenMP waits for ever for the threads of a pool that stayed in the parent.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_native.after_fork)
    _extension = _native


def _asked_of_torch() -> dict[str, Any]:
    """Return what the extension needs of torch, whose headers it does without."""
    must_be_idle: tuple[Callable[[], object], ...] = (
        torch._C._len_torch_dispatch_stack,
        torch._C._len_torch_function_stack,
        torch._C._are_functorch_transforms_active,
        torch._C._get_tracing_state,
    )
    return {
        "tensor": Tensor,
        "dtypes": (torch.float32, torch.bfloat16, torch.float16, torch.float64),
        "data_ptr": Tensor.data_ptr,
        "stride": Tensor.stride,
        "is_neg": Tensor.is_neg,
        "is_inference": Tensor.is_inference,
        "empty_like": torch.empty_like,
        "contiguous": {"memory_format": torch.contiguous_format},
        "is_grad_enabled": torch.is_grad_enabled,
        "is_inference_mode_enabled": torch.is_inference_mode_enabled,
        "unless": must_be_idle,
        "forward_ad": forward_ad,
        "increment_version": torch._C._increment_version,
        "get_num_threads": torch.get_num_threads,
    }


_load()
