"""Corpora: immutable collections of documents, where they come from and how they are split.

A document is the unit that nothing crosses: not the split, and not the attention of a packed
block. Importing this file loads the standard library alone.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import platform
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.data.files import find_files, given_path, read_documents
from ropewalk.data.text import check_documents
from ropewalk.errors import ConfigError, DataError

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_STATEMENT_LISTS = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Corpus:
    """Hold documents and the name to show for them.

    Args:
        documents: The texts, each one document.
        name: Where they came from, for reports.

    Raises:
        DataError: There is no document, or one is not a string or only white space.

    Example:
        >>> Corpus(("one text", "another"), name="two texts").fingerprint[:8]
        '86c69bc9'
    """

    documents: tuple[str, ...]
    """The texts in a fixed order."""
    name: str
    """What reports call this corpus."""

    def __post_init__(self) -> None:
        documents = check_documents(self.documents)
        for number, text in enumerate(documents):
            if not text.strip():
                raise DataError(
                    f"documents must not be blank; got documents[{number}]={text!r:.40}; "
                    "leave it out"
                )
        object.__setattr__(self, "documents", documents)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the documents and the borders between them, as 64 hexadecimal digits."""
        digest = hashlib.sha256()
        for document in self.documents:
            raw = document.encode()
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
        return digest.hexdigest()


def embedded_corpus() -> Corpus:
    """Return the English text that comes with Python: docstrings and the help topics.

    Every distinct docstring of the standard library and every topic of ``help()``, sorted: about
    8,300 documents and 2.2 million characters under the PSF licence. Nothing is downloaded; the
    text differs a little from one Python version to the next. The first call takes seconds.

    Returns:
        The corpus, the same object at every call of one process.

    Raises:
        DataError: This Python was installed without the sources of its standard library.
    """
    return _embedded_corpus()


@functools.cache
def _embedded_corpus() -> Corpus:
    documents = set(_help_topics())
    for path in _library_files():
        documents.update(_docstrings(path))
    if not documents:
        raise DataError(
            f"the standard library below {sysconfig.get_path('stdlib')!r} has no source files; "
            "name your own text files instead of the embedded corpus"
        )
    return Corpus(tuple(sorted(documents)), name=f"Python {platform.python_version()} docstrings")


def _help_topics() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions package it apart
        return
    yield from topics.values()


def _library_files() -> Iterator[Path]:
    for parent, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]
        yield from (Path(parent) / name for name in names if name.endswith(".py"))


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules are not our business
        try:
            module = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):  # templates and files in other encodings
            return
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text
        # Statements alone can hold definitions; expressions are most of the tree.
        for name in _STATEMENT_LISTS:
            children = getattr(node, name, None)
            if isinstance(children, list):
                waiting.extend(children)


def read_corpus(sources: str | Path | Sequence[str | Path], *, field: str = "text") -> Corpus:
    """Read text files, folders and globs into one corpus.

    A ``.jsonl`` file gives one document a line, any other file is one document (blank lines do
    not divide it); either may be compressed as ``.gz``. A folder gives every visible file below
    it. Files without text add nothing.

    Args:
        sources: Files, folders and globs, read in this order.
        field: Key of the text in the objects of ``.jsonl`` files.

    Returns:
        The corpus, named after its sources.

    Raises:
        DataError: A source is missing, not text, damaged, lacks the field, or all are empty.

    Example:
        >>> len(read_corpus(__file__).documents)  # any text file
        1
    """
    kind: object = sources
    if not isinstance(kind, str | Path | Sequence):
        raise DataError(
            f"sources must be a path or a list of paths; got {kind!r:.80}; name files or folders"
        )
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    documents = [text for path in find_files(given) for text in read_documents(path, field=field)]
    shown = ", ".join(map(str, given[:3])) + (f" and {len(given) - 3} more" if given[3:] else "")
    if not documents:
        raise DataError(f"sources must hold some text; got {shown}, which is empty")
    return Corpus(tuple(documents), name=shown)


