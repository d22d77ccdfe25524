"""Read and write the header of a safetensors file, so that tensors can be streamed past it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.errors import CheckpointError
from ropewalk.spec import checks

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import NDArray

_LONGEST_HEADER = 100_000_000  # the format's own bound
ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes per element of the types whose rows can be moved without a look at their scales."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the end of the header."""
    stop: int


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file by its header."""

    path: Path
    entries: tuple[TensorEntry, ...]
    """In the order of their bytes."""
    metadata: Mapping[str, str]
    data_start: int

    def rows(self, entry: TensorEntry, first: int, count: int) -> NDArray[np.float64]:
        """Return some rows of a tensor in float64, shape ``(count, columns)``.

        Args:
            entry: A tensor of this file, of a type in :data:`ITEM_SIZES`.
            first: First row.
            count: How many.
        """
        columns = math.prod(entry.shape[1:])
        size = columns * ITEM_SIZES[entry.dtype]
        with self.path.open("rb") as file:
            file.seek(self.data_start + entry.start + first * size)
            data = file.read(count * size)
        if entry.dtype == "BF16":
            wide = np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16
            values = wide.view(np.float32).astype(np.float64)
        else:
            kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[entry.dtype]
            values = np.frombuffer(data, dtype=kind).astype(np.float64)
        return values.reshape(count, columns)


def read_header(path: str | os.PathLike[str]) -> TensorFile:
    """Read the header of a safetensors file and check that it covers the file.

    Args:
        path: The file.

    Raises:
        CheckpointError: Not such a file, or damaged.
    """
    path = Path(path)
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_LONGEST_HEADER, size - 8):
            raise CheckpointError(f"{str(path)!r} must be a safetensors file; its header is cut")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"the header of {str(path)!r} must be JSON; {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"the header of {str(path)!r} must be a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(
            f"__metadata__ of {str(path)!r} must hold strings; got {checks.abridged(metadata)}"
        )
    entries = [_entry(name, value, path) for name, value in header.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    end = 0
    for entry in entries:
        if entry.start != end:
            raise CheckpointError(f"tensors of {str(path)!r} must follow one another: {entry.name}")
        end = entry.stop
    if end != size - 8 - length:
        raise CheckpointError(
            f"{str(path)!r} must hold {end} bytes of tensors; it is cut or padded"
        )
    return TensorFile(path, tuple(entries), metadata, 8 + length)


def header_bytes(entries: tuple[TensorEntry, ...], metadata: Mapping[str, str]) -> bytes:
    """Return the header for tensors that keep their order.

    Args:
        entries: The tensors.
        metadata: Strings by name.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    for entry in entries:
        offsets = [entry.start, entry.stop]
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object whose keys are given once, as the format demands."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _entry(name: str, value: object, path: Path) -> TensorEntry:
    try:
        assert isinstance(value, dict)
        assert name.isprintable()  # since messages name it
        shape = tuple(checks.integer("shape", n, at_least=0) for n in value["shape"])
        start, stop = (checks.integer("data_offsets", n, at_least=0) for n in value["data_offsets"])
        entry = TensorEntry(name, str(value["dtype"]), shape, start, stop)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{str(path)!r} must describe tensor {checks.abridged(name)} by dtype, shape and "
            f"data_offsets; got {checks.abridged(value)}"
        ) from error
    size = ITEM_SIZES.get(entry.dtype)
    fits = size is None or math.prod(shape) * size == stop - start
    if stop < start or not fits:
        raise CheckpointError(f"tensor {name} of {str(path)!r} must have the size of its shape")
    return entry
