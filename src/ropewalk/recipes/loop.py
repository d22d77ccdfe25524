"""transformers' ``Trainer`` with whole checkpoints, token-weighted evaluation and one data order.

Each override names the behaviour of ``Trainer`` (5.24) that it replaces.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import SequentialSampler, default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerState

from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.recipes.checkpointing import (
    Checkpoint,
    checkpoints_folder,
    keep_newest,
    whole_folder,
    write_manifest,
)
from ropewalk.recipes.evaluation import evaluate
from ropewalk.recipes.results import TrainingResult
from ropewalk.recipes.stream import TrainingStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from transformers import TrainerCallback

    from ropewalk.models import RoFormerForMaskedLM
    from ropewalk.recipes.training import MaskedExamples, TrainingSettings

STATE = "trainer_state.json"
RUNNING = "running_loss.json"
"""File of a checkpoint with the sum of the losses that are not logged yet."""


class Loop(Trainer):
    """Train a masked language model; see `ropewalk.recipes.training.train`.

    Args:
        model: The model.
        train_set: Rows to train on.
        evaluation_set: Rows to evaluate on, or None.
        settings: How to train.
        arguments: The same for transformers, from :func:`arguments`.
        folder: Where checkpoints go; None writes none.
        callbacks: Told of steps, losses and evaluations.
    """

    def __init__(
        self,
        model: RoFormerForMaskedLM,
        train_set: MaskedExamples,
        evaluation_set: MaskedExamples | None,
        settings: TrainingSettings,
        arguments: TrainingArguments,
        *,
        folder: Path | None,
        callbacks: list[TrainerCallback],
    ) -> None:
        length = settings.steps * settings.batch_size
        super().__init__(
            model=model,
            args=arguments,
            data_collator=default_collate,
            train_dataset=TrainingStream(train_set, length=length, seed=settings.seed),
            eval_dataset=evaluation_set,
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)
        self._masked_lm = model
        self._evaluation_set = evaluation_set
        self._settings = settings
        self._folder = folder
        self._seconds_before = 0.0
        self._started = self._paused = 0.0
        self._unlogged = torch.tensor(0.0)
        self._carried: tuple[float, int] | None = None

    def run(self, checkpoint: Checkpoint | None) -> float:
        """Train to the last step.

        Args:
            checkpoint: Where to continue from; None starts at the beginning.

        Returns:
            Training time of the whole run in seconds, without evaluating and saving.

        Raises:
            CheckpointError: The checkpoint does not hold what was written.
        """
        if checkpoint is not None:
            self._carried = _read_states(checkpoint)
        self._seconds_before = 0.0 if checkpoint is None else checkpoint.seconds
        self._started, self._paused = time.perf_counter(), 0.0
        self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint.folder))
        seconds = self._seconds()
        # Mixed precision hangs a wrapper, and unwrapping the plain method, on the instance.
        self.accelerator.unwrap_model(self.model_wrapped, keep_fp32_wrapper=False)
        vars(self._masked_lm).pop("forward", None)
        return seconds

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Train on a batch; the first one after resuming carries the losses not logged yet."""
        loss: Tensor = super().training_step(*args, **kwargs)
        if self._carried is not None:
            # Trainer starts a new stretch when it resumes.
            carried, self._globalstep_last_logged = self._carried
            self._carried = None
            loss = loss + carried
        return loss

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self._unlogged = tr_loss  # the sum itself, which logging sets to zero in place
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started - self._paused

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        # Trainer shuffles with the global generator; the stream has an order of its own.
        return SequentialSampler(train_dataset)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Evaluate by sums over tokens; Trainer averages the means of batches."""
        start = time.perf_counter()
        assert self._evaluation_set is not None
        score = evaluate(
            self._masked_lm,
            self._evaluation_set,
            batch_size=self.args.per_device_train_batch_size,
            precision=self._settings.precision,
        )
        metrics = {
            "eval_loss": score.loss,
            "eval_accuracy": score.accuracy,
            "eval_tokens": score.count,
        }
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        self._paused += time.perf_counter() - start
        return metrics

    def _save_checkpoint(self, *_: Any, **__: Any) -> None:
        # Trainer writes into the final folder, which a kill or a full disk leaves torn.
        if self._folder is None:
            return
        start, seconds = time.perf_counter(), self._seconds()
        step = self.state.global_step
        target = checkpoints_folder(self._folder) / f"checkpoint-{step}"
        if self.is_world_process_zero():
            with whole_folder(target) as place:
                self._write(place, step, seconds)
            keep_newest(self._folder, self._settings.keep_checkpoints, step=step)
        else:
            self._write(None, step, seconds)
        self._paused += time.perf_counter() - start

    def _write(self, place: Path | None, step: int, seconds: float) -> None:
        """Write every part; each process adds its random state to the folder of the first."""
        shared = ["" if place is None else str(place)]
        broadcast_object_list(shared)
        (folder,) = shared
        self.save_model(folder, _internal_call=True)
        self._save_optimizer_and_scheduler(folder)
        self._save_scaler(folder)
        self._save_rng_state(folder)
        self.accelerator.wait_for_everyone()
        if place is not None:
            self.state.save_to_json(str(place / STATE))
            # Several processes only stop where the sum is zero.
            running = {"sum": self._unlogged.item(), "since": self._globalstep_last_logged}
            (place / RUNNING).write_text(json.dumps(running), encoding="utf-8")
            write_manifest(place, step=step, seconds=seconds)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # Trainer adds a pickle of its arguments, which nothing here would ever load.
        assert output_dir is not None
        if self.args.should_save:
            self._masked_lm.save_pretrained(output_dir, state_dict=state_dict)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _reading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with _reading(checkpoint):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _reading(checkpoint):
            super()._load_rng_state(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *_: Any, **__: Any) -> None:
        # Trainer loads with missing and unexpected parameters allowed.
        load_weights(self._masked_lm, Path(resume_from_checkpoint))


@contextmanager
def _reading(checkpoint: object) -> Iterator[None]:
    """Name the checkpoint when a part of it is not what was written."""
    try:
        yield
    # Damaged pickles raise what their reader happens to meet; none of it is about us.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise CheckpointError(
            f"{checkpoint} does not hold the state of a training: {type(error).__name__}: "
            f"{reason}; remove it to continue from an older one"
        ) from error


def _read_states(checkpoint: Checkpoint) -> tuple[float, int]:
    """Check the state that Trainer reads, and return the loss not logged yet and its start."""
    with _reading(checkpoint.folder):
        state = TrainerState.load_from_json(str(checkpoint.folder / STATE))
        if state.global_step != checkpoint.step:
            raise ValueError(f"{STATE} is of step {state.global_step}, not {checkpoint.step}")
        history = TrainingResult.from_log(state.log_history, steps=0, tokens=0, seconds=0.0)
        TrainingResult.from_dict(history.to_dict())
        running = json.loads((checkpoint.folder / RUNNING).read_text(encoding="utf-8"))
        return float(running["sum"]), int(running["since"])


def load_weights(model: RoFormerForMaskedLM, folder: Path) -> None:
    """Give a model the weights of a saved one of the same kind and config.

    Args:
        model: Changed in place.
        folder: A checkpoint or a model folder.

    Raises:
        CheckpointError: It does not hold exactly such a model.
    """
    saved = type(model).from_pretrained(folder, local_files_only=True)
    model.load_state_dict(saved.state_dict())


def arguments(settings: TrainingSettings, output: Path, device: str) -> TrainingArguments:
    """Translate settings for transformers, with everything switched off that we do ourselves.

    Args:
        settings: How to train.
        output: A folder that exists; nothing is written there.
        device: "auto", "cpu" or "cuda".

    Raises:
        ConfigError: The device or the precision is not available, or the batch cannot be divided
            among the processes.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device='cuda' needs a CUDA device and a build of torch for it; "
            f"got torch {torch.__version__} without one; use device='cpu'"
        )
    on_cuda = device != "cpu" and torch.cuda.is_available()
    if settings.precision == "fp16" and not on_cuda:
        raise ConfigError("precision='fp16' needs a CUDA device; use 'bf16' or 'fp32' on a CPU")
    if settings.precision == "bf16" and on_cuda and not torch.cuda.is_bf16_supported():
        raise ConfigError("precision='bf16' is not supported by this CUDA device; use 'fp16'")
    schedule = settings.schedule
    result = TrainingArguments(
        output_dir=str(output),
        use_cpu=device == "cpu" or not torch.accelerator.is_available(),
        max_steps=settings.steps,
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup" if schedule == "constant" else schedule,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_epsilon=settings.adam_epsilon,
        max_grad_norm=settings.max_grad_norm,
        bf16=settings.precision == "bf16",
        fp16=settings.precision == "fp16",
        seed=settings.seed,
        dataloader_num_workers=settings.workers,
        dataloader_pin_memory=on_cuda,
        average_tokens_across_devices=True,
        # Callbacks of our own decide; Trainer would skip the last step and round means.
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        # Every parameter gets a gradient in every step, of zeros where nothing is masked.
        ddp_find_unused_parameters=False,
    )
    processes = result.world_size
    share, rest = divmod(settings.batch_size, processes * settings.gradient_accumulation)
    if rest:
        raise ConfigError(
            f"batch_size must be a multiple of processes x gradient_accumulation = {processes} x "
            f"{settings.gradient_accumulation}; got {settings.batch_size}"
        )
    result.per_device_train_batch_size = share
    # One process uses one device; several are a matter of torchrun, not of DataParallel.
    result._n_gpu = min(result.n_gpu, 1)
    return result
