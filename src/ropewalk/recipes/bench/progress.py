"""What a benchmark shows while it runs: a bar on a terminal, a line per finished part anywhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Show:
    """A bar over all parts of a benchmark, on the standard error stream.

    Args:
        parts: How many parts there are.
        shown: Whether anything is shown at all.
    """

    def __init__(self, parts: int, *, shown: bool) -> None:
        self._console = Console(
            stderr=True, quiet=not shown, markup=False, emoji=False, highlight=False, soft_wrap=True
        )
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=parts)
        self._done = 0

    def __enter__(self) -> Show:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line.

        Args:
            text: The line.
        """
        self._console.print(text)

    def now(self, text: str, share: float = 0.0) -> None:
        """Say what is going on.

        Args:
            text: What.
            share: How much of the current part is done, 0 to 1.
        """
        self._bar.update(self._task, description=text, completed=self._done + share)

    def done(self, text: str) -> None:
        """Count one part as done and print a line about it.

        Args:
            text: The line.
        """
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        self.say(text)
