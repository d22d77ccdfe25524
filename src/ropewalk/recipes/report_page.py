"""The HTML page of a comparison: figures and tables in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.analysis.plots import (
    curve_color,
    figure_svg,
    plot_loss_by_length,
    plot_loss_curves,
    plot_wavelengths,
)
from ropewalk.recipes.fill_mask import MASK
from ropewalk.recipes.findings import SUBJECT, length_headline
from ropewalk.recipes.page_style import STYLE
from ropewalk.recipes.settings import to_toml

if TYPE_CHECKING:
    from ropewalk.recipes.lengths import LengthPoint
    from ropewalk.recipes.report import Comparison
    from ropewalk.recipes.sentences import Filled


def page(comparison: Comparison) -> str:
    """Return the page.

    Args:
        comparison: What to show. Its texts may hold anything; all are escaped.
    """
    sections = (_head, _results, _curves, _lengths, _ladder, _words, _reproduce)
    body = "\n".join(part for section in sections for part in section(comparison))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Position encodings compared</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(comparison: Comparison) -> Iterable[str]:
    settings, corpus = comparison.settings, comparison.corpus
    training, model = settings.training, settings.model
    length = settings.data.block_size
    facts = {
        "text": f"{corpus['name']}, {corpus['characters'] / 1e6:.2f} million characters",
        "model": f"{model.layers} layers × {model.hidden_size} wide, {model.heads} heads, "
        f"vocabulary {corpus['vocabulary']:,}",
        "budget of each run": f"{training.steps:,} steps of {training.batch_size} × {length} "
        "tokens",
        "seeds": ", ".join(map(str, settings.seeds)),
    }
    yield '<header>\n<p class="kicker">ropewalk compare</p>'
    yield "<h1>Position encodings compared</h1>"
    yield f'<p class="headline">{escape(comparison.findings.headline)}</p>'
    cells = "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    yield f'<dl class="facts">{cells}</dl>\n</header>'


def _results(comparison: Comparison) -> Iterable[str]:
    found, seeds = comparison.findings, len(comparison.settings.seeds)
    best = found.best_baseline
    yield "<h2>Same text, same budget, another encoding</h2>"
    yield (
        "<p>All models read the same rows in the same order with the same tokens masked, start "
        "from the same weights where shapes agree, and are evaluated on the same "
        f"{comparison.runs[0].last.tokens:,} masked tokens of held-out text. They differ in how "
        "they know positions, and in nothing else.</p>"
    )
    head = [
        ("encoding", ""),
        ("validation loss", "nats per masked token"),
        ("accuracy", "of masked tokens"),
        ("perplexity", ""),
        (f"steps to the loss of {best}", "best baseline") if best else ("steps", ""),
        ("tokens until then", "thousands"),
        ("training speed", "tokens/s"),
        ("weights", ""),
    ]
    rows = []
    for summary in found.summaries:
        loss = f"{summary.loss:.3f}" + _error(summary.loss_standard_error, digits=3)
        steps = tokens = "<td>–</td>"
        if summary.steps_to_baseline is not None and summary.tokens_to_baseline is not None:
            steps = _cell(f"{summary.steps_to_baseline:,.0f}")
            tokens = _cell(f"{summary.tokens_to_baseline / 1000:,.0f}")
        elif best:
            reached = "not reached"
            if summary.reached:
                reached = f"by {summary.reached} of {seeds} seeds"
            steps = _cell(reached, absent=True)
        cells = [
            _name(summary.encoding),
            _cell(loss),
            _cell(f"{summary.accuracy:.1%}"),
            _cell(f"{summary.perplexity:,.1f}"),
            steps,
            tokens,
            _cell(f"{summary.tokens_per_second:,.0f}"),
            _cell(f"{summary.parameters:,}"),
        ]
        rows.append(_row(cells, subject=summary.encoding == SUBJECT))
    yield _table(head, rows)
    every = comparison.settings.training.eval_every
    grain = f"every {every} steps" if every else "after the last step alone"
    spread = "" if seeds == 1 else " ± is one standard error over seeds."
    yield (
        f'<p class="note">Losses are measured {grain}, so steps are as coarse as that.{spread} '
        f"Speeds are those of one run on this machine, {_division(comparison)}, without the time "
        "of evaluating.</p>"
    )
    if seeds > 1 and found.differences:
        yield "<p>Loss of rope minus that of each baseline, paired by seed:</p>"
        yield _table(
            [("baseline", ""), ("difference", "nats"), ("standard error", "nats"), ("seeds", "")],
            [
                _row(
                    [
                        _name(difference.baseline),
                        _cell(_signed(difference.mean)),
                        _cell(f"{difference.standard_error or 0:.3f}"),
                        _cell(str(difference.n)),
                    ]
                )
                for difference in found.differences
            ],
        )


def _division(comparison: Comparison) -> str:
    machine = comparison.surroundings["machine"]
    return (
        f"{machine['runs_at_a_time']} at a time with {machine['threads_per_run']} thread"
        f"{'s' if machine['threads_per_run'] > 1 else ''} each"
    )


def _curves(comparison: Comparison) -> Iterable[str]:
    curves = {}
    for summary in comparison.findings.summaries:
        runs = [run for run in comparison.runs if run.encoding == summary.encoding]
        losses = np.mean([[e.loss for e in run.training.evaluations] for run in runs], axis=0)
        steps = [e.step for e in runs[0].training.evaluations]
        curves[summary.encoding] = list(zip(steps, losses.tolist(), strict=True))
    best = comparison.findings.best_baseline
    target = None if best is None else (f"last loss of {best}", curves[best][-1][1])
    title = "Validation loss while training"
    if len(comparison.settings.seeds) > 1:
        title += f", mean of {len(comparison.settings.seeds)} seeds"
    described = "; ".join(f"{name} ends at {rows[-1][1]:.2f}" for name, rows in curves.items())
    figure = plot_loss_curves(curves, target=target, title=title)
    yield _figure(figure_svg(figure, "curves", f"Validation loss against steps: {described}"))


def _lengths(comparison: Comparison) -> Iterable[str]:
    points = comparison.lengths
    measured = [point for point in points if point.loss is not None]
    if not measured:
        return
    trained = comparison.settings.data.block_size
    first = measured[0]
    yield "<h2>Past the trained length</h2>"
    yield f"<p>{escape(length_headline(points))}</p>" if length_headline(points) else ""
    yield (
        f"<p>The models of seed {comparison.settings.seeds[0]}, trained on {trained} tokens, "
        f"predict the same {first.tokens:,} masked tokens of {first.windows} held-out windows from "
        f"{first.documents} documents with more and more of the text around them. Scaling slows "
        "the rotation down by the multiple of the length; weights stay as they are.</p>"
    )
    curves: dict[str, list[tuple[int, float, float]]] = {}
    missing: dict[str, list[int]] = {}
    for point in points:
        label = _label(point)
        if point.loss is not None:
            row = (point.length, point.loss, point.change_standard_error or 0.0)
            curves.setdefault(label, []).append(row)
        elif point.status == "not possible":
            missing.setdefault(label, []).append(point.length)
    described = "; ".join(
        f"{name}: " + ", ".join(f"{loss:.2f} at {length}" for length, loss, _ in rows)
        for name, rows in curves.items()
    )
    figure = plot_loss_by_length(curves, trained, missing=missing)
    yield _figure(figure_svg(figure, "lengths", f"Loss by length. {described}"))
    yield _length_table(points)
    yield (
        '<p class="note">± is one standard error over documents. The second line of a cell is the '
        "change from the trained length; its standard error, which is also the width of the bands "
        "in the figure, is smaller because the tokens are the same.</p>"
    )


def _length_table(points: Sequence[LengthPoint]) -> str:
    ratios = sorted({(point.ratio, point.length) for point in points})
    head = [("model", ""), *((f"{length:,} tokens", f"{ratio:g}×") for ratio, length in ratios)]
    rows = []
    for label in dict.fromkeys(map(_label, points)):
        cells = [_name(label)]
        for ratio, _ in ratios:
            point = next(p for p in points if _label(p) == label and p.ratio == ratio)
            if point.loss is None:
                cells.append(_cell(point.status, absent=True, title=point.note))
                continue
            text = f"{point.loss:.3f}" + _error(point.standard_error, digits=3)
            if point.change is not None and point.ratio != 1:
                change = _signed(point.change) + _error(point.change_standard_error, digits=3)
                text += f"<small>{change}</small>"
            cells.append(_cell(text))
        rows.append(_row(cells, subject=label.startswith(SUBJECT)))
    return _table(head, rows)


def _ladder(comparison: Comparison) -> Iterable[str]:
    settings = comparison.settings
    if SUBJECT not in settings.encodings:
        return
    sizes = {"vocab_size": comparison.corpus["vocabulary"], "pad_token_id": 0}
    longest = max(settings.ratios, default=1.0)
    rules = [rule for rule in settings.eval_scaling if rule != "none"] if longest > 1 else []
    specs = {"rope": settings.config(SUBJECT, **sizes).rope_spec}
    for rule in rules:
        scaled = settings.config(SUBJECT, **sizes, scaling=rule, factor=longest)
        specs[f"rope, {rule}"] = scaled.rope_spec
    yield "<h2>The wavelengths behind it</h2>"
    yield (
        "<p>Rope turns each pair of coordinates of queries and keys at its own speed; the "
        "wavelength is the number of positions for one full turn. Training has shown a pair all "
        "its angles only if it turns full circle within the trained length. A longer text takes "
        "the slower pairs to angles that they have never had; scaling stretches the ladder to "
        "avoid that.</p>"
    )
    title = "Wavelength of each pair"
    if rules:
        title += f", unscaled and scaled by {longest:g}"
    figure = plot_wavelengths(
        {name: spec for name, spec in specs.items() if spec is not None},
        settings.data.block_size,
        title=title,
    )
    yield _figure(figure_svg(figure, "waves", "Wavelength of each rotated pair"))


def _words(comparison: Comparison) -> Iterable[str]:
    if not comparison.filled:
        return
    yield "<h2>What the models fill in</h2>"
    yield (
        "<p>The same sentences, read by the models of seed "
        f"{comparison.settings.seeds[0]}: the most probable words for each mask.</p>"
    )
    for sentence in comparison.filled:
        yield from _sentence(sentence)


def _sentence(sentence: Filled) -> Iterable[str]:
    shown = escape(sentence.text).replace(MASK, f"<mark>{MASK}</mark>")
    answer = "" if sentence.answer is None else f" <small>(was: {escape(sentence.answer)})</small>"
    yield f'<p class="sentence">{shown}{answer}</p>'
    masks = max(map(len, sentence.candidates.values()))
    head = [(name, "") for name in sentence.candidates]
    rows = []
    for place in range(masks):
        lead = f"mask {place + 1}" if masks > 1 else ""
        cells = [
            _candidates(lists[place], sentence.answer) for lists in sentence.candidates.values()
        ]
        rows.append("<tr>" + (f"<th>{lead}</th>" if lead else "") + "".join(cells) + "</tr>")
    if masks > 1:
        head.insert(0, ("", ""))
    yield _table(head, rows, kind="words", swatches=True)


def _candidates(words: Sequence[tuple[str, float]], answer: str | None) -> str:
    items = []
    for word, probability in words:
        right = ' class="right"' if answer is not None and word == answer.lower() else ""
        items.append(f"<li{right}><span>{escape(word)}</span><span>{probability:.0%}</span></li>")
    return f"<td><ol>{''.join(items)}</ol></td>"


def _reproduce(comparison: Comparison) -> Iterable[str]:
    table = {k: v for k, v in comparison.settings.table().items() if k != "output"}
    lines = [comparison.command] if comparison.command else []
    lines.append("ropewalk compare --config config.toml --output ANOTHER_FOLDER")
    facts = [*comparison.surroundings["versions"].items()]
    facts += [(k.replace("_", " "), v) for k, v in comparison.surroundings["machine"].items()]
    facts.append(("text, SHA-256", comparison.corpus["fingerprint"]))
    rows = [_row([f"<th>{escape(str(k))}</th>", _cell(escape(str(v)))]) for k, v in facts]
    yield "<h2>How to reproduce</h2>"
    yield (
        "<p>The number of steps is fixed and everything drawn is seeded: the same versions and "
        "number of threads give the same losses.</p>"
    )
    yield f"<pre>{escape(chr(10).join(lines))}</pre>"
    yield (
        "<details><summary>config.toml: all settings</summary>"
        f"<pre>{escape(to_toml(table))}</pre></details>"
    )
    yield (
        "<details><summary>Versions and machine</summary>"
        f"{_table([('', ''), ('', '')], rows)}</details>"
    )


def _label(point: LengthPoint) -> str:
    return point.encoding if point.scaling == "none" else f"{point.encoding}, {point.scaling}"


def _signed(value: float, digits: int = 3) -> str:
    """Write a difference with its sign, a true minus, and no minus before a rounded zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def _error(value: float | None, *, digits: int) -> str:
    return "" if value is None else f" ± {value:.{digits}f}"


def _name(label: str) -> str:
    return f"<th>{_swatch(label)}{escape(label)}</th>"


def _swatch(label: str) -> str:
    return f'<span class="swatch" style="background:{curve_color(label)}"></span>'


def _cell(text: str, *, absent: bool = False, title: str = "") -> str:
    attributes = ' class="absent"' if absent else ""
    attributes += f' title="{escape(title)}"' if title else ""
    return f"<td{attributes}>{text}</td>"


def _row(cells: Iterable[str], *, subject: bool = False) -> str:
    kind = ' class="subject"' if subject else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _table(
    head: Sequence[tuple[str, str]],
    rows: Iterable[str],
    *,
    kind: str = "",
    swatches: bool = False,
) -> str:
    cells = ""
    for text, unit in head:
        dot = _swatch(text) if swatches and text else ""
        small = f"<small>{escape(unit)}</small>" if unit else ""
        cells += f"<th>{dot}{escape(text)}{small}</th>"
    named = f' class="{kind}"' if kind else ""
    header = f"<thead><tr>{cells}</tr></thead>" if any(text for text, _ in head) else ""
    return f'<div class="scroll"><table{named}>{header}<tbody>{"".join(rows)}</tbody></table></div>'


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>"
