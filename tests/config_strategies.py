"""Hypothesis strategies for configs: plausible ones, spoilt ones, and JSON of any shape."""

import math

from hypothesis import strategies as st

from ropewalk.spec.families import FAMILIES, REFUSED

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
