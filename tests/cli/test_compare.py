import dataclasses
import json
import sys
import tomllib

import pytest
import tiny
import typer
from typer.testing import CliRunner

from ropewalk.cli import main
from ropewalk.recipes.compare import ComparisonSettings

SMALL = (
    "--block-size 16 --vocab-size 120 --layers 1 --hidden 16 --heads 2 --batch-size 4 "
    "--learning-rate 0.01 --jobs 1 --quiet"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "lines.jsonl"
    texts = [*tiny.documents(), *(f"a walk of numbers {i} " * 12 for i in range(90))]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return path


@pytest.fixture
def ropewalk(monkeypatch, capsys):
    """Run the command line in this process; return exit code, output and error output."""

    def run(line, *more):
        monkeypatch.setattr(sys, "argv", ["ropewalk", *line.split(), *map(str, more)])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code or 0, *capsys.readouterr()

    return run


def test_results_and_lengths_are_printed_and_where_the_report_is(ropewalk, source, tmp_path):
    output = tmp_path / "run"
    code, shown, errors = ropewalk(
        f"compare {SMALL} --steps 2 --eval-every 1 --eval-lengths 1x,2x --eval-scaling ntk,none "
        "--sentence",
        "a [MASK] of numbers",
        "--output",
        output,
        source,
    )
    assert (code, errors) == (0, "")
    content = json.loads((output / "report.json").read_text())
    rows = {words[0]: words for line in shown.splitlines() if (words := line.split())}
    for summary in content["summaries"]:
        assert f"{summary['loss']:.3f}" in shown
        assert summary["encoding"] in rows
    lengths = shown[shown.index("loss at") :]
    assert "16 tokens (1x)" in lengths
    assert "32 tokens (2x)" in lengths
    assert "not possible" in lengths
    assert "rope, ntk" in lengths
    assert content["headline"][:40] in shown
    assert rows["report"] == ["report", str(output / "report.html")]
    assert rows["json"] == ["json", str(output / "report.json")]
    assert "\x1b" not in shown  # no colours where there is no terminal
    assert content["command"].startswith("ropewalk compare --block-size 16")
    assert "'a [MASK] of numbers'" in content["command"]
    assert [sentence["text"] for sentence in content["filled"]] == ["a [MASK] of numbers"]
    code, again, _ = ropewalk("compare --quiet --resume --output", output)
    assert (code, again) == (0, shown)


def test_flags_come_over_the_config_file(ropewalk, source, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        "jobs = 1\nencodings = ['none', 'learned']\nseeds = [4]\neval_lengths = []\neval_rows = 5\n"
        "[data]\nblock_size = 16\nvocab_size = 120\n"
        "[model]\nlayers = 1\nhidden_size = 16\nheads = 2\n"
        "[training]\nsteps = 2\nbatch_size = 4\nschedule = 'cosine'\n"
    )
    output = tmp_path / "run"
    code, shown, _ = ropewalk(
        "compare --quiet --steps 3 --seeds 5 --config", config, "--output", output, source
    )
    assert code == 0
    assert "loss at" not in shown
    stored = tomllib.loads((output / "config.toml").read_text())
    assert stored["encodings"] == ["none", "learned"]
    assert stored["seeds"] == [5]
    assert stored["training"]["steps"] == 3
    assert stored["training"]["schedule"] == "cosine"
    assert stored["data"]["sources"] == [str(source)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--steps 0", "steps must be an integer of at least 1; got 0"),
        ("--encodings rope,alibi", "got 'alibi'"),
        ("--encodings ,", "encodings must be a list with at least one entry"),
        ("--seeds 1,x", "seeds must be whole numbers such as 0,1,2; got '1,x'"),
        ("--eval-lengths 2", "got '2'"),
        ("--eval-scaling yarn", "got 'yarn'"),
        ("--sentence hello", "got 'hello'"),
        ("--heads 3", "num_attention_heads=3; got 16"),
        ("--config nowhere.toml", "cannot read 'nowhere.toml'"),
        ("--tokenizer nowhere", "no tokenizer.json in 'nowhere'"),
        ("--vocab-size 12", "vocab_size must be at least"),
        ("--block-size 90000", "must fill at least one block"),
        ("--dataset nowhere/nothing", "cannot load 'nowhere/nothing'"),
        ("--device cuda:77", "device must be one of"),
        ("--resume --overwrite", "exclude each other"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(
    ropewalk, source, tmp_path, flags, message
):
    words = [*SMALL.split(), "--steps", "2", *flags.split()]
    code, shown, errors = ropewalk(f"compare {' '.join(words)} --output", tmp_path / "run", source)
    assert (code, shown) == (2, "")
    assert errors.startswith("ropewalk: error: ")
    assert len(errors.splitlines()) == 1
    assert message in errors
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_and_a_missing_output_are_named(ropewalk, tmp_path):
    code, _, errors = ropewalk("compare --output", tmp_path / "run", tmp_path / "missing.txt")
    assert code == 2
    assert "missing.txt" in errors
    code, _, errors = ropewalk("compare")
    assert code == 2
    assert "output must name the folder for the results" in errors


def test_help_shows_examples_and_the_real_defaults():
    from ropewalk.cli.app import app

    command = typer.main.get_command(app).get_command(None, "compare")
    shown = {option.name: option.show_default for option in command.params}
    settings = ComparisonSettings(output="unused")
    for name in ("encodings", "seeds", "eval_lengths", "eval_scaling"):
        assert shown[name] == ",".join(map(str, getattr(settings, name)))
    for part in (settings, settings.data, settings.model, settings.training):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, int | float | str) and isinstance(shown.get(field.name), str):
                assert shown[field.name] == str(value), field.name
    text = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "120"}).output
    assert "Examples" in text
    assert "ropewalk compare --output runs/demo --resume" in text
    assert "A sentence with [MASK] to show filled" in text
