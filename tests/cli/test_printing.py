"""Plain text when piped, rich on a terminal: the same words."""

import os
import subprocess
import sys

import pytest
from config_files import FOLDER

from ropewalk.cli import printing

pty = pytest.importorskip("pty", reason="this system has no terminals to open")
ROWS = [("engine", "longest"), ("[red]hf", "8192"), ("vllm", "40")]


def on_a_terminal(*arguments, width=200, **variables):
    """Run a command whose standard output is a terminal; return exit code, output, errors."""
    keeper, terminal = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(width)} | variables
    with subprocess.Popen(
        [sys.executable, "-m", "ropewalk", *map(str, arguments)],
        stdout=terminal,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                part = os.read(keeper, 1 << 16)
            except OSError:  # Linux says so at the end
                break
            if not part:
                break
            shown += part
        errors = process.stderr.read()
    os.close(keeper)
    return process.returncode, shown.decode(), errors.decode()


def words(text):
    return text.replace("─", " ").split()


def test_a_report_on_a_terminal_has_colours_and_the_words_of_the_plain_one():
    file = FOLDER / "phi-3-mini-128k.json"
    piped = subprocess.run(
        [sys.executable, "-m", "ropewalk", "inspect", str(file)],
        capture_output=True,
        check=False,
    )
    plain = piped.stdout.decode()
    code, coloured, errors = on_a_terminal("inspect", file, width=400)
    assert (code, errors) == (piped.returncode, "") == (1, "")
    assert "\x1b[1mrotation: longrope" in coloured
    assert "\x1b[33mLONGROPE_SWITCH warning" in coloured
    assert "\x1b[" not in plain
    code, grey, _ = on_a_terminal("inspect", file, width=400, NO_COLOR="1", TERM="dumb")
    assert code == 1
    assert "\x1b[" not in grey
    assert words(grey) == words(plain)


def test_json_is_the_same_on_a_terminal():
    import json

    code, shown, _ = on_a_terminal("inspect", FOLDER / "llama-3.1-8b.json", "--json", width=40)
    assert code == 0
    assert json.loads(shown)["schema"] == "ropewalk.inspect/1"


@pytest.fixture
def rich(monkeypatch):
    """Return a printer for a terminal 60 columns wide, and what it printed."""
    import io

    from rich.console import Console

    printer = printing._Rich()
    stream = io.StringIO()
    printer.console = Console(
        file=stream, force_terminal=True, color_system="standard", width=60, highlight=False
    )
    return printer, stream


def test_brackets_in_a_report_are_text_and_not_markup(rich):
    printer, stream = rich
    printer.line("S [full_attention]: x -> [bold]nest[/bold]", style="red")
    printer.table(ROWS)
    shown = stream.getvalue()
    assert "[full_attention]: x -> [bold]nest[/bold]" in shown
    assert "[red]hf" in shown


def test_numbers_are_flush_right_in_both_printers(rich, capsys):
    printer, stream = rich
    printer.table(ROWS, right=(1,))
    printing._Plain().table(ROWS, right=(1,))
    for shown in (stream.getvalue(), capsys.readouterr().out):
        ends = [
            len(row.rstrip()) for row in shown.splitlines() if row.rstrip()[-2:] in ("92", "40")
        ]
        assert len(ends) == 2
        assert len(set(ends)) == 1


def test_a_long_line_is_wrapped_on_a_terminal_and_whole_in_a_pipe(rich, capsys):
    text = "word " * 30
    printer, stream = rich
    printer.line(text)
    printing._Plain().line(text)
    assert stream.getvalue().count("\n") == 3
    assert capsys.readouterr().out == f"{text}\n"


def test_without_a_terminal_rich_is_not_used(monkeypatch):
    assert isinstance(printing.printer(), printing._Plain)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert isinstance(printing.printer(), printing._Rich)
