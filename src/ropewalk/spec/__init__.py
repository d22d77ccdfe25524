"""What a rotation is: frequencies, scaling rules, pairs. Numpy float64 only, no torch."""

from ropewalk.spec.parameters import spec_from_rope_parameters
from ropewalk.spec.rope_spec import PairLayout, RopeSpec
from ropewalk.spec.scaling import NTK, Linear, ScalingRule
from ropewalk.spec.spectrum import Ladder, wavelengths

__all__ = [
    "NTK",
    "Ladder",
    "Linear",
    "PairLayout",
    "RopeSpec",
    "ScalingRule",
    "spec_from_rope_parameters",
    "wavelengths",
]
