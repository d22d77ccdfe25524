"""Measures of models and rotations (numbers out) and plots of them (figures out).

The plots need matplotlib and are imported by name: ``from ropewalk.analysis import plots``.
"""

from __future__ import annotations

from ropewalk.analysis.measures import (
    MaskedLMScore,
    PairedDifference,
    distance_bound,
    masked_lm_sums,
    paired_difference,
    ratio_standard_error,
    steps_to_reach,
)

__all__ = [
    "MaskedLMScore",
    "PairedDifference",
    "distance_bound",
    "masked_lm_sums",
    "paired_difference",
    "ratio_standard_error",
    "steps_to_reach",
]
