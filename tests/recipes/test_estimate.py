import dataclasses

import pytest
import tiny
import torch

from ropewalk.recipes.estimate import estimate
from ropewalk.recipes.training import TrainingSettings

SETTINGS = TrainingSettings(steps=10, batch_size=256, learning_rate=1e-3)


def measure(settings=SETTINGS, length=16, **options):
    return estimate(tiny.config(), settings, length=length, device=torch.device("cpu"), **options)


def test_the_state_of_adam_takes_four_floats_a_weight():
    costs = measure()
    assert costs.parameters == tiny.model().num_parameters()
    assert costs.state_bytes == 16 * costs.parameters
    assert costs.total_bytes == costs.state_bytes + costs.activation_bytes
    assert costs.seconds_per_step > 0


def test_activations_are_those_of_the_rows_in_memory_at_once():
    # Beyond 2,048 tokens, 128 rows of 16, the measurement is scaled.
    whole = measure().activation_bytes
    settings = dataclasses.replace(SETTINGS, gradient_accumulation=4)
    # The number of masked rows differs a little from draw to draw.
    assert measure(settings).activation_bytes == pytest.approx(whole / 4, rel=0.05)
    assert measure(processes=4).activation_bytes == pytest.approx(whole / 4, rel=0.05)


def test_activations_hold_what_the_layers_must_keep():
    # At the least the inputs of each matrix product: 3 widths of hidden states and the wide one.
    tokens = SETTINGS.batch_size * 16
    least = tokens * (6 * 16 + 2 * 32) * 4
    assert least < measure().activation_bytes < 20 * least


def test_slow_models_are_measured_on_few_tokens(monkeypatch):
    from ropewalk.recipes import estimate as module

    seen = []

    def slow(self, rows, length):
        seen.append((rows, length))
        # One second for the weights and 20 ms a token.
        return 1.0 + 0.02 * rows * length

    monkeypatch.setattr(module._Step, "__call__", slow)
    settings = dataclasses.replace(SETTINGS, batch_size=8, gradient_accumulation=2)
    costs = measure(settings, length=256)
    assert max(seen) == (1, 128)
    # Two batches of 4 x 256 tokens.
    assert costs.seconds_per_step == pytest.approx(2 * (1.0 + 0.02 * 4 * 256))


def test_the_random_generator_is_left_as_it_was():
    state = torch.get_rng_state()
    measure(length=8)
    assert torch.equal(torch.get_rng_state(), state)
