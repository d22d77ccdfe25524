import json
import subprocess
import sys

import pytest
import tiny
from transformers import PreTrainedTokenizerFast

from ropewalk import CheckpointError, ConfigError, DataError
from ropewalk.recipes.checkpointing import save_model
from ropewalk.recipes.fill_mask import FillMask


def save(folder, tokenizer=None, **changes):
    # Weights of some size: fresh ones would hardly look at their neighbours.
    save_model(tiny.model(initializer_range=0.5, **changes), tokenizer or tiny.tokenizer(), folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("fill") / "model", num_hidden_layers=2)


PIPELINE = """
import json, sys
sys.modules["ropewalk"] = None  # any import of it fails
from transformers import pipeline
fill = pipeline("fill-mask", sys.argv[1], device="cpu")
print(json.dumps([fill(text) for text in json.loads(sys.argv[2])]))
"""


def test_plain_transformers_fills_in_the_same_words(folder):
    texts = ["turns of [MASK] grow by the walk", "[MASK] rope", "the [MASK] of [MASK] numbers"]
    done = subprocess.run(
        [sys.executable, "-c", PIPELINE, str(folder), json.dumps(texts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fill = FillMask(folder)
    for text, theirs in zip(texts, json.loads(done.stdout), strict=True):
        lists = theirs if text.count("[MASK]") > 1 else [theirs]
        for mine, other in zip(fill(text), lists, strict=True):
            assert [c.token for c in mine] == [candidate["token_str"] for candidate in other]
            scores = [candidate["score"] for candidate in other]
            # Both are float32 softmaxes of logits that agree to 1e-5.
            assert [c.probability for c in mine] == pytest.approx(scores, rel=1e-4)
            if len(lists) == 1:
                assert [c.text for c in mine] == [candidate["sequence"] for candidate in other]


def test_each_mask_gets_its_own_candidates(folder):
    first, second = FillMask(folder)("the [MASK] of [MASK] numbers", top=3)
    assert len(first) == len(second) == 3
    for candidates, pattern in ((first, "the {} of [MASK] numbers"), (second, "the [MASK] of {} ")):
        for candidate in candidates:
            if candidate.token.isalpha():
                assert candidate.text.startswith(pattern.format(candidate.token).strip())
        order = [candidate.probability for candidate in candidates]
        assert order == sorted(order, reverse=True)


def test_probabilities_are_those_of_the_whole_vocabulary(folder):
    fill = FillMask(folder)
    (all_of_them,) = fill("a [MASK]", top=fill.model.config.vocab_size)
    # A sum of 90 float32 numbers.
    assert sum(candidate.probability for candidate in all_of_them) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("text", ["", "no mask here", "[mask] in lower case"])
def test_a_text_without_a_mask_is_refused(folder, text):
    with pytest.raises(DataError, match=r"text must have a mask, written \[MASK\]") as caught:
        FillMask(folder)(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("top", [0, 91, 2.0])
def test_an_impossible_number_of_candidates_is_refused(folder, top):
    with pytest.raises(ConfigError, match=f"top must be .*got {top}"):
        FillMask(folder)("a [MASK]", top=top)


def test_a_text_longer_than_the_trained_length_is_filled_with_rope(folder, tmp_path):
    text = "a [MASK] " + "rope " * 10 * tiny.LENGTH
    (candidates,) = FillMask(folder)(text)
    assert len(candidates) == 5
    learned = save(tmp_path / "learned", position_encoding="learned")
    with pytest.raises(ConfigError, match="learned"):
        FillMask(learned)(text)


def test_the_tokenizers_own_mask_token_may_be_another(tmp_path):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tiny.tokenizer().backend_tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    fill = FillMask(save(tmp_path / "model", tokenizer, vocab_size=len(tokenizer)))
    assert fill("a [MASK] walk") == fill("a <mask> walk")


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path):
    save(tmp_path / "model", vocab_size=80)
    with pytest.raises(CheckpointError, match="a token of number 89, too large for vocab_size=80"):
        FillMask(tmp_path / "model")


def test_a_tokenizer_with_gaps_in_its_numbers_is_refused(tmp_path):
    save(tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 500
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="a token of number 500, too large for vocab_size=90"):
        FillMask(tmp_path / "model")


def test_sentences_are_written_when_asked_for_alone(folder, monkeypatch):
    fill = FillMask(folder)
    lengths = []
    original = type(fill.tokenizer).decode

    def decode(self, tokens, *args, **kwargs):
        lengths.append(len(tokens))
        return original(self, tokens, *args, **kwargs)

    monkeypatch.setattr(type(fill.tokenizer), "decode", decode)
    masks = fill("[MASK] " * 40, top=2)
    assert lengths == [1] * 80, "work that grows with the square of the masks"
    assert masks[3][0].text.split().count("[MASK]") == 39
    assert masks[3][0].token in masks[3][0].text


@pytest.mark.parametrize("path", ["~nosuchuser/x", "x" * 5000, ""])
def test_a_path_that_cannot_be_is_refused_in_one_line(path):
    with pytest.raises(CheckpointError, match=r"^model.*; name") as caught:
        FillMask(path)
    assert "\n" not in str(caught.value)


def test_folders_without_model_or_tokenizer_are_refused(tmp_path, folder):
    with pytest.raises(CheckpointError, match="missing"):
        FillMask(tmp_path / "missing")
    tiny.model().save_pretrained(tmp_path / "bare")
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        FillMask(tmp_path / "bare")
