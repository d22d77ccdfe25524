"""Checkpoints that are whole or not there: a manifest of every file, checked before use."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import CheckpointError
from ropewalk.models import write_folder_atomically
from ropewalk.models.checkpoints import is_leftover
from ropewalk.recipes.callbacks import without_bars
from ropewalk.spec.checks import integer, real

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ropewalk.models import RoFormerForMaskedLM

MANIFEST = "manifest.json"
"""Name of the file that lists the others; a folder without it is not a checkpoint."""
_NAME = re.compile(r"checkpoint-(\d+)")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have been found whole.

    Args:
        folder: Where it is.
        step: Steps trained before it was written.
        seconds: Training time before it was written.
    """

    folder: Path
    step: int
    seconds: float


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Write a folder as a whole, in errors under its own name instead of the temporary one.

    Args:
        target: Where the result shall be; replaced if it is there.

    Yields:
        The folder to write into.

    Raises:
        CheckpointError: Writing failed; nothing is left behind.
    """
    place = target
    try:
        with write_folder_atomically(target, replace=True) as place:
            yield place
    except CheckpointError as error:
        raise CheckpointError(
            f"{str(error).replace(str(place), str(target))}; nothing half-written was kept"
        ) from error


def save_model(
    model: RoFormerForMaskedLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Write a model and its tokenizer into one folder, as a whole.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: Where; replaced if it is there.

    Raises:
        CheckpointError: Writing failed; what was there before is still there.
    """
    with without_bars(), whole_folder(folder) as place:
        model.save_pretrained(place)
        try:
            tokenizer.save_pretrained(place)
        except OSError:
            raise
        except Exception as error:  # the Rust side of tokenizers raises the bare class
            raise OSError(f"tokenizer: {error}") from error


def write_manifest(folder: Path, *, step: int, seconds: float) -> None:
    """List name, size and SHA-256 of every file in a folder, in a file of its own.

    Args:
        folder: A checkpoint, complete but for the manifest.
        step: Steps trained.
        seconds: Training time.
    """
    files = {
        path.relative_to(folder).as_posix(): asdict(_Entry.of(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    content = {"format": 1, "step": step, "seconds": seconds, "files": files}
    text = json.dumps(content, indent=2, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def check(folder: Path) -> Checkpoint:
    """Read the manifest of a checkpoint and compare every file with it.

    Args:
        folder: The checkpoint.

    Returns:
        What the manifest says.

    Raises:
        CheckpointError: The manifest or a file is missing, or a file is not the one written.
    """
    try:
        content: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        step = integer("step", content["step"], at_least=0)
        seconds = real("seconds", content["seconds"], at_least=0.0)
        entries = {name: _Entry(**entry) for name, entry in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
        raise CheckpointError(f"{folder} is no whole checkpoint: {MANIFEST} {reason}") from error
    for name, entry in entries.items():
        path = folder / name
        try:
            actual = _Entry(path.stat().st_size, entry.sha256)
            if actual.size == entry.size:
                actual = _Entry.of(path)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise CheckpointError(f"{folder} is no whole checkpoint: {name} is missing") from error
        if actual != entry:
            what = "size" if actual.size != entry.size else "checksum"
            raise CheckpointError(
                f"{folder} is no whole checkpoint: the {what} of {name} is not the one recorded"
            )
    return Checkpoint(folder, step, seconds)


def latest_checkpoint(folder: str | Path) -> Checkpoint | None:
    """Return the newest whole checkpoint of a training run.

    Torn ones are passed over with a warning to the log, which Python shows on the standard
    error stream unless told otherwise.

    Args:
        folder: The folder of the run, as given to ``train``.

    Returns:
        The checkpoint; None if there is none at all.

    Raises:
        CheckpointError: There are checkpoints, but not one of them is whole.
    """
    newest_first = sorted(_steps(checkpoints_folder(folder)).items(), reverse=True)
    problems: list[CheckpointError] = []
    for _, path in newest_first:
        try:
            found = check(path)
        except CheckpointError as error:
            problems.append(error)
            continue
        for problem in problems:
            _logger.warning("ignored: %s", problem)
        return found
    if problems:
        raise CheckpointError(
            f"{problems[0]}, nor is there an older one to continue from; start anew in another "
            "folder"
        )
    return None


def checkpoints_folder(folder: str | Path) -> Path:
    """Return where a training run keeps its checkpoints.

    Args:
        folder: The folder of the run.
    """
    return Path(folder) / "checkpoints"


def keep_newest(folder: str | Path, count: int, *, step: int) -> None:
    """Remove old checkpoints, torn ones of later steps, and what killed writers left behind.

    Args:
        folder: The folder of the run.
        count: How many stay.
        step: The step that was just written. Checkpoints of later steps are torn ones, which the
            run was not resumed from.
    """
    where = checkpoints_folder(folder)
    found = _steps(where)
    kept = sorted(number for number in found if number <= step)[-count:]
    for number in found.keys() - set(kept):
        shutil.rmtree(found[number], ignore_errors=True)
    for path in where.glob(".checkpoint-*"):
        if is_leftover(path, path.name[1:].split(".")[0]):
            shutil.rmtree(path, ignore_errors=True)


def _steps(where: Path) -> dict[int, Path]:
    folders = (path for path in where.glob("checkpoint-*") if path.is_dir())
    return {int(match[1]): path for path in folders if (match := _NAME.fullmatch(path.name))}


@dataclass(frozen=True)
class _Entry:
    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> _Entry:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(path.stat().st_size, digest)
