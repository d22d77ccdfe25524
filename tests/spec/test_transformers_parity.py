"""Frequencies and attention factors equal to those of transformers, and where they must not."""

import contextlib
import itertools
from unittest import mock

import numpy as np
import pytest

from ropewalk.spec import spec_from_rope_parameters

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),  # transformers' own remarks on the settings below
]
torch = pytest.importorskip("torch")
rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
from transformers import LlamaConfig  # noqa: E402

SHAPES = [(64, 1e4, 1.0), (128, 5e5, 1.0), (96, 1e6, 0.5), (256, 1.5e5, 0.25)]
LENGTHS = [None, 1, 4096, 4097, 100_000]


@contextlib.contextmanager
def arithmetic_in_float64():
    """Let their functions compute in float64, which leaves the formula alone to compare."""
    with (
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def theirs(parameters, head_dim, seq_len, layer_type=None, exact=False, **config):
    """Return inv_freq and attention factor of transformers' own function."""
    name = parameters["rope_type"]
    nested = parameters if layer_type is None else {layer_type: parameters}
    config = LlamaConfig(
        head_dim=head_dim,
        rope_parameters={k: dict(v) if isinstance(v, dict) else v for k, v in nested.items()},
        **({"max_position_embeddings": 4096} | config),
    )
    function = rope_utils.ROPE_INIT_FUNCTIONS[name]
    with arithmetic_in_float64() if exact else contextlib.nullcontext():
        inv_freq, factor = function(config, "cpu", seq_len=seq_len, layer_type=layer_type)
    assert inv_freq.dtype == (torch.float64 if exact else torch.float32)
    return inv_freq.double().numpy(), factor


def ours(parameters, head_dim, **beside):
    return spec_from_rope_parameters(parameters, head_dim=head_dim, layout="half", **beside)


def assert_equal(parameters, head_dim, seq_len, beside=None, **config):
    spec = ours(parameters, head_dim, **(beside or {}))
    mine = spec.inv_freq(seq_len or 1)
    want, factor = theirs(parameters, head_dim, seq_len, exact=True, **config)
    # the same formula, a handful of roundings of float64 apart
    np.testing.assert_allclose(mine, want, rtol=1e-13)
    assert spec.attention_factor(seq_len or 1) == pytest.approx(factor, rel=1e-15)
    shipped, _ = theirs(parameters, head_dim, seq_len, **config)
    # as it runs, in float32: 3e-7, and on a ramp as much of the frequency before it is divided
    assert np.all(np.abs(mine - shipped) <= 3e-7 * (mine + spec.ladder.inv_freq()))


def base(name, theta, partial, **keys):
    return {"rope_type": name, "rope_theta": theta, "partial_rotary_factor": partial, **keys}


@pytest.mark.parametrize(("head_dim", "theta", "partial"), SHAPES)
def test_linear_and_proportional(head_dim, theta, partial):
    for factor in (1.0, 8.0):
        assert_equal(base("linear", theta, partial, factor=factor), head_dim, None)
        assert_equal(base("proportional", theta, partial, factor=factor), head_dim, None)
    for share in (0.0, 0.25, 0.3, 0.999):
        assert_equal(base("proportional", theta, share), head_dim, None)


@pytest.mark.parametrize(("head_dim", "theta", "partial"), SHAPES)
@pytest.mark.parametrize("seq_len", LENGTHS)
def test_dynamic(head_dim, theta, partial, seq_len):
    for factor in (1.0, 4.0):
        parameters = base("dynamic", theta, partial, factor=factor)
        beside = {"max_position_embeddings": 4096}
        assert_equal(parameters, head_dim, seq_len, beside)


@pytest.mark.parametrize(("head_dim", "theta", "partial"), SHAPES)
def test_yarn(head_dim, theta, partial):
    for factor, original, truncate, betas in itertools.product(
        (1.0, 4.0, 40.0), (2048, 131_072), (True, False), ({}, {"beta_fast": 16, "beta_slow": 2.0})
    ):
        keys = {"factor": factor, "original_max_position_embeddings": original}
        parameters = base("yarn", theta, partial, truncate=truncate, **keys, **betas)
        assert_equal(parameters, head_dim, None)
    for extra in (
        {"attention_factor": 1.0},
        {"attention_factor": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 0.707, "mscale_all_dim": 1.0},
    ):
        keys = {"factor": 40.0, "original_max_position_embeddings": 4096}
        assert_equal(base("yarn", theta, partial, **keys, **extra), head_dim, None)
    keys = {"factor": None, "original_max_position_embeddings": 4096}
    beside = {"max_position_embeddings": 163_840}
    assert_equal(base("yarn", theta, partial, **keys), head_dim, None, beside, **beside)


@pytest.mark.parametrize(("head_dim", "theta", "partial"), SHAPES)
def test_llama3(head_dim, theta, partial):
    for factor, low, high, original in itertools.product(
        (1.0, 8.0, 32.0), (1.0, 2), (4.0, 32.0), (2048, 8192)
    ):
        keys = {"low_freq_factor": low, "high_freq_factor": high, "factor": factor}
        keys["original_max_position_embeddings"] = original
        assert_equal(base("llama3", theta, partial, **keys), head_dim, None)


@pytest.mark.parametrize(("head_dim", "theta", "partial"), SHAPES)
@pytest.mark.parametrize("seq_len", LENGTHS)
def test_longrope(head_dim, theta, partial, seq_len):
    pairs = int(head_dim * partial) // 2
    lists = {
        "short_factor": np.linspace(1.0, 1.5, pairs).tolist(),
        "long_factor": np.geomspace(1.0, 64.0, pairs).tolist(),
        "original_max_position_embeddings": 4096,
    }
    for extra in ({"factor": 32.0}, {"factor": 1.0}, {"attention_factor": 1.19, "factor": 2.0}):
        assert_equal(base("longrope", theta, partial, **lists, **extra), head_dim, seq_len)
    beside = {"max_position_embeddings": 131_072}  # the ratio becomes the factor, as in Phi-3
    assert_equal(base("longrope", theta, partial, **lists), head_dim, seq_len, beside, **beside)


def test_every_rope_type_of_transformers_can_be_read():
    from ropewalk.spec.parameters import ROPE_TYPES

    assert set(rope_utils.ROPE_INIT_FUNCTIONS) | {"default"} <= set(ROPE_TYPES)


def test_alpha_equals_hunyuan():
    from transformers import HunYuanDenseV1Config
    from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import (
        HunYuanDenseV1RotaryEmbedding,
    )

    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0}
    config = HunYuanDenseV1Config(
        hidden_size=128,
        num_attention_heads=1,
        head_dim=128,
        rope_parameters=parameters | {"factor": 1.0},
    )
    want = HunYuanDenseV1RotaryEmbedding(config).inv_freq.double().numpy()
    np.testing.assert_allclose(ours(parameters, 128).inv_freq(), want, rtol=3e-7)


