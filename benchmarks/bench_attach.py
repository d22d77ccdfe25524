"""Time a model of transformers as it is against the same model attached.

One Llama-shaped model with random weights, prefill and decoding; the logits of both are compared
before anything is timed. Original and attached run in turn, in shuffled order within every round,
and what is printed are medians of the ratio within a round, with quartiles. Times are processor
time of this process, which a busy machine disturbs less than the clock on the wall.

    python benchmarks/bench_attach.py --seconds 60 --json attach.json
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import ropewalk as rw

CASES = {"prefill": (1, 512), "batch": (4, 256), "decode": (1, 16)}
"""Batch and tokens of a call; decoding appends that many to a cache, one by one."""
PROMPT = 64
Call = Callable[[], object]


def llama(layers: int, width: int, dtype: torch.dtype) -> LlamaForCausalLM:
    """Return a Llama with random weights and grouped key heads of width 64."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=max(width // 64, 2),
        num_key_value_heads=max(width // 128, 1),
    )
    model = LlamaForCausalLM(config)
    inv_freq = model.model.rotary_emb.inv_freq
    model.to(dtype).eval()
    model.model.rotary_emb.inv_freq = inv_freq  # in float32, as from_pretrained leaves it
    return model


def call(model: LlamaForCausalLM, case: str) -> Call:
    """Return what is timed: one forward, or a cache that grows token by token."""
    batch, count = CASES[case]
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(1024, (batch, PROMPT), generator=generator)
    tokens = torch.randint(1024, (batch, count), generator=generator)
    if case != "decode":
        return lambda: model(tokens, use_cache=False).logits
    filled = DynamicCache(config=model.config)
    model(prompt, cache=filled)

    def decode() -> torch.Tensor:
        cache = copy.deepcopy(filled)
        return torch.cat([model(tokens[:, i : i + 1], cache=cache).logits for i in range(count)], 1)

    return decode


@torch.no_grad()
def measure(model: LlamaForCausalLM, case: str, seconds: float) -> dict[str, Any]:
    """Return times, their ratio within rounds, and how far the logits are apart."""
    other = copy.deepcopy(model)
    rw.attach(other)
    calls = {"original": call(model, case), "attached": call(other, case)}
    before, after = calls["original"](), calls["attached"]()
    difference = float((after - before).abs().max() / before.abs().max())
    allowed = 1e-4 if model.dtype == torch.float32 else 0.1
    if difference > allowed:
        raise SystemExit(f"{case}: logits differ by {difference:.2e}, allowed {allowed:.0e}")
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["original"]) < 5:
        random.shuffle(order)
        for name in order:
            start = time.process_time()
            calls[name]()
            times[name].append(time.process_time() - start)
    ratios = [a / b for a, b in zip(times["original"], times["attached"], strict=True)]
    lower, middle, upper = statistics.quantiles(ratios, n=4)
    return {
        "case": case,
        "dtype": str(model.dtype).removeprefix("torch."),
        "rounds": len(ratios),
        "original_ms": 1e3 * statistics.median(times["original"]),
        "attached_ms": 1e3 * statistics.median(times["attached"]),
        "original_over_attached": middle,
        "quartiles": [lower, upper],
        "logits_differ_by": difference,
    }


def run(seconds: float = 60.0, layers: int = 8, width: int = 512) -> dict[str, Any]:
    """Return the whole measurement.

    Args:
        seconds: For all cases together.
        layers: Number of layers.
        width: Hidden size, a multiple of 128.
    """
    random.seed(0)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        model = llama(layers, width, dtype)
        rows += [measure(model, case, seconds / 2 / len(CASES)) for case in CASES]
    kernels = rw.available_kernels() if hasattr(rw, "available_kernels") else ("reference",)
    return {
        "model": f"Llama, {layers} layers, width {width}",
        "rows": rows,
        "kernels": list(kernels),
        "threads": torch.get_num_threads(),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "ropewalk": rw.__version__,
        },
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for all cases together")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    result = run(arguments.seconds, arguments.layers, arguments.width)
    print(f"{result['model']}, {result['threads']} threads, kernels {result['kernels']}")
    for row in result["rows"]:
        low, high = row["quartiles"]
        print(
            f"{row['case']:8} {row['dtype']:9} {row['original_ms']:8.1f} ms -> "
            f"{row['attached_ms']:8.1f} ms  {row['original_over_attached']:.3f}x "
            f"({low:.3f} to {high:.3f}, {row['rounds']} rounds)"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
