"""The loss of masked-token prediction, a sum that the caller may divide for a whole step."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ropewalk.models.inputs import IGNORED_LABEL


def masked_lm_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    r"""Return the cross entropy over the masked tokens, divided by their number.

    .. math:: -\frac{1}{N} \sum_{t \in \text{masked}} \log p(x_t)

    Args:
        logits: ``(..., vocab_size)``; the loss is computed in float32 at least.
        labels: ``(...)``, token numbers, -100 where nothing is to be predicted.
        num_items_in_batch: N; None counts the labels. Without any masked token the loss is 0, with
            gradients of 0 for every parameter, so that distributed training does not hang.

    Returns:
        A scalar.

    Example:
        >>> import torch
        >>> masked_lm_loss(torch.zeros(3, 4), torch.tensor([-100, 2, -100])).exp()
        tensor(4.)
    """
    wide = logits if logits.dtype.itemsize >= 4 else logits.float()
    total = F.cross_entropy(
        wide.flatten(0, -2), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    count = (labels != IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
    if isinstance(count, Tensor):
        count = count.to(total.device)
    return total / (count + (count == 0))
