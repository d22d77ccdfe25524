"""Rules that treat fast and slow pairs differently: NTK-by-parts (Llama 3) and YaRN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.scaling import ScalingRule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ropewalk.spec.spectrum import Ladder


@dataclass(frozen=True)
class Llama3(ScalingRule):
    r"""NTK-by-parts: pairs with many turns in the trained length stay, those with few are slowed.

    With :math:`r_j = L \omega_j / 2\pi` turns in the trained length L,

    .. math:: g_j = \min(\max(\frac{r_j - \alpha}{\beta - \alpha}, 0), 1), \qquad
              \omega'_j = (1 - g_j) \, \omega_j / s + g_j \, \omega_j

    where :math:`\alpha` is ``low_freq_factor`` and :math:`\beta` is ``high_freq_factor``. The
    paper suggests 1 and 32 for Llama; Llama 3.1 was trained with 1 and 4.

    References:
        Peng et al., 2023, arXiv:2309.00071, definition 2; Llama 3, 2024, arXiv:2407.21783.

    Example:
        >>> from ropewalk import RopeSpec
        >>> rule = Llama3(factor=8.0, original_max_position_embeddings=100)
        >>> RopeSpec(4, "half", theta=100.0, scaling=rule).inv_freq().round(4)
        array([1.    , 0.0298])
    """

    factor: float
    """New length / trained length, s, greater than 0."""
    original_max_position_embeddings: int
    """Trained length L, in positions."""
    low_freq_factor: float = 1.0
    """Pairs with at most this many turns are divided by the factor."""
    high_freq_factor: float = 4.0
    """Pairs with at least this many turns stay as they are."""

    def __post_init__(self) -> None:
        name = "original_max_position_embeddings"
        low = checks.real("low_freq_factor", self.low_freq_factor, at_least=0.0)
        high = checks.real("high_freq_factor", self.high_freq_factor, above=0.0)
        if high <= low:
            raise ConfigError(
                "high_freq_factor must be greater than low_freq_factor; "
                f"got high_freq_factor={high!r}, low_freq_factor={low!r}"
            )
        self._set(
            factor=checks.real("factor", self.factor, above=0.0),
            original_max_position_embeddings=checks.length(
                name, self.original_max_position_embeddings
            ),
            low_freq_factor=low,
            high_freq_factor=high,
        )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the ladder blended by turns; see :class:`ScalingRule`."""
        plain = ladder.inv_freq()
        turns = self.original_max_position_embeddings / (2.0 * np.pi) * plain
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return _blend(plain, self.factor, np.clip(kept, 0.0, 1.0))


