"""What sharing folders with transformers takes: a constant table and strict loads."""

from __future__ import annotations

import json
import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.modeling_utils import load_state_dict
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)
from transformers.utils.hub import cached_file

from ropewalk.errors import CheckpointError
from ropewalk.rotary import RotaryEmbedding
from ropewalk.spec import RopeSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn


TABLE_KEY = "encoder.embed_positions.weight"
BIAS_KEY = "cls.predictions.bias"

# Heads of other tasks, which an encoder may be taken from.
_HEADS = ("cls.", "classifier.", "qa_outputs.", "discriminator_predictions.", "generator_")

# A table made with float32 angles is off by position * 2^-24: 1e-4 at 1,536, the published length.
_ANGLE_TOLERANCE = 2.0**-12

_logger = logging.getLogger(__name__)


def position_table(spec: RopeSpec, rows: int) -> Tensor:
    """Return the table of rotations that transformers' RoFormer keeps as a constant parameter.

    Args:
        spec: The rotation.
        rows: Number of positions.

    Returns:
        ``(rows, rotary_dim)`` float32, sines in the first half of each row, cosines in the second.

    Example:
        >>> position_table(RopeSpec(4, "interleaved"), rows=1)
        tensor([[0., 0., 1., 1.]])
    """
    cos, sin = RotaryEmbedding(spec).table(torch.arange(rows), dtype=torch.float64)
    return torch.cat((sin, cos), dim=-1).float()


def check_table(table: Tensor, head_dim: int, source: str) -> None:
    """Refuse a stored table of rotations that is not the one every RoFormer is trained with.

    A config may state another rotation on purpose, to stretch a trained model; what the weights
    were trained with stays the plain ladder on base 10,000, or they are not a RoFormer's.

    Args:
        table: ``(positions, head_dim)`` as stored; rounding to a lower dtype is allowed for.
        head_dim: Width of a head.
        source: Where the table comes from, for the message.

    Raises:
        CheckpointError: Other values, or another width.
    """
    if table.ndim != 2 or table.shape[1] != head_dim:
        raise CheckpointError(
            f"{source} has an {TABLE_KEY} of shape {tuple(table.shape)}; "
            f"expected (positions, {head_dim})"
        )
    tolerance = _ANGLE_TOLERANCE
    for dtype in (torch.float16, torch.bfloat16):
        # A model that was cast, perhaps back as well, has its table rounded.
        if torch.equal(table.to(dtype).to(table.dtype), table):
            tolerance = max(tolerance, torch.finfo(dtype).eps)
    formula = position_table(RopeSpec(head_dim, "interleaved"), len(table))
    error = (table.double() - formula.double()).abs().nan_to_num(torch.inf)
    if len(table) and float(error.max()) > tolerance:
        row = int(error.max(dim=1).values.argmax())
        raise CheckpointError(
            f"{source} has an {TABLE_KEY} that differs from sines and cosines of position / "
            f"10000^(2i/{head_dim}) by {float(error.max()):.2g} at position {row}; the model was "
            "made with another rotation, or fine-tuned where this constant was trained along"
        )


def drop_table(
    head_dim: int, _: nn.Module, state_dict: dict[str, Any], prefix: str, *__: Any
) -> None:
    """Check and drop the stored table when a state dict is loaded into an encoder.

    Args:
        head_dim: Width of a head of the encoder.
        _: The encoder.
        state_dict: What is being loaded; changed in place.
        prefix: Path of the encoder in it, with a dot at its end.
        __: What else torch passes to a hook.

    Raises:
        CheckpointError: The table is not that of a RoFormer.
    """
    table = state_dict.pop(prefix + TABLE_KEY.removeprefix("encoder."), None)
    if table is not None:
        check_table(table, head_dim, "the state dict")


def forgive_tied(module: Any, incompatible: Any) -> None:
    """Call a parameter loaded when the one it is tied to was, as saved files hold each once.

    Args:
        module: A model of transformers.
        incompatible: Missing and unexpected keys of a load; changed in place.
    """
    missing = set(incompatible.missing_keys)
    for pair in module.all_tied_weights_keys.items():
        if not missing.issuperset(pair):
            missing.difference_update(pair)
    incompatible.missing_keys[:] = [key for key in incompatible.missing_keys if key in missing]


def check_stored_table(
    head_dim: int, path: str | os.PathLike[str] | None, options: dict[str, Any]
) -> None:
    """Compare the table of rotations in a model folder, if it has one, with the formula.

    Args:
        head_dim: Width of a head of the model.
        path: Folder or hub name the model was just loaded from, or None.
        options: Keyword arguments of the load: ``state_dict``, ``subfolder``, ``variant``, ...

    Raises:
        CheckpointError: The table is not that of a RoFormer.
    """
    for table in _stored_tables(path, options):
        check_table(table, head_dim, str(path))


