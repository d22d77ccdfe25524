"""Folders: written whole or not at all, and loaded as what they are or refused."""

from __future__ import annotations

import errno
import json
import logging
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.models import (
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerModel,
    is_leftover,
    load_masked_lm,
    write_folder_atomically,
)

Build = Callable[..., Any]
TABLE = "roformer.encoder.embed_positions.weight"


@pytest.fixture
def saved(build: Build, tmp_path: Path) -> Path:
    """A folder with a masked language model."""
    folder = tmp_path / "model"
    build(RoFormerForMaskedLM).save_pretrained(folder)
    return folder


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"embedding_size": 16, "rotary_value": True},
        {"position_encoding": "learned"},
        {"position_encoding": "sinusoidal"},
        {"position_encoding": "none"},
        {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}},
    ],
    ids=str,
)
def test_saving_and_loading_gives_the_same_model(
    build: Build, ids: torch.Tensor, tmp_path: Path, fields: dict[str, Any]
) -> None:
    model = build(RoFormerForMaskedLM, **fields)
    model.save_pretrained(tmp_path)
    back = load_masked_lm(tmp_path)
    assert not back.training
    assert {n: v.shape for n, v in back.state_dict().items()} == {
        n: v.shape for n, v in model.state_dict().items()
    }
    assert torch.equal(back(ids).logits, model(ids).logits)
    assert (TABLE in load_file(tmp_path / "model.safetensors")) == model.config.is_vanilla


def test_a_saved_file_is_a_whole_state_dict(build: Build, saved: Path, ids: torch.Tensor) -> None:
    weights = load_file(saved / "model.safetensors")
    assert "cls.predictions.decoder.weight" not in weights  # tied, and so stored once
    other = build(RoFormerForMaskedLM, seed=5)
    other.load_state_dict(weights)
    assert torch.equal(other(ids).logits, load_masked_lm(saved)(ids).logits)
    del weights["cls.predictions.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*cls\.predictions\.bias"):
        other.load_state_dict(weights)


def test_auto_classes_read_what_only_ropewalk_computes(build: Build, tmp_path: Path) -> None:
    fields = {"position_encoding": "none"}
    build(RoFormerForMaskedLM, **fields).save_pretrained(tmp_path / "lm")
    build(RoFormerForSequenceClassification, **fields).save_pretrained(tmp_path / "classes")
    auto = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "lm")
    assert type(auto) is RoFormerForMaskedLM
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "lm")) is RoFormerModel
    classes = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "classes")
    assert type(classes) is RoFormerForSequenceClassification


def test_auto_classes_still_give_transformers_own_roformer(saved: Path) -> None:
    auto = transformers.AutoModelForMaskedLM.from_pretrained(saved)
    assert type(auto) is transformers.RoFormerForMaskedLM


def test_a_trained_model_may_be_stretched_while_loading(saved: Path, ids: torch.Tensor) -> None:
    plain = load_masked_lm(saved)
    rule = {"rope_type": "linear", "factor": 2.0}
    stretched = RoFormerForMaskedLM.from_pretrained(saved, rope_parameters=rule)
    here = plain(ids, position_ids=torch.arange(20) / 2).logits
    # fp32: the same angles, halved before or after the product with the position.
    torch.testing.assert_close(stretched(ids).logits, here, rtol=0, atol=1e-5)


def test_another_trained_length_is_no_obstacle(saved: Path, ids: torch.Tensor) -> None:
    here = load_masked_lm(saved)(ids).logits
    change_config(saved, max_position_embeddings=512)
    assert torch.equal(load_masked_lm(saved)(ids).logits, here)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_stored_table_may_be_rounded(saved: Path, dtype: torch.dtype) -> None:
    theirs = transformers.RoFormerForMaskedLM.from_pretrained(saved).to(dtype)
    theirs.save_pretrained(saved)
    assert load_masked_lm(saved).dtype == dtype
    theirs.float().save_pretrained(saved)
    assert load_masked_lm(saved).dtype == torch.float32


