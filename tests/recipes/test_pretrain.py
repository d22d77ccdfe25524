import dataclasses
import json
import shutil
import sys
import tomllib

import pytest
import tiny

from ropewalk import CheckpointError, ConfigError, DataError
from ropewalk.data import load_tokenizer
from ropewalk.models import load_masked_lm
from ropewalk.recipes import pretrain as module
from ropewalk.recipes.callbacks import Pace
from ropewalk.recipes.pretrain import load_settings, plan, pretrain
from ropewalk.recipes.runs import write_json
from ropewalk.recipes.training import evaluate

TABLES = {
    "data": {"block_size": 16, "vocab_size": 90, "validation_fraction": 0.2},
    "model": {"layers": 1, "hidden_size": 16, "heads": 2},
    "training": {"steps": 8, "batch_size": 4, "eval_every": 4, "save_every": 3, "log_every": 2},
}


def settings(output, source, **changes):
    tables = {name: dict(table) for name, table in TABLES.items()}
    tables["output"] = str(output)
    tables["data"]["sources"] = [str(source)]
    for path, value in changes.items():
        table, _, name = path.partition("__")
        tables[table][name] = value
    return load_settings(tables)


def run(output, source, *, changes=None, **options):
    return pretrain(settings(output, source, **(changes or {})), progress=False, **options)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "lines.jsonl"
    lines = [json.dumps({"text": text}) for text in tiny.documents()]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def trained(source, tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "run"
    return output, run(output, source)


def test_the_results_are_a_model_its_figures_and_its_settings(trained):
    output, result = trained
    names = sorted(path.name for path in output.iterdir())
    assert names == [".ropewalk", "config.toml", "metrics.json", "model", "training"]
    metrics = json.loads(result.metrics.read_text())
    last = result.training.evaluation
    assert metrics["validation"]["loss"] == last.loss
    assert metrics["validation"]["masked_tokens"] == last.tokens
    assert metrics["parameters"] == load_masked_lm(result.model).num_parameters()
    assert metrics["data"]["train_documents"] + metrics["data"]["validation_documents"] == 200
    assert len(metrics["data"]["fingerprint"]) == 64
    assert metrics["versions"].keys() == {"ropewalk", "python", "torch", "transformers"}
    assert metrics["settings"]["training"]["steps"] == 8


def test_the_saved_model_is_the_one_that_was_evaluated(trained, source):
    output, result = trained
    data = module.prepare_data(settings(output, source).data, seed=0)
    assert load_tokenizer(result.model).get_vocab() == data.tokenizer.get_vocab()
    score = evaluate(load_masked_lm(result.model), data.validation_set, batch_size=4)
    assert score.loss == result.training.evaluation.loss
    train, validation = data.train_documents, data.validation_documents
    assert set(train).isdisjoint(validation)


def test_the_stored_settings_repeat_the_run(trained, tmp_path):
    output, result = trained
    stored = tomllib.loads((output / "config.toml").read_text())
    assert "output" not in stored
    again = pretrain(
        load_settings({"output": str(tmp_path / "again")}, config=output / "config.toml"),
        progress=False,
    )
    assert again.training.history == result.training.history
    assert again.training.evaluations == result.training.evaluations
    weights = [r.model / "model.safetensors" for r in (result, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_finished_run_is_not_trained_again(trained, source, monkeypatch):
    output, result = trained
    monkeypatch.setattr("ropewalk.recipes.loop.Loop.run", None)
    assert run(output, source, resume=True) == result


def test_an_interrupted_run_goes_on_with_its_own_settings(trained, source, tmp_path, monkeypatch):
    _, whole = trained
    original = Pace.on_step_end

    def stop(self, args, state, control, **kwargs):
        original(self, args, state, control, **kwargs)
        if state.global_step == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Pace, "on_step_end", stop)
    output = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(output, source)
    assert not (output / "model").exists()
    monkeypatch.undo()
    resumed = pretrain(
        load_settings({"output": str(output)}, resume=True), resume=True, progress=False
    )
    assert resumed.training.history == whole.training.history
    assert resumed.training.evaluations == whole.training.evaluations


def test_resuming_other_text_is_refused(trained, source, tmp_path):
    output, _ = trained
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(tiny.documents()[::-1]) * 2)
    with pytest.raises(ConfigError, match=r"as in the run in .* that is resumed"):
        run(output, other, resume=True)
    with pytest.raises(ConfigError, match=r"settings.batch_size must be 4.*got 8"):
        run(output, source, resume=True, changes={"training__batch_size": 8})


def test_a_refused_resume_changes_nothing(trained, source):
    output, _ = trained
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    for name, value in (("batch_size", 8), ("seed", 5), ("steps", 9)):
        with pytest.raises(ConfigError, match=rf"{name} must be .*; got {value}"):
            run(output, source, resume=True, changes={f"training__{name}": value})
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


def test_what_training_would_refuse_deletes_nothing(trained, source, monkeypatch):
    output, _ = trained
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="tensorboard=True needs the package"):
        run(output, source, overwrite=True, changes={"training__tensorboard": True})
    assert (output / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("option", ["resume", "overwrite"])
def test_the_users_files_among_the_results_are_never_deleted(source, trained, tmp_path, option):
    output = shutil.copytree(trained[0], tmp_path / "run")
    (output / "model" / "texts").mkdir()
    mine = output / "model" / "texts" / "mine.jsonl"
    shutil.copy(source, mine)
    with pytest.raises(ConfigError, match=r"'model/texts' ?.*, which is not a result"):
        run(output, source, **{option: True})
    with pytest.raises(ConfigError, match="sources must not lie in the output folder"):
        run(output, mine, **{option: True})
    assert mine.read_bytes() == source.read_bytes()


def test_masking_that_leaves_nothing_to_evaluate_is_refused(source, tmp_path):
    with pytest.raises(DataError, match=r"must have a masked token .*mask_probability=1e-09"):
        run(tmp_path / "run", source, changes={"data__mask_probability": 1e-9})
    assert list(tmp_path.iterdir()) == []


def test_figures_that_json_does_not_have_are_left_out(trained, source, monkeypatch, tmp_path):
    output = shutil.copytree(trained[0], tmp_path / "run")
    result = json.loads((output / "training" / "result.json").read_text())
    result["evaluations"][-1]["loss"] = 1000.0  # its exponential overflows
    (output / "training" / "result.json").write_text(json.dumps(result))

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    metrics = run(output, source, resume=True).metrics.read_text()
    assert json.loads(metrics, parse_constant=refuse)["validation"]["perplexity"] is None
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})


