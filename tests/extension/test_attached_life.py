"""An attached model can be copied, saved, compiled, adapted, and given back as it was."""

import copy
import io
import json
import pickle
import threading

import pytest
import torch
from tiny_models import tiny_model, tokens
from torch import nn

import ropewalk as rw
from ropewalk.extension import attach


@pytest.fixture
def model():
    return tiny_model("llama", num_hidden_layers=2)


def logits(model, x=None):
    with torch.no_grad():
        return model(tokens() if x is None else x).logits


def state(model):
    """All that identifies the modules: objects, classes and plain attributes."""
    return {
        name: (id(module), type(module), sorted(vars(module)))
        for name, module in model.named_modules()
    }


def test_detaching_restores_the_very_same_objects(model):
    before, expected = state(model), logits(model)
    attached = attach(model)
    assert state(model) != before
    attached.detach()
    assert state(model) == before
    assert torch.equal(logits(model), expected)
    attached.detach()
    assert state(model) == before


def test_the_context_manager_detaches_also_after_an_error(model):
    before = state(model)
    with pytest.raises(KeyError), attach(model):
        vars(model)["absent"]
    assert state(model) == before


def test_attaching_twice_is_attaching_once(model):
    with attach(model) as outer:
        once = state(model)
        with attach(model) as inner:
            assert state(model) == once
            assert inner.layers == outer.layers
        assert state(model) == once, "the inner context did not attach, so it does not detach"
    assert not outer.layers


def test_a_context_within_a_part_ends_that_part_alone(model):
    with attach(model.model) as part:
        assert attach(model).layers == tuple(f"model.{name}" for name in part.layers)
    assert attach(model).layers


def test_another_precision_of_angles_needs_a_detach(model):
    attach(model)
    with pytest.raises(rw.ConfigError, match=r"angle_dtype must stay.*'float32'"):
        attach(model, angle_dtype="float32")


def test_the_handle_names_layers_and_rotations(model):
    attached = attach(model)
    assert attached.layers == (
        "model.layers.0.self_attn",
        "model.layers.1.self_attn",
        "model.rotary_emb",
    )
    assert attached.specs == {rw.RopeSpec.from_config(model.config)}
    assert "3 modules" in repr(attached)


def test_other_models_of_the_family_are_not_touched(model):
    other = tiny_model("llama", num_hidden_layers=2)
    before = state(other)
    attach(model)
    assert state(other) == before
    assert torch.equal(logits(other), logits(tiny_model("llama", num_hidden_layers=2)))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_attached_and_can_be_detached(model, again):
    expected = logits(model)
    attach(model)
    other = again(model)
    assert torch.equal(logits(other), logits(model))
    handle = attach(other)
    assert handle.layers == attach(model).layers
    handle.detach()
    assert torch.equal(logits(other), expected)
    assert attach(model).layers, "the original stays attached"


def test_saved_files_are_those_of_the_model_itself(model, tmp_path):
    model.save_pretrained(tmp_path / "before")
    names = list(model.state_dict())
    attach(model)
    assert list(model.state_dict()) == names
    model.save_pretrained(tmp_path / "after")
    for path in (tmp_path / "before").iterdir():
        assert path.read_bytes() == (tmp_path / "after" / path.name).read_bytes(), path.name
    assert json.loads((tmp_path / "after" / "config.json").read_text())["model_type"] == "llama"


def test_torch_save_of_the_state_dict_loads_into_a_plain_model(model):
    attach(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = tiny_model("llama", num_hidden_layers=2)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("attach_first", [True, False])
def test_compiled_models_run_without_graph_breaks(model, attach_first):
    expected = logits(model)
    torch.compiler.reset()
    if attach_first:
        attach(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    if not attach_first:
        assert torch.equal(logits(compiled), expected)
        attach(compiled)
    found = logits(compiled)
    # float32 through two layers, relative to the largest logit
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    assert torch.equal(found, logits(model))


def test_hooks_of_a_projection_see_what_it_returned(model):
    """Where somebody else may hold q, it is not rotated in place."""
    attention = model.model.layers[0].self_attn
    attach(model)
    expected = logits(model)
    seen = []
    handle = attention.q_proj.register_forward_hook(lambda m, i, out: seen.append((i[0], out)))
    assert torch.equal(logits(model), expected)
    handle.remove()
    ((hidden, out),) = seen
    assert torch.equal(out, nn.functional.linear(hidden, attention.q_proj.weight))


def test_a_projection_that_returns_its_input_is_not_rotated_in_place(model):
    layer = model.model.layers[0]
    layer.self_attn.q_proj = nn.Identity()
    expected = logits(model)
    attach(model)
    assert (logits(model) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_vectors_that_nobody_else_sees_are_rotated_in_place(model, monkeypatch):
    attach(model)
    given = []
    original = rw.RotaryEmbedding.forward

    def spy(self, q, k, *rest, out=None, **named):
        given.append(out is not None and out[0] is q and out[1] is k)
        return original(self, q, k, *rest, out=out, **named)

    monkeypatch.setattr(rw.RotaryEmbedding, "forward", spy)
    logits(model)
    assert given == [True, True]
    model(tokens())
    assert given[2:] == [False, False], "never while gradients are recorded"


def test_inference_mode_serves_and_training_follows(model):
    attach(model)
    with torch.inference_mode():
        inside = model(tokens()).logits
    assert torch.equal(inside.clone(), logits(model))
    model(tokens(), labels=tokens()).loss.backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0


def test_threads_share_an_attached_model(model):
    attach(model)
    expected, found = logits(model), []
    threads = [threading.Thread(target=lambda: found.append(logits(model))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(result, expected) for result in found)


def test_attentions_and_hidden_states_are_still_recorded(model):
    model.set_attn_implementation("eager")
    x = tokens()
    with torch.no_grad():
        before = model(x, output_attentions=True, output_hidden_states=True)
        attach(model)
        after = model(x, output_attentions=True, output_hidden_states=True)
    assert len(after.attentions) == len(before.attentions) == 2
    for found, expected in zip(after.attentions, before.attentions, strict=True):
        assert (found - expected).abs().max() < 1e-5  # probabilities, float32
    assert len(after.hidden_states) == len(before.hidden_states)


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # peft's
@pytest.mark.parametrize("adapt_first", [True, False])
def test_lora_adapters_train_on_an_attached_model(model, adapt_first):
    peft = pytest.importorskip("peft")
    reference = copy.deepcopy(model)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"], init_lora_weights=False)

    def adapted(inner):
        torch.manual_seed(1)
        return peft.get_peft_model(inner, config)

    def gradients(net):
        net(input_ids=tokens(), labels=tokens()).loss.backward()
        return {n: p.grad for n, p in net.named_parameters() if p.grad is not None}

    expected = gradients(adapted(reference))
    if adapt_first:
        net = adapted(model)
        attach(net)
    else:
        attach(model)
        net = adapted(model)
    found = gradients(net)
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        # float32 sums over 42 tokens, relative to the largest entry of the same tensor
        assert (found[name] - gradient).abs().max() < 1e-4 * gradient.abs().max(), name
    with torch.no_grad():
        before = net(input_ids=tokens()).logits
        merged = net.merge_and_unload()
        after = merged(input_ids=tokens()).logits
    assert (after - before).abs().max() < 1e-5 * before.abs().max()
    assert attach(merged).layers
