"""Figures of what `measures` returns; a figure belongs to the caller and no global state is used.

Colours are those of Okabe and Ito, which stay apart for colour-blind readers; line styles and
markers differ too, so that a figure survives a black-and-white printer.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ropewalk.analysis.measures import distance_bound
from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ropewalk.spec import RopeSpec

INK = "#1b1e24"
"""Colour of text and axes; `figure_svg` turns it into the text colour of the page."""
_LOOKS: dict[str, tuple[str, Any, str]] = {  # colour, line style, marker
    "rope": ("#0072B2", "-", "o"),
    "learned": ("#D55E00", (0, (5, 2)), "s"),
    "sinusoidal": ("#009E73", (0, (6, 2, 1.5, 2)), "^"),
    "none": ("#8A8F98", (0, (1.5, 1.5)), "D"),
    "rope, linear": ("#CC79A7", (0, (4, 1.5)), "v"),
    "rope, ntk": ("#E69F00", (0, (7, 2)), "P"),
}
_OTHER_LOOKS: tuple[tuple[str, Any, str], ...] = (
    *_LOOKS.values(),
    ("#56B4E9", (0, (3, 1.5, 1, 1.5)), "X"),
    ("#7A5C00", "-", "*"),
)
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 11.0,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12.0,
    "axes.labelpad": 7.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.13,
    "grid.color": INK,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "ropewalk",
    "savefig.dpi": 150,
}
_SIZE = (8.0, 4.4)
_LABEL_GAP = 0.062  # of the height of the axes: one line of text


def plot_loss_curves(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    *,
    target: tuple[str, float] | None = None,
    title: str = "Validation loss while training",
) -> Figure:
    """Draw validation loss against training steps, one curve for each run or encoding.

    Args:
        curves: (step, loss in nats per masked token) of each curve, by its name.
        target: A loss to mark with a horizontal line, and what to call it.
        title: Heading of the figure.

    Raises:
        ConfigError: There is no curve, or an empty one.
    """
    _refuse_empty(curves)
    with mpl.rc_context(_STYLE):
        figure, axes = _new_axes(title, "training step", "loss (nats per masked token)")
        ends = []
        for name, (color, style, marker) in _looks(curves).items():
            steps, losses = np.asarray(curves[name], dtype=np.float64).T
            axes.plot(steps, losses, color=color, linestyle=style, marker=marker, label=name)
            ends.append((steps[-1], losses[-1], f"{name}  {losses[-1]:.2f}", color))
        axes.xaxis.set_major_locator(_whole_numbers())
        if target is not None:
            axes.axhline(target[1], color=INK, linewidth=1.0, linestyle=(0, (2, 3)))
            _note(axes, target[0], (0.01, target[1]), below=True)
        _label_ends(axes, ends)
    return figure


def plot_wavelengths(
    specs: RopeSpec | Mapping[str, RopeSpec],
    trained_length: int,
    *,
    title: str = "Wavelength ladder",
) -> Figure:
    """Draw the wavelength of every rotated pair on a logarithmic axis, and the trained length.

    A pair below the line turns full circle inside the trained length: training has shown all its
    angles. A pair above it meets new angles at longer texts, unless its wavelength is stretched.

    Args:
        specs: One rotation, or several by name, such as with and without scaling.
        trained_length: Longest text in training, tokens.
        title: Heading of the figure.

    Raises:
        ConfigError: There is no rotation.
    """
    ladders = dict(specs) if isinstance(specs, Mapping) else {"rope": specs}
    _refuse_empty(ladders)
    with mpl.rc_context(_STYLE):
        figure, axes = _new_axes(
            title, "rotated pair", "wavelength (positions per turn)", yscale="log"
        )
        ends = []
        for name, (color, style, marker) in _looks(ladders).items():
            waves = ladders[name].wavelengths()
            pairs = np.arange(len(waves))
            axes.plot(pairs, waves, color=color, linestyle=style, marker=marker)
            ends.append((pairs[-1], waves[-1], name, color))
        bottom, top = axes.get_ylim()
        bottom, top = min(bottom, trained_length / 2), max(top, trained_length * 4)
        axes.axhline(trained_length, color=INK, linewidth=1.0, linestyle=(0, (2, 3)))
        axes.axhspan(trained_length, top, color=INK, alpha=0.05, linewidth=0)
        axes.set_ylim(bottom, top)
        axes.xaxis.set_major_locator(_whole_numbers())
        axes.grid(axis="x", visible=False)
        _note(axes, f"trained length: {trained_length} tokens", (0.99, trained_length), below=True)
        _note(axes, "no full turn seen in training", (0.01, top), below=True)
        _label_ends(axes, ends)
    return figure


def plot_loss_by_length(
    curves: Mapping[str, Sequence[tuple[int, float, float]]],
    trained_length: int,
    *,
    missing: Mapping[str, Sequence[int]] | None = None,
    title: str = "Loss at and beyond the trained length",
) -> Figure:
    """Draw the loss of one checkpoint against the length of the text, with standard errors.

    Args:
        curves: (length in tokens, loss in nats per masked token, its standard error) by name.
        trained_length: Longest text in training, tokens.
        missing: Lengths at which a named curve cannot be computed, marked on the upper edge.
        title: Heading of the figure.

    Raises:
        ConfigError: There is no curve, or an empty one.
    """
    _refuse_empty(curves)
    missing = missing or {}
    with mpl.rc_context(_STYLE):
        figure, axes = _new_axes(
            title, "context (tokens)", "loss (nats per masked token)", xscale="log"
        )
        ends = []
        for name, (color, style, marker) in _looks(curves).items():
            lengths, losses, errors = np.asarray(curves[name], dtype=np.float64).T
            axes.plot(lengths, losses, color=color, linestyle=style, marker=marker)
            errors = np.nan_to_num(errors)
            axes.fill_between(
                lengths, losses - errors, losses + errors, color=color, alpha=0.13, linewidth=0
            )
            ends.append((lengths[-1], losses[-1], name, color))
        top = axes.get_ylim()[1]
        for name, lengths_missing in missing.items():
            color = curve_color(name)
            places = list(lengths_missing)
            axes.plot(
                places, [top] * len(places), "x", color=color, clip_on=False, markersize=8, mew=2
            )
            axes.annotate(
                f"{name}: not possible",
                (places[0], top),
                xytext=(-9, -4),
                textcoords="offset points",
                ha="right",
                color=color,
                fontsize=10,
            )
        axes.set_ylim(top=top)
        axes.axvline(trained_length, color=INK, linewidth=1.0, linestyle=(0, (2, 3)))
        seen = {length for rows in curves.values() for length, _, _ in rows}
        seen.update(length for rows in missing.values() for length in rows)
        axes.xaxis.set_major_locator(FixedLocator(sorted({*seen, trained_length})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:.0f}\n{value / trained_length:g}×")
        )
        _label_ends(axes, ends)
    return figure


def plot_distance_bound(
    rotary_dims: Iterable[int] = (64, 128),
    *,
    theta: float = 10_000.0,
    longest: int = 256,
    title: str = "A factor of the upper bound on attention scores",
) -> Figure:
    """Draw `distance_bound` for some widths, as in Figure 2 of the RoFormer paper.

    Args:
        rotary_dims: Rotated widths, even.
        theta: Base of the ladder.
        longest: Greatest relative distance, positions.
        title: Heading of the figure.

    Raises:
        ConfigError: There is no width, or one is not valid.

    References:
        Su et al., 2021, arXiv:2104.09864, figure 2.
    """
    distances = np.arange(longest + 1)
    curves = {f"d = {d}": distance_bound(d, theta, distances) for d in rotary_dims}
    _refuse_empty(curves)
    with mpl.rc_context(_STYLE):
        figure, axes = _new_axes(
            title, "relative distance (positions)", "mean |S| of the partial sums"
        )
        ends = []
        for name, (color, style, _) in _looks(curves).items():
            axes.plot(distances, curves[name], color=color, linestyle=style, linewidth=1.6)
            ends.append((distances[-1], curves[name][-1], name, color))
        axes.set_ylim(bottom=0.0)
        axes.margins(x=0.0)
        _label_ends(axes, ends)
    return figure


def curve_color(name: str) -> str:
    """Return the colour in which figures draw an encoding, such as ``"#0072B2"`` for rope.

    Args:
        name: An encoding, or "rope, linear" and "rope, ntk" for scaled rotations; any other name
            gets the colour of text.
    """
    return _LOOKS[name][0] if name in _LOOKS else INK


def figure_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an ``<svg>`` element to put into a page of any colour scheme.

    The background is transparent and text takes the colour of the page (``currentColor``).

    Args:
        figure: A figure of this module.
        name: Prefix of the identifiers in the element, different for each figure of a page.
        description: What the figure shows, for readers who cannot see it.

    Returns:
        The element alone, without an XML prologue; the same text for the same figure.
    """
    from html import escape

    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' id="', f' id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = text.replace(INK, "currentColor")
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)


