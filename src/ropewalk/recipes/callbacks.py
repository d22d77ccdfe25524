"""What happens between steps: when to log, evaluate and save, what to show, and Ctrl-C."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from transformers import TrainerCallback
from transformers.utils import logging as transformers_logging

from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from ropewalk.recipes.training import TrainingSettings


def plain_console(*, shown: bool) -> Console:
    """Return a console on the standard error stream that prints text as it is.

    Names of files may look like the markup that a console would act on.

    Args:
        shown: Whether anything is shown at all.
    """
    return Console(
        stderr=True, quiet=not shown, markup=False, emoji=False, highlight=False, soft_wrap=True
    )


class Pace(TrainerCallback):
    """Decide after each step what is due; the last step is always logged, evaluated and saved.

    A checkpoint that is due or an evaluation ends the stretch over which the loss is averaged. An
    interrupt does not, so the history of a resumed run is that of an uninterrupted one.

    Args:
        settings: The intervals.
        evaluates: Whether there is something to evaluate on.
        interrupt: Set from outside when the run shall stop after the current step.
    """

    def __init__(
        self, settings: TrainingSettings, *, evaluates: bool, interrupt: threading.Event
    ) -> None:
        self._settings = settings
        self._evaluates = evaluates
        self._interrupt = interrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Set what is due.

        Args:
            args: Not used.
            state: Holds the step.
            control: Changed.
            **kwargs: Not used.
        """
        step, settings = state.global_step, self._settings
        last = step >= settings.steps

        def due(every: int) -> bool:
            return last or (every > 0 and step % every == 0)

        if self._interrupt.is_set():
            control.should_training_stop = True
        control.should_evaluate = self._evaluates and due(settings.eval_every)
        control.should_save = due(settings.save_every) or self._interrupt.is_set()
        # An interrupt does not end a stretch: the loss so far goes on through the checkpoint.
        control.should_log = (
            due(settings.log_every) or control.should_evaluate or due(settings.save_every)
        )

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Stop a run whose loss is no number.

        Args:
            args: Not used.
            state: Holds the step.
            control: Not used.
            **kwargs: ``logs``, what was measured.

        Raises:
            ConfigError: The training or validation loss is infinite or not a number.
        """
        logs = kwargs["logs"]
        loss = logs.get("loss", logs.get("eval_loss", 0.0))
        if not math.isfinite(loss):
            raise ConfigError(
                f"learning_rate={self._settings.learning_rate:g} makes training diverge: the loss "
                f"is {loss} at step {state.global_step}; lower it or give more warmup_steps"
            )


class Show(TrainerCallback):
    """Show a bar on a terminal, and a line for every evaluation anywhere.

    Args:
        label: Name of the run.
        console: Where to show it.
        tokens: Tokens read by one step.
    """

    def __init__(self, label: str, console: Console, tokens: int) -> None:
        self._label = label
        self._console = console
        self._tokens = tokens
        self._loss = math.nan
        self._bar: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Open the bar.

        Args:
            args: Not used.
            state: Holds the first and the last step.
            control: Not used.
            **kwargs: Not used.
        """
        if state.global_step:
            self.line(f"goes on after step {state.global_step} of {state.max_steps}")
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(
            self._label, total=state.max_steps, completed=state.global_step, shown=""
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Move the bar.

        Args:
            args: Not used.
            state: Holds the step.
            control: Not used.
            **kwargs: Not used.
        """
        if self._bar is not None:
            speed = self._bar.tasks[0].speed
            shown = "" if math.isnan(self._loss) else f"loss {self._loss:.3f}"
            if speed:
                shown += f"  {speed * self._tokens:,.0f} tokens/s"
            self._bar.update(self._task, completed=state.global_step, shown=shown)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Remember the loss, or write the line of an evaluation.

        Args:
            args: Not used.
            state: Holds the step.
            control: Not used.
            **kwargs: ``logs``, what was measured.
        """
        logs = kwargs["logs"]
        self._loss = logs.get("loss", self._loss)
        if "eval_loss" in logs:
            self.line(
                f"step {state.global_step} of {state.max_steps}, loss {self._loss:.3f}, "
                f"validation loss {logs['eval_loss']:.3f}, accuracy {logs['eval_accuracy']:.1%}"
            )

    def line(self, text: str) -> None:
        """Write a line above the bar.

        Args:
            text: What the run has to say.
        """
        self._console.print(f"{self._label}: {text}")

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def stopping_on_interrupt(interrupt: threading.Event) -> Iterator[None]:
    """Let the first Ctrl-C ask for a stop after the current step; the second stops at once.

    Only the main thread can catch it; elsewhere nothing changes.

    Args:
        interrupt: Set by the first Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(*_: object) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar of its own for every file it reads or writes."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
