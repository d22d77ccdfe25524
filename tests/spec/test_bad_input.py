"""Bad input of every kind ends in one line of ours, soon, and in little memory."""

import json
import math
import os
import struct
import time

import gguf_writer
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import ropewalk as rw
from ropewalk import ConfigError, RopeConfigWarning, RopeSpec
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.facts import ModelFacts
from ropewalk.spec.gguf import read_gguf
from ropewalk.spec.rewrite import convert_config
from ropewalk.spec.safetensors_file import read_header
from ropewalk.spec.weights import convert_weights

LLAMA = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "rope_theta": 1e5}


class _NoRepr:
    def __repr__(self):
        raise RuntimeError("no repr")


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


ODD = {
    "none": None, "true": True, "nan": math.nan, "inf": math.inf, "huge": 10**5000, "zero": 0,
    "list of huge": [10**5000], "deep": _nested(5000), "no repr": _NoRepr(), "bytes": b"\n",
    "matrix": np.ones((10, 2)), "tensor": torch.tensor([1, 2]), "text": "a\nb", "class": RopeSpec,
}  # fmt: skip


def _refused_or_made(make):
    try:
        make()
    except ConfigError as error:
        message = str(error)
    else:
        return
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize("odd", ODD)
def test_any_value_in_any_field_is_taken_or_refused_in_one_line(odd):
    value = ODD[odd]
    for field in RopeSpec.__dataclass_fields__:
        _refused_or_made(lambda: RopeSpec(**({"head_dim": 64, "layout": "half"} | {field: value})))  # noqa: B023
    for field in rw.Yarn.__dataclass_fields__:
        good = {"factor": 2.0, "original_max_position_embeddings": 64}
        _refused_or_made(lambda: rw.Yarn(**(good | {field: value})))  # noqa: B023
    _refused_or_made(lambda: rw.Resonance(value))
    _refused_or_made(lambda: rw.DynamicNTK(value))
    _refused_or_made(lambda: rw.CustomFactors(value))
    _refused_or_made(lambda: RopeSpec.from_config(value))
    _refused_or_made(lambda: RopeSpec.from_config(LLAMA | {"rope_theta": value}))
    with pytest.raises(ConfigError, match="direction must be one of"):
        RopeSpec(64, "half", direction=value)


def test_a_head_is_of_a_size_that_fits_the_memory():
    with pytest.raises(ConfigError, match=r"head_dim must be at most 65536; got 1000000000000"):
        RopeSpec(10**12, "half")
    with pytest.raises(ConfigError, match=r"frequency_dim must be at most 65536; got 65537"):
        RopeSpec(64, "half", frequency_dim=65537)


def test_every_int64_position_stays_finite():
    with pytest.raises(ConfigError, match=r"finite; got position_scale=1e\+300"):
        RopeSpec(64, "half", position_scale=1e300)
    assert RopeSpec(64, "half", position_scale=1e280).position_scale == 1e280


def test_resonance_rounds_once():
    with pytest.raises(ConfigError, match="another rule; got Resonance twice"):
        rw.Resonance(rw.Resonance())


def test_lengths_without_values_are_refused():
    spec = RopeSpec(64, "half", scaling=rw.DynamicNTK(2.0, 64))
    with pytest.raises(ConfigError, match="seq_len must hold its lengths"):
        spec.inv_freq(torch.zeros(2, dtype=torch.int64, device="meta"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": "\xe9"}', "can't decode byte 0xe9"),
        (b'{"rope_theta": 1e4, "rope_theta": 1e6}', "'rope_theta' one value; got 10000.0 and 1000"),
        (b'{"a": ' + b"1" * 5000 + b"}", "4300 digits"),
        (b"", "Expecting value"),
    ],
)
def test_a_damaged_file_is_refused_by_its_damage(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        RopeSpec.from_config(tmp_path)


def test_a_key_that_says_the_same_twice_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA)[:-1] + ', "rope_theta": 1e5, "x": NaN}')
    assert RopeSpec.from_config(path).theta == 1e5


