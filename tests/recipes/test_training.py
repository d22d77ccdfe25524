import copy
import dataclasses
import json
import math
import os
import pickle
import random
import shutil
import signal

import numpy as np
import pytest
import tiny
import torch

from ropewalk import CheckpointError, ConfigError
from ropewalk.recipes import callbacks, loop
from ropewalk.recipes.checkpointing import write_manifest
from ropewalk.recipes.training import (
    TrainingResult,
    TrainingSettings,
    evaluate,
    train,
)

SETTINGS = TrainingSettings(steps=12, batch_size=4, learning_rate=3e-3, log_every=1)


def changed(**changes):
    return dataclasses.replace(SETTINGS, **changes)


def run(settings=SETTINGS, *, model=None, rows=None, evaluation=None, folder=None, **options):
    """Train the tiny model; return the result and the model."""
    model = tiny.model() if model is None else model
    rows = tiny.rows() if rows is None else rows
    result = train(
        model, rows, evaluation, settings, folder=folder, **({"progress": False} | options)
    )
    return result, model


def losses(result):
    return [point.loss for point in result.history]


# Settings


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("steps", 0, "at least 1"),
        ("batch_size", 2.5, "integer"),
        ("learning_rate", 0.0, "greater than 0"),
        ("learning_rate", math.nan, "finite"),
        ("warmup_steps", -1, "at least 0"),
        ("warmup_steps", 13, "at most steps=12"),
        ("schedule", "step", "one of 'linear'"),
        ("weight_decay", -0.1, "not be negative"),
        ("adam_beta2", 1.0, r"in \[0, 1\)"),
        ("max_grad_norm", -1.0, "not be negative"),
        ("gradient_accumulation", 3, "multiple"),
        ("precision", "int8", "one of 'fp32'"),
        ("seed", -1, "at least 0"),
        ("seed", 2**32, "at most 4294967295"),
        ("steps", 10**22, "at most 2147483647"),
        ("batch_size", 10**22, "at most 2147483647"),
        ("learning_rate", 1e300, r"at most 1e\+30"),
        ("weight_decay", 1e300, r"at most 1e\+30"),
        ("log_every", 0, "at least 1"),
        ("keep_checkpoints", 0, "at least 1"),
        ("tensorboard", 1, "True or False"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(field, value, rule):
    with pytest.raises(ConfigError, match=rule) as caught:
        changed(**{field: value})
    message = str(caught.value)
    shown = "4" if field == "gradient_accumulation" else repr(value)
    assert shown in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", lambda s: 1.0),
        ("linear", lambda s: (12 - s) / 8),
        ("cosine", lambda s: 0.5 * (1 + math.cos(math.pi * (s - 4) / 8))),
        ("inverse_sqrt", lambda s: (s / 4) ** -0.5),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule, expected):
    result, _ = run(changed(schedule=schedule, warmup_steps=4))
    rates = [point.learning_rate / SETTINGS.learning_rate for point in result.history]
    warm = [step / 4 for step in range(4)]
    assert rates == pytest.approx(warm + [expected(step) for step in range(4, 12)], rel=1e-12)


def test_norms_and_biases_have_no_weight_decay(tmp_path):
    model = tiny.model(embedding_size=8)
    trainer = loop.Loop(
        model,
        tiny.rows(),
        None,
        changed(weight_decay=0.3),
        loop.arguments(changed(weight_decay=0.3), tmp_path, "cpu"),
        folder=None,
        callbacks=[],
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = trainer.create_optimizer().param_groups
    decay = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert decay.keys() == set(names.values())
    for name, value in decay.items():
        free = name.endswith("bias") or "LayerNorm" in name
        assert value == (0.0 if free else 0.3), name


# What a step computes


def test_a_step_divides_the_summed_loss_by_the_masked_tokens_of_the_whole_batch():
    model = tiny.model(dropout=0.0)
    stream = loop.TrainingStream(tiny.rows(), length=4, seed=SETTINGS.seed)
    batch = torch.utils.data.default_collate([stream[k] for k in range(4)])
    counts = (batch["labels"] != -100).sum(1)
    assert len(set(counts.tolist())) > 1, "rows with equal counts could not tell"
    with torch.no_grad():
        logits = model(**{k: v for k, v in batch.items() if k != "labels"}).logits.double()
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    for accumulation in (1, 4):
        settings = changed(steps=1, gradient_accumulation=accumulation, warmup_steps=0)
        result, _ = run(settings, model=tiny.model(dropout=0.0))
        # float32 arithmetic in the model: a few units in the last place of about 4.5.
        assert losses(result) == pytest.approx([float(nll)], rel=1e-6)


def test_accumulated_batches_train_as_one_batch_does():
    whole, a = run(model=tiny.model(dropout=0.0))
    parts, b = run(changed(gradient_accumulation=2), model=tiny.model(dropout=0.0))
    # Sums of float32 gradients in another order, amplified by Adam over twelve steps.
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-5)
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=2e-4)


