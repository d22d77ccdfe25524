"""Figures of what the measures return; a figure belongs to the caller, no global state is used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ropewalk.analysis.figure_style import (
    INK,
    LOOKS,
    STYLE,
    figure_bytes,
    label_curves,
    label_ends,
    looks,
    new_axes,
    note,
    refuse_empty,
    shown,
    whole_numbers,
)
from ropewalk.analysis.rotation_curves import (
    DECAY_TITLES,
    decay_curves,
    factor_curves,
    wavelength_curves,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from ropewalk.analysis.figure_style import Look
    from ropewalk.analysis.rotation_curves import Curves
    from ropewalk.spec import RopeSpec

_SMOOTH = 300  # points; a longer curve is drawn thinner
_MOST_MARKERS = 40


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
    refuse_empty(curves)
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(title, "training step", "loss (nats per masked token)")
        ends = []
        for name, (color, style, marker) in looks(curves).items():
            steps, losses = np.asarray(curves[name], dtype=np.float64).T
            axes.plot(steps, losses, color=color, linestyle=style, marker=marker, label=name)
            ends.append((steps[-1], losses[-1], f"{name}  {losses[-1]:.2f}", color))
        axes.xaxis.set_major_locator(whole_numbers())
        if target is not None:
            axes.axhline(target[1], color=INK, linewidth=1.0, linestyle=(0, (2, 3)))
            note(axes, target[0], (0.01, target[1]), below=True)
        label_ends(axes, ends)
    return figure


def plot_wavelengths(
    specs: RopeSpec | Mapping[str, RopeSpec],
    trained_length: int,
    *,
    seq_len: int | None = None,
    title: str = "Wavelength ladder",
) -> Figure:
    """Draw the wavelength of every rotated pair on a logarithmic axis, and the trained length.

    A pair below the line turns full circle inside the trained length: training has shown all its
    angles. A pair above it meets new angles at longer texts, unless its wavelength is stretched.

    Args:
        specs: One rotation, or several by name, such as with and without scaling.
        trained_length: Longest text in training, tokens.
        seq_len: Length of the row, for rules that depend on it.
        title: Heading of the figure.

    Raises:
        ConfigError: There is no rotation, or its rule refuses the length.
    """
    ladders = dict(specs) if isinstance(specs, Mapping) else {"rope": specs}
    refuse_empty(ladders)
    curves = wavelength_curves(ladders, trained_length, seq_len=seq_len)
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(
            title, "rotated pair", "wavelength (positions per turn)", yscale="log"
        )
        ends = _draw(axes, curves, looks(curves), "pair", "wavelength")
        length = float(trained_length)  # matplotlib takes no integers beyond int64
        bottom, top = axes.get_ylim()
        bottom, top = min(bottom, length / 2), max(top, length * 4)
        axes.axhline(length, color=INK, linewidth=1.0, linestyle=(0, (2, 3)))
        axes.axhspan(length, top, color=INK, alpha=0.05, linewidth=0)
        axes.set_ylim(bottom, top)
        axes.xaxis.set_major_locator(whole_numbers())
        axes.grid(axis="x", visible=False)
        note(axes, f"trained length: {trained_length} tokens", (0.01, length), below=True)
        note(axes, "no full turn seen in training", (0.01, top), below=True)
        label_curves(axes, ends)
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
    refuse_empty(curves)
    missing = missing or {}
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(
            title, "context (tokens)", "loss (nats per masked token)", xscale="log"
        )
        ends = []
        for name, (color, style, marker) in looks(curves).items():
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
        label_ends(axes, ends)
    return figure


def plot_decay(
    specs: Mapping[str, RopeSpec],
    distances: ArrayLike,
    *,
    kind: str,
    clamped: bool = False,
    seq_len: int | None = None,
    trained_length: int | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the bound of the RoFormer paper or the similarity of equal vectors over distance.

    The horizontal axis is logarithmic unless the distances begin at 0.

    Args:
        specs: Rotations by name.
        distances: Relative distances, positions, ascending, shape ``(points,)``.
        kind: "bound", as in Figure 2 of the paper, or "similarity".
        clamped: Whether to add the similarity whose angles stop at half a turn.
        seq_len: Length of the row, for rules that depend on it.
        trained_length: Longest text in training, tokens, to be marked; None: not marked.
        title: Heading of the figure; None: what the kind is.

    Raises:
        ConfigError: There is no rotation or no distance, or the measure refuses an argument.

    References:
        Su et al., 2021, arXiv:2104.09864, figure 2; Men et al., 2024, arXiv:2405.14591.
    """
    refuse_empty({"distances": distances} if specs else specs)
    curves = decay_curves(specs, distances, kind=kind, clamped=clamped, seq_len=seq_len)
    logarithmic = float(np.min(distances)) > 0
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(
            DECAY_TITLES[kind] if title is None else title,
            "relative distance (positions)",
            {"bound": "mean |S| of the partial sums", "similarity": "mean cosine"}[kind],
            xscale="log" if logarithmic else "linear",
        )
        ends = _draw(
            axes, curves, _decay_looks(specs, curves, smooth=not logarithmic), "distance", kind
        )
        if kind == "bound":
            axes.set_ylim(bottom=0.0)
        else:
            axes.axhline(0.0, color=INK, linewidth=0.8)
        axes.margins(x=0.0)
        if trained_length is not None and trained_length < float(np.max(distances)):
            axes.axvline(trained_length, color=INK, linewidth=1.0, linestyle=(0, (2, 3)))
            axes.annotate(
                f"trained length: {trained_length} ",
                (trained_length, 1.0),
                xycoords=axes.get_xaxis_transform(),
                ha="right",
                va="top",
                fontsize=10,
            )
        label_curves(axes, ends)
    return figure


