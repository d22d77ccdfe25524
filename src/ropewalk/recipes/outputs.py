"""Output folders of whole recipes: never mixed with other files, never deleted by mistake."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ropewalk._version import __version__
from ropewalk.data.files import find_files, given_path
from ropewalk.errors import ConfigError, DataError
from ropewalk.models.checkpoints import is_leftover
from ropewalk.models.file_errors import writing_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

MARKER = ".ropewalk"
"""File by which a folder of ours is known; its first word is the recipe."""

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
"""Patterns of the files of a saved model with its tokenizer."""

_CHECKPOINT_FILES = (
    *MODEL_FILES,
    "manifest.json",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "trainer_state.json",
    "running_loss.json",
)


def under(folder: str, patterns: Collection[str]) -> tuple[str, ...]:
    """Return patterns of files in a folder.

    Args:
        folder: Pattern of the folder.
        patterns: Patterns of files in it.

    Example:
        >>> under("model", ["*.json"])
        ('model/*.json',)
    """
    return tuple(f"{folder}/{pattern}" for pattern in patterns)


TRAINING_FILES = (
    "run.json",
    "result.json",
    "tensorboard/events.out.tfevents.*",
    *under("checkpoints/checkpoint-[0-9]*", _CHECKPOINT_FILES),
)
"""Patterns of the files of a training run."""


def check_output(
    folder: str | Path,
    recipe: str,
    contents: Collection[str],
    *,
    resume: bool,
    overwrite: bool,
    sources: Sequence[str] = (),
) -> Path:
    """Return the folder if a recipe may write there; nothing is changed yet.

    Args:
        folder: Where the results shall be.
        recipe: Name of the recipe, which its folders are marked with.
        contents: Patterns of all files that the recipe writes, relative to the folder.
        resume: Whether results of the same recipe may be there and will be continued.
        overwrite: Whether they may be there and will be deleted.
        sources: Files, folders and globs that the recipe reads, which may not lie in the folder
            nor around it.

    Raises:
        ConfigError: Both are asked for; something is there that may not be; the recipe's own
            results are there and neither is asked for; another process writes there; a source
            and the folder contain each other.
        CheckpointError: The folder cannot be looked into.
        DataError: A source does not exist.
    """
    target = given_path("output", folder)
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other; got both; choose one")
    _check_sources(target, sources)
    with writing_errors(target):
        if not _is_free(target, contents):
            _check_occupied(target, recipe, contents, resume=resume, overwrite=overwrite)
            handle = os.open(target / MARKER, os.O_RDONLY)
            try:  # reading a long text first would be a waste
                _lock(handle, target)
            finally:
                os.close(handle)
    return target


@contextmanager
def open_output(
    target: Path,
    recipe: str,
    contents: Collection[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[None]:
    """Make the folder, emptied if it is to be overwritten, and hold it for this process alone.

    The lock ends with the process, whatever it dies of. What a killed writer left is removed in
    any case; what the recipe does not write is never touched.

    Args:
        target: What :func:`check_output` returned.
        recipe: As there.
        contents: As there.
        resume: As there.
        overwrite: As there.

    Raises:
        ConfigError: Another process came first.
        CheckpointError: The folder cannot be written.
    """
    with ExitStack() as stack:
        with writing_errors(target):
            target.mkdir(parents=True, exist_ok=True)
            # The marker is never replaced, since a lock belongs to the file and not to its name.
            handle = os.open(target / MARKER, os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, handle)
            _lock(handle, target)
            # Another process may have come and gone since the first look.
            if not _is_free(target, contents):
                _check_occupied(target, recipe, contents, resume=resume, overwrite=overwrite)
            _remove(target, contents, results=overwrite)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{recipe} {__version__}\n".encode(), 0)
        yield


def _check_sources(target: Path, sources: Sequence[str]) -> None:
    if not sources:
        return
    place = target.resolve()
    for source in sources:
        folder = given_path("sources", source, error=DataError).resolve()
        if folder.is_dir() and place.is_relative_to(folder):
            raise ConfigError(
                f"output {str(target)!r} must not lie in the source {source!r}, whose text it "
                "would add to; choose a folder elsewhere"
            )
    for path in find_files(sources):
        if path.resolve().is_relative_to(place):
            raise ConfigError(
                f"sources must not lie in the output folder; got {str(path)!r} in "
                f"{str(target)!r}; move one of them, or name the files to read"
            )


def _is_free(target: Path, contents: Collection[str]) -> bool:
    """Return whether there is nothing yet, but for what a killed writer may have left."""
    if not target.exists():
        return True
    return target.is_dir() and all(
        _is_temporary(path, target, contents)
        or (path.name == MARKER and path.is_file() and not path.stat().st_size)
        for path in target.iterdir()
    )


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
    if not (resume or overwrite):
        raise ConfigError(
            f"{where} holds results already; continue them with resume (--resume), replace them "
            "with overwrite (--overwrite), or choose another folder"
        )
    for path, kind in _entries(target, contents):
        # Continuing replaces whole folders of results, but nothing beside them.
        if kind == "foreign" and (overwrite or path.parent != target):
            raise ConfigError(
                f"{where} holds {path.relative_to(target).as_posix()!r}, which is not a result; "
                "move it away before results are replaced"
            )


def _entries(target: Path, contents: Collection[str]) -> Iterator[tuple[Path, str]]:
    """Yield what is in the folder, and whether it is a "result", a "leftover" or "foreign".

    Folders that may hold results are not yielded themselves; links are not followed.
    """
    parents = _folders(contents)
    for place, folders, files in os.walk(target):
        descend = []
        for name in [*folders, *files]:
            path = Path(place) / name
            inner = path.relative_to(target).as_posix()
            is_folder = name in folders and not path.is_symlink()
            if _is_temporary(path, target, contents):
                # A folder that stepped aside for a replacement that never came is the only copy.
                leftover = is_leftover(path, _written_name(path))
                yield path, "leftover" if leftover else "result"
            elif is_folder and _matches(inner, parents):
                descend.append(name)
            elif inner != MARKER:
                ours = not is_folder and _matches(inner, contents)
                yield path, "result" if ours else "foreign"
        folders[:] = descend


def _is_temporary(path: Path, target: Path, contents: Collection[str]) -> bool:
    """Return whether a name is one under which one of the results is written or put aside."""
    name = _written_name(path)
    written = path.with_name(name).relative_to(target).as_posix() if name else ""
    known = _matches(written, {*contents, *_folders(contents)})
    return known and is_leftover(path.with_suffix(".partial"), name)


def _written_name(path: Path) -> str:
    """Return "model" for ".model.0123abcd.partial"."""
    return path.name[1:].rsplit(".", 2)[0]


def _folders(contents: Collection[str]) -> set[str]:
    return {str(parent) for entry in contents for parent in PurePosixPath(entry).parents} - {"."}


def _matches(name: str, patterns: Collection[str]) -> bool:
    # A leading slash makes the pattern hold for the whole path, one part of it for one part.
    return any(PurePosixPath(f"/{name}").match(f"/{pattern}") for pattern in patterns)


def _remove(target: Path, contents: Collection[str], *, results: bool) -> None:
    """Remove leftovers, and results if asked, then the folders that this has emptied."""
    kinds = {"leftover", "result"} if results else {"leftover"}
    emptied: set[Path] = set()
    for path in [path for path, kind in _entries(target, contents) if kind in kinds]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        emptied.update(place for place in path.parents if target in place.parents)
    for folder in sorted(emptied, key=lambda place: len(place.parts), reverse=True):
        with suppress(OSError):  # it holds something else too
            folder.rmdir()


def _lock(handle: int, target: Path) -> None:
    """Take the lock of a folder, or refuse it; without the system's help nothing is locked."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"output {str(target)!r} is in use by another process of ropewalk; wait for its end, "
            "or choose another folder"
        ) from error
