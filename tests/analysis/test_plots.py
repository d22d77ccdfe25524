from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest

from ropewalk import NTK, Linear, Proportional, RopeSpec, Yarn
from ropewalk.analysis import distance_bound, pair_factors, plots, similarity_curve
from ropewalk.errors import ConfigError

CURVES = {"rope": [(10, 5.0), (20, 4.0)], "learned": [(10, 5.5), (20, 5.25)]}
WIDTHS = {f"d = {d}": RopeSpec(d, "half") for d in (64, 128)}
LENGTHS = {"rope": [(128, 4.5, 0.1), (256, 5.0, 0.1)], "learned": [(128, 5.6, float("nan"))]}


def words(figure):
    axes = figure.axes[0]
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    return [axes.get_title(loc="left"), *[t.get_text() for t in axes.texts], *ticks]


FIGURES = {
    "loss": lambda: plots.plot_loss_curves(CURVES, target=("best baseline", 5.25)),
    "waves": lambda: plots.plot_wavelengths(RopeSpec(32, "half"), 128),
    "length": lambda: plots.plot_loss_by_length(LENGTHS, 128, missing={"learned": [256]}),
    "bound": lambda: plots.plot_decay(WIDTHS, range(257), kind="bound"),
    "similarity": lambda: plots.plot_decay(
        WIDTHS, [1, 10, 5000], kind="similarity", clamped=True, trained_length=512
    ),
    "factors": lambda: plots.plot_pair_factors(
        {"a rotation with a long name": RopeSpec(32, "half", scaling=Yarn(4.0, 64))}
    ),
}


def test_loss_curves_draw_the_given_points_and_name_the_last_one():
    figure = plots.plot_loss_curves(CURVES, target=("best baseline", 5.25))
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    np.testing.assert_array_equal(lines["rope"].get_xydata(), CURVES["rope"])
    assert "rope  4.00" in words(figure)
    assert "best baseline" in words(figure)


def test_an_encoding_has_the_same_colour_in_every_figure():
    colours = {FIGURES[name]().axes[0].lines[0].get_color() for name in ("loss", "waves", "length")}
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


def test_decay_draws_the_bound_of_the_paper_from_distance_zero():
    axes = plots.plot_decay(WIDTHS, range(257), kind="bound").axes[0]
    assert axes.get_xscale() == "linear"
    for width, line in zip((64, 128), axes.lines, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), range(257))
        np.testing.assert_array_equal(line.get_ydata(), distance_bound(width))


def test_decay_draws_the_clamped_similarity_in_the_colour_of_the_plain_one():
    figure = FIGURES["similarity"]()
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert axes.get_xscale() == "log"
    for name, spec in WIDTHS.items():
        for limited, label in ((False, name), (True, f"{name}, clamped")):
            expected = similarity_curve(spec, [1, 10, 5000], clamped=limited)
            np.testing.assert_array_equal(lines[label].get_ydata(), expected)
        assert lines[name].get_color() == lines[f"{name}, clamped"].get_color()
        assert lines[name].get_linestyle() != lines[f"{name}, clamped"].get_linestyle()
    assert "trained length: 512 " in words(figure)


def test_factors_are_those_of_the_spec_and_what_stands_still_is_named():
    specs = {
        "yarn": RopeSpec(32, "half", scaling=Yarn(4.0, 64)),
        "part": RopeSpec(32, "half", scaling=Proportional(0.25, 8.0)),
    }
    figure = plots.plot_pair_factors(specs)
    for line, spec in zip(figure.axes[0].lines, specs.values(), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), pair_factors(spec))
    assert figure.axes[0].get_yscale() == "log"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["yarn", "part (12 pairs stand still)"]


def test_wavelengths_of_pairs_that_stand_still_are_left_out():
    spec = RopeSpec(16, "half", scaling=Proportional(0.5))
    figure = plots.plot_wavelengths({"half of it": spec}, 100)
    figure.draw_without_rendering()
    assert np.isfinite(figure.axes[0].get_ylim()).all()
    assert "half of it (4 pairs stand still)" in [
        text.get_text() for legend in figure.legends for text in legend.get_texts()
    ]


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("$\\alpha$ $", "\\$\\alpha\\$ \\$"),  # no formula, which might not even parse
        ("a\nb\x00", "a\ufffdb\ufffd"),
        ("\udcff.json", "\ufffd.json"),
        ("_hidden", " _hidden"),  # matplotlib leaves out names that begin with _
        ("x" * 300, f"{'x' * 52}…{'x' * 19}"),
    ],
    ids=["formula", "control", "bytes", "underscore", "long"],
)
def test_names_from_files_are_drawn_as_they_are_or_shortened(name, drawn):
    figure = plots.plot_pair_factors(
        {name: RopeSpec(16, "half"), "other": RopeSpec(8, "half")}, title=name
    )
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [drawn, "other"]
    assert figure.axes[0].get_title(loc="left") == drawn


@pytest.mark.parametrize("length", [1, 2**63 - 1])
def test_wavelengths_are_drawn_for_any_trained_length(length):
    figure = plots.plot_wavelengths(RopeSpec(8, "half"), length)
    figure.draw_without_rendering()
    bottom, top = figure.axes[0].get_ylim()
    assert bottom < length < top


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


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_labelled_and_nothing_leaves_the_picture(name):
    figure = FIGURES[name]()
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
    svg = plots.figure_svg(FIGURES["loss"](), "loss", 'rope < "learned" & none')
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == 'rope < "learned" & none'
    assert "currentColor" in svg
    assert plots.INK not in svg
    assert "<?xml" not in svg
    assert "DOCTYPE" not in svg


def test_svg_identifiers_are_unique_to_the_figure_and_resolve():
    svg = plots.figure_svg(FIGURES["length"](), "length", "losses")
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
    one, two = (plots.figure_svg(FIGURES["waves"](), "w", "waves") for _ in range(2))
    assert one == two


def test_drawing_leaves_the_settings_of_matplotlib_alone():
    before = dict(mpl.rcParams)
    for figure in FIGURES.values():
        figure()
    assert dict(mpl.rcParams) == before


def test_a_plot_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"got \{\}"):
        plots.plot_loss_curves({})
    with pytest.raises(ConfigError, match=r"got \['rope'\]"):
        plots.plot_loss_by_length({"rope": []}, 128)
    with pytest.raises(ConfigError, match=r"got \{\}"):
        plots.plot_decay({}, [1], kind="bound")
    with pytest.raises(ConfigError, match=r"got \['distances'\]"):
        plots.plot_decay(WIDTHS, [], kind="bound")
    with pytest.raises(ConfigError, match=r"got \{\}"):
        plots.plot_pair_factors({})
