from __future__ import annotations

import hashlib
import pydoc_data.topics
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.data import corpus as corpus_module
from ropewalk.data.corpus import (
    Corpus,
    embedded_corpus,
    load_hub_dataset,
    read_corpus,
    split_documents,
)
from ropewalk.errors import ConfigError, DataError

texts = st.lists(st.text(alphabet="abc ", min_size=1).filter(str.strip), min_size=2, max_size=40)


def test_the_fingerprint_is_the_hash_of_lengths_and_texts():
    raw = (2).to_bytes(8, "little") + "é".encode() + (1).to_bytes(8, "little") + b"b"
    assert Corpus(("é", "b"), name="x").fingerprint == hashlib.sha256(raw).hexdigest()


def test_the_fingerprint_sees_borders_and_order_but_not_the_name():
    prints = [
        Corpus(docs, name="x").fingerprint for docs in (("ab", "c"), ("a", "bc"), ("c", "ab"))
    ]
    assert len(set(prints)) == 3
    assert Corpus(("ab", "c"), name="y").fingerprint == prints[0]


@pytest.mark.parametrize(
    ("documents", "message"),
    [((), "got 0 documents"), (("a", " \n"), r"documents\[1\]=' \\n'"), ("abc", "got one str")],
)
def test_a_corpus_without_text_is_refused(documents, message):
    with pytest.raises(DataError, match=message):
        Corpus(documents, name="x")


def test_the_embedded_corpus_is_the_sorted_docstrings_and_help_topics():
    corpus = embedded_corpus()
    assert corpus.documents == tuple(sorted(set(corpus.documents)))
    assert pydoc_data.topics.topics["lambda"] in corpus.documents
    # a module, a class, a method, a function below "if", and a function below "try"
    import argparse
    import json
    import shutil

    for owner in (json, json.JSONDecoder, json.JSONDecoder.decode, shutil.which, argparse.Action):
        assert any(owner.__doc__.strip()[:40] in text for text in corpus.documents)
    assert len(corpus.documents) > 5_000
    assert sum(map(len, corpus.documents)) > 1_500_000
    assert corpus.name.startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}")
    assert embedded_corpus() is corpus


