"""Faster ways to do what ``rotary/apply.py`` defines, and the choice between them."""

from ropewalk.rotary.kernels.native import native_status
from ropewalk.rotary.kernels.registry import available_kernels, use_kernel

__all__ = ["available_kernels", "native_status", "use_kernel"]
