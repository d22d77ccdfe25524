import pytest

from ropewalk import ConfigError
from ropewalk.recipes.outputs import MARKER, check_output, open_output

CONTENTS = ("model", "metrics.json")


def look(folder, recipe="pretrain", *, resume=False, overwrite=False):
    return check_output(folder, recipe, CONTENTS, resume=resume, overwrite=overwrite)


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "run"
    open_output(look(folder), "pretrain", CONTENTS, overwrite=False)
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("w")
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
    open_output(look(results, overwrite=True), "pretrain", CONTENTS, overwrite=True)
    assert [path.name for path in results.iterdir()] == [MARKER]
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


def test_a_folder_with_a_file_of_the_users_is_not_overwritten(results):
    (results / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds 'notes.txt', which is not a result"):
        look(results, overwrite=True)
    assert (results / "model" / "weights").exists()


def test_a_link_is_removed_but_not_followed(tmp_path, results):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("kept")
    (results / "metrics.json").unlink()
    (results / "metrics.json").symlink_to(tmp_path / "elsewhere")
    open_output(look(results, overwrite=True), "pretrain", CONTENTS, overwrite=True)
    assert (tmp_path / "elsewhere" / "file").read_text() == "kept"
    assert not (results / "metrics.json").is_symlink()


def test_what_a_killed_writer_left_does_not_hinder(tmp_path):
    (tmp_path / f".{MARKER}.ab12.partial").write_text("pre")
    assert look(tmp_path) == tmp_path
