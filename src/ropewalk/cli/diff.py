"""``ropewalk diff``: two configurations, or one in two engines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ropewalk.spec.difference import Difference


def diff(
    a: Annotated[str, typer.Argument(help="A config.json, model folder or GGUF file.")],
    b: Annotated[
        str | None, typer.Argument(help="Another one; without it, give two engines.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", "-e", help="hf, vllm, llama.cpp or sglang; once or twice."),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option("--length", help="Row length for rules that depend on it; else the longest."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two rotations: per-pair ratio, amplitude, first position that shows it.

    Exit code 0: they rotate alike; 1: they differ; 2: they could not be compared.

    **Examples**

    `ropewalk diff old/config.json new/config.json`

    `ropewalk diff config.json --engine hf --engine vllm`

    `ropewalk diff config.json model.gguf --engine hf --engine llama.cpp`
    """
    from ropewalk.errors import ConfigError
    from ropewalk.spec import checks
    from ropewalk.spec.difference import compare_readings
    from ropewalk.spec.engines import read_as
    from ropewalk.spec.facts import ModelFacts, load_config

    if length is not None:
        checks.length("--length", length)
    engines = engine or ["hf"]
    if len(engines) > 2 or (b is None and len(engines) != 2):
        raise ConfigError(
            "--engine must be given at most twice, and twice where there is one CONFIG; "
            f"got {engines}"
        )
    facts = [ModelFacts.of(load_config(source)) for source in (a, a if b is None else b)]
    readings = [
        read_as(one, name) for one, name in zip(facts, [engines[0], engines[-1]], strict=True)
    ]
    longest = length or max(one.longest or 1 for one in facts)
    found = compare_readings(readings[0], readings[1], seq_len=longest)
    if as_json:
        print(json.dumps(_plain(found), indent=2))
    else:
        for difference in found:
            _show(difference)
    if not all(difference.is_none for difference in found):
        raise typer.Exit(1)


def _plain(found: tuple[Difference, ...]) -> dict[str, Any]:
    from dataclasses import asdict

    rows = [asdict(difference) | {"alike": difference.is_none} for difference in found]
    return {"schema": "ropewalk.diff/1", "layer_types": rows}


def _show(found: Difference) -> None:
    name = "rotation" if found.layer_type == "all" else found.layer_type
    if found.is_none:
        print(f"{name}: alike")
        return
    changed = [i for i, ratio in enumerate(found.ratios) if abs(ratio - 1) > 1e-6]
    print(f"{name}: {len(changed)} of {len(found.ratios)} pairs differ")
    if changed:
        ratios = [found.ratios[i] for i in changed]
        print(f"  frequency b / a   {min(ratios):.6g} .. {max(ratios):.6g}")
        print(f"  pairs             {_ranges(changed)}")
    if found.worst_pair is not None:
        where = "beyond 2^53" if found.first_position is None else f"{found.first_position}"
        print(f"  0.1 rad of error  from position {where}, on pair {found.worst_pair}")
    print("  amplitude a, b    {:.7g}, {:.7g}".format(*found.amplitudes))
    if len(set(found.layouts)) > 1:
        print("  layout a, b       {}, {}: weights must be converted".format(*found.layouts))


def _ranges(numbers: list[int]) -> str:
    """Write 1, 2, 3, 7 as 1-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
