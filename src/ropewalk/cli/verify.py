"""``ropewalk verify``: does a backend turn as its configuration says, and if not, why."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def verify(
    dump: Annotated[str, typer.Argument(help="A .npy, .npz, .safetensors or .json file.")],
    config: Annotated[str, typer.Argument(help="A config.json, model folder or GGUF file.")],
    layer_type: Annotated[
        str | None, typer.Option("--layer-type", help="Whose rotation, where there are several.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option("--length", help="Length of the row the dump was made for."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare dumped frequencies or tables with a configuration and with known mistakes.

    An .npy file has the shape (pairs,), (2, positions, width) for cos and sin, or (positions,
    2 x pairs) for cos beside sin. A .json file is a list, or an object with `inv_freq` (and
    `attention_factor`), or with `cos` and `sin`; .npz and .safetensors have arrays of these
    names. Exit code 0: right; 1: wrong; 2: unreadable.

    **Examples**

    `ropewalk verify inv_freq.npy config.json`

    `ropewalk verify cos_sin.npy config.json --length 8192`
    """
    from dataclasses import asdict

    from ropewalk.errors import ConfigError
    from ropewalk.spec import checks
    from ropewalk.spec import verify as verifier
    from ropewalk.spec.engines import read_as
    from ropewalk.spec.facts import ModelFacts, load_config

    if length is not None:
        checks.length("--length", length)
    facts = ModelFacts.of(load_config(config))
    reading = read_as(facts, "hf")
    if reading.problem:
        raise ConfigError(reading.problem)
    names = [name for name, spec in reading.specs.items() if spec is not None]
    chosen = layer_type or names[0]
    spec = reading.specs.get(chosen)
    if spec is None or (layer_type is None and len(names) > 1):
        raise ConfigError(f"--layer-type must be one of {', '.join(names)}; got {layer_type!r}")
    found = verifier.verify(verifier.load_dump(dump), spec, seq_len=length, longest=facts.longest)
    if as_json:
        print(json.dumps({"schema": "ropewalk.verify/1", "right": found.is_right} | asdict(found)))
    elif found.best is not None:
        print(f"{found.best.code}: {found.best.text} (largest error {found.best.error:.2g})")
    else:
        near = found.nearest
        print(f"UNEXPLAINED: nearest is {near.code}, {near.text} (error {near.error:.2g})")
    if not found.is_right:
        raise typer.Exit(1)