def _new_axes(title: str, xlabel: str, ylabel: str, **scales: Any) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=xlabel, ylabel=ylabel, **scales)
    return figure, axes


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10])


def _looks(names: Iterable[str]) -> dict[str, tuple[str, Any, str]]:
    """Give every curve its look: encodings always the same one, others in order."""
    order = list(names)
    free = [look for look in _OTHER_LOOKS if look not in [_LOOKS.get(name) for name in order]]
    unknown = [name for name in order if name not in _LOOKS]
    others = {name: free[number % len(free)] for number, name in enumerate(unknown)}
    return {name: _LOOKS.get(name) or others[name] for name in order}


def _refuse_empty(curves: Mapping[str, Any]) -> None:
    empty = [name for name, rows in curves.items() if hasattr(rows, "__len__") and not len(rows)]
    if not curves or empty:
        raise ConfigError(f"a plot needs at least one curve with points; got {empty or curves!r}")


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each curve's name beside its last point, pushed apart where they would overlap."""
    axes.autoscale_view()  # the limits must be final before anything is placed by them
    to_axes = axes.transData + axes.transAxes.inverted()
    last = max(x for x, _, _, _ in ends)
    for x, y, text, color in ends:
        if x < last:  # a curve that ends early is named where it ends
            axes.annotate(
                f" {text}", (x, y), xytext=(6, 0), textcoords="offset points", va="center",
                color=color, fontweight="bold",
            )  # fmt: skip
    at_edge = sorted(
        (to_axes.transform((x, y))[1], text, color) for x, y, text, color in ends if x == last
    )
    heights = [float(height) for height, _, _ in at_edge]
    for _ in range(100):  # neighbours that overlap move apart by equal shares
        for i in range(1, len(heights)):
            overlap = max(0.0, _LABEL_GAP - (heights[i] - heights[i - 1]))
            heights[i] += overlap / 2
            heights[i - 1] -= overlap / 2
    for height, (_, text, color) in zip(heights, at_edge, strict=True):
        axes.text(
            1.015, height, text, color=color, transform=axes.transAxes, va="center",
            fontweight="bold",
        )  # fmt: skip


def _note(axes: Axes, text: str, place: tuple[float, float], *, below: bool = False) -> None:
    """Write a small remark at (fraction of the width, data value)."""
    axes.annotate(
        text,
        place,
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, -4 if below else 4),
        textcoords="offset points",
        va="top" if below else "bottom",
        ha="left" if place[0] < 0.5 else "right",
        fontsize=10,
    )
