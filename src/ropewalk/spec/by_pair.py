"""Rules that say something about single pairs: custom divisors, stopped pairs, whole turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.scaling import ScalingRule
from ropewalk.spec.spectrum import wavelengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ropewalk.spec.spectrum import Ladder


@dataclass(frozen=True)
class CustomFactors(ScalingRule):
    r"""Every pair divided by its own factor: the form that carries any static rule.

    .. math:: \omega'_j = \omega_j / \lambda_j

    An infinite factor stops its pair. GGUF files hold such a list as the tensor
    ``rope_freqs.weight`` (ggml-org/llama.cpp#8676); transformers reads one as ``longrope`` with
    two equal lists.

    Example:
        >>> from ropewalk import RopeSpec
        >>> spec = RopeSpec(4, "half", theta=100.0, scaling=CustomFactors((1.0, 4.0)))
        >>> spec.inv_freq()
        array([1.   , 0.025])
    """

    factors: tuple[float, ...]
    """Divisor of every pair, greater than 0; may be infinite."""
    attention_factor: float = 1.0
    """Factor on cos and sin, greater than 0."""

    def __post_init__(self) -> None:
        factor = checks.real("attention_factor", self.attention_factor, above=0.0)
        factors = checks.reals("factors", self.factors, above=0.0, infinite=True)
        self._set(factors=factors, attention_factor=factor)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the ladder divided pair by pair; see :class:`ScalingRule`."""
        return ladder.inv_freq() / np.array(self.factors, dtype=np.float64)

    def amplitude(self, seq_len: int | None) -> float:  # noqa: ARG002
        """Return the attention factor; see :class:`ScalingRule`."""
        return self.attention_factor

    def check(self, ladder: Ladder) -> None:
        """Refuse a list that does not have one entry per pair.

        Args:
            ladder: The frequencies before scaling.

        Raises:
            ConfigError: The number of entries differs from the number of rungs.
        """
        if len(self.factors) != ladder.rungs:
            raise ConfigError(
                f"factors must have one entry for each of the {ladder.rungs} pairs; "
                f"got {len(self.factors)}"
            )


@dataclass(frozen=True)
class Proportional(ScalingRule):
    r"""Only the fastest pairs of the full head turn; all are divided by the factor.

    .. math:: \omega'_j = \omega_j / s \text{ for } j < \lfloor p \, n \rfloor
              \text{, else } 0

    for n pairs. Unlike a smaller ``rotary_dim``, the exponents and the pairing remain those of
    the whole head: in the layout "half" pair j is (j, j + D/2), and the pairs that stand still
    keep their rows in the table with a frequency of 0.

    References:
        The rope_type "proportional" of transformers (Gemma 4); Barbero et al., 2024,
        arXiv:2410.06205.

    Example:
        >>> from ropewalk import RopeSpec
        >>> RopeSpec(8, "half", theta=16.0, scaling=Proportional(0.5)).inv_freq()
        array([1. , 0.5, 0. , 0. ])
    """

    partial_rotary_factor: float
    """Fraction p of the pairs that turn, 0 to 1."""
    factor: float = 1.0
    """s, greater than 0."""

    def __post_init__(self) -> None:
        self._set(
            partial_rotary_factor=_fraction("partial_rotary_factor", self.partial_rotary_factor),
            factor=checks.real("factor", self.factor, above=0.0),
        )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the ladder with its slow end at 0; see :class:`ScalingRule`."""
        scaled = ladder.inv_freq() / self.factor
        scaled[int(self.partial_rotary_factor * ladder.rungs) :] = 0.0
        return scaled


@dataclass(frozen=True)
class PRope(ScalingRule):
    r"""p-RoPE: the slowest pairs, which carry meaning rather than position, stand still.

    .. math:: \omega'_j = \omega_j \text{ for } j < \lfloor p \, n \rfloor \text{, else } 0

    p = 1 is the plain ladder and p = 0 no rotation at all. The same function as
    :class:`Proportional` with a factor of 1; models must be trained with it.

    References:
        Barbero et al., 2024, "Round and Round We Go!", arXiv:2410.06205.

    Example:
        >>> from ropewalk import RopeSpec
        >>> RopeSpec(8, "half", theta=16.0, scaling=PRope(0.75)).inv_freq()
        array([1.  , 0.5 , 0.25, 0.  ])
    """

    p: float
    """Fraction of the pairs that turn, 0 to 1."""

    def __post_init__(self) -> None:
        self._set(p=_fraction("p", self.p))

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:
        """Return the ladder with its slow end at 0; see :class:`ScalingRule`."""
        return Proportional(self.p).inv_freq(ladder, seq_len)


@dataclass(frozen=True)
class Resonance(ScalingRule):
    r"""Resonance RoPE: every wavelength rounded to a whole number of positions.

    .. math:: \lambda'_j = \max(1, \operatorname{round}(2\pi / \omega_j)), \qquad
              \omega'_j = 2\pi / \lambda'_j

    Positions beyond the trained length then meet angles that training has seen, for the pairs
    that complete a turn there. The rule comes after another one where ``scaling`` is given, such
    as "Resonance YaRN"; models must be trained with it.

    References:
        Wang et al., 2024, arXiv:2403.00071, section 4.

    Example:
        >>> from ropewalk import RopeSpec
        >>> RopeSpec(4, "half", theta=100.0, scaling=Resonance()).wavelengths()
        array([ 6., 63.])
    """

    scaling: ScalingRule | None = None
    """Rule whose wavelengths are rounded; None: those of the ladder."""

    def __post_init__(self) -> None:
        given: object = self.scaling
        if given is not None and not isinstance(given, ScalingRule):
            raise ConfigError(
                f"scaling must be a rule such as Yarn(...), or None; got {checks.abridged(given)}"
            )
        if isinstance(given, Resonance):
            raise ConfigError("scaling of Resonance must be another rule; got Resonance twice")
        if given is not None and given.has_roles:
            raise ConfigError(
                f"scaling of Resonance must change frequencies alone; got {checks.abridged(given)}"
            )

    @property
    def depends_on_length(self) -> bool:
        """As the rule within."""
        return self.scaling is not None and self.scaling.depends_on_length

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:
        """Return the frequencies of whole wavelengths; see :class:`ScalingRule`."""
        inner = self.scaling
        before = ladder.inv_freq() if inner is None else inner.inv_freq(ladder, seq_len)
        return 2.0 * np.pi / np.maximum(np.round(wavelengths(before)), 1.0)

    def amplitude(self, seq_len: int | None) -> float:
        """Return the factor of the rule within; see :class:`ScalingRule`."""
        return 1.0 if self.scaling is None else self.scaling.amplitude(seq_len)

    def softmax_scale_factor(self) -> float:
        """Return the factor of the rule within; see :class:`ScalingRule`."""
        return 1.0 if self.scaling is None else self.scaling.softmax_scale_factor()

    def check(self, ladder: Ladder) -> None:
        """Refuse what the rule within refuses.

        Args:
            ladder: The frequencies before scaling.

        Raises:
            ConfigError: The ladder does not fit the rule within.
        """
        if self.scaling is not None:
            self.scaling.check(ladder)


def _fraction(name: str, value: object) -> float:
    """Return ``value`` as a float from 0 to 1, or refuse it."""
    number = checks.real(name, value, at_least=0.0)
    if number > 1.0:
        raise ConfigError(f"{name} must be at most 1; got {number!r}")
    return number
