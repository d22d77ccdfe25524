"""Time our encoder beside transformers' RoFormer and BERT, and beside its linear layers alone.

Forward passes and training steps, full batches (8 rows of 512 tokens) and mixed ones (32 rows of 16
to 512), small (6 layers x 384) and base (12 x 768) width, float32 and bfloat16. Both RoFormers have
the same weights, rows and fused AdamW; their outputs are compared before anything is timed. BERT,
with torch's fused attention, has the same sizes and weights of its own. Contenders run in turn, in
shuffled rounds; what is printed are medians of ratios within a round. Times are processor time of
this process, which a busy machine disturbs less than the clock on the wall.

The memory of a training step on the mixed batch is the largest resident set of a fresh process,
less what it had after loading, less gradients and moments of the weights.

    OMP_WAIT_POLICY=passive python benchmarks/bench_encoder.py --size small --json encoder.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers

import ropewalk as rw
from ropewalk.recipes.allocator import keep_large_blocks

SIZES = {"small": (6, 384, 6), "base": (12, 768, 12)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BATCHES, MODES = ("full", "mixed"), ("forward", "training")
# Outputs of size 1: in float32 other orders of summation, in bfloat16 layers of roundings.
BOUNDS = {"float32": 1e-5, "bfloat16": 0.3}
VOCABULARY = 50_000
Contender = Callable[[], object]
Ratios = dict[str, list[float]]


def fields(size: str) -> dict[str, Any]:
    """Return the config of a size, for all three models; dropout is off."""
    layers, width, heads = SIZES[size]
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def model(name: str, size: str, dtype: str, seed: int) -> torch.nn.Module:
    """Return an encoder; transformers' RoFormer and ours have the same weights for a seed."""
    sizes = fields(size)
    torch.manual_seed(seed)
    if name == "bert":
        config = transformers.BertConfig(**sizes)
        config._attn_implementation = "sdpa"
        found = transformers.BertModel(config, add_pooling_layer=False)
    else:
        sizes["embedding_size"] = sizes["hidden_size"]
        found = transformers.RoFormerModel(transformers.RoFormerConfig(**sizes))
        for parameter in found.parameters():
            if parameter.ndim == 1:  # off 0 and 1, so that a mistake would show
                parameter.data.add_(0.05 * torch.randn_like(parameter))
        if name == "ours":
            theirs = found.state_dict()
            found = rw.RoFormerModel(rw.RoFormerConfig(**sizes))
            found.load_state_dict(theirs)
    return found.to(DTYPES[dtype]).eval()


