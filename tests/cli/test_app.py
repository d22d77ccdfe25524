import json
import sys
from pathlib import Path

import pytest

import ropewalk
from ropewalk.cli import main
from ropewalk.cli.app import _COMMANDS
from ropewalk.rotary.kernels import native_status


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ropewalk", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_version_is_the_packages(monkeypatch, capsys):
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"ropewalk {ropewalk.__version__}\n"


def test_env_names_versions_kernels_and_devices(monkeypatch, capsys):
    assert call(monkeypatch, "env", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ropewalk"] == ropewalk.__version__
    assert facts["kernels"].startswith("reference, eager")
    assert f"native: {facts['native kernel']}" == native_status()
    assert facts["devices"].startswith("cpu")
    assert call(monkeypatch, "env") == 0
    assert f"torch          {facts['torch']}" in capsys.readouterr().out


GROUPS = {"convert": ["config", "weights"], "plot": ["decay", "wavelengths", "factors"]}
SINGLE = [name for name in _COMMANDS if name not in GROUPS]
COMMANDS = [[name] for name in SINGLE]
COMMANDS += [[group, name] for group, names in GROUPS.items() for name in names]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples(monkeypatch, capsys, command):
    assert call(monkeypatch, *command, "--help") == 0
    shown = capsys.readouterr().out
    name = " ".join(command)
    assert f"Usage: ropewalk {name} " in shown
    assert f"ropewalk {name} " in shown.partition("Examples")[2]


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_help_of_a_group_names_every_command_in_it(monkeypatch, capsys, group):
    assert call(monkeypatch, *group.split(), "--help") == 0
    rows = capsys.readouterr().out.partition("Commands")[2].splitlines()
    named = {row.strip("│| ").partition(" ")[0] for row in rows}
    assert named.issuperset(GROUPS[group] if group else _COMMANDS)


def test_the_readme_names_every_command(monkeypatch):
    shown = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert {name for name in _COMMANDS if f"\nropewalk {name} " not in shown} == set()


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_a_group_alone_shows_its_help_and_exits_with_two(monkeypatch, capsys, group):
    assert call(monkeypatch, *group.split()) == 2
    captured = capsys.readouterr()
    assert "Usage: ropewalk" in captured.out + captured.err
    assert "ropewalk: error" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fill"], "No such command 'fill'"),
        (["env", "--yaml"], "No such option: --yaml"),
        (["fill-mask", "somewhere"], "Missing argument 'TEXT'"),
        (["fill-mask", "somewhere", "[MASK]", "--top", "0"], "greater than or equal to 1"),
        (["inspect", "config.json", "--target", "long"], "Invalid value for '--target'"),
        (["plot", "decay"], "Missing option '--out'"),
        (["convert", "layout"], "(see ropewalk convert --help)"),
    ],
)
def test_wrong_usage_is_one_line_and_exits_with_two(monkeypatch, capsys, arguments, message):
    assert call(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("ropewalk: error: ")
    assert message.lower() in line.lower()
    assert line.endswith(" --help)")
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module named 'rich'", name="rich"), "this command needs rich"),
        (ImportError("it needs x: pip install 'ropewalk[train]'"), "it needs x: pip install"),
        (ropewalk.DataError("two\nlines"), "two lines"),
    ],
)
def test_missing_extras_and_our_errors_are_one_line(monkeypatch, capsys, error, message):
    import ropewalk.cli.app as module

    def fail(**_):
        raise error

    monkeypatch.setattr(module, "app", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("ropewalk: error: ")
    assert message in shown
    assert shown.count("\n") == 1


def test_an_error_of_ours_is_not_hidden(monkeypatch):
    import ropewalk.cli.app as module

    def fail(**_):
        raise ModuleNotFoundError("No module named 'ropewalk.nowhere'", name="ropewalk.nowhere")

    monkeypatch.setattr(module, "app", fail)
    with pytest.raises(ModuleNotFoundError, match=r"ropewalk\.nowhere"):
        main()
