"""``RopeSpec``: one immutable description of a rotation, from which everything else is derived."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks, spectrum
from ropewalk.spec.pairs import PAIR_DTYPE, PairLayout, pair_members
from ropewalk.spec.resolution import resolve
from ropewalk.spec.spectrum import Ladder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ropewalk.spec.scaling import ScalingRule

    Rows = Sequence[int] | NDArray[np.integer[Any]]
    """Lengths, one per row of a batch."""


@dataclass(frozen=True)
class RopeSpec:
    r"""Describe one rotation completely; every table, kernel and conversion derives from it.

    With :math:`p' = (p + \text{offset}) \cdot \text{scale}` and the angle
    :math:`\alpha_j = \text{direction} \cdot p' \omega_j`, the coordinates (a, b) of pair j become

    .. math:: (x_a \cos\alpha_j - x_b \sin\alpha_j, \; x_b \cos\alpha_j + x_a \sin\alpha_j) \cdot A

    where A is the rule's attention factor. Coordinates outside the rotated slice pass unchanged.
    Specs are hashable and compare by value. Change one with :meth:`replace`, which derives the
    fields left to their defaults anew; ``dataclasses.replace`` would keep their old values.

    Raises:
        ConfigError: A field is out of range or contradicts another; the message names it.

    References:
        Su et al., 2021, arXiv:2104.09864, equations 14, 15 and 34.

    Example:
        >>> spec = RopeSpec(head_dim=4, layout="interleaved", theta=100.0)
        >>> spec.inv_freq()
        array([1. , 0.1])
    """

    head_dim: int
    """Width D of the vectors, greater than 0."""
    layout: PairLayout
    """Which input coordinates form a pair; no default, since no convention is safe to assume."""
    _: KW_ONLY
    theta: float = 10_000.0
    """Base of the frequency ladder, greater than 1."""
    rotary_dim: int = None  # type: ignore[assignment]  # an int once constructed
    """Width r of the rotated slice, even and at most head_dim; None means head_dim."""
    rotary_offset: int = 0
    """First coordinate of the rotated slice."""
    output_layout: PairLayout = None  # type: ignore[assignment]  # a layout once constructed
    """Where the rotated pair is written; None means layout."""
    frequency_dim: int = None  # type: ignore[assignment]  # an int once constructed
    """d in theta^(-2j/d), greater than 0; None means rotary_dim."""
    scaling: ScalingRule | None = None
    """Rule that changes the ladder; None leaves it as it is."""
    axes: tuple[tuple[int, int], ...] | None = None
    """(axis, rung) of every pair, length rotary_dim / 2; None means axis 0, rung j."""
    blocks: tuple[RopeSpec, ...] = ()
    """Independent rotations of disjoint slices of the same head; then this spec's own is unused."""
    position_scale: float = 1.0
    """Multiplies the shifted position, not 0."""
    position_offset: float = 0.0
    """Added to the position before it is scaled."""
    direction: Literal[1, -1] = 1
    """Sign of the angle."""
    angle_dtype: Literal["float64", "float32"] = "float64"
    """Arithmetic of position times frequency; float32 reproduces models trained that way."""

    def __post_init__(self) -> None:
        resolve(self)

    @classmethod
    def from_config(cls, x: object) -> RopeSpec:
        """Return the rotation that a model config means, in every shape found in the wild.

        Read are ``rope_theta`` with ``rope_scaling`` (transformers 4), flat and nested
        ``rope_parameters`` (transformers 5), legacy keys, composites (their language model) and
        GGUF headers. A missing base is the documented default of that model_type.

        Args:
            x: A dictionary; the path of a config.json, of a model folder or of a GGUF file; or an
                object with ``to_dict()``, such as a ``PretrainedConfig``.

        Raises:
            ConfigError: The model_type is unknown or no rotation, an entry contradicts another or
                has no meaning, or the model has more than one rotation.

        Warns:
            RopeConfigWarning: An entry is stored and ignored, or a stand-in is taken.

        Example:
            >>> config = {"model_type": "phi", "hidden_size": 256, "num_attention_heads": 4}
            >>> spec = RopeSpec.from_config(config)
            >>> spec.layout, spec.rotary_dim, spec.head_dim
            ('half', 32, 64)
        """
        from ropewalk.spec.layers import spec_from_config

        return spec_from_config(x)

    @classmethod
    def per_layer_type(cls, x: object) -> dict[str, RopeSpec | None]:
        """Return the rotation of every layer type of a model; None for one that does not turn.

        Args:
            x: As in :meth:`from_config`.

        Raises:
            ConfigError: As in :meth:`from_config`, but several rotations are welcome.

        Example:
            >>> config = {"model_type": "gemma3_text", "head_dim": 256}
            >>> {kind: s.theta for kind, s in RopeSpec.per_layer_type(config).items()}
            {'full_attention': 1000000.0, 'sliding_attention': 10000.0}
        """
        from ropewalk.spec.layers import per_layer_type

        return per_layer_type(x)

    def inv_freq(self, seq_len: int | Rows | None = None) -> NDArray[np.float64]:
        """Return the frequency of every pair, after scaling.

        Args:
            seq_len: Length of the row (its largest position + 1), or one length per row, for
                rules that depend on it; others give the same answer for every length.

        Returns:
            Radians per position, shape ``(rotary_dim / 2,)`` or ``(rows, rotary_dim / 2)``,
            float64, in the order of the pairs (with blocks: theirs, one after the other).

        Raises:
            ConfigError: ``seq_len`` is not a positive integer, or missing where the rule needs
                it; or a frequency is not finite.

        Example:
            >>> RopeSpec(4, "half", theta=100.0).inv_freq()
            array([1. , 0.1])
        """
        lengths = None if seq_len is None else checks.lengths("seq_len", seq_len)
        if isinstance(lengths, tuple):
            rows = [self.inv_freq(length) for length in lengths]
            return np.array(rows, dtype=np.float64).reshape(len(rows), self.n_pairs)
        if self.blocks:
            return np.concatenate([block.inv_freq(lengths) for block in self.blocks])
        ladder = self.ladder
        if self.scaling is None:
            scaled = ladder.inv_freq()
        else:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                scaled = self.scaling.inv_freq(ladder, lengths)
            if not np.isfinite(scaled).all():
                rule = checks.abridged(self.scaling)
                raise ConfigError(f"scaling must keep frequencies finite; got {rule}")
        return scaled if self.axes is None else scaled[[rung for _, rung in self.axes]]

    def wavelengths(self, seq_len: int | Rows | None = None) -> NDArray[np.float64]:
        """Return the positions each pair needs for a full turn, in the shape of :meth:`inv_freq`.

        Args:
            seq_len: As in :meth:`inv_freq`.

        Example:
            >>> RopeSpec(2, "half", position_scale=0.5).wavelengths().round(2)
            array([12.57])
        """
        scale = [np.full(b.n_pairs, b.position_scale) for b in self.parts]
        return spectrum.wavelengths(self.inv_freq(seq_len) * np.concatenate(scale))

    @overload
    def attention_factor(self, seq_len: int | None = None) -> float: ...
    @overload
    def attention_factor(self, seq_len: Rows) -> NDArray[np.float64]: ...
    def attention_factor(self, seq_len: int | Rows | None = None) -> float | NDArray[np.float64]:
        """Return the factor A that multiplies cos and sin (so scores get its square).

        The factor on the softmax scale is another number: ``scaling.softmax_scale_factor()``.

        Args:
            seq_len: As in :meth:`inv_freq`.

        Returns:
            A float, or an array ``(rows,)`` where there is one length per row.

        Raises:
            ConfigError: The blocks of this spec have different factors, or the rule has none
                (xPos); or as in :meth:`inv_freq`.

        Example:
            >>> RopeSpec(4, "half").attention_factor()
            1.0
        """
        lengths = None if seq_len is None else checks.lengths("seq_len", seq_len)
        if isinstance(lengths, tuple):
            return np.array([self.attention_factor(n) for n in lengths], dtype=np.float64)
        if self.blocks:
            factors = {block.attention_factor(lengths) for block in self.blocks}
            if len(factors) > 1:
                raise ConfigError(
                    "attention_factor must be the same in all blocks to be one number; "
                    f"got {sorted(factors)}; read the column amplitude of pairs()"
                )
            return factors.pop()
        return self.scaling.amplitude(lengths) if self.scaling else 1.0

    def log_gain(self) -> NDArray[np.float64] | None:
        """Return how fast a query grows with its position, or None where it does not.

        Only xPos has such a gain; see :meth:`ScalingRule.log_gain`.

        Returns:
            Natural logarithm per scaled position, shape ``(rotary_dim / 2,)``, float64. Keys
            shrink by as much.

        Raises:
            ConfigError: This spec has blocks; ask them.
        """
        if self.blocks:
            raise ConfigError("log_gain is a property of single blocks; got a spec with blocks")
        gain = None if self.scaling is None else self.scaling.log_gain(self.ladder)
        return gain if gain is None or self.axes is None else gain[[rung for _, rung in self.axes]]

    @property
    def has_roles(self) -> bool:
        """Whether queries and keys are rotated with different tables (xPos)."""
        if self.blocks:
            return any(block.has_roles for block in self.blocks)
        return self.scaling is not None and self.scaling.has_roles

    @property
    def depends_on_length(self) -> bool:
        """Whether ``seq_len`` must be given, since the rule depends on it."""
        if self.blocks:
            return any(block.depends_on_length for block in self.blocks)
        return self.scaling is not None and self.scaling.depends_on_length

    def pairs(self, seq_len: int | None = None) -> np.recarray[Any, Any]:
        """Return the normal form: one row for every rotated pair.

        Row j says that coordinates ``(in_a, in_b)``, turned by the angle
        ``sign * p'[axis] * inv_freq`` and multiplied by ``amplitude``, go to ``(out_a, out_b)``.

        Args:
            seq_len: One length, as in :meth:`inv_freq`.

        Returns:
            A record array of shape ``(rotary_dim / 2,)`` with the columns in_a, in_b, out_a,
            out_b, axis (int64), inv_freq (float64, radians per scaled position), sign (int64) and
            amplitude (float64).

        Raises:
            ConfigError: The amplitude depends on the position (xPos); or as in :meth:`inv_freq`.

        Example:
            >>> spec = RopeSpec(6, "half", rotary_dim=4, rotary_offset=2)
            >>> [(int(p.in_a), int(p.in_b)) for p in spec.pairs()]
            [(2, 4), (3, 5)]
        """
        if seq_len is not None:
            seq_len = checks.length("seq_len", seq_len)
        if self.blocks:
            return np.concatenate([b.pairs(seq_len) for b in self.blocks]).view(np.recarray)
        rows = np.recarray((self.n_pairs,), dtype=PAIR_DTYPE)
        rows.in_a, rows.in_b = pair_members(self.rotary_dim, self.layout, self.rotary_offset)
        rows.out_a, rows.out_b = pair_members(
            self.rotary_dim, self.output_layout, self.rotary_offset
        )
        rows.axis = 0 if self.axes is None else [axis for axis, _ in self.axes]
        rows.inv_freq = self.inv_freq(seq_len)
        rows.sign = self.direction
        rows.amplitude = self.attention_factor(seq_len)
        return rows

    @property
    def parts(self) -> tuple[RopeSpec, ...]:
        """The independent rotations of a head: the blocks, or this one alone."""
        return self.blocks or (self,)

    @property
    def n_pairs(self) -> int:
        """Number of rotated pairs, over all blocks."""
        if self.blocks:
            return sum(block.n_pairs for block in self.blocks)
        return self.rotary_dim // 2

    @property
    def n_axes(self) -> int:
        """How many position axes the rotation reads: 1 for text."""
        if self.blocks:
            return max(block.n_axes for block in self.blocks)
        return 1 if self.axes is None else 1 + max(axis for axis, _ in self.axes)

    @property
    def ladder(self) -> Ladder:
        """The frequencies before scaling."""
        rungs = self.n_pairs if self.axes is None else 1 + max(rung for _, rung in self.axes)
        return Ladder(self.theta, self.frequency_dim, rungs)

    def replace(self, **changes: Any) -> RopeSpec:
        """Return this spec with some fields changed; fields at their default follow along.

        Args:
            **changes: New values by field name.

        Raises:
            ConfigError: The changed spec is not valid.

        Example:
            >>> RopeSpec(64, "half").replace(head_dim=128).rotary_dim
            128
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.frequency_dim == self.rotary_dim:
            values["frequency_dim"] = None
        if self.rotary_dim == self.head_dim:
            values["rotary_dim"] = None
        if self.output_layout == self.layout:
            values["output_layout"] = None
        unknown = sorted(set(changes) - set(values))
        if unknown:
            raise ConfigError(f"RopeSpec has no field {unknown[0]!r}; fields: {', '.join(values)}")
        return RopeSpec(**(values | changes))

    def extend(
        self,
        *,
        to: int,
        method: str = "yarn",
        original_max_position_embeddings: int | None = None,
    ) -> RopeSpec:
        """Return this rotation stretched to rows of ``to`` positions.

        Args:
            to: Longest row to be read, in positions.
            method: "linear", "ntk", "dynamic", "yarn" or "llama3".
            original_max_position_embeddings: Trained length, in positions. Only where the rule
                of this spec already holds it may it be left out.

        Raises:
            ConfigError: The trained length is missing or contradicts the rule, ``to`` is below
                it, or another method is at work already.

        Example:
            >>> spec = RopeSpec(64, "half").extend(to=8192, original_max_position_embeddings=2048)
            >>> spec.scaling.factor, round(spec.attention_factor(), 4)
            (4.0, 1.1386)
        """
        from ropewalk.spec.extend import extended

        return extended(
            self,
            to=to,
            method=method,
            original_max_position_embeddings=original_max_position_embeddings,
        )

    def to_rope_parameters(self) -> dict[str, Any]:
        """Return the ``rope_parameters`` dictionary of transformers 5 for this rotation.

        Raises:
            ConfigError: The dictionary has no word for a field of this spec.

        Example:
            >>> RopeSpec(64, "half", theta=5e5).to_rope_parameters()
            {'rope_type': 'default', 'rope_theta': 500000.0}
        """
        from ropewalk.spec.parameters import rope_parameters_from_spec

        return rope_parameters_from_spec(self)
