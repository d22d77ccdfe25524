"""The ladder of frequencies that every rotation starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Ladder:
    r"""A geometric ladder of angular frequencies, before any scaling rule.

    .. math:: \omega_j = \theta^{-2j/d}, \qquad j = 0, \dots, n - 1

    The paper writes the same ladder as :math:`\theta_i = 10000^{-2(i-1)/d}` with i from 1: there
    theta is the frequency, here it is the base.

    References:
        Su et al., 2021, arXiv:2104.09864, equation 15.

    Example:
        >>> Ladder(theta=100.0, frequency_dim=4, rungs=2).inv_freq()
        array([1. , 0.1])
    """

    theta: float
    """Base of the ladder, greater than 1."""
    frequency_dim: int
    """d in the exponent; the rotated width in ordinary models."""
    rungs: int
    """How many frequencies the ladder has, n."""

    def inv_freq(self) -> NDArray[np.float64]:
        """Return the frequencies, shape ``(rungs,)``, radians per position, descending, float64."""
        exponents = np.arange(self.rungs, dtype=np.float64) * (-2.0 / self.frequency_dim)
        return np.float64(self.theta) ** exponents


def wavelengths(inv_freq: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return how many positions each pair needs for one full turn.

    .. math:: \lambda_j = 2\pi / \omega_j

    Args:
        inv_freq: Radians per position, any shape. A frequency of 0 never turns.

    Returns:
        Positions per turn, same shape, float64; infinity where the frequency is 0.

    Example:
        >>> wavelengths(np.array([np.pi, 0.0]))
        array([ 2., inf])
    """
    with np.errstate(divide="ignore", over="ignore"):
        return 2.0 * np.pi / np.abs(np.asarray(inv_freq, dtype=np.float64))
