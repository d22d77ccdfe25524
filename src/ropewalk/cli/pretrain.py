"""``ropewalk pretrain``: a masked language model from text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from typer.models import OptionInfo


def _option(panel: str, *names: str, text: str, default: object = None) -> OptionInfo:
    """Declare an option that is None unless given: presets and config files come below it."""
    shown = False if default is None else str(default)
    option: OptionInfo = typer.Option(*names, help=text, show_default=shown, rich_help_panel=panel)
    return option


def _text(*names: str, text: str, default: object = None) -> OptionInfo:
    return _option("Text", *names, text=text, default=default)


def _model(*names: str, text: str, default: object = None) -> OptionInfo:
    return _option("Model", *names, text=text, default=default)


def _training(*names: str, text: str, default: object = None) -> OptionInfo:
    return _option("Training", *names, text=text, default=default)


def _run(*names: str, text: str, default: object = None) -> OptionInfo:
    return _option("Run", *names, text=text, default=default)


def pretrain(
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
    preset: Annotated[
        str | None,
        _run("--preset", text="Named settings: paper-mlm, the RoFormer paper's; modern, today's."),
    ] = None,
    device: Annotated[
        str | None, _run("--device", text="cpu, cuda or auto.", default="auto")
    ] = None,
    resume: Annotated[
        bool, _run("--resume", text="Continue the run in the output folder, or start it.")
    ] = False,
    overwrite: Annotated[
        bool, _run("--overwrite", text="Replace the results in the output folder.")
    ] = False,
    dry_run: Annotated[
        bool, _run("--dry-run", text="Show plan and estimate; read and train nothing.")
    ] = False,
    quiet: Annotated[bool, _run("--quiet", "-q", text="No plan, no bar.")] = False,
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
    validation_fraction: Annotated[
        float | None,
        _text("--validation-fraction", text="Share of the documents held out.", default=0.1),
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
    lowercase: Annotated[
        bool | None, _text("--lowercase/--cased", text="Case of the text.", default="lowercase")
    ] = None,
    block_size: Annotated[
        int | None, _text("--block-size", text="Tokens of a row.", default=128)
    ] = None,
    mask_probability: Annotated[
        float | None, _text("--mask-probability", text="Share of tokens to predict.", default=0.15)
    ] = None,
    whole_word: Annotated[
        bool | None, _text("--whole-word/--tokens", text="What is hidden.", default="tokens")
    ] = None,
    layers: Annotated[int | None, _model("--layers", text="Layers.", default=3)] = None,
    hidden_size: Annotated[
        int | None, _model("--hidden-size", text="Width of the layers.", default=128)
    ] = None,
    heads: Annotated[
        int | None, _model("--heads", text="Attention heads per layer.", default=4)
    ] = None,
    intermediate_size: Annotated[
        int | None,
        _model("--intermediate-size", text="Feed-forward width.", default="4 x hidden size"),
    ] = None,
    embedding_size: Annotated[
        int | None, _model("--embedding-size", text="Embedding width.", default="hidden size")
    ] = None,
    dropout: Annotated[float | None, _model("--dropout", text="Dropout.", default=0.1)] = None,
    position_encoding: Annotated[
        str | None,
        _model("--position-encoding", text="rope, learned, sinusoidal or none.", default="rope"),
    ] = None,
    rope_parameters: Annotated[
        str | None,
        _model("--rope-parameters", text="JSON as in transformers.", default="base 10000"),
    ] = None,
    pre_norm: Annotated[
        bool | None, _model("--pre-norm/--post-norm", text="Where layers norm.", default="post")
    ] = None,
    gated_mlp: Annotated[
        bool | None, _model("--gated-mlp/--plain-mlp", text="GeGLU or not.", default="plain")
    ] = None,
    bias: Annotated[
        bool | None, _model("--bias/--no-bias", text="Of projections and norms.", default="bias")
    ] = None,
    global_every: Annotated[
        int | None,
        _model("--global-every", text="Every n-th layer sees the whole row.", default=1),
    ] = None,
    sliding_window: Annotated[
        int | None,
        _model("--sliding-window", text="Tokens to either side that the others see."),
    ] = None,
    steps: Annotated[
        int | None, _training("--steps", text="Optimiser steps.", default=1000)
    ] = None,
    batch_size: Annotated[
        int | None, _training("--batch-size", text="Rows per step, in all.", default=16)
    ] = None,
    learning_rate: Annotated[
        float | None, _training("--learning-rate", text="Largest one.", default=0.001)
    ] = None,
    warmup_steps: Annotated[
        int | None, _training("--warmup-steps", text="Steps of its rise.", default="a tenth")
    ] = None,
    schedule: Annotated[
        str | None,
        _training("--schedule", text="linear, cosine, constant or inverse_sqrt.", default="linear"),
    ] = None,
    weight_decay: Annotated[
        float | None, _training("--weight-decay", text="Of AdamW.", default=0.01)
    ] = None,
    max_grad_norm: Annotated[
        float | None, _training("--max-grad-norm", text="Gradient clipping; 0: none.", default=1.0)
    ] = None,
    gradient_accumulation: Annotated[
        int | None, _training("--gradient-accumulation", text="Parts of a batch.", default=1)
    ] = None,
    precision: Annotated[
        str | None, _training("--precision", text="fp32, bf16 or fp16.", default="fp32")
    ] = None,
    seed: Annotated[int | None, _training("--seed", text="Seed of everything.", default=0)] = None,
    eval_every: Annotated[
        int | None,
        _training("--eval-every", text="Steps between evaluations; 0: last.", default=250),
    ] = None,
    save_every: Annotated[
        int | None,
        _training("--save-every", text="Steps between checkpoints; 0: last.", default=250),
    ] = None,
    log_every: Annotated[
        int | None, _training("--log-every", text="Steps a loss is averaged over.", default=50)
    ] = None,
    keep_checkpoints: Annotated[
        int | None, _training("--keep-checkpoints", text="How many stay.", default=2)
    ] = None,
    workers: Annotated[
        int | None, _training("--workers", text="Processes that prepare data.", default=0)
    ] = None,
    tensorboard: Annotated[
        bool | None, _training("--tensorboard", text="Write event files too.")
    ] = None,
) -> None:
    """Train a masked language model on text, from scratch, with its own vocabulary.

    Settings replace each other in this order: defaults, `--preset`, with `--resume` those of the
    run itself, `--config`, options given here. The config file has `output`, `device` and the
    tables `[data]`, `[model]` and `[training]`, with the options' names (`block_size`); every run
    leaves such a file as `config.toml`. Several processes: `torchrun --nproc-per-node 2 -m
    ropewalk pretrain ...`.

    **Examples**

    `ropewalk pretrain 'texts/**/*.txt' --output runs/mine --steps 2000`

    `ropewalk pretrain news.jsonl --field body --position-encoding learned -o runs/learned`

    `ropewalk pretrain --output runs/mine --resume`

    `ropewalk pretrain 'texts/**/*.txt' --preset modern --block-size 1024 -o runs/modern`

    `ropewalk pretrain --preset paper-mlm --dataset wikimedia/wikipedia:20231101.en -o runs/paper
    --dry-run`
    """
    # What was not given here is left to the config file, the preset and the defaults.
    given = {name: value for name, value in locals().items() if value not in (None, [])}
    from ropewalk.recipes import pretrain as recipe

    settings = recipe.load_settings(
        _tables(given), preset=preset, config=config, resume=resume, needs_text=not dry_run
    )
    if dry_run:
        print(recipe.plan(settings))
        return
    result = recipe.pretrain(settings, resume=resume, overwrite=overwrite, progress=not quiet)
    if os.environ.get("RANK", "0") != "0":  # under torchrun the first process speaks for all
        return
    last = result.training.evaluation
    if last is not None:
        print(f"validation loss {last.loss:.4f}, accuracy {last.accuracy:.1%} of masked tokens")
    print(f"model    {result.model}")
    print(f"metrics  {result.metrics}")
    print(f'try      ropewalk fill-mask {result.model} "a [MASK] sentence"')


def _tables(given: dict[str, Any]) -> dict[str, Any]:
    """Sort the options into the tables of a config file."""
    import json
    from dataclasses import fields

    from ropewalk.errors import ConfigError
    from ropewalk.recipes.pretrain import DataSettings, ModelSettings, TrainingSettings

    if "rope_parameters" in given:
        try:
            given["rope_parameters"] = json.loads(given["rope_parameters"])
        except (ValueError, RecursionError) as error:  # ValueError: long numbers too
            raise ConfigError(
                f"rope_parameters must be JSON; got {given['rope_parameters']!r:.80} ({error})"
            ) from error
    tables: dict[str, Any] = {name: given[name] for name in ("output", "device") if name in given}
    kinds = {"data": DataSettings, "model": ModelSettings, "training": TrainingSettings}
    for name, kind in kinds.items():
        names = [field.name for field in fields(kind)]
        tables[name] = {key: given[key] for key in names if key in given}
    return tables
