"""``ropewalk fill-mask``: ask a trained model for the missing words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def fill_mask(
    model: Annotated[Path, typer.Argument(help="Folder of a trained masked language model.")],
    text: Annotated[str, typer.Argument(help="A sentence with one or more [MASK].")],
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Candidates per mask.")] = 5,
) -> None:
    """Fill the [MASK]s of a sentence with a trained model.

    **Examples**

    `ropewalk fill-mask runs/demo/models/rope "Return the [MASK] of the list."`

    `ropewalk fill-mask runs/demo/models/rope "a [MASK] of [MASK] objects" --top 3`
    """
    from ropewalk.recipes.fill_mask import FillMask

    for place, candidates in enumerate(FillMask(model)(text, top=top), start=1):
        print(f"[MASK] {place}")
        for candidate in candidates:
            print(f"  {candidate.probability:6.1%}  {candidate.token:<16} {candidate.text}")