def test_training_learns_and_is_repeatable():
    first, model = run(changed(steps=80, learning_rate=1e-2), evaluation=tiny.rows())
    assert losses(first)[0] > 4.3  # log(90) = 4.5: nothing known
    assert first.evaluation.loss < 3.5
    assert not model.training
    again, other = run(changed(steps=80, learning_rate=1e-2), evaluation=tiny.rows())
    assert again.history == first.history
    assert again.evaluations == first.evaluations
    for x, y in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(x, y)


def test_watching_a_run_does_not_change_it(tmp_path):
    plain, _ = run(changed(log_every=12))
    watched, _ = run(
        changed(log_every=12, eval_every=1, save_every=5),
        evaluation=tiny.rows(seed=2),
        folder=tmp_path / "run",
    )
    mean = sum(point.loss for point in watched.history) / len(watched.history)
    assert len(watched.history) == len(watched.evaluations) == 12
    # The same float32 sums, taken over other stretches.
    assert mean == pytest.approx(losses(plain)[0], rel=1e-6)


def test_the_masking_follows_the_epoch_and_the_set_passed_in_does_not_change():
    seen = []

    class Watched(type(tiny.rows())):
        def __getitem__(self, index):
            seen.append((self.epoch, index))
            return super().__getitem__(index)

    rows = tiny.rows()
    watched = Watched(rows.blocks, tiny.tokenizer(), seed=1)
    run(changed(steps=25), rows=watched)
    read = seen[1:]  # the first look is for the length of a row
    assert [epoch for epoch, _ in read] == [0] * 40 + [1] * 40 + [2] * 20
    assert sorted(index for _, index in read[:40]) == list(range(40))
    assert watched.epoch == 0


def test_bf16_follows_fp32_and_leaves_the_model_as_it_was():
    full, _ = run()
    half, model = run(changed(precision="bf16"))
    # bfloat16 has 8 bits: relative errors of 2^-9 per product, averaged over a batch.
    assert losses(half) == pytest.approx(losses(full), rel=1e-2)
    assert losses(half) != losses(full)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert "forward" not in vars(model), "the autocast wrapper must come off"


def test_dropout_and_order_follow_the_seed():
    first, _ = run()
    other, _ = run(changed(seed=1))
    assert losses(first) != losses(other)


# Evaluation


def test_evaluation_weighs_every_token_alike_and_draws_nothing():
    model, rows = tiny.model(), tiny.rows(rows=16, seed=2)
    nll, count, correct = 0.0, 0, 0
    model.eval()
    with torch.no_grad():
        for row in (rows[k] for k in range(16)):
            labels = row["labels"]
            inputs = {name: value[None] for name, value in row.items() if name != "labels"}
            logits = model(**inputs).logits[0].double()
            chosen = labels != -100
            nll -= logits.log_softmax(-1)[chosen, labels[chosen]].sum().item()
            correct += (logits.argmax(-1) == labels)[chosen].sum().item()
            count += int(chosen.sum())
    model.train()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    for batch_size in (1, 5, 16):
        score = evaluate(model, rows, batch_size=batch_size)
        assert (score.correct, score.count) == (correct, count)
        # The log-softmax is taken in float32.
        assert score.loss == pytest.approx(nll / count, rel=1e-6)
    assert model.training
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2][1]).all()  # noqa: NPY002


def test_the_last_evaluation_is_that_of_the_returned_model():
    rows = tiny.rows(rows=16, seed=2)
    result, model = run(changed(eval_every=5), evaluation=rows)
    assert [point.step for point in result.evaluations] == [5, 10, 12]
    score = evaluate(model, rows, batch_size=4)
    last = result.evaluation
    assert (last.loss, last.accuracy, last.tokens) == (score.loss, score.accuracy, score.count)


def test_a_result_survives_json_and_knows_its_speed():
    result, _ = run(evaluation=tiny.rows(rows=16, seed=2))
    assert TrainingResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert result.tokens == 12 * 4 * tiny.LENGTH
    assert result.tokens_per_second == result.tokens / result.seconds
    assert dataclasses.replace(result, evaluations=()).evaluation is None


