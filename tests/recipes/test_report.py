import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from ropewalk.recipes.compare import ComparisonSettings
from ropewalk.recipes.findings import Run, findings, length_headline
from ropewalk.recipes.lengths import LengthPoint
from ropewalk.recipes.report import Comparison, surroundings, write_report
from ropewalk.recipes.report_page import page
from ropewalk.recipes.sentences import Filled
from ropewalk.recipes.training import EvaluationPoint, TrainingResult

HOSTILE = '<script src="http://evil.example/x.js">alert(1)</script> & "quotes"'


def run(encoding, *losses, seed=0, every=100):
    steps = [every * (number + 1) for number in range(len(losses))]
    evaluations = tuple(
        EvaluationPoint(step, loss, accuracy=0.25, tokens=500)
        for step, loss in zip(steps, losses, strict=True)
    )
    last = steps[-1]
    result = TrainingResult((), evaluations, steps=last, tokens=last * 2048, seconds=last / 5)
    return Run(encoding, seed, 1_000_000, result)


RUNS = [
    run("rope", 6.0, 5.0, 4.0),
    run("learned", 6.2, 5.9, 5.5),
    run("none", 6.1, 5.4, 5.2),
]


def make(runs=RUNS, **changes):
    encodings = tuple(dict.fromkeys(run.encoding for run in runs))
    seeds = tuple(dict.fromkeys(run.seed for run in runs))
    lengths = [
        LengthPoint("rope", "none", 1.0, 128, 4.0, 0.05, 0.0, 0.0, 0.3, 900, 12, 7),
        LengthPoint("rope", "none", 2.0, 256, 4.5, 0.05, 0.5, 0.01, 0.2, 900, 12, 7),
        LengthPoint("rope", "ntk", 1.0, 128, 4.0, 0.05, 0.0, 0.0, 0.3, 900, 12, 7),
        LengthPoint("rope", "ntk", 2.0, 256, 3.9, 0.05, -0.1, 0.01, 0.3, 900, 12, 7),
        LengthPoint("learned", "none", 1.0, 128, 5.5, 0.05, 0.0, 0.0, 0.1, 900, 12, 7),
        LengthPoint(
            "learned",
            "none",
            2.0,
            256,
            status="not possible",
            note="past the 128 learned positions",
        ),
    ]
    words = {name: [[("list", 0.25), (HOSTILE, 0.125)]] for name in encodings}
    parts = {
        "settings": ComparisonSettings(output="runs/x", encodings=encodings, seeds=seeds),
        "findings": findings(runs),
        "runs": tuple(runs),
        "lengths": tuple(lengths),
        "filled": (Filled(f"a [MASK] of {HOSTILE}", "list", words),),
        "corpus": {
            "name": HOSTILE,
            "fingerprint": "ab" * 32,
            "characters": 2_200_000,
            "vocabulary": 2048,
        },
        "surroundings": surroundings(torch.device("cpu"), 2, 1),
        "command": "ropewalk compare 'a b' --output <x>",
    }
    return Comparison(**(parts | changes))


