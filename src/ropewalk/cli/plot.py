"""``ropewalk plot``: figures of rotations, and the data of each as CSV beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ropewalk.analysis.rotation_curves import Curves
    from ropewalk.analysis.rotations import Selection

plot = typer.Typer(
    help="Draw rotations: decay with distance, wavelengths, factors of a scaling rule.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Sources = Annotated[
    list[str] | None,
    typer.Argument(metavar="CONFIG", help="A config.json, model folder or GGUF file; several."),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="A .png, .svg or .pdf, with its data as .csv beside it; or the .csv alone, which "
        "needs no matplotlib.",
    ),
]
HeadDims = Annotated[
    list[int] | None,
    typer.Option("--head-dim", help="Width of a head, instead of CONFIG; repeatable."),
]
Theta = Annotated[
    float | None, typer.Option("--theta", help="Base, with --head-dim.  [default: 10000]")
]
To = Annotated[
    int | None, typer.Option("--to", help="Compare with the rotation stretched to this length.")
]
Method = Annotated[
    str | None,
    typer.Option("--method", help="How: linear, ntk, dynamic, yarn or llama3.  [default: yarn]"),
]
Trained = Annotated[
    int | None,
    typer.Option("--trained", help="Trained length, where CONFIG does not say it."),
]
Length = Annotated[
    int | None,
    typer.Option("--length", help="Row length for rules that depend on it; else the longest."),
]
LayerTypes = Annotated[
    list[str] | None,
    typer.Option("--layer-type", help="Whose rotation, where there are several; repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")]


@plot.command("decay")
def decay(
    out: Out,
    config: Sources = None,
    kind: Annotated[
        str, typer.Option("--kind", help="bound (Figure 2 of the paper) or similarity.")
    ] = "bound",
    clamped: Annotated[
        bool, typer.Option("--clamped", help="Add the similarity with angles up to half a turn.")
    ] = False,
    max_distance: Annotated[
        int | None,
        typer.Option("--max-distance", help="Else the longest row of CONFIG, or 256."),
    ] = None,
    head_dim: HeadDims = None,
    theta: Theta = None,
    to: To = None,
    method: Method = None,
    trained: Trained = None,
    length: Length = None,
    layer_type: LayerTypes = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw the bound of the paper, or the similarity of equal vectors, over distance.

    A scaled rotation is drawn beside its unscaled form. The axis is logarithmic beyond 1024.

    **Examples**

    `ropewalk plot decay --head-dim 64 --head-dim 128 --out bound.png`

    `ropewalk plot decay config.json --kind similarity --clamped --out similarity.svg`

    `ropewalk plot decay config.json --kind similarity --to 65536 --method ntk --out ntk.pdf`
    """
    from ropewalk.analysis.rotation_curves import DECAY_TITLES, decay_curves, distances_up_to

    plots = _plots(out, overwrite)
    chosen = _select(config, head_dim, theta, layer_type, to, method, trained, length)
    longest = 256 if chosen.longest is None else chosen.longest
    distances = distances_up_to(longest if max_distance is None else max_distance)
    shape: dict[str, Any] = {"kind": kind, "clamped": clamped, "seq_len": chosen.seq_len}
    curves = decay_curves(chosen.specs, distances, **shape)
    figure = plots and plots.plot_decay(
        chosen.specs,
        distances,
        **shape,
        trained_length=chosen.trained,
        title=_title(DECAY_TITLES[kind], chosen),
    )
    _write(figure, curves, out, overwrite)