# Refusals


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"precision": "fp16"}, {"device": "cpu"}, "precision='fp16' needs a CUDA device"),
        ({}, {"device": "tpu"}, "device must be one of .*'tpu'"),
        ({"tensorboard": True}, {}, "tensorboard=True needs a folder"),
        ({"learning_rate": 1e30, "warmup_steps": 0}, {}, r"learning_rate=1e\+30 .*the loss is nan"),
    ],
)
def test_what_cannot_work_is_refused(settings, options, message):
    with pytest.raises(ConfigError, match=message):
        run(changed(**settings), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_refused():
    with pytest.raises(ConfigError, match="device='cuda' needs a CUDA device"):
        run(device="cuda")


def test_an_empty_set_is_refused():
    with pytest.raises(ConfigError, match=r"rows of train_set must be .* at least 1; got 0"):
        run(rows=[])


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(ConfigError, match="folder must be new or empty"):
            run(folder=tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


# Checkpoints


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with checkpoints, its result and its model."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    settings = changed(save_every=5, keep_checkpoints=2)
    result, model = run(settings, evaluation=tiny.rows(rows=16, seed=2), folder=folder)
    return folder, settings, result, model


def resume(finished, settings=None, **options):
    folder, before, *_ = finished
    given = {"evaluation": tiny.rows(rows=16, seed=2), "folder": folder, "resume": True}
    return run(settings or before, **(given | options))


def test_the_newest_checkpoints_stay_and_hold_nothing_pickled(finished):
    folder, *_ = finished
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == ["checkpoint-10", "checkpoint-12"]
    for path in (folder / "checkpoints" / "checkpoint-12").iterdir():
        if path.suffix in (".pt", ".pth", ".bin"):
            with torch.serialization.safe_globals([*numpy_globals()]):
                assert torch.load(path, weights_only=True) is not None


def numpy_globals():
    """What the random state of numpy is made of; nothing else may be in a checkpoint."""
    return [np._core.multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]


def test_resuming_a_finished_run_trains_nothing(finished, monkeypatch):
    _, _, result, model = finished
    monkeypatch.setattr(loop.Loop, "run", None)
    again, other = resume(finished, model=tiny.model(seed=5))
    assert again == result
    for x, y in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(x, y)
    assert not other.training


def with_another_token(rows):
    blocks = copy.deepcopy(rows.blocks)
    blocks.input_ids[17, 3] += 1
    return type(rows)(blocks, tiny.tokenizer(), seed=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"batch_size": 8}}, "settings.batch_size must be 4.*got 8"),
        ({"settings": {"seed": 3}}, "settings.seed must be 0.*got 3"),
        ({"settings": {"steps": 24}}, "settings.steps must be 12.*got 24"),
        ({"rows": tiny.rows(seed=9)}, "data.train_set must be"),
        ({"rows": tiny.rows(rows=36)}, "data.train_set must be"),
        ({"rows": with_another_token(tiny.rows())}, "data.train_set must be"),
        ({"evaluation": None}, "data.evaluation_set must be .*got None"),
        ({"model": tiny.model(intermediate_size=8)}, "model.intermediate_size must be 32.*got 8"),
        (
            {"model": tiny.model(position_encoding="none")},
            "model.position_encoding must be 'rope'.*got 'none'",
        ),
    ],
)
def test_resuming_something_else_is_refused(finished, change, message):
    folder, settings, *_ = finished
    settings = dataclasses.replace(settings, **change.get("settings", {}))
    others = {name: value for name, value in change.items() if name != "settings"}
    with pytest.raises(ConfigError, match=message) as caught:
        resume(finished, settings, **others)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_does_not_change_the_numbers_may_change(finished):
    _, settings, result, _ = finished
    free = dataclasses.replace(settings, log_every=3, save_every=1, eval_every=4, workers=1)
    assert resume(finished, free)[0] == result


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("result.json", "{}", "is not a result of training"),
        ("result.json", '{"evaluations": [], "steps": Infinity}', "is not a result of training"),
        ("result.json", "[" * 100_000, "cannot be read"),
        ("result.json", "9" * 5000, "cannot be read"),
        ("run.json", "9" * 5000, "cannot be read"),
        ("result.json", "[1]", "must hold a JSON object"),
        ("result.json", "{", "cannot be read"),
        ("run.json", "{", "cannot be read"),
    ],
)
def test_damaged_files_of_a_run_are_named(finished, name, text, message):
    path = finished[0] / name
    before = path.read_text()
    path.write_text(text)
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            resume(finished)
    finally:
        path.write_text(before)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("evaluations", []),
        ("evaluations", {}),
        ("history", [{"step": 1, "loss": "x", "learning_rate": 0.1}]),
        ("history", [3]),
        ("steps", 11),
        ("steps", True),
        ("seconds", math.inf),
    ],
)
def test_a_result_of_something_else_is_refused(finished, field, value):
    path = finished[0] / "result.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {field: value}))
    try:
        with pytest.raises(CheckpointError, match=r"result\.json is not .*result") as caught:
            resume(finished)
    finally:
        path.write_text(before)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("optimizer.pt", pickle.dumps(print)),
        ("optimizer.pt", b"no pickle"),
        ("scheduler.pt", pickle.dumps(print)),
        ("rng_state.pth", pickle.dumps(print)),
        ("trainer_state.json", b"[]"),
        ("trainer_state.json", b'{"global_step": 4, "log_history": 3}'),
        ("running_loss.json", b"{}"),
    ],
)
def test_a_checkpoint_that_was_tampered_with_is_refused(finished, tmp_path, name, content):
    folder = shutil.copytree(finished[0], tmp_path / "copy")
    (folder / "result.json").unlink()
    checkpoint = folder / "checkpoints" / "checkpoint-10"
    shutil.rmtree(folder / "checkpoints" / "checkpoint-12")
    (checkpoint / "manifest.json").unlink()
    (checkpoint / name).write_bytes(content)
    write_manifest(checkpoint, step=10, seconds=1.0)
    with pytest.raises(CheckpointError, match="does not hold the state of a training") as caught:
        resume(finished, folder=folder)
    assert str(checkpoint) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_finished_run_without_its_last_checkpoint_is_refused(finished, tmp_path):
    folder = shutil.copytree(finished[0], tmp_path / "copy")
    shutil.rmtree(folder / "checkpoints" / "checkpoint-12")
    with pytest.raises(CheckpointError, match="without a whole checkpoint of its last step, 12"):
        resume(finished, folder=folder)


