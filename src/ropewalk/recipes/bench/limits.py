"""What the operator must hold: floors and targets as data, and whether a report keeps them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ropewalk.recipes.bench.results import Accuracy, Case, Contender, Form, Mode, ratio
from ropewalk.recipes.bench.timing import Spread

NOISE = 1.15
"""Two runs of the same code differ by up to 15 %."""

TABLE_ERROR = 6e-8
"""Largest error of cos and sin: one rounding to float32 of values up to 1."""
BF16_RMS = 1.02
"""Largest root mean square error of bfloat16 vectors, in those of the ideal rounding."""

EAGER_PEER = {"half": "transformers Llama", "interleaved": "transformers RoFormer"}
"""The code that most people run, by layout."""

Verdict = Literal["target", "holds", "within noise", "no", "not measured"]

Rivals = Callable[[Case], Iterable[Contender]]
"""Who is compared with in a case, measured or not."""


@dataclass(frozen=True)
class Limit:
    """One row of what must hold.

    A limit is on our time in units of the other's, or, where ``faster``, on how many times faster
    we are.
    """

    name: str
    """What the tables call it."""
    rivals: Rivals
    floor: float
    target: float | None = None
    faster: bool = False
    form: Form = "in place"
    shapes: tuple[str, ...] = ("long", "batch")
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    layouts: tuple[str, ...] = ("half", "interleaved")
    mode: Mode = "forward"
    compiler: bool = True
    """False: what must hold without a compiled kernel."""

    def covers(self, case: Case) -> bool:
        """Return whether a case is meant.

        Args:
            case: The case.
        """
        return (
            case.shape in self.shapes
            and case.dtype in self.dtypes
            and case.layout in self.layouts
            and case.mode == self.mode
        )


class Finding(NamedTuple):
    """One limit in one case against one rival."""

    limit: Limit
    case: Case
    kernel: str
    """Kernel of ours."""
    rival: str
    seen: Spread | None
    """Our time over theirs, or theirs over ours where the limit says faster; None where one of the
    two was not measured."""
    verdict: Verdict
    """"no" as well where our contender was wrong."""


class Summary(NamedTuple):
    """One limit over all cases."""

    limit: Limit
    findings: list[Finding]
    worst: Finding | None
    """The case that is furthest from the floor; None where nothing was measured."""
    verdict: Verdict


def _rival(case: Case, code: str, form: Form = "fresh") -> Contender:
    """Return a contender that was measured, or one of that name that was not."""
    return case.find(code, form=form) or Contender(code, form, status="absent")


def _copy(case: Case) -> Iterator[Contender]:
    yield _rival(case, "copy", "out")


def _clone(case: Case) -> Iterator[Contender]:
    yield _rival(case, "clone")


def _eager_peer(case: Case) -> Iterator[Contender]:
    yield _rival(case, EAGER_PEER[case.layout])


def _libraries(case: Case) -> Iterator[Contender]:
    yield _rival(case, "rotary-embedding-torch")
    yield _rival(case, "x-transformers")


def _best_compiled(case: Case) -> Iterator[Contender]:
    """Yield the fastest of what torch.compile made of any code but ours."""
    compiled = [
        contender
        for contender in case.contenders
        if contender.compiled and contender.status == "measured" and contender.code != "ropewalk"
    ]
    nobody = Contender("any code", compiled=True, status="absent")
    yield min(compiled, key=lambda c: statistics.median(c.samples.cpu), default=nobody)


def _complex(case: Case) -> Iterator[Contender]:
    yield _rival(case, "complex multiply", "in place")


_FLOAT, _NARROW = ("float32",), ("bfloat16",)

LIMITS = (
    Limit("in place, fp32: x copy", _copy, 1.3, 1.0, dtypes=_FLOAT),
    Limit("in place, bf16: x copy", _copy, 2.1, 1.3, dtypes=_NARROW),
    Limit("out=, fp32: x copy", _copy, 1.5, 1.1, form="out", dtypes=_FLOAT),
    Limit("out=, bf16: x copy", _copy, 2.2, 1.5, form="out", dtypes=_NARROW),
    Limit("out of place, fp32: x clone", _clone, 1.5, 1.1, form="fresh", dtypes=_FLOAT),
    Limit("out of place, bf16: x clone", _clone, 2.0, 1.3, form="fresh", dtypes=_NARROW),
    Limit(
        "out of place: faster than transformers' eager code",
        _eager_peer, 4.0, 5.0, faster=True, form="fresh",
    ),
    Limit("in place: faster than transformers' eager code", _eager_peer, 5.0, 8.0, faster=True),
    Limit(
        "in place on long: faster than transformers' eager code",
        _eager_peer, 12.0, 20.0, faster=True, shapes=("long",),
    ),
    Limit(
        "forward + backward: faster than transformers' eager code",
        _eager_peer, 3.0, 5.0, faster=True, form="fresh", mode="training",
    ),
    Limit(
        "in place, fp32: faster than rotary-embedding-torch and x-transformers",
        _libraries, 9.0, faster=True, dtypes=_FLOAT, layouts=("interleaved",),
    ),
    Limit(
        "in place, bf16: faster than rotary-embedding-torch and x-transformers",
        _libraries, 20.0, faster=True, dtypes=_NARROW, layouts=("interleaved",),
    ),
    Limit("in place, fp32: x the best compiled form", _best_compiled, 1.15, dtypes=_FLOAT),
    Limit(
        "in place, bf16: faster than the best compiled form",
        _best_compiled, 2.5, faster=True, dtypes=_NARROW,
    ),
    Limit(
        "in place, fp32 interleaved: x complex mul_",
        _complex, 1.5, 1.15, dtypes=_FLOAT, layouts=("interleaved",),
    ),
    Limit(
        "decode in place: faster than transformers' eager Llama",
        _eager_peer, 3.0, 6.0, faster=True, shapes=("decode",), layouts=("half",),
    ),
    Limit(
        "without a compiler, in place, fp32 interleaved: x copy",
        _copy, 1.5, dtypes=_FLOAT, layouts=("interleaved",), compiler=False,
    ),
    Limit(
        "without a compiler, in place, fp32 half: x copy",
        _copy, 5.0, dtypes=_FLOAT, layouts=("half",), compiler=False,
    ),
    Limit(
        "without a compiler, in place, fp32: faster than transformers' eager code",
        _eager_peer, 1.0, faster=True, dtypes=_FLOAT, compiler=False,
    ),
)  # fmt: skip
"""Every limit on time. "x copy": our time over that of a copy of the same bytes."""


def judge(limit: Limit, seen: float) -> Verdict:
    """Return whether a ratio keeps a limit.

    Args:
        limit: The limit.
        seen: Ratio as the limit has it.

    Example:
        >>> judge(LIMITS[0], 1.4)  # the floor is 1.3 copies, and 15 % is noise
        'within noise'
    """
    if limit.faster:  # turned, so that less is better
        seen, floor = 1 / seen, 1 / limit.floor
        target = None if limit.target is None else 1 / limit.target
    else:
        floor, target = limit.floor, limit.target
    if target is not None and seen <= target:
        return "target"
    if seen <= floor:
        return "holds"
    return "within noise" if seen <= floor * NOISE else "no"


def findings(cases: Iterable[Case]) -> list[Summary]:
    """Judge every limit on every case that it covers.

    Args:
        cases: What was measured.
    """
    cases = list(cases)
    return [_summary(limit, [case for case in cases if limit.covers(case)]) for limit in LIMITS]


def judge_accuracy(rows: Iterable[Accuracy]) -> list[tuple[str, float, float, Verdict]]:
    """Return name, worst value, limit and verdict of what must hold for our errors.

    Args:
        rows: What was measured, peers' rows included.
    """
    ours = [row for row in rows if row.code == "ropewalk"]
    if not ours:
        return []
    last = max(row.position for row in ours)
    table, rms = max(row.table for row in ours), max(row.bf16_rms for row in ours)
    return [
        (
            f"error of cos and sin up to position {last:,}", table, TABLE_ERROR,
            "holds" if table <= TABLE_ERROR else "no",
        ),
        (
            "bf16 rms error over that of the ideal rounding", rms, BF16_RMS,
            "holds" if rms <= BF16_RMS else "no",
        ),
    ]  # fmt: skip


def all_hold(cases: Iterable[Case], rows: Iterable[Accuracy]) -> bool:
    """Return whether no answer of ours is wrong, and no limit broken by more than noise.

    Args:
        cases: What was timed; what was not breaks no limit.
        rows: Errors.
    """
    cases = list(cases)
    right = all(
        contender.status in ("measured", "absent")
        for case in cases
        for contender in case.contenders
        if contender.code == "ropewalk"
    )
    verdicts = [summary.verdict for summary in findings(cases)]
    verdicts += [verdict for *_, verdict in judge_accuracy(rows)]
    return right and "no" not in verdicts


def _summary(limit: Limit, cases: list[Case]) -> Summary:
    found = [finding for case in cases for finding in _compare(limit, case)]

    def distance(finding: Finding) -> float:
        assert finding.seen is not None
        return 1 / finding.seen.median if limit.faster else finding.seen.median

    measured = [finding for finding in found if finding.seen is not None]
    worst = max(measured, key=distance, default=None)
    if any(finding.verdict == "no" for finding in found):
        return Summary(limit, found, worst, "no")
    return Summary(limit, found, worst, "not measured" if worst is None else worst.verdict)


def _compare(limit: Limit, case: Case) -> Iterator[Finding]:
    kernel = _kernel(limit, case)
    ours = case.find("ropewalk", form=limit.form, kernel=kernel)
    wrong = case.find("ropewalk", form=limit.form, kernel=kernel, status="wrong") is not None
    for rival in limit.rivals(case):
        if ours is None or rival.status != "measured":
            verdict: Verdict = "no" if wrong else "not measured"
            yield Finding(limit, case, kernel, rival.name, None, verdict)
            continue
        seen = ratio(rival, ours) if limit.faster else ratio(ours, rival)
        yield Finding(limit, case, kernel, rival.name, seen, judge(limit, seen.median))


def _kernel(limit: Limit, case: Case) -> str:
    """Return the kernel that a limit is about: the best that there is, with a compiler or not."""
    measured = {c.kernel for c in case.contenders if c.code == "ropewalk" and not c.compiled}
    wanted = ("native", "eager") if limit.compiler else ("eager",)
    return next((name for name in wanted if name in measured), "reference")
