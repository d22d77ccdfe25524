"""Long rows on a CPU: memory that grows with the length, not with its square."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.models import RoFormerConfig, RoFormerModel

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_long_input.py"
# One layer of one head: a second, where the six of the benchmark take minutes.
TINY = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 16, "vocab_size": 50}


def fresh(name: str, length: int, changes: dict[str, Any]) -> float:
    found = importlib.util.spec_from_file_location("bench_long_input", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return float(module.fresh(name, length, changes)["bytes"])


@linux
def test_a_layer_takes_no_square_of_sixteen_thousand_tokens() -> None:
    length = 16_384
    changes = TINY | {"num_hidden_layers": 1}
    # A float per pair would be 1 GiB, a bit 32 MiB; all activations of 16 x 4 bytes are 1 MiB each.
    taken = fresh("roformer", length, changes)
    assert 2**20 < taken < 120 * 2**20


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", ["roformer", "modern", "local"])
def test_a_small_encoder_reads_32k_tokens_in_bounded_memory(name: str) -> None:
    half, whole = (fresh(name, length, {}) for length in (16_384, 32_768))
    # Scores of one head would take 4 GiB; hidden states of the widest part take 192 MiB.
    assert whole < 1.5 * 2**30
    # Linear: twice the tokens, twice the memory; the square would be four times.
    assert whole < 2.6 * half


def test_padding_of_a_long_row_costs_no_square_either() -> None:
    config = RoFormerConfig(**TINY, num_hidden_layers=1)
    model = RoFormerModel(config).eval()
    ids = torch.ones((2, 40_000), dtype=torch.long)
    mask = torch.ones_like(ids)
    ids[0, 50:], mask[0, 50:] = 0, 0
    with torch.inference_mode():
        ids[1], mask[1] = 0, 0
        ids[1, :60], mask[1, :60] = 2, 1
        found = model(ids, attention_mask=mask).last_hidden_state
        alone = model(ids[:1, :50]).last_hidden_state
    # fp32: a row alone or beside another, one layer
    torch.testing.assert_close(found[:1, :50], alone, atol=1e-5, rtol=1e-5)
