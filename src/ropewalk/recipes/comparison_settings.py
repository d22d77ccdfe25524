"""What can be set for a comparison of position encodings, and how settings are put together."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.data.batching import LONGEST_PIECE, SMALLEST_PIECE
from ropewalk.data.files import given_path
from ropewalk.errors import ConfigError
from ropewalk.models import POSITION_ENCODINGS
from ropewalk.models.layer_options import is_per_layer_type
from ropewalk.recipes.fill_mask import MASK
from ropewalk.recipes.inputs import DataSettings
from ropewalk.recipes.pretrain_settings import ModelSettings
from ropewalk.recipes.settings import assemble
from ropewalk.recipes.training import (
    DEVICES,
    LARGEST_COUNT,
    LARGEST_SEED,
    MOST_WORKERS,
    TrainingSettings,
)
from ropewalk.spec.checks import choice, integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ropewalk.models import RoFormerConfig

SCALINGS = ("none", "linear", "ntk")
"""What ``eval_scaling`` may name: nothing, or a rule that slows the rotation down."""


@dataclass(frozen=True)
class ComparisonSettings:
    """Everything that decides a comparison.

    Args:
        output: Folder for the results.
        encodings: Position encodings to compare.
        seeds: Seeds of weights, masking and order of the data; every encoding is trained once
            with each.
        eval_lengths: Contexts to evaluate at, as multiples of the trained length: "1x", "1.5x".
            Empty evaluates at the trained length alone.
        eval_scaling: Rules to try on rope at each length: "none", "linear", "ntk"; the factor is
            the multiple of the length.
        eval_rows: Most held-out rows to evaluate on, evenly spread; 0 means all.
        sentences: Sentences with ``[MASK]`` to show filled; empty chooses some to suit the text.
        data: The text and its form.
        model: The model, but for its encoding; ``rope_parameters`` are those of rope.
        training: The training, but for its seed.
        device: "auto", "cpu" or "cuda".
        jobs: Runs to train at the same time, each in a process of its own with an equal share of
            the threads. 0 means one for each thread of a CPU, and one on an accelerator.

    Raises:
        ConfigError: A setting is out of range, unknown or repeated.
    """

    output: str
    encodings: tuple[str, ...] = ("rope", "learned", "none")
    seeds: tuple[int, ...] = (0,)
    eval_lengths: tuple[str, ...] = ("1x", "1.5x", "2x", "4x")
    eval_scaling: tuple[str, ...] = SCALINGS
    eval_rows: int = 256
    sentences: tuple[str, ...] = ()
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=lambda: ModelSettings(dropout=0.0))
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            steps=600,
            batch_size=16,
            learning_rate=2e-3,
            eval_every=50,
            save_every=200,
            keep_checkpoints=1,
        )
    )
    device: str = "auto"
    jobs: int = 0

    def __post_init__(self) -> None:
        given_path("output", self.output)
        choice("device", self.device, DEVICES)
        _distinct("encodings", self.encodings)
        for encoding in self.encodings:
            choice("encodings", encoding, POSITION_ENCODINGS)
        _distinct("seeds", self.seeds)
        for seed in self.seeds:
            integer("seeds", seed, at_least=0, at_most=LARGEST_SEED)
        _distinct("eval_scaling", self.eval_scaling)
        for rule in self.eval_scaling:
            choice("eval_scaling", rule, SCALINGS)
        integer("eval_rows", self.eval_rows, at_least=0, at_most=LARGEST_COUNT)
        integer("jobs", self.jobs, at_least=0, at_most=MOST_WORKERS)
        self._check_lengths()
        self._check_elsewhere()
        _distinct("sentences", self.sentences, may_be_empty=True)
        for sentence in self.sentences:
            given: object = sentence
            if not isinstance(given, str) or MASK not in given:
                raise ConfigError(
                    f"sentences must each have a {MASK} where a word is missing; got {given!r:.80}"
                )

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """Encoding and seed of every run, in order."""
        return tuple((encoding, seed) for seed in self.seeds for encoding in self.encodings)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The contexts as multiples of the trained length, in ascending order."""
        return tuple(sorted(map(_ratio, self.eval_lengths)))

    def context(self, ratio: float) -> int:
        """Return a multiple of the trained length in tokens.

        Args:
            ratio: One of :attr:`ratios`.
        """
        return round(ratio * self.data.block_size)

    def config(
        self,
        encoding: str,
        *,
        vocab_size: int,
        pad_token_id: int | None,
        scaling: str = "none",
        factor: float = 1.0,
    ) -> RoFormerConfig:
        """Return the configuration of one of the models.

        Args:
            encoding: Its position encoding.
            vocab_size: Size of the vocabulary.
            pad_token_id: The tokenizer's.
            scaling: For rope: one of ``SCALINGS``.
            factor: Factor of that rule.

        Raises:
            ConfigError: The settings do not fit together.
        """
        parameters = self.model.rope_parameters if encoding == "rope" else None
        if scaling != "none":
            parameters = (parameters or {}) | {"rope_type": scaling, "factor": factor}
        model = replace(self.model, position_encoding=encoding, rope_parameters=parameters)
        return model.config(
            vocab_size=vocab_size, length=self.data.block_size, pad_token_id=pad_token_id
        )

    def table(self) -> dict[str, Any]:
        """Return the settings as tables, as a config file has them."""
        tables = asdict(self)
        # What the comparison decides itself is not to be set.
        del tables["model"]["position_encoding"], tables["training"]["seed"]
        return tables

    def _check_lengths(self) -> None:
        _distinct("eval_lengths", self.eval_lengths, may_be_empty=True)
        _distinct("eval_lengths", self.ratios, may_be_empty=True)
        for ratio in self.ratios:
            if not SMALLEST_PIECE <= ratio * self.data.block_size <= LONGEST_PIECE:
                raise ConfigError(
                    f"eval_lengths must give {SMALLEST_PIECE} to {LONGEST_PIECE} tokens; got "
                    f"{ratio:g}x of block_size={self.data.block_size}"
                )

    def _check_elsewhere(self) -> None:
        """Refuse what the settings of a single training have and a comparison decides itself."""
        if self.model.position_encoding != "rope":
            raise ConfigError(
                f"model.position_encoding has no effect in a comparison; got "
                f"{self.model.position_encoding!r}; name the encodings in encodings"
            )
        if self.training.seed:
            raise ConfigError(
                f"training.seed has no effect in a comparison; got {self.training.seed}; give seeds"
            )
        if is_per_layer_type(self.model.rope_parameters):
            raise ConfigError(
                "model.rope_parameters must be one rotation for all layers in a comparison, which "
                f"draws and scales it; got {self.model.rope_parameters!r:.120}"
            )
        kind = (self.model.rope_parameters or {}).get("rope_type", "default")
        if kind != "default" and set(self.eval_scaling) - {"none"} and self.eval_lengths:
            raise ConfigError(
                f"eval_scaling needs a rotation that is not scaled yet; got rope_type={kind!r} in "
                "model.rope_parameters; give eval_scaling none"
            )


