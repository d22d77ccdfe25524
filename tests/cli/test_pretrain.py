import dataclasses
import json
import sys
import tomllib

import pytest
import tiny
import typer
from typer.testing import CliRunner

from ropewalk.cli import main
from ropewalk.recipes.pretrain import PretrainSettings

SMALL = "--block-size 16 --vocab-size 90 --layers 1 --hidden-size 16 --heads 2 --batch-size 4"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in tiny.documents()))
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


def test_a_model_is_trained_saved_and_asked(ropewalk, source, tmp_path):
    output = tmp_path / "run"
    code, shown, _ = ropewalk(f"pretrain {SMALL} --steps 3 --quiet --output", output, source)
    assert code == 0
    lines = shown.splitlines()
    loss = json.loads((output / "metrics.json").read_text())["validation"]["loss"]
    assert lines[0].startswith(f"validation loss {loss:.4f}, accuracy")
    assert lines[1].split() == ["model", str(output / "model")]
    code, shown, _ = ropewalk("fill-mask --top 2", output / "model", "the [MASK] of numbers")
    assert code == 0
    assert shown.splitlines()[0] == "[MASK] 1"
    assert len(shown.splitlines()) == 3
    code, again, _ = ropewalk("pretrain --quiet --resume --output", output)
    assert code == 0
    assert again.splitlines() == lines


def test_flags_come_over_the_config_file(ropewalk, source, tmp_path):
    output = tmp_path / "run"
    config = tmp_path / "run.toml"
    config.write_text(
        f"output = {json.dumps(str(output))}\n[data]\nblock_size = 16\nvocab_size = 90\n"
        "[model]\nlayers = 1\nhidden_size = 16\nheads = 2\nposition_encoding = 'rope'\n"
        "[training]\nsteps = 2\nbatch_size = 4\n"
    )
    code, _, _ = ropewalk(
        "pretrain --quiet --steps 3 --whole-word --rope-parameters "
        '{"rope_type":"linear","factor":2.0} --config',
        config,
        source,
    )
    assert code == 0
    stored = tomllib.loads((output / "config.toml").read_text())
    assert stored["training"]["steps"] == 3
    assert stored["training"]["batch_size"] == 4
    assert stored["data"]["whole_word"] is True
    assert stored["model"]["rope_parameters"] == {"rope_type": "linear", "factor": 2.0}


def test_a_dry_run_shows_the_plan_and_leaves_nothing(ropewalk, source, tmp_path):
    code, shown, _ = ropewalk(
        f"pretrain {SMALL} --dataset a/b:c --dry-run --output", tmp_path / "run", source
    )
    assert code == 0
    names = [line.split()[0] for line in shown.splitlines()]
    assert names == ["text", "model", "training", "estimate"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name]


def test_the_paper_preset_shows_the_papers_figures(ropewalk, tmp_path, monkeypatch):
    from ropewalk.recipes import estimate, pretrain

    # A model of 110 million weights takes half a minute to measure on a CPU.
    fixed = estimate.Estimate(110_000_000, 1.5, 2**31, 2**30)
    monkeypatch.setattr(pretrain, "estimate", lambda *args, **kwargs: fixed)
    code, shown, _ = ropewalk("pretrain --preset paper-mlm --dry-run --output", tmp_path / "run")
    assert code == 0
    assert "12 layers x 768, 12 heads, vocabulary 30,522" in shown
    assert "100,000 steps of 64 x 512 tokens, learning rate 1e-05" in shown
    assert "1.5 s per step, 41 h 40 min for all" in shown
    assert "memory 3.00 GiB" in shown


def test_help_shows_examples_and_the_real_defaults():
    from ropewalk.cli.app import app

    command = typer.main.get_command(app).get_command(None, "pretrain")
    settings = PretrainSettings(output="unused")
    shown = {option.name: option.show_default for option in command.params}
    in_config_files_alone = {"adam_beta1", "adam_beta2", "adam_epsilon"}
    words = {"lowercase": "lowercase", "whole_word": "tokens", "device": "auto"}
    words |= {"pre_norm": "post", "gated_mlp": "plain", "bias": "bias"}
    for part in (settings.data, settings.model, settings.training):
        for field in dataclasses.fields(part):
            name, value = field.name, getattr(part, field.name)
            if name in in_config_files_alone:
                continue
            assert name in shown, f"there is no option for {name}"
            if isinstance(shown[name], str) and value is not None:
                assert shown[name] == words.get(name, str(value)), name
    text = CliRunner().invoke(app, ["pretrain", "--help"], env={"COLUMNS": "120"}).output
    assert "Examples" in text
    assert "ropewalk pretrain --output runs/mine --resume" in text
