"""How OpenMP waits, what the machine is, and which versions are measured."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

_WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
_PACKAGES = (
    "numpy",
    "torch",
    "transformers",
    "rotary-embedding-torch",
    "x-transformers",
    "torchtune",
)


def wait_passively() -> bool:
    """Make OpenMP threads sleep while they wait, so that processor time is work done.

    Spinning threads would count as busy. The runtime reads its settings once, when torch loads
    it, so this must come first.

    Returns:
        Whether threads will sleep: torch was not loaded yet, or the settings were there before.
    """
    in_time = "torch" not in sys.modules
    already = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    if in_time:
        os.environ.update(_WAITING)
    return in_time or already


def machine() -> dict[str, str]:
    """Return the kind of machine: what a figure holds for, and nothing that identifies it."""
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def versions() -> dict[str, str]:
    """Return the version of everything that is measured, or "not installed"."""
    from ropewalk._version import __version__

    found = {"ropewalk": __version__, "python": platform.python_version()}
    return found | {name: version(name) or "not installed" for name in _PACKAGES}


def version(package: str) -> str | None:
    """Return the installed version of a package, or None.

    Args:
        package: Its name in the package index.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the model of the processor where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as facts:  # noqa: PTH123
            names = [line.partition(":")[2] for line in facts if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or "unknown"