def test_what_is_no_file_is_never_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "config.json").mkdir()
    for name, message in (
        (tmp_path / "fifo", "is no file"),
        (tmp_path / "loop", "does not exist"),
        (tmp_path, "config.json', which is no file"),
        ("/dev/zero", "is no file"),
        ("a" * 5000, "File name too long"),
        ("a\0b", "does not exist"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            RopeSpec.from_config(name)
        assert len(str(caught.value)) < 500


def test_headers_of_absurd_size_are_refused_soon(tmp_path):
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_writer.text("a")
    long = head + struct.pack("<IIQ", 9, 8, 16 * 1024 * 1024)
    nested = head + struct.pack("<IIQ", 9, 9, 16 * 1024 * 1024)
    tensors = b"GGUF" + struct.pack("<IQQ", 3, 900_000, 0)
    start = time.monotonic()
    for name, data in {"long": long, "nested": nested, "tensors": tensors}.items():
        path = tmp_path / name
        path.write_bytes(data)
        os.truncate(path, 1 << 33)  # of zeros, and no blocks
        with pytest.raises(ConfigError, match=r"must .*at most"):
            read_gguf(path)
    assert time.monotonic() - start < 10.0


def test_the_base_of_a_gguf_file_is_read_even_if_it_is_nonsense(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_writer.gguf(gguf_writer.LLAMA | {"llama.rope.freq_base": 0.0}))
    with pytest.raises(ConfigError, match=r"theta must be a finite number greater than 1; got 0"):
        RopeSpec.from_config(path)
    path.write_bytes(gguf_writer.gguf(gguf_writer.LLAMA | {"general.architecture": "a\nb"}))
    with pytest.raises(ConfigError, match=r"general.architecture .*'a\\nb'"):
        RopeSpec.from_config(path)


def test_tensor_names_fit_a_message(tmp_path):
    header = {"a\nb": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(rw.CheckpointError, match=r"describe tensor 'a\\nb'"):
        read_header(path)


def test_a_scaling_rule_without_a_base_is_read_with_a_warning():
    """huggingface/transformers takes the default of the class; the base is in no file."""
    config = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    assert RopeSpec.from_config(config).theta == 1e4  # the documented one: nothing to warn of
    scaled = config | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    with pytest.warns(RopeConfigWarning, match=r"needs rope_theta; .* takes 10000\.0"):
        assert RopeSpec.from_config(scaled).theta == 1e4


def test_a_documented_dictionary_is_contradicted_by_name():
    apertus = LLAMA | {"model_type": "apertus", "original_max_position_embeddings": 1}
    apertus["max_position_embeddings"] = 65536
    codes = [finding.code for finding in diagnose(ModelFacts.of(apertus))]
    assert "KEY_CONFLICT" in codes
    with pytest.raises(ConfigError, match="must be the same"):
        RopeSpec.from_config({k: v for k, v in apertus.items() if k != "rope_theta"})


def test_keys_of_a_class_that_reads_none_are_named():
    roformer = {"model_type": "roformer", "hidden_size": 256, "num_attention_heads": 4}
    facts = ModelFacts.of(roformer | {"rope_scaling": {"factor": False}})
    assert "UNKNOWN_KEY" in [finding.code for finding in diagnose(facts)]


def test_two_bases_are_written_under_the_names_that_the_class_reads():
    from transformers import ModernBertConfig

    nested = {
        "full_attention": {"rope_type": "default", "rope_theta": 3e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    config = LLAMA | {"model_type": "modernbert", "num_hidden_layers": 4, "head_dim": 64}
    config = {k: v for k, v in config.items() if k != "rope_theta"} | {"rope_parameters": nested}
    old = convert_config(config, to="v4")
    assert (old["global_rope_theta"], old["local_rope_theta"]) == (3e5, 2e4)
    assert "rope_theta" not in old
    theirs = ModernBertConfig(**{k: v for k, v in old.items() if k != "head_dim"})
    bases = {kind: entries["rope_theta"] for kind, entries in theirs.rope_parameters.items()}
    assert bases == {"full_attention": 3e5, "sliding_attention": 2e4}
    assert convert_config(old, to="v5") == config


def test_a_header_is_no_looser_than_the_format(tmp_path):
    entry = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    path = tmp_path / "a.safetensors"
    for text, message in (
        (f'{{"a": {entry}, "a": {entry}}}', "given twice"),
        (f'{{"__metadata__": [1], "a": {entry}}}', r"must hold strings; got \[1\]"),
        (f'{{"__metadata__": {{"x": {{}}}}, "a": {entry}}}', "must hold strings"),
    ):
        path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + bytes(4))
        with pytest.raises(rw.CheckpointError, match=message):
            read_header(path)


def _checkpoint(folder, columns, value):
    tensors = {
        "a.q_proj.weight": np.full((256, 8), value, dtype=np.float32),
        "a.k_proj.weight": np.arange(256.0 * columns, dtype=np.float32).reshape(256, columns),
    }
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "other.safetensors").mkdir()
    return folder


def test_weights_are_written_with_a_proof_or_not_at_all(tmp_path):
    for name in ("cross", "nan"):
        (tmp_path / name).mkdir()
    cross = _checkpoint(tmp_path / "cross", 4, 1.0)  # keys from vectors of another width
    report = convert_weights(cross, tmp_path / "out", to="interleaved")
    assert report.score_error <= 1e-12
    with pytest.raises(rw.CheckpointError, match="they differ by nan"):
        convert_weights(
            _checkpoint(tmp_path / "nan", 8, math.nan), tmp_path / "no", to="interleaved"
        )
    assert not (tmp_path / "no").exists()
    with pytest.raises(ConfigError, match="SOURCE must be a path; got 3"):
        convert_weights(3, tmp_path / "no", to="interleaved")
