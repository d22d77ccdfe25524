"""One small adapter for each library that others rotate with, always its own installed code."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ropewalk.recipes.bench.environment import version
from ropewalk.recipes.bench.exact import THETA

if TYPE_CHECKING:
    from ropewalk.spec import PairLayout

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_CACHED = 8192
"""Rows that rotary-embedding-torch keeps."""


class Setup(NamedTuple):
    """What an adapter prepares for."""

    head_dim: int
    """Width of the vectors."""
    start: int
    """First position."""
    length: int
    """How many follow each other."""
    dtype: torch.dtype
    """Dtype of the vectors."""
    warm: bool = True
    """Whether a cache that the code fills while it rotates is filled beforehand, in float32."""

    @property
    def positions(self) -> Tensor:
        """The positions, ``(length,)``."""
        return torch.arange(self.start, self.start + self.length)


class Prepared(NamedTuple):
    """A peer's code with its table built."""

    rotate: Rotate
    """Rotates q and k, stored as the peer wants them."""
    cos: Tensor
    """Its cosines, ``(length, head_dim / 2)``, in float32."""
    sin: Tensor
    """Its sines."""


@dataclass(frozen=True)
class Peer:
    """Another library's rotation."""

    code: str
    """Name in the tables."""
    package: str
    """Name in the package index."""
    layout: PairLayout
    """Which coordinates it pairs."""
    storage: Literal["bhsd", "bshd"]
    """Order of batch, heads, seq and head_dim that it wants."""
    prepare: Callable[[Setup], Prepared]
    """Builds its table."""
    longest: int = 10_000_000
    """Largest position its way of building a table reaches in reasonable time and memory."""

    @property
    def source(self) -> str:
        """Package and installed version."""
        return f"{self.package} {version(self.package) or '(not installed)'}"


def _llama(setup: Setup) -> Prepared:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=setup.head_dim,
        num_attention_heads=1,
        head_dim=setup.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )
    embedding = LlamaRotaryEmbedding(config)
    ids = setup.positions[None]
    cos, sin = embedding(torch.empty(0, dtype=setup.dtype), ids)
    wide = [table[0, :, : setup.head_dim // 2] for table in embedding(torch.empty(0), ids)]
    return Prepared(lambda q, k: apply_rotary_pos_emb(q, k, cos, sin), *wide)


def _gptj(setup: Setup) -> Prepared:
    from transformers.models.gptj import modeling_gptj as gptj

    rows = gptj.create_sinusoidal_positions(setup.start + setup.length, setup.head_dim)
    sin, cos = rows[setup.start :].clone().chunk(2, -1)
    narrow = [table[None].to(setup.dtype) for table in (sin, cos)]
    return Prepared(
        lambda q, k: (
            gptj.apply_rotary_pos_emb(q, *narrow),
            gptj.apply_rotary_pos_emb(k, *narrow),
        ),
        cos,
        sin,
    )


@lru_cache(maxsize=4)
def _roformer_rows(rows: int, head_dim: int) -> Tensor:
    """Return sines beside cosines; a loop in Python, half a second for 1,000 rows."""
    from transformers.models.roformer import modeling_roformer as roformer

    return roformer.RoFormerSinusoidalPositionalEmbedding(rows, head_dim).create_weight()  # type: ignore[no-any-return]


def _roformer(setup: Setup) -> Prepared:
    from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention

    rows = _roformer_rows(setup.start + setup.length, setup.head_dim)[setup.start :]
    sin, cos = rows.chunk(2, -1)
    narrow = rows[None, None].to(setup.dtype)
    turn: Any = RoFormerSelfAttention.apply_rotary_position_embeddings
    return Prepared(lambda q, k: turn(narrow, q, k), cos, sin)


def _rotary_embedding_torch(setup: Setup) -> Prepared:
    from rotary_embedding_torch import RotaryEmbedding

    rope = RotaryEmbedding(setup.head_dim, theta=THETA, cache_max_seq_len=_CACHED)
    angles = rope(rope.get_seq_pos(setup.length, offset=setup.start))[:, ::2]
    last = setup.start + setup.length
    if setup.warm and last <= _CACHED:
        # Its cache takes the dtype of the first call's positions: in bfloat16 they are wrong
        # above 256, and stay so.
        rope.rotate_queries_or_keys(torch.zeros(1, 1, last, setup.head_dim))
    start = setup.start
    return Prepared(
        lambda q, k: (
            rope.rotate_queries_or_keys(q, offset=start),
            rope.rotate_queries_or_keys(k, offset=start),
        ),
        angles.cos(),
        angles.sin(),
    )


def _x_transformers(setup: Setup) -> Prepared:
    with warnings.catch_warnings():  # it compiles with torch.jit while it is imported
        warnings.simplefilter("ignore")
        from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    rope: Any = RotaryEmbedding(setup.head_dim, base=THETA)
    angles, _ = rope(setup.positions)
    return Prepared(
        lambda q, k: (apply_rotary_pos_emb(q, angles), apply_rotary_pos_emb(k, angles)),
        angles[0, :, ::2].cos(),
        angles[0, :, ::2].sin(),
    )


def _torchtune(setup: Setup) -> Prepared:
    rope = _torchtune_module().RotaryPositionalEmbeddings(
        setup.head_dim, max_seq_len=setup.start + setup.length, base=THETA
    )
    cos, sin = rope.cache[setup.start :].clone().unbind(-1)
    ids = setup.positions[None] if setup.start else None
    return Prepared(lambda q, k: (rope(q, input_pos=ids), rope(k, input_pos=ids)), cos, sin)


@lru_cache(maxsize=1)
def _torchtune_module() -> Any:
    """Return torchtune's rotary module alone; the package wants torchao before it is imported."""
    package = importlib.util.find_spec("torchtune")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'torchtune'", name="torchtune")
    path = Path(package.submodule_search_locations[0], "modules", "position_embeddings.py")
    spec = importlib.util.spec_from_file_location("_torchtune_position_embeddings", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"no {path} in the installed torchtune")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where torch.compile looks it up
    spec.loader.exec_module(module)
    return module


# A table of all positions from 0 takes 1 KiB a row, and RoFormer's half a millisecond.
PEERS = (
    Peer("transformers Llama", "transformers", "half", "bhsd", _llama),
    Peer("transformers RoFormer", "transformers", "interleaved", "bhsd", _roformer, 10_000),
    Peer("transformers GPT-J", "transformers", "interleaved", "bshd", _gptj, 1_000_000),
    Peer(
        "rotary-embedding-torch",
        "rotary-embedding-torch",
        "interleaved",
        "bhsd",
        _rotary_embedding_torch,
    ),
    Peer("x-transformers", "x-transformers", "interleaved", "bhsd", _x_transformers),
    Peer("torchtune", "torchtune", "interleaved", "bshd", _torchtune, 1_000_000),
)
"""Every library compared with."""


def absent(peer: Peer) -> str | None:
    """Return why a peer cannot be measured here, or None.

    Args:
        peer: The peer.
    """
    try:
        peer.prepare(Setup(4, 0, 2, torch.float32))
    except ImportError as error:
        missing = getattr(error, "name", None)
        return f"needs {missing}" if missing else " ".join(str(error).split())
    return None
