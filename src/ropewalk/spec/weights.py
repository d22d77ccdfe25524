"""Move the query and key rows of a checkpoint between pair layouts, file by file, in a stream."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ropewalk.errors import CheckpointError, ConfigError
from ropewalk.spec import checks
from ropewalk.spec.facts import load_config, text_part
from ropewalk.spec.pairs import LAYOUTS, pair_members
from ropewalk.spec.rope_spec import RopeSpec
from ropewalk.spec.safetensors_file import (
    ITEM_SIZES,
    TensorEntry,
    TensorFile,
    header_bytes,
    read_header,
)

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from ropewalk.spec.pairs import PairLayout

MARK = "rope_layout"
"""Key of the metadata of a converted file, so that it is not converted twice."""
_SPLIT = re.compile(
    r"(?:^|\.)(?:[qk]_proj|attention\.self\.(?:query|key)|[qk]_(?:layer)?norm)\.(?:weight|bias)$"
)
_FUSED = re.compile(r"(?:^|\.)(qkv_proj|query_key_value)\.(?:weight|bias)$")
_REFUSED = re.compile(r"(?:^|\.)(?:q_b_proj|kv_a_proj_with_mqa|lora_[AB]|[qk]_proj\.\w*scale\w*)")
_ELSEWHERE = re.compile(r"(?:^|\.)(?:vision|visual|audio|image)[a-z_]*\.")
_CHUNK = 1 << 24


@dataclass(frozen=True)
class WeightsReport:
    """What has been converted."""

    files: tuple[Path, ...]
    tensors: tuple[str, ...]
    """Names of the tensors with rows in another order."""
    source: PairLayout
    target: PairLayout
    score_error: float
    """Largest difference of scores before and after, relative to the norms of query and key."""


@dataclass(frozen=True)
class _Plan:
    """Geometry of the heads, and the new order of the rows of one."""

    spec: RopeSpec
    target: PairLayout
    config: Mapping[str, Any]

    @property
    def head_dim(self) -> int:
        return self.spec.head_dim

    @property
    def order(self) -> NDArray[np.int64]:
        """Row ``order[i]`` of the source becomes row i."""
        order = np.arange(self.head_dim)
        width, start = self.spec.rotary_dim, self.spec.rotary_offset
        goes = pair_members(width, self.target, start)
        comes = pair_members(width, self.spec.layout, start)
        for to, of in zip(goes, comes, strict=True):
            order[to] = of
        return order

    def blocks(self, entry: TensorEntry) -> list[bool] | None:
        """Return for every head of a tensor whether it turns; None: the tensor has none."""
        if _ELSEWHERE.search(entry.name):
            return None
        fused = _FUSED.search(entry.name)
        if not fused and not _SPLIT.search(entry.name):
            return None
        if entry.dtype not in ITEM_SIZES:
            raise CheckpointError(
                f"{entry.name} must be of type {', '.join(ITEM_SIZES)}; got {entry.dtype}; "
                "convert before quantisation"
            )
        rows = entry.shape[0] if entry.shape else 0
        if not rows or rows % self.head_dim:
            raise CheckpointError(
                f"{entry.name} must have a multiple of {self.head_dim} rows; got {entry.shape}"
            )
        heads = rows // self.head_dim
        if not fused:
            return [True] * heads
        if fused.group(1) == "query_key_value" and self.config.get("model_type") != "gpt_neox":
            raise CheckpointError(
                f"{entry.name} must belong to gpt_neox, whose order of query, key and value is "
                f"known; got model_type {checks.abridged(self.config.get('model_type'))}"
            )
        if fused.group(1) == "query_key_value":
            return [True, True, False] * (heads // 3)
        queries = checks.integer(
            "num_attention_heads", self.config.get("num_attention_heads"), at_least=1
        )
        keys = self.config.get("num_key_value_heads") or queries
        turning = queries + checks.integer("num_key_value_heads", keys, at_least=1)
        if heads != turning + turning - queries:
            raise CheckpointError(
                f"{entry.name} must have {2 * turning - queries} heads of query, key and value; "
                f"got {heads}"
            )
        return [True] * turning + [False] * (heads - turning)


def convert_weights(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    to: PairLayout,
    config: str | os.PathLike[str] | None = None,
    source_layout: PairLayout | None = None,
) -> WeightsReport:
    """Write a checkpoint with its query and key rows in another pair layout.

    Weights, biases and head norms are permuted alike, so scores stay the same; that is checked
    on the written file. One head is in memory at a time. The configuration is not copied: it
    belongs to a class that rotates in the old layout.

    Args:
        source: A .safetensors file, or a folder of them.
        output: A file or a folder, as the source; must not exist.
        to: Layout the rows shall be in.
        config: Its configuration; None: config.json beside the weights.
        source_layout: Layout the rows are in; None: that of the model class.

    Raises:
        ConfigError: The rotation cannot be derived, or nothing is to be done.
        CheckpointError: A file is damaged, or has query or key rows of an unknown kind.
    """
    checks.choice("to", to, LAYOUTS)
    source, output = (_path(n, p) for n, p in (("SOURCE", source), ("OUTPUT", output)))
    if not source.exists():
        raise ConfigError(
            "SOURCE must be a .safetensors file or a folder of them; "
            f"got {str(source)!r}, which does not exist"
        )
    folder = source if source.is_dir() else source.parent
    described = folder if config is None else config
    spec = _geometry(described, source_layout)
    if spec.layout == to:
        raise ConfigError(f"to must be another layout than that of the rows; got {to!r} for both")
    if output.exists():
        raise ConfigError(f"OUTPUT must not exist; got {str(output)!r}")
    files = (
        [source]
        if source.is_file()
        else sorted(path for path in source.glob("*.safetensors") if path.is_file())
    )
    if not files:
        raise ConfigError(f"SOURCE must have .safetensors files; got {str(source)!r}")
    plan = _Plan(spec, to, text_part(load_config(described)))
    read = [read_header(path) for path in files]
    _check(read, plan)
    partial = output.with_name(f"{output.name}.partial")
    _remove(partial)
    try:
        written = _write(read, partial, plan, into_folder=source.is_dir())
        error = _score_error(read, written, plan)
        if not error <= 1e-12:  # nor is it where weights are not finite
            raise CheckpointError(f"scores must stay the same; they differ by {error:.2g}")
    except BaseException:
        _remove(partial)
        raise
    partial.rename(output)
    places = [output / path.name for path in files] if source.is_dir() else [output]
    names = [e.name for file in read for e in file.entries if plan.blocks(e)]
    return WeightsReport(tuple(places), tuple(names), spec.layout, to, error)


def _path(name: str, value: object) -> Path:
    if not isinstance(value, str | Path):
        raise ConfigError(f"{name} must be a path; got {checks.abridged(value)}")
    return Path(value)


def _geometry(config: str | os.PathLike[str], layout: PairLayout | None) -> RopeSpec:
    """Return the rotation all layers share, as far as the order of rows goes."""
    specs = [spec for spec in RopeSpec.per_layer_type(config).values() if spec is not None]
    shapes = {(s.head_dim, s.rotary_dim, s.rotary_offset, s.layout) for s in specs}
    if len(shapes) != 1 or any(spec.blocks for spec in specs):
        raise ConfigError(
            f"config must have heads of one shape in all layers; got {checks.abridged(shapes)}"
        )
    if layout is None:
        return specs[0]
    checks.choice("source_layout", layout, LAYOUTS)
    return specs[0].replace(layout=layout, output_layout=None)


def _check(files: list[TensorFile], plan: _Plan) -> None:
    found = False
    for file in files:
        mark = file.metadata.get(MARK)
        if mark is not None and mark != plan.spec.layout:
            raise CheckpointError(
                f"{str(file.path)!r} must be in the layout {plan.spec.layout!r}; it says "
                f"{checks.abridged(mark)}"
            )
        for entry in file.entries:
            refused = _REFUSED.search(entry.name)
            if refused and not _ELSEWHERE.search(entry.name):
                raise CheckpointError(
                    f"{entry.name} cannot be converted: latent attention, adapters and scales "
                    "have rows of another kind"
                )
            found = bool(plan.blocks(entry)) or found
    if not found:
        raise CheckpointError(
            "the files must have tensors of queries and keys (q_proj, k_proj, query, key, "
            f"qkv_proj); got {checks.abridged([e.name for f in files for e in f.entries])}"
        )


def _write(
    files: list[TensorFile], place: Path, plan: _Plan, *, into_folder: bool
) -> list[TensorFile]:
    if into_folder:
        place.mkdir(parents=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for file in files:
        path = place / file.path.name if into_folder else place
        with file.path.open("rb") as reader, path.open("wb") as writer:
            writer.write(header_bytes(file.entries, dict(file.metadata) | {MARK: plan.target}))
            reader.seek(file.data_start)
            for entry in file.entries:
                _copy(reader, writer, entry, plan)
        written.append(read_header(path))
    if into_folder:
        for index in files[0].path.parent.glob("*.safetensors.index.json"):
            shutil.copyfile(index, place / index.name)
    return written


def _copy(reader: BinaryIO, writer: BinaryIO, entry: TensorEntry, plan: _Plan) -> None:
    """Copy a tensor, head by head where it has heads that turn."""
    blocks = plan.blocks(entry)
    if blocks is None:
        left = entry.stop - entry.start
        while left:
            data = reader.read(min(left, _CHUNK))
            writer.write(data)
            left -= len(data)
        return
    size = (entry.stop - entry.start) // len(blocks)
    for turns in blocks:
        rows = np.frombuffer(reader.read(size), dtype=np.uint8).reshape(plan.head_dim, -1)
        writer.write((rows[plan.order] if turns else rows).tobytes())


def _score_error(before: list[TensorFile], after: list[TensorFile], plan: _Plan) -> float:
    """Return how much scores of random inputs differ, over every pair of query and key tensors."""
    generator = np.random.default_rng(0)
    specs = (plan.spec, plan.spec.replace(layout=plan.target, output_layout=None))
    where = [
        {entry.name: (file, entry) for file in files for entry in file.entries}
        for files in (before, after)
    ]
    worst = 0.0
    for name, (_, entry) in where[0].items():
        blocks = plan.blocks(entry)
        if blocks is None or not name.endswith(".weight") or "norm" in name:
            continue
        key = re.sub(r"(?:^|(?<=\.))q(?=_proj\.)", "k", name).replace("self.query", "self.key")
        fused = _FUSED.search(name)
        if key not in where[0] or (key == name and not fused):
            continue
        heads = _heads_to_compare(blocks, plan.blocks(where[0][key][1]) or [], bool(fused))
        shapes = entry.shape[1:], where[0][key][1].shape[1:]  # keys may be of another sequence
        x = [generator.standard_normal(int(np.prod(shape))) for shape in shapes]
        positions = (3, 1000)
        scores = []
        for tensors, spec in zip(where, specs, strict=True):
            vectors = [
                _turned(_project(tensors, tensor, head, row, plan), spec, position)
                for tensor, head, row, position in zip(
                    (name, key), heads, x, positions, strict=True
                )
            ]
            scores.append((vectors[0] @ vectors[1], np.prod([np.linalg.norm(v) for v in vectors])))
        error = float(abs(scores[0][0] - scores[1][0]) / max(scores[0][1], 1e-300))
        worst = error if math.isnan(error) else max(worst, error)
        if math.isnan(worst):
            break
    return worst


def _heads_to_compare(query: list[bool], key: list[bool], fused: bool) -> tuple[int, int]:
    """Return the last query head and the last key head."""
    turning = [i for i, turns in enumerate(query) if turns]
    return (turning[0], turning[-1]) if fused else (len(query) - 1, len(key) - 1)


def _project(
    tensors: Mapping[str, tuple[TensorFile, TensorEntry]],
    name: str,
    head: int,
    x: NDArray[np.float64],
    plan: _Plan,
) -> NDArray[np.float64]:
    """Return one head of a projection of x, with its bias and the weight of its norm."""
    file, entry = tensors[name]
    rows = (head * plan.head_dim, plan.head_dim)
    vector: NDArray[np.float64] = file.rows(entry, *rows) @ x
    bias = tensors.get(name.removesuffix("weight") + "bias")
    if bias is not None:
        vector = vector + bias[0].rows(bias[1], *rows)[:, 0]
    norm = tensors.get(re.sub(r"([qk])_proj\.weight$", r"\1_norm.weight", name))
    if norm is not None and norm[1].name != name:
        whole = norm[1].shape[0] > plan.head_dim
        vector = vector * norm[0].rows(norm[1], rows[0] if whole else 0, plan.head_dim)[:, 0]
    return vector


def _turned(x: NDArray[np.float64], spec: RopeSpec, position: int) -> NDArray[np.float64]:
    """Return a vector turned to a position."""
    pairs = spec.pairs(1 << 20 if spec.depends_on_length else None)
    angles = pairs.sign * pairs.inv_freq * position
    cos, sin = np.cos(angles) * pairs.amplitude, np.sin(angles) * pairs.amplitude
    y = x.copy()
    a, b = x[pairs.in_a], x[pairs.in_b]
    y[pairs.out_a], y[pairs.out_b] = a * cos - b * sin, b * cos + a * sin
    return y


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
