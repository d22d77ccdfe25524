"""Whatever JSON a file holds, reading it ends in a spec or a ConfigError, soon."""

import json
import math
import time
import tracemalloc

import pytest
from config_strategies import CONFIGS, JSON
from hypothesis import HealthCheck, given, settings

from ropewalk import ConfigError, RopeSpec, rope_layers

pytestmark = pytest.mark.filterwarnings("ignore::ropewalk.RopeConfigWarning")

READERS = (RopeSpec.from_config, RopeSpec.per_layer_type, rope_layers)


def read(config):
    for reader in READERS:
        try:
            reader(config)
        except ConfigError as error:
            message = str(error)
        else:
            continue
        assert "\n" not in message
        assert len(message) < 1000


@settings(max_examples=150, deadline=2000, suppress_health_check=list(HealthCheck))
@given(CONFIGS)
def test_any_config_is_read_or_refused(config):
    read(config)


@settings(max_examples=60, deadline=2000, suppress_health_check=list(HealthCheck))
@given(JSON)
def test_anything_at_all_is_read_or_refused(value):
    read(value)


@pytest.mark.slow
@settings(max_examples=20_000, deadline=2000, suppress_health_check=list(HealthCheck))
@given(CONFIGS)
def test_many_configs_are_read_or_refused(config):
    read(config)


def nest(depth, key):
    config = {"model_type": "llama"}
    for _ in range(depth):
        config = {"model_type": "llava", key: config}
    return config


def test_deep_nesting_and_huge_sizes_are_refused_quickly(tmp_path):
    small = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4}
    deep = tmp_path / "deep.json"
    deep.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    huge = [
        nest(500, "text_config"),
        small | {"head_dim": 10**9},
        small | {"hidden_size": 10**300, "num_attention_heads": 1},
        small | {"num_hidden_layers": 10**9, "head_dim": 10**9},
        small | {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 10**6}},
        small | {"model_type": "esmfold2_atom_encoder", "num_uid_rope_pairs": 10**9},
        small | {"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": [10**9] * 3}},
        deep,
        tmp_path / "absent.json",
    ]
    start = time.monotonic()
    tracemalloc.start()
    for x in huge:
        with pytest.raises(ConfigError):
            RopeSpec.from_config(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert time.monotonic() - start < 10.0


def test_files_that_are_no_config_are_refused(tmp_path):
    for name, content in (
        ("list.json", "[1]"),
        ("text.json", "hello"),
        ("nan.json", json.dumps({"model_type": "llama", "head_dim": math.nan})),
        ("bytes.json", "\x00\x01"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ConfigError):
            RopeSpec.from_config(tmp_path / name)
