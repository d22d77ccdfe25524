"""Our encoder beside transformers' RoFormer: the same weights, rows and optimiser on both sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ropewalk.errors import ConfigError
from ropewalk.recipes.bench.contenders import DTYPES
from ropewalk.recipes.bench.operator import MODES
from ropewalk.recipes.bench.results import EncoderCase
from ropewalk.recipes.bench.timing import Call, interleave, spread
from ropewalk.spec.checks import choice, integer, real

if TYPE_CHECKING:
    from ropewalk.recipes.bench.progress import Show
    from ropewalk.recipes.bench.results import Mode


class Rows(NamedTuple):
    """A batch of an encoder and the size of the model that reads it."""

    rows: int
    shortest: int
    longest: int
    layers: int = 4
    hidden_size: int = 384
    heads: int = 6
    vocab_size: int = 8000


SHAPES = {"full": Rows(4, 512, 512), "padded": Rows(8, 16, 512)}
"""Rows of one length; and rows of 16 to 512 tokens, padded to the longest."""

# Largest difference on real tokens of outputs that a layer norm has brought to size 1: in float32
# two orders of summation, in bfloat16 layers of roundings on either side.
_BOUNDS = {"float32": 1e-4, "bfloat16": 0.3}

_FLOPS = 5e10
"""Floating-point operations per second that the estimate reckons with."""


@dataclass(frozen=True)
class EncoderSettings:
    """What to measure; several values of a field give every combination."""

    shapes: tuple[str, ...] = tuple(SHAPES)
    """Names in SHAPES."""
    dtypes: tuple[str, ...] = ("float32",)
    modes: tuple[str, ...] = MODES
    """"forward"; "training", one step of AdamW."""
    seconds: float = 20.0
    """Wall time for the rounds of each case."""
    seed: int = 0
    """Of weights, rows and the order within rounds."""

    def __post_init__(self) -> None:
        allowed = {"shapes": tuple(SHAPES), "dtypes": tuple(DTYPES), "modes": MODES}
        for name, values in allowed.items():
            for value in getattr(self, name):
                choice(name, value, values)
        real("seconds", self.seconds, above=0, at_most=86_400)
        integer("seed", self.seed, at_least=0, at_most=2**63 - 1)

    @property
    def cases(self) -> list[tuple[str, str, Any]]:
        """Every combination."""
        return list(itertools.product(self.shapes, self.dtypes, self.modes))


def estimate(settings: EncoderSettings) -> str:
    """Return what a run will take, in one line.

    Args:
        settings: What to measure.
    """
    largest, seconds = 0, 0.0
    for shape, dtype, mode in settings.cases:
        size = SHAPES[shape]
        scores = size.rows * size.heads * size.longest**2
        # Eager attention keeps scores, probabilities and what dropout made of them for backward.
        kept = 4 * size.layers if mode == "training" else 4
        largest = max(largest, scores * kept * DTYPES[dtype].itemsize)
        weights = 12 * size.layers * size.hidden_size**2
        step = 2 * weights * size.rows * size.longest / _FLOPS * (4 if mode == "training" else 1)
        seconds += max(settings.seconds, 10 * step) + 5  # five rounds of both sides, warm-up
    return (
        f"{len(settings.cases)} cases, about {math.ceil(seconds / 60)} min and "
        f"{largest / 2**30 + 0.5:.1f} GiB of memory"
    )


def measure(settings: EncoderSettings, show: Show) -> Iterator[EncoderCase]:
    """Compare and time every case.

    Args:
        settings: What to measure.
        show: Where progress is shown.

    Yields:
        Each case once it is measured.
    """
    for shape, dtype, mode in settings.cases:
        case = measure_case(shape, SHAPES[shape], dtype, mode, settings, show)
        faster = spread(case.theirs.cpu, case.ours.cpu)
        show.done(
            f"encoder, {shape}, {dtype}, {mode}: {faster.median:.2f} times as fast as transformers "
            f"({faster.rounds} rounds)"
        )
        yield case


def measure_case(
    shape: str, size: Rows, dtype: str, mode: Mode, settings: EncoderSettings, show: Show
) -> EncoderCase:
    """Compare the outputs of both encoders, then time them.

    Args:
        shape: Name of the case.
        size: Batch and model.
        dtype: Dtype of weights and activations.
        mode: Forward, or a whole training step.
        settings: Time and seed.
        show: Where progress is shown.

    Raises:
        ConfigError: The outputs differ, so that times would say nothing.
    """
    show.now(f"encoder, {shape}, {dtype}, {mode}")
    ids, mask = _batch(size, settings.seed)
    models = [model.to(DTYPES[dtype]) for model in _models(size, settings.seed)]
    given = None if mask.all() else mask
    with torch.no_grad():
        ours, theirs = (_hidden(model, ids, given)[mask].float() for model in models)
    difference = (ours - theirs).abs().max().item()
    if not difference <= _BOUNDS[dtype]:
        raise ConfigError(
            f"the encoders must agree within {_BOUNDS[dtype]:g} to be compared; they differ by "
            f"{difference:.2g} ({shape}, {dtype})"
        )
    target = torch.randn(ours.shape, generator=torch.Generator().manual_seed(settings.seed))
    calls = {
        name: _step(model, ids, given, mask, target)
        if mode == "training"
        else _forward(model, ids, given)
        for name, model in zip(("ours", "theirs"), models, strict=True)
    }
    samples = interleave(
        calls,
        seconds=settings.seconds,
        seed=settings.seed,
        each_round=lambda share: show.now(f"encoder, {shape}, {dtype}, {mode}", share),
    )
    return EncoderCase(shape, dtype, mode, int(mask.sum()), difference, _BOUNDS[dtype], **samples)


def _batch(size: Rows, seed: int) -> tuple[Tensor, Tensor]:
    """Return token ids and the mask of the real ones, ``(rows, longest)``."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(size.shortest, size.longest + 1, (size.rows,), generator=generator)
    lengths[0] = size.longest
    mask = torch.arange(size.longest) < lengths[:, None]
    ids = torch.randint(5, size.vocab_size, mask.shape, generator=generator)
    return ids * mask, mask


def _models(size: Rows, seed: int) -> tuple[nn.Module, nn.Module]:
    """Return our encoder and transformers' with the same random weights, without dropout."""
    import transformers

    from ropewalk.models import RoFormerConfig, RoFormerModel

    fields: dict[str, Any] = {
        "vocab_size": size.vocab_size,
        "embedding_size": size.hidden_size,
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.hidden_size,
        "max_position_embeddings": size.longest,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    theirs = transformers.RoFormerModel(transformers.RoFormerConfig(**fields))
    generator = torch.Generator().manual_seed(seed)
    for parameter in theirs.parameters():
        if parameter.requires_grad:  # matrices as fresh ones; vectors off 0 and 1 to be seen
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.mul_(parameter.ndim == 1).add_(0.03 * noise)
    ours = RoFormerModel(RoFormerConfig(**fields))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def _hidden(model: nn.Module, ids: Tensor, mask: Tensor | None) -> Tensor:
    answer: Tensor = model(ids, attention_mask=mask).last_hidden_state
    return answer


def _forward(model: nn.Module, ids: Tensor, mask: Tensor | None) -> Call:
    model.eval()
    return Call(lambda: _hidden(model, ids, mask), torch.no_grad)


def _step(
    model: nn.Module, ids: Tensor, given: Tensor | None, mask: Tensor, target: Tensor
) -> Call:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(_hidden(model, ids, given)[mask].float(), target)
        loss.backward()
        optimizer.step()

    return Call(step)
