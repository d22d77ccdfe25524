"""``ropewalk compare``: encoders that differ in their position encoding alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table
    from typer.models import OptionInfo

    from ropewalk.recipes.report import Comparison


def _option(panel: str, *names: str, text: str, default: object = None) -> OptionInfo:
    """Declare an option that is None unless given: a config file comes below it."""
    shown = False if default is None else str(default)
    option: OptionInfo = typer.Option(*names, help=text, show_default=shown, rich_help_panel=panel)
    return option


def _run(*names: str, text: str, default: object = None) -> OptionInfo:
    return _option("Run", *names, text=text, default=default)


def _measures(*names: str, text: str, default: object = None) -> OptionInfo:
    return _option("Comparison", *names, text=text, default=default)


def _text(*names: str, text: str, default: object = None) -> OptionInfo:
    return _option("Text", *names, text=text, default=default)


def _training(*names: str, text: str, default: object = None) -> OptionInfo:
    return _option("Model and training", *names, text=text, default=default)


def compare(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files (.txt, .jsonl, .gz), folders and globs; without any, and without "
            "--dataset, the documentation that comes with Python.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        _run("--output", "-o", text="Folder for the results; needed here or in --config."),
    ] = None,
    config: Annotated[str | None, _run("--config", text="TOML file of settings.")] = None,
    device: Annotated[
        str | None, _run("--device", text="cpu, cuda or auto.", default="auto")
    ] = None,
    jobs: Annotated[
        int | None,
        _run("--jobs", text="Runs to train side by side; 0: one per thread.", default=0),
    ] = None,
    resume: Annotated[
        bool, _run("--resume", text="Continue the comparison in the output folder, or start it.")
    ] = False,
    overwrite: Annotated[
        bool, _run("--overwrite", text="Replace the results in the output folder.")
    ] = False,
    quiet: Annotated[bool, _run("--quiet", "-q", text="No plan, no bars.")] = False,
    encodings: Annotated[
        str | None,
        _measures(
            "--encodings",
            text="Among rope, learned, sinusoidal, none.",
            default="rope,learned,none",
        ),
    ] = None,
    seeds: Annotated[
        str | None, _measures("--seeds", text="One run of each encoding per seed.", default="0")
    ] = None,
    eval_lengths: Annotated[
        str | None,
        _measures(
            "--eval-lengths",
            text="Contexts to evaluate at, in trained lengths; '' for none.",
            default="1x,1.5x,2x,4x",
        ),
    ] = None,
    eval_scaling: Annotated[
        str | None,
        _measures("--eval-scaling", text="Rules to try on rope there.", default="none,linear,ntk"),
    ] = None,
    eval_rows: Annotated[
        int | None,
        _measures("--eval-rows", text="Most held-out rows to evaluate on; 0: all.", default=256),
    ] = None,
    sentence: Annotated[
        list[str] | None,
        _measures("--sentence", text="A sentence with [MASK] to show filled; repeatable."),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        _text("--dataset", text="Hub data set NAME[:config], or a folder of one; repeatable."),
    ] = None,
    split: Annotated[
        str | None, _text("--split", text="Split of the data sets.", default="train")
    ] = None,
    field: Annotated[
        str | None, _text("--field", text="Key or column of the text.", default="text")
    ] = None,
    tokenizer: Annotated[
        str | None, _text("--tokenizer", text="Folder of a tokenizer, instead of training one.")
    ] = None,
    tokenizer_kind: Annotated[
        str | None, _text("--tokenizer-kind", text="wordpiece or bpe.", default="wordpiece")
    ] = None,
    vocab_size: Annotated[
        int | None, _text("--vocab-size", text="Most entries of the vocabulary.", default=2048)
    ] = None,
    block_size: Annotated[
        int | None, _text("--block-size", text="Tokens of a row: the trained length.", default=128)
    ] = None,
    layers: Annotated[int | None, _training("--layers", text="Layers.", default=3)] = None,
    hidden_size: Annotated[
        int | None, _training("--hidden-size", "--hidden", text="Width of the layers.", default=128)
    ] = None,
    heads: Annotated[
        int | None, _training("--heads", text="Attention heads per layer.", default=4)
    ] = None,
    dropout: Annotated[float | None, _training("--dropout", text="Dropout.", default=0.0)] = None,
    steps: Annotated[
        int | None, _training("--steps", text="Optimiser steps of each run.", default=600)
    ] = None,
    batch_size: Annotated[
        int | None, _training("--batch-size", text="Rows per step.", default=16)
    ] = None,
    learning_rate: Annotated[
        float | None, _training("--learning-rate", text="Largest one.", default=0.002)
    ] = None,
    eval_every: Annotated[
        int | None,
        _training("--eval-every", text="Steps between evaluations; 0: last.", default=50),
    ] = None,
    save_every: Annotated[
        int | None,
        _training("--save-every", text="Steps between checkpoints; 0: last.", default=200),
    ] = None,
    precision: Annotated[
        str | None, _training("--precision", text="fp32, bf16 or fp16.", default="fp32")
    ] = None,
) -> None:
    """Train the same encoder with several position encodings and measure them alike.

    Writes `report.html` and `report.json`, and one trained model for each encoding. Settings
    replace each other in this order: defaults, with `--resume` those of the comparison itself,
    `--config`, options given here. The config file has the options of the panels Run and
    Comparison at its top (lists as lists, `sentences`) and the tables `[data]`, `[model]` and
    `[training]`, which have the keys of `ropewalk pretrain`; every comparison leaves such a file
    as `config.toml`.

    **Examples**

    `ropewalk compare --output runs/demo`

    `ropewalk compare 'texts/**/*.txt' --seeds 0,1,2 --steps 2000 -o runs/mine`

    `ropewalk compare --encodings rope,none --eval-lengths 1x,8x --eval-scaling ntk -o runs/long`

    `ropewalk compare --output runs/demo --resume`
    """
    given = {name: value for name, value in locals().items() if value not in (None, [])}
    import shlex
    import sys

    from ropewalk.recipes import compare as recipe

    settings = recipe.load_settings(_tables(given), config=config, resume=resume)
    result = recipe.compare(
        settings,
        resume=resume,
        overwrite=overwrite,
        progress=not quiet,
        command=shlex.join(["ropewalk", *sys.argv[1:]]),
    )
    _show(result.comparison)
    print(f"report  {result.report}")
    print(f"json    {result.json}")
    print(f"models  {result.models}")


def _tables(given: dict[str, Any]) -> dict[str, Any]:
    """Sort the options into the tables of a config file."""
    from dataclasses import fields

    from ropewalk.errors import ConfigError
    from ropewalk.recipes.inputs import DataSettings
    from ropewalk.recipes.pretrain_settings import ModelSettings
    from ropewalk.recipes.training import TrainingSettings

    tables: dict[str, Any] = {
        name: given[name] for name in ("output", "device", "jobs", "eval_rows") if name in given
    }
    for name in ("encodings", "seeds", "eval_lengths", "eval_scaling"):
        if name in given:
            tables[name] = [word.strip() for word in given[name].split(",") if word.strip()]
    if "seeds" in tables:
        try:
            tables["seeds"] = [int(word) for word in tables["seeds"]]
        except ValueError as error:
            raise ConfigError(
                f"seeds must be whole numbers such as 0,1,2; got {given['seeds']!r}"
            ) from error
    if "sentence" in given:
        tables["sentences"] = given["sentence"]
    kinds = {"data": DataSettings, "model": ModelSettings, "training": TrainingSettings}
    for name, kind in kinds.items():
        keys = [field.name for field in fields(kind)]
        tables[name] = {key: given[key] for key in keys if key in given}
    return tables


def _show(comparison: Comparison) -> None:
    """Print the main tables; without colours and at a fixed width when not on a terminal."""
    import sys

    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    for table in (_results(comparison), _lengths(comparison)):
        if table is not None:
            console.print(table)
            console.print()
    console.print(comparison.findings.headline, markup=False)


def _results(comparison: Comparison) -> Table:
    found = comparison.findings
    table = _table("encoding", "validation loss", "accuracy")
    target = found.best_baseline
    if target:
        table.add_column(f"steps to {target}'s loss", justify="right")
    table.add_column("tokens/s", justify="right")
    for summary in found.summaries:
        loss = _number(summary.loss, summary.loss_standard_error)
        row = [summary.encoding, loss, f"{summary.accuracy:.1%}"]
        if target:
            steps = summary.steps_to_baseline
            row.append("not reached" if steps is None else f"{steps:,.0f}")
        table.add_row(*row, f"{summary.tokens_per_second:,.0f}")
    return table


def _lengths(comparison: Comparison) -> Table | None:
    if not any(point.loss is not None for point in comparison.lengths):
        return None
    contexts = sorted({(point.ratio, point.length) for point in comparison.lengths})
    table = _table("loss at", *(f"{length:,} tokens ({r:g}x)" for r, length in contexts))
    rows: dict[str, list[str]] = {}
    for point in sorted(comparison.lengths, key=lambda point: point.ratio):
        label = point.encoding if point.scaling == "none" else f"{point.encoding}, {point.scaling}"
        cell: str = point.status
        if point.loss is not None:
            cell = _number(point.loss, point.standard_error)
        rows.setdefault(label, []).append(cell)
    for label, cells in rows.items():
        table.add_row(label, *cells)
    return table


def _table(first: str, *others: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _number(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"
