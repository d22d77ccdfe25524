"""``compare``: encoders that differ in their position encoding alone, trained and measured alike.

All runs read the same text with the same tokenizer; those of one seed also share the order of
the rows, the masked tokens, and the initial weights where shapes agree. What is left behind:
``report.html`` and ``report.json``, ``models/ENCODING`` (of the first seed), ``config.toml`` and
``runs/ENCODING-SEED`` (checkpoints and history of each run).
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ropewalk.errors import ConfigError
from ropewalk.recipes.callbacks import plain_console
from ropewalk.recipes.checkpointing import save_model
from ropewalk.recipes.comparison_run import (
    INPUTS,
    RunInputs,
    check_run,
    run_folder,
    run_one,
    run_side_by_side,
)
from ropewalk.recipes.comparison_settings import SCALINGS, ComparisonSettings, load_settings
from ropewalk.recipes.estimate import estimate
from ropewalk.recipes.findings import Run, findings
from ropewalk.recipes.inputs import PreparedData, check_masked, prepare_data
from ropewalk.recipes.lengths import LengthPoint, LengthTask, length_task, loss_by_length, spread
from ropewalk.recipes.loop import arguments
from ropewalk.recipes.outputs import (
    MODEL_FILES,
    TRAINING_FILES,
    check_output,
    open_output,
    under,
)
from ropewalk.recipes.report import Comparison, surroundings, write_report
from ropewalk.recipes.runs import RESULT, write_text
from ropewalk.recipes.sentences import DEFAULT_SENTENCES, Blank, fill, held_out_blanks
from ropewalk.recipes.settings import to_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from ropewalk.models import RoFormerConfig

__all__ = ["SCALINGS", "ComparisonResult", "ComparisonSettings", "compare", "load_settings"]

RECIPE = "compare"
CONTENTS = (
    "report.html",
    "report.json",
    "config.toml",
    *under("runs/*-[0-9]*", TRAINING_FILES),
    *under("models/*", MODEL_FILES),
    *under(INPUTS, (*MODEL_FILES, "*.npy")),
)


@dataclass(frozen=True)
class ComparisonResult:
    """Where the results are, and what they are.

    Args:
        report: The HTML page.
        json: The same as JSON.
        models: Folder of one trained model for each encoding.
        comparison: The content of both.
    """

    report: Path
    json: Path
    models: Path
    comparison: Comparison


def compare(
    settings: ComparisonSettings,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    command: str | None = None,
) -> ComparisonResult:
    """Train one encoder for each encoding and seed, measure them alike, and write the report.

    Every run has the same number of steps; there is no limit of time, which would make the result
    depend on the machine. Several runs go on side by side where there are threads for them. An
    interrupted comparison is continued with ``resume``: finished runs are read, interrupted ones go
    on from their checkpoints. Encodings and seeds may be added that way.

    Args:
        settings: What to compare, on what, and how.
        resume: Continue the comparison in the output folder, or start it if there is none.
        overwrite: Replace the results of an earlier comparison in the output folder.
        progress: Show the plan, bars and evaluations on the standard error stream.
        command: The command line that this was called by, for the report.

    Raises:
        ConfigError: A setting is refused, the output folder is in use, or several processes call.
        DataError: The text is missing, unreadable or too short.
        CheckpointError: Results cannot be written, or a checkpoint cannot be read.
    """
    given = arguments(settings.training, Path(settings.output), settings.device)
    if given.world_size > 1:
        raise ConfigError(
            f"compare runs in one process; got {given.world_size}; start it without torchrun"
        )
    # What cannot be built is refused before a long text is read.
    for config in _configs(settings, settings.data.vocab_size, 0):
        config.validate()
    options = {"resume": resume, "overwrite": overwrite}
    sources = settings.data.sources
    target = check_output(settings.output, RECIPE, CONTENTS, **options, sources=sources)
    material = _material(settings)
    console = plain_console(shown=progress)
    # Nothing may be written, and nothing deleted, that a later check would regret.
    for encoding, seed in settings.runs:
        check_run(settings, material.inputs, encoding, seed, fresh=overwrite)
    division = _division(settings, given.device)
    # What is measured here is measured as it was trained.
    with threads(division[1]), open_output(target, RECIPE, CONTENTS, **options):
        for line in _plan(settings, material, given.device, division):
            console.print(line)
        table = {key: value for key, value in settings.table().items() if key != "output"}
        write_text(target / "config.toml", to_toml(table) + "\n")
        try:
            runs, points = _train_all(settings, material, console, division)
        except KeyboardInterrupt:
            console.print(f"stopped; continue with resume (--resume) in {target}")
            raise
        models = {encoding: target / "models" / encoding for encoding in settings.encodings}
        comparison = Comparison(
            settings=settings,
            findings=findings(runs),
            runs=tuple(runs),
            lengths=tuple(points),
            filled=tuple(fill(material.blanks, models)),
            corpus=material.facts,
            surroundings=surroundings(given.device, *division),
            command=command,
        )
        write_report(comparison, target)
    return ComparisonResult(
        target / "report.html", target / "report.json", target / "models", comparison
    )


@dataclass(frozen=True, eq=False)
class _Material:
    """What all models of a comparison read."""

    inputs: RunInputs
    task: LengthTask
    blanks: list[Blank]
    facts: dict[str, Any]


def _material(settings: ComparisonSettings) -> _Material:
    data = prepare_data(settings.data, seed=0)
    blanks = _blanks(settings, data)
    held_out = spread(data.validation_set.blocks, settings.eval_rows)
    inputs = RunInputs(data.tokenizer, data.train_set.blocks, held_out)
    check_masked(inputs.validation_set(settings), data.corpus)
    task = length_task(
        data.validation_documents,
        data.tokenizer,
        {ratio: settings.context(ratio) for ratio in settings.ratios},
        mask_probability=settings.data.mask_probability,
        whole_word=settings.data.whole_word,
    )
    facts = {
        "name": data.corpus,
        "fingerprint": data.fingerprint,
        "characters": data.characters,
        "train_documents": len(data.train_documents),
        "validation_documents": len(data.validation_documents),
        "train_rows": len(data.train_set),
        "validation_rows": len(held_out),
        "validation_rows_available": len(data.validation_set),
        "vocabulary": len(data.tokenizer),
    }
    return _Material(inputs, task, blanks, facts)


def _train_all(
    settings: ComparisonSettings,
    material: _Material,
    console: Console,
    division: tuple[int, int],
) -> tuple[list[Run], list[LengthPoint]]:
    """Train every model that is not trained yet; save and measure those of the first seed."""
    runs: list[Run] = []
    points: list[LengthPoint] = []
    target, inputs = Path(settings.output).expanduser(), material.inputs
    jobs, share = division
    waiting = [key for key in settings.runs if not (run_folder(settings, *key) / RESULT).is_file()]
    if jobs > 1 and len(waiting) > 1:
        run_side_by_side(
            settings, inputs, waiting, jobs=jobs, threads=share, progress=not console.quiet
        )
    for encoding, seed in settings.runs:
        model, run = run_one(settings, inputs, encoding, seed, progress=not console.quiet)
        runs.append(run)
        if seed != settings.seeds[0]:
            continue
        save_model(model, inputs.tokenizer, target / "models" / encoding)
        if settings.eval_lengths:
            console.print(f"{encoding}: losses at {', '.join(settings.eval_lengths)}")
            rules, precision = settings.eval_scaling, settings.training.precision
            points += loss_by_length(model, material.task, rules, precision=precision)
    return runs, points


def _division(settings: ComparisonSettings, device: torch.device) -> tuple[int, int]:
    """Return how many runs go on at the same time, and the threads of each."""
    available = torch.get_num_threads()
    jobs = settings.jobs or (available if device.type == "cpu" else 1)
    jobs = min(jobs, len(settings.runs))
    return jobs, max(1, available // jobs)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads.

    Args:
        count: How many.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _configs(
    settings: ComparisonSettings, vocab_size: int, pad_token_id: int | None
) -> Iterator[RoFormerConfig]:
    """Yield the configuration of every model that will be trained or evaluated."""
    sizes = {"vocab_size": vocab_size, "pad_token_id": pad_token_id}
    for encoding in settings.encodings:
        yield settings.config(encoding, **sizes)  # type: ignore[arg-type]
    if "rope" in settings.encodings and max(settings.ratios, default=1.0) > 1:
        for rule in settings.eval_scaling:
            yield settings.config("rope", **sizes, scaling=rule, factor=2.0)  # type: ignore[arg-type]


def _blanks(settings: ComparisonSettings, data: PreparedData) -> list[Blank]:
    """Choose the sentences to fill, and refuse those that a model could not read."""
    if settings.sentences:
        blanks = [Blank(sentence) for sentence in settings.sentences]
    elif settings.data.sources or settings.data.dataset:
        blanks = held_out_blanks(data.validation_documents)
    else:
        blanks = [Blank(sentence) for sentence in DEFAULT_SENTENCES]
    kept = []
    for blank in blanks:
        tokens = len(data.tokenizer(blank.text)["input_ids"])
        if tokens <= settings.data.block_size:
            kept.append(blank)
        elif settings.sentences:
            raise ConfigError(
                f"sentences must have at most block_size={settings.data.block_size} tokens; "
                f"got {tokens} in {blank.text!r:.60}"
            )
    return kept


def _plan(
    settings: ComparisonSettings,
    material: _Material,
    device: torch.device,
    division: tuple[int, int],
) -> Iterator[str]:
    training, length, facts = settings.training, settings.data.block_size, material.facts
    config = settings.config(settings.encodings[0], vocab_size=facts["vocabulary"], pad_token_id=0)
    costs = estimate(
        config,
        training,
        length=length,
        device=device,
        mask_probability=settings.data.mask_probability,
    )
    jobs, _ = division
    runs = len(settings.runs)
    seconds = costs.seconds_per_step * training.steps * math.ceil(runs / jobs)
    yield (
        f"text      {facts['name']}: {facts['characters']:,} characters, "
        f"{facts['train_rows']:,} rows of {length} tokens to train on, "
        f"{facts['validation_rows']:,} held-out rows to evaluate on"
    )
    yield (
        f"models    {', '.join(settings.encodings)}: {config.num_hidden_layers} layers x "
        f"{config.hidden_size}, vocabulary {config.vocab_size:,}, "
        f"about {costs.parameters:,} parameters"
    )
    yield (
        f"training  {runs} runs of {training.steps:,} steps of {training.batch_size} x {length} "
        f"tokens, learning rate {training.learning_rate:g}, on {device.type}, {jobs} at a time"
    )
    yield (
        f"estimate  {seconds / 60:.1f} min for all without evaluations; "
        f"memory {jobs * costs.total_bytes / 2**30:.2f} GiB for weights and activations"
    )
