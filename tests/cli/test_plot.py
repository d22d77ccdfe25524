import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import typer
from config_files import FOLDER
from gguf_writer import gguf
from typer.testing import CliRunner

from ropewalk import RopeSpec
from ropewalk.analysis import bound_curve, distance_bound, pair_factors, similarity_curve
from ropewalk.cli import main
from ropewalk.cli.plot import plot
from ropewalk.errors import ConfigError

app = typer.Typer()
app.add_typer(plot, name="plot")
LLAMA, QWEN, GEMMA, PHI, SMOL, GPT_OSS = (
    FOLDER / f"{name}.json"
    for name in (
        "llama-3.1-8b",
        "qwen2.5-7b-yarn",
        "gemma-3-4b",
        "phi-3-mini-128k",
        "smollm2-135m",
        "gpt-oss-20b",
    )
)
SMOL_SPEC = RopeSpec(64, "half", theta=1e5)


def call(*arguments):
    return CliRunner().invoke(app, ["plot", *map(str, arguments)])


@pytest.fixture
def drawn(tmp_path):
    """Run a command with the data alone; return the columns of each curve."""

    def run(*arguments):
        out = tmp_path / "data.csv"
        result = call(*arguments, "--out", out, "--overwrite")
        assert result.exit_code == 0, result.exception or result.output
        assert result.output == f"{out}\n"
        head, *rows = csv.reader(out.read_text().splitlines())
        found = {}
        for name, *values in rows:
            columns = found.setdefault(name, {key: [] for key in head[1:]})
            for key, value in zip(head[1:], values, strict=True):
                columns[key].append(value)
        return found

    return run


def floats(column):
    return np.array(column, dtype=np.float64)


