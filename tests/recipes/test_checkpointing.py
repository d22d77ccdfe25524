import errno
import json
import logging
import os

import pytest
import tiny

from ropewalk import CheckpointError
from ropewalk.recipes.checkpointing import (
    MANIFEST,
    check,
    keep_newest,
    latest_checkpoint,
    save_model,
    whole_folder,
    write_manifest,
)


def make(folder, step):
    place = folder / "checkpoints" / f"checkpoint-{step}"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(bytes(range(200)))
    (place / "state.json").write_text("{}")
    write_manifest(place, step=step, seconds=1.5)
    return place


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    path.write_bytes(bytes(data))


def said(place, key, value):
    fields = {"step": "1", "seconds": "1.0", "files": "{}"} | {key: value}
    text = ", ".join(f'"{name}": {content}' for name, content in fields.items())
    (place / MANIFEST).write_text(f"{{{text}}}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda place: cut(place / "model.safetensors"), "the size of model.safetensors"),
        (lambda place: flip(place / "model.safetensors"), "the checksum of model.safetensors"),
        (lambda place: (place / "state.json").unlink(), "state.json is missing"),
        (lambda place: (place / MANIFEST).unlink(), "manifest.json is missing"),
        (lambda place: cut(place / MANIFEST) or cut(place / MANIFEST), "cannot be read"),
        (lambda place: (place / MANIFEST).write_text("[]"), "cannot be read"),
        (lambda place: (place / MANIFEST).write_text('{"step": 1}'), "cannot be read"),
        (lambda place: said(place, "step", "Infinity"), "cannot be read"),
        (lambda place: said(place, "step", "9" * 5000), "cannot be read"),
        (lambda place: said(place, "seconds", '"x"'), "cannot be read"),
        (lambda place: said(place, "files", "[" * 100_000), "cannot be read"),
        (lambda place: said(place, "files", "[3]"), "cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_recognised(tmp_path, damage, message):
    place = make(tmp_path, 3)
    assert check(place).step == 3
    damage(place)
    with pytest.raises(CheckpointError, match=message):
        check(place)


def test_the_newest_whole_checkpoint_is_taken_and_torn_ones_are_named(tmp_path, caplog):
    for step in (2, 10, 9, 30):
        make(tmp_path, step)
    cut(tmp_path / "checkpoints" / "checkpoint-30" / "model.safetensors")
    (tmp_path / "checkpoints" / "checkpoint-99.old").mkdir()
    with caplog.at_level(logging.WARNING):
        found = latest_checkpoint(tmp_path)
    assert (found.step, found.seconds) == (10, 1.5)
    assert [record.message.count("checkpoint-30") for record in caplog.records] == [1]


def test_no_checkpoint_is_no_error_but_torn_ones_alone_are(tmp_path, caplog):
    assert latest_checkpoint(tmp_path / "missing") is None
    place = make(tmp_path, 5)
    (place / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint-5 .*start anew"):
        latest_checkpoint(tmp_path)


def test_old_checkpoints_and_leftovers_of_killed_writers_are_removed(tmp_path):
    for step in (2, 10, 9, 99, 100):  # the run went on after 9, since 99 and 100 were torn
        make(tmp_path, step)
    (tmp_path / "checkpoints" / ".checkpoint-12.0123ab12.partial").mkdir()
    (tmp_path / "checkpoints" / ".checkpoint-notes").mkdir()
    keep_newest(tmp_path, 2, step=10)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        ".checkpoint-notes",
        "checkpoint-10",
        "checkpoint-9",
    ]


@pytest.mark.parametrize("function", ["safetensors", "tokenizer"])
def test_a_full_disk_leaves_the_model_that_was_there(tmp_path, monkeypatch, function):
    target = tmp_path / "model"
    target.mkdir()
    (target / "before").write_text("whole")

    def full(*args, **kwargs):
        if function == "tokenizer":
            raise Exception("No space left on device (os error 28)")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if function == "safetensors":
        monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    else:
        monkeypatch.setattr(type(tiny.tokenizer()), "save_pretrained", full)
    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        save_model(tiny.model(), tiny.tokenizer(), target)
    assert f"{target} cannot be written" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in target.iterdir()] == ["before"]


def test_a_saved_model_can_be_loaded_with_its_tokenizer(tmp_path):
    from ropewalk.data import load_tokenizer
    from ropewalk.models import load_masked_lm

    save_model(tiny.model(), tiny.tokenizer(), tmp_path / "model")
    assert load_masked_lm(tmp_path / "model").config.is_vanilla
    assert load_tokenizer(tmp_path / "model").get_vocab() == tiny.tokenizer().get_vocab()


def test_an_error_inside_leaves_nothing(tmp_path):
    def write_half():
        with whole_folder(tmp_path / "x") as place:
            (place / "file").write_text("half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_names_every_file(tmp_path):
    place = make(tmp_path, 1)
    content = json.loads((place / MANIFEST).read_text())
    assert sorted(content["files"]) == ["model.safetensors", "state.json"]
