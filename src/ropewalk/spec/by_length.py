"""Rules whose frequencies depend on the length of the row: dynamic NTK and LongRoPE."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.scaling import NTK, ScalingRule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ropewalk.spec.spectrum import Ladder


@dataclass(frozen=True)
class DynamicNTK(ScalingRule):
    r"""NTK-aware change of base that grows with the row beyond the trained length L.

    .. math:: \theta'(n) = \theta \, (1 + s \, (n / L - 1))^{d / (d - 2)}, \qquad n > L

    for a row of n positions; rows of up to L positions are not changed. The factor is no ratio of
    lengths: with s = 1 the slowest pair is divided by n / L exactly, with s = 4 at n = 4 L by 13.

    ``DynamicNTK(alpha=a)`` is the static form that Hunyuan checkpoints call dynamic: the rule
    :class:`~ropewalk.NTK` with the factor a, for rows of every length.

    Keys cached at one length do not fit queries of another (huggingface/transformers#25104): pass
    the length that the row will reach, or move the cache with ``RotaryEmbedding.shift``.

    References:
        emozilla, 2023, "Dynamically Scaled RoPE"; Peng et al., 2023, arXiv:2309.00071,
        section 3.3.

    Example:
        >>> from ropewalk import RopeSpec
        >>> spec = RopeSpec(4, "half", theta=100.0, scaling=DynamicNTK(1.0, 64))
        >>> spec.inv_freq([64, 128])
        array([[1.  , 0.1 ],
               [1.  , 0.05]])
    """

    factor: float | None = None
    """s, greater than 0."""
    original_max_position_embeddings: int | None = None
    """Trained length L, in positions; transformers reads max_position_embeddings here."""
    _: KW_ONLY
    alpha: float | None = None
    """Factor of the static form, greater than 0; excludes the other two."""

    def __post_init__(self) -> None:
        given = (self.factor is not None, self.original_max_position_embeddings is not None)
        if self.alpha is not None and not any(given):
            self._set(alpha=checks.real("alpha", self.alpha, above=0.0))
        elif self.alpha is None and all(given):
            length = self.original_max_position_embeddings
            self._set(
                factor=checks.real("factor", self.factor, above=0.0),
                original_max_position_embeddings=checks.length(
                    "original_max_position_embeddings", length
                ),
            )
        else:
            raise ConfigError(
                "DynamicNTK needs factor and original_max_position_embeddings, or alpha alone; "
                f"got factor={checks.abridged(self.factor)}, original_max_position_embeddings="
                f"{checks.abridged(self.original_max_position_embeddings)}, "
                f"alpha={checks.abridged(self.alpha)}"
            )

    @property
    def depends_on_length(self) -> bool:
        """False for the static form."""
        return self.alpha is None

    def ntk_factor(self, seq_len: int | None) -> float:
        """Return how much slower the slowest pair turns in a row of that length.

        Args:
            seq_len: Length of the row, in positions.

        Raises:
            ConfigError: No length is given, and the rule is not static.

        Example:
            >>> DynamicNTK(4.0, 4096).ntk_factor(4 * 4096)
            13.0
        """
        if self.alpha is not None:
            return self.alpha
        assert self.factor is not None
        assert self.original_max_position_embeddings is not None
        trained = self.original_max_position_embeddings
        return 1.0 + self.factor * max(self._length(seq_len) / trained - 1.0, 0.0)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:
        """Return the ladder on the base for that length; see :class:`ScalingRule`."""
        return NTK(self.ntk_factor(seq_len)).inv_freq(ladder, None)

    def check(self, ladder: Ladder) -> None:
        """Refuse what :class:`~ropewalk.NTK` refuses.

        Args:
            ladder: The frequencies before scaling.

        Raises:
            ConfigError: Fewer than two rungs, or the base is too large for a float.
        """
        NTK(self.alpha or 1.0).check(ladder)


@dataclass(frozen=True)
class LongRope(ScalingRule):
    r"""LongRoPE: every pair divided by its own searched factor, from one of two lists.

    .. math:: \omega'_j = \omega_j / \lambda_j, \qquad \lambda = \text{short\_factor if }
              n \le L \text{, else long\_factor}

    for a row of n positions and the trained length L. The factor on cos and sin is
    ``attention_factor`` where given, else :math:`\sqrt{1 + \ln s / \ln L}` for s > 1, else 1; or,
    where ``short_mscale`` and ``long_mscale`` are given, the one that goes with the list.

    Keys cached with one list do not fit queries of the other (huggingface/transformers#33129):
    pass the length that the row will reach, or move the cache with ``RotaryEmbedding.shift``.

    References:
        Ding et al., 2024, arXiv:2402.13753.

    Example:
        >>> from ropewalk import RopeSpec
        >>> rule = LongRope((1.0, 1.0), (1.0, 4.0), 64, factor=8.0)
        >>> RopeSpec(4, "half", theta=100.0, scaling=rule).inv_freq([64, 65])
        array([[1.   , 0.1  ],
               [1.   , 0.025]])
    """

    short_factor: tuple[float, ...]
    """Divisor of every pair in rows of up to L positions, greater than 0."""
    long_factor: tuple[float, ...]
    """Divisor of every pair in longer rows, greater than 0."""
    original_max_position_embeddings: int
    """Trained length L, in positions."""
    factor: float | None = None
    """New length / trained length, s, greater than 0; used for the attention factor alone."""
    attention_factor: float | None = None
    """Factor on cos and sin, instead of the formula; greater than 0."""
    _: KW_ONLY
    short_mscale: float | None = None
    """Factor on cos and sin with the short list, as Phi-3.5-MoE has; with long_mscale."""
    long_mscale: float | None = None
    """Factor on cos and sin with the long list."""

    def __post_init__(self) -> None:
        self._set(
            short_factor=checks.reals("short_factor", self.short_factor, above=0.0),
            long_factor=checks.reals("long_factor", self.long_factor, above=0.0),
            original_max_position_embeddings=checks.length(
                "original_max_position_embeddings", self.original_max_position_embeddings
            ),
        )
        for name in ("factor", "attention_factor", "short_mscale", "long_mscale"):
            if getattr(self, name) is not None:
                self._set(**{name: checks.real(name, getattr(self, name), above=0.0)})
        if len(self.short_factor) != len(self.long_factor):
            raise ConfigError(
                "short_factor and long_factor must have one entry per pair each; got "
                f"{len(self.short_factor)} and {len(self.long_factor)} entries"
            )
        if (self.short_mscale is None) != (self.long_mscale is None):
            raise ConfigError(
                "short_mscale and long_mscale must be given together; got "
                f"short_mscale={self.short_mscale!r}, long_mscale={self.long_mscale!r}"
            )
        self._check_amplitude()

    @property
    def depends_on_length(self) -> bool:
        """False where both lists say the same."""
        return self.short_factor != self.long_factor or self.short_mscale != self.long_mscale

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:
        """Return the ladder divided by the list for that length; see :class:`ScalingRule`."""
        same = self.short_factor == self.long_factor
        divisors = self.short_factor if same or not self._is_long(seq_len) else self.long_factor
        return ladder.inv_freq() / np.array(divisors, dtype=np.float64)

    def amplitude(self, seq_len: int | None) -> float:
        """Return the attention factor; see :class:`ScalingRule`."""
        if self.short_mscale is not None and self.long_mscale is not None:
            same = self.short_mscale == self.long_mscale
            short = same or not self._is_long(seq_len)
            return self.short_mscale if short else self.long_mscale
        if self.attention_factor is not None:
            return self.attention_factor
        assert self.factor is not None
        if self.factor <= 1.0:
            return 1.0
        ratio = math.log(self.factor) / math.log(self.original_max_position_embeddings)
        return math.sqrt(1.0 + ratio)

    def check(self, ladder: Ladder) -> None:
        """Refuse lists that do not have one entry per pair.

        Args:
            ladder: The frequencies before scaling.

        Raises:
            ConfigError: The number of entries differs from the number of rungs.
        """
        if len(self.short_factor) != ladder.rungs:
            raise ConfigError(
                f"short_factor and long_factor must have one entry for each of the {ladder.rungs} "
                f"pairs; got {len(self.short_factor)}"
            )

    def _is_long(self, seq_len: int | None) -> bool:
        return self._length(seq_len) > self.original_max_position_embeddings

    def _check_amplitude(self) -> None:
        """Refuse a rule whose attention factor is given twice, or cannot be computed."""
        given = [n for n in ("attention_factor", "short_mscale") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ConfigError(
                "attention_factor must not be given beside short_mscale and long_mscale, which "
                f"say the same; got attention_factor={self.attention_factor!r}"
            )
        if given:
            return
        if self.factor is None:
            raise ConfigError(
                "LongRope needs factor or attention_factor; got neither; factor is "
                "max_position_embeddings / original_max_position_embeddings"
            )
        if self.factor > 1.0 and self.original_max_position_embeddings == 1:
            raise ConfigError(
                "original_max_position_embeddings must be at least 2 for the attention factor "
                "of LongRope; got 1"
            )
