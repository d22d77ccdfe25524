"""Measures of a rotation alone: how far it reaches, how slowly it turns, what a rule did to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ropewalk.errors import ShapeError
from ropewalk.spec import checks, spectrum
from ropewalk.spec.spectrum import Ladder
from ropewalk.spec.widths import bounded

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ropewalk.spec import RopeSpec


def distance_bound(
    rotary_dim: int, theta: float = 10_000.0, distances: ArrayLike = tuple(range(257))
) -> NDArray[np.float64]:
    r"""Return the curve of the RoFormer paper's Figure 2 over relative distances.

    .. math:: \frac{1}{d/2} \sum_{j=1}^{d/2} |S_j|, \qquad
              S_j = \sum_{i=0}^{j-1} e^{\mathrm{i} \Delta \theta^{-2i/d}}

    By Abel summation the score of a query and a key at distance :math:`\Delta` is at most
    d/2 times this, times the largest change between neighbouring pairs of their product. It is a
    factor of an upper bound, not attention itself: a trained model may attend as strongly to far
    tokens as to near ones, and the curve neither falls steadily nor goes to zero.

    Args:
        rotary_dim: Rotated width d, even, at least 2.
        theta: Base of the ladder, greater than 1.
        distances: Relative distances in positions, any real numbers, any shape.

    Returns:
        The curve, shape of ``distances``, float64, between 0 and (d/2 + 1) / 2.

    Raises:
        ConfigError: ``rotary_dim`` is no even integer from 2 on, or ``theta`` not greater than 1.
        ShapeError: ``distances`` are no finite numbers.

    References:
        Su et al., 2021, arXiv:2104.09864, section 3.4.3 and equations 36 and 37.

    Example:
        >>> distance_bound(64, distances=[0, 10]).round(2)
        array([16.5 ,  8.81])
    """
    width = bounded("rotary_dim", rotary_dim, multiple_of=2)
    ladder = Ladder(checks.real("theta", theta, above=1.0), width, width // 2)
    return _mean_partial_sum(ladder.inv_freq(), _finite(distances))


def bound_curve(
    spec: RopeSpec, distances: ArrayLike, *, seq_len: int | None = None
) -> NDArray[np.float64]:
    """Return `distance_bound` for the frequencies of any rotation, scaled ones included.

    Args:
        spec: The rotation. The partial sums run over its pairs in their order. Where it reads
            several position axes, the distance is the same along all of them, as in text.
        distances: Relative distances in positions, any real numbers, any shape.
        seq_len: Length of the row, for rules that depend on it.

    Returns:
        The curve, shape of ``distances``, float64. The attention factor is not in it.

    Raises:
        ConfigError: ``seq_len`` is missing or out of range.
        ShapeError: ``distances`` are no finite numbers.

    References:
        Su et al., 2021, arXiv:2104.09864, section 3.4.3 and equations 36 and 37.

    Example:
        >>> from ropewalk import Linear, RopeSpec
        >>> bound_curve(RopeSpec(64, "half", scaling=Linear(4.0)), [0, 40]).round(2)
        array([16.5 ,  8.81])
    """
    return _mean_partial_sum(_frequencies(spec, seq_len), _finite(distances))


def similarity_curve(
    spec: RopeSpec,
    distances: ArrayLike,
    *,
    seq_len: int | None = None,
    clamped: bool = False,
) -> NDArray[np.float64]:
    r"""Return how similar equal vectors look at a distance: the score of q = k, 1 at distance 0.

    .. math:: \frac{\sum_j A_j^2 \cos(\Delta \omega_j)}{\sum_j A_j^2}

    for vectors with as much weight on every pair; an amplitude A that all pairs share cancels.
    It can fall below zero and rise again, since a fast pair comes round. If ``clamped``, the
    relative angle of each pair stops at :math:`\pi`: then the curve falls strictly until the
    slowest pair is there, after half its wavelength, and stays. That limit is a means to read
    the curve; no rotation of queries and keys alone has it, since it does not add over positions.

    Args:
        spec: The rotation. Coordinates that it leaves alone are not counted. Where it reads
            several position axes, the distance is the same along all of them, as in text.
        distances: Relative distances in positions, any real numbers, any shape.
        seq_len: Length of the row, for rules that depend on it.
        clamped: Whether angles stop at half a turn.

    Returns:
        The curve, shape of ``distances``, float64, between -1 and 1.

    Raises:
        ConfigError: ``seq_len`` is missing or out of range, or the amplitude depends on the
            position (xPos).
        ShapeError: ``distances`` are no finite numbers.

    References:
        Men et al., 2024, arXiv:2405.14591.

    Example:
        >>> from ropewalk import RopeSpec
        >>> similarity_curve(RopeSpec(4, "half", theta=4.0), [0, np.pi], clamped=True).round(2)
        array([ 1. , -0.5])
    """
    weights = np.square(spec.pairs(seq_len).amplitude)
    limit = math.pi if clamped else math.inf
    frequencies = _frequencies(spec, seq_len)
    return spectrum.similarity(
        frequencies, _finite(distances), weights=weights, largest_angle=limit
    )


class WavelengthLadder(NamedTuple):
    """How far every pair turns within a window; arrays of shape ``(pairs,)``."""

    wavelengths: NDArray[np.float64]
    """Positions per full turn; infinity for a pair that stands still."""
    turns: NDArray[np.float64]
    """Turns within the window."""
    completes_turn: NDArray[np.bool_]
    """Whether the pair turns full circle within the window."""


def wavelength_ladder(
    spec: RopeSpec, window: int, *, seq_len: int | None = None
) -> WavelengthLadder:
    r"""Return the wavelength of every pair and its turns within a window, such as the trained one.

    .. math:: \lambda_j = 2\pi / \omega_j, \qquad r_j = L / \lambda_j

    Args:
        spec: The rotation as it is used in the window. What a model saw in training is the
            ladder of :func:`unscaled` where scaling came afterwards.
        window: Its length L, in positions.
        seq_len: Length of the row, for rules that depend on it.

    Raises:
        ConfigError: ``window`` or ``seq_len`` is not a positive integer, or the latter is missing.

    Example:
        >>> from ropewalk import RopeSpec
        >>> wavelength_ladder(RopeSpec(4, "half", theta=100.0), 50).turns.round(2)
        array([7.96, 0.8 ])
    """
    length = checks.length("window", window)
    waves = spec.wavelengths(seq_len)
    turns = length / waves
    return WavelengthLadder(waves, turns, turns >= 1.0)


def pair_factors(spec: RopeSpec, *, seq_len: int | None = None) -> NDArray[np.float64]:
    r"""Return by how much the rule of a rotation slows each of its pairs.

    .. math:: s_j = \omega_j / \omega'_j

    Args:
        spec: The rotation.
        seq_len: Length of the row, for rules that depend on it.

    Returns:
        Shape ``(pairs,)``, float64: 1 where nothing changes, infinity where the rule stops a pair.

    Raises:
        ConfigError: ``seq_len`` is missing or out of range.

    Example:
        >>> from ropewalk import NTK, RopeSpec
        >>> pair_factors(RopeSpec(4, "half", scaling=NTK(8.0))).round(6)
        array([1., 8.])
    """
    return spectrum.frequency_ratios(unscaled(spec).inv_freq(), spec.inv_freq(seq_len))


def unscaled(spec: RopeSpec) -> RopeSpec:
    """Return a rotation without its scaling rule, in all its blocks.

    Args:
        spec: The rotation.

    Example:
        >>> from ropewalk import Linear, RopeSpec
        >>> unscaled(RopeSpec(4, "half", scaling=Linear(2.0))) == RopeSpec(4, "half")
        True
    """
    blocks = tuple(unscaled(block) for block in spec.blocks)
    return spec.replace(scaling=None, blocks=blocks)


def _frequencies(spec: RopeSpec, seq_len: int | None) -> NDArray[np.float64]:
    """Return radians per position, where inv_freq has radians per scaled position."""
    return np.concatenate([b.inv_freq(seq_len) * b.position_scale for b in spec.parts])


def _mean_partial_sum(
    frequencies: NDArray[np.float64], distances: NDArray[np.float64]
) -> NDArray[np.float64]:
    total = np.zeros(distances.shape, dtype=np.complex128)
    curve = np.zeros(distances.shape)
    for frequency in frequencies:  # one pair at a time, so that long curves need little memory
        total += np.exp(1j * (distances * frequency))
        curve += np.abs(total)
    return curve / len(frequencies)


def _finite(distances: ArrayLike) -> NDArray[np.float64]:
    try:
        values = np.asarray(distances, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"distances must be an array of numbers; got {checks.abridged(distances)}"
        ) from error
    if not np.isfinite(values).all():
        raise ShapeError(f"distances must be finite; got {checks.abridged(distances)}")
    return values
