"""Reports as tables: the same sections for a Markdown page and for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ropewalk.recipes.bench import limits
from ropewalk.recipes.bench.results import Accuracy, Case, Contender, EncoderCase, Report, ratio
from ropewalk.recipes.bench.timing import Spread, spread


class Section(NamedTuple):
    """A table with what must be said about it."""

    title: str
    note: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def sections(report: Report, *, brief: bool = False) -> Iterator[Section]:
    """Yield every table of a report; the summary of what must hold first.

    Args:
        report: What was measured.
        brief: For a terminal: without details, and without rows of what must hold for cases that
            were not asked for.
    """
    if report.operator or report.accuracy:
        yield must_hold(report, brief=brief)
    if report.operator and not brief:
        yield _details(report)
    for case in report.operator:
        section = _case(case)
        yield _columns(section, (0, 1, 2, 4)) if brief else section
    if report.accuracy:
        yield from _accuracy(report.accuracy)
    if report.encoder:
        yield _encoder(report.encoder)


def markdown(report: Report) -> str:
    """Return a report as a Markdown page.

    Args:
        report: What was measured.
    """
    lines = ["# Benchmarks", "", *_origin(report)]
    for section in sections(report):
        lines += ["", f"## {section.title}", ""]
        lines += [section.note, ""] if section.note else []
        lines.append(f"| {' | '.join(section.head)} |")
        lines.append(f"| --- |{' ---: |' * (len(section.head) - 1)}")
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in section.rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _origin(report: Report) -> Iterator[str]:
    yield (
        "Processor time of the measuring process, all threads together, medians of ratios within "
        "rounds in which all contenders take turns in shuffled order; in brackets the middle half "
        "of the rounds. Ratios of one run that differ by less than 15 % are equal. Every contender "
        "is checked against a rotation in float64 before it is timed. Tables of cosines and sines "
        "are built outside the timing. Figures hold for the machine they were taken on."
    )
    facts = [f"{name} {value}" for name, value in (report.machine | report.versions).items()]
    yield from ("", f"Measured on: {'; '.join(facts)}.")
    kernels = [f"{name}: {status}" for name, status in report.kernels.items()]
    yield from ("", f"Kernels of the operator: {'; '.join(kernels)}.")
    yield from ("", f"Settings: {_words(report.settings)}.")
    if not report.settings.get("threads_sleep", True):
        yield from ("", "Waiting threads were spinning, which counts as processor time here.")
    if not report.complete:
        yield from ("", "**Interrupted: some cases are missing.**")


def _words(value: object) -> str:
    """Return nested settings as a phrase, the same before and after JSON."""
    if isinstance(value, dict):
        return "; ".join(
            f"{name}: {_words(part)}" if isinstance(part, dict) else f"{name} {_words(part)}"
            for name, part in value.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def must_hold(report: Report, *, brief: bool = False) -> Section:
    """Return one row for everything that must hold.

    Args:
        report: What was measured.
        brief: Leave out what must hold for cases that were not asked for.
    """
    rows: list[tuple[str, ...]] = []
    for summary in limits.findings(report.operator):
        limit, worst = summary.limit, summary.worst
        if brief and not summary.findings:
            continue
        rows.append(
            (
                limit.name,
                "-" if worst is None or worst.seen is None else f"{worst.seen.median:.2f}",
                _bound(limit, limit.floor),
                "-" if limit.target is None else _bound(limit, limit.target),
                _verdict(summary),
                "-" if worst is None else f"{_where(worst.case)}; {worst.kernel}; {worst.rival}",
            )
        )
    for name, seen, bound, verdict in limits.judge_accuracy(report.accuracy):
        rows.append((name, f"{seen:.3g}", f"at most {bound:g}", "-", verdict, "float64"))
    return Section(
        "What must hold",
        'The worst case of each row, with our kernel and whom it is compared with. "target": the '
        'target is reached; "within noise": beyond the floor by less than 15 %.',
        ("case", "seen", "floor", "target", "verdict", "worst at"),
        rows,
    )


def _verdict(summary: limits.Summary) -> str:
    missing = sum(finding.verdict == "not measured" for finding in summary.findings)
    if summary.verdict == "not measured" or not missing:
        return summary.verdict
    return f"{summary.verdict} ({missing} of {len(summary.findings)} not measured)"


def _details(report: Report) -> Section:
    summaries = limits.findings(report.operator)
    return Section(
        "What must hold, case by case",
        "",
        ("case", "at", "kernel", "compared with", "seen", "floor", "target", "verdict"),
        [_detail(finding) for summary in summaries for finding in summary.findings],
    )


def _detail(finding: limits.Finding) -> tuple[str, ...]:
    limit = finding.limit
    return (
        limit.name,
        _where(finding.case),
        finding.kernel,
        finding.rival or "-",
        _spread(finding.seen),
        _bound(limit, limit.floor),
        "-" if limit.target is None else _bound(limit, limit.target),
        finding.verdict,
    )


def _bound(limit: limits.Limit, value: float) -> str:
    return f"{'at least' if limit.faster else 'at most'} {value:g}"


def _where(case: Case) -> str:
    return f"{case.shape} {case.dtype} {case.layout}"


def _case(case: Case) -> Section:
    copy = case.find("copy", form="out")
    rows = [_contender(contender, copy) for contender in case.contenders]
    return Section(
        f"Operator: {case.name}",
        f"q and k together; a copy moves {case.moved / 2**20:.3g} MiB. Lower is better.",
        ("contender", "x copy", "cpu time", "wall time", "largest error", "first call", "source"),
        rows,
    )


def _columns(section: Section, wanted: tuple[int, ...]) -> Section:
    """Return a section with some of its columns."""
    rows = [tuple(row[i] for i in wanted) for row in section.rows]
    return section._replace(head=tuple(section.head[i] for i in wanted), rows=rows)


def _contender(contender: Contender, copy: Contender | None) -> tuple[str, ...]:
    error = "-" if contender.error is None else f"{contender.error:.1e}"
    first = "-" if contender.first_call is None else f"{contender.first_call:.1f} s"
    if contender.status != "measured" or copy is None:
        state = f"{contender.status}: {contender.note}"
        return (contender.name, state, "-", "-", error, first, contender.source)
    return (
        contender.name,
        _spread(ratio(contender, copy)),
        _time(contender.samples.cpu),
        _time(contender.samples.wall),
        error,
        first,
        contender.source,
    )


def _accuracy(rows: list[Accuracy]) -> Iterator[Section]:
    positions = sorted({row.position for row in rows})
    head = ("code", *(f"{position:,}" for position in positions))
    kinds = {
        "table": (
            "Accuracy: cosines and sines, float32",
            "Largest absolute error over the 64 positions that end at the one named, head size "
            "128, base 10,000.",
        ),
        "rotated": (
            "Accuracy: rotated vectors, float32",
            "Largest absolute error of standard normal vectors at the same positions.",
        ),
        "bf16_rms": (
            "Accuracy: rotated vectors, bfloat16",
            "Root of the mean squared error, in those of rounding the exact result once; each "
            "code as it comes, its cache filled by this call.",
        ),
    }
    for name, (title, note) in kinds.items():
        found = {(row.code, row.position): getattr(row, name) for row in rows}
        shown = "{:.2f}" if name == "bf16_rms" else "{:.1e}"
        yield Section(
            title,
            note,
            head,
            [
                (code, *(_maybe(found.get((code, position)), shown) for position in positions))
                for code in dict.fromkeys(row.code for row in rows)
            ],
        )


def _encoder(cases: Iterable[EncoderCase]) -> Section:
    return Section(
        "Encoder: ropewalk beside transformers' RoFormer",
        "Same weights, same rows, on the training side AdamW for both; padded rows count real "
        "tokens only.",
        (
            "rows", "dtype", "mode", "times as fast", "ours", "transformers",
            "real tokens per cpu second", "largest difference",
        ),
        [
            (
                case.shape,
                case.dtype,
                "training step" if case.mode == "training" else "forward",
                _spread(spread(case.theirs.cpu, case.ours.cpu)),
                _time(case.ours.cpu),
                _time(case.theirs.cpu),
                f"{case.tokens / _median(case.ours.cpu):,.0f}",
                f"{case.difference:.1e}",
            )
            for case in cases
        ],
    )  # fmt: skip


def _maybe(value: float | None, shown: str) -> str:
    return "-" if value is None else shown.format(value)


def _spread(seen: Spread | None) -> str:
    if seen is None:
        return "-"
    return f"{seen.median:.2f} ({seen.low:.2f}-{seen.high:.2f})"


def _time(samples: list[float]) -> str:
    seconds = _median(samples)
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _median(samples: list[float]) -> float:
    return statistics.median(samples)
