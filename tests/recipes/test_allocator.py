from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from ropewalk.errors import ConfigError
from ropewalk.recipes.allocator import SWITCH, keep_large_blocks

# 64 MiB, twice what glibc maps afresh at most; a page is 4 KiB or more.
FAULTS = """
import resource, torch
from ropewalk.recipes.allocator import keep_large_blocks
print(keep_large_blocks())
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(16 << 20).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults() for _ in range(6)))
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


def ask(**environment: str) -> tuple[bool, int]:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    raised, faults = done.stdout.split()
    return raised == "True", int(faults)


@glibc
def test_a_large_temporary_finds_its_memory_again() -> None:
    # The first is new; now and then another is, as the heap is cut elsewhere.
    raised, faults = ask()
    assert raised
    assert faults < 100  # 16,384 pages of 4 KiB otherwise


@glibc
@pytest.mark.parametrize(
    "environment", [{SWITCH: "system"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}]
)
def test_the_switch_and_settings_of_glibc_leave_it_alone(environment: dict[str, str]) -> None:
    raised, _ = ask(**environment)
    assert not raised


def test_an_unknown_value_of_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    keep_large_blocks.cache_clear()
    with pytest.raises(ConfigError, match=rf"{SWITCH} must be 'keep' or 'system'; got 'off'"):
        keep_large_blocks()
