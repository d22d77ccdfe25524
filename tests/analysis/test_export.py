"""A figure and its data are one thing in two files, written whole or not at all."""

from __future__ import annotations

import csv
import os

import numpy as np
import pytest

from ropewalk import Proportional, RopeSpec, Yarn
from ropewalk.analysis import pair_factors, plots, similarity_curve, wavelength_ladder
from ropewalk.analysis.export import curves_csv, write_curves, write_figure
from ropewalk.analysis.rotation_curves import (
    decay_curves,
    distances_up_to,
    factor_curves,
    wavelength_curves,
)
from ropewalk.errors import ConfigError

SPECS = {
    "plain": RopeSpec(16, "half"),
    "yarn, 4": RopeSpec(32, "half", scaling=Yarn(4.0, 64)),
    "part": RopeSpec(8, "half", scaling=Proportional(0.5)),
}
CURVES = factor_curves(SPECS)
STARTS = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-"}


def columns(text, curve):
    head, *rows = csv.reader(text.splitlines())
    rows = [row for row in rows if row[0] == curve]
    return {name: [row[i] for row in rows] for i, name in enumerate(head)}


def test_csv_gives_the_arrays_of_the_measures_back():
    distances = distances_up_to(5000)
    decay = curves_csv(decay_curves(SPECS, distances, kind="similarity", clamped=True))
    waves = curves_csv(wavelength_curves(SPECS, 512))
    factors = curves_csv(CURVES)
    for name, spec in SPECS.items():
        for clamped, curve in ((False, name), (True, f"{name}, clamped")):
            found = columns(decay, curve)
            expected = similarity_curve(spec, distances, clamped=clamped)
            np.testing.assert_array_equal(np.float64(found["similarity"]), expected)
            np.testing.assert_array_equal(np.int64(found["distance"]), distances)
        ladder, found = wavelength_ladder(spec, 512), columns(waves, name)
        np.testing.assert_array_equal(np.float64(found["wavelength"]), ladder.wavelengths)
        np.testing.assert_array_equal(np.float64(found["turns"]), ladder.turns)
        assert found["completes_turn"] == [str(flag) for flag in ladder.completes_turn]
        found = columns(factors, name)
        np.testing.assert_array_equal(np.float64(found["factor"]), pair_factors(spec))
        assert found["pair"] == [str(i) for i in range(spec.n_pairs)]


@pytest.mark.parametrize("form", STARTS)
def test_a_picture_and_its_data_lie_side_by_side(tmp_path, form):
    figure = plots.plot_pair_factors(SPECS)
    out = tmp_path / "new" / f"factors.{form}"
    assert write_figure(figure, CURVES, out) == (out, out.with_suffix(".csv"))
    assert out.read_bytes().startswith(STARTS[form])
    assert out.with_suffix(".csv").read_text(encoding="utf-8") == curves_csv(CURVES)
    assert len(list(out.parent.iterdir())) == 2
    first = out.read_bytes()
    write_figure(plots.plot_pair_factors(SPECS), CURVES, out, overwrite=True)
    assert out.read_bytes() == first


def test_data_alone_need_no_figure(tmp_path):
    out = tmp_path / "factors.csv"
    assert write_curves(CURVES, out) == (out,)
    assert out.read_text() == curves_csv(CURVES)
    with pytest.raises(ConfigError, match=r"in \.csv for the data alone; got '.*x\.png'"):
        write_curves(CURVES, tmp_path / "x.png")
    with pytest.raises(ConfigError, match=r"must end in \.png, \.svg, \.pdf; got '.*y\.csv'"):
        write_figure(plots.plot_pair_factors(SPECS), CURVES, tmp_path / "y.csv")


@pytest.mark.parametrize("name", ["ladder.gif", "ladder", ".png", "ladder.png.txt"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=rf"out must end in .*{name}'"):
        write_curves(CURVES, tmp_path / name)


@pytest.mark.parametrize("present", ["ladder.png", "ladder.csv"])
def test_neither_file_is_written_where_one_is_there(tmp_path, present):
    (tmp_path / present).write_text("mine")
    with pytest.raises(ConfigError, match=f"{present}' is overwritten only if told so"):
        write_figure(plots.plot_pair_factors(SPECS), CURVES, tmp_path / "ladder.png")
    assert [path.name for path in tmp_path.iterdir()] == [present]
    assert (tmp_path / present).read_text() == "mine"
    write_figure(plots.plot_pair_factors(SPECS), CURVES, tmp_path / "ladder.png", overwrite=True)
    assert (tmp_path / "ladder.csv").read_text() == curves_csv(CURVES)


def test_a_folder_is_never_overwritten(tmp_path):
    (tmp_path / "ladder.csv").mkdir()
    with pytest.raises(ConfigError, match=r"ladder\.csv' is a folder"):
        write_figure(
            plots.plot_pair_factors(SPECS), CURVES, tmp_path / "ladder.png", overwrite=True
        )
    assert [path.name for path in tmp_path.iterdir()] == ["ladder.csv"]


def test_a_place_that_cannot_be_written_is_named_and_nothing_left(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match=r"can be written; got '.*file/ladder\.png'"):
        write_figure(plots.plot_pair_factors(SPECS), CURVES, tmp_path / "file" / "ladder.png")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_fills_up_leaves_no_half_of_it(tmp_path, monkeypatch):
    from pathlib import Path

    write = Path.write_bytes

    def fail(path, content):
        write(path, content[:10])
        if content.startswith(b"curve"):
            raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(ConfigError, match="No space left"):
        write_figure(plots.plot_pair_factors(SPECS), CURVES, tmp_path / "ladder.png")
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_text_are_escaped(tmp_path):
    (path,) = write_curves(factor_curves({"\udcff": SPECS["plain"]}), tmp_path / "x.csv")
    assert path.read_text(encoding="utf-8").splitlines()[1] == "\\udcff,0,1.0"


def test_short_ranges_are_drawn_whole_and_long_ones_for_a_logarithmic_axis():
    np.testing.assert_array_equal(distances_up_to(1024), np.arange(1025))
    for longest in (1025, 131072, 10**7, 2**53):
        points = distances_up_to(longest)
        assert (points[0], points[-1]) == (1, longest)
        assert (np.diff(points) > 0).all()
        assert 400 < len(points) <= 1000
        assert points[:20].tolist() == list(range(1, 21))
    for longest in (0, -5, 2**53 + 1, 1.5):
        with pytest.raises(ConfigError, match=f"max_distance must be .* got {longest}"):
            distances_up_to(longest)


def test_only_the_similarity_has_a_clamped_form():
    with pytest.raises(ConfigError, match="clamped needs kind='similarity'; got kind='bound'"):
        decay_curves(SPECS, [1], kind="bound", clamped=True)
    with pytest.raises(ConfigError, match="'bound', 'similarity'; got 'decay'"):
        decay_curves(SPECS, [1], kind="decay")