def load_settings(
    flags: Mapping[str, Any], *, config: str | Path | None = None, resume: bool = False
) -> ComparisonSettings:
    """Put settings together; each of these replaces what came before it.

    The defaults, with ``resume`` the settings that the comparison in the output folder was
    started with, the config file, the flags.

    Args:
        flags: Tables as in a config file.
        config: A TOML file with the fields of :class:`ComparisonSettings`.
        resume: Whether a comparison will be continued.

    Raises:
        ConfigError: A name or a value is refused, or there is no output folder.
    """
    return assemble(
        ComparisonSettings,
        flags,
        defaults=ComparisonSettings(output="unused").table(),
        config=config,
        resume=resume,
    )


def _ratio(word: object) -> float:
    """Read "1.5x" as 1.5."""
    if not isinstance(word, str) or not re.fullmatch(r"\d+(\.\d+)?x", word.strip()):
        raise ConfigError(
            f"eval_lengths must be multiples of the trained length such as 1x, 1.5x; got {word!r}"
        )
    return float(word.strip()[:-1])


def _distinct(name: str, values: tuple[Any, ...], *, may_be_empty: bool = False) -> None:
    given: object = values
    if not isinstance(given, tuple) or not (given or may_be_empty):
        raise ConfigError(f"{name} must be a list with at least one entry; got {values!r:.80}")
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice:
        raise ConfigError(f"{name} must not repeat a value; got {twice[0]!r:.80} twice")
