"""Which kernel rotates: the choice of the user, and what this installation has.

A kernel for another device would be one more name here and one more branch in
``rotary/operator.py``; the reference in ``rotary/apply.py`` stays the definition of them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ropewalk.errors import ConfigError
from ropewalk.rotary.kernels import native
from ropewalk.spec.checks import choice

if TYPE_CHECKING:
    from types import TracebackType

Kernel = Literal["auto", "reference", "eager", "native"]
_NAMES = ("auto", "reference", "eager", "native")
_chosen: Kernel = "auto"


def available_kernels() -> tuple[Kernel, ...]:
    """Return the names of the kernels that this installation can use.

    ``"reference"`` is the definition, for every device and every way of differentiating.
    ``"eager"`` is plain torch in pieces that fit a cache, for the CPU and calls without gradients.
    ``"native"`` is compiled C, for the CPU.

    Example:
        >>> available_kernels()[:2]
        ('reference', 'eager')
    """
    return ("reference", "eager", "native") if native.loaded() else ("reference", "eager")


class use_kernel:  # noqa: N801 - reads as a function, and is a context manager as well
    """Choose the kernel that rotates, from now on or inside a ``with`` block.

    The choice holds for the whole process. ``"auto"`` takes the fastest kernel that fits a call.
    A kernel that does not fit a call (another device, gradients of the table, a transform such as
    ``vmap``, ``torch.export``) leaves it to the reference, so that the choice never changes what
    can be computed, nor the result beyond rounding.

    Args:
        name: "auto", "reference", "eager" or "native".

    Raises:
        ConfigError: The name is unknown, or the kernel is not in this installation.

    Example:
        >>> with use_kernel("reference"):
        ...     current_kernel()
        'reference'
    """

    def __init__(self, name: Kernel) -> None:
        global _chosen
        choice("name", name, _NAMES)
        if name == "native" and not native.loaded():
            raise ConfigError(
                f"name must be an available kernel; got 'native'; {native.native_status()}"
            )
        self._before = _chosen
        _chosen = name

    def __enter__(self) -> None:
        """Keep what was chosen when the object was made."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Choose again what was chosen before."""
        global _chosen
        _chosen = self._before


def current_kernel() -> Kernel:
    """Return the choice that holds now."""
    return _chosen


def native_chosen() -> bool:
    """Return whether the native kernel is there and may serve."""
    return native.loaded() and _chosen in ("auto", "native")


def eager_chosen() -> bool:
    """Return whether the pieces of plain torch may serve."""
    return _chosen == "eager" or (_chosen == "auto" and not native.loaded())
