"""The report of a comparison: one JSON file with everything, one HTML page that shows it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from ropewalk._version import __version__
from ropewalk.recipes.runs import write_json, write_text

if TYPE_CHECKING:
    from pathlib import Path

    from ropewalk.recipes.comparison_settings import ComparisonSettings
    from ropewalk.recipes.findings import Findings, Run
    from ropewalk.recipes.lengths import LengthPoint
    from ropewalk.recipes.sentences import Filled

SCHEMA = "ropewalk.comparison/1"
"""First entry of the JSON; the number grows when an entry changes its meaning."""


@dataclass(frozen=True)
class Comparison:
    """Everything that a comparison was and gave.

    Args:
        settings: What was asked for.
        findings: What the runs show.
        runs: Every run.
        lengths: Losses at several lengths, of the first seed's models.
        filled: Sentences filled by the same models.
        corpus: The text and its form.
        surroundings: Versions and machine.
        command: The command line; None when called from Python.
    """

    settings: ComparisonSettings
    findings: Findings
    runs: tuple[Run, ...]
    lengths: tuple[LengthPoint, ...]
    filled: tuple[Filled, ...]
    corpus: dict[str, Any]
    surroundings: dict[str, dict[str, Any]]
    command: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dictionaries and numbers, for JSON."""
        return {
            "schema": SCHEMA,
            "headline": self.findings.headline,
            "command": self.command,
            "settings": self.settings.table(),
            "corpus": self.corpus,
            "best_baseline": self.findings.best_baseline,
            "summaries": [asdict(summary) for summary in self.findings.summaries],
            "differences": [asdict(difference) for difference in self.findings.differences],
            "lengths": [asdict(point) for point in self.lengths],
            "filled": [asdict(sentence) for sentence in self.filled],
            "runs": [asdict(run) for run in self.runs],
            **self.surroundings,
        }


def surroundings(device: torch.device, jobs: int, threads: int) -> dict[str, dict[str, Any]]:
    """Return what can change a number without being a setting: versions and kind of machine.

    Args:
        device: Where the models were trained.
        jobs: How many at the same time.
        threads: Threads of each.
    """
    names = ("torch", "transformers", "tokenizers", "accelerate", "numpy")
    machine: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "runs_at_a_time": jobs,
        "threads_per_run": threads,
        "device": device.type,
    }
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return {
        "versions": {
            "ropewalk": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in names},
        },
        "machine": machine,
    }


def write_report(comparison: Comparison, folder: Path) -> None:
    """Write ``report.json`` and ``report.html``, each as a whole.

    Args:
        comparison: What to write.
        folder: Where; it exists.

    Raises:
        CheckpointError: They cannot be written; nothing half-written is left.
    """
    from ropewalk.recipes.report_page import page

    html = page(comparison)
    write_json(folder / "report.json", comparison.to_dict())
    write_text(folder / "report.html", html)
