"""What of transformers is compared with a spec, and what is left out and why."""

import functools
from dataclasses import dataclass, field

import numpy as np
import probe
import torch
from discovery import Found, config_for, rotary_classes
from oracle import rotation_matrix

from ropewalk import ConfigError, RopeSpec
from ropewalk.spec.from_config import specs_by_label
from ropewalk.spec.sources import config_of, tower_of

EXCLUDED = {
    "HunYuanVLRotaryEmbedding": "not a rotation",
    "VJEPA2RopeAttention": "not a rotation",
    "LightGluePositionalEncoder": "learned",
    "MistralLarge4TextRotaryEmbedding": "learned",
    "kimi_linear": "never rotates",
}
"""Classes (and one model without a class) that no spec can describe."""
# Conventions whose attention cuts the slice out before it calls the function.
_CUT = ("C6", "C13", "C15-MLA", "C16", "C17", "M4")
LARGE = 1000.0
# Far enough for the slowest pairs to show an error of 4e-7 in their frequency.
FAR = 2.0**20
# They hold a table of their positions, or of all distances.
_NEAR = {
    "CodeGenRotaryEmbedding",
    "GPTJRotaryEmbedding",
    "RoFormerSinusoidalPositionalEmbedding",
    "SeamlessM4TConformerRotaryPositionalEmbedding",
    "Wav2Vec2BertRotaryPositionalEmbedding",
    "Wav2Vec2ConformerRotaryPositionalEmbedding",
}


@dataclass(frozen=True)
class Case:
    """One rotation of one class."""

    found: Found
    label: str
    convention: str
    config: object
    spec: RopeSpec
    cut: bool = field(default=False)

    @property
    def id(self):
        layer = "" if self.label == "all" else f"/{self.label}"
        return f"{self.found.model}.{self.found.name}{layer}"


def cases_of(found, **settings):
    """The rotations of a class under its default config, or with settings changed."""
    config = config_for(found, **settings)
    written = config_of(config)
    family, tower = tower_of(_of_music(found, written, config))
    kinds = getattr(config, "layer_types", None) or ()
    used = set(family.labels) if family.label_of else set(kinds)
    return [
        Case(found, label, family.convention, config, spec, family.convention in _CUT)
        for label, spec in specs_by_label(family, tower).items()
        if spec is not None and (not family.labels or label in used)
    ]


def _of_music(found, written, config):
    """Return the entries of one class under what the config of a language model says."""
    if found.name != "MusicFlamingoRotaryEmbedding":
        return written
    own = {key: value for key, value in written.items() if not key.endswith("_config")}
    return own | {"head_dim": config.head_dim}


@functools.cache
def default_cases():
    """Every rotation of every class that is not excluded."""
    return [c for f in rotary_classes() if f.name not in EXCLUDED for c in cases_of(f)]


RULES = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 512},
    "proportional": {},
}
"""Keys of every rope_type of transformers 5.24, beside rope_theta."""


def cases_with(found, rope_type):
    """The rotations of a class whose default config is given another rule."""
    return cases_of(found, **settings_with(found, rope_type))


def settings_with(found, rope_type):
    """Return what the default config of a class is told for another rule."""
    config = config_for(found)
    written = config.rope_parameters
    labels = [key for key, value in written.items() if isinstance(value, dict)]
    pairs = {case.label: len(case.spec.ladder.inv_freq()) for case in cases_of(found)}

    def changed(old, label):
        kept = ("rope_theta", "partial_rotary_factor", "mrope_section")
        new = {key: old[key] for key in kept if key in old}
        new |= {"rope_type": rope_type} | RULES[rope_type]
        if rope_type == "longrope":
            new["short_factor"] = np.linspace(1.0, 2.0, pairs[label]).tolist()
            new["long_factor"] = np.linspace(2.0, 8.0, pairs[label]).tolist()
            if found.model == "phimoe":
                new |= {"short_mscale": 1.1, "long_mscale": 1.2}
        return new

    new = {
        label: changed(old, label) if label in pairs and old is not None else old
        for label, old in written.items()
    }
    settings = {"rope_parameters": new if labels else changed(written, "all")}
    if hasattr(config, "original_max_position_embeddings"):
        settings["original_max_position_embeddings"] = 512
    if found.name in _WITHOUT_HEAD_DIM:
        settings["head_dim"] = config.hidden_size // config.num_attention_heads
    return settings


# Their config may leave head_dim out, and the shared rules then multiply None.
_WITHOUT_HEAD_DIM = {
    "HunYuanDenseV1RotaryEmbedding",
    "HunYuanMoEV1RotaryEmbedding",
    "MiniMaxRotaryEmbedding",
    "MinistralRotaryEmbedding",
    "MixtralRotaryEmbedding",
}

