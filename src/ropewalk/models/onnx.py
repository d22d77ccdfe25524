"""A model as an ONNX graph for rows of any number and length."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ropewalk.errors import ConfigError
from ropewalk.models.file_errors import check_path, writing_errors
from ropewalk.models.pretrained import RoFormerPreTrainedModel

LONGEST = 2**20
"""Longest row that the graph is declared for; attention over it would not fit anywhere."""


def export_onnx(model: RoFormerPreTrainedModel, path: str | os.PathLike[str]) -> None:
    """Write a model as an ONNX graph with dynamic batch and length.

    Inputs are ``input_ids`` and ``attention_mask``, ``(batch, seq)`` int64; the output is the
    model's first, named ``logits`` or ``last_hidden_state``. There is no position table in it, so
    it runs at lengths beyond the trained one. Local layers are masks over whole rows there.

    Args:
        model: In evaluation mode, on the CPU.
        path: File to write; weights too large for one file go beside it.

    Raises:
        ConfigError: The model is in training mode, or its rotation depends on the length of rows,
            which would be a constant of the graph.
        CheckpointError: The file cannot be written.
        ImportError: The extra ``ropewalk[onnx]`` is not installed.
    """
    check_path(path)
    if find_spec("onnxscript") is None:
        raise ImportError("export_onnx needs onnxscript: pip install 'ropewalk[onnx]'")
    if model.training:
        raise ConfigError("model must be in evaluation mode to be exported; got training mode")
    config = model.config
    if any(spec is not None and spec.depends_on_length for spec in config.rope_specs.values()):
        raise ConfigError(
            "rope_parameters must not depend on the length of rows in a graph; "
            f"got {config.rope_parameters!r}"
        )
    name = "last_hidden_state" if model.base_model is model else "logits"
    ids = torch.ones((2, 8), dtype=torch.long)
    ids[:, 1:] = config.vocab_size - 1
    sizes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("seq", min=1, max=LONGEST)}
    longest = config.max_position_embeddings
    if config.position_encoding == "learned":
        sizes[1] = torch.export.Dim("seq", min=1, max=longest)
        ids = ids[:, :longest]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        program: Any = torch.onnx.export(
            model,
            (),
            kwargs=inputs,
            dynamic_shapes=dict.fromkeys(inputs, sizes),
            input_names=list(inputs),
            output_names=[name],
            dynamo=True,
            verbose=False,
        )
        with writing_errors(path):
            program.save(Path(path))
