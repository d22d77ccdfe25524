"""The strict reader and the lenient one say the same, or the lenient one says what is wrong."""

import copy

import pytest
from config_files import NAMES, SILENT, config
from config_strategies import CONFIGS
from hypothesis import HealthCheck, given, settings

from ropewalk import ConfigError
from ropewalk.spec.config_keys import KEYS_OF_TYPE, Merged
from ropewalk.spec.diagnose import diagnose
from ropewalk.spec.engines import read_as
from ropewalk.spec.facts import ModelFacts
from ropewalk.spec.families import FAMILIES
from ropewalk.spec.from_config import specs_by_label
from ropewalk.spec.parameters import ROPE_TYPES, spec_from_rope_parameters
from ropewalk.spec.sources import tower_of

pytestmark = pytest.mark.filterwarnings("ignore::ropewalk.RopeConfigWarning")

# What the strict reader refuses although transformers reads it, and how: one of two entries wins,
# a key is passed over, or the class is none that ropewalk knows.
MILDER = {"KEY_CONFLICT", "UNKNOWN_KEY", "UNKNOWN_MODEL"}
# What the lenient reader refuses as a whole: towers of images, models set not to rotate, entries
# that the rotation does not need, and the layout of a GGUF file in one that is none.
OF_NO_CONCERN = ("one axis", "that rotates", "num_hidden_layers", "max_position", "rope_layout")


def compare(entries):
    """Return "same", "named" or "refused": what the two readers make of a config."""
    entries = copy.deepcopy(entries)
    try:
        strict, refusal = specs_by_label(*tower_of(entries)), None
    except ConfigError as error:
        strict, refusal = None, str(error)
    try:
        facts = ModelFacts.of(entries)
        findings = diagnose(facts)
    except ConfigError as error:
        concern = not any(words in str(error) for words in OF_NO_CONCERN)
        if strict is not None and concern:
            raise AssertionError(f"refused by the lenient reader alone: {entries}") from error
        return "refused"
    if strict is None:
        errors = any(finding.severity == "error" for finding in findings)
        assert errors or MILDER & {finding.code for finding in findings}, (refusal, entries)
        return "named"
    reading = read_as(facts, "hf")
    assert reading.problem is None or "KeyError" in reading.problem, (reading.problem, entries)
    for label, spec in strict.items() if reading.problem is None else ():
        other = reading.specs[label]
        if any(note.startswith("truncate") for note in reading.notes):
            other = other and other.replace(scaling=spec.scaling)  # which transformers passes over
        assert other == spec, entries
    return "same"


@pytest.mark.parametrize("name", NAMES)
def test_published_configs_are_read_alike(name):
    assert compare(config(name)) == "same"


@pytest.mark.parametrize("case", SILENT)
def test_silent_misreadings_are_read_alike_or_named(case):
    assert compare(SILENT[case]) == ("named" if case in ("S3", "S5", "S7") else "same")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(CONFIGS)
def test_any_config_is_read_alike_or_named(entries):
    compare(entries)


@pytest.mark.slow
@settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(CONFIGS)
def test_many_configs_are_read_alike_or_named(entries):
    compare(entries)


WIDTHS = {
    "hidden_size": 512,
    "num_attention_heads": 4,
    "head_dim": 128,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
}


def test_every_family_is_read_alike_with_every_rule():
    found = dict.fromkeys(("same", "named", "refused"), 0)
    for name in FAMILIES:
        for rope_type in ("default", "linear", "yarn", "longrope"):
            keys = {"rope_type": rope_type, "rope_theta": 5e5}
            if rope_type != "default":
                keys["factor"] = 4.0
            if rope_type == "longrope":
                keys |= {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
            plain = {"model_type": name, **WIDTHS, "max_position_embeddings": 4096}
            for entry in ("rope_scaling", "rope_parameters"):
                found[compare(plain | {entry: keys})] += 1
    assert found["same"] > 900
    assert found["named"] > 100


def test_the_table_of_keys_is_what_the_rules_read():
    lists = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    numbers = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0}
    numbers |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "truncate": True}
    assert set(KEYS_OF_TYPE) == set(ROPE_TYPES)
    for rope_type, names in KEYS_OF_TYPE.items():
        values = {key: (lists | numbers).get(key, 1.0) for key in names.split()}
        values |= {"rope_type": rope_type, "rope_theta": 1e4}
        if rope_type == "dynamic":
            del values["factor"]  # which alpha replaces
        if rope_type == "longrope":
            del values["attention_factor"]  # which the two mscales replace
        assert Merged(values, values, nested=False).ignored == ()
        spec_from_rope_parameters(values, head_dim=16, layout="half", max_position_embeddings=64)
        with pytest.raises(ConfigError, match="'other', which rope_type"):
            spec_from_rope_parameters(
                values | {"other": 1}, head_dim=16, layout="half", max_position_embeddings=64
            )


QUERY = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (
            {
                "model_type": "ministral3",
                "rope_parameters": QUERY | {"rope_theta": 1e6, "llama_4_scaling_beta": 0.1},
            },
            r"llama_4_scaling_beta 0.1 multiplies queries",
        ),
        (
            {"model_type": "llama4_text", "rope_theta": 5e5, "attn_temperature_tuning": True},
            r"attn_temperature_tuning multiplies queries",
        ),
    ],
)
def test_a_factor_on_queries_is_named_beside_the_rotation(entries, words):
    plain = {"hidden_size": 512, "num_attention_heads": 4, "max_position_embeddings": 4096}
    found = {finding.code: finding for finding in diagnose(ModelFacts.of(plain | entries))}
    assert found["QUERY_SCALING"].severity == "note"
    assert words in found["QUERY_SCALING"].message
