"""``ropewalk bench``: the operator and the encoder measured on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ropewalk.recipes.bench.results import Report


def bench(
    subject: Annotated[str, typer.Argument(help="operator, accuracy, encoder or all.")],
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            help="operator: long, batch, decode; encoder: full, padded; repeatable. Default: all.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            help="float32 or bfloat16; repeatable. Default: both, float32 alone for the encoder.",
            show_default=False,
        ),
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(
            "--layout",
            help="half or interleaved, of the operator; repeatable. Default: both.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            help="forward or training (with backward; a whole step of the encoder); repeatable. "
            "Default: both.",
            show_default=False,
        ),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Measure the same code under torch.compile too.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Time for the rounds of each case.")
    ] = 20.0,
    threads: Annotated[
        int | None,
        typer.Option("--threads", help="Threads. Default: torch's own.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of data and order.")] = 0,
    peers: Annotated[
        str,
        typer.Option("--peers", help="installed; all: refuse if one is missing; none."),
    ] = "installed",
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write every figure to this file.")
    ] = None,
    markdown_file: Annotated[
        str | None, typer.Option("--markdown", help="Write the tables to this file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No estimate, no bar.")] = False,
) -> None:
    """Measure rotations beside a copy of the same bytes and beside other libraries' code.

    Every contender is checked against float64 before it is timed. Libraries that are not
    installed are listed as absent: `pip install 'ropewalk[bench]'`, and `pip install --no-deps
    torchtune` for that one. Ctrl-C ends a run with what is measured so far.

    **Examples**

    `ropewalk bench operator --shape batch --dtype float32 --layout half --seconds 5`

    `ropewalk bench operator --compile --json operator.json --markdown operator.md`

    `ropewalk bench accuracy`

    `ropewalk bench encoder --shape full --mode training`
    """
    # Before torch is loaded: threads that spin while they wait would count as work.
    from ropewalk.recipes.bench.environment import wait_passively

    threads_sleep = wait_passively()
    from ropewalk.recipes.bench.run import plan, run

    given = {"shapes": shape, "dtypes": dtype, "layouts": layout, "modes": mode}
    options: dict[str, Any] = {name: tuple(value) for name, value in given.items() if value}
    if compiled:
        options["compile"] = True
    targets = [path for path in (json_file, markdown_file) if path is not None]
    for path in targets:
        _check_target(path)
    report = run(
        plan(subject, options, seconds=seconds, threads=threads, seed=seed, peers=peers),
        threads_sleep=threads_sleep,
        progress=not quiet,
    )
    _show(report)
    _write(report, json_file, markdown_file)
    if not report.complete:
        raise typer.Exit(130)


def _check_target(path: str) -> None:
    """Refuse a file that cannot be written before minutes are spent on what it shall hold."""
    import os
    from pathlib import Path

    from ropewalk.errors import ConfigError

    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"{path!r} must be a file to write; it is a folder")
    if not target.parent.is_dir():
        raise ConfigError(f"{path!r} must lie in a folder that exists; got {str(target.parent)!r}")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise ConfigError(f"{path!r} must be writable; it is not")


def _write(report: Report, json_file: str | None, markdown_file: str | None) -> None:
    from pathlib import Path

    from ropewalk.recipes.bench.table import markdown

    if json_file is not None:
        Path(json_file).write_text(report.to_json(), encoding="utf-8")
        print(f"json      {json_file}")
    if markdown_file is not None:
        Path(markdown_file).write_text(markdown(report), encoding="utf-8")
        print(f"markdown  {markdown_file}")


def _show(report: Report) -> None:
    """Print every table; without colours and at a fixed width when not on a terminal."""
    import sys

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ropewalk.recipes.bench.table import sections

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for section in sections(report, brief=True):
        table = Table(
            title=section.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for i, name in enumerate(section.head):
            table.add_column(name, justify="right" if i else "left")
        for row in section.rows:
            table.add_row(*row)
        console.print(table, markup=False)
