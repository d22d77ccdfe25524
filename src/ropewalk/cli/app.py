"""The one typer application, assembled from the command modules."""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk import __version__
from ropewalk.cli.bench import bench
from ropewalk.cli.compare import compare
from ropewalk.cli.convert import convert
from ropewalk.cli.diff import diff
from ropewalk.cli.env import env
from ropewalk.cli.fill_mask import fill_mask
from ropewalk.cli.inspect import inspect
from ropewalk.cli.pretrain import pretrain
from ropewalk.cli.verify import verify

app = typer.Typer(
    name="ropewalk",
    help="Rotary position embeddings: train, compare and use RoFormer models.",
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
    """Rotary position embeddings: train, compare and use RoFormer models."""


app.command("compare")(compare)
app.command("pretrain")(pretrain)
app.command("fill-mask")(fill_mask)
app.command("env")(env)
app.command("inspect")(inspect)
app.command("diff")(diff)
app.command("verify")(verify)
app.command("bench")(bench)
app.add_typer(convert, name="convert")
