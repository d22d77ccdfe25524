"""The command line: parse, call, print; no logic. Each module holds one group of commands."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> None:
    """Run the command line; whatever a user can cause ends in one line and exit code 2."""
    from ropewalk.cli.app import app
    from ropewalk.errors import RopewalkError

    try:
        app(prog_name="ropewalk")
    except RopewalkError as error:
        _fail(str(error))
    except ImportError as error:
        if "pip install 'ropewalk[" in str(error):
            _fail(str(error))
        if not isinstance(error, ModuleNotFoundError) or _ours(error):
            raise
        _fail(f"this command needs {error.name}: pip install 'ropewalk[all]'")


def _ours(error: ModuleNotFoundError) -> bool:
    return (error.name or "").partition(".")[0] == "ropewalk"


def _fail(message: str) -> NoReturn:
    print(f"ropewalk: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
