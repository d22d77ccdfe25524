import json
import struct

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.spec.safetensors_file import read_header
from ropewalk.spec.weights import convert_weights

GROUPED = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "rope_theta": 1e4,
}
NORMED = GROUPED | {"model_type": "qwen3", "head_dim": 8}
PARTIAL = GROUPED | {"model_type": "stablelm", "partial_rotary_factor": 0.5}


def tensors(seed=0, *, bias=True, norms=False):
    """Random tensors of a two-layer model with four heads of queries and two of keys."""
    generator = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (10, 32)}
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn"
        for name, rows in (("q", 32), ("k", 16), ("v", 16)):
            shapes[f"{prefix}.{name}_proj.weight"] = (rows, 32)
            if bias:
                shapes[f"{prefix}.{name}_proj.bias"] = (rows,)
            if norms and name != "v":
                shapes[f"{prefix}.{name}_norm.weight"] = (8,)
        shapes[f"{prefix}.o_proj.weight"] = (32, 32)
    return {n: generator.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def save(path, arrays, metadata=None):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file(arrays, path, metadata=metadata)
    return path


def folder(tmp_path, config, arrays, parts=1):
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    names = list(arrays)
    for part in range(parts):
        own = {name: arrays[name] for name in names[part::parts]}
        save(path / f"model-{part + 1:05d}-of-{parts:05d}.safetensors", own)
    (path / "model.safetensors.index.json").write_text("{}")
    return path


def loaded(path):
    from safetensors.numpy import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {name: array for file in files for name, array in load_file(file).items()}


@pytest.mark.parametrize(
    ("config", "options", "rotary_dim"),
    [(GROUPED, {}, 8), (NORMED, {"bias": False, "norms": True}, 8), (PARTIAL, {}, 4)],
)
@pytest.mark.parametrize("parts", [1, 3])
def test_rows_move_as_the_operator_says_and_others_stay(
    tmp_path, config, options, rotary_dim, parts
):
    import torch

    arrays = tensors(**options)
    report = convert_weights(
        folder(tmp_path, config, arrays, parts), tmp_path / "new", to="interleaved"
    )
    after = loaded(tmp_path / "new")
    assert set(after) == set(arrays)
    for name, array in arrays.items():
        moved = any(part in name for part in ("q_proj", "k_proj", "q_norm", "k_norm"))
        assert moved == (name in report.tensors)
        expected = array
        if moved:
            expected = rw.convert_layout(
                torch.from_numpy(array),
                source="half",
                target="interleaved",
                head_dim=8,
                rotary_dim=rotary_dim,
            ).numpy()
        np.testing.assert_array_equal(after[name], expected)
    assert report.score_error < 1e-14  # float64 arithmetic on the same numbers
    assert (tmp_path / "new" / "model.safetensors.index.json").exists()
    assert not (tmp_path / "new" / "config.json").exists()


def test_there_and_back_gives_the_same_bytes(tmp_path):
    source = folder(tmp_path, GROUPED, tensors())
    convert_weights(source, tmp_path / "there", to="interleaved")
    convert_weights(
        tmp_path / "there",
        tmp_path / "back",
        to="half",
        config=source,
        source_layout="interleaved",
    )
    before, after = loaded(source), loaded(tmp_path / "back")
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_file_is_not_converted_twice(tmp_path):
    source = folder(tmp_path, GROUPED, tensors())
    convert_weights(source, tmp_path / "there", to="interleaved")
    with pytest.raises(CheckpointError, match="it says 'interleaved'"):
        convert_weights(tmp_path / "there", tmp_path / "x", to="interleaved", config=source)
    assert not (tmp_path / "x").exists()


def test_fused_rows_keep_their_values_in_place(tmp_path):
    config = GROUPED | {"model_type": "phi3", "original_max_position_embeddings": 64}
    fused = np.arange(64 * 2, dtype=np.float32).reshape(64, 2)
    arrays = {"model.layers.0.self_attn.qkv_proj.weight": fused}
    file = save(tmp_path / "model.safetensors", arrays)
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = convert_weights(file, tmp_path / "new.safetensors", to="interleaved")
    after = loaded(tmp_path / "new.safetensors")["model.layers.0.self_attn.qkv_proj.weight"]
    np.testing.assert_array_equal(after[48:], fused[48:])
    np.testing.assert_array_equal(after[:8], fused[[0, 4, 1, 5, 2, 6, 3, 7]])
    np.testing.assert_array_equal(after[40:48], fused[40 + np.array([0, 4, 1, 5, 2, 6, 3, 7])])
    assert report.score_error < 1e-14


def test_bfloat16_is_moved_without_being_touched(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    q = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    names = [f"layers.0.self_attn.{x}_proj.weight" for x in "qk"]
    save_file({names[0]: q, names[1]: q[:16].clone()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(GROUPED))
    convert_weights(tmp_path / "model.safetensors", tmp_path / "new.safetensors", to="interleaved")
    after = load_file(tmp_path / "new.safetensors")[names[0]]
    expected = rw.convert_layout(q, source="half", target="interleaved", head_dim=8)
    assert torch.equal(after, expected)


def test_a_wrong_permutation_would_be_noticed(tmp_path, monkeypatch):
    from ropewalk.spec import weights

    monkeypatch.setattr(weights._Plan, "order", np.arange(8))
    with pytest.raises(CheckpointError, match="scores must stay the same"):
        convert_weights(folder(tmp_path, GROUPED, tensors()), tmp_path / "x", to="interleaved")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "x.partial").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a.q_proj.weight": (9, 4)}, "multiple of 8"),
        ({"a.kv_a_proj_with_mqa.weight": (8, 4)}, "latent attention"),
        ({"a.q_proj.lora_B.weight": (8, 4)}, "adapters"),
        ({"a.query_key_value.weight": (24, 4)}, "gpt_neox"),
        ({"a.other.weight": (8, 4)}, "queries and keys"),
        ({"vision_tower.a.q_proj.weight": (8, 4)}, "queries and keys"),
    ],
)
def test_unknown_kinds_of_rows_are_refused(tmp_path, names, message):
    arrays = {name: np.zeros(shape, np.float32) for name, shape in names.items()}
    with pytest.raises(CheckpointError, match=message):
        convert_weights(folder(tmp_path, GROUPED, arrays), tmp_path / "x", to="interleaved")


def test_same_layout_existing_output_and_quantised_rows_are_refused(tmp_path):
    source = folder(tmp_path, GROUPED, tensors())
    with pytest.raises(ConfigError, match="'half' for both"):
        convert_weights(source, tmp_path / "x", to="half")
    with pytest.raises(ConfigError, match="must not exist"):
        convert_weights(source, source, to="interleaved")
    bytes_ = {"a.q_proj.weight": np.zeros((8, 4), np.int8)}
    save(tmp_path / "q.safetensors", bytes_)
    with pytest.raises(CheckpointError, match="got I8"):
        convert_weights(tmp_path / "q.safetensors", tmp_path / "x", to="interleaved", config=source)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 2**60),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{}" + b"more",
        struct.pack("<Q", 10) + b'{"a": {}} ',
        struct.pack("<Q", 63)
        + b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}  '
        + bytes(4),
    ],
)
def test_damaged_files_are_refused(tmp_path, data):
    (tmp_path / "bad.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError):
        read_header(tmp_path / "bad.safetensors")
