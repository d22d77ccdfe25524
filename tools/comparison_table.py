"""Turn the report.json of `ropewalk compare` into docs/comparison.md.

Usage: python tools/comparison_table.py runs/three-seeds/report.json > docs/comparison.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def markdown(report: dict[str, Any]) -> str:
    """Return the page.

    Args:
        report: Content of a report.json.
    """
    sections = (_introduction, _results, _differences, _lengths, _origin)
    return "\n".join(line for section in sections for line in section(report)) + "\n"


def _introduction(report: dict[str, Any]) -> Iterator[str]:
    settings, corpus = report["settings"], report["corpus"]
    model, training = settings["model"], settings["training"]
    yield from ("# Position encodings compared", "", report["headline"], "")
    yield (
        f"Text: {corpus['name']} ({corpus['characters']:,} characters, vocabulary "
        f"{corpus['vocabulary']:,}). Models: {model['layers']} layers x {model['hidden_size']}, "
        f"{model['heads']} heads. Budget of each run: {training['steps']:,} steps of "
        f"{training['batch_size']} x {settings['data']['block_size']} tokens, largest learning "
        f"rate {training['learning_rate']:g}. Seeds: {', '.join(map(str, settings['seeds']))}. "
        "Runs of one seed share the order of the rows, the masked tokens and the initial weights."
    )


def _results(report: dict[str, Any]) -> Iterator[str]:
    yield from ("", "## Validation loss", "")
    columns = {
        "encoding": lambda row: row["encoding"],
        "loss (nats per masked token)": lambda row: _number(
            row["loss"], row["loss_standard_error"]
        ),
        "accuracy": lambda row: f"{row['accuracy']:.1%}",
        f"steps to the loss of {report['best_baseline']}": _steps,
        "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
        "weights": lambda row: f"{row['parameters']:,}",
    }
    rows = [[show(row) for show in columns.values()] for row in report["summaries"]]
    yield from _table(list(columns), rows)
    yield ""
    yield (
        f"Measured every {report['settings']['training']['eval_every']} steps on "
        f"{report['runs'][0]['training']['evaluations'][-1]['tokens']:,} masked tokens of held-out "
        "text; ± is one standard error over seeds. Speeds hold for the machine below."
    )


def _differences(report: dict[str, Any]) -> Iterator[str]:
    if not report["differences"] or report["differences"][0]["standard_error"] is None:
        return
    yield from ("", "## Rope minus each baseline, paired by seed", "")
    columns = {
        "baseline": lambda row: row["baseline"],
        "difference (nats)": lambda row: f"{row['mean']:+.3f}",
        "standard error": lambda row: f"{row['standard_error']:.3f}",
        "seeds": lambda row: str(row["n"]),
        "in standard errors": lambda row: f"{row['mean'] / row['standard_error']:+.1f}",
    }
    rows = [[show(row) for show in columns.values()] for row in report["differences"]]
    yield from _table(list(columns), rows)


def _lengths(report: dict[str, Any]) -> Iterator[str]:
    points = sorted(report["lengths"], key=lambda point: point["ratio"])
    measured = [point for point in points if point["loss"] is not None]
    if not measured:
        return
    yield from ("", "## Past the trained length", "")
    contexts = dict.fromkeys((point["ratio"], point["length"]) for point in points)
    rows: dict[str, list[str]] = {}
    for point in points:
        label = point["encoding"]
        if point["scaling"] != "none":
            label += f", {point['scaling']} scaling"
        cell = point["status"]
        if point["loss"] is not None:
            cell = _number(point["loss"], point["standard_error"])
        rows.setdefault(label, []).append(cell)
    head = [f"{length:,} tokens ({ratio:g}x)" for ratio, length in contexts]
    yield from _table(["model", *head], [[label, *cells] for label, cells in rows.items()])
    yield ""
    yield (
        f"One checkpoint of each encoding (seed {report['settings']['seeds'][0]}), the same "
        f"{measured[0]['tokens']:,} masked tokens of {measured[0]['windows']} held-out windows "
        f"from {measured[0]['documents']} documents at every length; ± is one standard error over "
        "documents. Scaling changes the rotation by the multiple of the length and no weight."
    )


def _origin(report: dict[str, Any]) -> Iterator[str]:
    yield from ("", "## Where the figures come from", "")
    if report["command"]:
        yield from ("```", report["command"], "```", "")
    machine = {name.replace("_", " "): value for name, value in report["machine"].items()}
    facts = [f"{name} {value}" for name, value in (report["versions"] | machine).items()]
    yield f"{'; '.join(facts)}."
    yield from ("", "Made from the run's `report.json` by `tools/comparison_table.py`.")


def _steps(summary: dict[str, Any]) -> str:
    steps = summary["steps_to_baseline"]
    return "not reached" if steps is None else f"{steps:,.0f}"


def _number(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| --- |{' ---: |' * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} REPORT.json > docs/comparison.md")
    print(markdown(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