def wrong_tables() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    return {
        "cosines first": lambda t: t.roll(t.shape[1] // 2, dims=1),
        "next position": lambda t: t.roll(1, dims=0),
        "one value": lambda t: t.index_put((torch.tensor(3), torch.tensor(2)), t[3, 2] + 0.01),
        "not a number": lambda t: t.index_put(
            (torch.tensor(3), torch.tensor(2)), t.new_tensor(torch.nan)
        ),
        "another width": lambda t: t[:, :-2],
    }


@pytest.mark.parametrize("name", list(wrong_tables()))
def test_a_stored_table_of_another_rotation_is_refused(saved: Path, name: str) -> None:
    def spoil(weights: dict[str, Any]) -> None:
        weights[TABLE] = wrong_tables()[name](weights[TABLE]).contiguous()

    change_weights(saved, spoil)
    with pytest.raises(CheckpointError, match=r"encoder\.embed_positions\.weight"):
        load_masked_lm(saved)
    model = RoFormerForMaskedLM(transformers_config(saved))
    with pytest.raises(CheckpointError, match=r"the state dict has an encoder\.embed_positions"):
        model.load_state_dict(load_file(saved / "model.safetensors"), strict=False)


def transformers_config(folder: Path) -> Any:
    return RoFormerForMaskedLM.config_class.from_pretrained(folder)


def test_fine_tuning_starts_from_a_masked_language_model(
    saved: Path, ids: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model, info = RoFormerForSequenceClassification.from_pretrained(
            saved, num_labels=3, output_loading_info=True
        )
    assert model(ids).logits.shape == (3, 3)
    assert "classifier.out_proj.weight" in info["missing_keys"]
    assert [record.name for record in caplog.records] == ["ropewalk.models.exchange"]
    assert "are fresh, train them before use: classifier.dense.bias" in caplog.text
    assert torch.equal(
        model.roformer(ids).last_hidden_state, RoFormerModel.from_pretrained(saved)(ids)[0]
    )


def test_a_fresh_head_of_another_size_must_be_asked_for(build: Build, tmp_path: Path) -> None:
    build(RoFormerForSequenceClassification).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"classifier\.out_proj\.weight \(2, 32\) not \(5"):
        RoFormerForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    model = RoFormerForSequenceClassification.from_pretrained(
        tmp_path, num_labels=5, ignore_mismatched_sizes=True
    )
    assert model.classifier.out_proj.out_features == 5


def test_a_model_without_a_language_head_cannot_fill_masks(build: Build, tmp_path: Path) -> None:
    build(RoFormerModel).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"missing cls\.predictions\.bias"):
        load_masked_lm(tmp_path)


