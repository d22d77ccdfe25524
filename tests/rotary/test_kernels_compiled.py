"""Compiled, exported and traced code that rotates, whichever kernel serves it."""

import pytest
import torch

import ropewalk as rw

ROPE = rw.RotaryEmbedding(rw.RopeSpec(head_dim=16, layout="half"))
IDS = torch.arange(3, 10)
TABLE = ROPE.table(IDS)


def vectors(*, seed=0, heads=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, heads, 7, 16, generator=generator)


def by_definition(x):
    with rw.use_kernel("reference"):
        return ROPE.rotate(x, table=TABLE)


def test_compiled_code_has_one_graph_for_all_lengths():
    from torch._dynamo.testing import CompileCounter

    def turn(q, k, ids):
        return ROPE(q, k, table=ROPE.table(ids))

    counter = CompileCounter()
    compiled = torch.compile(turn, backend=counter, fullgraph=True, dynamic=True)
    for length in (5, 9, 64, 33):
        q, k = torch.randn(2, 3, length, 16), torch.randn(2, 1, length, 16)
        found, wanted = compiled(q, k, torch.arange(length)), turn(q, k, torch.arange(length))
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
    assert counter.frame_count == 1


def test_compiled_code_differentiates_and_turns_in_place():
    weight = vectors(seed=6)

    def loss(x):
        return (ROPE.rotate(x, table=TABLE) * weight).sum()

    def over(q, k):
        return ROPE(q, k, table=TABLE, out=(q, k))

    x = vectors().requires_grad_()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(x).backward()
    assert torch.allclose(x.grad, ROPE.inverse(weight, table=TABLE), atol=1e-6)
    q, k = vectors(), vectors(seed=1)
    wanted = by_definition(q), by_definition(k)
    torch.compile(over, backend="aot_eager", fullgraph=True)(q, k)
    assert torch.equal(q, wanted[0])
    assert torch.equal(k, wanted[1])


class Turning(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rope = ROPE

    def forward(self, x, ids):
        return self.rope.rotate(x, ids)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_graph_holds_operators_of_torch_alone(strict):
    length = torch.export.Dim("length")
    exported = torch.export.export(
        Turning(), (vectors(), IDS), strict=strict, dynamic_shapes=({2: length}, {0: length})
    )
    targets = {str(n.target) for n in exported.graph.nodes if n.op == "call_function"}
    assert targets
    assert all(name.startswith(("aten.", "<built-in")) for name in targets), targets
    longer = torch.randn(2, 3, 21, 16)
    found = exported.module()(longer, torch.arange(21))
    assert torch.allclose(found, ROPE.rotate(longer, torch.arange(21)), atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # tracing is deprecated, and says what it cannot record
def test_a_traced_graph_holds_operators_of_torch_alone():
    traced = torch.jit.trace(lambda x: ROPE.rotate(x, table=TABLE), vectors())
    assert "ropewalk::" not in str(traced.graph)
    assert torch.equal(traced(vectors(seed=7)), by_definition(vectors(seed=7)))
