"""Every rotary class of transformers turns vectors as the spec of its config says."""

import csv
import dataclasses
import pathlib
import re

import numpy as np
import pytest

pytest.importorskip("transformers")
import transformers

transformers.logging.set_verbosity_error()

from cases import (  # noqa: E402
    EXCLUDED,
    RULES,
    UNLIKE,
    cases_of,
    cases_with,
    default_cases,
    excess,
    refusals,
)
from discovery import (  # noqa: E402
    CONSUMERS,
    UNUSED_FUNCTIONS,
    Found,
    config_for,
    indexer_classes,
    models_with_a_rotation,
    rotary_classes,
)
from indexers import EXCLUDED_INDEXERS, indexer_excess  # noqa: E402

import ropewalk as rw  # noqa: E402
from ropewalk import ConfigError  # noqa: E402
from ropewalk.spec.families import FAMILIES, REFUSED  # noqa: E402
from ropewalk.spec.family import CONVENTIONS  # noqa: E402
from ropewalk.spec.from_config import specs_by_label  # noqa: E402
from ropewalk.spec.sources import config_of, tower_of  # noqa: E402
from ropewalk.spec.towers import TOWER_BUILDERS  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

COMPARED = [found for found in rotary_classes() if found.name not in EXCLUDED]
ROWS = pathlib.Path(__file__).parents[1] / "golden" / "conformance_rows.tsv"


def named(found):
    return f"{found.model}.{found.name}"


@pytest.mark.parametrize("found", COMPARED, ids=named)
def test_the_identity_matrix_comes_out_as_the_spec_says(found):
    cases = cases_of(found)  # a class that is new here fails by its name, with a ConfigError
    assert cases
    for case in cases:
        # coordinates that no pair touches, and entries outside the pairs, must agree exactly
        assert excess(case) <= 0.0, case.id


def test_a_class_that_is_not_accounted_for_fails_by_name(monkeypatch):
    found = Found("llama", "LlamaRotaryEmbedding")
    monkeypatch.delitem(FAMILIES, "llama")
    with pytest.raises(ConfigError, match=r"model_type must be one of .*'llama'"):
        cases_of(found)


def test_a_wrong_family_is_noticed(monkeypatch):
    found = Found("llama", "LlamaRotaryEmbedding")
    monkeypatch.setitem(FAMILIES, "llama", FAMILIES["nanochat"])
    (case,) = cases_of(found)
    assert excess(case) > 0.1


def test_every_model_whose_code_rotates_has_a_class_here():
    models = {found.model for found in rotary_classes()}
    assert models_with_a_rotation() - models == set(UNUSED_FUNCTIONS)
    names = {name for found in rotary_classes() for name in dir(found.module)}
    assert set(CONSUMERS) <= names


def test_what_is_left_out_is_refused_with_its_reason():
    assert len(EXCLUDED) == len(REFUSED)
    for found in rotary_classes():
        if found.name in EXCLUDED:
            with pytest.raises(ConfigError, match="has no RopeSpec: it "):
                rw.RopeSpec.from_config(config_for(found))
    with pytest.raises(ConfigError, match="never rotates"):
        rw.RopeSpec.from_config({"model_type": "kimi_linear"})


INDEXERS = [found for found in indexer_classes() if found.name not in EXCLUDED_INDEXERS]


@pytest.mark.parametrize("found", INDEXERS, ids=named)
def test_an_indexer_turns_queries_and_keys_as_its_own_spec_says(found):
    # ml-explore/mlx-lm#512: interleaved in the attention, half in the indexer of one model
    queries, keys = indexer_excess(found)
    assert max(queries, keys) <= 0.0


def test_every_indexer_is_compared_or_named():
    names = {found.name for found in indexer_classes()}
    assert set(EXCLUDED_INDEXERS) <= names
    assert len(INDEXERS) >= 9
    described = {model for model, family in FAMILIES.items() if family.indexer}
    assert {tower_of(config_of(config_for(f)))[1]["model_type"] for f in INDEXERS} == described


def test_a_wrong_layout_of_an_indexer_is_noticed(monkeypatch):
    (found,) = (found for found in INDEXERS if found.model == "deepseek_v32")
    wrong = dataclasses.replace(FAMILIES["deepseek_v32"], indexer=FAMILIES["glm_moe_dsa"].indexer)
    monkeypatch.setitem(FAMILIES, "deepseek_v32", wrong)
    assert min(indexer_excess(found)) > 0.1


def test_every_convention_has_a_class_that_was_compared():
    compared = {case.convention for case in default_cases()}
    models = {tower_of(config_of(config_for(found)))[1]["model_type"] for found in INDEXERS}
    compared |= {FAMILIES[model].indexer.convention for model in models}
    assert compared == set(CONVENTIONS) | set(TOWER_BUILDERS)


def test_all_252_measured_rows_are_accounted_for():
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert len(rows) == 252
    cases = {(case.found.name, case.label): case for case in default_cases()}
    excluded = [row for row in rows if {row["rotary_class"], row["model"]} & _excluded_names()]
    described = [row for row in rows if row not in excluded]
    assert (len(described), len(excluded)) == (247, 5)
    for row in described:
        label = "all" if row["layer_type"] == "-" else row["layer_type"]
        _check_row(row, cases[row["rotary_class"], label])


