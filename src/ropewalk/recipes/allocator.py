"""Keep the memory of large temporaries in the process, on Linux CPUs, while a model is trained."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

from ropewalk.errors import ConfigError

SWITCH = "ROPEWALK_ALLOCATOR"
"""Environment variable: "keep" (the default) or "system", which leaves the C library alone."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_MAPPED = 2**30
_LARGEST_KEPT = 2**31 - 1  # mallopt takes an int
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


@cache
def keep_large_blocks() -> bool:
    """Have the C library reuse the memory of large tensors, once per process.

    glibc maps a block of 32 MiB or more afresh for every allocation and gives it back afterwards,
    so that every temporary of that size is paid for page by page: several times what filling it
    costs. Raised thresholds (1 GiB for mapping, 2 GiB for giving back) make such blocks reusable.
    The price is that up to 2 GiB of memory freed by the process stay with it. Setting the
    variable ``ROPEWALK_ALLOCATOR=system`` leaves everything as it was; so do settings of glibc's
    own (``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``) and other C libraries.

    Returns:
        Whether the thresholds were raised.

    Raises:
        ConfigError: The variable holds something else than "keep" or "system".

    References:
        mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
    """
    wanted = os.environ.get(SWITCH, "keep")
    if wanted not in ("keep", "system"):
        raise ConfigError(f"{SWITCH} must be 'keep' or 'system'; got {wanted!r}")
    own = any(name in os.environ for name in _OWN_SETTINGS)
    if own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    if wanted == "system" or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    # glibc answers 1 for an option it took.
    mapped = library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MAPPED)
    kept = library.mallopt(_M_TRIM_THRESHOLD, _LARGEST_KEPT)
    return bool(mapped and kept)
