from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest

from ropewalk import NTK, Linear, RopeSpec
from ropewalk.analysis import plots
from ropewalk.errors import ConfigError

CURVES = {"rope": [(10, 5.0), (20, 4.0)], "learned": [(10, 5.5), (20, 5.25)]}
LENGTHS = {"rope": [(128, 4.5, 0.1), (256, 5.0, 0.1)], "learned": [(128, 5.6, float("nan"))]}


def words(figure):
    axes = figure.axes[0]
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    return [axes.get_title(loc="left"), *[t.get_text() for t in axes.texts], *ticks]


def all_figures():
    return {
        "loss": plots.plot_loss_curves(CURVES, target=("best baseline", 5.25)),
        "waves": plots.plot_wavelengths(RopeSpec(32, "half"), 128),
        "length": plots.plot_loss_by_length(LENGTHS, 128, missing={"learned": [256]}),
        "bound": plots.plot_distance_bound((64, 128)),
    }


def test_loss_curves_draw_the_given_points_and_name_the_last_one():
    figure = plots.plot_loss_curves(CURVES, target=("best baseline", 5.25))
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    np.testing.assert_array_equal(lines["rope"].get_xydata(), CURVES["rope"])
    assert "rope  4.00" in words(figure)
    assert "best baseline" in words(figure)


def test_an_encoding_has_the_same_colour_in_every_figure():
    figures = all_figures()
    colours = {figures[name].axes[0].lines[0].get_color() for name in ("loss", "waves", "length")}
    assert len(colours) == 1


def test_wavelengths_are_those_of_the_spec_with_the_trained_length_marked():
    spec = RopeSpec(16, "interleaved")
    scaled = spec.replace(scaling=NTK(4.0))
    figure = plots.plot_wavelengths({"rope": spec, "ntk": scaled}, 100)
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), spec.wavelengths())
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), scaled.wavelengths())
    assert axes.lines[2].get_ydata()[0] == 100
    assert axes.get_yscale() == "log"
    assert "trained length: 100 tokens" in words(figure)


def test_wavelengths_show_a_trained_length_beyond_every_wavelength():
    figure = plots.plot_wavelengths(RopeSpec(4, "half", theta=2.0, scaling=Linear(1.0)), 10**6)
    bottom, top = figure.axes[0].get_ylim()
    assert bottom < 10 < 10**6 < top


def test_lengths_that_cannot_be_computed_are_marked_as_such():
    figure = plots.plot_loss_by_length(LENGTHS, 128, missing={"learned": [256]})
    assert "learned: not possible" in words(figure)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[256]]


def test_labels_of_curves_with_the_same_end_do_not_overlap():
    figure = plots.plot_loss_curves({f"curve {i}": [(0, 6.0 - i), (9, 3.0)] for i in range(5)})
    figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in figure.axes[0].texts), key=lambda b: b.y0)
    assert len(boxes) == 5
    assert all(low.y1 <= high.y0 for low, high in itertools.pairwise(boxes))


@pytest.mark.parametrize("name", ["loss", "waves", "length", "bound"])
def test_figures_are_labelled_and_nothing_leaves_the_picture(name):
    figure = all_figures()[name]
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    width, height = figure.canvas.get_width_height()
    box = axes.get_tightbbox()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height


def test_svg_is_well_formed_described_and_in_the_colour_of_the_page():
    svg = plots.figure_svg(all_figures()["loss"], "loss", 'rope < "learned" & none')
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == 'rope < "learned" & none'
    assert "currentColor" in svg
    assert plots.INK not in svg
    assert "<?xml" not in svg
    assert "DOCTYPE" not in svg


def test_svg_identifiers_are_unique_to_the_figure_and_resolve():
    svg = plots.figure_svg(all_figures()["length"], "length", "losses")
    root = ET.fromstring(svg)
    ids = [node.attrib["id"] for node in root.iter() if "id" in node.attrib]
    assert len(ids) == len(set(ids))
    assert all(identifier.startswith("length-") for identifier in ids)
    links = [v[1:] for node in root.iter() for k, v in node.attrib.items() if k.endswith("href")]
    clips = [v[5:-1] for node in root.iter() for k, v in node.attrib.items() if k == "clip-path"]
    assert links
    assert clips
    assert set(links + clips) <= set(ids)


def test_svg_of_the_same_figure_is_the_same_text():
    one, two = (plots.figure_svg(all_figures()["waves"], "w", "waves") for _ in range(2))
    assert one == two


def test_drawing_leaves_the_settings_of_matplotlib_alone():
    before = dict(mpl.rcParams)
    all_figures()
    assert dict(mpl.rcParams) == before


def test_a_plot_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"got \{\}"):
        plots.plot_loss_curves({})
    with pytest.raises(ConfigError, match=r"got \['rope'\]"):
        plots.plot_loss_by_length({"rope": []}, 128)
    with pytest.raises(ConfigError, match=r"got \{\}"):
        plots.plot_distance_bound(())