def _stored_tables(
    path: str | os.PathLike[str] | None, options: dict[str, Any]
) -> Iterator[Tensor]:
    """Yield the tables in a state dict or in the weight files of a folder."""
    if path is None:
        state_dict = options.get("state_dict") or {}
        yield from (tensor for name, tensor in state_dict.items() if name.endswith(TABLE_KEY))
        return
    for file in _weight_files(path, options):
        if file.endswith(".safetensors"):
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (not a mapping)
                    if name.endswith(TABLE_KEY):
                        yield weights.get_tensor(name)
        else:
            weights = load_state_dict(file)  # never unpickles more than tensors
            yield from (tensor for name, tensor in weights.items() if name.endswith(TABLE_KEY))


def _weight_files(path: str | os.PathLike[str], options: dict[str, Any]) -> Iterator[str]:
    """Yield the files that can hold the table, in the order in which transformers looks."""
    if Path(path).is_file():
        yield str(path)
        return
    names = [SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME]
    if options.get("use_safetensors") is False:
        names = names[2:]
    keys = ("cache_dir", "revision", "subfolder", "token")
    where: dict[str, Any] = {name: options[name] for name in keys if name in options}

    def find(name: str) -> str | None:
        # The model has just been loaded, so what exists is on this disk.
        found: str | None = cached_file(
            path, name, local_files_only=True, _raise_exceptions_for_missing_entries=False, **where
        )
        return found

    for name in names:
        name = _named(name, options.get("variant"))
        file = find(name)
        if file is None:
            continue
        if not name.endswith(".json"):
            yield file
            return
        shards = json.loads(Path(file).read_text(encoding="utf-8"))["weight_map"]
        holding = {shard for key, shard in shards.items() if key.endswith(TABLE_KEY)}
        yield from (found for shard in sorted(holding) if (found := find(shard)))
        return


def _named(name: str, variant: str | None) -> str:
    stem, _, extension = name.rpartition(".")
    return f"{stem}.{variant}.{extension}" if variant else name


def remove_older_weights(folder: Path, variant: str | None) -> None:
    """Remove the weight files that an earlier save left beside those of the last one.

    Args:
        folder: Where a save, which removes older shards itself, was just completed.
        variant: Of that save; files of other variants stay.
    """
    safe, torchs = _named(SAFE_WEIGHTS_NAME, variant), _named(WEIGHTS_NAME, variant)
    sharded = any(folder.glob(safe.replace(".safetensors", "-*-of-*.safetensors")))
    for pattern in (
        safe if sharded else _named(SAFE_WEIGHTS_INDEX_NAME, variant),
        torchs,
        torchs.replace(".bin", "-*-of-*.bin"),
        _named(WEIGHTS_INDEX_NAME, variant),
    ):
        for path in folder.glob(pattern):
            path.unlink()


def check_loaded(
    model: Any,
    info: dict[str, Any],
    path: object,
    *,
    head: str | None,
    fresh_head: bool,
    allow_mismatch: bool,
) -> None:
    """Refuse a checkpoint that does not hold exactly the parameters of the model.

    Args:
        model: The model just loaded.
        info: transformers' account of the load: missing, unexpected and mismatched keys.
        path: Where it was loaded from, for the message.
        head: Prefix of the model's head parameters, or None for a bare encoder.
        fresh_head: Whether the head may be missing as a whole, and then starts fresh.
        allow_mismatch: Whether parameters of another shape may start fresh.

    Raises:
        CheckpointError: Parameters are missing, left over or of another shape; it lists them.
    """
    missing = set(info["missing_keys"])
    if fresh_head and head is not None:
        whole = {name for name, _ in model.named_parameters() if name.startswith(head)}
        if whole <= missing:
            missing -= whole
            _logger.warning(
                "%s has no %s: these parameters of %s are fresh, train them before use: %s",
                path, head.rstrip("."), type(model).__name__, ", ".join(sorted(whole)),
            )  # fmt: skip
    others = tuple(name for name in _HEADS if name != head)
    unexpected = {name for name in info["unexpected_keys"] if not name.startswith(others)}
    mismatched = set() if allow_mismatch else set(info["mismatched_keys"])
    problems = [
        f"{what} {_listed(names)}"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", {f"{k} {tuple(a)} not {tuple(b)}" for k, a, b in mismatched}),
        )
        if names
    ]
    if problems:
        raise CheckpointError(
            f"{path} does not hold a {type(model).__name__} of its config: {'; '.join(problems)}"
        )


def _listed(names: Iterable[str], shown: int = 8) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - shown} more" if len(ordered) > shown else ""
    return ", ".join(ordered[:shown]) + more


class _NoLoadReport(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "LOAD REPORT" not in message and not message.startswith("This checkpoint seem")


@contextmanager
def without_load_report() -> Iterator[None]:
    """Keep transformers from printing what keys do not fit; :func:`check_loaded` judges them."""
    logger = logging.getLogger("transformers.modeling_utils")
    silent = _NoLoadReport()
    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)