def message(*arguments):
    result = call(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    assert result.output == ""
    return str(result.exception)


@pytest.mark.parametrize(
    ("command", "form"), [("decay", "png"), ("wavelengths", "svg"), ("factors", "pdf")]
)
def test_every_figure_is_written_with_its_data(tmp_path, command, form):
    out = tmp_path / f"figure.{form}"
    result = call(command, SMOL, "--to", 16384, "--out", out)
    assert result.exit_code == 0, result.exception
    assert result.output == f"{out}\n{out.with_suffix('.csv')}\n"
    assert out.stat().st_size > 1000
    assert out.with_suffix(".csv").read_text().startswith("curve,")


def test_the_bound_of_the_paper(drawn):
    found = drawn("decay", "--head-dim", 64, "--head-dim", 128)
    assert list(found) == ["d = 64", "d = 128"]
    for width in (64, 128):
        curve = found[f"d = {width}"]
        assert curve["distance"] == [str(n) for n in range(257)]
        np.testing.assert_array_equal(floats(curve["bound"]), distance_bound(width))
    (only,) = drawn("decay", "--head-dim", 8, "--theta", 100, "--max-distance", 3).values()
    np.testing.assert_array_equal(floats(only["bound"]), distance_bound(8, 100.0, range(4)))


def test_a_scaled_rotation_is_drawn_beside_its_unscaled_form(drawn):
    found = drawn("decay", LLAMA, "--kind", "similarity", "--clamped")
    assert list(found) == ["unscaled", "unscaled, clamped", "Llama3", "Llama3, clamped"]
    distances = floats(found["Llama3"]["distance"])
    assert (distances[0], distances[-1]) == (1, 131072)
    spec = RopeSpec.from_config(LLAMA)
    np.testing.assert_array_equal(
        floats(found["Llama3"]["similarity"]), similarity_curve(spec, distances)
    )
    np.testing.assert_array_equal(
        floats(found["unscaled, clamped"]["similarity"]),
        similarity_curve(spec.replace(scaling=None), distances, clamped=True),
    )


@pytest.mark.parametrize("method", ["linear", "ntk", "dynamic", "yarn", "llama3"])
def test_a_stretched_rotation_is_that_of_extend(drawn, method):
    found = drawn("factors", SMOL, "--to", 32768, "--method", method)
    spec = SMOL_SPEC.extend(to=32768, method=method, original_max_position_embeddings=8192)
    assert list(found) == ["unscaled", f"{method} to 32768"]
    np.testing.assert_array_equal(
        floats(found[f"{method} to 32768"]["factor"]), pair_factors(spec, seq_len=32768)
    )
    bound = drawn("decay", SMOL, "--to", 32768, "--method", method, "--max-distance", 9)
    np.testing.assert_array_equal(
        floats(bound[f"{method} to 32768"]["bound"]),
        bound_curve(spec, range(10), seq_len=32768),
    )


def test_wavelengths_count_turns_in_the_trained_window(drawn):
    found = drawn("wavelengths", SMOL)["unscaled"]
    assert found["completes_turn"].count("False") == 12
    np.testing.assert_array_equal(floats(found["wavelength"]), SMOL_SPEC.wavelengths())
    np.testing.assert_array_equal(floats(found["turns"]), 8192 / SMOL_SPEC.wavelengths())
    shorter = drawn("wavelengths", SMOL, "--trained", 2048)["unscaled"]
    np.testing.assert_array_equal(floats(shorter["turns"]), 2048 / SMOL_SPEC.wavelengths())


def test_several_models_are_named_by_their_files(drawn, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(SMOL.read_text())
    found = drawn("factors", LLAMA, tmp_path / "one", tmp_path / "two" / "config.json", LLAMA)
    assert list(found) == ["llama-3.1-8b", "one", "two"]
    assert len(found["one"]["pair"]) == 32
    both = drawn("factors", tmp_path / "one", tmp_path / "one" / "config.json", "--to", 16384)
    assert next(iter(both)) == f"{tmp_path / 'one'}, unscaled"  # the same name twice: paths
    assert len(both) == 4


def test_rows_of_rules_that_depend_on_the_length(drawn):
    long, short = drawn("factors", PHI), drawn("factors", PHI, "--length", 4096)
    lists = json.loads(PHI.read_text())["rope_scaling"]
    for found, name in ((long, "long_factor"), (short, "short_factor")):
        np.testing.assert_allclose(floats(found["LongRope"]["factor"]), lists[name], rtol=1e-14)


def test_layer_types_are_chosen_where_the_layers_differ(drawn, tmp_path):
    types = ("full_attention", "sliding_attention")
    refused = message("factors", GEMMA, "-o", tmp_path / "x.csv")
    assert "layer_type must be among full_attention, sliding_attention" in refused
    assert "'gemma-3-4b' has several rotations; got None" in refused
    for name, factor in zip(types, (8.0, 1.0), strict=True):
        (found,) = drawn("factors", GEMMA, "--layer-type", name).values()
        np.testing.assert_allclose(floats(found["factor"]), factor, rtol=1e-14)
    both = drawn("factors", GEMMA, "--layer-type", types[0], "--layer-type", types[1], LLAMA)
    assert list(both) == [*(f"gemma-3-4b, {name}" for name in types), "llama-3.1-8b"]
    assert "full_attention" in message(
        "factors", GEMMA, "--layer-type", "chunked", "-o", tmp_path / "x.csv"
    )
    assert list(drawn("factors", GPT_OSS)) == ["Yarn"]  # two kinds of layers, one rotation


def test_a_gguf_file_is_read(drawn, tmp_path):
    head = {
        "general.architecture": "llama",
        "llama.embedding_length": 256,
        "llama.attention.head_count": 4,
        "llama.context_length": 2048,
        "llama.block_count": 2,
        "llama.rope.freq_base": 5e5,
        "llama.rope.dimension_count": 64,
    }
    (tmp_path / "tiny.gguf").write_bytes(gguf(head))
    found = drawn("wavelengths", tmp_path / "tiny.gguf")["unscaled"]
    expected = RopeSpec(64, "interleaved", theta=5e5).wavelengths()
    np.testing.assert_array_equal(floats(found["wavelength"]), expected)
    np.testing.assert_array_equal(floats(found["turns"]), 2048 / expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["decay"], "either CONFIG or --head-dim must be given; got None and None"),
        (["decay", SMOL, "--head-dim", 64], "and [64]"),
        (["decay", SMOL, "--theta", 500], "CONFIG has its own; got 500"),
        (["decay", "--head-dim", 7], "head_dim must be a multiple of 2; got 7"),
        (["decay", "--head-dim", 0], "head_dim must be an integer of at least 1; got 0"),
        (["decay", "--head-dim", 65538], "head_dim must be at most 65536; got 65538"),
        (["decay", "--head-dim", 64, "--theta", 1], "theta must be a finite number greater"),
        (["decay", "--head-dim", 64, "--theta", "nan"], "theta must be a finite number"),
        (["decay", "--head-dim", 64, "--layer-type", "all"], "--layer-type goes with CONFIG"),
        (["decay", SMOL, "--kind", "decay"], "'bound', 'similarity'; got 'decay'"),
        (["decay", SMOL, "--clamped"], "clamped needs kind='similarity'; got kind='bound'"),
        (["decay", SMOL, "--max-distance", 0], "max_distance must be an integer of at least 1"),
        (["decay", SMOL, "--method", "ntk"], "method needs the length to stretch to (--to)"),
        (["decay", SMOL, "--to", 9000, "--method", "magic"], "got 'magic'"),
        (["decay", SMOL, "--to", 100], "to must be at least the trained length 8192; got 100"),
        (["decay", LLAMA, "--to", 262144], "rule already at work"),
        (["decay", "--head-dim", 64, "--to", 100], "trained must be given (--trained)"),
        (["decay", SMOL, "--length", 100], "length must be left out where no rule depends on it"),
        (["factors", PHI, "--length", 0], "length must be an integer of at least 1; got 0"),
        (["wavelengths", "--head-dim", 64], "--trained must be given"),
        (["wavelengths", SMOL, LLAMA, PHI], "not the same for all"),
        (["wavelengths", SMOL, "--trained", -1], "trained must be an integer of at least 1"),
        (["factors", "nowhere.json"], "nowhere.json"),
        (["factors", FOLDER], "config.json"),
        (["factors", SMOL, "--layer-type", "full"], "layer_type must be one of 'all'; got 'full'"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path, arguments, words):
    assert words in message(*arguments, "-o", tmp_path / "x.csv")
    assert list(tmp_path.iterdir()) == []


def test_files_are_not_overwritten_unasked(tmp_path):
    out = tmp_path / "x.svg"
    assert call("factors", SMOL, "-o", out).exit_code == 0
    assert "x.svg' is overwritten only if told so" in message("factors", SMOL, "-o", out)
    assert call("factors", SMOL, "-o", out, "--overwrite").exit_code == 0
    assert "must end in .png, .svg, .pdf" in message("factors", SMOL, "-o", tmp_path / "x.jpg")


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ropewalk", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_a_refusal_is_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for arguments in (
        ("factors", "nowhere.json", "-o", tmp_path / "x.png"),
        ("factors", SMOL, "-o", tmp_path / "file" / "x.png"),
        ("factors", SMOL, "-o", tmp_path / "x.jpeg"),
        ("wavelengths", GEMMA, "-o", tmp_path / "x.png"),
    ):
        assert run(monkeypatch, "plot", *arguments) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("ropewalk: error: ")
        assert shown.err.count("\n") == 1


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_without_permission_is_one_line(monkeypatch, capsys, tmp_path):
    tmp_path.chmod(0o500)
    assert run(monkeypatch, "plot", "factors", SMOL, "-o", tmp_path / "x.png") == 2
    assert "Permission denied" in capsys.readouterr().err


def test_without_matplotlib_the_data_are_offered(monkeypatch, capsys, tmp_path):
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.ticker"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("plots", "figure_style"):
        monkeypatch.delitem(sys.modules, f"ropewalk.analysis.{name}", raising=False)
        monkeypatch.delattr(f"ropewalk.analysis.{name}", raising=False)
    assert run(monkeypatch, "plot", "factors", SMOL, "-o", tmp_path / "x.png") == 2
    assert "pip install 'ropewalk[plot]'; --out FILE.csv" in capsys.readouterr().err
    assert run(monkeypatch, "plot", "factors", SMOL, "-o", tmp_path / "x.csv") == 0
    assert (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("command", [[], ["decay"], ["wavelengths"], ["factors"]])
def test_help_has_examples(command):
    result = call(*command, "--help")
    assert result.exit_code == 0
    if command:
        assert "Examples" in result.output
        assert f"ropewalk plot {command[0]}" in result.output
    else:
        assert all(name in result.output for name in ("decay", "wavelengths", "factors"))


@pytest.mark.parametrize(("ending", "absent"), [("csv", "torch matplotlib"), ("svg", "torch")])
def test_no_more_is_loaded_than_needed(tmp_path, ending, absent):
    code = (
        "import sys\nfrom ropewalk.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        f"print([name for name in {absent.split()!r} if name in sys.modules])"
    )
    out = tmp_path / f"x.{ending}"
    done = subprocess.run(
        [sys.executable, "-c", code, "plot", "decay", str(LLAMA), "-o", str(out)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
