"""What cannot be attached exactly is refused by name, and nothing has changed."""

import sys

import pytest
import torch
from tiny_models import tiny_model, tokens
from torch import nn
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

import ropewalk as rw
from ropewalk.extension import attach

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}


@pytest.fixture
def model():
    return tiny_model("llama", num_hidden_layers=2)


def assert_refused(model, match):
    before = {name: (type(m), sorted(vars(m))) for name, m in model.named_modules()}
    with pytest.raises(rw.ConfigError, match=match) as error:
        attach(model)
    assert "\n" not in str(error.value)
    assert before == {name: (type(m), sorted(vars(m))) for name, m in model.named_modules()}


def test_models_without_a_rotary_module():
    assert_refused(tiny_model("gpt2"), "must have a rotary module.*GPT2LMHeadModel")
    assert_refused(nn.Linear(2, 2), "must have a rotary module.*Linear")


def test_what_is_no_module():
    with pytest.raises(rw.ConfigError, match="must be a torch module; got str"):
        attach("gpt2")


def test_an_unknown_precision(model):
    with pytest.raises(rw.ConfigError, match=r"angle_dtype must be.*'bfloat16'"):
        attach(model, angle_dtype="bfloat16")


def test_dynamic_frequencies():
    model = tiny_model("llama", rope_parameters=DYNAMIC)
    assert_refused(model, r"model\.rotary_emb \(LlamaRotaryEmbedding\).*earlier calls.*yarn")


def test_a_config_that_no_spec_describes(model):
    model.config.rope_parameters["rope_type"] = "spiral"
    assert_refused(model, r"model\.rotary_emb.*spiral")


def test_frequencies_that_a_cast_has_rounded(model):
    model.to(torch.bfloat16)
    assert_refused(model, r"rotary_emb.*radians per position.*torch.bfloat16.*from_pretrained")


def test_frequencies_that_were_changed_by_hand(model):
    model.model.rotary_emb.inv_freq[5] *= 1.001
    assert_refused(model, r"rotary_emb.*turns pair 5 by")


def test_an_amplitude_that_was_changed_by_hand(model):
    model.model.rotary_emb.attention_scaling = 1.01
    assert_refused(model, r"layers\.0\.self_attn.*otherwise than its config says")


def test_a_config_that_was_changed_after_the_model_was_built(model):
    model.config.rope_parameters["rope_theta"] = 20_000.0
    assert_refused(model, r"rotary_emb.*turns pair 1 by")


def test_models_on_the_meta_device():
    model = tiny_model("llama").to("meta")
    assert_refused(model, "rotary_emb.*meta device; load the weights first")


def test_hooks_on_the_rotary_module(model):
    model.model.rotary_emb.register_forward_hook(lambda *_: None)
    assert_refused(model, r"rotary_emb.*has forward hooks")


@pytest.mark.parametrize("name", ["model.rotary_emb", "model.layers.1.self_attn"])
def test_modules_whose_forward_was_replaced(model, name):
    module = model.get_submodule(name)
    module.forward = module.forward
    assert_refused(model, rf"{name}.*forward of its own.*before it is dispatched")


def test_an_attached_module_whose_forward_was_replaced_is_not_detached(model):
    attached = attach(model)
    module = model.model.layers[0].self_attn
    module.forward = module.forward
    with pytest.raises(rw.ConfigError, match=r"layers\.0\.self_attn had its forward or class"):
        attached.detach()
    del module.forward
    own = type(module)
    module.__class__ = type("Sharded", (own,), {})  # as FSDP does
    with pytest.raises(rw.ConfigError, match=r"layers\.0\.self_attn had its forward or class"):
        attached.detach()
    module.__class__ = own
    attached.detach()
    assert not attached.layers


class ReadsCos(LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, **rest):
        cos, sin = position_embeddings
        hidden_states = hidden_states * cos.mean()
        return super().forward(hidden_states, position_embeddings=(cos, sin), **rest)