def rows(batch: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and the mask of the real ones."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.full((8,), 512)
    if batch == "mixed":
        lengths = torch.randint(16, 513, (32,), generator=generator)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return torch.randint(5, VOCABULARY, mask.shape, generator=generator) * mask, mask


def encode(encoder: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the hidden states of the real tokens, ``(tokens, width)``."""
    given = None if mask.all() else mask.long()
    hidden: torch.Tensor = encoder(ids, attention_mask=given).last_hidden_state
    return hidden[mask]


def step(encoder: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> Contender:
    """Return a training step of an encoder."""
    encoder.train()
    width = encoder.config.hidden_size
    target = torch.randn(int(mask.sum()), width, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-5, fused=True)

    def train() -> None:
        optimizer.zero_grad()
        F.mse_loss(encode(encoder, ids, mask).float(), target).backward()
        optimizer.step()

    return train


def linears(encoder: torch.nn.Module, tokens: int) -> Contender:
    """Return the linear layers alone on the real tokens: what nothing else can beat."""
    layers = [layer for layer in encoder.modules() if isinstance(layer, torch.nn.Linear)]
    widths = {layer.in_features for layer in layers}
    dtype = layers[0].weight.dtype
    inputs = {width: torch.randn(tokens, width, dtype=dtype) for width in widths}
    return lambda: [layer(inputs[layer.in_features]) for layer in layers]


def contenders(size: str, dtype: str, batch: str, mode: str, seed: int) -> dict[str, Contender]:
    """Return the calls to be timed, once the two RoFormers are seen to agree."""
    ids, mask = rows(batch, seed)
    encoders = {name: model(name, size, dtype, seed) for name in ("transformers", "ours", "bert")}
    with torch.no_grad():
        ours, theirs = (encode(encoders[name], ids, mask) for name in ("ours", "transformers"))
        worst = (ours.float() - theirs.float()).abs().max().item()
    if not worst <= BOUNDS[dtype]:
        raise SystemExit(f"the encoders differ by {worst:.2g} ({size}, {dtype}, {batch})")
    if mode == "training":
        return {name: step(encoder, ids, mask) for name, encoder in encoders.items()}
    calls: dict[str, Contender] = {
        name: lambda encoder=encoder: encode(encoder, ids, mask)
        for name, encoder in encoders.items()
    }
    calls["linear layers"] = linears(encoders["ours"].encoder, int(mask.sum()))
    return {name: torch.no_grad()(call) for name, call in calls.items()}


def measure(calls: dict[str, Contender], seconds: float) -> dict[str, list[float]]:
    """Return the processor time of every contender in every round, three rounds at least."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for call in calls.values():
        call()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times["ours"]) < 3:
        random.shuffle(order)
        for name in order:
            start = time.process_time()
            calls[name]()
            times[name].append(time.process_time() - start)
    return times


def ratios(times: dict[str, list[float]]) -> Ratios:
    """Return lower quartile, median and upper quartile of times of others over ours."""
    return {
        name: statistics.quantiles(
            [their / our for their, our in zip(samples, times["ours"], strict=True)], n=4
        )
        for name, samples in times.items()
        if name != "ours"
    }


def peak(name: str, size: str, dtype: str, seed: int) -> int:
    """Return the bytes that training steps on the mixed batch add to a fresh process."""
    command = [sys.executable, __file__, "--peak-of", name, "--size", size]
    command += ["--dtype", dtype, "--seed", str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def own_peak(name: str, size: str, dtype: str, seed: int) -> int:
    """Return what two steps add to this process, less gradients and moments."""
    encoder = model(name, size, dtype, seed)
    train = step(encoder, *rows("mixed", seed))
    with Path("/proc/self/clear_refs").open("w") as file:
        file.write("5")  # forget the peak of loading
    before = _resident("VmRSS")
    train()
    train()
    weights = sum(p.numel() * p.element_size() for p in encoder.parameters() if p.requires_grad)
    return _resident("VmHWM") - before - 3 * weights


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Print one table per case, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="time per case")
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batch", nargs="+", choices=BATCHES, default=list(BATCHES))
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--memory", action="store_true", help="also measure memory (Linux)")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak-of", choices=("ours", "transformers"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    random.seed(given.seed)
    if given.peak_of:
        print(own_peak(given.peak_of, given.size[0], given.dtype[0], given.seed))
        return
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "ropewalk": rw.__version__,
        "seed": given.seed,
        "blocks_kept": keep_large_blocks(),
        "times": {},
        "memory": {},
    }
    print(report["machine"], "torch", report["torch"])
    for case in itertools.product(given.size, given.dtype, given.batch, given.mode):
        times = measure(contenders(*case, given.seed), given.seconds)
        report["times"][" ".join(case)] = times
        print(f"\n{' '.join(case)}: multiples of our time, median (quartiles)")
        for name, (low, middle, high) in ratios(times).items():
            print(f"  {name:<14} {middle:6.2f}  ({low:.2f}-{high:.2f}, n={len(times['ours'])})")
    for size, dtype in itertools.product(given.size, given.dtype) if given.memory else ():
        peaks = {name: peak(name, size, dtype, given.seed) for name in ("transformers", "ours")}
        report["memory"][f"{size} {dtype}"] = peaks
        shown = ", ".join(f"{name} {count / 2**20:,.0f} MiB" for name, count in peaks.items())
        print(f"\n{size} {dtype} mixed training, memory of a step: {shown}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
