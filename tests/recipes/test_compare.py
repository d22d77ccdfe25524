import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from torch.utils.data import Subset

from ropewalk.analysis.measures import ratio_standard_error
from ropewalk.data import long_windows
from ropewalk.errors import CheckpointError, ConfigError, DataError
from ropewalk.recipes import compare as recipe
from ropewalk.recipes import comparison_run, report
from ropewalk.recipes.compare import ComparisonSettings, compare, load_settings
from ropewalk.recipes.comparison_run import initial_model
from ropewalk.recipes.evaluation import evaluate
from ropewalk.recipes.fill_mask import FillMask
from ropewalk.recipes.inputs import DataSettings
from ropewalk.recipes.lengths import (
    MOST_WINDOWS,
    length_task,
    loss_by_length,
    scaled_copy,
    spread,
)
from ropewalk.recipes.pretrain_settings import ModelSettings
from ropewalk.recipes.sentences import DEFAULT_SENTENCES, held_out_blanks
from ropewalk.recipes.training import TrainingSettings

ALL = ("rope", "learned", "sinusoidal", "none")
LONG = ["a walk by the place of a rope " * 12, "numbers grow with angles " * 20, *tiny.documents()]
SENTENCE = "a [MASK] of numbers"


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "lines.jsonl"
    texts = [f"{text} {number}" for number, text in enumerate(LONG[:2] * 20 + LONG)]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return path


@pytest.fixture(scope="session")
def small(source):
    """Return settings of a comparison that takes seconds."""

    def build(output, **changes):
        settings = ComparisonSettings(
            output=str(output),
            encodings=ALL,
            seeds=(0, 3),
            eval_rows=12,
            sentences=(SENTENCE,),
            data=DataSettings(
                sources=(str(source),), block_size=16, vocab_size=120, validation_fraction=0.3
            ),
            model=ModelSettings(layers=1, hidden_size=16, heads=2, dropout=0.0),
            training=TrainingSettings(
                steps=4, batch_size=4, learning_rate=1e-2, eval_every=2, keep_checkpoints=1
            ),
            device="cpu",
            jobs=1,
        )
        return replace(settings, **changes)

    return build


@pytest.fixture(scope="session")
def finished(small, tmp_path_factory):
    """Compare all encodings over two seeds, once for all tests that only read the result."""
    output = tmp_path_factory.mktemp("finished") / "run"
    return compare(small(output), progress=False, command="ropewalk compare --of <tests>")


def content(result):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(result.json.read_text(), parse_constant=refuse)


def timeless(tree):
    """Leave out what depends on the speed of the machine and on the folder."""
    if isinstance(tree, dict):
        skipped = ("seconds", "tokens_per_second", "output")
        return {key: timeless(value) for key, value in tree.items() if key not in skipped}
    return [timeless(item) for item in tree] if isinstance(tree, list) else tree


def test_report_and_models_are_where_the_result_says(finished):
    assert finished.report.read_text().startswith("<!doctype html>")
    assert content(finished)["schema"] == report.SCHEMA
    assert {path.name for path in finished.models.iterdir()} == set(ALL)


def test_json_holds_every_run_with_its_curve(finished):
    runs = content(finished)["runs"]
    assert [(run["encoding"], run["seed"]) for run in runs] == [(e, s) for s in (0, 3) for e in ALL]
    for run in runs:
        assert [point["step"] for point in run["training"]["evaluations"]] == [2, 4]
        assert run["training"]["tokens"] == 4 * 4 * 16
    # Every run is evaluated on the same masked tokens.
    assert len({run["training"]["evaluations"][-1]["tokens"] for run in runs}) == 1


def test_all_encodings_start_from_the_same_weights():
    states = {
        name: initial_model(tiny.config(position_encoding=name), seed=5).state_dict()
        for name in ALL
    }
    for name, state in states.items():
        extra = set(state) - set(states["none"])
        assert extra == (
            {"roformer.embeddings.position_embeddings.weight"} if name == "learned" else set()
        )
        for key, weight in states["none"].items():
            assert torch.equal(state[key], weight), (name, key)
    other = initial_model(tiny.config(), seed=6).state_dict()
    key = "roformer.embeddings.word_embeddings.weight"
    assert not torch.equal(other[key], states["rope"][key])


