"""Timing in turn: every contender in every round, so that what disturbs one disturbs all.

What is compared is the processor time of this process, all its threads together, which a busy
machine disturbs less than the clock on the wall; both are kept. A ratio is the median of the
ratios within rounds.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

FEWEST_ROUNDS = 3
"""Rounds that are measured however long they take: a median needs them."""

_MOST_REPEATS = 5000


class Clock(NamedTuple):
    """Where seconds are read."""

    cpu: Callable[[], float] = time.process_time
    """User and system time of all threads of this process."""
    wall: Callable[[], float] = time.perf_counter
    """Time that passes."""


@dataclass(frozen=True)
class Call:
    """What is timed."""

    run: Callable[[], object]
    """One call."""
    scope: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered around the calls of a sample, outside the timing."""


@dataclass(frozen=True)
class Samples:
    """Seconds per call of one contender, one entry per round."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


class Spread(NamedTuple):
    """A median and how far the middle half of the samples reaches."""

    median: float
    low: float
    high: float
    rounds: int


def interleave(
    calls: Mapping[str, Call],
    *,
    seconds: float,
    seed: int = 0,
    sample: float = 0.02,
    clock: Clock | None = None,
    each_round: Callable[[float], None] | None = None,
) -> dict[str, Samples]:
    """Time calls in turn, in rounds of shuffled order.

    Args:
        calls: What to time, by name.
        seconds: Wall time to spend; at least three rounds are measured whatever they take.
        seed: Of the order within rounds.
        sample: Processor seconds that a sample should last; short calls are repeated.
        clock: Where seconds are read; None means the system's.
        each_round: Called after every round with the share of the time that is spent, 0 to 1.

    Returns:
        The samples of every call, in the order of ``calls``, the same rounds for all.
    """
    clock = clock or Clock()
    generator = random.Random(seed)
    samples = {name: Samples() for name in calls}
    order = list(calls)
    with _no_collection():
        start = clock.wall()
        repeats = {name: _repeats(call, sample, clock) for name, call in calls.items()}
        rounds = 0
        while rounds < FEWEST_ROUNDS or clock.wall() - start < seconds:
            generator.shuffle(order)
            for name in order:
                cpu, wall = _time(calls[name], repeats[name], clock)
                samples[name].cpu.append(cpu)
                samples[name].wall.append(wall)
            rounds += 1
            if each_round is not None:
                each_round(min(1.0, (clock.wall() - start) / seconds))
    return samples


def spread(times: list[float], others: list[float]) -> Spread:
    """Return ``times`` over ``others``, round by round.

    Args:
        times: Seconds of one contender in every round.
        others: Seconds of the one it is compared with, in the same rounds.

    Example:
        >>> spread([2.0, 30.0, 3.0], [1.0, 10.0, 1.0]).median  # the slow round weighs no more
        3.0
    """
    ratios = [a / b for a, b in zip(times, others, strict=True)]
    quarters = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios
    return Spread(statistics.median(ratios), quarters[0], quarters[-1], len(ratios))


def _repeats(call: Call, sample: float, clock: Clock) -> int:
    """Return how many calls fill a sample, after the first call has warmed up."""
    _time(call, 1, clock)
    once, _ = _time(call, 1, clock)
    if once < sample / 20:  # too short for one reading of the clock to say much
        once, _ = _time(call, 20, clock)
    return max(1, min(_MOST_REPEATS, round(sample / max(once, 1e-9))))


def _time(call: Call, repeats: int, clock: Clock) -> tuple[float, float]:
    run = call.run
    with call.scope():
        wall, cpu = clock.wall(), clock.cpu()
        for _ in range(repeats):
            run()
        cpu, wall = clock.cpu() - cpu, clock.wall() - wall
    # A clock of coarse steps may not have moved: nothing takes no time.
    return max(cpu / repeats, 1e-9), max(wall / repeats, 1e-9)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out of the samples."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
