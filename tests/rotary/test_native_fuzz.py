"""The compiled kernel against the definition, on random calls."""

import pytest
import torch
from rotary_cases import assert_same, outcome, random_case

import ropewalk as rw

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


@pytest.mark.parametrize("part", range(6))
def test_native_equals_the_reference_on_any_call(part):
    for seed in range(50 * part, 50 * part + 50):
        assert_native_is_the_reference(seed)


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