def test_runs_of_a_seed_differ_in_the_encoding_alone(small, tmp_path, monkeypatch):
    seen = []
    real = comparison_run.train

    def spy(model, train_set, evaluation_set, settings, **kwargs):
        seen.append((model.config.position_encoding, train_set, evaluation_set, settings))
        return real(model, train_set, evaluation_set, settings, **kwargs)

    monkeypatch.setattr(comparison_run, "train", spy)
    encodings = ("rope", "none")
    compare(small(tmp_path / "run", encodings=encodings, eval_lengths=()), progress=False)
    first, second, third, _ = seen
    assert [name for name, *_ in seen] == ["rope", "none", "rope", "none"]
    assert first[3] == second[3]
    assert third[3] == replace(first[3], seed=3)
    labels = [[row["labels"] for row in train_set] for _, train_set, _, _ in seen]
    assert all(torch.equal(a, b) for a, b in zip(labels[0], labels[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(labels[0], labels[2], strict=True))
    for _, _, evaluation_set, _ in seen:
        for row, expected in zip(evaluation_set, first[2], strict=True):
            assert all(torch.equal(row[name], expected[name]) for name in expected)


def test_every_model_fills_masks_and_rope_opens_in_plain_transformers(finished):
    from transformers import RoFormerForMaskedLM

    for name in ALL:
        assert len(FillMask(finished.models / name)(SENTENCE, top=2)[0]) == 2
    ours = FillMask(finished.models / "rope")
    theirs = RoFormerForMaskedLM.from_pretrained(finished.models / "rope").eval()
    ids = torch.tensor([[2, 4, 10, 11, 3]])
    with torch.no_grad():
        difference = theirs(ids).logits - ours.model(input_ids=ids).logits
    assert difference.abs().max() < 1e-5  # the agreed bound of the two implementations


def test_filled_masks_are_those_of_the_saved_models(finished):
    (sentence,) = finished.comparison.filled
    assert sentence.text == SENTENCE
    assert set(sentence.candidates) == set(ALL)
    for name in ALL:
        expected = FillMask(finished.models / name)(SENTENCE, top=3)[0]
        assert sentence.candidates[name] == [[(c.token, c.probability) for c in expected]]


def test_learned_positions_past_their_table_are_not_possible(finished):
    points = [p for p in content(finished)["lengths"] if p["encoding"] == "learned"]
    assert [(p["length"], p["loss"] is None) for p in points] == [
        (16, False), (24, True), (32, True), (64, True)
    ]  # fmt: skip
    assert {p["note"] for p in points[1:]} == {"past the 16 learned positions"}
    assert {p["status"] for p in points[1:]} == {"not possible"}
    assert finished.report.read_text().count("not possible") >= 3


def test_every_length_predicts_the_same_tokens(finished):
    points = [p for p in finished.comparison.lengths if p.loss is not None]
    assert len({(p.tokens, p.windows) for p in points}) == 1
    assert points[0].tokens > 50
    assert {p.scaling for p in points if p.encoding == "rope"} == {"none", "linear", "ntk"}
    assert {p.scaling for p in points if p.encoding != "rope"} == {"none"}


def test_an_interrupted_comparison_ends_like_an_uninterrupted_one(
    finished, small, tmp_path, monkeypatch
):
    real, calls = comparison_run.train, []

    def stop_in_the_second_run(*args, **kwargs):
        calls.append(kwargs["label"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    settings = small(tmp_path / "run", encodings=("rope", "none"), seeds=(0,))
    monkeypatch.setattr(comparison_run, "train", stop_in_the_second_run)
    with pytest.raises(KeyboardInterrupt):
        compare(settings, progress=False)
    assert not (tmp_path / "run" / "report.json").exists()
    monkeypatch.setattr(comparison_run, "train", real)
    first_run = tmp_path / "run" / "runs" / "rope-0" / "result.json"
    before = first_run.stat().st_mtime_ns
    resumed = content(compare(settings, resume=True, progress=False))
    assert first_run.stat().st_mtime_ns == before  # a finished run is read, not trained again
    whole = content(finished)
    # A run does not depend on which others are compared with it.
    runs = [
        run for run in whole["runs"] if run["seed"] == 0 and run["encoding"] in ("rope", "none")
    ]
    points = [point for point in whole["lengths"] if point["encoding"] in ("rope", "none")]
    assert timeless(resumed["runs"]) == timeless(runs)
    assert resumed["lengths"] == points


def test_runs_side_by_side_are_the_runs_of_one_process(finished, small, tmp_path):
    settings = small(
        tmp_path / "run", encodings=("rope", "learned"), seeds=(3,), eval_lengths=(), jobs=2
    )
    result = compare(settings, progress=False)
    runs = {(run.encoding, run.seed): run for run in finished.comparison.runs}
    for run in result.comparison.runs:
        alone = runs[run.encoding, run.seed].training
        assert run.training.evaluations == alone.evaluations
        assert run.training.history == alone.history
    assert not (tmp_path / "run" / "inputs").exists()
    assert content(result)["machine"]["runs_at_a_time"] == 2


def test_a_seed_may_be_added_later_but_the_training_may_not_change(small, tmp_path):
    one = small(tmp_path / "run", seeds=(0,), encodings=("rope", "none"), eval_lengths=())
    first = compare(one, progress=False).comparison
    both = compare(replace(one, seeds=(0, 3)), resume=True, progress=False).comparison
    assert both.runs[:2] == first.runs
    assert [difference.n for difference in both.findings.differences] == [2]
    longer = replace(one, training=replace(one.training, steps=5))
    with pytest.raises(ConfigError, match=r"settings\.steps must be 4, .*; got 5"):
        compare(longer, resume=True, progress=False)


def test_settings_of_the_folder_are_taken_up_again(finished, small):
    output = str(finished.report.parent)
    assert load_settings({"output": output}, resume=True) == small(output)
    changed = load_settings({"output": output, "seeds": [7]}, resume=True)
    assert changed == small(output, seeds=(7,))


def test_a_folder_of_something_else_is_never_overwritten(small, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for keep in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(ConfigError, match="not made by ropewalk compare"):
            compare(small(tmp_path), progress=False, **keep)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert len(list(tmp_path.iterdir())) == 1


def test_results_are_replaced_only_when_asked(finished, small):
    before = finished.json.read_bytes()
    with pytest.raises(ConfigError, match="replace them with overwrite"):
        compare(small(finished.report.parent), progress=False)
    missing = DataSettings(sources=("missing.txt",))
    with pytest.raises(DataError, match=r"missing\.txt"):
        compare(small(finished.report.parent, data=missing), overwrite=True, progress=False)
    assert finished.json.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"encodings": ("rope", "alibi")}, ConfigError, "got 'alibi'"),
        ({"encodings": ()}, ConfigError, r"got \(\)"),
        ({"encodings": ("rope", "rope")}, ConfigError, "got 'rope' twice"),
        ({"seeds": (0, -1)}, ConfigError, "got -1"),
        ({"seeds": (1, 1)}, ConfigError, "got 1 twice"),
        ({"eval_lengths": ("1x", "two")}, ConfigError, "got 'two'"),
        ({"eval_lengths": ("-2x",)}, ConfigError, "got '-2x'"),
        ({"eval_lengths": ("2x", "2.0x")}, ConfigError, r"got 2\.0 twice"),
        ({"eval_lengths": ("0.1x",)}, ConfigError, r"must give 3 to \d+ tokens; got 0\.1x"),
        ({"eval_lengths": ("9" * 400 + "x",)}, ConfigError, "must give 3 to"),
        ({"eval_lengths": "1x"}, ConfigError, "must be a list with at least one entry; got '1x'"),
        ({"eval_scaling": ("yarn",)}, ConfigError, "got 'yarn'"),
        ({"eval_rows": -1}, ConfigError, "got -1"),
        ({"sentences": ("no gap",)}, ConfigError, "got 'no gap'"),
        ({"sentences": (["[MASK]"],)}, ConfigError, r"got \['\[MASK\]'\]"),
        ({"seeds": (2**32,)}, ConfigError, "got 4294967296"),
        ({"output": ""}, ConfigError, "got ''"),
        ({"device": "tpu"}, ConfigError, "got 'tpu'"),
        ({"model": ModelSettings(position_encoding="none")}, ConfigError, "got 'none'"),
        (
            {"training": TrainingSettings(steps=1, batch_size=1, learning_rate=1.0, seed=4)},
            ConfigError,
            "got 4; give seeds",
        ),
        (
            {"model": ModelSettings(rope_parameters={"rope_type": "linear", "factor": 2.0})},
            ConfigError,
            "got rope_type='linear'",
        ),
    ],
)
def test_impossible_settings_name_the_value(small, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        small(**{"output": tmp_path / "run", **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sentences": (f"{SENTENCE} and" * 9,)}, ConfigError, "at most block_size=16 tokens"),
        ({"model": ModelSettings(layers=1, hidden_size=4, heads=2)}, ConfigError, "NTK needs"),
        ({"model": ModelSettings(layers=1, hidden_size=9, heads=2)}, ConfigError, "got 9"),
        ({"model": ModelSettings(hidden_size=16, heads=2, dropout=2.0)}, ConfigError, "got 2.0"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    small, tmp_path, changes, error, message
):
    with pytest.raises(error, match=message):
        compare(small(tmp_path / "run", **changes), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_several_processes_are_refused(small, tmp_path, monkeypatch):
    real = recipe.arguments

    def two_processes(*args):
        given = copy.copy(real(*args))
        given.__class__ = type("Two", (type(given),), {"world_size": 2})
        return given

    monkeypatch.setattr(recipe, "arguments", two_processes)
    with pytest.raises(ConfigError, match="got 2; start it without torchrun"):
        compare(small(tmp_path / "run"), progress=False)


def test_a_full_disk_leaves_the_old_report(finished, tmp_path, monkeypatch):
    from ropewalk.recipes import runs

    report.write_report(finished.comparison, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def no_space(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs.os, "fsync", no_space)
    with pytest.raises(CheckpointError, match="No space left"):
        report.write_report(finished.comparison, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.fixture(scope="module")
def task():
    return length_task(
        LONG,
        tiny.tokenizer(),
        {2.0: 32, 1.0: 16, 40.0: 640},
        mask_probability=0.3,
        whole_word=False,
    )


def test_windows_are_of_the_longest_context_that_the_text_has(task):
    assert task.contexts == {1.0: 16, 2.0: 32}
    assert task.missing == {40.0: 640}
    expected, numbers = long_windows(LONG, tiny.tokenizer(), length=32)
    np.testing.assert_array_equal(task.windows.input_ids, expected.input_ids)
    np.testing.assert_array_equal(np.unique(numbers, return_inverse=True)[1], task.documents)
    labels = {
        context: torch.cat([row["labels"][row["labels"] >= 0] for row in task.rows(context)])
        for context in (16, 32)
    }
    assert torch.equal(labels[16], labels[32])


def test_loss_by_length_is_the_loss_of_the_evaluation(task):
    model = tiny.model(dropout=0.0)
    points = loss_by_length(model, task, ("none", "ntk"))
    found = {(p.scaling, p.ratio): p for p in points}
    assert set(found) == {(rule, ratio) for rule in ("none", "ntk") for ratio in (1.0, 2.0, 40.0)}
    for rule, reader in (("none", model), ("ntk", scaled_copy(model, "ntk", 2.0))):
        expected = evaluate(reader, task.rows(32))
        # Rows are evaluated one by one here and in one batch there: float32 rounding.
        assert found[rule, 2.0].loss == pytest.approx(expected.loss, rel=1e-6)
        assert found[rule, 2.0].tokens == expected.count
    assert found["ntk", 1.0].loss == found["none", 1.0].loss
    assert found["none", 1.0].change == 0.0
    assert found["ntk", 2.0].change == pytest.approx(
        found["ntk", 2.0].loss - found["none", 1.0].loss, abs=1e-12
    )
    assert found["none", 40.0].loss is None
    assert found["none", 40.0].note == "fewer than two held-out texts of 640 tokens"


def test_errors_are_taken_over_documents_since_their_windows_are_alike(task):
    model = tiny.model(dropout=0.0)
    (point,) = (p for p in loss_by_length(model, task, ("none",)) if p.ratio == 2.0)
    rows = task.rows(32)
    scores = [evaluate(model, Subset(rows, [row])) for row in range(len(rows))]
    documents = range(task.documents.max() + 1)
    assert point.documents == len(documents) < point.windows == len(rows)
    sums = np.array([[s.nll_sum, s.count] for s in scores])
    whole = np.array([sums[task.documents == number].sum(0) for number in documents])
    expected = ratio_standard_error(whole[:, 0], whole[:, 1])
    # The same float64 sums, taken in another order.
    assert point.standard_error == pytest.approx(expected, rel=1e-9)
    assert point.standard_error != pytest.approx(ratio_standard_error(*sums.T), rel=1e-3)


def test_one_long_document_is_not_enough_to_know_an_error():
    alone = length_task(
        LONG[:1], tiny.tokenizer(), {1.0: 16}, mask_probability=0.3, whole_word=False
    )
    (point,) = loss_by_length(tiny.model(), alone, ("none",))
    assert (point.status, point.loss) == ("not measured", None)


def test_a_text_without_long_documents_says_so_at_every_length():
    short = length_task(
        tiny.documents(), tiny.tokenizer(), {4.0: 64}, mask_probability=0.3, whole_word=False
    )
    (point,) = loss_by_length(tiny.model(), short, ("none",))
    assert (point.loss, point.tokens) == (None, 0)
    assert "64 tokens" in point.note


@pytest.mark.parametrize(("rule", "factor"), [("linear", 2.0), ("ntk", 4.0)])
def test_scaling_changes_the_rotation_and_no_weight(rule, factor):
    model = tiny.model(dropout=0.0).eval()
    before = copy.deepcopy(model.state_dict())
    scaled = scaled_copy(model, rule, factor)
    assert model.config.rope_spec.scaling is None
    assert scaled.config.rope_spec.scaling.factor == factor
    parameters = {"rope_type": rule, "rope_theta": 1e4, "factor": factor}
    fresh = tiny.model(dropout=0.0, rope_parameters=parameters).eval()
    for state in (model.state_dict(), scaled.state_dict(), fresh.state_dict()):
        assert state.keys() == before.keys()
        assert all(torch.equal(state[key], before[key]) for key in before)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(scaled(input_ids=ids).logits, fresh(input_ids=ids).logits)
        assert not torch.equal(scaled(input_ids=ids).logits, model(input_ids=ids).logits)


def test_linear_scaling_is_the_same_as_squeezed_positions():
    model = tiny.model(dropout=0.0).eval()
    ids, places = torch.arange(5, 25)[None], torch.arange(20.0)[None]
    with torch.no_grad():
        scaled = scaled_copy(model, "linear", 2.0)(input_ids=ids).logits
        squeezed = model(input_ids=ids, position_ids=places / 2).logits
    torch.testing.assert_close(scaled, squeezed, rtol=0, atol=1e-6)  # float32 rounding


@pytest.mark.parametrize(
    "changes",
    [{"position_encoding": "none"}, {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}],
)
def test_only_an_unscaled_rotation_can_be_scaled(changes):
    with pytest.raises(ConfigError, match="must have an unscaled rotation to be scaled by 'ntk'"):
        scaled_copy(tiny.model(**changes), "ntk", 2.0)


def test_spread_takes_evenly_and_never_more_than_there_are():
    blocks, _ = long_windows(LONG, tiny.tokenizer(), length=8)
    few = spread(blocks, 5)
    rows = np.linspace(0, len(blocks) - 1, 5).astype(int)
    np.testing.assert_array_equal(few.input_ids, blocks.input_ids[rows])
    assert spread(blocks, 0) is blocks
    assert spread(blocks, len(blocks) + 1) is blocks
    assert MOST_WINDOWS > 1


def test_a_rope_model_reads_a_cut_window_like_its_parts(task):
    # Chunks of a cut window see neither each other nor their place in the window.
    model = tiny.model(dropout=0.0).eval()
    row = task.rows(16)[0]
    first = row["document_ids"] == 1
    with torch.no_grad():
        whole = model(
            input_ids=row["input_ids"][None],
            position_ids=row["position_ids"][None],
            document_ids=row["document_ids"][None],
        ).logits[0, first]
        part = model(input_ids=row["input_ids"][None, first]).logits[0]
    torch.testing.assert_close(whole, part, rtol=0, atol=1e-5)  # other block sizes in the kernel


def test_sentences_of_the_text_hide_one_word_each():
    texts = [
        "Short. The quick brown fox jumps over the lazy dog today.",
        "code() -> x_1 = {2}. and then [nothing] plain at all in this one.",
        "Every sailor on board knew that the anchor was lost, and slept.",
    ]
    blanks = held_out_blanks(texts)
    assert [blank.answer for blank in blanks] == ["over", "that"]
    for blank in blanks:
        assert blank.text.count("[MASK]") == 1
        assert any(blank.text.replace("[MASK]", blank.answer) in text for text in texts)
    assert held_out_blanks(texts * 9, count=3)[2:] != []
    assert held_out_blanks(["no sentence here"]) == []


def test_default_sentences_have_one_mask_each():
    assert all(sentence.count("[MASK]") == 1 for sentence in DEFAULT_SENTENCES)


@pytest.mark.slow
def test_rope_learns_faster_than_learned_and_no_positions(tmp_path):
    """Take the default comparison with three seeds: about forty minutes on two cores."""
    settings = ComparisonSettings(output=str(tmp_path / "run"), seeds=(0, 1, 2), eval_lengths=())
    found = compare(settings).comparison.findings
    assert {difference.baseline for difference in found.differences} == {"learned", "none"}
    for difference in found.differences:
        assert difference.n == 3
        assert difference.mean < -2 * difference.standard_error


def test_a_comparison_takes_local_layers_but_one_rotation():
    local = {"global_every": 2, "sliding_window": 4}
    settings = load_settings({"output": "x", "model": local})
    for encoding in ALL:
        config = settings.config(encoding, vocab_size=90, pad_token_id=0)
        assert config.layer_types == ["full_attention", "sliding_attention", "full_attention"]
    each = {"full_attention": {"rope_theta": 160_000.0}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(ConfigError, match=r"model.rope_parameters must be one rotation for all"):
        load_settings({"output": "x", "model": local | {"rope_parameters": each}})
