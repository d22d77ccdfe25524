"""From names on disk to documents: folders, globs, plain text, JSON lines, gzip.

Only files are known here; what a corpus is comes in `ropewalk.data.corpus`.
"""

from __future__ import annotations

import glob
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from ropewalk.errors import ConfigError, DataError, RopewalkError


def given_path(name: str, value: str | Path, *, error: type[RopewalkError] = ConfigError) -> Path:
    """Return a path as the user wrote it, with ``~`` as the home, or refuse what cannot be one.

    Args:
        name: The argument, for the message.
        value: The path; nothing needs to be there.
        error: What to raise.

    Raises:
        RopewalkError: It is empty or no path, its user is unknown, or it is too long to exist.

    Example:
        >>> given_path("output", "runs/mine").name
        'mine'
    """
    kind: object = value
    if not isinstance(kind, str | Path) or not str(kind):
        raise error(f"{name} must be the path of a file or folder; got {kind!r:.80}; name one")
    try:
        path = Path(value).expanduser()
        path.exists()
        path.resolve()
    except (OSError, RuntimeError, ValueError) as problem:
        # RuntimeError: an unknown user, links in a circle; ValueError: a NUL inside.
        reason = getattr(problem, "strerror", None) or str(problem)
        raise error(
            f"{name}: cannot look at {str(value)[:200]!r}: {reason[:200]}; name another path"
        ) from problem
    return path


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """Return the files that the sources name, in a fixed order, each once.

    A folder gives every visible file below it, sorted by path; names that begin with a dot are
    passed over, and links are followed, into each folder once. A glob gives the files it
    matches, sorted, and opens no folder by itself. The order of the sources is kept.

    Args:
        sources: Files, folders and globs (``*``, ``?``, ``[...]``, ``**``); ``~`` is the home.

    Returns:
        Paths of regular files; a file named twice comes once.

    Raises:
        DataError: A source is missing, matches nothing, or is a folder without files.
    """
    if not sources:
        raise DataError("sources must name at least one file, folder or glob; got none")
    found: dict[Path, Path] = {}
    for source in sources:
        for path in _expand(source):
            try:
                found.setdefault(path.resolve(), path)
            except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
                raise DataError(f"sources: cannot follow {str(path)[:200]!r}: {error}") from error
    return list(found.values())


def _expand(source: str | Path) -> list[Path]:
    path = given_path("sources", source, error=DataError)
    if path.is_dir():
        return _files_below(path) or _refuse(source, "is a folder without files to read")
    if path.exists():
        return [path]
    if not glob.has_magic(str(path)):
        _refuse(source, "does not exist; check the spelling and the working folder")
    # Path.glob refuses absolute patterns.
    matches = map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207
    return [match for match in matches if match.is_file()] or _refuse(
        source, "matches no file; end the glob with '/**' to descend into folders"
    )


def _refuse(source: str | Path, fault: str) -> NoReturn:
    raise DataError(f"sources: {str(source)[:200]!r} {fault}")


def _files_below(folder: Path) -> list[Path]:
    files = []
    seen: set[tuple[int, int]] = set()
    for parent, folders, names in os.walk(folder, onerror=_refuse_folder, followlinks=True):
        status = Path(parent).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link to where we have been
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(parent) / name for name in names if not name.startswith(".")]
    return sorted(files)


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"sources: cannot list {error.filename!r}: {error.strerror}") from error


def read_documents(path: Path, *, field: str) -> Iterator[str]:
    """Yield the documents of one file, without those that are only white space.

    ``.jsonl`` gives one document a line; any other file is one document. A further ``.gz`` at the
    end of the name is unpacked on the way. Text is UTF-8, with or without a byte order mark; the
    line ends of all systems are read as one newline.

    Args:
        path: The file.
        field: Key of the text in the objects of a ``.jsonl`` file.

    Yields:
        Texts with at least one visible character.

    Raises:
        DataError: The file cannot be read, is not text, or a line is not what it should be.
    """
    if not path.is_file():
        raise DataError(f"sources must be regular files; got {str(path)!r}, which is not one")
    name = path.name.lower()
    with _opened(path, packed=name.endswith(".gz")) as stream:
        if name.removesuffix(".gz").endswith(".jsonl"):
            yield from _json_lines(path, stream, field)
        else:
            text = _decode(path, stream.read())
            if text.strip():
                yield text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def _opened(path: Path, *, packed: bool) -> Iterator[BinaryIO]:
    try:
        with cast("BinaryIO", gzip.open(path) if packed else path.open("rb")) as stream:
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: the gzip file is damaged or is no gzip ({error}); make it again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decode(where: Path | str, raw: bytes) -> str:
    """Decode UTF-8 text, refusing what is not text; ``where`` begins the message."""
    place = raw.find(b"\0")
    if place >= 0:
        raise DataError(
            f"{where}: not a text file (NUL byte at offset {place}); "
            "name the text files alone, for instance with a glob such as 'folder/**/*.txt'"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 text (byte 0x{raw[error.start]:02x} at offset {error.start}); "
            "convert it to UTF-8 or leave it out"
        ) from error


def _json_lines(path: Path, stream: BinaryIO, field: str) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            text = _json_text(f"{path}:{number}", line, field)
            if text.strip():
                yield text


def _json_text(where: str, line: bytes, field: str) -> str:
    try:
        row = json.loads(_decode(where, line))
    except (ValueError, RecursionError) as error:  # ValueError: numbers of thousands of digits too
        raise DataError(f"{where}: not a line of JSON ({error}); repair or remove it") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a line must be a JSON object; got {type(row).__name__}")
    if field not in row:
        raise DataError(
            f"{where}: field {field!r} is missing; the line has {', '.join(map(repr, row))}; "
            "name the one with the text"
        )
    text = row[field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {field!r} must be a string; got {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: field {field!r} has half a surrogate pair ({text[error.start]!r}); "
            "repair or remove the line"
        ) from error
    return text
