"""An attached model computes what it computed before."""

import pytest
import torch
from tiny_models import tiny_model, tokens
from transformers import StaticCache

import ropewalk as rw
from ropewalk.extension import attach

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text")
FAMILIES += ("gpt_neox", "phi", "phi3", "stablelm", "falcon", "olmo", "olmo3", "cohere", "cohere2")
FAMILIES += ("glm4", "gptj", "gpt_oss", "deepseek_v3", "granite_swa", "moshi", "smollm3")
SCALED = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 16,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.0 + 0.9 * i for i in range(8)],
}


def logits(model, **arguments):
    with torch.no_grad():
        return model(**arguments).logits


def assert_equal(found, expected, tolerance=2e-5):
    # float32 through four layers with weights of 0.2: about a hundred roundings of 6e-8, relative
    # to the largest logit; families with a logit scale are the worst.
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < tolerance, float(error)


@pytest.mark.parity
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_stay_equal(family):
    model = tiny_model(family)
    x = tokens()
    before = logits(model, input_ids=x)
    greedy = model.generate(x[:1], max_new_tokens=5, do_sample=False)
    attached = attach(model)
    assert attached.layers
    assert_equal(logits(model, input_ids=x), before)
    assert torch.equal(model.generate(x[:1], max_new_tokens=5, do_sample=False), greedy)
    attached.detach()
    assert torch.equal(logits(model, input_ids=x), before)


@pytest.mark.parity
@pytest.mark.parametrize("rule", SCALED)
def test_scaled_frequencies_and_amplitudes_stay_equal(rule):
    parameters = SCALED[rule] | {"rope_theta": 10_000.0}
    model = tiny_model("llama", rope_parameters=parameters)
    x = tokens(length=100)
    before = logits(model, input_ids=x)
    attach(model)
    assert_equal(logits(model, input_ids=x), before)


@pytest.mark.parity
@pytest.mark.parametrize("length", [16, 17, 40])
def test_longrope_takes_the_list_that_the_model_takes(length):
    model = tiny_model("phi3", rope_parameters=LONGROPE | {"partial_rotary_factor": 1.0})
    x = tokens(length=length)
    before = logits(model, input_ids=x)
    attach(model)
    assert_equal(logits(model, input_ids=x), before)


@pytest.mark.parity
def test_float64_models_agree_to_the_rounding_of_their_own_angles():
    model = tiny_model("llama", torch.float64)
    x = tokens()
    before = logits(model, input_ids=x)
    with attach(model):
        exact = logits(model, input_ids=x)
    with attach(model, angle_dtype="float32"):
        rounded = logits(model, input_ids=x)
    # The model rounds frequencies and angles up to 20 radians to float32, 1e-6 absolute.
    assert_equal(exact, before, 5e-6)
    assert_equal(rounded, before, 5e-6)
    assert not torch.equal(exact, rounded)


@pytest.mark.parity
def test_bfloat16_models_agree_to_bfloat16():
    model = tiny_model("qwen3")
    x = tokens()
    reference = logits(model, input_ids=x)
    inv_freq = model.model.rotary_emb.inv_freq
    model.to(torch.bfloat16)
    model.model.rotary_emb.inv_freq = inv_freq.float()  # as from_pretrained leaves it
    before = logits(model, input_ids=x)
    attach(model)
    after = logits(model, input_ids=x)
    assert after.dtype == torch.bfloat16
    # The weights alone, rounded to 8 bits, move the logits of either by some per cent.
    assert_equal(after.float(), before.float(), 0.05)
    assert (after - reference).norm() <= 1.1 * (before - reference).norm()


def test_an_attached_model_can_be_cast_without_rounding_its_frequencies():
    model = tiny_model("llama")
    x = tokens(length=200)
    attach(model)
    reference = logits(model, input_ids=x)
    model.to(torch.bfloat16)
    assert_equal(logits(model, input_ids=x).float(), reference, 0.1)
    table = model.model.rotary_emb(torch.zeros(1, dtype=torch.bfloat16), torch.tensor([[199]]))
    spec = rw.RopeSpec.from_config(model.config)
    expected = rw.RotaryEmbedding(spec).table(torch.tensor([[199]]))
    assert torch.equal(table[0], expected.cos)


