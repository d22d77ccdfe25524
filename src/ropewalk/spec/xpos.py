"""xPos: a rotation whose pairs also grow or shrink with the position, by a fixed rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.errors import ConfigError
from ropewalk.spec import checks
from ropewalk.spec.scaling import ScalingRule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ropewalk.spec.spectrum import Ladder


@dataclass(frozen=True)
class XPos(ScalingRule):
    r"""xPos: scores decay with the distance, and more so for fast pairs.

    .. math:: \zeta_j = \frac{2j/d + \gamma}{1 + \gamma}, \qquad
              q \mapsto \zeta_j^{p/B} R_p \, q, \qquad k \mapsto \zeta_j^{-p/B} R_p \, k

    so that the score of a query at m and a key at n has the factor
    :math:`\zeta_j^{(m-n)/B}`: causal attention alone. The exponent is the absolute position;
    other libraries subtract a centre that moves with the length of the call, and then cached keys
    no longer fit (lucidrains/rotary-embedding-torch#27, lucidrains/x-transformers#226). A fixed
    centre is ``position_offset`` of the spec.

    Queries and keys have tables of their own, so their role must be named, and ``pairs()`` has no
    amplitude to give. The factors leave the range of float32 at ``|p|`` = 36,000 for the default
    settings and that of float16 vectors at 4,500; a centre doubles both. ``scale_base`` widens
    them in proportion.

    References:
        Sun et al., 2022, arXiv:2212.10554, section 3.

    Example:
        >>> from ropewalk import RopeSpec
        >>> spec = RopeSpec(4, "half", scaling=XPos(scale_base=1.0, gamma=1.0))
        >>> np.exp(spec.log_gain())
        array([0.5 , 0.75])
    """

    scale_base: float = 512.0
    """B, the distance at which pair j has decayed to its zeta, in positions; greater than 0."""
    gamma: float = 0.4
    """How much the fastest pair keeps, greater than 0."""

    def __post_init__(self) -> None:
        self._set(
            scale_base=checks.real("scale_base", self.scale_base, above=0.0),
            gamma=checks.real("gamma", self.gamma, above=0.0),
        )

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the ladder as it is; see :class:`ScalingRule`."""
        return ladder.inv_freq()

    def log_gain(self, ladder: Ladder) -> NDArray[np.float64]:
        """Return ln(zeta) / B of every pair; see :class:`ScalingRule`."""
        fraction = np.arange(ladder.rungs) * (2.0 / ladder.frequency_dim)
        log_zeta: NDArray[np.float64] = np.log((fraction + self.gamma) / (1.0 + self.gamma))
        return log_zeta / self.scale_base

    def amplitude(self, seq_len: int | None) -> float:
        """Refuse to name one number, since there is one per role, position and pair.

        Args:
            seq_len: Not used.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "scaling=XPos has no attention factor and no pairs(), since its amplitude depends on "
            f"the position and the role; got seq_len={seq_len!r}; read log_gain()"
        )
