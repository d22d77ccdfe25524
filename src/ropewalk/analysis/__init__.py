"""Measures of models and rotations (numbers out) and plots of them (figures out).

Neither torch nor matplotlib is loaded before it is needed; the plots need matplotlib and are
imported by name: ``from ropewalk.analysis import plots``.
"""

from __future__ import annotations

from ropewalk.analysis.measures import (
    MaskedLMScore,
    PairedDifference,
    masked_lm_sums,
    paired_difference,
    ratio_standard_error,
    steps_to_reach,
)
from ropewalk.analysis.rotation import (
    WavelengthLadder,
    bound_curve,
    distance_bound,
    pair_factors,
    similarity_curve,
    unscaled,
    wavelength_ladder,
)

__all__ = [
    "MaskedLMScore",
    "PairedDifference",
    "WavelengthLadder",
    "bound_curve",
    "distance_bound",
    "masked_lm_sums",
    "pair_factors",
    "paired_difference",
    "ratio_standard_error",
    "similarity_curve",
    "steps_to_reach",
    "unscaled",
    "wavelength_ladder",
]
