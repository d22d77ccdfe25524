"""The compiled kernel against the definition, on random calls."""

import os
import re
from pathlib import Path

import pytest
import torch
from rotary_cases import assert_same, outcome, random_case

import ropewalk as rw
from ropewalk.rotary.kernels import native

pytestmark = pytest.mark.skipif(
    "native" not in rw.available_kernels(), reason="the extension was not built"
)


def assert_native_is_the_reference(seed, scale=1):
    case = random_case(seed, scale)
    with rw.use_kernel("reference"):
        want = outcome(random_case(seed, scale))
    with rw.use_kernel("native"):
        got = outcome(case)
    # Products and sums are rounded one by one in one order, so nothing is left to tolerate.
    assert_same(got, want, case.name)


SETS = ("generic", "avx2", "avx512", "avx512_bf16")


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", SETS)
def test_every_instruction_set_equals_the_reference_on_any_call(name, part):
    if not native.instruction_sets().get(name):
        pytest.skip(f"this processor has no {name}")
    assert native.select_instruction_set(name)
    try:
        for seed in range(75 * part, 75 * part + 75):
            assert_native_is_the_reference(seed)
    finally:
        native.select_instruction_set(None)


def test_there_is_code_for_these_instruction_sets():
    assert tuple(native.instruction_sets()) == SETS


def test_most_calls_are_served_in_c(monkeypatch):
    served, rotate_one = [], native.rotate_one

    def counted(*given, inside_op=False):
        result = rotate_one(*given, inside_op=inside_op)
        if not inside_op:
            served.append(result is not None)
        return result

    monkeypatch.setattr(native, "rotate_one", counted)
    for seed in range(300):
        outcome(random_case(seed))
    # left to the reference: strides inside a head, float64 tables of float32, odd tables
    assert len(served) == 300
    assert sum(served) > 200


@pytest.mark.skipif("ROPEWALK_SANITIZED" not in os.environ, reason="for make sanitize")
def test_the_kernel_under_test_is_the_sanitized_one():
    loaded = Path("/proc/self/maps").read_text()
    assert "libasan" in loaded
    assert re.search(r"/build/sanitized/ropewalk/\S*/_native\.\S+", loaded)
    assert not re.search(r"/src/ropewalk/\S*/_native\.\S+", loaded)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_native_equals_the_reference_on_any_number_of_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed in range(1000, 1030):
            assert_native_is_the_reference(seed, scale=8)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_native_equals_the_reference_on_ten_thousand_calls(part):
    for seed in range(10_000 + 1000 * part, 11_000 + 1000 * part):
        assert_native_is_the_reference(seed, scale=1 + seed % 3)
