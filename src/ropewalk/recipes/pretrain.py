"""``pretrain``: a masked language model from text, in one call.

What is left behind: ``model/`` (weights and tokenizer, in the transformers format where it can
compute the model), ``metrics.json``, ``config.toml`` (the settings, to run it again) and
``training/`` (checkpoints, history, TensorBoard).
"""

from __future__ import annotations

import math
import platform
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from ropewalk._version import __version__
from ropewalk.analysis.measures import MaskedLMScore
from ropewalk.data.files import find_files, given_path
from ropewalk.models import RoFormerForMaskedLM
from ropewalk.recipes.allocator import keep_large_blocks
from ropewalk.recipes.callbacks import plain_console
from ropewalk.recipes.checkpointing import save_model
from ropewalk.recipes.estimate import estimate
from ropewalk.recipes.inputs import DataSettings, PreparedData, prepare_data
from ropewalk.recipes.loop import arguments
from ropewalk.recipes.outputs import (
    MODEL_FILES,
    TRAINING_FILES,
    check_output,
    open_output,
    under,
)
from ropewalk.recipes.pretrain_settings import (
    PRESETS,
    ModelSettings,
    PretrainSettings,
    load_settings,
)
from ropewalk.recipes.runs import write_json, write_text
from ropewalk.recipes.settings import to_toml
from ropewalk.recipes.training import (
    TrainingResult,
    TrainingSettings,
    check_training,
    train,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ropewalk.models import RoFormerConfig

__all__ = [
    "PRESETS",
    "DataSettings",
    "ModelSettings",
    "PretrainResult",
    "PretrainSettings",
    "TrainingSettings",
    "load_settings",
    "plan",
    "pretrain",
]

RECIPE = "pretrain"
CONTENTS = (
    "metrics.json",
    "config.toml",
    *under("model", MODEL_FILES),
    *under("training", TRAINING_FILES),
)


@dataclass(frozen=True)
class PretrainResult:
    """Where the results are, and the main ones.

    Args:
        model: Folder of the trained model with its tokenizer.
        metrics: File with all figures.
        training: Losses, evaluations and speed.
    """

    model: Path
    metrics: Path
    training: TrainingResult


def pretrain(
    settings: PretrainSettings,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> PretrainResult:
    """Train a masked language model on text, and save it with its tokenizer.

    What it will take is shown first. An interrupted run is continued with ``resume``, to the very
    numbers of one that was not interrupted; see `ropewalk.recipes.training.train`.

    Args:
        settings: What to train on, what, and how.
        resume: Continue the run in the output folder, or start it if there is none.
        overwrite: Replace the results of an earlier run in the output folder.
        progress: Show the plan, a bar and the evaluations on the standard error stream.

    Returns:
        Where the results are.

    Raises:
        ConfigError: A setting is refused, or the output folder is in use.
        DataError: The text is missing, unreadable or too short.
        CheckpointError: Results cannot be written, or a checkpoint cannot be read.
    """
    keep_large_blocks()
    given = arguments(settings.training, Path(settings.output), settings.device)
    ours = given.process_index == 0
    # What cannot be built is refused before a long text is read.
    _config(settings, settings.data.vocab_size, 0)
    target = given_path("output", settings.output)
    if ours:
        sources = settings.data.sources
        check_output(target, RECIPE, CONTENTS, resume=resume, overwrite=overwrite, sources=sources)
    data = prepare_data(settings.data, seed=settings.training.seed)
    config = _config(settings, len(data.tokenizer), data.tokenizer.pad_token_id)
    console = plain_console(shown=progress and ours)
    for line in _plan(settings, config, given.device, given.world_size, data):
        console.print(line)

    with ExitStack() as stack:
        if ours:
            # Nothing may be written, and nothing deleted, that a later check would regret.
            check_training(
                config,
                data.train_set,
                data.validation_set,
                settings.training,
                folder=None if overwrite else target / "training",
                resume=resume,
                device=settings.device,
            )
            held = open_output(target, RECIPE, CONTENTS, resume=resume, overwrite=overwrite)
            stack.enter_context(held)
            table = {key: value for key, value in settings.table().items() if key != "output"}
            write_text(target / "config.toml", to_toml(table) + "\n")
        torch.manual_seed(settings.training.seed)
        model = RoFormerForMaskedLM(config)
        result = train(
            model,
            data.train_set,
            data.validation_set,
            settings.training,
            folder=target / "training",
            resume=resume,
            progress=progress,
            label=settings.model.position_encoding,
            device=settings.device,
        )
        if ours:
            save_model(model, data.tokenizer, target / "model")
            write_json(target / "metrics.json", _metrics(settings, model, data, result))
    return PretrainResult(target / "model", target / "metrics.json", result)


def plan(settings: PretrainSettings) -> str:
    """Describe and estimate a run without reading its text or training anything.

    Sources on this disk are looked for; data sets of the hub are named and not loaded.

    Args:
        settings: The run.

    Returns:
        A few lines of text.

    Raises:
        ConfigError: A setting is refused.
        DataError: A source does not exist.
    """
    given = arguments(settings.training, Path(settings.output), settings.device)
    config = _config(settings, settings.data.vocab_size, 0)
    return "\n".join(_plan(settings, config, given.device, given.world_size, None))


def _config(
    settings: PretrainSettings, vocab_size: int, pad_token_id: int | None
) -> RoFormerConfig:
    return settings.model.config(
        vocab_size=vocab_size, length=settings.data.block_size, pad_token_id=pad_token_id
    )


def _plan(
    settings: PretrainSettings,
    config: RoFormerConfig,
    device: torch.device,
    processes: int,
    data: PreparedData | None,
) -> Iterator[str]:
    training, length = settings.training, settings.data.block_size
    yield from _text(settings) if data is None else _blocks(data)
    costs = estimate(
        config,
        training,
        length=length,
        device=device,
        processes=processes,
        mask_probability=settings.data.mask_probability,
    )
    yield (
        f"model     {config.position_encoding}, {config.num_hidden_layers} layers x "
        f"{config.hidden_size}, {config.num_attention_heads} heads, vocabulary "
        f"{config.vocab_size:,}: {costs.parameters:,} parameters"
    )
    epochs = ""
    if data is not None:
        epochs = f" ({training.steps * training.batch_size / len(data.train_set):,.2f} epochs)"
    where = device.type if processes == 1 else f"{processes} x {device.type}"
    yield (
        f"training  {training.steps:,} steps of {training.batch_size} x {length} tokens{epochs}, "
        f"learning rate {training.learning_rate:g}, {training.precision} on {where}"
    )
    yield (
        f"estimate  {_duration(costs.seconds_per_step)} per step, "
        f"{_duration(costs.seconds_per_step * training.steps)} for all without evaluations; "
        f"memory {_size(costs.total_bytes)} per process ({_size(costs.state_bytes)} weights and "
        f"optimiser, {_size(costs.activation_bytes)} activations)"
    )


def _text(settings: PretrainSettings) -> Iterator[str]:
    data = settings.data
    parts = []
    if data.sources:
        files = find_files(data.sources)
        size = sum(path.stat().st_size for path in files)
        parts.append(f"{len(files):,} files, {size / 2**20:,.1f} MiB")
    parts += [f"data set {name} (not loaded)" for name in data.dataset]
    yield f"text      {' and '.join(parts) or 'the embedded corpus, unless you name another'}"


def _blocks(data: PreparedData) -> Iterator[str]:
    yield (
        f"text      {data.corpus}: {data.characters:,} characters, "
        f"{len(data.train_documents):,} documents to train on and "
        f"{len(data.validation_documents):,} held out"
    )
    yield (
        f"blocks    {len(data.train_set):,} and {len(data.validation_set):,} of "
        f"{data.train_set.blocks.block_size} tokens"
    )


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def _metrics(
    settings: PretrainSettings,
    model: RoFormerForMaskedLM,
    data: PreparedData,
    result: TrainingResult,
) -> dict[str, Any]:
    last = result.evaluation
    assert last is not None
    perplexity = MaskedLMScore(last.loss, 0, 1).perplexity
    return {
        "recipe": RECIPE,
        "versions": {
            "ropewalk": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "settings": settings.table(),
        "data": {
            "corpus": data.corpus,
            "fingerprint": data.fingerprint,
            "characters": data.characters,
            "train_documents": len(data.train_documents),
            "validation_documents": len(data.validation_documents),
            "train_blocks": len(data.train_set),
            "validation_blocks": len(data.validation_set),
        },
        "parameters": model.num_parameters(),
        "validation": {
            "loss": last.loss,
            "accuracy": last.accuracy,
            # JSON has no infinity.
            "perplexity": perplexity if math.isfinite(perplexity) else None,
            "masked_tokens": last.tokens,
        },
        "tokens_per_second": result.tokens_per_second,
        "training": result.to_dict(),
    }