class ScalesTable(LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, **rest):
        cos, sin = [2 * t for t in position_embeddings]
        q = self.q_proj(hidden_states)
        q, k = modeling_llama.apply_rotary_pos_emb(q, q, cos, sin)
        return q, k


class OwnArithmetic(LlamaAttention):
    def forward(self, hidden_states, position_embeddings=None, **rest):
        cos, sin = position_embeddings
        return self.q_proj(hidden_states) * cos + sin, None


class OwnRotaryTable(LlamaRotaryEmbedding):
    def forward(self, x, position_ids, scale):
        cos, sin = x, position_ids
        return cos * scale, sin


@pytest.mark.parametrize(
    ("cls", "match"),
    [
        (ReadsCos, r"ReadsCos\.forward is a closure"),
        (ScalesTable, r"ScalesTable\.forward changes the table"),
        (OwnArithmetic, r"OwnArithmetic\.forward has cos and sin and no call"),
    ],
)
def test_attention_layers_that_do_more_than_rotate(model, cls, match):
    model.model.layers[1].self_attn.__class__ = cls
    assert_refused(model, match)


def test_rotary_classes_that_are_called_otherwise(model):
    model.model.rotary_emb.__class__ = OwnRotaryTable
    assert_refused(model, r"rotary_emb \(OwnRotaryTable\) is called otherwise")


def test_methods_that_something_else_has_wrapped(model, monkeypatch):
    import functools

    inner = LlamaAttention.forward

    class Wrapped(LlamaAttention):
        pass

    @functools.wraps(inner)
    def outer(self, *arguments, **named):
        return inner(self, *arguments, **named)

    Wrapped.forward = outer
    model.model.layers[0].self_attn.__class__ = Wrapped
    assert_refused(model, r"Wrapped\.forward is wrapped by something")


def test_methods_without_a_source(model):
    space = {"apply_rotary_pos_emb": modeling_llama.apply_rotary_pos_emb}
    text = "def forward(self, x, table):\n    cos, sin = table\n"
    exec(text + "    return apply_rotary_pos_emb(x, x, cos, sin)\n", space)
    cls = type("NoSource", (LlamaAttention,), {"forward": space["forward"], "__module__": "m"})
    model.model.layers[0].self_attn.__class__ = cls
    assert_refused(
        model, r"NoSource\.forward has no source|NoSource\.forward has a source that is not"
    )


def test_layers_with_an_index_that_tells_no_rotation():
    model = tiny_model("gemma3_text")
    model.model.layers[2].self_attn.layer_idx = None
    assert_refused(model, r"layers\.2\.self_attn \(Gemma3Attention\) has layer_idx=None")


def test_sparse_attention_with_an_indexer():
    assert_refused(tiny_model("hy_v4"), "indexer of sparse attention")


def test_the_rotations_of_roformer():
    assert_refused(tiny_model("roformer", is_decoder=True), r"RoFormerSelfAttention")


def test_a_failure_half_way_leaves_nothing_attached(model, monkeypatch):
    floor = sys.modules["ropewalk.extension.attach"]

    original, count = floor.swap, []

    def failing(*arguments):
        count.append(1)
        if len(count) == 3:
            raise MemoryError
        original(*arguments)

    monkeypatch.setattr(floor, "swap", failing)
    with pytest.raises(MemoryError):
        attach(model)
    assert not any("_ropewalk" in vars(module) for module in model.modules())
    assert model(tokens()).logits.isfinite().all()


def test_a_slice_of_another_width_is_refused_when_it_is_rotated(model):
    attach(model)
    attention = model.model.layers[0].self_attn
    table = model.model.rotary_emb(torch.zeros(1), torch.arange(3)[None])
    q = torch.zeros(1, 4, 3, 8)
    with pytest.raises(rw.ShapeError, match=r"apply_rotary_pos_emb.*16.*got \(1, 4, 3, 8\)"):
        attention._ropewalk_apply_rotary_pos_emb(q, q, *table, unsqueeze_dim=1)
