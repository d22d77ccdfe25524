import numpy as np
import pytest

from ropewalk import (
    NTK,
    ConfigError,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    RopeSpec,
    Yarn,
)

PLAIN = RopeSpec(64, "half", theta=1e5)


@pytest.mark.parametrize(
    ("method", "want"),
    [
        ("linear", Linear(4.0)),
        ("ntk", NTK(4.0)),
        ("dynamic", DynamicNTK(1.0, 8192)),
        ("yarn", Yarn(4.0, 8192)),
        ("llama3", Llama3(4.0, 8192)),
    ],
)
def test_method_becomes_a_rule_with_the_ratio_of_lengths(method, want):
    got = PLAIN.extend(to=32768, method=method, original_max_position_embeddings=8192)
    assert got == PLAIN.replace(scaling=want)
    ratio = PLAIN.inv_freq()[-1] / got.inv_freq(32768)[-1]
    assert ratio == pytest.approx(4.0, rel=1e-12)


def test_yarn_is_the_default_and_needs_no_more_than_the_target():
    # turboderp-org/exllamav3#29: 32768 to 65536 is factor 2, amplitude 1.0693
    spec = RopeSpec(128, "half", theta=1e6, scaling=Yarn(4.0, 32768, beta_fast=24.0))
    got = spec.extend(to=65536)
    assert got.scaling == Yarn(2.0, 32768, beta_fast=24.0)
    assert got.attention_factor() == pytest.approx(1.0693, abs=5e-5)


def test_trained_length_itself_changes_nothing():
    got = PLAIN.extend(to=8192, original_max_position_embeddings=8192)
    np.testing.assert_allclose(got.inv_freq(), PLAIN.inv_freq(), rtol=4e-16)


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        (PLAIN, {"to": 8192}, r"original_max_position_embeddings must be given.*got None"),
        (
            PLAIN.replace(scaling=Linear(2.0)),
            {"to": 8192, "method": "linear"},
            r"original_max_position_embeddings must be given.*got None",
        ),
        (
            PLAIN.replace(scaling=Yarn(2.0, 4096)),
            {"to": 8192, "original_max_position_embeddings": 2048},
            r"at work, 4096; got 2048",
        ),
        (
            PLAIN,
            {"to": 100, "original_max_position_embeddings": 200},
            r"to must be at least the trained length 200; got 100",
        ),
        (PLAIN, {"to": 1.5, "original_max_position_embeddings": 200}, r"to must be .*got 1\.5"),
        (
            PLAIN,
            {"to": 400, "original_max_position_embeddings": 200, "method": "su"},
            r"method must be one of 'linear', .*got 'su'",
        ),
        (
            PLAIN.replace(scaling=Llama3(8.0, 8192)),
            {"to": 262144},
            r"at work, Llama3\(.*got 'yarn'; spec.replace\(scaling=None\)",
        ),
        (
            PLAIN.replace(scaling=LongRope((1.0,) * 32, (2.0,) * 32, 64, 2.0)),
            {"to": 128},
            r"at work, LongRope",
        ),
        (
            PLAIN.replace(scaling=DynamicNTK(alpha=8.0)),
            {"to": 128, "method": "dynamic", "original_max_position_embeddings": 64},
            r"at work, DynamicNTK\(.*alpha=8\.0\); got 'dynamic'",
        ),
        (
            RopeSpec(4, "half", blocks=(RopeSpec(4, "half"),)),
            {"to": 128, "original_max_position_embeddings": 64},
            r"extend the blocks one by one",
        ),
    ],
)
def test_what_would_be_a_guess_is_refused(spec, arguments, message):
    with pytest.raises(ConfigError, match=message) as caught:
        spec.extend(**arguments)
    assert "\n" not in str(caught.value)
