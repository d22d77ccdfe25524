import json
import shlex

import numpy as np
import pytest
from config_files import FOLDER, SILENT
from typer.testing import CliRunner

from ropewalk.cli.convert import convert
from ropewalk.errors import ConfigError

QWEN = FOLDER / "qwen2.5-7b-yarn.json"


def call(*arguments):
    return CliRunner().invoke(convert, [str(argument) for argument in arguments])


def test_a_v5_file_has_one_dictionary_with_the_base_inside(tmp_path):
    new = tmp_path / "new" / "config.json"
    assert call("config", QWEN, "--to", "v5", "-o", new).exit_code == 0
    entries = json.loads(new.read_text())
    assert entries["rope_parameters"]["rope_theta"] == 1e6
    assert "rope_scaling" not in entries
    assert "must not exist" in str(call("config", QWEN, "--to", "v4", "-o", new).exception)


@pytest.mark.parametrize(
    ("to", "start"),
    [
        ("vllm", "--hf-overrides '{"),
        ("sglang", "--json-model-override-args '{"),
        ("llama.cpp", "--rope-freq-base 1000000 "),
        ("v4", "{"),
    ],
)
def test_every_form_is_printed(to, start):
    assert call("config", QWEN, "--to", to).output.startswith(start)


def test_a_command_line_is_read_as_the_server_reads_it():
    plain = FOLDER / "qwen2.5-7b.json"
    flags = call("config", QWEN, "--to", "llama.cpp").output
    result = call("config", plain, "--to", "vllm", "--flags", flags)
    given, wanted = (
        shlex.split(one.output) for one in (result, call("config", QWEN, "--to", "vllm"))
    )
    assert json.loads(given[1]) == json.loads(wanted[1])
    assert given[2:] == wanted[2:]
    assert "No closing quotation" in str(
        call("config", plain, "--to", "v5", "--flags", "'").exception
    )


def test_bad_requests_are_config_errors(tmp_path):
    assert "'v6'" in str(call("config", QWEN, "--to", "v6").exception)
    (tmp_path / "config.json").write_text(json.dumps(SILENT["S3"]))
    result = call("config", tmp_path, "--to", "v5")
    assert isinstance(result.exception, ConfigError)
    assert "THETA_LOST" in str(result.exception)


def test_weights_are_written_and_the_proof_is_shown(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {f"a.{x}_proj.weight": np.eye(8, dtype=np.float32) for x in "qk"}
    safetensors.save_file(arrays, tmp_path / "model.safetensors")
    config = {"model_type": "llama", "head_dim": 8, "rope_theta": 1e4}
    config |= {"hidden_size": 8, "num_attention_heads": 1, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    new = tmp_path / "new.safetensors"
    result = call("weights", tmp_path / "model.safetensors", new, "--to", "interleaved")
    assert result.exit_code == 0, result.exception
    assert "2 tensors: half -> interleaved" in result.output
    assert "scores equal" in result.output