def test_the_embedded_corpus_leaves_out_installed_packages_and_tests(tmp_path, monkeypatch):
    for name in ("json/tool.py", "site-packages/peer.py", "test/test_x.py", "bad.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'"""From {name}."""\nif 1:\n    def f():\n        """Nested {name}."""\n')
    (tmp_path / "bad.py").write_text('"""Not Python 3."""\nprint "text"\n')
    (tmp_path / "escape.py").write_text('"""Escaped."""\nx = "\\d"\n')
    monkeypatch.setattr(corpus_module.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(corpus_module, "_help_topics", lambda: iter(()))
    documents = corpus_module._embedded_corpus.__wrapped__().documents
    assert documents == ("Escaped.", "From json/tool.py.", "Nested json/tool.py.")


def test_a_python_without_sources_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(corpus_module, "_help_topics", lambda: iter(()))
    with pytest.raises(DataError, match="no source files; name your own text files"):
        corpus_module._embedded_corpus.__wrapped__()


def test_sources_of_all_kinds_make_one_corpus_in_their_order(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"body": "row one"}\n{"body": "row two"}\n')
    (tmp_path / "book.txt").write_text("a book\n\nin two paragraphs")
    (tmp_path / "empty.txt").write_text("")
    corpus = read_corpus([tmp_path / "rows.jsonl", str(tmp_path / "*.txt")], field="body")
    assert corpus.documents == ("row one", "row two", "a book\n\nin two paragraphs")
    assert corpus.name == f"{tmp_path}/rows.jsonl, {tmp_path}/*.txt"


def test_one_source_needs_no_list_and_many_are_named_in_short(tmp_path):
    for name in "abcde":
        (tmp_path / name).write_text(name)
    assert read_corpus(tmp_path).documents == tuple("abcde")
    assert read_corpus(str(tmp_path / "a")).documents == ("a",)
    assert read_corpus(sorted(tmp_path.iterdir())).name.endswith("/c and 2 more")


def test_sources_that_are_all_empty_are_refused_by_name(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"got .*empty\.txt, which is empty"):
        read_corpus([tmp_path / "empty.txt"])


@settings(deadline=None)
@given(documents=texts, seed=st.integers(0, 5), fraction=st.sampled_from([0.01, 0.1, 0.5, 0.99]))
def test_a_split_keeps_every_document_once_in_order_and_no_text_on_both_sides(
    documents, seed, fraction
):
    corpus = Corpus(tuple(documents), name="x")
    if len(set(documents)) == 1:
        return
    train, validation = split_documents(corpus, validation_fraction=fraction, seed=seed)
    assert train
    assert validation
    assert not set(train) & set(validation)
    assert [d for d in documents if d in set(train)] == list(train)
    assert [d for d in documents if d in set(validation)] == list(validation)
    expected = min(max(1, round(fraction * len(set(documents)))), len(set(documents)) - 1)
    assert len(set(validation)) == expected


def test_the_split_depends_on_the_seed_but_not_on_the_order_of_documents():
    documents = tuple(f"document {n}" for n in range(200))
    train, validation = split_documents(Corpus(documents, "x"), seed=3)
    assert len(validation) == 20
    turned = split_documents(Corpus(documents[::-1], "x"), seed=3)
    assert turned == (train[::-1], validation[::-1])
    # 20 of 200 drawn twice at random share 2 on average; all 20 only if the seed has no effect.
    assert len(set(validation) & set(split_documents(Corpus(documents, "x"), seed=4)[1])) < 10


def test_a_split_stays_what_it_is_today():
    documents = tuple("abcdefghij")
    # Golden: drawn by blake2b, so it holds for every Python and numpy.
    assert split_documents(Corpus(documents, "x"), validation_fraction=0.3, seed=1)[1] == tuple(
        "deh"
    )


def test_a_single_document_is_cut_at_the_paragraph_before_its_last_part():
    document = "word " * 895 + "\n\nword " + "word " * 98
    (train,), (validation,) = split_documents(Corpus((document,), "x"))
    assert train + validation == document
    assert validation.startswith("\n\n")
    assert len(validation) / len(document) == pytest.approx(0.1, abs=0.011)  # a tenth of a tenth


@pytest.mark.parametrize("text", ["x" * 1000, "word " * 200, "line of words\n" * 72])
@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.5])
def test_a_single_document_without_paragraphs_is_cut_near_the_fraction(text, fraction):
    (train,), (validation,) = split_documents(Corpus((text,), "x"), validation_fraction=fraction)
    assert train + validation == text
    # A border is looked for over a tenth of the validation text; 15 is one line.
    assert abs(len(validation) - fraction * len(text)) <= 0.1 * fraction * len(text) + 15


def test_a_document_too_short_to_cut_is_refused():
    with pytest.raises(DataError, match=r"has 1 characters, too few .* give more documents"):
        split_documents(Corpus(("a", "a"), "x"))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_fraction_that_leaves_one_side_empty_is_refused(fraction):
    with pytest.raises(ConfigError, match=f"validation_fraction={fraction}"):
        split_documents(Corpus(("a", "b"), "x"), validation_fraction=fraction)


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The library, with its cache in a temporary folder and the hub out of reach."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    return datasets


@pytest.fixture
def data_folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"body": "one"}\n{"body": " "}\n{"body": "two"}\n')
    (folder / "test.jsonl").write_text('{"body": "three"}\n')
    return folder


def test_a_folder_of_data_files_loads_as_a_dataset(datasets, data_folder):
    corpus = load_hub_dataset(str(data_folder), field="body")
    assert corpus.documents == ("one", "two")
    assert corpus.name == f"{data_folder} (train)"
    assert load_hub_dataset(str(data_folder), split="test", field="body").documents == ("three",)


def test_the_configuration_follows_the_colon(datasets, data_folder):
    (data_folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: small\n  data_files: test.jsonl\n"
        "- config_name: large\n  data_files: train.jsonl\n---\n"
    )
    assert load_hub_dataset(f"{data_folder}:small", field="body").documents == ("three",)
    with pytest.raises(DataError, match=r"cannot load .*:medium"):
        load_hub_dataset(f"{data_folder}:medium", field="body")


def test_a_dataset_saved_to_disk_loads_with_its_splits(datasets, tmp_path):
    rows = datasets.Dataset.from_dict({"text": ["one", "two"], "n": [1, 2]})
    rows.save_to_disk(str(tmp_path / "single"))
    datasets.DatasetDict({"dev": rows}).save_to_disk(str(tmp_path / "splits"))
    assert load_hub_dataset(str(tmp_path / "single")).documents == ("one", "two")
    assert load_hub_dataset(str(tmp_path / "splits"), split="dev").documents == ("one", "two")
    with pytest.raises(DataError, match=r"has no split 'train'; it has \['dev'\]"):
        load_hub_dataset(str(tmp_path / "splits"))
    with pytest.raises(DataError, match=r"has the split 'train' alone; got split 'dev'"):
        load_hub_dataset(str(tmp_path / "single"), split="dev")


@pytest.mark.parametrize(
    ("field", "split", "message"),
    [
        ("text", "train", r"has no column 'text'; it has 'body'"),
        ("body", "dev", r"cannot load .* split 'dev'.*ValueError"),
    ],
)
def test_a_column_or_split_that_is_not_there_is_refused(
    datasets, data_folder, field, split, message
):
    with pytest.raises(DataError, match=message) as caught:
        load_hub_dataset(str(data_folder), field=field, split=split)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [([1, 2], r"must hold strings; got 1 in row 0"), ([" ", ""], r"holds no text")],
)
def test_a_column_without_text_is_refused(datasets, tmp_path, values, message):
    datasets.Dataset.from_dict({"text": values}).save_to_disk(str(tmp_path / "rows"))
    with pytest.raises(DataError, match=message):
        load_hub_dataset(str(tmp_path / "rows"))


def test_a_dataset_that_cannot_be_found_is_refused_in_one_line(datasets):
    with pytest.raises(DataError, match="cannot load 'no-such-dataset:config'") as caught:
        load_hub_dataset("no-such-dataset:config")
    assert "\n" not in str(caught.value)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'ropewalk\[train\]'"):
        load_hub_dataset("any")


def test_reading_a_corpus_needs_neither_torch_nor_transformers():
    code = (
        "import sys, ropewalk.data.corpus, ropewalk.data.batching, ropewalk.data.tokenizers;"
        "heavy = {'torch', 'transformers', 'tokenizers', 'datasets'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_names_everything_it_offers_and_nothing_else():
    from ropewalk import data

    assert {name: getattr(data, name).__name__ for name in data.__all__} == {
        name: name for name in data.__all__
    }
    assert set(data.__all__) <= set(dir(data))
    with pytest.raises(AttributeError, match="no attribute 'misspelt'"):
        _ = data.misspelt


@pytest.mark.parametrize("sources", [5, None, [""], ""])
def test_what_names_no_source_is_refused(sources):
    with pytest.raises(DataError, match=r"^sources must be"):
        read_corpus(sources)


def test_an_empty_name_is_no_dataset():
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="dataset must be the path"):
        load_hub_dataset("")


@pytest.mark.parametrize("fraction", ["x", None, True])
def test_a_fraction_that_is_no_number_is_refused(fraction):
    with pytest.raises(ConfigError, match=f"validation_fraction={fraction!r}"):
        split_documents(Corpus(("a", "b"), "x"), validation_fraction=fraction)
