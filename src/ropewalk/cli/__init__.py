"""The command line: parse, call, print; no logic. Each module holds one group of commands."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn


def main() -> None:
    """Run the command line; whatever a user can cause ends in one line and exit code 2."""
    from ropewalk.cli.app import app
    from ropewalk.errors import RopewalkError

    try:
        try:
            code = app(prog_name="ropewalk", standalone_mode=False)
        finally:
            print(end="", flush=True)  # the exit of the interpreter is too late to say why
    except RopewalkError as error:
        _fail(str(error))
    except BrokenPipeError:  # whoever read, such as `head`, has seen enough
        _drop_output()
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}")
        _drop_output()
        _fail(f"the standard output cannot be written: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _fail(
            "the memory is not enough for this: give a smaller batch (--batch-size), or a smaller "
            "model or block size"
        )
    except ImportError as error:
        if "pip install 'ropewalk[" in str(error):
            _fail(str(error))
        if not isinstance(error, ModuleNotFoundError) or _ours(error):
            raise
        _fail(f"this command needs {error.name}: pip install 'ropewalk[all]'")
    except Exception as error:
        message = _wrong_usage(error)
        if message is None:
            raise
        if not message:  # nothing was asked for, and the help has been shown
            raise SystemExit(2) from None
        _fail(message)
    raise SystemExit(code)


def _wrong_usage(error: Exception) -> str | None:
    """Return what typer says of a command line, in one sentence; None for any other error."""
    # Its class is click's or typer's own, by the version of typer; both have this method.
    if not hasattr(error, "format_message"):
        return None
    message = str(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None or not message:
        return message
    return f"{message} (see {context.command_path} --help)"


def _ours(error: ModuleNotFoundError) -> bool:
    return (error.name or "").partition(".")[0] == "ropewalk"


def _out_of_memory(error: BaseException) -> bool:
    # torch has a class for accelerators alone; importing it here would take seconds.
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
        or "not enough memory" in str(error)
    )


def _drop_output() -> None:
    """Send what is still waiting nowhere, or the interpreter would try again when it exits."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _fail(message: str) -> NoReturn:
    print(f"ropewalk: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