def test_names_that_look_like_markup_are_shown_as_they_are(source, tmp_path, capsys):
    for name in ("a[red]b", "q[/]z", "x:smile:y"):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(source, tmp_path / name / "lines.jsonl")
        path = tmp_path / name / "lines.jsonl"
        pretrain(settings(tmp_path / f"run {name[0]}", path, training__steps=1))
        assert str(path) in capsys.readouterr().err


def test_results_are_overwritten_when_asked_and_then_only_ours(source, tmp_path):
    output = tmp_path / "run"
    first = run(output, source)
    before = first.training.evaluation.loss
    with pytest.raises(ConfigError, match=r"holds results already.*--overwrite"):
        run(output, source)
    second = run(output, source, overwrite=True, changes={"training__seed": 1})
    assert second.training.evaluation.loss != before
    (output / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds 'notes\.txt'"):
        run(output, source, overwrite=True)
    assert (output / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("encoding", ["learned", "sinusoidal", "none"])
def test_every_position_encoding_trains(source, tmp_path, encoding):
    result = run(
        tmp_path / "run",
        source,
        changes={"model__position_encoding": encoding, "training__steps": 2},
    )
    assert load_masked_lm(result.model).config.position_encoding == encoding


def test_scaled_rope_byte_level_bpe_and_whole_words(source, tmp_path):
    result = run(
        tmp_path / "run",
        source,
        changes={
            "model__rope_parameters": {"rope_type": "linear", "factor": 2.0},
            "data__tokenizer_kind": "bpe",
            "data__vocab_size": 300,
            "data__whole_word": True,
            "training__steps": 2,
        },
    )
    config = load_masked_lm(result.model).config
    assert config.rope_parameters["factor"] == 2.0
    assert config.vocab_size == len(load_tokenizer(result.model)) <= 300


def test_a_given_tokenizer_is_used_and_a_hub_data_set_may_be_a_folder(trained, tmp_path):
    import datasets

    _, result = trained
    rows = {"body": tiny.documents(80)}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    tables = {name: dict(table) for name, table in TABLES.items()} | {
        "output": str(tmp_path / "run")
    }
    tables["data"] |= {
        "dataset": [str(tmp_path / "set")],
        "field": "body",
        "tokenizer": str(result.model),
    }
    given = dataclasses.replace(load_settings(tables))
    other = pretrain(given, progress=False)
    vocabulary = load_tokenizer(other.model).get_vocab()
    assert vocabulary == load_tokenizer(result.model).get_vocab()
    assert json.loads(other.metrics.read_text())["data"]["corpus"].endswith("set (train)")


def test_several_kinds_of_sources_become_one_corpus(tmp_path, source):
    import datasets

    datasets.Dataset.from_dict({"text": ["of the set"]}).save_to_disk(str(tmp_path / "set"))
    data = settings(tmp_path / "run", source, data__dataset=[str(tmp_path / "set")]).data
    corpus = module.prepare_data(data, seed=0)
    assert "of the set" in (*corpus.train_documents, *corpus.validation_documents)
    assert corpus.corpus == f"{source} and {tmp_path / 'set'} (train)"


def test_the_plan_comes_first_and_estimates_the_run(source, tmp_path, capsys):
    chosen = settings(tmp_path / "run", source, training__steps=2)
    pretrain(chosen)
    shown = capsys.readouterr().err
    lines = [line.split()[0] for line in shown.splitlines()]
    assert lines[:5] == ["text", "blocks", "model", "training", "estimate"]
    assert f"{source}:" in shown
    assert "2 steps of 4 x 16 tokens" in shown
    assert "ms per step" in shown
    assert "memory" in shown


def test_a_dry_run_reads_and_writes_nothing(source, tmp_path):
    text = plan(settings(tmp_path / "run", source, data__dataset=["some/name:config"]))
    assert "1 files, 0.0 MiB and data set some/name:config (not loaded)" in text
    assert "estimate" in text
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match=r"missing\.txt"):
        plan(settings(tmp_path / "run", tmp_path / "missing.txt"))


def test_too_little_text_says_which_side_of_the_split(tmp_path):
    source = tmp_path / "short.jsonl"
    source.write_text("\n".join(json.dumps({"text": f"text {i} " * 30}) for i in range(9)))
    with pytest.raises(DataError, match=r"the validation part of .*short\.jsonl"):
        run(tmp_path / "run", source, changes={"data__block_size": 300})
    assert [path.name for path in tmp_path.iterdir()] == ["short.jsonl"]


def test_a_full_disk_at_the_end_keeps_the_run(source, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tiny.tokenizer()), "save_pretrained", full)
    output = tmp_path / "run"
    with pytest.raises(CheckpointError, match=r"model cannot be written.*No space left"):
        run(output, source)
    assert sorted(path.name for path in output.iterdir()) == [
        ".ropewalk",
        "config.toml",
        "training",
    ]
    monkeypatch.undo()
    assert load_masked_lm(run(output, source, resume=True).model).config.hidden_size == 16
