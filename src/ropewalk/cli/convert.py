"""``ropewalk convert``: rope entries and weights in the form that another program expects."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

convert = typer.Typer(
    help="Convert rope entries and weights to what another program expects.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@convert.command("config")
def config(
    source: Annotated[str, typer.Argument(help="A config.json, model folder or GGUF file.")],
    to: Annotated[str, typer.Option("--to", help="v4, v5, llama.cpp, vllm or sglang.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New file; else printed.")
    ] = None,
    flags: Annotated[
        str | None,
        typer.Option("--flags", help="Arguments of a server that are in effect, in one string."),
    ] = None,
) -> None:
    """Write the rope entries as transformers 4 or 5 have them, or as flags of a server.

    What is written is read back and must give the same rotation. With `--flags` the source is
    taken as a server has it that was started with these arguments of llama.cpp, vLLM or SGLang.

    **Examples**

    `ropewalk convert config config.json --to v5 -o new/config.json`

    `ropewalk convert config config.json --to vllm`

    `ropewalk convert config config.json --to llama.cpp`

    `ropewalk convert config config.json --to v5 --flags "--rope-scaling yarn --rope-scale 4"`
    """
    from ropewalk.errors import ConfigError
    from ropewalk.spec import rewrite, server_flags
    from ropewalk.spec.checks import choice
    from ropewalk.spec.facts import load_config

    choice("--to", to, ("v4", "v5", "llama.cpp", "vllm", "sglang"))
    entries = load_config(source)
    if flags is not None:
        entries = server_flags.with_flags(entries, _split(flags))
    if to in ("v4", "v5"):
        form: Any = to
        text = json.dumps(rewrite.convert_config(entries, to=form), indent=2)
    elif to == "llama.cpp":
        text = shlex.join(server_flags.llama_cpp_flags(entries))
    else:
        engine: Any = to
        text = shlex.join(server_flags.server_command(entries, engine=engine))
    if output is None:
        print(text)
        return
    if output.exists():
        raise ConfigError(f"--output must not exist; got {str(output)!r}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--output must be a file that can be written; got {str(output)!r}: {error.strerror}"
        ) from error
    print(output)


def _split(flags: str) -> list[str]:
    from ropewalk.errors import ConfigError

    try:
        return shlex.split(flags)
    except ValueError as error:
        raise ConfigError(f"--flags must be a command line; got {flags!r}: {error}") from error


@convert.command("weights")
def weights(
    source: Annotated[str, typer.Argument(help="A .safetensors file or a folder of them.")],
    output: Annotated[str, typer.Argument(help="New file or folder; must not exist.")],
    to: Annotated[str, typer.Option("--to", help="half or interleaved.")],
    source_layout: Annotated[
        str | None, typer.Option("--from", help="Layout now; else that of the model class.")
    ] = None,
    config_file: Annotated[
        str | None, typer.Option("--config", help="Its configuration; else beside the weights.")
    ] = None,
) -> None:
    """Permute query and key rows, biases and norms from one pair layout to the other.

    Streams file by file, knows grouped heads and partial rotation, and compares the scores of the
    written file with those of the old one.

    **Examples**

    `ropewalk convert weights models/llama models/llama-interleaved --to interleaved`

    `ropewalk convert weights model.safetensors new.safetensors --to half --from interleaved`
    """
    from ropewalk.spec.checks import choice
    from ropewalk.spec.weights import convert_weights

    layouts = ("half", "interleaved")
    choice("--to", to, layouts)
    if source_layout is not None:
        choice("--from", source_layout, layouts)
    target: Any = to
    layout: Any = source_layout
    report = convert_weights(source, output, to=target, config=config_file, source_layout=layout)
    print(f"{len(report.tensors)} tensors: {report.source} -> {report.target}")
    print(f"scores equal to {report.score_error:.1g} of the norms")
    for path in report.files:
        print(path)