def load_hub_dataset(name: str, *, split: str = "train", field: str = "text") -> Corpus:
    """Load one column of a `datasets` data set as a corpus, from the hub or from a folder.

    Args:
        name: ``NAME`` or ``NAME:config`` on the hub, a folder of data files, or a folder written
            by ``save_to_disk``.
        split: Which split to read.
        field: The column with the text; rows that are only white space are left out.

    Returns:
        The corpus, one document a row.

    Raises:
        DataError: The data set, the configuration, the split or the column does not exist, or
            the rows are not text.
        ImportError: The package `datasets` is not installed.

    References:
        huggingface/datasets, "Load" (``load_dataset`` and ``load_from_disk``).
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError("hub data sets need datasets: pip install 'ropewalk[train]'") from error
    try:
        rows: Any = _open_dataset(datasets, name, split)
    except DataError:
        raise
    except Exception as error:  # each storage backend behind the hub raises classes of its own
        raise DataError(
            f"dataset: cannot load {name!r}, split {split!r}: {_one_line(error)}"
        ) from error
    if field not in rows.column_names:
        raise DataError(
            f"dataset {name!r} has no column {field!r}; "
            f"it has {', '.join(map(repr, rows.column_names))}; name the one with the text"
        )
    documents = []
    for number, text in enumerate(rows[field]):
        if not isinstance(text, str):
            raise DataError(
                f"dataset {name!r}: column {field!r} must hold strings; "
                f"got {text!r:.60} in row {number}; name another column"
            )
        if text.strip():
            documents.append(text)
    if not documents:
        raise DataError(f"dataset {name!r}: column {field!r} of split {split!r} holds no text")
    return Corpus(tuple(documents), name=f"{name} ({split})")


def _open_dataset(datasets: Any, name: str, split: str) -> Any:
    path = given_path("dataset", name, error=DataError)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        saved = datasets.load_from_disk(str(path))
        if isinstance(saved, datasets.DatasetDict):
            if split not in saved:
                raise DataError(f"dataset {name!r} has no split {split!r}; it has {list(saved)}")
            return saved[split]
        if split != (own := str(saved.split or "train")):
            raise DataError(f"dataset {name!r} has the split {own!r} alone; got split {split!r}")
        return saved
    if path.is_dir():
        return datasets.load_dataset(str(path), split=split)
    base, _, config = name.partition(":")
    return datasets.load_dataset(base, config or None, split=split)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def split_documents(
    corpus: Corpus, *, validation_fraction: float = 0.1, seed: int = 0
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    r"""Split a corpus into training and validation documents, the same way every time.

    Documents are drawn by a hash of their text and the seed, so the split depends neither on
    their order nor on the version of a random generator, and equal texts never fall on both
    sides. A corpus of one single document is cut instead: its last part, from the nearest
    earlier paragraph, line or word border, is the validation text, whatever the seed.

    Args:
        corpus: What to split.
        validation_fraction: Share of the distinct documents to hold out, in (0, 1); at least one
            document goes to each side.
        seed: Any whole number; another one draws other documents.

    Returns:
        Training and validation documents, each in the order of the corpus.

    Raises:
        ConfigError: The fraction is outside (0, 1).
        DataError: The only document is too short to cut.

    Example:
        >>> split_documents(Corpus(("One two.\n\nThree.",), "x"), validation_fraction=0.5)
        (('One two.',), ('\n\nThree.',))
    """
    kind: object = validation_fraction
    if isinstance(kind, bool) or not isinstance(kind, int | float) or not 0 < kind < 1:
        raise ConfigError(
            "validation_fraction must be between 0 and 1, both excluded; "
            f"got validation_fraction={validation_fraction!r}"
        )
    distinct = sorted(set(corpus.documents), key=functools.partial(_draw, seed=seed))
    if len(distinct) == 1:
        return _cut_document(distinct[0], validation_fraction)
    count = min(max(1, round(validation_fraction * len(distinct))), len(distinct) - 1)
    held_out = set(distinct[:count])
    train = tuple(text for text in corpus.documents if text not in held_out)
    validation = tuple(text for text in corpus.documents if text in held_out)
    return train, validation


def _draw(text: str, seed: int) -> bytes:
    return hashlib.blake2b(text.encode(), key=str(seed).encode()[:64], digest_size=16).digest()


def _cut_document(text: str, fraction: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Cut one text near ``1 - fraction``, at the best border a little before that place."""
    end = len(text) - round(fraction * len(text))
    reach = max(0, end - round(0.1 * fraction * len(text)) - 1)
    borders = (text.rfind(border, reach, end + len(border)) for border in ("\n\n", "\n", " "))
    cut = next((place for place in borders if place > 0), end)
    head, tail = text[:cut], text[cut:]
    if not (head.strip() and tail.strip()):
        raise DataError(
            f"corpus: its only document has {len(text)} characters, too few to cut "
            f"validation_fraction={fraction} from it; give more documents"
        )
    return (head,), (tail,)
