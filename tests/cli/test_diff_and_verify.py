import json

import numpy as np
import pytest
import typer
from config_files import FOLDER
from typer.testing import CliRunner

from ropewalk.cli.diff import diff
from ropewalk.cli.verify import verify
from ropewalk.errors import ConfigError

app = typer.Typer()
app.command("diff")(diff)
app.command("verify")(verify)
LLAMA, QWEN, GPT_OSS, GEMMA = (
    str(FOLDER / f"{name}.json")
    for name in ("llama-3.1-8b", "qwen2.5-7b-yarn", "gpt-oss-20b", "gemma-3-4b")
)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_file_is_like_itself_and_unlike_another():
    assert call("diff", LLAMA, LLAMA).exit_code == 0
    plain = str(FOLDER / "qwen2.5-7b.json")
    result = call("diff", plain, QWEN)
    assert result.exit_code == 1
    assert "40 of 64 pairs differ" in result.output
    assert "pairs             24-63" in result.output
    assert "1, 1.138629" in result.output


def test_one_file_in_two_engines():
    result = call("diff", GPT_OSS, "-e", "hf", "-e", "llama.cpp", "--json")
    form = json.loads(result.stdout)
    assert (form["schema"], form["layer_types"][0]["alike"]) == ("ropewalk.diff/1", False)
    assert result.exit_code == 1
    assert call("diff", GPT_OSS, "-e", "hf", "-e", "vllm").exit_code == 0


def test_one_file_in_one_engine_is_no_question():
    assert "twice" in str(call("diff", LLAMA).exception)


@pytest.mark.parametrize(("scale", "exit_code", "word"), [(1, 0, "RIGHT"), (8, 1, "UNEXPLAINED")])
def test_verify_says_right_or_what_is_nearest(tmp_path, scale, exit_code, word):
    inv_freq = json.loads((FOLDER / "llama-3.1-8b.json").read_text())["rope_theta"] ** (
        -np.arange(64) / 64
    )
    np.save(tmp_path / "dump.npy", inv_freq * scale)
    result = call("verify", tmp_path / "dump.npy", FOLDER / "smollm2-135m.json")
    assert isinstance(result.exception, ConfigError)  # 64 frequencies for 32 pairs
    config = {"model_type": "llama", "head_dim": 128, "rope_theta": 5e5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = call("verify", tmp_path / "dump.npy", tmp_path)
    assert result.exit_code == exit_code
    assert result.output.startswith(word)


def test_an_unscaled_backend_is_found_out(tmp_path):
    np.save(tmp_path / "dump.npy", 5e5 ** (-np.arange(64) / 64))
    result = call("verify", tmp_path / "dump.npy", LLAMA, "--json")
    form = json.loads(result.stdout)
    assert (form["right"], form["best"]["code"]) == (False, "UNSCALED")


def test_several_rotations_must_be_named(tmp_path):
    np.save(tmp_path / "dump.npy", 1e4 ** (-np.arange(128) / 128))
    assert "full_attention, sliding_attention" in str(
        call("verify", tmp_path / "dump.npy", GEMMA).exception
    )
    result = call("verify", tmp_path / "dump.npy", GEMMA, "--layer-type", "sliding_attention")
    assert result.exit_code == 0
