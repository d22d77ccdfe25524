"""The ladder of frequencies that every rotation starts from."""

from __future__ import annotations

import math
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


def frequency_ratios(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return how many times faster each pair turns in one rotation than in another.

    .. math:: \omega^a_j / \omega^b_j

    Args:
        a: Radians per position, any shape.
        b: The same of the other rotation.

    Returns:
        Same shape, float64: 1 where both stand still, infinity where b alone does.

    Example:
        >>> frequency_ratios(np.array([1.0, 0.4, 0.0]), np.array([1.0, 0.1, 0.0]))
        array([1., 4., 1.])
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.where(a == b, 1.0, a / b)


def similarity(
    inv_freq: NDArray[np.float64],
    distances: NDArray[np.float64],
    *,
    weights: NDArray[np.float64] | None = None,
    largest_angle: float = math.inf,
) -> NDArray[np.float64]:
    r"""Return the score of equal vectors at a distance, relative to that at distance 0.

    .. math:: B(\Delta) = \frac{\sum_j w_j \cos(\min(|\Delta \omega_j|, a))}{\sum_j w_j}

    Args:
        inv_freq: Radians per position, shape ``(pairs,)``.
        distances: Positions, any shape.
        weights: Share of each pair, greater than 0; None: all alike.
        largest_angle: a, radians; pairs that would turn further stay there.

    Returns:
        Shape of ``distances``, float64, -1 to 1; NaN where an angle is not finite.

    References:
        Men et al., 2024, arXiv:2405.14591.

    Example:
        >>> similarity(np.array([np.pi, np.pi / 3]), np.array([0.0, 1.0])).round(2)
        array([ 1.  , -0.25])
    """
    shares = np.ones(len(inv_freq)) if weights is None else weights
    total = np.zeros(np.shape(distances))
    for frequency, share in zip(inv_freq, shares, strict=True):  # a row at a time: little memory
        with np.errstate(over="ignore", invalid="ignore"):
            angles = distances * frequency
            if largest_angle < math.inf:
                angles = np.minimum(np.abs(angles), largest_angle)
            total += share * np.cos(angles)
    curve: NDArray[np.float64] = total / shares.sum()
    return curve
