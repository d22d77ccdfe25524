from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RoFormerConfig, RoFormerForMaskedLM

from ropewalk.data.tokenizers import (
    SPECIAL_TOKENS,
    TOKENIZER_KINDS,
    load_tokenizer,
    train_backend,
    train_tokenizer,
)
from ropewalk.errors import CheckpointError, ConfigError, DataError


@pytest.fixture(params=TOKENIZER_KINDS)
def tokenizer(request, wordpiece, bpe):
    return {"wordpiece": wordpiece, "bpe": bpe}[request.param]


def test_the_special_tokens_have_their_places_and_roles(tokenizer):
    assert tuple(tokenizer.convert_ids_to_tokens(range(5))) == SPECIAL_TOKENS
    roles = ("pad", "unk", "cls", "sep", "mask")
    assert [getattr(tokenizer, f"{role}_token_id") for role in roles] == [0, 1, 2, 3, 4]
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_a_text_and_a_pair_are_wrapped_as_in_bert(letters):
    a, b = letters.convert_tokens_to_ids(["a", "b"])
    encoded = letters("a b", "b")
    assert encoded["input_ids"] == [2, a, b, 3, b, 3]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    assert letters("a [MASK]")["input_ids"] == [2, a, 4, 3]


def test_wordpiece_by_hand():
    # Words: hug 4 times, pug twice, u twice. Merges: ##u + ##g (6), h + ##ug (4), p + ##ug (2).
    tokenizer = train_tokenizer(["hug hug", "hug hug pug pug", "u u"], vocab_size=16)
    first = ("##g", "##h", "##p", "##u", "g", "h", "p", "u")
    assert tokenizer.convert_ids_to_tokens(range(5, 16)) == [*first, "##ug", "hug", "pug"]
    assert tokenizer.tokenize("HUG pug hup") == ["hug", "pug", "h", "##u", "##p"]
    assert tokenizer.tokenize("hat") == ["[UNK]"]
    assert tokenizer.tokenize("gug") == ["g", "##ug"]
    once = train_tokenizer(["hug hug", "hug hug pug", "u u"], vocab_size=16)
    assert len(once) == 15  # a pair seen once is not worth an entry


def test_case_and_accents_go_only_when_asked():
    for lowercase, expected in ((True, "cafe"), (False, "Café")):
        tokenizer = train_tokenizer(["Café Café Café"] * 3, vocab_size=40, lowercase=lowercase)
        assert tokenizer.tokenize("Café") == [expected]


def test_each_chinese_character_is_a_word(wordpiece):
    assert wordpiece.tokenize("東京") == ["東", "京"]


