"""Child processes that do parts of a recipe side by side, and never outlive it.

Each child has one pipe in, whose end means that its parent is gone, and one pipe out, for the
error that stopped it. Nothing but the standard library is loaded here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ropewalk import errors
from ropewalk.errors import ConfigError, RopewalkError

REPORTED = 3
"""Exit code of a child that has called :func:`report_error`."""
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 60.0


def run_all(
    commands: Mapping[str, Sequence[str]], *, jobs: int, environment: Mapping[str, str]
) -> None:
    """Run commands, so many at once, until all are done or one fails.

    Ctrl-C is passed on to the children, which then have a minute to save what they have.

    Args:
        commands: Name to command line; each calls :func:`exit_with_parent` first.
        jobs: Most commands that run at the same time, at least 1.
        environment: Variables to set for them.

    Raises:
        RopewalkError: What a child reported with :func:`report_error`; the others are ended.
        ConfigError: A child ended in another way.
        KeyboardInterrupt: Ctrl-C.
    """
    waiting = dict(commands)
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = next(iter(waiting))
                running[name] = _start(waiting.pop(name), environment)
            time.sleep(_POLL_SECONDS)
            for name, child in list(running.items()):
                if child.poll() is not None:
                    _check(name, running.pop(name))
    except KeyboardInterrupt:
        for child in running.values():
            child.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in running.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
        raise
    finally:
        for child in running.values():
            child.kill()
            child.communicate()


def exit_with_parent() -> None:
    """End this process as soon as the one that started it with :func:`run_all` is gone."""

    def watch() -> None:
        # Not sys.stdin, whose lock would be held when the interpreter shuts down.
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def report_error(error: RopewalkError) -> int:
    """Tell the parent, through the standard output, why this process ends.

    Args:
        error: The reason.

    Returns:
        The code to exit with.
    """
    line = json.dumps({"error": type(error).__name__, "message": str(error)})
    os.write(1, line.encode() + b"\n")
    return REPORTED


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C in a terminal reaches the parent alone
    )


def _check(name: str, child: subprocess.Popen[str]) -> None:
    """Raise what made a child fail."""
    output, _ = child.communicate()
    if child.returncode == 0:
        return
    if child.returncode == REPORTED:
        found = json.loads(output.splitlines()[-1])
        raise getattr(errors, found["error"], RopewalkError)(found["message"])
    how = f"code {child.returncode}"
    if child.returncode < 0:
        how = f"signal {-child.returncode}"
    raise ConfigError(
        f"jobs: the process of {name} ended with {how}, perhaps for lack of memory; "
        "continue with resume (--resume) and jobs=1 (--jobs 1)"
    )
