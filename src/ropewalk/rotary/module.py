"""``RotaryEmbedding``: a spec as a module, without parameters, buffers or anything to corrupt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ropewalk.errors import ConfigError, ShapeError
from ropewalk.rotary.apply import arithmetic_dtype
from ropewalk.rotary.checks import outputs, tensors
from ropewalk.rotary.kernels import native
from ropewalk.rotary.operator import turn_both, turn_plain, turn_vectors
from ropewalk.rotary.rates import Rates, check_stored, kept_rates, row_lengths
from ropewalk.rotary.tables import (
    AnyTable,
    RotaryTable,
    block_table,
    check_finite,
    check_positions,
    combine,
    geometry,
    given_table,
    joined,
    turns,
    undo,
    widest_dtype,
)
from ropewalk.spec import RopeSpec
from ropewalk.spec.checks import choice

if TYPE_CHECKING:
    from ropewalk.rotary.rates import Lengths, SeqLen

Role = Literal["query", "key"]


class RotaryEmbedding(nn.Module):
    """Rotate queries and keys as a :class:`~ropewalk.RopeSpec` says.

    The frequencies are Python numbers of the spec, not state: nothing enters the state dict, and
    ``.half()``, ``.to(...)``, a meta device, ``deepcopy`` or pickling cannot change the rotation.
    The output has the dtype and the memory order of the input.

    Build the table once per forward and pass it to every layer::

        table = rope.table(position_ids)
        q, k = rope(q, k, table=table)

    Positions may be negative (they turn the other way) and fractional. Angles are exact to 1e-8
    radians up to position 10 million; beyond, the error grows in proportion.

    Rules that depend on the length of the row take it as ``seq_len``, an int or one per row, and
    never guess it. What they answer depends on nothing else: not on earlier calls, nor on other
    rows of the batch. Under ``torch.compile`` such a length is a constant, an int that costs a
    compilation for every value.

    Args:
        spec: The rotation.

    Raises:
        ConfigError: ``spec`` is not a RopeSpec.

    References:
        Su et al., 2021, arXiv:2104.09864.

    Example:
        >>> rope = RotaryEmbedding(RopeSpec(head_dim=2, layout="half"))
        >>> rope.rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
        tensor([[1., 0.]])
    """

    def __init__(self, spec: RopeSpec) -> None:
        super().__init__()
        given: object = spec
        if not isinstance(given, RopeSpec):
            raise ConfigError(f"spec must be a RopeSpec; got {type(given).__name__}")
        self.spec = spec
        # What the compiled kernel has to know, where one call of it does the whole rotation.
        self._geometry: native.Geometry | None = None
        if not spec.blocks and not spec.has_roles:
            self._geometry = native.geometry(
                spec.rotary_offset,
                spec.layout,
                spec.output_layout,
                width=spec.head_dim,
                pairs=spec.n_pairs,
            )
        # Copies of the frequencies on devices; never saved, dropped on copy and pickle.
        self._on_device: dict[tuple[Any, ...], Rates] = {}

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        position_ids: Tensor | None = None,
        *,
        table: AnyTable | None = None,
        seq_len: SeqLen | None = None,
        seq_dim: int = -2,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys that stand at the same positions.

        Args:
            q: ``(..., seq, head_dim)``, usually ``(batch, heads, seq, head_dim)``.
            k: Like ``q``; the number of heads may differ.
            position_ids: ``(seq,)``, ``(batch, seq)``, ``(axes, batch, seq)``, or 0-d for one
                position of all vectors; integer or real. Exactly one of this and ``table``.
            table: What :meth:`table` returned for the positions.
            seq_len: Length of the row (its largest position + 1, cached keys included), or
                one per row, shape ``(batch,)``; for scaling rules that depend on it.
            seq_dim: -2; or -3 for ``(batch, seq, heads, head_dim)`` and packed
                ``(tokens, heads, head_dim)``.
            out: Two tensors to write to; ``(q, k)`` themselves for in place. Not under grad.

        Returns:
            Rotated ``q`` and ``k``.

        Raises:
            ShapeError: Shapes or dtypes do not fit together.
            ConfigError: Both or neither of ``position_ids`` and ``table`` are given; or the rule
                has one table for each role, and a single one is given.
        """
        if table is not None and position_ids is None and seq_len is None:
            done = turn_plain(self._geometry, q, k, table, seq_dim, out)
            if done is not None:
                return done
        tensors(q=q, k=k)
        dtype = arithmetic_dtype(q.dtype, k.dtype)
        if self.spec.has_roles:
            if table is not None:
                raise ConfigError(
                    "table must be left out, since queries and keys have different tables under "
                    "xPos; pass position_ids, or call rotate with role"
                )
            table_q = self._one_table(dtype, position_ids, None, seq_len, "query")
            table_k = self._one_table(dtype, position_ids, None, seq_len, "key")
        else:
            table_q = table_k = self._one_table(dtype, position_ids, table, seq_len)
            if position_ids is not None:
                done = turn_plain(self._geometry, q, k, table_q, seq_dim, out)
                if done is not None:
                    return done
        if out is None:
            return self._turn(q, table_q, seq_dim, None), self._turn(k, table_k, seq_dim, None)
        layouts = ("layout", "output_layout")
        parts_q = turns(self.spec, q, table_q, layouts)
        parts_k = turns(self.spec, k, table_k, layouts)
        return turn_both(q, k, parts_q, parts_k, seq_dim, outputs(out))

    def rotate(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        *,
        table: AnyTable | None = None,
        role: Role | None = None,
        seq_len: SeqLen | None = None,
        seq_dim: int = -2,
        out: Tensor | None = None,
    ) -> Tensor:
        """Rotate one tensor.

        Args:
            x: ``(..., seq, head_dim)``.
            position_ids: As in :meth:`forward`.
            table: As in :meth:`forward`.
            role: "query" or "key", for rules that treat them differently (xPos); others ignore
                it.
            seq_len: As in :meth:`forward`.
            seq_dim: As in :meth:`forward`.
            out: Write here and return it; may be ``x``. Not under grad.

        Returns:
            Rotated ``x``.

        Raises:
            ShapeError: Shapes or dtypes do not fit together.
            ConfigError: Both or neither of ``position_ids`` and ``table`` are given.
        """
        tensors(x=x)
        dtype = arithmetic_dtype(x.dtype)
        table = self._one_table(dtype, position_ids, table, seq_len, role)
        return self._turn(x, table, seq_dim, out)

    def inverse(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        *,
        table: AnyTable | None = None,
        role: Role | None = None,
        seq_len: SeqLen | None = None,
        seq_dim: int = -2,
        out: Tensor | None = None,
    ) -> Tensor:
        """Undo :meth:`rotate` with the same arguments, amplitude included.

        Args:
            x: Rotated vectors, ``(..., seq, head_dim)``.
            position_ids: Positions they were rotated at, or give ``table``.
            table: The table they were rotated with.
            role: As in :meth:`rotate`.
            seq_len: As in :meth:`rotate`.
            seq_dim: As in :meth:`rotate`.
            out: As in :meth:`rotate`.

        Returns:
            The vectors before the rotation.

        Raises:
            ShapeError: Shapes or dtypes do not fit together.
            ConfigError: Both or neither of ``position_ids`` and ``table`` are given.
        """
        tensors(x=x)
        dtype = arithmetic_dtype(x.dtype)
        cos, sin = self._one_table(dtype, position_ids, table, seq_len, role)
        if all(block.scaling is None or block.scaling.keeps_norms for block in self.spec.parts):
            back = RotaryTable(cos, -sin)
        else:  # the table knows its amplitude, whichever rule and length it comes from
            wide = widest_dtype(cos.device)
            back = undo(RotaryTable(cos.to(wide), sin.to(wide)))
            back = RotaryTable(back.cos.to(cos.dtype), back.sin.to(cos.dtype))
        return self._turn(x, back, seq_dim, out, ("output_layout", "layout"))

    def shift(
        self,
        k: Tensor,
        from_ids: Tensor,
        to_ids: Tensor,
        *,
        from_spec: RopeSpec | None = None,
        seq_len: SeqLen | None = None,
        from_seq_len: SeqLen | None = None,
        seq_dim: int = -2,
        out: Tensor | None = None,
    ) -> Tensor:
        """Move rotated keys of a cache to other positions, or to other frequencies.

        Equals ``rotate(inverse(k, from_ids), to_ids)`` in one pass, rounded once.

        Args:
            k: Keys rotated at ``from_ids`` with ``from_spec``; gradients flow back to them.
            from_ids: Positions they stand at.
            to_ids: Positions they shall stand at.
            from_spec: Rotation they have now; None means this one. It may differ in frequencies,
                amplitude and direction, not in which coordinates form pairs.
            seq_len: Length that this spec's rule takes, if it depends on one.
            from_seq_len: Length that the rule of ``from_spec`` took.
            seq_dim: As in :meth:`forward`.
            out: As in :meth:`rotate`.

        Returns:
            Keys as if rotated at ``to_ids`` with this module.

        Raises:
            ShapeError: Shapes or dtypes do not fit together.
            ConfigError: ``from_spec`` pairs other coordinates.
        """
        tensors(k=k)
        source = self if from_spec is None else RotaryEmbedding(from_spec)
        ours, theirs = geometry(self.spec), geometry(source.spec)
        if ours != theirs:
            raise ConfigError(
                "from_spec must pair the same coordinates as this module's spec, "
                f"{ours} (output_layout, offset, width); got {theirs}; use inverse, then rotate"
            )
        wide = widest_dtype(k.device)
        there = self.table(to_ids, seq_len=seq_len, role="key", dtype=wide)
        here = source.table(from_ids, seq_len=from_seq_len, role="key", dtype=wide)
        cos, sin = combine(there, here)
        dtype = arithmetic_dtype(k.dtype)
        table = RotaryTable(cos.to(dtype), sin.to(dtype))
        return self._turn(k, table, seq_dim, out, ("output_layout", "output_layout"))

    def table(
        self,
        position_ids: Tensor,
        *,
        seq_len: SeqLen | None = None,
        role: Role | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> RotaryTable:
        """Return cos and sin of the positions, to be shared by all layers of a forward.

        Args:
            position_ids: ``(seq,)``, ``(batch, seq)``, ``(axes, batch, seq)`` or 0-d.
            seq_len: As in :meth:`forward`. With one length per row the table has one row each,
                also for positions ``(seq,)``.
            role: As in :meth:`rotate`.
            dtype: float32, or float64 to rotate float64 vectors. Only the result has it; the
                angles are computed in ``spec.angle_dtype``.

        Returns:
            ``(cos, sin)``, each ``(..., r/2)``, on the device of ``position_ids``, with the
            amplitude and the direction of the spec in them.

        Raises:
            ShapeError: Positions have a wrong shape or dtype; ``dtype`` is below float32.
            ConfigError: ``seq_len`` or ``role`` is missing where the rule depends on it; or the
                amplitude of xPos leaves the range of the dtype (checked on the CPU).

        Example:
            >>> rope = RotaryEmbedding(RopeSpec(head_dim=8, layout="half"))
            >>> rope.table(torch.arange(5)).cos.shape
            torch.Size([5, 4])
        """
        choice("role", role, (None, "query", "key"))
        check_positions(position_ids, self.spec.n_axes)
        if dtype not in (torch.float32, torch.float64):
            raise ShapeError(
                "dtype of a table must be float32 or float64, since lower precision loses "
                f"positions; got {dtype}"
            )
        if role is None and self.spec.has_roles:
            raise ConfigError(
                "role must be 'query' or 'key', since they have different tables under "
                "xPos; got None"
            )
        rows = row_lengths(seq_len, self.spec, position_ids)
        parts = [self._block_table(block, position_ids, rows, role) for block in self.spec.parts]
        table = joined(parts, position_ids.device, dtype)
        if self.spec.has_roles:
            check_finite(table)
        return table

    def extra_repr(self) -> str:
        """Show the spec."""
        return repr(self.spec)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Accept the frequencies that other modules keep as a buffer, if they are these."""
        stored = state_dict.pop(f"{prefix}inv_freq", None)
        if stored is not None:
            check_stored(stored, self.spec, f"{prefix}inv_freq")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_on_device": {}}

    def _one_table(
        self,
        dtype: torch.dtype,
        position_ids: Tensor | None,
        table: AnyTable | None,
        seq_len: SeqLen | None,
        role: Role | None = None,
    ) -> RotaryTable:
        """Return the table that was given, or that of the positions in ``dtype``."""
        if (position_ids is None) == (table is None):
            given = "neither" if table is None else "both"
            raise ConfigError(f"exactly one of position_ids and table must be given; got {given}")
        if table is not None:
            return given_table(table, role=role, seq_len=seq_len)
        assert position_ids is not None
        return self.table(position_ids, seq_len=seq_len, role=role, dtype=dtype)

    def _block_table(
        self,
        block: RopeSpec,
        position_ids: Tensor,
        rows: Lengths,
        role: Role | None,
    ) -> RotaryTable:
        dtype = torch.float64 if block.angle_dtype == "float64" else torch.float32
        if dtype == torch.float64 and widest_dtype(position_ids.device) != dtype:
            position_ids = position_ids.cpu()
        # A block may read fewer axes than its siblings.
        if block.n_axes == 1 and self.spec.n_axes > 1:
            position_ids = position_ids[0]
        rows = rows if block.depends_on_length else None
        rates = kept_rates(self._on_device, block, rows, position_ids.device, dtype)
        return block_table(block, position_ids, rates, role)

    def _turn(
        self,
        x: Tensor,
        table: RotaryTable,
        seq_dim: int,
        out: Tensor | None,
        layouts: tuple[str, str] = ("layout", "output_layout"),
    ) -> Tensor:
        """Rotate every block's slice of ``x``, reading and writing the named layouts."""
        parts = turns(self.spec, x, table, layouts)
        return turn_vectors(x, parts, seq_dim=seq_dim, out=out)
