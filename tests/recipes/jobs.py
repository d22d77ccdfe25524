"""Training runs in processes of their own, some of which kill themselves or run out of space.

Run as a script: reads jobs as JSON lines, forks a child for each, and writes one line of outcome
per job. The libraries are loaded once, before any thread is started.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny
import torch

from ropewalk.errors import RopewalkError
from ropewalk.recipes import callbacks, loop
from ropewalk.recipes.checkpointing import save_model
from ropewalk.recipes.training import TrainingSettings, train


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def arrange_kill(when, step):
    """Make this process die at the end of a step, or while it writes the checkpoint of one."""
    if when == "step":
        original = callbacks.Pace.on_step_end

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                kill_self()
            return original(self, args, state, control, **kwargs)

        callbacks.Pace.on_step_end = on_step_end
    else:
        original_manifest = loop.write_manifest

        def write_manifest(folder, *, step: int, seconds: float, at=step):
            if step == at:
                kill_self()
            original_manifest(folder, step=step, seconds=seconds)

        loop.write_manifest = write_manifest


def run(job):
    torch.set_num_threads(1)
    if job.get("kill"):
        arrange_kill(*job["kill"])
    model = tiny.model()
    if job.get("limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], resource.RLIM_INFINITY))
    if job.get("save"):
        save_model(model, tiny.tokenizer(), Path(job["save"]))
        return {}
    result = train(
        model,
        tiny.rows(),
        tiny.rows(rows=16, seed=2),
        TrainingSettings(**job["settings"]),
        folder=job["folder"],
        resume=job.get("resume", False),
        progress=False,
    )
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    return {"result": result.to_dict(), "weights": weights}


def in_child(job):
    """Return what a job gave, or the signal it died of."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            outcome = run(job)
        except RopewalkError as error:
            outcome = {"error": type(error).__name__, "message": str(error)}
        with os.fdopen(writing, "w") as stream:
            json.dump(outcome, stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"signal": os.WTERMSIG(status)}


if __name__ == "__main__":
    gc.freeze()  # each training begins with a collection
    for line in sys.stdin:
        sys.stdout.write(json.dumps(in_child(json.loads(line))) + "\n")
        sys.stdout.flush()
