"""One of every scaling rule, for tests that hold for all of them."""

from ropewalk import (
    NTK,
    CustomFactors,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    PRope,
    Proportional,
    Resonance,
    XPos,
    Yarn,
)

L = 64
"""Trained length of the rules below."""
PAIRS = 8
_SHORT = tuple(1.0 + 0.01 * j for j in range(PAIRS))
_LONG = tuple(1.0 + j for j in range(PAIRS))

STATIC = {
    "linear": Linear(4.0),
    "ntk": NTK(4.0),
    "dynamic_alpha": DynamicNTK(alpha=4.0),
    "yarn": Yarn(4.0, L),
    "yarn_paper": Yarn(4.0, L, ramp="paper"),
    "llama3": Llama3(4.0, L),
    "longrope_equal_lists": LongRope(_LONG, _LONG, L, factor=4.0),
    "proportional": Proportional(0.5, factor=2.0),
    "prope": PRope(0.75),
    "custom": CustomFactors(_LONG, attention_factor=1.25),
    "resonance": Resonance(Yarn(4.0, L)),
}
BY_LENGTH = {
    "dynamic": DynamicNTK(4.0, L),
    "longrope": LongRope(_SHORT, _LONG, L, factor=4.0),
    "longrope_mscales": LongRope(_SHORT, _LONG, L, short_mscale=1.1, long_mscale=1.3),
    "resonance_dynamic": Resonance(DynamicNTK(4.0, L)),
}
XPOS = {"xpos": XPos(scale_base=32.0)}
ALL = STATIC | BY_LENGTH | XPOS
