"""One run of a comparison: in this process, or in one of its own as ``python -m`` of this module.

A process of its own is told the output folder of the comparison, the encoding and the seed; it
finds the settings and the prepared text there, and leaves the finished run in its folder.
"""

from __future__ import annotations

import copy
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ropewalk.data import MaskedLanguageModeling, PackedBlocks, load_tokenizer
from ropewalk.errors import RopewalkError
from ropewalk.models import RoFormerForMaskedLM
from ropewalk.recipes.checkpointing import whole_folder
from ropewalk.recipes.comparison_settings import ComparisonSettings, load_settings
from ropewalk.recipes.findings import Run
from ropewalk.recipes.processes import exit_with_parent, report_error, run_all
from ropewalk.recipes.training import check_training, train

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerFast

    from ropewalk.models import RoFormerConfig

INPUTS = "inputs"
"""Folder, inside the output folder, of what processes of their own read; gone in the end."""


@dataclass(frozen=True, eq=False)
class RunInputs:
    """The text as every run of a comparison reads it.

    Args:
        tokenizer: The tokenizer.
        train_blocks: Blocks to train on.
        validation_blocks: Held-out blocks to evaluate on.
    """

    tokenizer: PreTrainedTokenizerFast
    train_blocks: PackedBlocks
    validation_blocks: PackedBlocks

    def train_set(self, settings: ComparisonSettings, seed: int) -> MaskedLanguageModeling:
        """Return masked rows to train on.

        Args:
            settings: How to mask.
            seed: Seed of the run.
        """
        return self._masked(self.train_blocks, settings, seed)

    def validation_set(self, settings: ComparisonSettings) -> MaskedLanguageModeling:
        """Return masked rows to evaluate on, the same for all runs.

        Args:
            settings: How to mask.
        """
        return self._masked(self.validation_blocks, settings, 0)

    def save(self, folder: Path) -> None:
        """Write everything into a folder, as a whole.

        Args:
            folder: Where; replaced if it is there.

        Raises:
            CheckpointError: It cannot be written.
        """
        with whole_folder(folder) as place:
            self.tokenizer.save_pretrained(place)
            for name in ("train_blocks", "validation_blocks"):
                for field, array in vars(getattr(self, name)).items():
                    np.save(place / f"{name}.{field}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> RunInputs:
        """Read what :meth:`save` wrote; the blocks stay on disk and are shared by all readers.

        Args:
            folder: Where it is.
        """

        def blocks(name: str) -> PackedBlocks:
            fields = PackedBlocks.__dataclass_fields__
            return PackedBlocks(
                *(np.load(folder / f"{name}.{field}.npy", mmap_mode="r") for field in fields)
            )

        return cls(load_tokenizer(folder), blocks("train_blocks"), blocks("validation_blocks"))

    def _masked(
        self, blocks: PackedBlocks, settings: ComparisonSettings, seed: int
    ) -> MaskedLanguageModeling:
        return MaskedLanguageModeling(
            blocks,
            self.tokenizer,
            probability=settings.data.mask_probability,
            whole_word=settings.data.whole_word,
            seed=seed,
        )


def run_folder(settings: ComparisonSettings, encoding: str, seed: int) -> Path:
    """Return the folder of a run.

    Args:
        settings: The comparison.
        encoding: Position encoding of the model.
        seed: Seed of the run.
    """
    return Path(settings.output).expanduser() / "runs" / f"{encoding}-{seed}"


def check_run(
    settings: ComparisonSettings, inputs: RunInputs, encoding: str, seed: int, *, fresh: bool
) -> None:
    """Refuse what :func:`run_one` would refuse, and change nothing.

    Args:
        settings: The comparison.
        inputs: What to read.
        encoding: Position encoding of the model.
        seed: Seed of the run.
        fresh: Whether what is in the folder of the run will be deleted first.

    Raises:
        ConfigError: The settings are not those of the run that is there.
        CheckpointError: What is there cannot be continued.
    """
    check_training(
        _config(settings, inputs, encoding),
        inputs.train_set(settings, seed),
        inputs.validation_set(settings),
        replace(settings.training, seed=seed),
        folder=None if fresh else run_folder(settings, encoding, seed),
        resume=True,
        device=settings.device,
    )


def run_one(
    settings: ComparisonSettings,
    inputs: RunInputs,
    encoding: str,
    seed: int,
    *,
    progress: bool = True,
) -> tuple[RoFormerForMaskedLM, Run]:
    """Train one model, continue its training, or read what was trained before.

    Args:
        settings: The comparison.
        inputs: What to read.
        encoding: Position encoding of the model.
        seed: Seed of weights, masking and order of the rows.
        progress: Show a bar and the evaluations on the standard error stream.

    Returns:
        The trained model and what its training gave.
    """
    model = initial_model(_config(settings, inputs, encoding), seed)
    result = train(
        model,
        inputs.train_set(settings, seed),
        inputs.validation_set(settings),
        replace(settings.training, seed=seed),
        folder=run_folder(settings, encoding, seed),
        resume=True,
        progress=progress,
        label=f"{encoding}, seed {seed}",
        device=settings.device,
    )
    return model, Run(encoding, seed, model.num_parameters(), result)


def initial_model(config: RoFormerConfig, seed: int) -> RoFormerForMaskedLM:
    """Return a fresh model whose weights do not depend on its position encoding.

    Args:
        config: The model's. Only a table of learned positions has no counterpart elsewhere.
        seed: Seed of the weights; torch's generator is left seeded with it.
    """
    plain = copy.deepcopy(config)
    plain.position_encoding, plain.rope_parameters = "none", None
    torch.manual_seed(seed)
    shared = RoFormerForMaskedLM(plain)
    torch.manual_seed(seed)
    model = RoFormerForMaskedLM(config)
    model.load_state_dict(shared.state_dict(), strict=False)
    return model


def _config(settings: ComparisonSettings, inputs: RunInputs, encoding: str) -> RoFormerConfig:
    tokenizer = inputs.tokenizer
    return settings.config(encoding, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)


def run_side_by_side(
    settings: ComparisonSettings,
    inputs: RunInputs,
    runs: Sequence[tuple[str, int]],
    *,
    jobs: int,
    threads: int,
    progress: bool = True,
) -> None:
    """Train several models at once, each in a process of its own.

    Two threads of one small model wait for each other more than they compute; two processes with
    a thread each do not, and what they compute does not depend on the number of cores.

    Args:
        settings: The comparison; its ``config.toml`` is in the output folder.
        inputs: What to read.
        runs: Encoding and seed of each run.
        jobs: Most runs at the same time.
        threads: Threads of each.
        progress: Show the evaluations on the standard error stream.
    """
    output = Path(settings.output).expanduser()
    folder = output / INPUTS
    inputs.save(folder)
    module = "ropewalk.recipes.comparison_run"
    commands = {
        f"{encoding}, seed {seed}": [
            sys.executable, "-m", module, str(output), encoding, str(seed),
            "show" if progress else "quiet",
        ]
        for encoding, seed in runs
    }  # fmt: skip
    try:
        # Bars of several processes would overwrite each other; lines do not.
        environment = {"OMP_NUM_THREADS": str(threads), "TTY_COMPATIBLE": "0"}
        run_all(commands, jobs=jobs, environment=environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _main(output: str, encoding: str, seed: str, shown: str) -> int:
    exit_with_parent()
    try:
        settings = load_settings({"output": output}, resume=True)
        inputs = RunInputs.load(Path(output) / INPUTS)
        run_one(settings, inputs, encoding, int(seed), progress=shown == "show")
    except RopewalkError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
