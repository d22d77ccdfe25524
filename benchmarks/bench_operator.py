"""Measure operator, accuracy and encoder, say what holds, and write the page of benchmarks.

    python benchmarks/bench_operator.py --compile --json runs/bench.json --page docs/benchmarks.md
    python benchmarks/bench_operator.py --from-json runs/bench.json --page docs/benchmarks.md

The second form measures nothing: it writes the page again and judges the same figures. Exit code
1 where something that must hold does not.
"""

from __future__ import annotations

# Before torch is loaded: threads that spin while they wait would count as work.
from ropewalk.recipes.bench.environment import wait_passively

THREADS_SLEEP = wait_passively()

import argparse  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from ropewalk.errors import RopewalkError  # noqa: E402
from ropewalk.recipes.bench import limits  # noqa: E402
from ropewalk.recipes.bench.accuracy import AccuracySettings  # noqa: E402
from ropewalk.recipes.bench.encoder import EncoderSettings  # noqa: E402
from ropewalk.recipes.bench.operator import OperatorSettings  # noqa: E402
from ropewalk.recipes.bench.results import Report  # noqa: E402
from ropewalk.recipes.bench.run import Plan, run  # noqa: E402
from ropewalk.recipes.bench.table import markdown, must_hold  # noqa: E402


def main() -> int:
    """Measure or read a report; print what must hold; write the files asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="torch.compile too (slow)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the rounds of each case")
    parser.add_argument("--threads", type=int, help="default: torch's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", default="installed", help="installed, all or none")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--page", type=Path, help="write the tables here")
    parser.add_argument("--from-json", type=Path, help="read figures instead of measuring")
    given = parser.parse_args()
    for path in (given.json, given.page):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    report = Report.read(given.from_json) if given.from_json else _measure(given)
    if given.json:
        given.json.write_text(report.to_json(), encoding="utf-8")
    if given.page:
        given.page.write_text(markdown(report), encoding="utf-8")
    _print(report)
    return 0 if report.complete and limits.all_hold(report.operator, report.accuracy) else 1


def _measure(given: argparse.Namespace) -> Report:
    common = {"seed": given.seed, "peers": given.peers}
    plan = Plan(
        OperatorSettings(seconds=given.seconds, compile=given.compile, **common),
        AccuracySettings(**common),
        EncoderSettings(seconds=given.seconds, seed=given.seed),
        threads=given.threads,
    )
    return run(plan, threads_sleep=THREADS_SLEEP)


def _print(report: Report) -> None:
    table = must_hold(report)
    rows = [table.head, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RopewalkError as error:
        sys.exit(f"error: {error}")