def test_left_padding_does_not_change_the_last_logits():
    model = tiny_model("llama")
    attach(model)
    x = tokens(batch=1, length=9)
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), x], 1)
    mask = torch.cat([torch.zeros(1, 5, dtype=torch.long), torch.ones_like(x)], 1)
    alone = logits(model, input_ids=x)[:, -1]
    positions = rw.positions_from_attention_mask(mask)
    beside = logits(model, input_ids=padded, attention_mask=mask, position_ids=positions)[:, -1]
    assert_equal(beside, alone)


@pytest.mark.parity
def test_left_padded_batches_generate_the_same_tokens():
    model = tiny_model("gemma3_text")
    x = tokens(batch=3, length=12)
    mask = torch.ones_like(x)
    mask[0, :5] = mask[1, :1] = 0
    arguments = {"attention_mask": mask, "max_new_tokens": 10}
    greedy = model.generate(x, do_sample=False, **arguments)
    beams = model.generate(x, num_beams=3, do_sample=False, **arguments)
    attach(model)
    assert torch.equal(model.generate(x, do_sample=False, **arguments), greedy)
    assert torch.equal(model.generate(x, num_beams=3, do_sample=False, **arguments), beams)


@pytest.mark.parity
def test_a_static_cache_generates_the_same_tokens():
    model = tiny_model("llama")
    x = tokens(batch=2, length=6)
    expected = model.generate(x, max_new_tokens=10, do_sample=False)
    attach(model)
    cache = StaticCache(config=model.config, max_cache_len=32)
    found = model.generate(x, cache=cache, max_new_tokens=10, do_sample=False)
    assert torch.equal(found, expected)


def test_a_cache_filled_before_attaching_serves_after_it():
    model = tiny_model("gpt_neox")
    x = tokens(batch=1, length=12)
    whole = logits(model, input_ids=x)
    with torch.no_grad():
        first = model(x[:, :8], use_cache=True)
        cache = first.cache if "cache" in first else first.past_key_values
        attach(model)
        name = "cache" if "cache" in first else "past_key_values"
        second = model(x[:, 8:], **{name: cache}).logits
    assert_equal(second, whole[:, 8:])


@pytest.mark.parity
@pytest.mark.parametrize("family", ["llama", "phi", "gemma2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_a_training_step_stay_equal(family, checkpointing):
    model = tiny_model(family).train()
    if checkpointing:
        new = getattr(model, "activation_checkpointing_enable", None)
        (new or model.gradient_checkpointing_enable)({"use_reentrant": False})
    x = tokens()

    def gradients():
        model.zero_grad()
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    before = gradients()
    attach(model)
    after = gradients()
    for name, gradient in before.items():
        # float32 sums over 42 tokens, relative to the largest entry of the same tensor
        assert_equal(after[name], gradient, 1e-4)


@pytest.mark.parity
def test_assisted_generation_stays_equal():
    model, draft = tiny_model("llama"), tiny_model("llama", num_hidden_layers=1)
    x = tokens(batch=1, length=6)
    expected = model.generate(x, max_new_tokens=5, do_sample=False)
    attach(model)
    attach(draft)
    found = model.generate(x, assistant_model=draft, max_new_tokens=5, do_sample=False)
    assert torch.equal(found, expected)


def test_packed_positions_that_start_again_are_followed():
    model = tiny_model("llama")
    x = tokens(batch=1, length=16)
    positions = torch.cat([torch.arange(9), torch.arange(7)])[None]
    before = logits(model, input_ids=x, position_ids=positions)
    attach(model)
    assert_equal(logits(model, input_ids=x, position_ids=positions), before)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")  # of families whose small config has an odd entry
def test_every_family_that_is_accepted_keeps_its_logits():
    from tiny_models import NotBuiltError, causal_families

    accepted = 0
    for family in causal_families():
        try:
            model = tiny_model(family)
            before = logits(model, input_ids=tokens())
        except (NotBuiltError, RuntimeError, ValueError):  # or it needs more than tokens
            continue
        try:
            attach(model)
        except rw.ConfigError:
            assert not any("_ropewalk" in vars(module) for module in model.modules())
            continue
        assert_equal(logits(model, input_ids=tokens()), before)
        accepted += 1
    assert accepted >= 80
