from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ropewalk.data.files import find_files, read_documents
from ropewalk.errors import DataError


def read(path: Path, field: str = "text") -> list[str]:
    return list(read_documents(path, field=field))


def json_lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def folder(tmp_path):
    for name in ("b.txt", "a.md", "sub/z.txt", "sub/deep/y", ".hidden.txt", ".git/config"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")
    return tmp_path


def names(root: Path, files: list[Path]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in files]


def test_a_folder_gives_its_visible_files_sorted_by_path(folder):
    expected = ["a.md", "b.txt", "sub/deep/y", "sub/z.txt"]
    assert names(folder, find_files([folder])) == expected


def test_a_glob_gives_the_files_it_matches_sorted(folder):
    assert names(folder, find_files([f"{folder}/**/*.txt"])) == ["b.txt", "sub/z.txt"]
    assert names(folder, find_files([f"{folder}/*"])) == ["a.md", "b.txt"]


def test_the_order_of_sources_is_kept_and_a_file_named_twice_comes_once(folder):
    sources = [folder / "sub" / "z.txt", folder, str(folder / "a.md")]
    expected = ["sub/z.txt", "a.md", "b.txt", "sub/deep/y"]
    assert names(folder, find_files(sources)) == expected


def test_a_file_whose_name_looks_like_a_glob_is_taken_by_name(tmp_path):
    (tmp_path / "notes[1].txt").write_text("one")
    (tmp_path / "notes1.txt").write_text("other")
    assert names(tmp_path, find_files([tmp_path / "notes[1].txt"])) == ["notes[1].txt"]


def test_the_tilde_is_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert find_files(["~/a.md"]) == [folder / "a.md"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.txt", r"missing\.txt' does not exist"),
        ("*.rst", r"\*\.rst' matches no file"),
        ("su?", r"su\?' matches no file; end the glob with '/\*\*'"),
        ("empty", r"empty' is a folder without files"),
        ("x" * 5000, r"'x+' does not exist|File name too long|cannot look at"),
    ],
)
def test_a_source_without_files_is_refused_by_name(folder, monkeypatch, source, message):
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(DataError, match=message) as caught:
        find_files([source])
    assert "\n" not in str(caught.value)


def test_no_sources_at_all_are_refused():
    with pytest.raises(DataError, match="got none"):
        find_files([])


def test_a_broken_link_is_refused_by_name(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"link' does not exist"):
        find_files([tmp_path / "link"])


def test_a_text_file_is_one_document_with_plain_newlines_and_without_a_byte_order_mark(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\rthree \xc3\xa9\x0c\n")
    assert read(path) == ["one\ntwo\n\nthree é\x0c\n"]


def test_a_blank_file_has_no_document(tmp_path):
    (tmp_path / "blank").write_text(" \n\t")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    assert read(tmp_path / "blank") == read(tmp_path / "empty.jsonl") == []


def test_json_lines_give_one_document_a_line_and_skip_blank_ones(tmp_path):
    path = tmp_path / "rows.jsonl"
    # U+2028 ends a line for str.splitlines, but not in JSON lines.
    raw = '{"body": "a\u2028b", "n": 1}\n\n{"body": " "}\r\n{"body": "c\\nd"}'
    path.write_bytes(raw.encode())
    assert read(path, "body") == ["a\u2028b", "c\nd"]


@pytest.mark.parametrize("name", ["text.txt.gz", "TEXT.GZ"])
def test_gzipped_text_is_unpacked(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"packed text", mtime=0))
    assert read(tmp_path / name) == ["packed text"]


def test_gzipped_json_lines_are_unpacked(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines({"text": "one"}, {"text": "two"}), mtime=0))
    assert read(path) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("picture.png", b"\x89PNG\0\0", r"picture\.png: not a text file \(NUL byte at offset 4\)"),
        ("latin.txt", b"caf\xe9", r"latin\.txt: not UTF-8 text \(byte 0xe9 at offset 3\)"),
        ("utf16.txt", "a".encode("utf-16"), r"utf16\.txt: not a text file"),
        ("no.gz", b"plain", r"no\.gz: the gzip file is damaged"),
        (
            "torn.gz",
            gzip.compress(b"x" * 5000, mtime=0)[:-9],
            r"torn\.gz: the gzip file is damaged",
        ),
        (
            "flip.gz",
            gzip.compress(b"abc", mtime=0)[:10] + b"\xff" * 20,
            r"flip\.gz: the gzip file is dam",
        ),
        ("bin.txt.gz", gzip.compress(b"a\0", mtime=0), r"bin\.txt\.gz: not a text file"),
        (
            "bad.jsonl",
            json_lines({"text": "a"}) + b"{'text'}\n",
            r"bad\.jsonl:2: not a line of JSON",
        ),
        ("cut.jsonl", b'{"text": "a', r"cut\.jsonl:1: not a line of JSON"),
        ("list.jsonl", b'\n["a"]\n', r"list\.jsonl:2: a line must be a JSON object; got list"),
        (
            "other.jsonl",
            json_lines({"text": "a"}, {"body": 1, "id": 2}),
            r"other\.jsonl:2: field 'text' is missing; the line has 'body', 'id'",
        ),
        (
            "none.jsonl",
            json_lines({"text": None}),
            r"none\.jsonl:1: field 'text' must be a string; got None",
        ),
        ("half.jsonl", b'{"text": "a\\ud83d"}', r"half\.jsonl:1: .*half a surrogate.*ud83d"),
        ("deep.jsonl", b"[" * 200_000, r"deep\.jsonl:1: not a line of JSON"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_by_place(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_what_is_no_regular_file_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"regular files; got .*pipe"):
        read(tmp_path / "pipe")


def test_a_file_that_cannot_be_opened_is_refused_with_the_reason(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("text")

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"text\.txt: cannot be read: Permission denied"):
        read(path)


def test_links_to_folders_are_followed_into_each_folder_once(tmp_path):
    texts, other = tmp_path / "texts", tmp_path / "other"
    for path in (texts / "a.txt", texts / "sub" / "b.txt", other / "c.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    (texts / "link").symlink_to(other)
    (texts / "sub" / "up").symlink_to(texts)  # a circle
    (other / "back").symlink_to(texts)
    assert names(texts, find_files([texts])) == ["a.txt", "link/c.txt", "sub/b.txt"]


def test_a_file_that_links_to_itself_is_refused_in_one_line(tmp_path):
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    for source in (tmp_path, tmp_path / "loop.txt"):
        with pytest.raises(DataError, match=r"sources: cannot .*loop") as caught:
            find_files([source])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["", 5, None, "~nosuchuser/x", "x" * 5000, "nul\0"])
def test_what_cannot_be_a_path_is_refused_in_one_line(source):
    with pytest.raises(DataError, match=r"^sources") as caught:
        find_files([source])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("line", ['{"text": ' + "9" * 5000 + "}", "[" * 100_000])
def test_json_that_python_gives_up_on_is_refused_in_one_line(tmp_path, line):
    path = tmp_path / "lines.jsonl"
    path.write_text(line)
    with pytest.raises(DataError, match=r"lines\.jsonl:1: not a line of JSON") as caught:
        read(path)
    assert "\n" not in str(caught.value)
