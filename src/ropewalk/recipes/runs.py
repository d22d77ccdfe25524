"""The folder of a training run: what was asked for, so that only the same run is continued."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.models.checkpoints import is_leftover
from ropewalk.models.file_errors import writing_errors

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ropewalk.recipes.training import TrainingSettings

RUN = "run.json"
RESULT = "result.json"
# What may change between the parts of a run without changing what it computes.
_FREE = ("eval_every", "save_every", "log_every", "keep_checkpoints", "workers", "tensorboard")
_INERT = ("transformers_version", "_name_or_path", "architectures", "dtype", "use_cache")
_SAMPLES = 64


def identity(
    settings: TrainingSettings,
    config: PreTrainedConfig,
    data: dict[str, Any],
    **surroundings: Any,
) -> dict[str, Any]:
    """Return everything that decides the numbers of a run, as it comes back from JSON.

    Args:
        settings: How to train.
        config: The model's.
        data: Name to rows, or to None.
        **surroundings: What else matters, such as the number of processes.
    """
    fields = {name: value for name, value in vars(settings).items() if name not in _FREE}
    model = json.loads(config.to_json_string(use_diff=False))
    return {
        "settings": {**fields, "warmup_steps": settings.warmup},
        "model": {name: value for name, value in model.items() if name not in _INERT},
        "data": {name: None if rows is None else _fingerprint(rows) for name, rows in data.items()},
        **surroundings,
    }


def _fingerprint(rows: Any) -> str:
    """Hash all tokens, as far as the rows show them, and some rows of the first epoch."""
    rows = copy.copy(rows)
    if hasattr(rows, "set_epoch"):
        rows.set_epoch(0)
    digest = hashlib.sha256(str(len(rows)).encode())
    for array in vars(rows.blocks).values() if hasattr(rows, "blocks") else ():
        digest.update(array.tobytes())
    for index in np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLES)).astype(int):
        for name, value in sorted(rows[int(index)].items()):
            digest.update(name.encode())
            digest.update(np.asarray(value).tobytes())
    return digest.hexdigest()


def check_folder(folder: Path, wanted: dict[str, Any], *, resume: bool) -> None:
    """Make sure that a folder is free for a run, or holds the same run; nothing is changed.

    Args:
        folder: The folder of the run; it may be missing.
        wanted: The identity of the run.
        resume: Whether a run that is there shall be continued.

    Raises:
        ConfigError: The folder is in use, or its run differs; the message names the difference.
        CheckpointError: It cannot be read.
    """
    path = folder / RUN
    with writing_errors(folder):
        if resume and path.is_file():
            _compare(_read(path), wanted, folder)
            return
        if folder.exists() and not (folder.is_dir() and all(map(_torn, folder.iterdir()))):
            remedy = "it holds no training run" if resume else "or continue its run with resume"
            raise ConfigError(f"folder must be new or empty; got {str(folder)!r}; {remedy}")


def begin(folder: Path, wanted: dict[str, Any]) -> None:
    """Take a folder for a run, unless the same run has it already.

    Args:
        folder: What :func:`check_folder` allowed, made if missing.
        wanted: The identity of the run.

    Raises:
        CheckpointError: It cannot be written.
    """
    path = folder / RUN
    if path.is_file():
        return
    with writing_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, wanted)


def _torn(path: Path) -> bool:
    """Return whether a killed :func:`begin` left this behind."""
    return is_leftover(path, RUN)


def _compare(stored: Any, wanted: dict[str, Any], folder: Path) -> None:
    before, now = dict(_flat(stored)), dict(_flat(wanted))
    for name in [*before, *now]:
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"{name} must be {before.get(name)!r}, as in the run in {str(folder)!r} that is "
                f"resumed; got {now.get(name)!r}; give the same, or another folder"
            )


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(name, value)]
    return [
        pair
        for key, inner in value.items()
        for pair in _flat(inner, f"{name}.{key}" if name else str(key))
    ]


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return what a finished run left behind; None if it is not finished.

    Args:
        folder: The folder of the run.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = folder / RESULT
    return _read(path) if path.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; start anew elsewhere") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object; got {type(content).__name__}")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of JSON as a whole.

    Args:
        path: Where; its folder exists.
        content: What.

    Raises:
        CheckpointError: It cannot be written, or holds a number that is not finite, which JSON
            does not have; nothing is left behind.
    """
    try:
        text = json.dumps(content, indent=2, allow_nan=False)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole: beside its place first, then renamed.

    Args:
        path: Where; its folder exists.
        text: What.

    Raises:
        CheckpointError: It cannot be written; nothing is left behind.
    """
    place = path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")
    with writing_errors(path):
        try:
            with place.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            place.replace(path)
        finally:
            place.unlink(missing_ok=True)
