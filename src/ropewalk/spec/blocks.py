"""Specs made of several independent rotations: what they must have in common."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec.checks import abridged

if TYPE_CHECKING:
    from ropewalk.spec.rope_spec import RopeSpec


def tuple_of_blocks(blocks: object) -> tuple[RopeSpec, ...]:
    """Return ``blocks`` as a tuple, or refuse what is no sequence.

    Args:
        blocks: A list or tuple; None means none.

    Raises:
        ConfigError: Anything else.
    """
    if blocks is None:
        return ()
    if not isinstance(blocks, list | tuple):
        raise ConfigError(f"blocks must be a list or tuple of RopeSpecs; got {abridged(blocks)}")
    return tuple(blocks)


def check_blocks(spec: RopeSpec) -> None:
    """Refuse blocks that overlap, nest, or stand beside a rotation of the spec itself.

    Args:
        spec: A spec with blocks, its fields not resolved yet.

    Raises:
        ConfigError: The message names the field, or the coordinate that two blocks share.
    """
    _check_defaults(spec)
    taken: set[int] = set()
    for block in spec.blocks:
        candidate: object = block
        if not isinstance(candidate, type(spec)) or candidate.blocks:
            raise ConfigError(f"blocks must be RopeSpecs without blocks; got {abridged(block)}")
        if block.head_dim != spec.head_dim:
            raise ConfigError(
                f"blocks must have the head_dim of their parent, {spec.head_dim}; "
                f"got {block.head_dim}"
            )
        slice_ = set(range(block.rotary_offset, block.rotary_offset + block.rotary_dim))
        if taken & slice_:
            raise ConfigError(
                "blocks must rotate disjoint slices; coordinate "
                f"{min(taken & slice_)} is in two of them"
            )
        taken |= slice_


def _check_defaults(spec: RopeSpec) -> None:
    """Refuse a field that would describe a rotation of the parent itself."""
    # What a field left to its default becomes once the spec is resolved.
    resolved = {
        "rotary_dim": spec.head_dim,
        "output_layout": spec.layout,
        "frequency_dim": spec.head_dim,
    }
    for field in fields(spec):
        if field.name in ("head_dim", "layout", "blocks"):
            continue
        value = getattr(spec, field.name)
        if value not in (field.default, resolved.get(field.name)):
            raise ConfigError(
                f"{field.name} must keep its default when blocks are given, since the blocks "
                f"carry the rotation; got {field.name}={abridged(value)}"
            )
