"""The one typer application; the module of a command is imported when the command is."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from ropewalk import __version__

# Name of every command, and of its module, which holds a function or a typer application so named.
_COMMANDS = {
    "compare": "compare",
    "pretrain": "pretrain",
    "fill-mask": "fill_mask",
    "env": "env",
    "inspect": "inspect",
    "diff": "diff",
    "verify": "verify",
    "convert": "convert",
    "plot": "plot",
    "bench": "bench",
}


class _Commands(TyperGroup):
    """A group that builds a command when it is asked for: all of them take longer than one runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(_COMMANDS)  # type: ignore[assignment]  # names to suggest

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = getattr(import_module(f"ropewalk.cli.{module}"), module)
        if isinstance(found, typer.Typer):
            found.info.name = cmd_name
            return get_group(found)
        single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        single.command(cmd_name)(found)
        return get_command(single)


app = typer.Typer(
    name="ropewalk",
    cls=_Commands,
    help="Rotary position embeddings: what a model's rotation is, and RoFormer models of your own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"ropewalk {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Rotary position embeddings: what a model's rotation is, and RoFormer models of your own."""
