"""transformers' ``Trainer`` with whole checkpoints, token-weighted evaluation and one data order.

Each override names the behaviour of ``Trainer`` (5.24) that it replaces.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import SequentialSampler, default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from ropewalk.errors import ConfigError
from ropewalk.recipes.checkpointing import (
    Checkpoint,
    checkpoints_folder,
    keep_newest,
    whole_folder,
    write_manifest,
)
from ropewalk.recipes.evaluation import evaluate
from ropewalk.recipes.stream import TrainingStream

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from ropewalk.models import RoFormerForMaskedLM
    from ropewalk.recipes.training import MaskedExamples, TrainingSettings

STATE = "trainer_state.json"


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

    def run(self, checkpoint: Checkpoint | None) -> float:
        """Train to the last step.

        Args:
            checkpoint: Where to continue from; None starts at the beginning.

        Returns:
            Training time of the whole run in seconds, without evaluating and saving.
        """
        self._seconds_before = 0.0 if checkpoint is None else checkpoint.seconds
        self._started, self._paused = time.perf_counter(), 0.0
        self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint.folder))
        seconds = self._seconds()
        # Mixed precision hangs a wrapper, and unwrapping the plain method, on the instance.
        self.accelerator.unwrap_model(self.model_wrapped, keep_fp32_wrapper=False)
        vars(self._masked_lm).pop("forward", None)
        return seconds

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
            write_manifest(place, step=step, seconds=seconds)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # Trainer adds a pickle of its arguments, which nothing here would ever load.
        assert output_dir is not None
        if self.args.should_save:
            self._masked_lm.save_pretrained(output_dir, state_dict=state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *_: Any, **__: Any) -> None:
        # Trainer loads with missing and unexpected parameters allowed.
        load_weights(self._masked_lm, Path(resume_from_checkpoint))


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
