"""Measure what one long row takes through an encoder on a CPU: peak memory and time.

Every figure is that of a fresh process; memory is its peak resident size during the forward pass
less that before it (Linux). "modern" has two thirds of its layers local, 64 tokens to either side;
in "local" all are. A model is checked at 1,024 tokens against its spelled-out softmax before it is
measured. Scores of all pairs, one head at a time, would take the last column.

    python benchmarks/bench_long_input.py --lengths 4096 32768 --json long.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import ropewalk as rw

FULL, LOCAL = "full_attention", "sliding_attention"
SMALL: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 384,
    "num_attention_heads": 6,
    "num_hidden_layers": 6,
    "intermediate_size": 1536,
}
MODELS: dict[str, dict[str, Any]] = {
    "roformer": SMALL,
    "modern": SMALL
    | {
        "intermediate_size": 1024,
        "layer_types": [FULL, LOCAL, LOCAL] * 2,
        "sliding_window": 64,
        "pre_norm": True,
        "gated_mlp": True,
        "rope_parameters": {FULL: {"rope_theta": 160_000.0}, LOCAL: {}},
    },
    "local": SMALL | {"layer_types": [LOCAL] * 6, "sliding_window": 64},
}


def resident(entry: str) -> int:
    """Return the resident size of this process in bytes, now or at its peak.

    Args:
        entry: "VmRSS" for now, "VmHWM" for the peak, as Linux calls them.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(entry))


def measure(name: str, length: int, changes: dict[str, Any]) -> dict[str, float]:
    """Return peak memory and time of one forward pass in this process.

    Args:
        name: One of ``MODELS``.
        length: Tokens of the row.
        changes: Config fields in place of the model's own.
    """
    torch.manual_seed(0)
    model = rw.RoFormerModel(rw.RoFormerConfig(**(MODELS[name] | changes))).eval()
    ids = torch.randint(1, model.config.vocab_size, (1, length))
    with torch.inference_mode():
        fused = model(ids[:, :1024]).last_hidden_state
        spelled = model(ids[:, :1024], output_attentions=True).last_hidden_state
        worst = float((fused - spelled).abs().max())
        if worst > 1e-4:
            raise SystemExit(f"{name} is wrong by {worst:.2g}; not measured")
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        before, start = resident("VmRSS"), time.perf_counter()
        model(ids)
        seconds = time.perf_counter() - start
    return {"bytes": resident("VmHWM") - before, "seconds": seconds}


def fresh(name: str, length: int, changes: dict[str, Any]) -> dict[str, float]:
    """Measure in a process of its own, whose peak is not that of anything else.

    Args:
        name: As in :func:`measure`.
        length: As there.
        changes: As there.
    """
    command = [sys.executable, __file__, "--one", name, str(length), json.dumps(changes)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures: dict[str, float] = json.loads(answer)
    return figures


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, length, changes = arguments.one
        print(json.dumps(measure(name, int(length), json.loads(changes))))
        return
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "ropewalk": rw.__version__,
        "figures": {},
    }
    print(report["machine"], "torch", report["torch"])
    print(f"{'model':<10}{'tokens':>8}{'MiB':>9}{'s':>8}{'MiB of one S x S':>19}")
    for name in MODELS:
        for length in arguments.lengths:
            found = fresh(name, length, {})
            report["figures"][f"{name} {length}"] = found
            square = length**2 * 4 / 2**20
            print(f"{name:<10}{length:>8}{found['bytes'] / 2**20:>9.0f}{found['seconds']:>8.1f}"
                  f"{square:>19.0f}", flush=True)  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