def _excluded_names():
    return set(EXCLUDED) | {"rotate_queries_or_keys"}  # the function of V-JEPA 2


def _check_row(row, case):
    spec, pairs = case.spec, case.spec.pairs()
    if match := re.fullmatch(r"(half|interleaved)@(\d+)", row["in_layout"]):
        offset = 0 if case.cut else spec.rotary_offset
        assert (spec.layout, offset) == (match[1], int(match[2])), row
    if match := re.fullmatch(r"pairs\(i,i\+(\d+)\)", row["in_layout"]):
        assert (pairs.in_b - pairs.in_a == int(match[1])).all(), row
    if match := re.match(r"half|interleaved", row["out_layout"]):
        assert spec.output_layout == match[0] or spec.blocks, row
    assert (pairs.sign == (1 if row["sign"] == "+" else -1)).all(), row
    measured = row["model"] != "qwen3_omni_moe" or case.spec.axes  # not that of the text model
    if re.fullmatch(r"[\d.]+", row["default_theta"]) and not spec.blocks and measured:
        assert spec.theta == float(row["default_theta"]), row
    assert pairs.amplitude[0] == pytest.approx(float(row["table_amplitude"]), abs=1e-4), row
    sizes = re.fullmatch(r"(\d+)/(\d+)", row["rotated/head_dim"])
    if sizes and case.found.name not in _OTHER_WIDTHS:
        rotated, width = map(int, sizes.groups())
        assert 2 * np.count_nonzero(pairs.inv_freq) == rotated, row
        assert width in (spec.head_dim, spec.rotary_dim if case.cut else spec.head_dim), row
    _check_axes(row["axis_map"], pairs.axis, case)


# Measured at an odd width that dies in the model's own forward, or with two of three axes.
_OTHER_WIDTHS = {
    "Glm4MoeRotaryEmbedding",
    "MiniMaxM3VLVisionRotaryEmbedding",
    "Qwen3OmniMoeRotaryEmbedding",
    "Qwen3OmniMoeTalkerRotaryEmbedding",
    "Qwen3OmniMoeThinkerTextRotaryEmbedding",
}


def _check_axes(written, axes, case):
    """Compare with "T16H24W24", "(THW)*20+T4" and their like."""
    if case.found.name in _OTHER_WIDTHS or not re.fullmatch(r"[THW()*+\d]+", written):
        return
    letters = ""
    for group, times, plain, length in re.findall(
        r"\((\w+)\)\*(\d+)|([THW])(\d*)", written.replace("+", "")
    ):
        letters += group * int(times) if group else plain * int(length or 1)
    letters = letters.ljust(len(axes), "T")  # the rows leave out a rest of T in places
    order = "THW" if case.spec.n_axes == 3 else "HW"
    assert [order.index(letter) for letter in letters] == axes.tolist(), written


@pytest.mark.parametrize("found", COMPARED, ids=named)
def test_a_config_without_rope_entries_has_the_documented_ones(found):
    config = config_for(found)
    written = config_of(config)
    if "rope_parameters" not in written or found.name in _TOLD:
        pytest.skip("no such entries, or none that the defaults can do without")
    bare = {key: value for key, value in written.items() if key not in _ROPE_ENTRIES}
    assert specs_by_label(*tower_of(bare)) == specs_by_label(*tower_of(written))


_ROPE_ENTRIES = ("rope_parameters", "rope_theta", "partial_rotary_factor", "compress_rope_theta")
_TOLD = {
    "CohereCompassRotaryEmbedding",
    "Glm4vTextRotaryEmbedding",
    "GlmImageTextRotaryEmbedding",
    "MusicFlamingoRotaryEmbedding",
}
_REPRESENTATIVES = (
    "llama", "modernbert", "gpt_oss", "gpt_neox", "persimmon", "cohere", "helium", "glm",
    "deepseek_v3", "minicpm3", "deepseek_v4", "nanochat", "qwen2_vl", "glm_ocr", "qwen3_vl",
    "hy_v4_vl", "neomme", "phi3", "gemma3", "olmo3",
)  # fmt: skip
_ONE_OF_EACH = [f for f in COMPARED if f.model in _REPRESENTATIVES]


def compare_every_rule(found):
    """Return how many rotations of the class under other rules were compared, or both refuse."""
    if not getattr(config_for(found), "rope_parameters", None):
        return 0, 0
    compared = refused = 0
    for rope_type in RULES:
        ours, theirs = refusals(found, rope_type)
        alike = (ours is None) == (theirs is None)
        assert alike != ((found.name, rope_type) in UNLIKE), (found, rope_type, ours, theirs)
        if ours or theirs:
            refused += alike
            continue
        for case in cases_with(found, rope_type):
            length = None
            if case.spec.depends_on_length:
                length = 2 * int(case.config.max_position_embeddings)
            assert excess(case, length) <= 0.0, (case.id, rope_type)
            compared += 1
    return compared, refused


@pytest.mark.parametrize("found", _ONE_OF_EACH, ids=named)
def test_every_rule_on_one_class_of_each_kind(found):
    assert sum(compare_every_rule(found)) >= 6


@pytest.mark.slow
def test_every_rule_on_every_class():
    compared, refused = np.sum([compare_every_rule(found) for found in COMPARED], axis=0)
    assert compared >= 1_110
    assert refused >= 150
