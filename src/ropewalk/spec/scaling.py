"""Rules that change the ladder so that a model can read further than it was trained.

This file has the interface and the rules of one factor; the others are in ``by_parts``,
``by_length``, ``by_pair`` and ``xpos``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.spec import checks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ropewalk.spec.spectrum import Ladder


class ScalingRule(ABC):
    """A pure function from a ladder (and, for some rules, a length) to frequencies.

    A new rule is a frozen dataclass below this class; nothing else needs to know it. Two numbers
    of a rule are never mixed: :meth:`amplitude` multiplies cos and sin, and
    :meth:`softmax_scale_factor` multiplies scores.
    """

    @abstractmethod
    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:
        """Return the scaled frequencies.

        Args:
            ladder: The frequencies before scaling.
            seq_len: Length of the row: its largest position + 1, cached keys included. Rules
                that depend on it refuse None; others ignore it.

        Returns:
            Radians per position, shape ``(ladder.rungs,)``, float64.
        """

    def amplitude(self, seq_len: int | None) -> float:  # noqa: ARG002
        """Return the factor on cos and sin for a row of that length; 1 for a pure rotation."""
        return 1.0

    def softmax_scale_factor(self) -> float:
        """Return the factor on the scores that this rule's models apply beside the tables.

        The tables do not contain it. Whether it is applied is up to the model class: the
        DeepSeek family does, others read the same dictionary without it.
        """
        return 1.0

    def log_gain(self, ladder: Ladder) -> NDArray[np.float64] | None:  # noqa: ARG002
        """Return how fast each pair of a query grows with its position, or None: not at all.

        Args:
            ladder: The frequencies before scaling.

        Returns:
            Natural logarithm of the gain per position, shape ``(ladder.rungs,)``, float64: a
            query at position p is multiplied by exp(p * log_gain), a key divided by it.
        """
        return None

    @property
    def depends_on_length(self) -> bool:
        """Whether ``seq_len`` must be given."""
        return False

    @property
    def has_roles(self) -> bool:
        """Whether queries and keys have different tables, that is, whether there is a gain."""
        return type(self).log_gain is not ScalingRule.log_gain

    @property
    def keeps_norms(self) -> bool:
        """Whether the rule rotates and does nothing else, at every length and position."""
        return type(self).amplitude is ScalingRule.amplitude and not self.has_roles

    def check(self, ladder: Ladder) -> None:  # noqa: B027 (most rules accept every ladder)
        """Refuse a ladder the rule cannot scale.

        Args:
            ladder: The frequencies before scaling.

        Raises:
            ConfigError: The ladder does not fit the rule.
        """

    def _set(self, **values: object) -> None:
        """Store checked values in a frozen rule."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _length(self, seq_len: int | None) -> int:
        """Return the length, which a rule that depends on it does not guess."""
        if seq_len is None:
            raise ConfigError(
                f"seq_len must be given for scaling={type(self).__name__}, which depends on the "
                "length of the row; got None; pass an int, or one per row"
            )
        return seq_len


@dataclass(frozen=True)
class Linear(ScalingRule):
    r"""Position interpolation: every frequency divided by the factor.

    .. math:: \omega'_j = \omega_j / s

    References:
        Chen et al., 2023, arXiv:2306.15595.

    Example:
        >>> from ropewalk import RopeSpec
        >>> RopeSpec(4, "half", theta=100.0, scaling=Linear(2.0)).inv_freq()
        array([0.5 , 0.05])
    """

    factor: float
    """New length / trained length, s, greater than 0."""

    def __post_init__(self) -> None:
        self._set(factor=checks.real("factor", self.factor, above=0.0))

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the ladder divided by the factor; see :class:`ScalingRule`."""
        return ladder.inv_freq() / self.factor


@dataclass(frozen=True)
class NTK(ScalingRule):
    r"""NTK-aware change of base: the fastest pair unchanged, the slowest divided by the factor.

    .. math:: \theta' = \theta \, s^{d / (2(n-1))}

    With the usual ladder, n = d/2, this is the published exponent d / (d - 2).

    References:
        bloc97, 2023, "NTK-Aware Scaled RoPE"; Peng et al., 2023, arXiv:2309.00071, section 3.1.

    Example:
        >>> from ropewalk import RopeSpec
        >>> RopeSpec(4, "half", theta=100.0, scaling=NTK(2.0)).inv_freq()
        array([1.  , 0.05])
    """

    factor: float
    """How much slower the slowest pair turns, s, greater than 0."""

    def __post_init__(self) -> None:
        self._set(factor=checks.real("factor", self.factor, above=0.0))

    def theta(self, ladder: Ladder) -> float:
        """Return the changed base of the ladder.

        Args:
            ladder: The frequencies before scaling; at least two rungs.

        Raises:
            ConfigError: The base is too large for a float.
        """
        exponent = ladder.frequency_dim / (2.0 * (ladder.rungs - 1))
        try:
            return checks.real("theta", ladder.theta * self.factor**exponent, above=0.0)
        except (OverflowError, ConfigError):
            raise ConfigError(
                "factor must leave theta * factor ** (d / (d - 2)) a finite number above 0; "
                f"got factor={self.factor!r}, theta={ladder.theta!r}"
            ) from None

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the ladder on its changed base; see :class:`ScalingRule`."""
        return replace(ladder, theta=self.theta(ladder)).inv_freq()

    def check(self, ladder: Ladder) -> None:
        """Refuse a ladder of one rung, whose only pair is the fastest and the slowest at once.

        Args:
            ladder: The frequencies before scaling.

        Raises:
            ConfigError: Fewer than two rungs, or the base is too large for a float.
        """
        if ladder.rungs < 2:
            raise ConfigError(
                "scaling=NTK needs at least two frequencies (rotary_dim of 4 or more); "
                f"got {ladder.rungs}; use Linear"
            )
        self.theta(ladder)
