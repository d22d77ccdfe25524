"""Model folders: written whole or not at all, and loaded for use."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from ropewalk.errors import CheckpointError
from ropewalk.models.file_errors import check_path, loading_errors, shown, writing_errors
from ropewalk.models.heads import RoFormerForMaskedLM

if TYPE_CHECKING:
    from collections.abc import Iterator


def load_masked_lm(folder: str | os.PathLike[str]) -> RoFormerForMaskedLM:
    """Load a masked language model for use.

    If a replacement of the folder was killed halfway, the old folder is put back first.

    Args:
        folder: Written by ropewalk, or by transformers' RoFormer.

    Returns:
        The model, in evaluation mode.

    Raises:
        CheckpointError: There is no such folder, or it does not hold such a model.
        ConfigError: Its config has a field that is unknown or out of range.
    """
    check_path(folder)
    with loading_errors(folder):
        path = Path(folder)
        _restore(path)
        if not path.is_dir():
            raise CheckpointError(
                f"{shown(path)} must be the folder of a saved model; there is no such folder"
            )
    model: RoFormerForMaskedLM = RoFormerForMaskedLM.from_pretrained(folder)
    return model


@contextmanager
def write_folder_atomically(
    folder: str | os.PathLike[str], *, replace: bool = False
) -> Iterator[Path]:
    """Give a temporary folder to write into, and put it in place once all is written.

    The temporary folder lies beside the target, on the same disk, and its content is flushed
    before it is renamed: whoever sees the target sees all of it. On any error it is removed. A
    killed process leaves it behind under its hidden name, never under the name of the target. Two
    renames replace a folder; if the process is killed between them, the next call, or the next
    :func:`load_masked_lm`, puts the old folder back.

    Args:
        folder: Where the result shall be. Its parents are made if missing.
        replace: Put the result in the place of an existing folder; else that is refused.

    Yields:
        The temporary folder.

    Raises:
        CheckpointError: The target exists, or writing failed: no space, a limit on the size of
            files, no permission.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "model"
        >>> with write_folder_atomically(target) as place:
        ...     _ = (place / "note").write_text("whole")
    """
    target = Path(folder)
    with writing_errors(target):
        _restore(target)
        if target.exists() and not (target.is_dir() and (replace or not any(target.iterdir()))):
            raise CheckpointError(
                f"{shown(target)} exists already; choose another folder"
                + (", or remove it" if target.is_dir() else "")
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        place = _beside(target, "partial")
        try:
            place.mkdir()
            yield place
            _flush(place)
            _put_in_place(place, target)
        except CheckpointError as error:
            # Whoever wrote knew only the temporary name.
            raise CheckpointError(str(error).replace(str(place), str(target))) from error
        finally:
            # Gone already after success.
            shutil.rmtree(place, ignore_errors=True)


def _flush(place: Path) -> None:
    """Make the disk hold what was written, files first, then the folders that name them."""
    for path in sorted(place.rglob("*"), reverse=True):
        if path.is_file() or path.is_dir():
            _sync(path)
    _sync(place)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _put_in_place(place: Path, target: Path) -> None:
    if not target.exists():
        place.rename(target)
    else:
        # A folder with content cannot be renamed over; step aside, and back if it fails.
        aside = _beside(target, "replaced")
        target.rename(aside)
        try:
            place.rename(target)
        except BaseException:
            aside.rename(target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    _sync(target.parent)


def _beside(target: Path, state: str) -> Path:
    return target.with_name(f".{target.name}.{uuid4().hex[:8]}.{state}")


def _written_for(path: Path, target_name: str, states: str) -> bool:
    name = rf"\.{re.escape(target_name)}\.[0-9a-f]{{8}}\.({states})"
    return re.fullmatch(name, path.name) is not None


def is_leftover(path: str | os.PathLike[str], target_name: str) -> bool:
    """Return whether a killed :func:`write_folder_atomically` left this, and nobody needs it.

    Args:
        path: A file or folder.
        target_name: Name, without its parents, of the folder that was being written beside it.

    Returns:
        True for the hidden names that are used for this target. False for everything else, and
        for a folder that stepped aside while the target is missing: it is the only copy.

    Example:
        >>> is_leftover(".model.0123abcd.partial", "model"), is_leftover(".model.old", "model")
        (True, False)
    """
    path = Path(path)
    if _written_for(path, target_name, "replaced"):
        return path.with_name(target_name).exists()
    return _written_for(path, target_name, "partial")


def _restore(target: Path) -> None:
    """Put back the folder that stepped aside for a replacement that never came."""
    if target.exists() or not target.parent.is_dir():
        return
    aside = [p for p in target.parent.iterdir() if _written_for(p, target.name, "replaced")]
    if aside:
        max(aside, key=lambda path: path.stat().st_mtime_ns).rename(target)
