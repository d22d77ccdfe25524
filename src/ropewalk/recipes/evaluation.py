"""Token-weighted evaluation of masked language models, over one process or several."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from ropewalk.analysis.measures import IGNORED_LABEL, MaskedLMScore, masked_lm_sums
from ropewalk.spec.checks import integer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.utils.data import Dataset

    from ropewalk.models import RoFormerForMaskedLM

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@torch.no_grad()
def evaluate(
    model: RoFormerForMaskedLM,
    dataset: Dataset[dict[str, Tensor]],
    *,
    batch_size: int = 32,
    precision: str = "fp32",
) -> MaskedLMScore:
    """Return loss and accuracy over every masked token of a data set.

    Sums are taken over tokens in float64, so the size of the batches does not matter, as it does
    for transformers' ``Trainer``, which averages the means of batches. No random number is drawn:
    evaluating more often does not change a training run.

    When torch's default process group exists, each process takes its share of the rows and all
    return the sums of all; every process must call.

    Args:
        model: The model, evaluated where it is; its training mode is left as it was.
        dataset: Map-style rows ``input_ids``, ``labels`` and what else the model takes.
        batch_size: Rows per forward pass, at least 1.
        precision: As in ``TrainingSettings``; "fp32" leaves the model's own dtype.

    Returns:
        The sums over all masked tokens.
    """
    integer("batch_size", batch_size, at_least=1)
    rank, processes = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    rows = range(rank, len(dataset), processes)  # type: ignore[arg-type]
    was_training = model.training
    model.train(False)
    try:
        score = MaskedLMScore(0.0, 0, 0)
        for start in range(0, len(rows), batch_size):
            batch = default_collate([dataset[row] for row in rows[start : start + batch_size]])
            score += _score(model, batch, precision)
    finally:
        model.train(was_training)
    return score if processes == 1 else _total(score, model.device)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context in which a forward pass runs at a precision.

    Args:
        device: Where the model is.
        precision: "fp32", "bf16" or "fp16".
    """
    if precision not in _DTYPES:
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


def _score(model: RoFormerForMaskedLM, batch: dict[str, Tensor], precision: str) -> MaskedLMScore:
    inputs = {name: value.to(model.device) for name, value in batch.items()}
    labels = inputs.pop("labels")
    with autocast(model.device, precision):
        hidden = model.roformer(**inputs).last_hidden_state
        # Masked rows alone, whatever the model's own setting: the rest are not scored.
        chosen = labels != IGNORED_LABEL
        logits = model.cls.predictions(hidden[chosen])
    return masked_lm_sums(logits, labels[chosen])


def _total(score: MaskedLMScore, device: torch.device) -> MaskedLMScore:
    # Gloo takes tensors of the host alone, NCCL those of its device.
    where = device if torch.distributed.get_backend() == "nccl" else torch.device("cpu")
    sums = torch.tensor(
        [score.nll_sum, score.correct, score.count], dtype=torch.float64, device=where
    )
    torch.distributed.all_reduce(sums)
    total, correct, count = sums.tolist()
    return MaskedLMScore(total, int(correct), int(count))
