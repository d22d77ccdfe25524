"""Runs that are killed for real, run out of space for real, or are spread over two processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from ropewalk.recipes.training import TrainingSettings, train

# 40 rows in batches of 4: an epoch is 10 steps. Dropout is on.
SETTINGS = {
    "steps": 24,
    "batch_size": 4,
    "learning_rate": 3e-3,
    "save_every": 4,
    "eval_every": 6,
    "log_every": 3,
    "keep_checkpoints": 3,
}


@pytest.fixture(scope="module")
def whole(run_job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return run_job({"folder": str(folder), "settings": SETTINGS})


def assert_same(a, b):
    """Compare all but the time taken, bit for bit: JSON keeps every digit of a float."""
    strip = [{k: v for k, v in x["result"].items() if k != "seconds"} for x in (a, b)]
    assert strip[0] == strip[1]
    assert a["weights"] == b["weights"]


@pytest.mark.parametrize(
    ("kill", "checkpoints"),
    [
        (["step", 5], [4]),  # the step after one
        (["step", 7], [4]),  # some steps later, in the middle of the first epoch
        (["write", 8], [4]),  # while one is being written
        (["step", 11], [4, 8]),  # the checkpoint lies before the border of the epochs
        (["step", 23], [12, 16, 20]),  # in the third epoch; the oldest have gone
    ],
)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(
    run_job, whole, tmp_path, kill, checkpoints
):
    job = {"folder": str(tmp_path / "run"), "settings": SETTINGS}
    assert run_job(job | {"kill": kill}) == {"signal": signal.SIGKILL}
    found = (tmp_path / "run").glob("checkpoints/checkpoint-*")
    assert sorted(int(path.name.split("-")[1]) for path in found) == checkpoints
    resumed = run_job(job | {"resume": True})
    assert_same(resumed, whole)
    left = [path.name for path in (tmp_path / "run").rglob("*.partial")]
    assert left == []


def test_a_run_may_be_killed_more_than_once(run_job, whole, tmp_path):
    job = {"folder": str(tmp_path / "run"), "settings": SETTINGS}
    for step in (3, 6, 17):  # the first time before any checkpoint
        resume = {"resume": True, "kill": ["step", step]}
        assert run_job(job | resume) == {"signal": signal.SIGKILL}
    assert_same(run_job(job | {"resume": True}), whole)


def test_a_torn_checkpoint_is_passed_over(run_job, whole, tmp_path):
    job = {"folder": str(tmp_path / "run"), "settings": SETTINGS}
    run_job(job | {"kill": ["step", 14]})
    weights = tmp_path / "run" / "checkpoints" / "checkpoint-12" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert_same(run_job(job | {"resume": True}), whole)


def test_workers_read_what_the_training_process_reads(run_job, whole, tmp_path):
    settings = SETTINGS | {"workers": 1}
    assert_same(run_job({"folder": str(tmp_path / "run"), "settings": settings}), whole)


def test_a_limit_on_file_sizes_keeps_the_older_checkpoints(run_job, tmp_path):
    folder = tmp_path / "run"
    job = {"folder": str(folder), "settings": SETTINGS}
    run_job(job | {"kill": ["step", 6]})
    files = (folder / "checkpoints" / "checkpoint-4").iterdir()
    sizes = {path.name: path.stat().st_size for path in files}
    assert sizes["model.safetensors"] < sizes["optimizer.pt"]
    for limit in (1000, sizes["model.safetensors"] + 1000):  # fails in one, then in the other
        outcome = run_job(job | {"resume": True, "limit": limit})
        assert outcome["error"] == "CheckpointError"
        message = outcome["message"]
        assert message.startswith(f"{folder / 'checkpoints' / 'checkpoint-8'} cannot be written:")
        assert "\n" not in message
        assert ".partial" not in message
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-4"]


@pytest.mark.parametrize("limit", [500, 5000])
def test_a_limit_on_file_sizes_leaves_no_half_of_a_model(run_job, tmp_path, limit):
    target = tmp_path / "model"
    outcome = run_job({"save": str(target), "limit": limit})
    assert outcome["error"] == "CheckpointError"
    assert str(target) in outcome["message"]
    assert "\n" not in outcome["message"]
    assert list(tmp_path.iterdir()) == []


TWO_PROCESSES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tiny
from ropewalk.recipes.training import TrainingSettings, train

settings = TrainingSettings(**json.loads(sys.argv[2]))
evaluation = tiny.rows(rows=17, seed=2)
result = train(
    tiny.model(dropout=0.0), tiny.rows(), evaluation, settings,
    folder=sys.argv[3], progress=False, device="cpu",
)
try:
    train(tiny.model(), tiny.rows(), None, TrainingSettings(2, 3, 1e-3), folder=None)
except ValueError as error:
    print(error)
"""


def test_two_processes_train_as_one_does(tmp_path):
    settings = {"steps": 20, "batch_size": 4, "learning_rate": 3e-3, "log_every": 1}
    settings |= {"save_every": 15, "gradient_accumulation": 2}
    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    tests, folder = str(Path(__file__).parents[1]), tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(script), tests, json.dumps(settings), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("processes x gradient_accumulation = 2 x 1; got 3") == 2
    two = json.loads((folder / "result.json").read_text())
    one = train(
        tiny.model(dropout=0.0),
        tiny.rows(),
        tiny.rows(rows=17, seed=2),
        TrainingSettings(**settings),
        folder=None,
        progress=False,
    )
    assert len(two["history"]) == len(one.history) == 20
    # Float32 gradients are summed in another order; Adam amplifies that a little each step.
    for a, b in zip(two["history"], one.history, strict=True):
        assert a["loss"] == pytest.approx(b.loss, rel=1e-5)
    last = two["evaluations"][-1]
    assert last["tokens"] == one.evaluation.tokens
    assert last["loss"] == pytest.approx(one.evaluation.loss, rel=1e-5)
    states = (folder / "checkpoints" / "checkpoint-20").glob("rng_state_*.pth")
    assert sorted(path.name for path in states) == ["rng_state_0.pth", "rng_state_1.pth"]
