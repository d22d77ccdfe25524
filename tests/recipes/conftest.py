import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def light_garbage_collection():
    """Keep what the libraries allocated out of the collection that each training begins with."""
    import ropewalk.recipes.training  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def run_job(tmp_path_factory):
    """Run a job of jobs.py in a process of its own and return its outcome."""
    log = tmp_path_factory.mktemp("jobs") / "stderr"
    with log.open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "jobs.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def run(job):
        server.stdin.write(json.dumps(job, default=str) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, log.read_text()
        return json.loads(answer)

    yield run
    server.stdin.close()
    server.wait(timeout=30)
    server.stdout.close()