@dataclass(frozen=True)
class Yarn(ScalingRule):
    r"""YaRN: NTK-by-parts with a ramp over pairs, and a factor on cos and sin.

    The pair that makes R turns in the trained length L has the index

    .. math:: c(R) = \frac{d \ln(L / 2\pi R)}{2 \ln\theta}

    and with :math:`\text{low} = \lfloor c(\beta_{fast}) \rfloor`,
    :math:`\text{high} = \lceil c(\beta_{slow}) \rceil`, clamped to 0 and d - 1,

    .. math:: h_j = \min(\max(\frac{j - \text{low}}{\text{high} - \text{low}}, 0), 1), \qquad
              \omega'_j = h_j \, \omega_j / s + (1 - h_j) \, \omega_j

    That is the form of the authors' code and of every engine. ``ramp="paper"`` is the form of the
    paper, linear in turns as :class:`Llama3`; the two differ by up to a factor of three on one
    pair, and models are trained with the first.

    The factor on cos and sin is ``attention_factor`` where given, else

    .. math:: \frac{m(s, \text{mscale})}{m(s, \text{mscale\_all\_dim})}, \qquad
              m(s, k) = 0.1 \, k \ln s + 1 \text{ for } s > 1, \text{ else } 1

    with mscale 1 and mscale_all_dim 0 where not given.

    References:
        Peng et al., 2023, arXiv:2309.00071, section 3; DeepSeek-V3, 2024, arXiv:2412.19437, for
        mscale and mscale_all_dim.

    Example:
        >>> rule = Yarn(factor=40.0, original_max_position_embeddings=4096)
        >>> round(rule.amplitude(None), 5)
        1.36889
    """

    factor: float
    """New length / trained length, s, greater than 0."""
    original_max_position_embeddings: int
    """Trained length L, in positions; with :attr:`factor`, not the new length."""
    beta_fast: float = 32.0
    """Pairs with more turns than this in the trained length stay as they are."""
    beta_slow: float = 1.0
    """Pairs with fewer turns than this are divided by the factor."""
    mscale: float | None = None
    """k in the numerator of the attention factor; at least 0."""
    mscale_all_dim: float | None = None
    """k in its denominator, and in the factor on the softmax scale; at least 0."""
    attention_factor: float | None = None
    """Factor on cos and sin, instead of the formula; greater than 0."""
    truncate: bool = True
    """Whether low and high are rounded to whole pairs; gpt-oss is trained without."""
    ramp: Literal["code", "paper"] = "code"
    """Linear in the index of the pair, or in its turns."""

    def __post_init__(self) -> None:
        fast = checks.real("beta_fast", self.beta_fast, above=0.0)
        slow = checks.real("beta_slow", self.beta_slow, above=0.0)
        if fast <= slow:
            raise ConfigError(
                "beta_fast must be greater than beta_slow, since fast pairs make more turns; "
                f"got beta_fast={fast!r}, beta_slow={slow!r}"
            )
        checks.choice("ramp", self.ramp, ("code", "paper"))
        self._set(
            factor=checks.real("factor", self.factor, above=0.0),
            original_max_position_embeddings=checks.length(
                "original_max_position_embeddings", self.original_max_position_embeddings
            ),
            beta_fast=fast,
            beta_slow=slow,
            truncate=checks.boolean("truncate", self.truncate),
        )
        for name in ("mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                self._set(**{name: checks.real(name, getattr(self, name), at_least=0.0)})
        if self.attention_factor is not None:
            factor = checks.real("attention_factor", self.attention_factor, above=0.0)
            self._set(attention_factor=factor)
        if not math.isfinite(self.amplitude(None) * self.softmax_scale_factor()):
            raise ConfigError(
                "mscale and mscale_all_dim must leave the attention factor finite; "
                f"got mscale={self.mscale!r}, mscale_all_dim={self.mscale_all_dim!r}"
            )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the ladder blended along the ramp; see :class:`ScalingRule`."""
        plain = ladder.inv_freq()
        if self.ramp == "paper":
            turns = self.original_max_position_embeddings / (2.0 * np.pi) * plain
            kept = (turns - self.beta_slow) / (self.beta_fast - self.beta_slow)
        else:
            low, high = self.correction_range(ladder)
            kept = (high - np.arange(ladder.rungs, dtype=np.float64)) / (high - low)
        return _blend(plain, self.factor, np.clip(kept, 0.0, 1.0))

    def correction_range(self, ladder: Ladder) -> tuple[float, float]:
        """Return the pairs between which the ramp of the code form runs.

        Args:
            ladder: The frequencies before scaling.

        Returns:
            ``(low, high)``, indices of pairs with low < high: up to low nothing changes, from
            high on everything is divided by the factor.

        Example:
            >>> from ropewalk import RopeSpec
            >>> rule = Yarn(factor=4.0, original_max_position_embeddings=32768)
            >>> rule.correction_range(RopeSpec(128, "half", theta=1e6).ladder)
            (23.0, 40.0)
        """
        per_turn = ladder.frequency_dim / (2.0 * math.log(ladder.theta))
        longest = math.log(self.original_max_position_embeddings / (2.0 * math.pi))
        low, high = (
            per_turn * (longest - math.log(turns)) for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = float(math.floor(low)), float(math.ceil(high))
        low, high = max(low, 0.0), min(high, ladder.frequency_dim - 1.0)
        # A step where the clamps leave no room. Engines do this for low == high only; beyond,
        # theirs runs backwards.
        return (low, high) if low < high else (low, low + 0.001)

    def amplitude(self, seq_len: int | None) -> float:  # noqa: ARG002
        """Return the attention factor; see :class:`ScalingRule`."""
        if self.attention_factor is not None:
            return self.attention_factor
        mscale = 1.0 if self.mscale is None else self.mscale
        return mscale_of(self.factor, mscale) / mscale_of(self.factor, self.mscale_all_dim or 0.0)

    def softmax_scale_factor(self) -> float:
        r"""Return what models of the DeepSeek family multiply scores by.

        .. math:: m(s, \text{mscale\_all\_dim})^2

        References:
            huggingface/transformers#47435.

        Example:
            >>> rule = Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
            >>> rule.amplitude(None), round(rule.softmax_scale_factor(), 4)
            (1.0, 1.8739)
        """
        m = mscale_of(self.factor, self.mscale_all_dim or 0.0)
        return m * m


def mscale_of(factor: float, k: float) -> float:
    r"""Return m(s, k) of YaRN, of which its factors on cos and sin and on scores are made.

    .. math:: m(s, k) = 0.1 \, k \ln s + 1 \text{ for } s > 1, \text{ else } 1

    Args:
        factor: New length / trained length, s.
        k: ``mscale``, ``mscale_all_dim`` or 1.

    References:
        Peng et al., 2023, arXiv:2309.00071, section 3.4, has k = 1; DeepSeek-V2 the other ones.

    Example:
        >>> round(mscale_of(4.0, 1.0), 7)
        1.1386294
    """
    return 0.1 * k * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _blend(
    plain: NDArray[np.float64], factor: float, kept: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return frequencies of which the fraction ``kept`` stays and the rest is divided."""
    return plain / factor * (1.0 - kept) + plain * kept
