"""What a rotation is: frequencies, scaling rules, pairs. Numpy float64 only, no torch."""

from ropewalk.spec.by_length import DynamicNTK, LongRope
from ropewalk.spec.by_pair import CustomFactors, PRope, Proportional, Resonance
from ropewalk.spec.by_parts import Llama3, Yarn
from ropewalk.spec.pairs import PairLayout
from ropewalk.spec.parameters import spec_from_rope_parameters
from ropewalk.spec.rope_spec import RopeSpec
from ropewalk.spec.scaling import NTK, Linear, ScalingRule
from ropewalk.spec.spectrum import Ladder, wavelengths
from ropewalk.spec.xpos import XPos

__all__ = [
    "NTK",
    "CustomFactors",
    "DynamicNTK",
    "Ladder",
    "Linear",
    "Llama3",
    "LongRope",
    "PRope",
    "PairLayout",
    "Proportional",
    "Resonance",
    "RopeSpec",
    "ScalingRule",
    "XPos",
    "Yarn",
    "spec_from_rope_parameters",
    "wavelengths",
]
