"""Tiny models shared by the tests of this floor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.utils import logging as transformers_logging

from ropewalk.models import RoFormerConfig

TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}


@pytest.fixture(autouse=True, scope="session")
def _quiet_bars() -> None:
    transformers_logging.disable_progress_bar()


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Fields of a tiny config, for ours and for transformers' class."""
    return dict(TINY)


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """Make a tiny model in evaluation mode with weights far from their initialisation."""
    made: dict[str, Any] = {}

    def build(cls: Any, *, seed: int = 0, **fields: Any) -> Any:
        key = f"{cls} {seed} {sorted(fields.items())}"
        if key not in made:
            torch.manual_seed(seed)
            model = cls(RoFormerConfig(**(TINY | fields)))
            for parameter in model.parameters():
                parameter.data.normal_(0.0, 0.3)
            made[key] = model.eval()
        # A test may change its model.
        return copy.deepcopy(made[key])

    return build


@pytest.fixture
def ids() -> torch.Tensor:
    """Three rows of 20 tokens without the padding token."""
    return torch.randint(1, 97, (3, 20), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def padded(ids: torch.Tensor) -> torch.Tensor:
    """A mask that pads the first row on the right and the second on the left."""
    mask = torch.ones_like(ids)
    mask[0, 15:] = 0
    mask[1, :4] = 0
    return mask
