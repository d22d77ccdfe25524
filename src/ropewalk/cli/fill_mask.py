"""``ropewalk fill-mask``: ask a trained model for the missing words."""

from __future__ import annotations

from typing import Annotated

import typer

_MOST_SENTENCES = 20
"""Most masks for which every candidate is shown in its sentence, which repeats the others."""


def fill_mask(
    model: Annotated[str, typer.Argument(help="Folder of a trained masked language model.")],
    text: Annotated[str, typer.Argument(help="A sentence with one or more [MASK].")],
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Candidates per mask.")] = 5,
) -> None:
    """Fill the [MASK]s of a sentence with a trained model.

    Every candidate is shown in its sentence; with more than 20 masks, on its own.

    **Examples**

    `ropewalk fill-mask runs/demo/models/rope "Return the [MASK] of the list."`

    `ropewalk fill-mask runs/demo/models/rope "a [MASK] of [MASK] objects" --top 3`
    """
    from ropewalk.recipes.fill_mask import FillMask

    masks = FillMask(model)(text, top=top)
    for place, candidates in enumerate(masks, start=1):
        print(f"[MASK] {place}")
        for candidate in candidates:
            sentence = candidate.text if len(masks) <= _MOST_SENTENCES else ""
            line = f"  {candidate.probability:6.1%}  {candidate.token:<16} {sentence}"
            print(line.rstrip())
