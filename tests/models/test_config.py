"""The configuration: what is known, what is refused, what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.activations import ACT2FN

from ropewalk import RopeSpec
from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.models import POSITION_ENCODINGS, RoFormerConfig
from ropewalk.models.config_checks import ACTIVATIONS
from ropewalk.models.layer_options import OWN_FIELDS
from ropewalk.spec import NTK, Linear


def test_defaults_are_those_of_transformers() -> None:
    ours, theirs = RoFormerConfig().to_dict(), transformers.RoFormerConfig().to_dict()
    own = ("model_type", "position_encoding", "rope_parameters", "sparse_prediction", *OWN_FIELDS)
    assert {name: value for name, value in ours.items() if name not in own} == {
        name: value for name, value in theirs.items() if name != "model_type"
    }


def test_a_default_config_rotates_interleaved_pairs_on_base_ten_thousand() -> None:
    config = RoFormerConfig(hidden_size=64, num_attention_heads=4)
    assert config.rope_spec == RopeSpec(16, "interleaved", theta=10_000.0)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}
    assert config.embedding_size == 64
    assert config.is_vanilla


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope_type": "linear", "factor": 2.0}, Linear(2.0)),
        ({"rope_type": "ntk", "factor": 4.0}, NTK(4.0)),
    ],
)
def test_scaling_rules_reach_the_rotation(fields: dict[str, Any], scaling: object) -> None:
    config = RoFormerConfig(rope_parameters=fields)
    assert config.rope_spec is not None
    assert config.rope_spec.scaling == scaling
    assert config.rope_spec.theta == 10_000.0
    assert not config.is_vanilla
    assert fields == {"rope_type": scaling.__class__.__name__.lower(), "factor": scaling.factor}


@pytest.mark.parametrize("encoding", [e for e in POSITION_ENCODINGS if e != "rope"])
def test_other_encodings_have_no_rotation_and_are_not_vanilla(encoding: str) -> None:
    config = RoFormerConfig(position_encoding=encoding)
    assert (config.rope_spec, config.rope_parameters, config.is_vanilla) == (None, None, False)


REFUSED = [
    ({"hidden_size": 65}, "hidden_size must be a multiple of num_attention_heads=12; got 65"),
    ({"hidden_size": 36}, "36 / 12 = 3"),
    ({"hidden_size": "768"}, "hidden_size must be an integer of at least 1; got '768'"),
    ({"vocab_size": 0}, "vocab_size must be an integer of at least 1; got 0"),
    ({"num_hidden_layers": -2}, "num_hidden_layers .* got -2"),
    ({"num_attention_heads": 0}, "num_attention_heads .* got 0"),
    ({"type_vocab_size": True}, "type_vocab_size .* got True"),
    ({"num_labels": 0}, "num_labels .* got 0"),
    ({"chunk_size_feed_forward": -1}, "chunk_size_feed_forward .* got -1"),
    ({"layer_norm_eps": 0.0}, "layer_norm_eps .* greater than 0; got 0.0"),
    ({"initializer_range": float("nan")}, "initializer_range .* got nan"),
    ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob must be between 0 and 1; got 1.5"),
    ({"attention_probs_dropout_prob": -0.1}, "between 0 and 1; got -0.1"),
    ({"hidden_act": "swoosh"}, "hidden_act .* got 'swoosh'"),
    ({"pad_token_id": 50000}, "pad_token_id must be less than vocab_size=50000; got 50000"),
    ({"rotary_value": 1}, "rotary_value must be True or False; got 1"),
    ({"is_decoder": True}, "is_decoder must be False, .* encoders; got True"),
    ({"add_cross_attention": True}, "add_cross_attention must be False"),
    ({"hidden_act": "prelu"}, "without parameters, .* got 'prelu'"),
    ({"hidden_act": ["gelu"]}, r"got \['gelu'\]"),
    ({"use_cache": "yes"}, "use_cache must be True or False; got 'yes'"),
    ({"bos_token_id": "x"}, "bos_token_id must be an integer .* got 'x'"),
    ({"eos_token_id": [1, "x"]}, "eos_token_id must be an integer .* got 'x'"),
    ({"dtype": "bfloat99"}, "dtype must name a dtype of torch, .* got 'bfloat99'"),
    ({"torch_dtype": "nn"}, "torch_dtype must name a dtype of torch, .* got 'nn'"),
    ({"id2label": [1, 2]}, r"id2label must be .* got \[1, 2\]"),
    ({"id2label": {"a": "b"}}, "field of a wrong kind: ValueError: invalid literal .* 'a'"),
    ({"num_labels": "x"}, "num_labels must be an integer of at least 1; got 'x'"),
    ({"return_dict": "no"}, "return_dict must be .* got 'no'"),
    ({"pruned_heads": {"1": [0]}}, "pruned_heads must be empty"),
    ({"problem_type": "guess"}, "problem_type must be one of .* got 'guess'"),
    ({"attn_implementation": "flash_attention_2"}, "got 'flash_attention_2'"),
    ({"position_encoding": "alibi"}, "must be one of 'rope', 'learned', .* got 'alibi'"),
    ({"position_encoding": "learned", "rotary_value": True}, "rotary_value has no effect"),
    (
        {"position_encoding": "none", "rope_parameters": {"rope_theta": 3.0}},
        "rope_parameters has no effect with position_encoding='none'",
    ),
    (
        {"position_encoding": "sinusoidal", "embedding_size": 15},
        "embedding_size must be even .* got 15",
    ),
    ({"rope_parameters": 7}, "rope_parameters must be a dictionary; got 7"),
    ({"rope_parameters": {"rope_type": "spiral"}}, "got 'spiral'"),
    ({"rope_parameters": {"beta": 1}}, "'beta'"),
    ({"rope_theta": 5e5}, "unknown field 'rope_theta'; got 500000.0; give rope_parameters"),
    # RoFormerV2, which would load and predict garbage.
    ({"use_bias": False}, "unknown field 'use_bias'; got False"),
    ({"norm_type": "rms_norm"}, "unknown field 'norm_type'; got 'rms_norm'"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[str(case[0]) for case in REFUSED])
def test_bad_fields_are_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        RoFormerConfig(**fields)
    assert "\n" not in str(caught.value)


def test_fields_that_transformers_writes_beside_the_declared_ones_are_accepted() -> None:
    fields = transformers.RoFormerConfig().to_dict() | {
        "torch_dtype": "float32",
        "_name_or_path": "somewhere",
        "max_length": 20,  # generation settings of transformers 4
        "gradient_checkpointing": False,
        "summary_type": "first",
    }
    config = RoFormerConfig(**fields)
    assert config.is_vanilla
    assert config.model_type == "ropewalk_roformer"


def test_a_vanilla_config_is_written_as_a_plain_roformer(tmp_path: Path) -> None:
    RoFormerConfig(hidden_size=48).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "roformer"
    assert not {"position_encoding", "rope_parameters", "sparse_prediction"} & set(written)
    assert type(transformers.AutoConfig.from_pretrained(tmp_path)) is transformers.RoFormerConfig


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"embedding_size": 16, "rotary_value": True},
        {"sparse_prediction": False},
        {"position_encoding": "learned"},
        {"rope_parameters": {"rope_type": "ntk", "factor": 2.0, "rope_theta": 500.0}},
        {"num_labels": 5, "problem_type": "regression"},
    ],
)
def test_writing_and_reading_keeps_every_field(tmp_path: Path, fields: dict[str, Any]) -> None:
    config = RoFormerConfig(hidden_size=48, **fields)
    config.save_pretrained(tmp_path)
    back = RoFormerConfig.from_pretrained(tmp_path)
    assert back.to_dict() == config.to_dict()
    assert back.is_vanilla == config.is_vanilla


def test_what_transformers_cannot_compute_is_written_under_our_name(tmp_path: Path) -> None:
    config = RoFormerConfig(rope_parameters={"rope_type": "linear", "factor": 2.0})
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "ropewalk_roformer"
    assert type(transformers.AutoConfig.from_pretrained(tmp_path)) is RoFormerConfig


def test_fields_replaced_while_reading_are_checked_and_keep_the_trained_base(
    tmp_path: Path,
) -> None:
    RoFormerConfig(rope_parameters={"rope_theta": 500.0}).save_pretrained(tmp_path)
    stretched = RoFormerConfig.from_pretrained(
        tmp_path, rope_parameters={"rope_type": "linear", "factor": 4.0}
    )
    assert stretched.rope_spec == RopeSpec(64, "interleaved", theta=500.0, scaling=Linear(4.0))
    with pytest.raises(ConfigError, match="got 'spiral'"):
        RoFormerConfig.from_pretrained(tmp_path, position_encoding="spiral")


def test_fields_set_after_construction_are_checked_before_they_are_written(tmp_path: Path) -> None:
    config = RoFormerConfig()
    config.hidden_size = 770
    with pytest.raises(ConfigError, match="got 770"):
        config.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a valid JSON file"),
        ("[1]", "not a JSON object"),
        ("{}", "no config.json with the fields of a model|got None"),
        ("[" * 100_000, "no readable config.json: RecursionError"),
        (f'{{"hidden_size": {"1" * 5000}}}', "no readable config.json: ValueError"),
        ("null", "not a JSON object"),
        ('{"model_type": "bert"}', "got 'bert'; this is another kind of model"),
        ('{"hidden_size": 32}', "got None"),
    ],
)
def test_a_damaged_or_foreign_config_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        RoFormerConfig.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_config_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json with the fields"):
        RoFormerConfig.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        RoFormerConfig.from_pretrained(tmp_path / "absent")


@pytest.mark.parametrize(
    "path", [None, 5, "a\0b", "/" + "x" * 300, "/" + "x/" * 2500], ids=lambda path: f"{path!r:.12}"
)
def test_a_path_that_no_folder_can_have_is_refused_in_one_line(path: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        RoFormerConfig.from_pretrained(path)
    assert str(path)[:20].replace("\0", "") in str(caught.value).replace("\\x00", "")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_no_allowed_activation_has_parameters() -> None:
    for name in ACTIVATIONS:
        assert not list(ACT2FN[name].parameters()), name
    assert "gelu_new" in ACTIVATIONS


def test_a_problem_type_set_later_is_refused_at_once() -> None:
    config = RoFormerConfig()
    with pytest.raises(ConfigError, match=r"problem_type must be one of .* got 'guess'"):
        config.problem_type = "guess"
