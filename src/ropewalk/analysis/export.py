"""Write figures and their data: both files whole, or neither."""

from __future__ import annotations

import csv
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from ropewalk.analysis.rotation_curves import Curves

PICTURES = (".png", ".svg", ".pdf")
"""Endings of the pictures that can be written."""
DATA = ".csv"
"""Ending of the data."""


def files_of(out: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Return the files that are written for ``out``: a picture and its data, or data alone.

    Args:
        out: A name ending in .png, .svg, .pdf or .csv.
        overwrite: Whether present files are replaced.

    Raises:
        ConfigError: Another ending, or a file that is there already.

    Example:
        >>> [path.name for path in files_of("nowhere/ladder.svg")]
        ['ladder.svg', 'ladder.csv']
    """
    path = Path(out)
    ending = path.suffix.lower()
    if ending not in (*PICTURES, DATA):
        raise ConfigError(
            f"out must end in {', '.join(PICTURES)}, or in {DATA} for the data alone; "
            f"got {str(path)!r}"
        )
    files = (path,) if ending == DATA else (path, path.with_suffix(DATA))
    for file in files:
        with suppress(OSError):  # then writing it says why
            if file.is_dir() or (file.exists() and not overwrite):
                kind = "a folder" if file.is_dir() else "overwritten only if told so (--overwrite)"
                raise ConfigError(f"out must not be a file in use; {str(file)!r} is {kind}")
    return files


def curves_csv(curves: Curves) -> str:
    r"""Return curves as CSV: a row per point, with the name of its curve before its columns.

    Numbers are written with the digits that give the same float64 back; infinity is ``inf``.

    Args:
        curves: Columns by curve, the same ones for every curve.

    Example:
        >>> import numpy as np
        >>> curves_csv({"rope": {"pair": np.array([0]), "factor": np.array([0.1])}})
        'curve,pair,factor\nrope,0,0.1\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["curve", *next(iter(curves.values()), {})])
    for name, columns in curves.items():
        values = (column.tolist() for column in columns.values())
        writer.writerows([name, *row] for row in zip(*values, strict=True))
    return text.getvalue()


def write_curves(
    curves: Curves, out: str | os.PathLike[str], *, overwrite: bool = False
) -> tuple[Path, ...]:
    """Write curves as a CSV file.

    Args:
        curves: As in :func:`curves_csv`.
        out: A name ending in .csv.
        overwrite: Whether a present file is replaced.

    Returns:
        The path, alone.

    Raises:
        ConfigError: Another ending, a file that is there already, or one that cannot be written.
    """
    files = files_of(out, overwrite=overwrite)
    if len(files) > 1:
        raise ConfigError(f"out must end in {DATA} for the data alone; got {str(out)!r}")
    _write_whole({files[0]: _encoded(curves)})
    return files


def write_figure(
    figure: Figure, curves: Curves, out: str | os.PathLike[str], *, overwrite: bool = False
) -> tuple[Path, ...]:
    """Write a figure, and the data that it draws as CSV beside it.

    Args:
        figure: A figure of `plots`.
        curves: Its data.
        out: A name ending in .png, .svg or .pdf; the data go beside it, ending in .csv.
        overwrite: Whether present files are replaced.

    Returns:
        The paths of the picture and of the data.

    Raises:
        ConfigError: Another ending, a file that is there already, or one that cannot be written.
    """
    from ropewalk.analysis.figure_style import figure_bytes

    files = files_of(out, overwrite=overwrite)
    form: Any = files[0].suffix.lower().removeprefix(".")
    if len(files) < 2:
        raise ConfigError(f"out must end in {', '.join(PICTURES)}; got {str(out)!r}")
    _write_whole({files[0]: figure_bytes(figure, form), files[1]: _encoded(curves)})
    return files


def _encoded(curves: Curves) -> bytes:
    # A name may come from a file whose name is no text.
    return curves_csv(curves).encode("utf-8", "backslashreplace")


def _write_whole(files: Mapping[Path, bytes]) -> None:
    """Write every file under a hidden name first, and give them their names when all are there."""
    written: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            place = path.with_name(f".{uuid4().hex}.partial")
            written[place] = path
            place.write_bytes(content)
        for place, path in written.items():
            place.replace(path)
    except OSError as error:
        raise ConfigError(
            f"out must be a file that can be written; got {str(path)!r}: {error.strerror or error}"
        ) from error
    finally:
        for place in written:
            with suppress(OSError):
                place.unlink(missing_ok=True)
