"""``ropewalk inspect``: what rotation a configuration means, and what is wrong with it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ropewalk.cli.printing import Printer
    from ropewalk.spec.inspection import Inspection, LayerReport


def inspect(
    config: Annotated[
        str, typer.Argument(help="A config.json, the folder of a model, or a GGUF file.")
    ],
    target: Annotated[
        int | None, typer.Option("--target", "-t", help="Context you want, in positions.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", "-e", help="hf, vllm, llama.cpp or sglang; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Notes count as findings.")] = False,
) -> None:
    """Say what rotation a model gets, from its configuration alone.

    Reads no weights, loads no torch, asks nobody. Exit code 0: nothing found; 1: warnings or
    errors; 2: it could not be read.

    **Examples**

    `ropewalk inspect config.json`

    `ropewalk inspect models/qwen --target 65536 --engine hf --engine vllm`

    `ropewalk inspect model.gguf --json`
    """
    from ropewalk.cli.printing import printer
    from ropewalk.spec.engines import ENGINES
    from ropewalk.spec.facts import load_config
    from ropewalk.spec.inspection import inspect_config

    found = inspect_config(load_config(config), target=target, engines=engine or tuple(ENGINES))
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        _show(found, printer())
    if found.fails(strict=strict):
        raise typer.Exit(1)


def _show(found: Inspection, out: Printer) -> None:
    facts = found.facts
    head = [facts.model_type or "unknown type"]
    if facts.layers is not None:
        head.append(f"{facts.layers} layers")
    head += [f"head {facts.head_dim}", f"layout {facts.layout}", f"format {facts.form}"]
    _line(out, "model", "  ".join(head))
    for layer in found.layers:
        _show_layer(out, found, layer)
    _show_engines(out, found)
    for finding in found.findings:
        where = f" [{finding.layer_type}]" if finding.layer_type else ""
        text = f"{finding.code} {finding.severity}{where}: {finding.message} -> {finding.remedy}"
        out.line(text, style={"error": "red", "warning": "yellow"}.get(finding.severity))
    if not found.findings:
        out.line("nothing found")


def _line(out: Printer, name: str, text: str) -> None:
    out.line(f"{name:<12} {text}")


def _show_layer(out: Printer, found: Inspection, layer: LayerReport) -> None:
    title = "rotation" if layer.layer_type == "all" else layer.layer_type
    out.line()
    parts = [f"{layer.rope_type}  theta {layer.theta:g}  {layer.n_pairs} pairs"]
    if layer.rotary_dim != found.facts.head_dim:
        parts.append(f"rotary_dim {layer.rotary_dim}")
    if layer.ramp:
        parts.append("ramp {:g}-{:g}".format(*(round(end, 4) for end in layer.ramp)))
    out.line(f"{title}: {'  '.join(parts)}", style="bold")
    window = [f"configured {found.facts.longest or 'not given'}"]
    window.append(f"trained {layer.trained or 'not known'}")
    if found.target:
        window.append(f"target {found.target}")
    _line(out, "window", "  ".join(window))
    turning = [frequency for frequency in layer.inv_freq if frequency > 0]
    if turning:
        ends = f"{math.tau / max(turning):.4g} .. {math.tau / min(turning):.6g} positions"
        still = len(layer.inv_freq) - len(turning)
        _line(out, "wavelengths", ends + (f"; {still} pairs stand still" if still else ""))
    if layer.turns:
        fast = sum(turns >= 32 for turns in layer.turns)
        middle = len(layer.turns) - fast - layer.never_turning
        half = sum(turns < 0.5 for turns in layer.turns)
        _line(
            out,
            "turns",
            f"in {layer.trained}: 32 or more on {fast} pairs, 1 to 32 on {middle}, "
            f"never one on {layer.never_turning} ({half} not even half)",
        )
        _line(out, "critical", f"dimension {layer.critical_dim} of {layer.rotary_dim}")
    _show_factors(out, layer)
    if layer.first_negative is not None:
        _line(
            out,
            "note",
            f"similarity first negative at distance {layer.first_negative} (heuristic; many good "
            "models exceed it)",
        )
    used, ignored = ", ".join(layer.used), ", ".join(layer.ignored)
    _line(out, "keys", f"used: {used}   ignored: {ignored or '-'}")
    if layer.candidates:
        out.line()
        _show_candidates(out, layer)
    elif found.target:
        _line(out, "candidates", f"none: {_why_none(layer, found.target)}")


def _why_none(layer: LayerReport, target: int) -> str:
    if layer.trained is None:
        return "the trained length is not known"
    if target <= layer.trained:
        return f"it was trained at {layer.trained}"
    if layer.rope_type != "default":
        return f"{layer.rope_type} is at work already"
    if layer.layer_type == "sliding_attention":
        return "its window does not grow"
    return "no rule of one factor can be applied"


def _show_factors(out: Printer, layer: LayerReport) -> None:
    low, high = min(layer.pair_factors), max(layer.pair_factors)
    untouched = sum(abs(factor - 1) < 1e-9 for factor in layer.pair_factors)
    first = next(i for i, f in enumerate(layer.pair_factors) if f >= high * (1 - 1e-9))
    text = f"{low:.4g} .. {high:.4g} per pair, largest from pair {first}, {untouched} untouched"
    if layer.critical_factor is not None:
        text += f"; {layer.critical_factor:.4g} on the first pair that never turns"
    if layer.row_length is not None:
        text += f" (rows of {layer.row_length})"
    _line(out, "slowed by", text)
    _line(
        out,
        "amplitude",
        f"cos and sin x {layer.attention_factor:.7g}   softmax scale x "
        f"{layer.softmax_scale_factor:.7g}",
    )


def _show_candidates(out: Printer, layer: LayerReport) -> None:
    head = ("candidate", "factor", "pairs changed", "largest", "amplitude", "never turn")
    rows = [
        (
            option.method,
            f"{option.factor:.3g}",
            str(option.pairs_changed),
            f"{option.largest_factor:.2f}",
            f"{option.attention_factor:.4f}",
            str(option.never_turning),
            "-" if option.first_negative is None else str(option.first_negative),
        )
        for option in layer.candidates
    ]
    out.table([(*head, "first negative"), *rows], right=range(1, 7))


def _show_engines(out: Printer, found: Inspection) -> None:
    from ropewalk.spec.engines import ENGINES
    from ropewalk.spec.inspection import engine_verdict

    rows = [("engine", "verdict", "longest context", "profile")]
    differences = []
    for reading in found.engines:
        longest = "-" if reading.longest is None else str(reading.longest)
        verdict = engine_verdict(found, reading)
        rows.append((reading.engine, verdict, longest, ENGINES[reading.engine].provenance))
        notes = [reading.problem] if reading.problem else reading.notes
        differences += [f"{reading.engine}: {note}" for note in notes]
    out.line()
    out.table(rows, right=(2,))
    out.line()
    for text in differences:
        out.line(text)
