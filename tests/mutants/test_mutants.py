"""Put one known bug of the field into the code at a time: the suite's own checks must fail."""

import contract
import numpy as np
import pytest
import torch

from ropewalk import use_kernel
from ropewalk.rotary import apply, module, operator, tables
from ropewalk.spec import Ladder


def negative_angle(patch):
    real = tables.angles
    patch.setattr(tables, "angles", lambda *args: -real(*args))


def swapped_layout(patch):
    real = apply.turn_slice
    other = {"half": "interleaved", "interleaved": "half"}
    patch.setattr(
        apply,
        "turn_slice",
        lambda x, cos, sin, turn: real(
            x, cos, sin, turn._replace(source=other[turn.source], target=other[turn.target])
        ),
    )


def output_layout_ignored(patch):
    real = apply.turn_slice
    patch.setattr(
        apply,
        "turn_slice",
        lambda x, cos, sin, turn: real(x, cos, sin, turn._replace(target=turn.source)),
    )


def positions_in_the_input_dtype(patch):
    # lucidrains/rotary-embedding-torch 0.9.1: positions built in the dtype of bf16 queries
    real = tables.angles
    patch.setattr(tables, "angles", lambda spec, p, f: real(spec, p.bfloat16().to(p.dtype), f))


def angles_in_float32(patch):
    # what every peer does: off by 1e-3 at 10,000 and by 0.7 at 10,000,000
    real = tables.angles
    patch.setattr(tables, "angles", lambda spec, p, f: real(spec, p, f.float()))


def frequencies_in_bfloat16(patch):
    # huggingface/transformers#25681: inv_freq as a buffer follows .to(bfloat16)
    real = Ladder.inv_freq
    patch.setattr(
        Ladder,
        "inv_freq",
        lambda self: torch.from_numpy(real(self)).bfloat16().double().numpy(),
    )


def tables_in_the_input_dtype(patch):
    # Dao-AILab/flash-attention#823, vllm-project/vllm#863
    real = apply.turn_slice
    patch.setattr(
        apply,
        "turn_slice",
        lambda x, cos, sin, turn: real(x, cos.to(x.dtype), sin.to(x.dtype), turn),
    )


def theta_missing_from_the_cache_key(patch):
    # patrick-kidger/equinox 0.13.8
    shared = {}

    class Careless(dict):
        def get(self, key, default=None):
            return shared.get((key[0].n_pairs, *key[1:]), default)

        def __setitem__(self, key, value):
            shared[(key[0].n_pairs, *key[1:])] = value

    real = module.RotaryEmbedding.__init__

    def init(self, spec):
        real(self, spec)
        self._on_device = Careless()

    patch.setattr(module.RotaryEmbedding, "__init__", init)


def offset_ignored(patch):
    # lucidrains/rotary-embedding-torch#11
    real = tables.angles
    patch.setattr(tables, "angles", lambda spec, p, f: real(spec, p - p.min(), f))


def shifted_spectrum(patch):
    # section 3.3 of the paper read literally: theta_i = 10000^(-2i/d) with i from 1
    def inv_freq(self):
        return np.float64(self.theta) ** (-2.0 * np.arange(1, self.rungs + 1) / self.frequency_dim)

    patch.setattr(Ladder, "inv_freq", inv_freq)


def sine_not_negated_when_undoing(patch):
    patch.setattr(module.RotaryEmbedding, "inverse", module.RotaryEmbedding.rotate)


def passed_coordinates_rounded(patch):
    real = apply.apply_turns
    patch.setattr(
        operator, "apply_turns", lambda x, *args, **kw: real(x.bfloat16().to(x.dtype), *args, **kw)
    )


MUTANTS = {
    negative_angle: "check_golden_vectors",
    swapped_layout: "check_golden_vectors",
    output_layout_ignored: "check_inverse_and_shift",
    positions_in_the_input_dtype: "check_precision",
    angles_in_float32: "check_precision",
    frequencies_in_bfloat16: "check_tables_remember_nothing",
    tables_in_the_input_dtype: "check_precision",
    theta_missing_from_the_cache_key: "check_tables_remember_nothing",
    offset_ignored: "check_inverse_and_shift",
    shifted_spectrum: "check_golden_vectors",
    sine_not_negated_when_undoing: "check_inverse_and_shift",
    passed_coordinates_rounded: "check_partial_rotation",
}


@pytest.mark.parametrize(
    ("mutant", "check"), MUTANTS.items(), ids=[mutant.__name__ for mutant in MUTANTS]
)
def test_known_bug_is_caught(mutant, check, monkeypatch):
    # The bugs are put into the definition; the kernels are held to it by tests of their own.
    with use_kernel("reference"):
        assert contract.CHECKS[check]() is None
        mutant(monkeypatch)
        with pytest.raises(AssertionError):
            contract.CHECKS[check]()
