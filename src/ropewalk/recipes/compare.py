"""``compare``: encoders that differ in their position encoding alone, trained and measured alike.

All runs read the same text with the same tokenizer; those of one seed also share the order of
the rows, the masked tokens, and the initial weights where shapes agree. What is left behind:
``report.html`` and ``report.json``, ``models/ENCODING`` (of the first seed), ``config.toml`` and
``runs/ENCODING-SEED`` (checkpoints and history of each run).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from ropewalk.analysis.measures import IGNORED_LABEL
from ropewalk.data import MaskedLanguageModeling, PackedBlocks
from ropewalk.errors import ConfigError, DataError
from ropewalk.models import RoFormerForMaskedLM
from ropewalk.recipes.checkpointing import save_model
from ropewalk.recipes.comparison_settings import SCALINGS, ComparisonSettings, load_settings
from ropewalk.recipes.estimate import estimate
from ropewalk.recipes.findings import Run, findings
from ropewalk.recipes.inputs import PreparedData, prepare_data
from ropewalk.recipes.lengths import LengthPoint, LengthTask, length_task, loss_by_length, spread
from ropewalk.recipes.loop import arguments
from ropewalk.recipes.outputs import check_output, open_output
from ropewalk.recipes.report import Comparison, surroundings, write_report
from ropewalk.recipes.runs import write_text
from ropewalk.recipes.sentences import DEFAULT_SENTENCES, Blank, fill, held_out_blanks
from ropewalk.recipes.settings import to_toml
from ropewalk.recipes.training import train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropewalk.models import RoFormerConfig

__all__ = ["SCALINGS", "ComparisonResult", "ComparisonSettings", "compare", "load_settings"]

RECIPE = "compare"
CONTENTS = ("runs", "models", "report.html", "report.json", "config.toml")


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
    depend on the machine. An interrupted comparison is continued with ``resume``: finished runs
    are read, the interrupted one goes on from its checkpoint. Encodings and seeds may be added so.

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
    target = Path(settings.output).expanduser()
    check_output(target, RECIPE, CONTENTS, resume=resume, overwrite=overwrite)
    data = prepare_data(settings.data, seed=0)
    blanks = _blanks(settings, data)
    task = length_task(
        data.validation_documents,
        data.tokenizer,
        {ratio: settings.context(ratio) for ratio in settings.ratios},
        mask_probability=settings.data.mask_probability,
        whole_word=settings.data.whole_word,
    )
    validation = _masked(
        spread(data.validation_set.blocks, settings.eval_rows), data, settings, seed=0
    )
    rows = (validation[index] for index in range(len(validation)))
    if not any((row["labels"] != IGNORED_LABEL).any() for row in rows):
        raise DataError(
            f"the held-out part of {data.corpus} must have a masked token to be evaluated on; "
            f"got none in {len(validation)} rows; give more text"
        )
    console = Console(stderr=True, quiet=not progress, soft_wrap=True, highlight=False)
    for line in _plan(settings, data, validation, given.device):
        console.print(line)

    open_output(target, RECIPE, CONTENTS, overwrite=overwrite)
    table = {key: value for key, value in settings.table().items() if key != "output"}
    write_text(target / "config.toml", to_toml(table) + "\n")
    try:
        runs, points = _train_all(settings, data, validation, task, console)
    except KeyboardInterrupt:
        console.print(f"stopped; continue with resume (--resume) in {target}")
        raise
    models = {encoding: target / "models" / encoding for encoding in settings.encodings}
    comparison = Comparison(
        settings=settings,
        findings=findings(runs),
        runs=tuple(runs),
        lengths=tuple(points),
        filled=tuple(fill(blanks, models)),
        corpus=_corpus(data, validation),
        surroundings=surroundings(given.device),
        command=command,
    )
    write_report(comparison, target)
    return ComparisonResult(
        target / "report.html", target / "report.json", target / "models", comparison
    )


def _train_all(
    settings: ComparisonSettings,
    data: PreparedData,
    validation: MaskedLanguageModeling,
    task: LengthTask,
    console: Console,
) -> tuple[list[Run], list[LengthPoint]]:
    """Train every model; save and measure at several lengths those of the first seed."""
    runs: list[Run] = []
    points: list[LengthPoint] = []
    target = Path(settings.output).expanduser()
    for seed in settings.seeds:
        for encoding in settings.encodings:
            model, run = _run(settings, data, validation, encoding, seed, quiet=console.quiet)
            runs.append(run)
            if seed != settings.seeds[0]:
                continue
            save_model(model, data.tokenizer, target / "models" / encoding)
            if settings.eval_lengths:
                console.print(f"{encoding}: losses at {', '.join(settings.eval_lengths)}")
                precision = settings.training.precision
                points += loss_by_length(model, task, settings.eval_scaling, precision=precision)
    return runs, points


def initial_model(config: RoFormerConfig, seed: int) -> RoFormerForMaskedLM:
    """Return a fresh model whose weights do not depend on its position encoding.

    Args:
        config: The model's. Only a table of learned positions has no counterpart elsewhere.
        seed: Seed of the weights; torch's generator is left seeded with it.
    """
    plain = copy.deepcopy(config)
    plain.position_encoding, plain.rope_parameters = "none", None
    torch.manual_seed(seed)
    shared = RoFormerForMaskedLM(plain)
    torch.manual_seed(seed)
    model = RoFormerForMaskedLM(config)
    model.load_state_dict(shared.state_dict(), strict=False)
    return model


def _run(
    settings: ComparisonSettings,
    data: PreparedData,
    validation: MaskedLanguageModeling,
    encoding: str,
    seed: int,
    *,
    quiet: bool,
) -> tuple[RoFormerForMaskedLM, Run]:
    """Train one model, or read what an earlier call has trained."""
    config = settings.config(
        encoding, vocab_size=len(data.tokenizer), pad_token_id=data.tokenizer.pad_token_id
    )
    model = initial_model(config, seed)
    result = train(
        model,
        _masked(data.train_set.blocks, data, settings, seed),
        validation,
        replace(settings.training, seed=seed),
        folder=Path(settings.output).expanduser() / "runs" / f"{encoding}-{seed}",
        resume=True,
        progress=not quiet,
        label=f"{encoding}, seed {seed}",
        device=settings.device,
    )
    return model, Run(encoding, seed, model.num_parameters(), result)


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


def _masked(
    blocks: PackedBlocks, data: PreparedData, settings: ComparisonSettings, seed: int
) -> MaskedLanguageModeling:
    return MaskedLanguageModeling(
        blocks,
        data.tokenizer,
        probability=settings.data.mask_probability,
        whole_word=settings.data.whole_word,
        seed=seed,
    )


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


def _corpus(data: PreparedData, validation: MaskedLanguageModeling) -> dict[str, Any]:
    return {
        "name": data.corpus,
        "fingerprint": data.fingerprint,
        "characters": data.characters,
        "train_documents": len(data.train_documents),
        "validation_documents": len(data.validation_documents),
        "train_rows": len(data.train_set),
        "validation_rows": len(validation),
        "validation_rows_available": len(data.validation_set),
        "vocabulary": len(data.tokenizer),
    }


def _plan(
    settings: ComparisonSettings,
    data: PreparedData,
    validation: MaskedLanguageModeling,
    device: torch.device,
) -> Iterator[str]:
    training, length = settings.training, settings.data.block_size
    config = settings.config(settings.encodings[0], vocab_size=len(data.tokenizer), pad_token_id=0)
    costs = estimate(
        config,
        training,
        length=length,
        device=device,
        mask_probability=settings.data.mask_probability,
    )
    runs = len(settings.encodings) * len(settings.seeds)
    seconds = costs.seconds_per_step * training.steps * runs
    yield (
        f"text      {data.corpus}: {data.characters:,} characters, {len(data.train_set):,} rows "
        f"of {length} tokens to train on, {len(validation):,} held-out rows to evaluate on"
    )
    yield (
        f"models    {', '.join(settings.encodings)}: {config.num_hidden_layers} layers x "
        f"{config.hidden_size}, vocabulary {config.vocab_size:,}, "
        f"about {costs.parameters:,} parameters"
    )
    yield (
        f"training  {runs} runs of {training.steps:,} steps of {training.batch_size} x {length} "
        f"tokens, learning rate {training.learning_rate:g}, on {device.type}"
    )
    yield (
        f"estimate  {seconds / 60:.1f} min for all without evaluations; "
        f"memory {costs.total_bytes / 2**30:.2f} GiB"
    )
