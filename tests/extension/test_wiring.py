"""What is proved from the source: where tables go, and who else sees the vectors."""

import pytest
import torch
from tiny_models import tiny_model
from torch import nn
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

import ropewalk as rw
from ropewalk.extension.methods import rotating
from ropewalk.extension.wiring import check_wiring


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary_emb = self.layer = self.q = self.k = nn.Identity()


class HandsOn(Layer):
    def forward(self, x, ids, kinds):
        tables = {}
        for kind in kinds:
            tables[kind] = self.rotary_emb(x, ids, kind)
        by_kind = {kind: self.rotary_emb(x, ids) for kind in kinds}
        one = self.rotary_emb(x, ids) if x is not None else None
        for kind in kinds:
            chosen = tables[kind] if kind is not None else None
            x = self.layer(x, position_embeddings=chosen)
            x = self.layer(x, by_kind.get(kind), position_embeddings=one)
        return x


class Slices(Layer):
    def forward(self, x, position_embeddings):
        cos = position_embeddings[0][..., :4]
        return self.layer(x, cos)


class Stacks(Layer):
    def forward(self, x, ids):
        table = self.rotary_emb(x, ids)
        return self.layer(x, torch.stack(table))


class Measures(Layer):
    def forward(self, x, ids):
        other = table = self.rotary_emb(x, ids)
        return self.layer(x, table) * other.cos.shape[-1]


class Returns(Layer):
    def forward(self, x, ids):
        return self.rotary_emb(x, ids)


class Adds(Layer):
    def forward(self, x, position_embeddings):
        return x + position_embeddings


def test_tables_may_be_named_chosen_and_handed_on():
    check_wiring(HandsOn, ("rotary_emb",))


@pytest.mark.parametrize("cls", [Slices, Stacks, Measures, Returns, Adds])
def test_whoever_computes_with_a_table_is_refused(cls):
    with pytest.raises(rw.ConfigError, match=rf"{cls.__name__}\.forward does more .* \(line \d+"):
        check_wiring(cls, ("rotary_emb",))


def test_a_model_whose_layer_slices_the_table_is_refused_whole():
    model = tiny_model("llama", num_hidden_layers=2)
    layer = model.model.layers[1]
    layer.__class__ = type("Sliced", (type(layer),), {"forward": Slices.forward})
    with pytest.raises(rw.ConfigError, match=r"model\.layers\.1 \(Sliced\).*does more"):
        rw.attach(model)
    assert not any("_ropewalk" in vars(module) for module in model.modules())


class SharesValues(Layer):
    def forward(self, x, table):
        q = self.q(x)
        k = self.k(x)
        v = k
        cos, sin = table
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k, v


class OneProjection(Layer):
    def forward(self, x, table):
        q, k = self.q(x).chunk(2, -1)
        cos, sin = table
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class KeepsVectors(Layer):
    def forward(self, x, table):
        q = self.q(x)
        k = self.k(x)
        cos, sin = table
        turned, k = apply_rotary_pos_emb(q, k, cos, sin)
        return turned, k, q


class FromInput(Layer):
    def forward(self, x, table):
        q = x.view(1, 1, 2, 4)
        k = self.k(x)
        cos, sin = table
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q, k


class Fresh(Layer):
    def forward(self, x, table):
        q = self.q(x).view(1, 1, 2, 4).transpose(1, 2)
        q = self.layer(q)
        k = self.k(x)
        cos, sin = table
        q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
        return q, k


@pytest.mark.parametrize("cls", [SharesValues, OneProjection, KeepsVectors, FromInput])
def test_vectors_that_others_may_see_are_not_fresh(cls):
    (call,) = rotating(cls).calls
    assert call.fresh is None


def test_vectors_that_are_views_of_outputs_are_fresh():
    (call,) = rotating(Fresh).calls
    assert call.fresh == ("q", "layer", "k")
    assert call.unsqueeze_dim == 2
    assert call.vectors == ("q", "k")


def test_a_redirected_method_keeps_name_globals_lines_and_decorators():
    original = LlamaAttention.forward
    found = rotating(LlamaAttention).methods["forward"]
    plain, redirected = original.__wrapped__, found.__wrapped__
    assert redirected.__globals__ is plain.__globals__
    assert redirected.__qualname__ == "LlamaAttention.forward"
    assert redirected.__code__.co_filename == plain.__code__.co_filename
    assert redirected.__code__.co_firstlineno == plain.__code__.co_firstlineno
    names = set(plain.__code__.co_names) ^ set(redirected.__code__.co_names)
    assert names == {"apply_rotary_pos_emb", "_ropewalk_apply_rotary_pos_emb"}
