"""Whatever JSON a file holds, reading it ends in a spec or a ConfigError, soon."""

import json
import math
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk import ConfigError, RopeSpec, rope_layers
from ropewalk.spec.families import FAMILIES, REFUSED

pytestmark = pytest.mark.filterwarnings("ignore::ropewalk.RopeConfigWarning")

NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.integers(),
    st.floats(),
    st.sampled_from([0, 1, 2, 64, 128, 10**400, -(10**400), 2**63, 1e308, 5e-324, 0.5, 1e4]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=12))
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)
TYPES = ("default", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional")
RULE_KEYS = (
    "rope_type", "type", "rope_theta", "factor", "alpha", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "attention_factor", "truncate", "short_factor", "long_factor",
    "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "mrope_section",
    "partial_rotary_factor", "mrope_interleaved", "short_mscale", "long_mscale",
)  # fmt: skip
FACTORS = st.lists(st.floats(0.5, 64.0), min_size=8, max_size=64)
RULES = st.dictionaries(
    st.sampled_from(RULE_KEYS), st.one_of(SCALARS, FACTORS, st.sampled_from(TYPES)), max_size=8
)
LABELS = ("full_attention", "sliding_attention", "main", "compress", "hybrid")
DICTIONARIES = RULES | st.dictionaries(st.sampled_from(LABELS), RULES | JSON) | JSON
KEYS = (
    "hidden_size", "num_attention_heads", "head_dim", "num_hidden_layers", "rotary_dim",
    "rope_theta", "max_position_embeddings", "original_max_position_embeddings", "rotary_pct",
    "partial_rotary_factor", "qk_rope_head_dim", "qk_nope_head_dim", "index_head_dim",
    "layer_types", "no_rope_layers", "no_rope_layer_interval", "layer_rope_theta", "rope_layout",
    "sliding_window_pattern", "position_embeddings_type", "rotary_value", "per_layer_config",
    "num_spatial_rope_pairs_per_axis", "num_uid_rope_pairs", "text_config", "n_embd", "n_head",
    "spatial_rope_base_frequency", "uid_rope_base_frequency", "attn_layer_indices", "depth",
)  # fmt: skip
PLAUSIBLE = st.sampled_from([1, 2, 4, 64, 96, 128, 192, 768, 4096, True, "rotary", "rope"])
WHOLE = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "index_head_dim": 64,
    "projection_dim": 256,
}
CHANGES = st.dictionaries(st.sampled_from(KEYS), PLAUSIBLE | JSON, max_size=3)
ENTRIES = st.dictionaries(
    st.sampled_from(("rope_scaling", "rope_parameters")), DICTIONARIES, max_size=2
)
NAMES = st.sampled_from(sorted(FAMILIES) + sorted(REFUSED)) | JSON
CONFIGS = st.builds(
    lambda name, entries, changes: {"model_type": name} | WHOLE | entries | changes,
    NAMES,
    ENTRIES,
    CHANGES,
)
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
