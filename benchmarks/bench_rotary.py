"""Time the rotation against a copy of the same bytes and against transformers' own code.

Every contender is checked against float64 before it is timed; contenders run in turn, in shuffled
rounds, and what is printed are medians of ratios to ``copy_`` within a round. Times are processor
time of this process, which a busy machine disturbs less than the clock on the wall.

    python benchmarks/bench_rotary.py --seconds 20 --json rotary.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention

import ropewalk as rw

SHAPES = {
    "long": ((1, 32, 4096, 128), (1, 8, 4096, 128)),
    "batch": ((8, 12, 512, 64), (8, 12, 512, 64)),
    "decode": ((1, 32, 1, 128), (1, 8, 1, 128)),
}
Contender = Callable[[], object]


def contenders(q: torch.Tensor, k: torch.Tensor) -> dict[str, Contender]:
    """Return the calls to be timed, all rotating q and k at positions 0, 1, ..."""
    seq, width = q.shape[-2:]
    positions = torch.arange(seq)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    calls: dict[str, Contender] = {"copy": lambda: (q_out.copy_(q), k_out.copy_(k))}
    for layout in ("half", "interleaved"):
        rope = rw.RotaryEmbedding(rw.RopeSpec(width, layout))
        table = rope.table(positions)

        def ours(rope: rw.RotaryEmbedding = rope, table: rw.RotaryTable = table) -> object:
            return rope(q, k, table=table)

        calls[f"ropewalk {layout}"] = ours
    cos, sin = rw.RotaryEmbedding(rw.RopeSpec(width, "half")).table(positions)
    full_cos, full_sin = (torch.cat([t, t], -1)[None].to(q.dtype) for t in (cos, sin))
    calls["transformers llama half"] = lambda: apply_rotary_pos_emb(q, k, full_cos, full_sin)
    sinusoids = torch.cat([sin, cos], -1)[None, None].to(q.dtype)
    calls["transformers roformer interleaved"] = lambda: (
        RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoids, q, q)[0],
        RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoids, k, k)[0],
    )
    return calls


def check(calls: dict[str, Contender], q: torch.Tensor, k: torch.Tensor) -> None:
    """Compare every contender with the float64 rotation; a bf16 peer may round three times."""
    tolerance = 0.06 if q.dtype == torch.bfloat16 else 1e-3
    for name, call in calls.items():
        if name == "copy":
            continue
        spec = rw.RopeSpec(q.shape[-1], name.rsplit(" ", 1)[-1])
        for got, x in zip(call(), (q, k), strict=True):
            rope = rw.RotaryEmbedding(spec)
            want = rope.rotate(x.double(), torch.arange(x.shape[-2]))
            worst = (got.double() - want).abs().max().item()
            if worst > tolerance:
                raise SystemExit(f"{name} is wrong by {worst:.2g}; not timed")


def measure(calls: dict[str, Contender], seconds: float) -> dict[str, list[float]]:
    """Return the processor time of every contender in every round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order, deadline = list(calls), time.perf_counter() + seconds
    repeats = max(1, int(2e-3 / max(_once(calls["copy"], 1), 1e-7)))
    while time.perf_counter() < deadline or len(times["copy"]) < 3:
        random.shuffle(order)
        for name in order:
            times[name].append(_once(calls[name], repeats))
    return times


def _once(call: Contender, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def main() -> None:
    """Print one table per shape and dtype, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="time per shape and dtype")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "ropewalk": rw.__version__,
        "seed": arguments.seed,
        "ratios": {},
    }
    print(report["machine"], "torch", report["torch"])
    for shape, (q_shape, k_shape) in SHAPES.items():
        for dtype in (torch.float32, torch.bfloat16):
            generator = torch.Generator().manual_seed(arguments.seed)
            q = torch.randn(q_shape, generator=generator).to(dtype)
            k = torch.randn(k_shape, generator=generator).to(dtype)
            calls = contenders(q, k)
            check(calls, q, k)
            times = measure(calls, arguments.seconds)
            print(f"\n{shape} {dtype}: multiples of copy, median (quartiles), lower is better")
            for name, samples in times.items():
                ratios = [t / c for t, c in zip(samples, times["copy"], strict=True) if c]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(f"  {name:<34} {middle:8.2f}  ({low:.2f}-{high:.2f}, n={len(ratios)})")
                report["ratios"][f"{shape} {dtype} {name}"] = [low, middle, high, len(ratios)]
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
