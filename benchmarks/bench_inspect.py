"""Time the installed ``ropewalk inspect`` on the golden configurations and a GGUF header.

Every run is a process of its own, from the start of the interpreter to its end; files run in turn,
in shuffled rounds. Besides, every file is inspected once with ``-X importtime``, and torch,
transformers and matplotlib must not be among the imports. Printed are medians, and the ratio of
the processor time to that of a process that only imports numpy and typer, which no version of the
command can do without; with ``--against``, also to that of another checkout.

    python benchmarks/bench_inspect.py --rounds 5 --json inspect.json
    python benchmarks/bench_inspect.py --against ../older/src
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "tests" / "golden" / "configs"
LIMIT = 1.0  # seconds by the clock on the wall
FORBIDDEN = {"torch", "transformers", "matplotlib"}
FLOOR = "numpy and typer alone"
Times = dict[str, list[tuple[float, float]]]


def gguf_file(folder: Path) -> Path:
    """Write a GGUF file of a header alone, with a vocabulary of 128,000 words."""
    sys.path.insert(0, str(ROOT / "tests"))
    from gguf_writer import LLAMA, gguf

    words = {"tokenizer.ggml.tokens": [f"token{i}" for i in range(128_000)]}
    path = folder / "header.gguf"
    path.write_bytes(gguf(LLAMA | words))
    return path


def run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command to its end; return the wall clock and processor time it took, in seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1) or (not output and "inspect" in command):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}; not timed")
    return wall, usage.ru_utime + usage.ru_stime


def imports(path: Path) -> set[str]:
    """Return the top-level packages that an inspection of a file imports."""
    command = [sys.executable, "-X", "importtime", "-m", "ropewalk", "inspect", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def measure(files: dict[str, Path], rounds: int, against: str | None) -> dict[str, Times]:
    """Return the times of every file, for this checkout, the other one and the floor."""
    program = str(Path(sys.executable).with_name("ropewalk"))
    commands = {("ropewalk", name): [program, "inspect", str(f)] for name, f in files.items()}
    if against:
        commands |= {("against", name): commands["ropewalk", name] for name in files}
    commands["floor", FLOOR] = [sys.executable, "-c", "import numpy, typer"]
    times: dict[str, Times] = {kind: {} for kind, _ in commands}
    for turn in range(rounds + 1):
        order = list(commands)
        random.Random(turn).shuffle(order)
        for kind, name in order:
            environment = dict(os.environ)
            if kind == "against":
                environment["PYTHONPATH"] = str(Path(against or "").resolve())
            taken = run(commands[kind, name], environment)
            if turn:  # the first round fills the cache of the disk
                times[kind].setdefault(name, []).append(taken)
    return times


def median(times: list[tuple[float, float]], part: int) -> float:
    """Return the median of the wall clock (0) or the processor time (1)."""
    return statistics.median(taken[part] for taken in times)


def main() -> None:
    """Measure, print a table, write the JSON; fail where the limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", help="src folder of another checkout, timed in turn")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = {path.stem: path for path in sorted(CONFIGS.glob("*.json"))}
        files["GGUF header"] = gguf_file(Path(folder))
        for name, path in files.items():
            stray = imports(path) & FORBIDDEN
            if stray:
                raise SystemExit(f"inspect of {name} imports {', '.join(sorted(stray))}")
        times = measure(files, given.rounds, given.against)
    floor = median(times["floor"][FLOOR], 1)
    rows = {
        name: {
            "wall": median(taken, 0),
            "cpu": median(taken, 1),
            "cpu_to_floor": median(taken, 1) / floor,
        }
        for name, taken in times["ropewalk"].items()
    }
    for name, taken in times.get("against", {}).items():
        rows[name]["cpu_to_other"] = rows[name]["cpu"] / median(taken, 1)
    for name, row in rows.items():
        shown = "  ".join(f"{key} {value:.3f}" for key, value in row.items())
        print(f"{name:<20} {shown}")
    slow = [name for name, row in rows.items() if row["wall"] >= LIMIT]
    if given.json:
        versions = {
            n: importlib.metadata.version(n) for n in ("ropewalk", "numpy", "typer", "rich")
        }
        machine: dict[str, object] = {"machine": platform.machine(), "cores": os.cpu_count()}
        machine |= {"system": platform.platform(), "load": os.getloadavg()[0]}
        result: dict[str, object] = {
            "rounds": given.rounds,
            "floor_cpu": floor,
            "files": rows,
            "limit_wall": LIMIT,
        }
        result |= {"torch_imported": False, "python": platform.python_version()}
        given.json.write_text(
            json.dumps(result | machine | {"versions": versions}, indent=2) + "\n"
        )
    if slow:
        raise SystemExit(f"{', '.join(slow)}: a second or more by the clock")


if __name__ == "__main__":
    main()