def drop(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda weights: weights.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            drop("roformer.encoder.layer.1.output.dense.bias"),
            r"missing roformer\.encoder\.layer\.1",
        ),
        (drop("cls.predictions.transform.dense.bias"), r"missing cls\.predictions\.transform"),
        (
            lambda w: w.update({"roformer.pooler.dense.bias": torch.ones(2)}),
            "unexpected roformer.p",
        ),
        (lambda w: w.update({"cls.other": torch.ones(2)}), r"unexpected cls\.other"),
        (
            lambda w: w.update({"roformer.embeddings.LayerNorm.bias": torch.ones(7)}),
            r"of another shape roformer\.embeddings\.LayerNorm\.bias \(7,\) not \(32,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_listed(
    saved: Path,
    change: Callable[[dict[str, Any]], object],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change_weights(saved, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_masked_lm(saved)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caplog.text == ""


def test_half_a_classification_head_is_not_a_fresh_one(build: Build, tmp_path: Path) -> None:
    build(RoFormerForSequenceClassification).save_pretrained(tmp_path)
    change_weights(tmp_path, drop("classifier.dense.weight"))
    with pytest.raises(CheckpointError, match=r"missing classifier\.dense\.weight"):
        RoFormerForSequenceClassification.from_pretrained(tmp_path)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def write_pickle(folder: Path, content: Any) -> None:
    (folder / "model.safetensors").unlink()
    if isinstance(content, bytes):
        (folder / "pytorch_model.bin").write_bytes(content)
    else:
        torch.save(content, folder / "pytorch_model.bin")


class RunsCode:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was run",))


def write_index(folder: Path, content: str | bytes) -> None:
    (folder / "model.safetensors").unlink()
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "model.safetensors.index.json").write_bytes(data)


def with_field(name: str, value: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(path.read_text().replace("{", f'{{"{name}": {value},', 1))

    return change


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda f: cut(f / "model.safetensors", 20_000), "incomplete metadata"),
    "header only": (lambda f: cut(f / "model.safetensors", 5), "header too small"),
    "empty file": (lambda f: cut(f / "model.safetensors", 0), "header too small"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no file named model.safetens"),
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json with the fields"),
    "config not JSON": (lambda f: cut(f / "config.json", 30), "not a valid JSON file"),
    "bad pickle": (lambda f: write_pickle(f, b"nothing"), "is damaged, or holds more"),
    "pickled code": (lambda f: write_pickle(f, {"a": RunsCode()}), "is damaged, or holds more"),
    "pickled list": (lambda f: write_pickle(f, [torch.ones(2)]), "cannot be loaded"),
    "pickled tensor": (lambda f: write_pickle(f, torch.ones(2)), "cannot be loaded"),
    "pickled None": (lambda f: write_pickle(f, None), "cannot be loaded"),
    "pickled numbers": (lambda f: write_pickle(f, {1: torch.ones(2)}), "cannot be loaded"),
    "index a list": (lambda f: write_index(f, "[]"), "cannot be loaded"),
    "index empty": (lambda f: write_index(f, "{}"), "cannot be loaded"),
    "map a list": (lambda f: write_index(f, '{"weight_map": []}'), "cannot be loaded"),
    "map empty": (lambda f: write_index(f, '{"weight_map": {}}'), "cannot be loaded"),
    "map of numbers": (lambda f: write_index(f, '{"weight_map": {"a": 1}}'), "cannot be loaded"),
    "index binary": (lambda f: write_index(f, b"\xff\xfe\0"), "cannot be loaded: UnicodeDecode"),
    "index deep": (lambda f: write_index(f, "[" * 100_000), "cannot be loaded: Recursion"),
    "index long": (lambda f: write_index(f, f'{{"a": {"1" * 5000}}}'), "cannot be loaded: Value"),
    "config binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "not a valid JSON"),
    "config deep": (with_field("id2label", "[" * 100_000), "no readable config.json: Recursion"),
    "config long": (with_field("vocab_size", "1" * 5000), "no readable config.json: ValueError"),
    "torn pickle": (lambda f: write_pickle(f, b"PK\x03\x04 torn"), "cannot be loaded"),
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_damaged_folders_are_refused_in_one_line(saved: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(saved)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_masked_lm(saved)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [None, 5, b"x", "a\0b", "/" + "x" * 5000, "~nouser/x"], ids=repr)
def test_what_cannot_be_a_model_folder_is_refused_in_one_line(path: Any) -> None:
    for load in (load_masked_lm, RoFormerForMaskedLM.from_pretrained):
        if load != load_masked_lm and path == "~nouser/x":
            continue  # may be a name on the hub
        with pytest.raises(CheckpointError) as caught:
            load(path)
        assert "\n" not in str(caught.value)
        assert "\0" not in str(caught.value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["long", "zero byte"])
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(
    build: Build, tmp_path: Path, name: str
) -> None:
    model = build(RoFormerForMaskedLM)
    with pytest.raises(CheckpointError, match="cannot be written") as caught:
        model.save_pretrained(tmp_path / name)
    assert "\n" not in str(caught.value)
    refused = write_folder_atomically(tmp_path / name)
    with pytest.raises(CheckpointError, match="cannot be written"), refused:
        pytest.fail("nothing is to be written")
    with pytest.raises(CheckpointError, match="a string or a path; got 5"):
        model.save_pretrained(5)
    assert list(tmp_path.iterdir()) == []


def test_full_memory_is_not_called_a_damaged_folder(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", full)
    with pytest.raises(torch.OutOfMemoryError):
        load_masked_lm(saved)


def test_a_pickle_of_tensors_is_loaded_without_running_code(saved: Path, ids: torch.Tensor) -> None:
    model = load_masked_lm(saved)
    write_pickle(saved, model.state_dict())
    assert torch.equal(load_masked_lm(saved)(ids).logits, model(ids).logits)
    with pytest.raises(ConfigError, match="weights_only must be True"):
        RoFormerForMaskedLM.from_pretrained(saved, weights_only=False)


def test_shards_are_read_and_a_missing_one_is_named(
    build: Build, tmp_path: Path, ids: torch.Tensor
) -> None:
    model = build(RoFormerForMaskedLM)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert torch.equal(load_masked_lm(tmp_path)(ids).logits, model(ids).logits)
    change_config(tmp_path, hidden_act="relu")
    shard = load_file(tmp_path / index[TABLE])
    shard[TABLE] = -shard[TABLE]
    save_file(shard, tmp_path / index[TABLE], metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="embed_positions"):
        load_masked_lm(tmp_path)
    (tmp_path / index[TABLE]).unlink()
    with pytest.raises(CheckpointError, match=index[TABLE]):
        load_masked_lm(tmp_path)


SAVES: dict[str, dict[str, Any]] = {"whole": {}, "shards": {"max_shard_size": "20KB"}}


@pytest.mark.parametrize("second", list(SAVES))
@pytest.mark.parametrize("first", [*SAVES, "pickle", "pickled shards"])
@pytest.mark.parametrize("variant", [None, "small"])
def test_a_second_save_leaves_nothing_of_the_first(
    build: Build, tmp_path: Path, ids: torch.Tensor, first: str, second: str, variant: str | None
) -> None:
    old, new = build(RoFormerForMaskedLM, seed=5), build(RoFormerForMaskedLM)
    old.save_pretrained(tmp_path, variant="other")
    kept = {path.name for path in tmp_path.iterdir()}
    middle = f".{variant}" if variant else ""
    if first == "pickle":
        torch.save(old.state_dict(), tmp_path / f"pytorch_model{middle}.bin")
    elif first == "pickled shards":
        (tmp_path / f"pytorch_model{middle}-00001-of-00001.bin").touch()
        (tmp_path / f"pytorch_model.bin.index{middle}.json").touch()
    else:
        old.save_pretrained(tmp_path, variant=variant, **SAVES[first])
    new.save_pretrained(tmp_path, variant=variant, **SAVES[second])
    back = RoFormerForMaskedLM.from_pretrained(tmp_path, variant=variant)
    assert torch.equal(back(ids).logits, new(ids).logits)
    new.save_pretrained(tmp_path / "alone", variant=variant, **SAVES[second])
    alone = {path.name for path in (tmp_path / "alone").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == alone | kept | {"alone"}
    other = RoFormerForMaskedLM.from_pretrained(tmp_path, variant="other")
    assert torch.equal(other(ids).logits, old(ids).logits)


CHANGES: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "rotary_value", True),
    ({}, "rope_parameters", {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}),
    ({}, "num_attention_heads", 2),
    ({}, "num_hidden_layers", 1),
    ({}, "hidden_size", 64),
    ({}, "intermediate_size", 64),
    ({}, "embedding_size", 16),
    ({}, "vocab_size", 98),
    ({}, "type_vocab_size", 3),
    ({}, "layer_norm_eps", 1e-5),
    ({}, "hidden_act", "relu"),
    ({}, "tie_word_embeddings", False),
    ({"position_encoding": "learned"}, "max_position_embeddings", 48),
    ({"position_encoding": "learned"}, "position_encoding", "none"),
    ({"position_encoding": "sinusoidal"}, "initializer_range", 0.1),
]


@pytest.mark.parametrize(("fields", "name", "value"), CHANGES, ids=[str(c[1:]) for c in CHANGES])
def test_a_config_that_does_not_describe_the_model_is_not_saved(
    build: Build, tmp_path: Path, fields: dict[str, Any], name: str, value: Any
) -> None:
    model = build(RoFormerForMaskedLM, **fields)
    setattr(model.config, name, value)
    with pytest.raises(ConfigError, match=rf"config\.{name} must be what the model was built with"):
        model.save_pretrained(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_labels_is_built_into_a_classifier_alone(
    build: Build, tmp_path: Path
) -> None:
    classifier, other = build(RoFormerForSequenceClassification), build(RoFormerForMaskedLM)
    classifier.config.num_labels = other.config.num_labels = 5
    other.save_pretrained(tmp_path)
    assert RoFormerConfig.from_pretrained(tmp_path).num_labels == 5
    with pytest.raises(ConfigError, match=r"config\.num_labels must .* built with, 2, .* got 5"):
        classifier.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden_size", 33, "hidden_size must be a multiple"),
        ("max_length", 20, "must not hold max_length, .* got 20"),
        ("norm_type", "rms_norm", "unknown field 'norm_type'"),
        ("task_specific_params", {"a": object()}, "cannot be written as JSON"),
    ],
)
def test_a_config_that_could_not_be_read_back_leaves_no_folder(
    build: Build, tmp_path: Path, name: str, value: Any, message: str
) -> None:
    model = build(RoFormerForMaskedLM)
    setattr(model.config, name, value)
    with pytest.raises(ConfigError, match=message) as caught:
        model.save_pretrained(tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_shape_the_model_may_change_before_it_is_saved(
    build: Build, tmp_path: Path
) -> None:
    model = build(RoFormerForMaskedLM)
    model.config.hidden_dropout_prob = 0.3
    model.config.max_position_embeddings = 48
    model.config.pad_token_id = 3
    model.save_pretrained(tmp_path)
    assert load_masked_lm(tmp_path).config.hidden_dropout_prob == 0.3


def test_a_folder_of_bert_or_of_version_two_is_refused(
    saved: Path, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    transformers.BertModel(transformers.BertConfig(**tiny)).save_pretrained(tmp_path / "bert")
    with pytest.raises(CheckpointError, match="got 'bert'; this is another kind of model"):
        load_masked_lm(tmp_path / "bert")
    change_config(saved, use_bias=False)
    with pytest.raises(ConfigError, match="unknown field 'use_bias'"):
        load_masked_lm(saved)


def test_a_path_that_is_no_folder_is_refused(saved: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", saved / "config.json"):
        with pytest.raises(CheckpointError, match="must be the folder of a saved model"):
            load_masked_lm(path)
    with pytest.raises(CheckpointError, match="does not exist"):
        RoFormerModel.from_pretrained(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="must be a folder; got the file"):
        RoFormerModel.from_pretrained(saved).save_pretrained(saved / "config.json")


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with write_folder_atomically(target) as place:
        (place / "part").mkdir()
        (place / "part" / "file").write_text("content")
        assert not target.exists()
    assert (target / "part" / "file").read_text() == "content"
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert target.stat().st_mode == (tmp_path / "deep").stat().st_mode


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for text, replace in (("old", False), ("new", True)):
        with write_folder_atomically(target, replace=replace) as place:
            (place / text).write_text(text)
    assert [path.name for path in target.iterdir()] == ["new"]
    refused = write_folder_atomically(target)
    with pytest.raises(CheckpointError, match="model exists already; choose another"), refused:
        pytest.fail("nothing is to be written")
    refused = write_folder_atomically(target / "new", replace=True)
    with pytest.raises(CheckpointError, match="new exists already"), refused:
        pytest.fail("a file is not a folder")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [KeyError("k"), KeyboardInterrupt(), RuntimeError("other")])
def test_any_error_leaves_the_old_folder_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    target = tmp_path / "model"
    with write_folder_atomically(target) as place:
        (place / "old").write_text("old")

    def fail() -> None:
        with write_folder_atomically(target, replace=True) as place:
            (place / "half").write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]


WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "safetensors": lambda model, place: model.save_pretrained(place),
    "torch": lambda model, place: torch.save(model.state_dict(), place / "weights.pt"),
    "plain": lambda _, place: (place / "file").write_bytes(b"0" * 30_000),
}


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_limit_on_the_size_of_files_leaves_nothing_half_written(
    build: Build, tmp_path: Path, name: str
) -> None:
    model = build(RoFormerForMaskedLM)
    target = tmp_path / "model"
    with (
        pytest.raises(CheckpointError, match=r"cannot be written: .*(too large|short)") as caught,
        files_of_at_most(16_384),
        write_folder_atomically(target) as place,
    ):
        WRITERS[name](model, place)
    assert str(caught.value).startswith(str(target))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing_half_written(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    model = build(RoFormerForMaskedLM)
    target = tmp_path / "model"
    with write_folder_atomically(target) as place:
        model.save_pretrained(place)
    before = (target / "model.safetensors").read_bytes()
    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    with (
        pytest.raises(CheckpointError, match=r"model cannot be written: .*No space left on device"),
        write_folder_atomically(target, replace=True) as place,
    ):
        model.save_pretrained(place)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (target / "model.safetensors").read_bytes() == before


def test_a_replacement_that_cannot_be_put_in_place_restores_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    with write_folder_atomically(target) as place:
        (place / "old").write_text("old")
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(errno.EACCES, "Permission denied")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with (
        pytest.raises(CheckpointError, match="Permission denied"),
        write_folder_atomically(target, replace=True) as place,
    ):
        (place / "new").write_text("new")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]


class Killed(BaseException):
    """Ends a process as far as the code under test can see."""


@pytest.fixture
def torn(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model whose replacement was killed between its two renames."""
    real, calls = Path.rename, []

    def rename(self: Path, to: Path) -> Path:
        calls.append(to)
        if len(calls) > 1:
            raise Killed
        return real(self, to)

    def replace() -> None:
        with write_folder_atomically(saved, replace=True) as place:
            (place / "new").write_text("new")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            replace()
    assert not saved.exists()
    return saved


def test_a_model_is_loaded_after_a_kill_between_two_renames(torn: Path, ids: torch.Tensor) -> None:
    assert load_masked_lm(torn)(ids).logits.shape == (3, 20, 97)
    assert [path.name for path in torn.parent.iterdir()] == ["model"]


def test_the_next_writer_finds_the_old_folder_after_a_kill(torn: Path) -> None:
    refused = write_folder_atomically(torn)
    with pytest.raises(CheckpointError, match="model exists already"), refused:
        pytest.fail("nothing is to be written")
    assert (torn / "model.safetensors").is_file()
    with write_folder_atomically(torn, replace=True) as place:
        (place / "new").write_text("new")
    assert [path.name for path in torn.parent.rglob("*")] == ["model", "new"]


def test_only_what_we_wrote_and_nobody_needs_is_a_leftover(torn: Path) -> None:
    (only,) = torn.parent.iterdir()
    assert not is_leftover(only, "model")
    torn.mkdir()
    assert is_leftover(only, "model")
    assert is_leftover(".model.0123abcd.partial", "model")
    for name in (
        "model",
        ".model",
        ".model.partial",
        ".model.0123abc.partial",
        ".model.0123ABCD.partial",
        ".model.0123abcd.partial.bak",
        ".models.0123abcd.partial",
        ".model.tar.0123abcd.partial",
        "model.0123abcd.partial",
    ):
        assert not is_leftover(name, "model"), name
    assert not is_leftover(".mxdel.0123abcd.partial", "m.del")
