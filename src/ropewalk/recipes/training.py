"""``train`` and ``evaluate``: transformers' ``Trainer`` made repeatable, resumable and honest.

The order of the data and the masking are pure functions of the seed, evaluation weighs every
token alike, and a checkpoint is either whole or not there. So a run that was killed and resumed
ends with the numbers of one that was not.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.data.files import given_path
from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.recipes.allocator import keep_large_blocks
from ropewalk.recipes.callbacks import (
    Pace,
    Show,
    plain_console,
    stopping_on_interrupt,
    without_bars,
)
from ropewalk.recipes.checkpointing import Checkpoint, latest_checkpoint
from ropewalk.recipes.evaluation import evaluate
from ropewalk.recipes.loop import Loop, arguments, load_weights
from ropewalk.recipes.results import EvaluationPoint, TrainingPoint, TrainingResult
from ropewalk.recipes.runs import RESULT, begin, check_folder, identity, read_result, write_json
from ropewalk.spec.checks import choice, integer, real

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import Dataset
    from transformers import TrainerCallback, TrainingArguments

    from ropewalk.models import RoFormerConfig, RoFormerForMaskedLM

    MaskedExamples = Dataset[dict[str, Tensor]]

__all__ = [
    "EvaluationPoint",
    "TrainingPoint",
    "TrainingResult",
    "TrainingSettings",
    "check_training",
    "evaluate",
    "latest_checkpoint",
    "train",
]

SCHEDULES = ("linear", "cosine", "constant", "inverse_sqrt")
"""How the learning rate goes on after its warm-up."""
PRECISIONS = ("fp32", "bf16", "fp16")
"""What matrix products are computed in; weights and sums stay float32."""
DEVICES = ("auto", "cpu", "cuda")
"""Where to train; "auto" takes an accelerator if there is one."""
LARGEST_COUNT = 2**31 - 1
"""Most steps, and most rows of a batch: the rows of a whole run are counted in int64."""
LARGEST_SEED = 2**32 - 1
"""What the random generators of numpy take."""
MOST_WORKERS = 1024
"""Most processes that prepare batches."""
LARGEST_RATE = 1e30
"""Largest real setting: products of it and of Adam's factors stay within float32."""


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that decides how a model is trained, apart from the model and the data.

    Args:
        steps: Optimiser steps of the whole run.
        batch_size: Rows per optimiser step, over all processes and accumulated batches.
        learning_rate: Largest learning rate of AdamW.
        warmup_steps: Steps over which it rises from zero; None means a tenth of ``steps``.
        schedule: "linear" and "cosine" fall to zero at the last step, "inverse_sqrt" falls as
            ``1/sqrt(step)``, "constant" stays.
        weight_decay: Decoupled decay of matrices and embeddings; norms and biases have none.
        adam_beta1: Memory of the first moment, in [0, 1).
        adam_beta2: Memory of the second moment, in [0, 1).
        adam_epsilon: Added to the root of the second moment.
        max_grad_norm: Longer gradients are scaled down to this norm; 0 leaves them.
        gradient_accumulation: Batches per step and process, of which only one is in memory.
        precision: "fp32", "bf16" or "fp16" (on CUDA alone).
        seed: Seed of dropout and of the order of the data, 0 to 2^32 - 1.
        eval_every: Steps between evaluations; 0 evaluates at the end alone.
        save_every: Steps between checkpoints; 0 writes one at the end alone.
        log_every: Steps over which a reported training loss is averaged. Every evaluation and
            checkpoint ends such a stretch too.
        keep_checkpoints: Newest checkpoints that are kept, at least 1.
        workers: Processes that prepare batches; 0 prepares them in the training process.
        tensorboard: Also write event files for TensorBoard.

    Raises:
        ConfigError: A setting is out of range or does not fit the others.

    Example:
        >>> TrainingSettings(steps=100, batch_size=8, learning_rate=1e-3).warmup
        10
    """

    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int | None = None
    schedule: str = "linear"
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    gradient_accumulation: int = 1
    precision: str = "fp32"
    seed: int = 0
    eval_every: int = 0
    save_every: int = 0
    log_every: int = 50
    keep_checkpoints: int = 2
    workers: int = 0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "gradient_accumulation", "log_every"):
            integer(name, getattr(self, name), at_least=1, at_most=LARGEST_COUNT)
        for name in ("eval_every", "save_every"):
            integer(name, getattr(self, name), at_least=0, at_most=LARGEST_COUNT)
        integer("workers", self.workers, at_least=0, at_most=MOST_WORKERS)
        integer("seed", self.seed, at_least=0, at_most=LARGEST_SEED)
        integer("keep_checkpoints", self.keep_checkpoints, at_least=1, at_most=LARGEST_COUNT)
        for name in ("learning_rate", "adam_epsilon"):
            real(name, getattr(self, name), above=0.0, at_most=LARGEST_RATE)
        for name in ("weight_decay", "max_grad_norm"):
            if real(name, getattr(self, name), at_most=LARGEST_RATE) < 0:
                raise ConfigError(f"{name} must not be negative; got {getattr(self, name)!r}")
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= real(name, getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be in [0, 1); got {getattr(self, name)!r}")
        choice("schedule", self.schedule, SCHEDULES)
        choice("precision", self.precision, PRECISIONS)
        if not isinstance(self.tensorboard, bool):
            raise ConfigError(f"tensorboard must be True or False; got {self.tensorboard!r}")
        if self.warmup_steps is not None:
            integer("warmup_steps", self.warmup_steps, at_least=0)
            if self.warmup_steps > self.steps:
                raise ConfigError(
                    f"warmup_steps must be at most steps={self.steps}; got {self.warmup_steps}"
                )
        if self.batch_size % self.gradient_accumulation:
            raise ConfigError(
                "batch_size must be a multiple of "
                f"gradient_accumulation={self.gradient_accumulation}; got {self.batch_size}"
            )

    @property
    def warmup(self) -> int:
        """Steps of warm-up."""
        return self.steps // 10 if self.warmup_steps is None else self.warmup_steps


def train(
    model: RoFormerForMaskedLM,
    train_set: MaskedExamples,
    evaluation_set: MaskedExamples | None,
    settings: TrainingSettings,
    *,
    folder: str | Path | None,
    resume: bool = False,
    progress: bool = True,
    label: str = "training",
    device: str = "auto",
) -> TrainingResult:
    """Train a masked language model in place.

    Step ``s`` always sees the same rows with the same tokens hidden, whatever the number of
    processes, workers or accumulated batches, and however often the run was interrupted: the
    data are an endless sequence of seeded permutations, of which step ``s`` takes rows
    ``s * batch_size`` and on. On a CPU with a fixed number of threads a resumed run equals an
    uninterrupted one bit for bit.

    Under ``torchrun`` every process calls this with the same arguments. On Linux the memory of
    large temporaries stays with the process from then on, unless the environment variable
    ``ROPEWALK_ALLOCATOR`` is "system"; see `ropewalk.recipes.allocator.keep_large_blocks`.

    Args:
        model: The model; it is moved to the device and trained.
        train_set: Map-style rows ``input_ids``, ``labels`` and what else the model takes. With a
            ``set_epoch`` method it is told the epoch; the object passed in is not changed.
        evaluation_set: Rows to evaluate on, or None.
        settings: How to train.
        folder: Where checkpoints and the result are kept: a new or empty folder, or with
            ``resume`` that of the interrupted run. None keeps nothing on disk.
        resume: Continue from the newest whole checkpoint, or from the start if there is none yet.
            A finished run is not trained again: its weights and result are read.
        progress: Show a bar and the evaluations on the standard error stream.
        label: What the bar is called.
        device: "cpu", "cuda", or "auto" for an accelerator if there is one.

    Returns:
        Losses, evaluations and speed.

    Raises:
        ConfigError: The folder is in use, or settings, model or data are not those of the
            interrupted run; the batch cannot be divided; the precision or device is not
            available; the loss is no longer finite.
        CheckpointError: A checkpoint cannot be written, or none can be read.
        KeyboardInterrupt: Ctrl-C; a checkpoint of the last complete step is written first.
    """
    choice("device", device, DEVICES)
    keep_large_blocks()
    with ExitStack() as stack:
        stack.enter_context(without_bars())
        target = None if folder is None else given_path("folder", folder)
        scratch = target or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        given = arguments(settings, scratch, device)
        with given.main_process_first(local=False):
            # The first process makes the folder for all.
            again = resume or given.process_index > 0
            sets = (train_set, evaluation_set)
            wanted, checkpoint, finished = _checked(
                model.config, *sets, settings, given, folder=target, resume=again
            )
            if target is not None:
                begin(target, wanted)
        if finished is not None:
            assert checkpoint is not None
            load_weights(model, checkpoint.folder)
            model.train(False)
            return finished

        interrupt = threading.Event()
        tokens = settings.batch_size * len(train_set[0]["input_ids"])
        shown = progress and given.process_index == 0
        show = Show(label, plain_console(shown=shown), tokens)
        stack.callback(show.close)
        pace = Pace(settings, evaluates=evaluation_set is not None, interrupt=interrupt)
        callbacks = [pace, show, *_tensorboard(settings, target, given.process_index)]
        loop = Loop(
            model, train_set, evaluation_set, settings, given, folder=target, callbacks=callbacks
        )
        if target is not None and given.world_size == 1:
            stack.enter_context(stopping_on_interrupt(interrupt))
        seconds = loop.run(checkpoint)
        if loop.state.global_step < settings.steps:
            show.line(f"stopped after step {loop.state.global_step}, which is saved; resume it")
            raise KeyboardInterrupt
        model.train(False)
        result = TrainingResult.from_log(
            loop.state.log_history,
            steps=settings.steps,
            tokens=settings.steps * tokens,
            seconds=seconds,
        )
        if target is not None and given.process_index == 0:
            write_json(target / RESULT, result.to_dict())
    return result


def check_training(
    config: RoFormerConfig,
    train_set: MaskedExamples,
    evaluation_set: MaskedExamples | None,
    settings: TrainingSettings,
    *,
    folder: str | Path | None,
    resume: bool = False,
    device: str = "auto",
) -> None:
    """Refuse what :func:`train` would refuse with the same arguments, and change nothing.

    For a recipe that has files of its own to write, or old ones to delete, before it trains.

    Args:
        config: The model's.
        train_set: As there.
        evaluation_set: As there.
        settings: As there.
        folder: As there.
        resume: As there.
        device: As there.

    Raises:
        ConfigError: As there.
        CheckpointError: As there.
    """
    choice("device", device, DEVICES)
    target = None if folder is None else given_path("folder", folder)
    given = arguments(settings, target or Path(), device)
    sets = (train_set, evaluation_set)
    _checked(config, *sets, settings, given, folder=target, resume=resume)


def _checked(
    config: RoFormerConfig,
    train_set: MaskedExamples,
    evaluation_set: MaskedExamples | None,
    settings: TrainingSettings,
    given: TrainingArguments,
    *,
    folder: Path | None,
    resume: bool,
) -> tuple[dict[str, Any], Checkpoint | None, TrainingResult | None]:
    """Return the identity of a run, where to continue it, and its result if it is finished."""
    integer("rows of train_set", len(train_set), at_least=1)  # type: ignore[arg-type]
    if settings.tensorboard:
        _summary_writer()
    if folder is None:
        if settings.tensorboard:
            raise ConfigError("tensorboard=True needs a folder to write into; got folder=None")
        return {}, None, None
    sets = {"train_set": train_set, "evaluation_set": evaluation_set}
    facts = {"processes": given.world_size, "device": given.device.type}
    wanted = identity(settings, config, sets, **facts)
    check_folder(folder, wanted, resume=resume)
    checkpoint = latest_checkpoint(folder) if resume else None
    fields = read_result(folder) if resume else None
    if fields is None:
        return wanted, checkpoint, None
    try:
        finished = TrainingResult.from_dict(fields)
    except TypeError as error:
        raise CheckpointError(
            f"{folder / RESULT} is not a result of training ({error}); remove it to finish the "
            "run again"
        ) from error
    if finished.steps != settings.steps or (evaluation_set is None) != (not finished.evaluations):
        raise CheckpointError(
            f"{folder / RESULT} is not the result of this run; remove it to finish the run again"
        )
    if checkpoint is None or checkpoint.step != finished.steps:
        raise CheckpointError(
            f"{folder} is a finished run without a whole checkpoint of its last step, "
            f"{finished.steps}; train anew in another folder"
        )
    return wanted, checkpoint, finished


def _tensorboard(
    settings: TrainingSettings, folder: Path | None, process: int
) -> list[TrainerCallback]:
    if not settings.tensorboard or process or folder is None:
        return []
    from transformers.integrations.integration_utils import TensorBoardCallback

    writer = _summary_writer()(log_dir=str(folder / "tensorboard"))
    return [TensorBoardCallback(writer)]


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "tensorboard=True needs the package tensorboard: pip install 'ropewalk[train]'"
        ) from error
    return SummaryWriter
