"""How figures look: colours, axes, labels beside curves; and figures as bytes.

Colours are those of Okabe and Ito, which stay apart for colour-blind readers; line styles and
markers differ too, so that a figure survives a black-and-white printer.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Look = tuple[str, Any, str]
    """Colour, line style, marker."""

INK = "#1b1e24"
"""Colour of text and axes; `figure_svg` turns it into the text colour of the page."""
LOOKS: dict[str, Look] = {
    "rope": ("#0072B2", "-", "o"),
    "learned": ("#D55E00", (0, (5, 2)), "s"),
    "sinusoidal": ("#009E73", (0, (6, 2, 1.5, 2)), "^"),
    "none": ("#8A8F98", (0, (1.5, 1.5)), "D"),
    "rope, linear": ("#CC79A7", (0, (4, 1.5)), "v"),
    "rope, ntk": ("#E69F00", (0, (7, 2)), "P"),
}
"""Looks of the encodings, the same in every figure."""
_OTHER_LOOKS: tuple[Look, ...] = (
    *LOOKS.values(),
    ("#56B4E9", (0, (3, 1.5, 1, 1.5)), "X"),
    ("#7A5C00", "-", "*"),
)
STYLE: dict[Any, Any] = {
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
"""Settings of matplotlib within which figures are drawn and saved."""
_SIZE = (8.0, 4.4)
_LABEL_GAP = 0.062  # of the height of the axes: one line of text
_LONGEST_LABEL = 24  # beside the axes; longer names go below them
_LONGEST_TEXT = 72
_NO_METADATA: dict[str, dict[str, None]] = {  # no dates: the same file for the same figure
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {"Software": None},
}


def new_axes(title: str, xlabel: str, ylabel: str, **scales: Any) -> tuple[Figure, Axes]:
    """Return a figure that no global state knows, and its axes.

    Args:
        title: Heading.
        xlabel: Name and unit of the horizontal axis.
        ylabel: Name and unit of the vertical axis.
        **scales: ``xscale`` and ``yscale``.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot(title=shown(title), xlabel=xlabel, ylabel=ylabel, **scales)
    return figure, axes


def whole_numbers() -> MaxNLocator:
    """Return a locator of ticks at whole numbers."""
    return MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10])


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Give every curve its look: encodings always the same one, others in order.

    Args:
        names: Names of the curves.
    """
    order = list(names)
    free = [look for look in _OTHER_LOOKS if look not in [LOOKS.get(name) for name in order]]
    unknown = [name for name in order if name not in LOOKS]
    others = {name: free[number % len(free)] for number, name in enumerate(unknown)}
    return {name: LOOKS.get(name) or others[name] for name in order}


def refuse_empty(curves: Mapping[str, Any]) -> None:
    """Refuse to draw nothing.

    Args:
        curves: What to draw, by name.

    Raises:
        ConfigError: There is no curve, or an empty one.
    """
    empty = [name for name, rows in curves.items() if hasattr(rows, "__len__") and not len(rows)]
    if not curves or empty:
        raise ConfigError(f"a plot needs at least one curve with points; got {empty or curves!r}")


def shown(text: str) -> str:
    """Return a name as matplotlib may draw it: printable, no formulas, not too long.

    Args:
        text: A name from anywhere, such as that of a file.
    """
    text = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 20]}…{text[-19:]}"
    if text.startswith("_"):
        text = f" {text}"  # else it would be missing in legends
    return text.replace("$", r"\$")


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each curve's name beside its last point, pushed apart where they would overlap.

    Args:
        axes: Where the curves are.
        ends: x and y of the last point, name and colour of each curve.
    """
    axes.autoscale_view()  # the limits must be final before anything is placed by them
    to_axes = axes.transData + axes.transAxes.inverted()
    last = max(x for x, _, _, _ in ends)
    for x, y, text, color in ends:
        if x < last:  # a curve that ends early is named where it ends
            axes.annotate(
                f" {shown(text)}", (x, y), xytext=(6, 0), textcoords="offset points", va="center",
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
            1.015, height, shown(text), color=color, transform=axes.transAxes, va="center",
            fontweight="bold",
        )  # fmt: skip


def label_curves(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Name the curves beside their ends, or in a legend below where there is no room for that.

    Args:
        axes: Where the curves are; their lines have labels.
        ends: As in :func:`label_ends`.
    """
    short = all(len(name) <= _LONGEST_LABEL for _, _, name, _ in ends)
    if short and len({x for x, _, _, _ in ends}) == 1:
        label_ends(axes, ends)
    else:
        axes.get_figure().legend(  # type: ignore[union-attr]
            loc="outside lower left", frameon=False, ncols=2 if len(ends) > 3 else 1
        )


def note(axes: Axes, text: str, place: tuple[float, float], *, below: bool = False) -> None:
    """Write a small remark.

    Args:
        axes: Where.
        text: The remark.
        place: (fraction of the width, data value).
        below: Whether it hangs below the place instead of standing on it.
    """
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


def figure_bytes(
    figure: Figure, form: Literal["png", "svg", "pdf"], *, transparent: bool = False
) -> bytes:
    """Return the content of a picture file, the same for the same figure.

    Args:
        figure: A figure of `plots`.
        form: Kind of file.
        transparent: Whether the background is left out.
    """
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=form, transparent=transparent, metadata=_NO_METADATA[form])
    return buffer.getvalue()