def plot_pair_factors(
    specs: Mapping[str, RopeSpec],
    *,
    seq_len: int | None = None,
    title: str = "How much slower each pair turns",
) -> Figure:
    """Draw the factor by which scaling slows every rotated pair, on a logarithmic axis.

    Args:
        specs: Rotations by name.
        seq_len: Length of the row, for rules that depend on it.
        title: Heading of the figure.

    Raises:
        ConfigError: There is no rotation, or its rule refuses the length.
    """
    refuse_empty(specs)
    curves = factor_curves(specs, seq_len=seq_len)
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(title, "rotated pair", "unscaled / scaled frequency")
        axes.set_yscale("log", base=2)
        ends = _draw(axes, curves, looks(curves), "pair", "factor")
        drawn = np.concatenate([columns["factor"] for columns in curves.values()])
        drawn = drawn[np.isfinite(drawn)]
        top = 1.25 * drawn.max(initial=1.6)
        axes.set_ylim(0.9 * drawn.min(initial=1.0), top)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(whole_numbers())
        axes.grid(axis="x", visible=False)
        label_curves(axes, ends)
    return figure


def curve_color(name: str) -> str:
    """Return the colour in which figures draw an encoding, such as ``"#0072B2"`` for rope.

    Args:
        name: An encoding, or "rope, linear" and "rope, ntk" for scaled rotations; any other name
            gets the colour of text.
    """
    return LOOKS[name][0] if name in LOOKS else INK


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

    text = figure_bytes(figure, "svg", transparent=True).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r' id="', f' id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = text.replace(INK, "currentColor")
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)


def _draw(
    axes: Axes, curves: Curves, styles: Mapping[str, Look], x: str, y: str
) -> list[tuple[float, float, str, str]]:
    """Draw a column over another; return where each curve ends, its name and its colour."""
    ends = []
    for name, (color, style, marker) in styles.items():
        xs, ys = curves[name][x], curves[name][y]
        finite = np.flatnonzero(np.isfinite(ys))  # a pair that stands still is not in the picture
        still = len(ys) - len(finite)
        label = f"{name} ({still} pairs stand still)" if still else name
        axes.plot(
            xs, ys, color=color, linestyle=style, linewidth=1.6 if len(xs) <= _SMOOTH else 1.1,
            marker=marker, markevery=1 + len(xs) // _MOST_MARKERS, label=shown(label),
        )  # fmt: skip
        if finite.size:
            ends.append((float(xs[finite[-1]]), float(ys[finite[-1]]), label, color))
    return ends


def _decay_looks(specs: Iterable[str], curves: Iterable[str], *, smooth: bool) -> dict[str, Look]:
    """Give a clamped curve the colour of its own, and no dashes to curves full of ripples."""
    own = looks(specs)
    found = {}
    for name in curves:
        color, style, _ = own[name if name in own else name.removesuffix(", clamped")]
        solid = style if smooth else "-"
        found[name] = (color, solid if name in own else (0, (5, 2)), "")
    return found
