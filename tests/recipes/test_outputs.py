import subprocess
import sys

import pytest

from ropewalk import ConfigError
from ropewalk.recipes.outputs import MARKER, check_output, open_output

CONTENTS = ("metrics.json", "model/weights", "model/steps/step-*.pt")


def look(folder, recipe="pretrain", *, resume=False, overwrite=False, sources=()):
    options = {"resume": resume, "overwrite": overwrite, "sources": sources}
    return check_output(folder, recipe, CONTENTS, **options)


def begin(folder, **options):
    with open_output(look(folder, **options), "pretrain", CONTENTS, **options):
        pass


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "run"
    begin(folder)
    (folder / "model" / "steps").mkdir(parents=True)
    (folder / "model" / "weights").write_text("w")
    (folder / "model" / "steps" / "step-3.pt").write_text("3")
    (folder / "metrics.json").write_text("{}")
    return folder


def test_new_and_empty_folders_are_free(tmp_path):
    assert look(tmp_path / "new") == tmp_path / "new"
    assert look(tmp_path) == tmp_path
    assert not (tmp_path / "new").exists()


def test_results_are_neither_mixed_nor_lost(results):
    with pytest.raises(ConfigError, match=r"--resume.*--overwrite"):
        look(results)
    assert look(results, resume=True) == results
    begin(results, resume=True)
    assert (results / "model" / "weights").read_text() == "w"
    begin(results, overwrite=True)
    assert everything(results) == [MARKER]
    with pytest.raises(ConfigError, match="exclude each other"):
        look(results, resume=True, overwrite=True)


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_other_folders_are_never_touched(tmp_path, results, options):
    other = tmp_path / "photos"
    other.mkdir()
    (other / "model").write_text("of a ship")
    with pytest.raises(ConfigError, match="not made by ropewalk pretrain"):
        look(other, **options)
    with pytest.raises(ConfigError, match="not made by ropewalk compare"):
        look(results, "compare", **options)
    with pytest.raises(ConfigError, match="is a file"):
        look(other / "model", **options)
    assert (other / "model").read_text() == "of a ship"


@pytest.mark.parametrize("option", ["resume", "overwrite"])
@pytest.mark.parametrize(
    "name",
    ["model/mine.txt", "model/texts/a.txt", "model/steps/step-3.txt", "model/.x.replaced/song"],
)
def test_a_file_of_the_users_among_the_results_is_named_and_kept(results, name, option):
    path = results / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"holds 'model/.*', which is not a result") as caught:
        look(results, **{option: True})
    assert "\n" not in str(caught.value)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", ".download.partial", ".music.replaced", "folder/x"])
def test_a_file_of_the_users_beside_the_results_stays(results, name):
    path = results / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    begin(results, resume=True)
    with pytest.raises(ConfigError, match=f"holds '{name.split('/')[0]}', which is not a result"):
        look(results, overwrite=True)
    assert path.read_text() == "mine"
    assert (results / "model" / "weights").exists()


def test_a_hidden_file_of_the_users_makes_a_folder_foreign(tmp_path):
    for name in (".download.partial", ".metrics.json.12.partial", ".music.0123abcd.replaced"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(ConfigError, match="not made by ropewalk"):
            look(tmp_path)
        (tmp_path / name).unlink()


def test_a_link_is_removed_but_not_followed(tmp_path, results):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("kept")
    (results / "metrics.json").unlink()
    (results / "metrics.json").symlink_to(tmp_path / "elsewhere")
    begin(results, overwrite=True)
    assert (tmp_path / "elsewhere" / "file").read_text() == "kept"
    assert not (results / "metrics.json").is_symlink()


def test_what_a_killed_writer_left_does_not_hinder_and_goes(tmp_path, results):
    new = tmp_path / "new"
    new.mkdir()
    (new / MARKER).touch()
    (new / ".metrics.json.0123abcd.partial").write_text("pre")
    assert look(new) == new
    begin(new)
    assert everything(new) == [MARKER]
    before = everything(results)
    (results / "model" / ".steps.0123abcd.partial").mkdir()
    (results / "model" / ".weights.0123abcd.replaced").write_text("old")
    begin(results, resume=True)
    assert everything(results) == before


def test_a_folder_put_aside_is_kept_while_it_is_the_only_copy(results):
    (results / "model").rename(results / ".model.0123abcd.replaced")
    begin(results, resume=True)
    assert (results / ".model.0123abcd.replaced" / "weights").read_text() == "w"
    begin(results, overwrite=True)
    assert everything(results) == [MARKER]


HOLD = """
import sys
from ropewalk.recipes.outputs import open_output
from pathlib import Path
with open_output(Path(sys.argv[1]), "pretrain", ("metrics.json",), resume=True):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_belongs_to_one_process_until_that_ends(results):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD.replace('("metrics.json",)', repr(CONTENTS)), str(results)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "held\n"
    for option in ("resume", "overwrite"):
        with pytest.raises(ConfigError, match="in use by another process") as caught:
            look(results, **{option: True})
        assert "\n" not in str(caught.value)
        with (
            pytest.raises(ConfigError, match="in use by another process"),
            open_output(results, "pretrain", CONTENTS, **{option: True}),
        ):
            pass
    assert (results / "metrics.json").exists()
    other.kill()
    other.communicate()
    begin(results, resume=True)


def test_the_first_of_two_that_found_a_folder_free_gets_it(tmp_path):
    for _ in range(2):
        look(tmp_path)
    with open_output(tmp_path, "pretrain", CONTENTS):
        (tmp_path / "metrics.json").write_text("{}")
    with (
        pytest.raises(ConfigError, match="holds results already"),
        open_output(tmp_path, "pretrain", CONTENTS),
    ):
        pass


def test_sources_and_output_may_not_contain_each_other(tmp_path):
    output, texts = tmp_path / "run", tmp_path / "run" / "texts"
    texts.mkdir(parents=True)
    (texts / "a.txt").write_text("a")
    for source in (str(texts), str(texts / "a.txt"), str(tmp_path / "**" / "*.txt")):
        with pytest.raises(ConfigError, match=r"sources must not lie in the output .*a\.txt"):
            look(output, sources=[source])
    for inside in (texts, texts / "run" / "x"):
        with pytest.raises(ConfigError, match="must not lie in the source"):
            look(inside, sources=[str(texts)])
    assert look(tmp_path / "run2", sources=[str(texts)]) == tmp_path / "run2"


@pytest.mark.parametrize("path", ["~nosuchuser/x", "x" * 5000, "a/" * 3000, "nul\0"])
def test_a_path_that_cannot_be_is_refused_in_one_line(path):
    with pytest.raises(ConfigError, match="output: cannot look at") as caught:
        look(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_link_to_itself_is_refused_in_one_line(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match=r"output: cannot look at .*loop"):
        look(tmp_path / "loop" / "run")
