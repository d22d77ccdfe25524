"""ONNX graphs in onnxruntime: any number of rows of any length, past the trained one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.errors import ConfigError
from ropewalk.models import RoFormerForMaskedLM, RoFormerModel
from ropewalk.models.onnx import export_onnx

pytest.importorskip("onnxscript", reason="needs the extra ropewalk[onnx]")
runtime = pytest.importorskip("onnxruntime", reason="needs the extra ropewalk[onnx]")

Build = Callable[..., Any]
FULL, LOCAL = "full_attention", "sliding_attention"
MODERN: dict[str, Any] = {
    "layer_types": [FULL, LOCAL],
    "sliding_window": 3,
    "pre_norm": True,
    "gated_mlp": True,
    "norm_bias": False,
    "mlp_bias": False,
    "rope_parameters": {FULL: {"rope_theta": 160_000.0}, LOCAL: {}},
}


@pytest.mark.parametrize(
    ("cls", "fields", "name"),
    [
        (RoFormerForMaskedLM, {}, "logits"),
        (RoFormerModel, MODERN, "last_hidden_state"),
    ],
    ids=["roformer", "modern"],
)
def test_one_graph_gives_our_answers_at_any_size_past_the_trained_length(
    build: Build, tmp_path: Path, cls: Any, fields: dict[str, Any], name: str
) -> None:
    model = build(cls, **fields)
    path = tmp_path / "model.onnx"
    export_onnx(model, path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == [name]
    source = torch.Generator().manual_seed(0)
    for rows, length in ((1, 1), (1, 7), (3, 24), (2, 300)):  # trained at 24
        ids = torch.randint(1, 97, (rows, length), generator=source)
        mask = torch.ones_like(ids)
        mask[0, max(1, 2 * length // 3) :] = 0
        found = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
        with torch.no_grad():
            expected = model(ids, attention_mask=mask)[0]
        # fp32: kernels of another library, at outputs of magnitude 1
        torch.testing.assert_close(
            torch.from_numpy(found)[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5
        )


def test_what_would_be_frozen_or_random_is_refused(build: Build, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model must be in evaluation mode"):
        export_onnx(build(RoFormerModel).train(), tmp_path / "x")
    rule = {"rope_type": "dynamic", "factor": 2.0}
    with pytest.raises(ConfigError, match=re.escape("rope_parameters must not depend on the len")):
        export_onnx(build(RoFormerModel, rope_parameters=rule), tmp_path / "x")
    assert not list(tmp_path.iterdir())
