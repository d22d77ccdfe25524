import json
import sys

import pytest

import ropewalk
from ropewalk.cli import main
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


@pytest.mark.parametrize(
    "command", [[], ["compare"], ["pretrain"], ["fill-mask"], ["env"], ["bench"]]
)
def test_help_has_examples(monkeypatch, capsys, command):
    assert call(monkeypatch, *command, "--help") == 0
    shown = capsys.readouterr().out
    assert "Usage: ropewalk" in shown
    if command:
        assert "Examples" in shown
        assert f"ropewalk {command[0]}" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fill"], "No such command 'fill'"),
        (["env", "--yaml"], "No such option: --yaml"),
        (["fill-mask", "somewhere"], "Missing argument 'TEXT'"),
        (["fill-mask", "somewhere", "[MASK]", "--top", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_usage_exits_with_two(monkeypatch, capsys, arguments, message):
    assert call(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert message.lower() in captured.err.lower()
    assert "Traceback" not in captured.err


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
