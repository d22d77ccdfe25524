"""The dictionaries that are gathered are those that the configs of transformers build."""

import copy

import pytest

from ropewalk import ConfigError
from ropewalk.spec.config_keys import ORIGINAL, gather
from ropewalk.spec.families import FAMILIES

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 1024}
LINEAR = {"type": "linear", "factor": 2.0}
SHAPES = {
    "old": {"rope_theta": 5e5, "rope_scaling": YARN},
    "older": {"rope_theta": 5e5, "rope_scaling": LINEAR},
    "new": {"rope_parameters": YARN | {"rope_theta": 5e5}},
    "new without a base": {"rope_parameters": YARN},
    "both": {
        "rope_theta": 7e4,
        "rope_scaling": LINEAR,
        "rope_parameters": YARN | {"rope_theta": 5e5},
    },
    "base alone": {"rope_theta": 5e5},
    "no trained length": {
        "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    },
}
ELSEWHERE = {
    "codegen": "turns with 10,000 and no rule, whatever its config holds",
    "gptj": "turns with 10,000 and no rule, whatever its config holds",
    "roformer": "turns with 10,000 and no rule, whatever its config holds",
    "esm": "does not turn unless it is told to",
    "seamless_m4t": "turns with rotary_embedding_base",
    "seamless_m4t_v2": "turns with rotary_embedding_base",
    "wav2vec2-bert": "turns with rotary_embedding_base",
    "wav2vec2-conformer": "turns with rotary_embedding_base",
    "cohere2_moe": "passes rope_scaling over",
    "neomme": "hands a base beside layer types to all of them",
    "step3p5": "hands a base beside layer types to all of them",
    "dinov3_vit": "keeps a rope_scaling that it does not read",
    "sapiens2": "keeps a rope_scaling that it does not read",
}
"""Families whose config does not say what the model does, or that are read otherwise here."""
KEYS = ("rope_theta", "rope_type", "factor", ORIGINAL)
_NOT_CARRIED = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")


def compared(name):
    """Return how many dictionaries of a family agree with those of its config class."""
    count = 0
    for entries in SHAPES.values():
        try:
            config = transformers.CONFIG_MAPPING[name](**copy.deepcopy(entries))
        except Exception:
            continue  # a shape that the class does not build
        theirs = getattr(config, "rope_parameters", None)
        dropped = (*_NOT_CARRIED, "compress_rope_theta")
        whole = {key: value for key, value in config.to_dict().items() if key not in dropped}
        try:
            ours = gather(FAMILIES[name], whole | copy.deepcopy(entries), strict=False)
        except ConfigError:
            continue  # a flat dictionary for layer types, refused by both readers
        for label, merged in ours.items() if theirs else ():
            other = theirs if label == "all" else theirs.get(label)
            if merged is None or other is None:
                assert merged is other, (name, label, entries)
                continue
            want = {key: other.get(key) for key in KEYS}
            if want["rope_type"] == "axial":
                want["rope_type"] = "default"  # a plain ladder per axis
            assert {key: merged.values.get(key) for key in KEYS} == want, (name, label, entries)
            count += 1
    return count


@pytest.mark.parametrize(
    "name",
    ["llama", "gpt_oss", "cwm", "gemma3_text", "modernbert", "olmo3", "deepseek_v4", "gpt_neox"],
)
def test_usual_families_are_gathered_as_transformers_does(name):
    assert compared(name) >= 4


@pytest.mark.slow
def test_every_family_is_gathered_as_transformers_does():
    names = [name for name in FAMILIES if name in transformers.CONFIG_MAPPING]
    assert sum(compared(name) for name in names if name not in ELSEWHERE) > 1_200
