"""What of transformers is compared with a spec, and what is left out and why."""

import functools
from dataclasses import dataclass, field

import numpy as np
import probe
import torch
from discovery import Found, config_for, rotary_classes
from oracle import rotation_matrix

from ropewalk import RopeSpec
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
    if found.name == "MusicFlamingoRotaryEmbedding":  # whose config is that of a language model
        written = {k: v for k, v in written.items() if not k.endswith("_config")}
        written["head_dim"] = config.head_dim
    family, tower = tower_of(written)
    kinds = getattr(config, "layer_types", None) or ()
    used = set(family.labels) if family.label_of else set(kinds)
    return [
        Case(found, label, family.convention, config, spec, family.convention in _CUT)
        for label, spec in specs_by_label(family, tower).items()
        if spec is not None and (not family.labels or label in used)
    ]


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
        return new

    new = {
        label: changed(old, label) if label in pairs and old is not None else old
        for label, old in written.items()
    }
    settings = {"rope_parameters": new if labels else changed(written, "all")}
    if hasattr(config, "original_max_position_embeddings"):
        settings["original_max_position_embeddings"] = 512
    return cases_of(found, **settings)


def positions_for(case):
    """Return {0, 1, 2, large} for every axis, unlike on all; or what the class can be asked."""
    if case.convention == "V10":
        return probe.grid(4)
    if case.convention == "C26":
        return probe.time_stamps()
    if case.convention in ("V9", "V11"):
        return torch.tensor([[0, 0], [0, 1], [2, 0], [6, 3]], dtype=torch.float64)
    first = torch.tensor([[0.0], [1.0], [2.0], [LARGE]], dtype=torch.float64)
    others = [first + axis * (first > 1) for axis in range(case.spec.n_axes)]
    return torch.cat(others, dim=1)


def excess(case, seq_len=None):
    """Return by how much the worst entry is over its bound, and the structure that differs."""
    spec, positions = case.spec, positions_for(case)
    low = spec.rotary_offset if case.cut else 0
    width = spec.rotary_dim if case.cut else spec.head_dim
    label = None if case.label == "all" else case.label
    theirs = probe.matrices(case.found, case.config, label, width, positions, seq_len)
    pairs = spec.pairs(seq_len)
    worst = -np.inf
    for matrix, position in zip(theirs, positions.numpy(), strict=True):
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