def test_what_is_written_is_read_alike_by_transformers():
    from ropewalk import CustomFactors, PRope, Resonance, RopeSpec, Yarn

    for rule in (
        Yarn(4.0, 4096),
        Yarn(4.0, 4096, ramp="paper"),
        Yarn(40.0, 4096, mscale=0.707, mscale_all_dim=0.0),
        Resonance(Yarn(4.0, 4096)),
        PRope(0.3),
        CustomFactors(tuple(np.geomspace(1.0, 8.0, 32)), attention_factor=1.25),
    ):
        spec = RopeSpec(64, "half", scaling=rule)
        for seq_len in (10, 100_000):
            inv_freq, factor = theirs(spec.to_rope_parameters(), 64, seq_len)
            np.testing.assert_allclose(spec.inv_freq(), inv_freq, rtol=3e-7)
            assert spec.attention_factor() == pytest.approx(factor, rel=1e-6)


GPT_OSS = {
    "rope_type": "yarn",
    "rope_theta": 1.5e5,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def test_truncate_is_not_lost_in_nested_dictionaries():
    # transformers 5.24 reads it from the outer dictionary, where it is not
    flat, _ = theirs(GPT_OSS, 64, None)
    nested, _ = theirs(GPT_OSS, 64, None, "full_attention", layer_types=["full_attention"] * 32)
    mine = ours(GPT_OSS, 64).inv_freq()
    np.testing.assert_allclose(mine, flat, rtol=3e-7)
    assert np.abs(nested / mine - 1).max() > 0.5


def test_a_zero_mscale_is_a_number():
    # transformers 5.24 takes 0 for "not given": 1.3689 instead of DeepSeek's 1.2608
    keys = {"mscale": 0.707, "mscale_all_dim": 0.0, "factor": 40.0}
    parameters = GPT_OSS | keys
    _, factor = theirs(parameters, 64, None)
    assert factor == pytest.approx(1.36889, abs=1e-5)
    assert ours(parameters, 64).attention_factor() == pytest.approx(1.26080, abs=1e-5)