@plot.command("wavelengths")
def wavelengths(
    out: Out,
    config: Sources = None,
    head_dim: HeadDims = None,
    theta: Theta = None,
    to: To = None,
    method: Method = None,
    trained: Trained = None,
    length: Length = None,
    layer_type: LayerTypes = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw how many positions each pair needs for a full turn, against the trained length.

    A scaled rotation is drawn beside its unscaled form.

    **Examples**

    `ropewalk plot wavelengths config.json --out ladder.png`

    `ropewalk plot wavelengths config.json --to 65536 --method yarn --out ladder.svg`

    `ropewalk plot wavelengths --head-dim 64 --theta 10000 --trained 512 --out ladder.png`
    """
    from ropewalk.analysis.rotation_curves import wavelength_curves
    from ropewalk.errors import ConfigError

    plots = _plots(out, overwrite)
    chosen = _select(config, head_dim, theta, layer_type, to, method, trained, length)
    if chosen.trained is None:
        raise ConfigError(
            "--trained must be given, since the trained length is not known or not the same for "
            "all; got None"
        )
    window = chosen.trained
    curves = wavelength_curves(chosen.specs, window, seq_len=chosen.seq_len)
    figure = plots and plots.plot_wavelengths(
        chosen.specs,
        window,
        seq_len=chosen.seq_len,
        title=_title("Wavelength of each pair", chosen),
    )
    _write(figure, curves, out, overwrite)


@plot.command("factors")
def factors(
    out: Out,
    config: Sources = None,
    head_dim: HeadDims = None,
    theta: Theta = None,
    to: To = None,
    method: Method = None,
    trained: Trained = None,
    length: Length = None,
    layer_type: LayerTypes = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw by how much scaling slows each pair: unscaled over scaled frequency.

    **Examples**

    `ropewalk plot factors config.json --out factors.png`

    `ropewalk plot factors llama/ qwen/ --out factors.svg`

    `ropewalk plot factors config.json --to 65536 --method ntk --out factors.csv`
    """
    from ropewalk.analysis.rotation_curves import factor_curves

    plots = _plots(out, overwrite)
    chosen = _select(
        config, head_dim, theta, layer_type, to, method, trained, length, beside_unscaled=False
    )
    curves = factor_curves(chosen.specs, seq_len=chosen.seq_len)
    figure = plots and plots.plot_pair_factors(
        chosen.specs,
        seq_len=chosen.seq_len,
        title=_title("How much slower each pair turns", chosen),
    )
    _write(figure, curves, out, overwrite)


def _select(
    config: list[str] | None,
    head_dim: list[int] | None,
    theta: float | None,
    layer_type: list[str] | None,
    to: int | None,
    method: str | None,
    trained: int | None,
    length: int | None,
    *,
    beside_unscaled: bool = True,
) -> Selection:
    """Return the rotations of configurations, or of the options in their place."""
    from ropewalk.analysis.rotations import plain_rotations, rotations_of, select
    from ropewalk.errors import ConfigError

    if bool(config) == bool(head_dim):
        raise ConfigError(
            f"either CONFIG or --head-dim must be given; got {config or None} and "
            f"{head_dim or None}"
        )
    if config:
        if theta is not None:
            raise ConfigError(f"--theta goes with --head-dim; CONFIG has its own; got {theta:g}")
        found = rotations_of(config, layer_type or ())
    else:
        if layer_type:
            raise ConfigError(f"--layer-type goes with CONFIG; got {', '.join(layer_type)}")
        found = plain_rotations(head_dim or (), 10_000.0 if theta is None else theta)
    return select(
        found,
        to=to,
        method=method,
        trained=trained,
        length=length,
        beside_unscaled=beside_unscaled,
    )


def _title(heading: str, chosen: Selection) -> str:
    return f"{heading}: {chosen.title}" if chosen.title else heading


def _plots(out: Path, overwrite: bool) -> Any:
    """Return the module that draws, or None where the data alone are wanted."""
    from ropewalk.analysis import export

    if len(export.files_of(out, overwrite=overwrite)) == 1:
        return None
    try:
        from ropewalk.analysis import plots
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ImportError(
            "figures need matplotlib: pip install 'ropewalk[plot]'; --out FILE.csv writes the "
            "data without it"
        ) from error
    return plots


def _write(figure: Any, curves: Curves, out: Path, overwrite: bool) -> None:
    """Write the figure with its data, or the data alone; print the paths."""
    from ropewalk.analysis import export

    if figure is None:
        files = export.write_curves(curves, out, overwrite=overwrite)
    else:
        files = export.write_figure(figure, curves, out, overwrite=overwrite)
    for path in files:
        print(path)
