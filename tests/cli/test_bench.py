import json
import os
import subprocess
import sys

import pytest

from ropewalk.cli import main
from ropewalk.recipes.bench import contenders
from ropewalk.recipes.bench.contenders import Shape
from ropewalk.recipes.bench.environment import wait_passively
from ropewalk.recipes.bench.results import Report
from ropewalk.recipes.bench.table import markdown


@pytest.fixture
def ropewalk(monkeypatch, capsys):
    """Run the command line in this process; return exit code, output and error output."""

    def run(line, *more):
        monkeypatch.setattr(sys, "argv", ["ropewalk", *line.split(), *map(str, more)])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code or 0, *capsys.readouterr()

    return run


def test_the_operator_is_measured_and_both_files_say_the_same(ropewalk, monkeypatch, tmp_path):
    monkeypatch.setitem(contenders.SHAPES, "batch", Shape(1, 2, 2, 4, 8))
    files = tmp_path / "bench.json", tmp_path / "bench.md"
    code, shown, errors = ropewalk(
        "bench operator --shape batch --dtype float32 --layout half --mode forward --peers none "
        "--seconds 0.001 --threads 1 --seed 7 --json",
        files[0],
        "--markdown",
        files[1],
    )
    assert code == 0
    lines = errors.splitlines()
    assert lines[0].startswith("operator: 1 cases, about 1 min")
    assert lines[1].startswith("batch, float32, half, forward: x copy fresh ")
    assert "Operator: batch, float32, half, forward" in shown
    assert "\x1b[" not in shown
    content = json.loads(files[0].read_text())
    assert content["schema"] == "ropewalk.bench/1"
    assert content["settings"]["threads"] == 1
    assert content["settings"]["operator"]["seed"] == 7
    assert {"system", "processor", "cores", "instructions"} == set(content["machine"])
    found = Report.read(files[0])
    ours = found.operator[0].find("ropewalk", form="in place", kernel="reference")
    assert len(ours.samples.cpu) >= 3
    assert files[1].read_text() == markdown(found)


def test_accuracy_is_printed(ropewalk):
    code, shown, errors = ropewalk("bench accuracy --peers none --quiet")
    assert (code, errors) == (0, "")
    row = next(line for line in shown.splitlines() if line.startswith(" error of cos and sin"))
    assert "at most 6e-08" in row
    assert "holds" in row


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("operators", "subject must be one of 'operator', 'accuracy', 'encoder', 'all'"),
        ("operator --shape huge", "shapes must be one of 'long', 'batch', 'decode'; got 'huge'"),
        ("encoder --shape long", "shapes must be one of 'full', 'padded'; got 'long'"),
        ("operator --dtype float16", "got 'float16'"),
        ("operator --layout neox", "got 'neox'"),
        ("operator --mode backward", "got 'backward'"),
        ("operator --seconds 0", "seconds must be a finite number greater than 0; got 0.0"),
        ("operator --seconds nan", "seconds must be a finite number greater than 0; got nan"),
        ("operator --threads 0", "threads must be an integer of at least 1; got 0"),
        ("operator --threads 100000", "threads must be at most"),
        ("operator --seed -1", "seed must be an integer of at least 0; got -1"),
        ("operator --peers some", "peers must be one of 'installed', 'all', 'none'; got 'some'"),
        ("operator --shape decode --mode training", "modes must include 'forward'"),
        ("accuracy --shape long", "shapes must be left out for 'accuracy'"),
        ("encoder --compile", "compile must be left out for 'encoder'"),
        ("all --layout half", "layouts must be left out with 'all'"),
        ("accuracy --json nowhere/x.json", "must lie in a folder that exists; got 'nowhere'"),
        ("accuracy --markdown .", "'.' must be a file to write; it is a folder"),
    ],
)
def test_what_cannot_be_measured_is_one_line(ropewalk, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    code, shown, errors = ropewalk(f"bench {flags}")
    assert (code, shown) == (2, "")
    assert errors.startswith("ropewalk: error: ")
    assert len(errors.splitlines()) == 1
    assert message in errors
    assert list(tmp_path.iterdir()) == []


COMMAND = "bench accuracy --peers none --quiet --json"


def test_threads_sleep_while_they_wait_where_torch_is_loaded_by_the_command(tmp_path):
    target = tmp_path / "bench.json"
    environment = {name: v for name, v in os.environ.items() if name != "OMP_WAIT_POLICY"}
    subprocess.run(
        [sys.executable, "-m", "ropewalk", *COMMAND.split(), str(target)],
        env=environment,
        check=True,
        capture_output=True,
    )
    assert Report.read(target).settings["threads_sleep"] is True


def test_a_process_that_has_torch_already_says_that_threads_may_spin(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert wait_passively() is False
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert wait_passively() is True
