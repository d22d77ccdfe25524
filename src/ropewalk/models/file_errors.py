"""Turn what other libraries raise about the files of a model into one line of ours."""

from __future__ import annotations

import os
import pickle
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError

from ropewalk.errors import CheckpointError, RopewalkError
from ropewalk.spec.checks import abridged

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def loading_errors(path: object) -> Iterator[None]:
    """Turn whatever damaged or missing files raise into one line.

    Args:
        path: What is being loaded, for the message.

    Raises:
        CheckpointError: The block raised any error but those of ropewalk and of full memory.
    """
    try:
        yield
    except (RopewalkError, MemoryError, torch.OutOfMemoryError):
        raise
    except (pickle.UnpicklingError, EOFError) as error:
        # torch's own message recommends to load such a file by running its code.
        raise CheckpointError(
            f"{shown(path)} cannot be loaded: its .bin file is damaged, or holds more than tensors"
        ) from error
    except Exception as error:
        # Nobody can list what parsers and loaders raise for files that are not what they expect.
        raise CheckpointError(f"{shown(path)} cannot be loaded: {reason(error)}") from error


@contextmanager
def writing_errors(path: object) -> Iterator[None]:
    """Turn errors of writing weights and configs into one line.

    Args:
        path: What is being written, for the message.

    Raises:
        CheckpointError: The file system refused, e.g. because it is full, or because no file can
            have such a name.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{shown(path)} cannot be written: {reason(error)}") from error
    except ValueError as error:
        # What Python says of a zero byte in a path.
        if "embedded null" not in str(error):
            raise
        raise CheckpointError(f"{shown(path)} cannot be written: {reason(error)}") from error
    except RuntimeError as error:
        # torch.save reports a failed write under this general class, without a reason.
        if not any(mark in str(error) for mark in ("PytorchStreamWriter", "inline_container.cc")):
            raise
        raise CheckpointError(
            f"{shown(path)} cannot be written: a file came out short; is the disk full, or the "
            "size of files limited?"
        ) from error


def check_path(path: object) -> None:
    """Refuse what cannot be the path of a model folder.

    Args:
        path: What a caller gave as one.

    Raises:
        CheckpointError: Neither a string nor a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(
            f"the folder of a saved model must be a string or a path; got {abridged(path)}"
        )


def check_exists(path: str | os.PathLike[str] | None) -> None:
    """Refuse an absolute path where nothing is; a relative one may be a name on the hub.

    Args:
        path: Where a model is to be read.

    Raises:
        CheckpointError: The path does not exist.
        OSError: The path is longer than the system allows.
    """
    if path is not None and Path(path).is_absolute() and not Path(path).exists():
        raise CheckpointError(
            f"{shown(path)} must be the folder of a saved model; it does not exist"
        )


def shown(path: object) -> str:
    """Return a path as it can stand in a message of one line.

    Args:
        path: Any path, or what was given as one.
    """
    return _one_line(str(path))


def reason(error: BaseException) -> str:
    """Return the class of an error and the first line of its message.

    Args:
        error: Raised by another library.
    """
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {_one_line(lines[0])}"


def _one_line(text: str, limit: int = 300) -> str:
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
