"""The kernels of the operator, as far as this installation has them."""

from __future__ import annotations

from ropewalk.rotary.kernels import native_status


def states() -> dict[str, str]:
    """Return what every kernel says about itself, one that cannot be loaded included."""
    return {
        "reference": "plain torch",
        "eager": "plain torch, in pieces that fit a cache",
        "native": native_status().removeprefix("native: "),
    }
