"""Push unit vectors through the indexers of sparse attention, which have rotations of their own.

What an indexer returns is which keys are chosen. Its rotated queries and keys are seen where it
multiplies them.
"""

import inspect
from unittest import mock

import cases
import probe
import torch
from discovery import config_for, rotary_classes
from torch import nn

from ropewalk import rope_layers

EXCLUDED_INDEXERS = {
    "Glm5NextTextIndexer": "never rotates",
    "MistralLarge4TextIndexer": "learned",
}
POSITIONS = torch.tensor([0, 1, 2, 3, 4, 5, 6, cases.LARGE], dtype=torch.float64)
WINDOW = 4
"""Tokens for which a key of DeepSeek-V4 stands."""


_QWEN4 = {
    "indexer_n_heads": 1,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_compress_ratio": 1,
    "indexer_budget": 16,
}


def _config(found):
    """Return the default config; that of Qwen4 has no indexer, and is given one."""
    return config_for(found, **(_QWEN4 if found.model == "qwen4_exp" else {}))


def indexer_spec(found):
    """Return how the indexers of a model turn."""
    layers = rope_layers(_config(found))
    return next(layer["indexer"].spec for layer in layers if layer and "indexer" in layer)


def indexer_excess(found):
    """Return by how much the worst entry of queries, and of keys, is over its bound."""
    spec = indexer_spec(found)
    positions = torch.stack([POSITIONS + axis for axis in range(spec.n_axes)], dim=1)
    queries, keys = _seen(found, spec.head_dim, positions)
    of_keys = positions
    if found.model == "deepseek_v4":
        of_keys = torch.arange(len(keys), dtype=torch.float64)[:, None] * WINDOW
    return [
        cases.excess_of(matrices.double().numpy(), spec, places.numpy(), 0, spec.head_dim)
        for matrices, places in ((queries, positions), (keys, of_keys))
    ]


class _Told:
    """A config of which some entries are told otherwise, without its checks."""

    def __init__(self, config, **entries):
        self.__dict__.update(entries, _config=config)

    def __getattr__(self, name):
        return getattr(self._config, name)


class _Pass(nn.Module):
    """Stands for a norm."""

    weight = torch.ones(())

    def forward(self, x):
        return x


def _seen(found, width, positions):
    """Return the matrices of queries and of keys, (positions, width, width) each."""
    config = _config(found)
    told = _Told(
        config,
        hidden_size=width,
        q_lora_rank=width,
        index_n_heads=1,
        index_local_blocks=0,
        compress_rates={"compressed_sparse_attention": WINDOW},
    )
    products, multiply = [], torch.matmul

    def spy(left, right):
        if left.shape[-1] == right.shape[-2] == width:
            products.append((left, right))
        return multiply(left, right)

    with torch.no_grad():
        indexer = _called(found.cls, config=told, layer_idx=0)
        _let_unit_vectors_pass(indexer, width)
        arguments = _arguments(found, config, width, positions)
        with mock.patch.object(torch, "matmul", spy):
            _called(indexer, **arguments)
    # Row b of the batch is unit vector b; Qwen4 multiplies query by query.
    queries = torch.cat([left.reshape(-1, width) for left, _ in products])
    queries = queries.view(width, len(positions), width)
    per_row = len(products) // width if len(products) > 1 else 1
    keys = torch.cat(
        [right.reshape(-1, width, right.shape[-1]) for _, right in products[::per_row]]
    )
    return queries.permute(1, 2, 0), keys.permute(2, 1, 0)


def _called(function, **arguments):
    """Call with those of the arguments that it takes."""
    target = function.forward if isinstance(function, nn.Module) else function
    names = inspect.signature(target).parameters
    return function(**{name: value for name, value in arguments.items() if name in names})


def _arguments(found, config, width, positions):
    """Return what the indexers of all models take, for one row per unit vector."""
    count = len(positions)
    rotary = next(
        other.cls(config)
        for other in rotary_classes()
        if other.model == found.model and not any(x in other.name for x in ("Vision", "Audio"))
    )
    hidden = torch.eye(width)[:, None].expand(width, count, width)
    table = None
    if found.model != "deepseek_v4":  # which has its own
        label = "indexed_attention" if found.model == "dots3_note" else None
        table = tuple(
            part.expand(width, -1, -1) for part in probe._table(rotary, positions, label, False)
        )
    one_head = found.model == "qwen4_exp"
    return {
        "hidden_states": hidden,
        "q_resid": hidden,
        "q_residual": hidden,
        "position_embeddings": table,
        "attention_mask": torch.zeros(width, *([1] * one_head), count, count),
        "position_ids": positions[:, 0].long().expand(width, count),
        "cache": None,
        "layer_idx": 0,
    }


def _let_unit_vectors_pass(indexer, width):
    """Make projections copies of their input, and norms nothing."""
    for name, module in list(indexer.named_children()):
        if "norm" in name:
            setattr(indexer, name, _Pass())
        elif isinstance(module, nn.Linear) and module.weight.shape[0] % width == 0:
            gate = "gate" in name
            copies = torch.eye(width).repeat(module.weight.shape[0] // width, 1)
            module.weight.copy_(torch.zeros_like(copies) if gate else copies)
    if hasattr(indexer, "position_bias"):
        indexer.position_bias.zero_()
