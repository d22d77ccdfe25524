import json
import re
import shlex
import subprocess
import sys
import time

import pytest
import typer
from config_files import FOLDER, NAMES, SILENT
from typer.testing import CliRunner

from ropewalk.cli.inspect import inspect
from ropewalk.errors import ConfigError

app = typer.Typer()
app.command("inspect")(inspect)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", NAMES)
def test_a_clean_file_exits_0_and_a_finding_1(name):
    result = call(FOLDER / f"{name}.json")
    assert result.exit_code == (1 if "phi-3" in name else 0)
    assert "theta" in result.output
    assert "\x1b[" not in result.output


def test_findings_are_one_line_each_with_code_severity_and_remedy(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SILENT["S3"]))
    result = call(tmp_path)
    (line,) = [line for line in result.output.splitlines() if line.startswith("THETA_LOST")]
    assert result.exit_code == 1
    assert "error: " in line
    assert " -> remove rope_scaling" in line


def test_notes_count_only_if_strict(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama", "head_dim": 64, "max_position_embeddings": 2048}')
    assert call(file).exit_code == 0
    assert call(file, "--strict").exit_code == 1


def test_the_json_is_one_object_and_the_target_in_it():
    result = call(FOLDER / "smollm2-135m.json", "--json", "--target", 32768, "--engine", "vllm")
    form = json.loads(result.stdout)
    assert (form["target"], [row["engine"] for row in form["engines"]]) == (32768, ["vllm"])
    assert form["layer_types"][0]["candidates"][0]["method"] == "yarn"


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("llama-3.1-8b", 200_000, "none: llama3 is at work already"),
        ("smollm2-135m", 8192, "none: it was trained at 8192"),
        ("gemma-3-4b", 200_000, "none: the trained length is not known"),
        ("gemma-3-4b", 200_000, "none: its window does not grow"),
    ],
)
def test_where_a_target_has_no_candidates_the_reason_is_given(name, target, reason):
    shown = call(FOLDER / f"{name}.json", "--target", target).output
    assert f"candidates   {reason}\n" in shown
    assert "candidate " not in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSON or GGUF"),
        ("[" * 100_000, "JSON or GGUF"),
        ("[]", "JSON object"),
        ("{}", "no rope entries"),
        ('{"model_type": "bert", "hidden_size": 64}', "no rope entries"),
        ('{"rope_theta": 1e4}', "head_dim"),
        ('{"model_type": "llama", "head_dim": 64, "max_position_embeddings": -3}', "-3"),
    ],
)
def test_what_cannot_be_read_is_a_config_error(tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_text(content)
    result = call(file)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_a_missing_file_and_an_unknown_engine_are_named():
    assert "nowhere.json" in str(call("nowhere.json").exception)
    assert "'tgi'" in str(call(FOLDER / "llama-3.1-8b.json", "--engine", "tgi").exception)


def test_it_answers_without_loading_torch():
    code = (
        "import sys; from ropewalk.cli.inspect import inspect;"
        f"inspect({str(FOLDER / 'llama-3.1-8b.json')!r}, None, None, False, False);"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    start = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "llama3" in result.stdout
    # a generous bound that only a stray heavy import breaks; the benchmark times it
    assert time.perf_counter() - start < 20


PAGE = FOLDER.parents[2] / "docs" / "inspect.md"
SHOWN = re.findall(r"```text\n\$ ropewalk (.*)\n((?s:.*?))\n```", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=range(len(SHOWN)))
def test_the_page_shows_what_the_commands_print(monkeypatch, command, output):
    from ropewalk.cli.app import app as whole

    monkeypatch.chdir(PAGE.parents[1])
    assert CliRunner().invoke(whole, shlex.split(command)).output.rstrip() == output.rstrip()