class Page(HTMLParser):
    """Collect what matters of a page, and refuse tags that do not nest."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_summaries_come_best_first_with_the_steps_to_the_best_baseline():
    found = findings(RUNS)
    assert [summary.encoding for summary in found.summaries] == ["rope", "none", "learned"]
    assert found.best_baseline == "none"
    by_name = {summary.encoding: summary for summary in found.summaries}
    assert by_name["rope"].loss == 4.0
    assert by_name["rope"].perplexity == pytest.approx(math.exp(4.0))
    assert by_name["rope"].steps_to_baseline == 200
    assert by_name["rope"].tokens_to_baseline == 200 * 2048
    assert by_name["rope"].tokens_per_second == pytest.approx(5 * 2048)
    assert by_name["none"].steps_to_baseline == 300
    assert by_name["learned"].steps_to_baseline is None
    assert by_name["learned"].reached == 0


def test_several_seeds_give_means_and_paired_differences():
    # Differences to none: -1.0, -1.2, -1.4: mean -1.2, standard error 0.2 / sqrt(3).
    runs = [
        *(run("rope", 6.0, 4.0 + shift - extra, seed=i) for i, (shift, extra) in
          enumerate([(0.0, 0.0), (0.5, 0.2), (1.0, 0.4)])),
        *(run("none", 5.8, 5.0 + shift, seed=i) for i, shift in enumerate([0.0, 0.5, 1.0])),
    ]  # fmt: skip
    found = findings(runs)
    (difference,) = found.differences
    assert (difference.baseline, difference.n) == ("none", 3)
    assert difference.mean == pytest.approx(-1.2)
    assert difference.standard_error == pytest.approx(0.2 / math.sqrt(3))
    rope = found.summaries[0]
    assert rope.loss == pytest.approx(4.3)
    assert rope.loss_standard_error == pytest.approx(0.3 / math.sqrt(3))
    assert "standard error of 0.115 over 3 paired seeds." in found.headline


def test_steps_to_the_baseline_are_stated_only_if_all_seeds_reached_it():
    runs = [
        run("rope", 5.0, 4.0, seed=0), run("rope", 5.0, 4.9, seed=1),
        run("none", 5.5, 4.5, seed=0), run("none", 5.5, 4.5, seed=1),
    ]  # fmt: skip
    rope = next(s for s in findings(runs).summaries if s.encoding == "rope")
    assert (rope.reached, rope.steps_to_baseline) == (1, None)
    assert "by 1 of 2 seeds" in page(make(runs))


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (RUNS, ["4.00 nats", "1.20 lower", "none (5.20)", "by step 200", "One seed"]),
        ([run("rope", 5.0), run("none", 4.0)], ["5.00 nats", "1.00 higher", "none (4.00)"]),
        ([run("learned", 5.0), run("none", 4.0)], ["none 4.00, learned 5.00"]),
        ([run("rope", 5.0)], ["rope 5.00"]),
        (
            [
                run("rope", 4.0, seed=0), run("rope", 5.0, seed=1),
                run("none", 4.6, seed=0), run("none", 4.6, seed=1),
            ],
            ["0.10 lower", "too close to tell them apart"],
        ),
    ],
)  # fmt: skip
def test_headline_says_what_was_found(runs, words):
    headline = findings(runs).headline
    assert all(word in headline for word in words), headline


def test_length_headline_states_the_change_and_the_repair():
    text = length_headline(make().lengths)
    assert text == (
        "At 2 times its trained length the loss of rope on the same masked tokens changes by "
        "+0.50 ± 0.01 nats without scaling, by -0.10 ± 0.01 nats with ntk scaling."
    )
    assert length_headline([]) == ""


def test_page_is_well_formed_and_needs_nothing_from_outside():
    found = Page(page(make()))
    outside = [
        (name, value)
        for name, value in found.attributes
        if name in ("src", "href", "xlink:href", "action", "data") and not value.startswith("#")
    ]
    assert outside == []
    assert not {"script", "link", "iframe", "img", "object"} & set(found.tags)
    style = re.search(r"<style>(.*?)</style>", page(make()), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert found.tags.count("svg") == 3


def test_every_text_is_escaped():
    html = page(make())
    assert "<script" not in html
    assert Page(html).text.count(HOSTILE) >= 3  # the corpus, the sentence, a candidate


def test_page_states_figures_with_their_units():
    text = Page(page(make())).text
    for words in (
        "nats per masked token", "tokens/s", "4.500 ± 0.050", "+0.500 ± 0.010", "−0.100",
        "not possible", "256 tokens", "not reached", "the same 900 masked tokens",
        "12 held-out windows from 7 documents", "ropewalk compare 'a b' --output <x>", "[training]",
        "2.20 million characters",
    ):  # fmt: skip
        assert words in text, words


def test_page_of_a_single_encoding_without_lengths_or_sentences_is_whole():
    text = Page(page(make([run("none", 5.0)], lengths=(), filled=(), command=None))).text
    assert "none 5.00" in text
    assert "Past the trained length" not in text
    assert "wavelength" not in text


def test_right_words_are_marked_where_the_answer_is_known():
    known = Page(page(make()))
    assert ("class", "right") in known.attributes
    filled = tuple(replace(sentence, answer=None) for sentence in make().filled)
    assert ("class", "right") not in Page(page(make(filled=filled))).attributes


def test_json_has_everything_the_page_shows(tmp_path):
    comparison = make()
    write_report(comparison, tmp_path)
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["schema"] == "ropewalk.comparison/1"
    assert content["headline"] == comparison.findings.headline
    assert content["settings"]["training"]["steps"] == 600
    assert content["versions"]["torch"] == torch.__version__
    assert content["machine"]["cpu_count"] >= 1
    assert content["lengths"][-1]["loss"] is None
    assert content["runs"][0]["training"]["evaluations"][0] == {
        "step": 100, "loss": 6.0, "accuracy": 0.25, "tokens": 500,
    }  # fmt: skip
    assert (tmp_path / "report.html").read_text() == page(comparison)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