@settings(deadline=None, max_examples=60)
@given(text=st.text(max_size=30))
def test_byte_level_bpe_gives_every_text_back(bpe, text):
    ids = bpe(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert bpe.decode(ids) == text


def test_bpe_in_lower_case_gives_the_text_back_in_lower_case(sentences):
    tokenizer = train_tokenizer(sentences, kind="bpe", vocab_size=300)
    ids = tokenizer(sentences[3], add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == sentences[3].lower()


def test_the_mask_of_bpe_takes_the_space_before_it_along(bpe):
    tokens = bpe.convert_ids_to_tokens(bpe("rope [MASK] turns", add_special_tokens=False).input_ids)
    assert "[MASK]" in tokens
    assert "Ġ" not in tokens


def test_rare_characters_stay_outside_the_alphabet():
    # 20,000 characters: one in 10,000 may be left out, so two; "é" needs one, "ö" three.
    text = "ab " * 9_998 + "é ö ö ö"
    vocabulary = train_tokenizer([text], vocab_size=40, lowercase=False).get_vocab()
    assert "ö" in vocabulary
    assert "é" not in vocabulary


def test_the_vocabulary_has_at_most_the_size_asked_for(sentences):
    for kind, size in (("wordpiece", 90), ("bpe", 270)):
        assert len(train_tokenizer(sentences, kind=kind, vocab_size=size)) == size
        assert len(train_tokenizer(sentences, kind=kind, vocab_size=5000)) < 600


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_training_twice_learns_the_same_in_one_process(sentences, kind):
    trained = {
        train_backend(sentences, kind=kind, vocab_size=300, lowercase=True).to_str()
        for _ in range(20)
    }
    assert len(trained) == 1


def test_training_learns_the_same_with_other_threads_and_hash_seeds(sentences):
    code = (
        "import sys, json; from ropewalk.data.tokenizers import TOKENIZER_KINDS, train_backend;"
        "docs = json.load(sys.stdin);"
        "print([train_backend(docs, kind=k, vocab_size=300, lowercase=True).to_str()"
        " for k in TOKENIZER_KINDS])"
    )
    outputs = set()
    for threads, parallel in ((1, "false"), (4, "true")):
        settings = {
            "RAYON_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": parallel,
            "PYTHONHASHSEED": str(threads),
        }
        done = subprocess.run(
            [sys.executable, "-c", code], input=json.dumps(sentences),
            env={**os.environ, **settings}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop()) > 5_000


def same_encoding(first, second, text):
    return dict(first(text)) == dict(second(text)) and first(text).word_ids() == (
        second(text).word_ids()
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copies_and_pickles_encode_alike(tokenizer, sentences, copied):
    assert same_encoding(copied(tokenizer), tokenizer, sentences[3])


def test_saving_and_loading_changes_nothing(tokenizer, sentences, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert same_encoding(loaded, tokenizer, sentences[3] + " [MASK]")
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.decode(loaded(sentences[0]).input_ids) == (
        tokenizer.decode(tokenizer(sentences[0]).input_ids)
    )


def test_a_long_text_gives_no_warning(tokenizer, caplog):
    assert len(tokenizer("walk " * 3_000).input_ids) > 3_000
    assert caplog.text == ""


OPENED_ELSEWHERE = """
import json, sys
sys.modules["ropewalk"] = sys.modules["rjieba"] = None  # neither may be needed
from transformers import AutoTokenizer, pipeline
result = {}
for folder in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "A walker " + tokenizer.mask_token + " the Café!"
    encoded = tokenizer(text)
    result[folder] = {"ids": encoded["input_ids"], "words": encoded.word_ids()}
    if folder.endswith("/roformer"):
        result[folder]["filled"] = len(pipeline("fill-mask", folder)(text))
print(json.dumps(result))
"""


def test_plain_transformers_opens_a_saved_folder_beside_any_config(wordpiece, bpe, tmp_path):
    folders = {}
    for kind, tokenizer in (("wordpiece", wordpiece), ("bpe", bpe)):
        config = RoFormerConfig(
            vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=32,
        )  # fmt: skip
        for model_type in ("alone", "roformer", "ropewalk_roformer"):
            folder = tmp_path / kind / model_type
            if model_type == "roformer":
                RoFormerForMaskedLM(config).save_pretrained(folder)
            elif model_type == "ropewalk_roformer":
                folder.mkdir()
                text = json.dumps({**config.to_dict(), "model_type": model_type})
                (folder / "config.json").write_text(text)
            tokenizer.save_pretrained(folder)
            folders[str(folder)] = tokenizer
    done = subprocess.run(
        [sys.executable, "-c", OPENED_ELSEWHERE, *folders],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    opened = json.loads(done.stdout.splitlines()[-1])
    for folder, tokenizer in folders.items():
        encoded = tokenizer("A walker [MASK] the Café!")
        assert opened[folder]["ids"] == encoded["input_ids"]
        assert opened[folder]["words"] == encoded.word_ids()
    assert [found["filled"] for found in opened.values() if "filled" in found] == [5, 5]


@pytest.mark.parametrize("kind", ["unigram", "", "BPE"])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(ConfigError, match=f"one of wordpiece, bpe; got kind='{kind}'"):
        train_tokenizer(["text"], kind=kind)


@pytest.mark.parametrize(
    ("kind", "size", "needed"), [("wordpiece", 12, "at least 13 "), ("bpe", 260, "at least 261 ")]
)
def test_a_vocabulary_without_room_for_the_alphabet_is_refused(kind, size, needed):
    # Five special tokens, the characters a, b, c, ! and 京, the inner characters ##a, ##b, ##c.
    with pytest.raises(ConfigError, match=f"{needed}.*got vocab_size={size}"):
        train_tokenizer(["abc a! 京"], kind=kind, vocab_size=size)
    assert len(train_tokenizer(["abc a! 京"], kind=kind, vocab_size=size + 1)) == size + 1


def test_documents_without_text_are_refused():
    with pytest.raises(DataError, match="got 1 documents without any"):
        train_tokenizer([" "])


def test_a_folder_without_a_tokenizer_is_refused_and_never_looked_up_elsewhere(tmp_path):
    for folder in (tmp_path, tmp_path / "missing", "bert-base-uncased"):
        with pytest.raises(CheckpointError, match=f"no tokenizer.json in '{folder}'"):
            load_tokenizer(folder)


@pytest.mark.parametrize("raw", ["", "{", '{"version": "1.0"}', "\0\0"])
def test_a_damaged_tokenizer_is_refused_in_one_line(tokenizer, tmp_path, raw):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(raw)
    with pytest.raises(CheckpointError, match=r"cannot load .*tokenizer\.json'") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [50.5, "x", None, True, 2**31])
def test_a_vocabulary_size_that_is_no_number_is_refused(sentences, size):
    with pytest.raises(ConfigError, match="vocab_size must be") as caught:
        train_tokenizer(sentences, vocab_size=size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folder", ["", "~nosuchuser/x", "x" * 5000])
def test_a_path_that_cannot_be_a_tokenizer_is_refused(folder):
    with pytest.raises(CheckpointError, match=r"^tokenizer"):
        load_tokenizer(folder)
