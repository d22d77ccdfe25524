"""Output folders of whole recipes: never mixed with other files, never deleted by mistake."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk._version import __version__
from ropewalk.errors import ConfigError
from ropewalk.models.exchange import writing_errors
from ropewalk.recipes.runs import is_free, is_leftover, write_text

if TYPE_CHECKING:
    from collections.abc import Collection

MARKER = ".ropewalk"
"""File by which a folder of ours is known; its first word is the recipe."""


def check_output(
    folder: str | Path, recipe: str, contents: Collection[str], *, resume: bool, overwrite: bool
) -> Path:
    """Return the folder if a recipe may write there; nothing is changed yet.

    Args:
        folder: Where the results shall be.
        recipe: Name of the recipe, which its folders are marked with.
        contents: Names of all files and folders that the recipe writes.
        resume: Whether results of the same recipe may be there and will be continued.
        overwrite: Whether they may be there and will be deleted.

    Raises:
        ConfigError: Both are asked for; something is there that may not be; the recipe's own
            results are there and neither is asked for.
        CheckpointError: The folder cannot be looked into.
    """
    target = Path(folder).expanduser()
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other; got both; choose one")
    with writing_errors(target):
        if not is_free(target):
            _check_occupied(target, recipe, contents, resume=resume, overwrite=overwrite)
    return target


def _check_occupied(
    target: Path, recipe: str, contents: Collection[str], *, resume: bool, overwrite: bool
) -> None:
    where = f"output {str(target)!r}"
    if not target.is_dir():
        raise ConfigError(f"{where} must be a folder; it is a file; choose another")
    marker = target / MARKER
    words = marker.read_text(encoding="utf-8", errors="replace").split() if marker.is_file() else []
    if words[:1] != [recipe]:
        raise ConfigError(
            f"{where} is not empty and not made by ropewalk {recipe}; choose another folder"
        )
    if overwrite:
        present = {path.name for path in target.iterdir() if not is_leftover(path)}
        foreign = sorted(present - {MARKER, *contents})
        if foreign:
            raise ConfigError(
                f"{where} holds {foreign[0]!r}, which is not a result; move it away before it is "
                "overwritten"
            )
    elif not resume:
        raise ConfigError(
            f"{where} holds results already; continue them with resume (--resume), replace them "
            "with overwrite (--overwrite), or choose another folder"
        )


def open_output(target: Path, recipe: str, contents: Collection[str], *, overwrite: bool) -> None:
    """Make the folder, emptied if it is to be overwritten, and mark it as the recipe's.

    What a killed writer left is removed in any case.

    Args:
        target: What :func:`check_output` returned.
        recipe: As there.
        contents: As there.
        overwrite: As there.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    with writing_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        for path in list(target.iterdir()):
            if is_leftover(path) or (overwrite and path.name in contents):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
    write_text(target / MARKER, f"{recipe} {__version__}\n")