@pytest.mark.parametrize("broken", ["save", "torch_save"])
def test_a_full_disk_leaves_older_checkpoints_alone(tmp_path, monkeypatch, broken):
    folder = tmp_path / "run"
    settings = changed(save_every=4)
    where, name = {
        "save": ("transformers.modeling_utils", "safe_save_file"),
        "torch_save": ("torch", "save"),
    }[broken]
    original = loop.Loop._save_checkpoint

    def save(self, *args, **kwargs):
        if self.state.global_step == 8:

            def full(*args, **kwargs):
                raise OSError(28, os.strerror(28))

            monkeypatch.setattr(f"{where}.{name}", full)
        original(self, *args, **kwargs)

    monkeypatch.setattr(loop.Loop, "_save_checkpoint", save)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        run(settings, folder=folder)
    message = str(caught.value)
    assert f"{folder / 'checkpoints' / 'checkpoint-8'} cannot be written" in message
    assert "\n" not in message
    assert ".partial" not in message
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-4"]
    monkeypatch.undo()
    result, _ = run(settings, folder=folder, resume=True)
    assert result.history == run(changed(save_every=4), folder=tmp_path / "b")[0].history


def test_ctrl_c_ends_after_the_step_with_a_checkpoint(tmp_path, monkeypatch, capsys):
    original = callbacks.Pace.on_step_end

    def press(self, args, state, control, **kwargs):
        if state.global_step == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, args, state, control, **kwargs)

    monkeypatch.setattr(callbacks.Pace, "on_step_end", press)
    with pytest.raises(KeyboardInterrupt):
        run(folder=tmp_path / "run", progress=True)
    assert "stopped after step 7, which is saved" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    names = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert names == ["checkpoint-7"]
    monkeypatch.undo()
    resumed, a = run(folder=tmp_path / "run", resume=True, progress=True)
    assert "goes on after step 7 of 12" in capsys.readouterr().err
    whole, b = run()
    assert resumed.history == whole.history
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)


def test_ctrl_c_within_a_stretch_does_not_change_the_history(tmp_path, monkeypatch):
    original = callbacks.Pace.on_step_end

    def press(self, args, state, control, **kwargs):
        if state.global_step in (2, 7, 8):
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, args, state, control, **kwargs)

    monkeypatch.setattr(callbacks.Pace, "on_step_end", press)
    settings = changed(log_every=5, gradient_accumulation=2)
    for again in (False, True, True):
        with pytest.raises(KeyboardInterrupt):
            run(settings, folder=tmp_path / "run", resume=again)
    monkeypatch.undo()
    resumed, _ = run(settings, folder=tmp_path / "run", resume=True)
    whole, _ = run(settings)
    assert resumed.history == whole.history
    assert [point.step for point in whole.history] == [5, 10, 12]


def test_progress_goes_to_the_standard_error_stream(capsys):
    run(changed(eval_every=6), evaluation=tiny.rows(rows=16, seed=2), progress=True, label="tiny")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "tiny: step 6 of 12, loss" in shown.err
    assert "tiny: step 12 of 12" in shown.err
    run(evaluation=tiny.rows(rows=16, seed=2), progress=False)
    assert capsys.readouterr().err == ""


def test_tensorboard_gets_losses_and_evaluations(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result, _ = run(
        changed(tensorboard=True, steps=3),
        evaluation=tiny.rows(rows=16, seed=2),
        folder=tmp_path / "run",
    )
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    stored = [event.value for event in events.Scalars("train/loss")]
    # Event files hold float32.
    assert stored == pytest.approx(losses(result), rel=1e-6)
    assert events.Scalars("eval/loss")[-1].value == pytest.approx(result.evaluation.loss, rel=1e-6)
