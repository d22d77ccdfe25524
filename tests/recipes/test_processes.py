import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropewalk.errors import ConfigError, DataError
from ropewalk.recipes.processes import run_all

START = "from ropewalk.recipes.processes import *; from ropewalk.errors import *; import time, os; "


def command(code):
    return [sys.executable, "-c", START + code]


def touch(path):
    return command(f"exit_with_parent(); open({str(path)!r}, 'w').write(os.environ['SHARE'])")


def test_all_commands_run_with_the_environment(tmp_path):
    paths = [tmp_path / str(number) for number in range(3)]
    run_all({p.name: touch(p) for p in paths}, jobs=2, environment={"SHARE": "1"})
    assert [path.read_text() for path in paths] == ["1", "1", "1"]


def test_no_more_run_at_once_than_asked_for(tmp_path):
    code = (
        f"names = os.listdir({str(tmp_path)!r}); assert not names, names; "
        f"p = os.path.join({str(tmp_path)!r}, str(os.getpid())); open(p, 'w').close(); "
        "time.sleep(0.2); os.remove(p)"
    )
    run_all({str(n): command(code) for n in range(3)}, jobs=1, environment={})
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_a_child_is_raised_and_the_others_are_ended():
    start = time.monotonic()
    sleeper = command("time.sleep(300)")
    failing = command("raise SystemExit(report_error(DataError('text: got nothing')))")
    with pytest.raises(DataError, match="text: got nothing"):
        run_all({"a": sleeper, "b": failing}, jobs=2, environment={})
    assert time.monotonic() - start < 100


def test_a_child_that_is_killed_is_named():
    killed = command("os.kill(os.getpid(), 9)")
    with pytest.raises(ConfigError, match="the process of rope, seed 3 ended with signal 9"):
        run_all({"rope, seed 3": killed}, jobs=1, environment={})


def test_ctrl_c_lets_the_children_save_what_they_have(tmp_path):
    saved, ready = tmp_path / "saved", tmp_path / "ready"
    child = (
        "exit_with_parent()\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "try:\n    time.sleep(300)\n"
        f"except KeyboardInterrupt:\n    open({str(saved)!r}, 'w').close()\n"
    )
    parent = command(f"import sys; run_all({{'a': {command(child)!r}}}, jobs=1, environment={{}})")
    process = subprocess.Popen(parent, stderr=subprocess.DEVNULL)
    try:
        wait_for(ready.exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    finally:
        process.kill()  # its child ends with it
        process.wait()
    assert saved.exists()


def test_children_end_with_a_parent_that_is_killed(tmp_path):
    number = tmp_path / "number"
    child = (
        "exit_with_parent(); "
        f"open({str(number)!r} + '.new', 'w').write(str(os.getpid())); "
        f"os.rename({str(number)!r} + '.new', {str(number)!r}); time.sleep(300)"
    )
    parent = command(f"run_all({{'a': {command(child)!r}}}, jobs=1, environment={{}})")
    process = subprocess.Popen(parent)
    wait_for(number.exists)
    process.kill()
    process.wait(60)
    wait_for(lambda: not alive(int(number.read_text())))
    assert not alive(int(number.read_text()))


def wait_for(condition, seconds=100):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def alive(process):
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    # An orphan that has ended stays as a zombie where nobody reaps it.
    return stat.rpartition(")")[2].split()[0] != "Z"
