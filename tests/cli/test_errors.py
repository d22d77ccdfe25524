"""Whatever a user can cause ends in one line, exit code 2, and no file or folder left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

from ropewalk.cli import main

SMALL = "--block-size 16 --vocab-size 90 --layers 1 --hidden-size 16 --heads 2 --batch-size 4"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in tiny.documents()))
    return path


@pytest.fixture
def refusal(monkeypatch, capsys):
    """Run a command that must be refused; return its one line."""

    def run(line, *more):
        monkeypatch.setattr(sys, "argv", ["ropewalk", *line.split(), *map(str, more)])
        with pytest.raises(SystemExit) as caught:
            main()
        shown = capsys.readouterr()
        assert caught.value.code == 2
        assert shown.out == ""
        assert "Traceback" not in shown.err
        lines = shown.err.splitlines()
        assert len(lines) == 1, shown.err
        assert lines[0].startswith("ropewalk: error: ")
        return lines[0]

    return run


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("missing.txt", None, "missing.txt"),
        ("*.txt", None, "matches no file"),
        ("empty.txt", b"", "empty"),
        ("blank.txt", b" \n\n\t ", "hold some text"),
        ("binary.txt", b"text\0more", "not a text file (NUL byte at offset 4)"),
        ("latin.txt", "caf\u00e9".encode("latin-1"), "not UTF-8 text (byte 0xe9 at offset 3)"),
        ("cut.txt.gz", b"\x1f\x8b\x08\0", "gzip"),
        ("lines.jsonl", b'{"text": 3}', "'text' must be a string"),
        ("lines.jsonl", b'{"body": "x"}', "'text' is missing"),
    ],
)
def test_unusable_text_is_named(refusal, tmp_path, name, data, message):
    source = tmp_path / name if data is None else write(tmp_path / name, data)
    before = sorted(tmp_path.iterdir())
    line = refusal(f"pretrain {SMALL} --steps 2 --quiet --output", tmp_path / "run", source)
    assert message in line
    assert str(tmp_path) in line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--hidden-size 10", "must be even to be rotated in pairs; got 10 / 2 = 5"),
        ("--heads 3", "hidden_size must be a multiple of num_attention_heads=3; got 16"),
        ("--position-encoding rotary", "position_encoding must be one of"),
        ("--position-encoding none --rope-parameters {}", "rope_parameters"),
        ("--rope-parameters {factor", "rope_parameters must be JSON; got '{factor'"),
        ('--rope-parameters {"rope_type":"what"}', "what"),
        ("--batch-size 6 --gradient-accumulation 4", "gradient_accumulation=4; got 6"),
        ("--precision fp16 --device cpu", "precision='fp16' needs a CUDA device"),
        ("--learning-rate -1", "learning_rate must be a finite number greater than 0; got -1.0"),
        ("--vocab-size 12", "vocab_size must be at least"),
        ("--block-size 9000", "must fill at least one block"),
        ("--tokenizer nowhere", "no tokenizer.json in 'nowhere'"),
        ("--seed 4294967296", "seed must be at most 4294967295; got 4294967296"),
        (f"--steps 1{'0' * 22}", "steps must be at most 2147483647"),
        ("--learning-rate 1e300", "learning_rate must be at most 1e+30; got 1e+300"),
        ("--embedding-size 0", "embedding_size must be an integer of at least 1; got 0"),
        ("--block-size 10000000000000", "block_size must be at most 2147483647"),
        (f"--rope-parameters {'[' * 10_000}", "rope_parameters must be JSON"),
        (f"--rope-parameters {'9' * 5000}", "rope_parameters must be JSON"),
        ("--config ~nosuchuser/x", "config: cannot look at '~nosuchuser/x'"),
        ("--tokenizer ~nosuchuser/x", "tokenizer: cannot look at '~nosuchuser/x'"),
        ("--preset paper", "preset must be one of 'paper-mlm', 'modern'; got 'paper'"),
        (
            "--global-every 3",
            "sliding_window must be given if and only if global_every",
        ),
        ("--sliding-window 8", "got sliding_window=8, global_every=1"),
        ("--preset modern --layers 1", "sliding_window has no effect without 'sliding_attention'"),
        ("--config nowhere.toml", "cannot read 'nowhere.toml'"),
        ("--dataset nowhere/nothing", "cannot load 'nowhere/nothing'"),
        ("--field body", "'body' is missing"),
        ("--resume --overwrite", "exclude each other"),
    ],
)
def test_impossible_settings_are_named(refusal, source, tmp_path, flags, message):
    before = sorted(tmp_path.iterdir())
    small = f"pretrain {SMALL} --steps 2 --quiet"
    line = refusal(f"{small} {flags} --output", tmp_path / "run", source)
    assert message in line
    assert sorted(tmp_path.iterdir()) == before


def test_an_output_folder_is_needed(refusal, source):
    assert "output must name the folder" in refusal("pretrain", source)


def test_an_output_folder_in_use_is_left_alone(refusal, source, tmp_path):
    output = tmp_path / "photos"
    output.mkdir()
    (output / "ship.jpg").write_text("ship")
    for flag in ("", "--overwrite", "--resume"):
        line = refusal(f"pretrain {SMALL} --steps 2 {flag} --output", output, source)
        assert f"output '{output}' is not empty" in line
    assert [path.name for path in output.iterdir()] == ["ship.jpg"]


def test_a_corrupted_checkpoint_is_not_continued(refusal, source, tmp_path, monkeypatch, capsys):
    output = tmp_path / "run"
    command = f"pretrain {SMALL} --steps 2 --quiet --output"
    monkeypatch.setattr(sys, "argv", ["ropewalk", *command.split(), str(output), str(source)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    capsys.readouterr()
    checkpoint = output / "training" / "checkpoints" / "checkpoint-2"
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    line = refusal(f"{command}", output, source, "--resume")
    assert f"{checkpoint} is no whole checkpoint: the size of model.safetensors" in line


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (MemoryError(), "--batch-size"),
        (torch.OutOfMemoryError("CUDA out of memory."), "--batch-size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "--batch-size"),
        (OSError(28, "No space left on device"), "standard output cannot be written: No space"),
        (OSError(13, "Permission denied", "file.txt"), "file.txt: Permission denied"),
    ],
)
def test_what_the_machine_lacks_is_named(refusal, monkeypatch, error, remedy):
    from ropewalk.recipes import pretrain

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(pretrain, "plan", fail)
    assert remedy in refusal("pretrain --dry-run -o x")


def test_other_errors_are_not_hidden(monkeypatch):
    import ropewalk.cli.app as module

    def fail(**_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(module, "app", fail)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        main()


COMMAND = [sys.executable, "-m", "ropewalk", "env"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"], ["--help"]])
def test_an_output_that_cannot_be_written_is_one_line(more):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*COMMAND, *more], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "ropewalk: error: the standard output cannot be written: No space left on device"
    ]


def test_a_reader_that_has_seen_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(COMMAND, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [("no mask", "text must have a mask"), ("a [MASK]", "must be the folder of a saved model")],
)
def test_fill_mask_names_what_is_missing(refusal, tmp_path, text, message):
    folder = tmp_path / "model"
    if text == "no mask":
        from ropewalk.recipes.checkpointing import save_model

        save_model(tiny.model(), tiny.tokenizer(), folder)
    assert message in refusal("fill-mask", folder, text)


LLAMA = Path(__file__).parents[1] / "golden" / "configs" / "llama-3.1-8b.json"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("inspect {config} --target 0", "target must be an integer of at least 1; got 0"),
        ("diff {config} {config} --length 0", "--length must be an integer of at least 1; got 0"),
        ("diff {config} {config} --length -1", "--length must be an integer of at least 1; got -1"),
        ("verify {dump} {config} --length 0", "--length must be an integer of at least 1; got 0"),
        ("verify {tmp}/none.npy {config}", "DUMP must be a file; got '{tmp}/none.npy'"),
        ("verify {tmp} {config}", "DUMP must be a file; got '{tmp}'"),
        (
            "convert weights {tmp}/none {tmp}/new --to half",
            "got '{tmp}/none', which does not exist",
        ),
        ("convert weights {tmp} {tmp}/new --to both", "--to must be one of 'half', 'interleaved'"),
        ("convert weights {tmp} {tmp}/new --to half --from up", "--from must be one of 'half'"),
        (
            "convert config {config} --to v5 -o {dump}/x",
            "--output must be a file that can be writt",
        ),
        ("convert config {config} --to v5 -o {tmp}", "--output must not exist; got '{tmp}'"),
        ("plot factors --out {tmp}/x.csv {config} --length 0", "length must be left out where no"),
    ],
)
def test_options_of_the_commands_for_configs_are_named(refusal, tmp_path, line, message):
    dump = write(tmp_path / "dump.json", b"[1.0]")
    names = {"config": LLAMA, "tmp": tmp_path, "dump": dump}
    shown = refusal(line.format(**names))
    assert message.format(**names) in shown
    assert list(tmp_path.iterdir()) == [dump]