UNLIKE = {
    # computed there, refused here
    ("EfficientLoFTRRotaryEmbedding", "linear"): "scales a grid of an image",
    ("EfficientLoFTRRotaryEmbedding", "proportional"): "scales a grid of an image",
    ("Llama4VisionRotaryEmbedding", "linear"): "reads no rule: the factor has no effect",
    ("Llama4VisionRotaryEmbedding", "dynamic"): "reads no rule: the factor has no effect",
    ("Llama4VisionRotaryEmbedding", "proportional"): "reads no rule",
    ("MusicFlamingoRotaryEmbedding", "linear"): "scales time stamps",
    # described here, while the validator of its config asks for what differs between layers
    ("Dots3NoteTextRotaryEmbedding", "longrope"): "num_attention_heads is a per-layer attribute",
    ("EmbeddingGemma2RotaryEmbedding", "longrope"): "head_dim is a per-layer attribute",
}
"""Where transformers refuses a rule and ropewalk does not, or the reverse, and why."""


def refusals(found, rope_type):
    """Return why ropewalk and why transformers refuse a rule; None where they do not."""
    settings = settings_with(found, rope_type)
    ours = theirs = None
    try:
        config = config_for(found, **settings)
    except Exception as error:  # the validators raise anything
        theirs = f"{type(error).__name__}: {error}"
        written = config_of(config_for(found)) | settings
    else:
        written = config_of(config)
    try:
        specs_by_label(*tower_of(_of_music(found, written, config_for(found))))
    except ConfigError as error:
        ours = str(error)
    if ours is not None and theirs is None:
        theirs = _failure_of_the_class(found, config)
    return ours, theirs


def _failure_of_the_class(found, config):
    """Return why a class cannot be built with a config, or its table not be applied."""
    try:
        for case in cases_of(found):
            theirs(case, config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def positions_for(case, seq_len=None):
    """Return {0, 1, 2, large, far} on every axis, unlike on all; or what the class can be asked."""
    if case.convention == "V10":
        return probe.grid(4)
    if case.convention == "C26":
        return probe.time_stamps()
    if case.convention in ("V9", "V11"):
        return torch.tensor([[0, 0], [0, 1], [2, 0], [6, 3]], dtype=torch.float64)
    far = [] if case.found.name in _NEAR or seq_len is not None else [[FAR]]
    first = torch.tensor([[0.0], [1.0], [2.0], [LARGE], *far], dtype=torch.float64)
    others = [first + axis * (first > 1) for axis in range(case.spec.n_axes)]
    return torch.cat(others, dim=1)


def excess(case, seq_len=None):
    """Return by how much the worst entry is over its bound, and the structure that differs."""
    spec = case.spec
    low = spec.rotary_offset if case.cut else 0
    width = spec.rotary_dim if case.cut else spec.head_dim
    matrices = theirs(case, case.config, seq_len)
    return excess_of(matrices, spec, positions_for(case, seq_len).numpy(), low, width, seq_len)


def theirs(case, config, seq_len=None):
    """Return the matrices of the class with a config, at the positions of a case."""
    width = case.spec.rotary_dim if case.cut else case.spec.head_dim
    label = None if case.label == "all" else case.label
    return probe.matrices(case.found, config, label, width, positions_for(case, seq_len), seq_len)


def excess_of(matrices, spec, positions, low, width, seq_len=None):
    """Compare matrices with those of a spec, of ``width`` coordinates from ``low`` on."""
    pairs = spec.pairs(seq_len)
    worst = -np.inf
    for matrix, position in zip(matrices, positions, strict=True):
        ours = rotation_matrix(spec, position, seq_len)[low : low + width, low : low + width]
        scaled = np.abs((position + spec.position_offset) * spec.position_scale)
        bound = np.zeros((spec.head_dim, spec.head_dim))
        # transformers forms frequencies and angles in float32: 3e-7 of the frequency, and on a
        # ramp as much of the frequency before it is divided; then the angle, cos and sin
        plain = _unscaled(spec)
        slack = 4e-7 * (1.0 + scaled[pairs.axis] * (pairs.inv_freq + plain)) * pairs.amplitude
        for out in (pairs.out_a, pairs.out_b):
            for into in (pairs.in_a, pairs.in_b):
                bound[out, into] = slack
        bound = bound[low : low + width, low : low + width]
        worst = max(worst, float((np.abs(ours - matrix) - bound).max()))
    return worst


def _unscaled(spec):
    """Return the frequency of every pair before scaling."""
    if spec.blocks:
        return np.concatenate([_unscaled(block) for block in spec.blocks])
    ladder = spec.ladder.inv_freq()
    return ladder if spec.axes is None else ladder[[rung for _, rung in spec.axes]]
