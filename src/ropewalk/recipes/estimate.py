"""What a training run will cost, measured on a few rows before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ropewalk.models import RoFormerForMaskedLM
from ropewalk.recipes.evaluation import autocast

if TYPE_CHECKING:
    from torch import Tensor

    from ropewalk.models import RoFormerConfig
    from ropewalk.recipes.training import TrainingSettings

_FEW, _MORE, _FULL = 16, 128, 2048
"""Tokens of a first look, of a second, and of the measurement where the second was quick."""
_BYTES_PER_PARAMETER = 16
"""Weight, gradient and the two moments of Adam, float32 each."""


@dataclass(frozen=True)
class Estimate:
    """What a run needs.

    Args:
        parameters: Number of weights.
        seconds_per_step: Time of an optimiser step.
        state_bytes: Weights, gradients and optimiser state.
        activation_bytes: What a batch keeps for the backward pass, at its peak.
    """

    parameters: int
    seconds_per_step: float
    state_bytes: int
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        """Memory of the model in training."""
        return self.state_bytes + self.activation_bytes


def estimate(
    config: RoFormerConfig,
    settings: TrainingSettings,
    *,
    length: int,
    device: torch.device,
    processes: int = 1,
    mask_probability: float = 0.15,
) -> Estimate:
    """Measure one step of a fresh model on a few rows of random tokens, and scale it up.

    Neither the global random generators nor a model of the caller's are touched.

    Args:
        config: The model's.
        settings: How it will be trained.
        length: Tokens of a row.
        device: Where it will be trained.
        processes: Processes that share a batch.
        mask_probability: Share of the tokens that are predicted.
    """
    share = max(settings.batch_size // settings.gradient_accumulation // processes, 1)
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(0)
        model = RoFormerForMaskedLM(config).train()
        model.to(device=device)
        step = _Step(model, settings, mask_probability)
        few, more = min(length, _FEW), min(length, _MORE)
        step(1, few)  # warms up and allocates
        fixed, seconds = step.best(1, few), step.best(1, more)
        rows, tokens = 1, more
        if seconds < 1:
            rows = min(share, max(_FULL // length, 1))
            fixed, seconds, tokens = 0.0, step.best(rows, length), rows * length
        elif more < length:
            # Part of the time is for the weights, however few the tokens are, and part of the
            # memory grows with the square of the length.
            fixed = max(fixed - (seconds - fixed) * few / (more - few), 0.0)
            step.forward(1, length)
    parameters = model.num_parameters()
    batch = fixed + (seconds - fixed) * share * length / tokens
    return Estimate(
        parameters=parameters,
        seconds_per_step=batch * settings.gradient_accumulation + step.update_seconds,
        state_bytes=_BYTES_PER_PARAMETER * parameters,
        activation_bytes=step.kept.bytes * share // rows,
    )


class _Step:
    """One optimiser step on random tokens; returns the time of its two passes."""

    def __init__(
        self, model: RoFormerForMaskedLM, settings: TrainingSettings, mask_probability: float
    ) -> None:
        self._model = model
        self._precision = settings.precision
        self._mask_probability = mask_probability
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
        self.kept = _Kept(model)
        self.update_seconds = 0.0

    def __call__(self, rows: int, length: int) -> float:
        device = self._model.device
        begin = _now(device)
        self.forward(rows, length).backward()
        middle = _now(device)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.update_seconds = _now(device) - middle
        return middle - begin

    def best(self, rows: int, length: int) -> float:
        """Return the shorter of two times: other work on the machine only ever adds."""
        return min(self(rows, length), self(rows, length))

    def forward(self, rows: int, length: int) -> Tensor:
        """Return the loss, and count what is kept for the backward pass."""
        model, device = self._model, self._model.device
        ids = torch.randint(model.config.vocab_size, (rows, length), device=device)
        hidden = torch.rand(ids.shape, device=device) < self._mask_probability
        # As packed rows are: the mask between documents takes time and memory too.
        inputs = {
            "input_ids": ids,
            "labels": ids.masked_fill(~hidden, -100),
            "position_ids": torch.arange(length, device=device).expand(rows, length),
            "document_ids": torch.ones_like(ids),
        }
        with self.kept, autocast(device, self._precision):
            loss: Tensor = model(**inputs).loss
        return loss


class _Kept(torch.autograd.graph.saved_tensors_hooks):
    """Add up the memory that the last forward pass keeps for its backward pass."""

    def __init__(self, model: RoFormerForMaskedLM) -> None:
        super().__init__(self._count, lambda tensor: tensor)
        self._weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        self._seen: dict[int, int] = {}

    def __enter__(self) -> None:
        self._seen.clear()
        super().__enter__()

    @property
    def bytes(self) -> int:
        return sum(self._seen.values())

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
