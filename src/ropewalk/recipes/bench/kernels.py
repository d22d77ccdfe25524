"""The kernels of the operator, by name, as far as this installation has them."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def _registry() -> Any:
    try:
        return importlib.import_module("ropewalk.rotary.kernels")
    except ModuleNotFoundError:
        return None


def available() -> tuple[str, ...]:
    """Return the kernels that this installation has, the fastest last."""
    registry = _registry()
    return ("reference",) if registry is None else registry.available_kernels()


def use(name: str) -> AbstractContextManager[object]:
    """Return a context in which the operator takes one kernel.

    Args:
        name: One of :func:`available`.
    """
    registry = _registry()
    return nullcontext() if registry is None else registry.use_kernel(name)


def states() -> dict[str, str]:
    """Return what every kernel says about itself, one that cannot be loaded included."""
    registry = _registry()
    native = "not built" if registry is None else registry.native_status()
    return {"reference": "plain torch", "native": str(native).removeprefix("native: ")}
