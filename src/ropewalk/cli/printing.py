"""Print lines and tables: with rich on a terminal, as plain text when piped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Printer(Protocol):
    """Where a report goes."""

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line."""

    def table(self, rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        """Print rows, the first of which is the head; columns in right are flush right."""


def printer() -> Printer:
    """Return the printer for the standard output as it is."""
    return _Rich() if sys.stdout.isatty() else _Plain()


class _Plain:
    """No colours, no wrapping, no import of rich, which takes longer than most reports."""

    def line(self, text: str = "", *, style: str | None = None) -> None:  # noqa: ARG002
        print(text)

    def table(self, rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())


class _Rich:
    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False)

    def line(self, text: str = "", *, style: str | None = None) -> None:
        self.console.print(text, markup=False, style=style)

    def table(self, rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(rows[0]):
            table.add_column(name, justify="right" if i in right else "left")
        for row in rows[1:]:
            table.add_row(*map(Text, row))
        self.console.print(table)
