"""``ropewalk env``: what a bug report needs to say."""

from __future__ import annotations

import json
from typing import Annotated

import typer

_PACKAGES = (
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "accelerate",
    "datasets",
    "matplotlib",
    "onnx",
)


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, kernels and devices, for bug reports.

    **Examples**

    `ropewalk env`

    `ropewalk env --json > env.json`
    """
    facts = collect()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


def collect() -> dict[str, str]:
    """Return name and value of everything that can change a result."""
    import os
    import platform
    from importlib import metadata

    import torch

    from ropewalk import __version__, available_kernels
    from ropewalk.rotary.kernels import native_status

    facts = {
        "ropewalk": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for name in _PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts["kernels"] = ", ".join(available_kernels())
    facts["native kernel"] = native_status().removeprefix("native: ")
    facts["threads"] = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    facts["cpu"] = torch.backends.cpu.get_cpu_capability()
    facts["devices"] = ", ".join(["cpu", *_accelerators()])
    return facts


def _accelerators() -> list[str]:
    import torch

    found = [
        f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())
    ]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found
