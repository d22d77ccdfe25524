"""The rotation under autograd, functorch, torch.compile, torch.export and ONNX."""

import pytest
import torch
from rotary_cases import assert_alike
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from ropewalk import RopeSpec, RotaryEmbedding, rotate

SPECS = [
    RopeSpec(8, "interleaved"),
    RopeSpec(8, "half"),
    RopeSpec(8, "interleaved", output_layout="half", rotary_dim=4, rotary_offset=2),
    RopeSpec(8, "half", output_layout="interleaved", rotary_dim=6, rotary_offset=2),
]
specs = pytest.mark.parametrize(
    "spec", SPECS, ids=lambda s: f"{s.layout}-{s.output_layout}-{s.rotary_dim}"
)


def vectors(*shape, dtype=torch.float64, grad=False):
    x = torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(grad)


@specs
def test_gradient_and_double_backward_match_finite_differences(spec):
    rope, x = RotaryEmbedding(spec), vectors(2, 3, 8, grad=True)
    rotate_ = lambda x: rope.rotate(x, torch.arange(3))  # noqa: E731
    assert gradcheck(rotate_, (x,))
    assert gradgradcheck(lambda x: rotate_(x) ** 2, (x,))


@specs
def test_gradient_is_the_inverse_rotation(spec):
    rope, x = RotaryEmbedding(spec), vectors(2, 3, 8, grad=True)
    g = torch.randn(2, 3, 8, dtype=torch.float64)
    (got,) = torch.autograd.grad(rope.rotate(x, torch.arange(3)), x, g)
    torch.testing.assert_close(got, rope.inverse(g, torch.arange(3)), atol=1e-14, rtol=0)


def test_gradients_reach_learned_frequencies_and_real_positions():
    x = vectors(3, 4)
    cos, sin = vectors(3, 2, grad=True), vectors(3, 2, grad=True)
    assert gradcheck(lambda c, s: rotate(x, c, s, layout="half"), (cos, sin))
    rope = RotaryEmbedding(RopeSpec(4, "half"))
    positions = torch.tensor([0.5, 2.0, -3.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda p: rope.rotate(x, p), (positions,))


@specs
def test_forward_mode_derivative_is_the_rotated_tangent(spec):
    rope, x, t = RotaryEmbedding(spec), vectors(3, 8), torch.randn(3, 8, dtype=torch.float64)
    with forward_ad.dual_level():
        y = rope.rotate(forward_ad.make_dual(x, t), torch.arange(3))
        tangent = forward_ad.unpack_dual(y).tangent
    torch.testing.assert_close(tangent, rope.rotate(t, torch.arange(3)), atol=1e-14, rtol=0)


@specs
def test_vmap_is_a_loop(spec):
    rope, x = RotaryEmbedding(spec), vectors(4, 2, 3, 8)
    positions = torch.arange(12).view(4, 3)
    got = torch.func.vmap(rope.rotate)(x, positions)
    want = torch.stack([rope.rotate(a, p) for a, p in zip(x, positions, strict=True)])
    assert torch.equal(got, want)
    inner = torch.func.vmap(rope.rotate, in_dims=(2, None), out_dims=2)(
        x.permute(1, 2, 0, 3), torch.arange(3)
    )
    assert inner.shape == (2, 3, 4, 8)


def test_per_sample_gradients_work():
    rope, x = RotaryEmbedding(SPECS[0]), vectors(4, 3, 8)
    loss = lambda x: (rope.rotate(x, torch.arange(3)) ** 3).sum()  # noqa: E731
    got = torch.func.vmap(torch.func.grad(loss))(x)
    for row in range(4):
        torch.testing.assert_close(got[row], torch.func.grad(loss)(x[row]), atol=1e-14, rtol=0)


@specs
def test_compile_has_no_breaks_and_compiles_once_for_all_lengths(spec):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    rope, counter = RotaryEmbedding(spec), CompileCounter()
    compiled = torch.compile(
        lambda q, k, p: rope(q, k, p), fullgraph=True, dynamic=True, backend=counter
    )
    for seq in (5, 9, 17, 33):
        q = vectors(2, seq, 4, 8, dtype=torch.float32).transpose(1, 2)
        k = vectors(2, 2, seq, 8, dtype=torch.float32)
        got, want = compiled(q, k, torch.arange(seq)), rope(q, k, torch.arange(seq))
        for a, b in zip(got, want, strict=True):
            assert_alike(a, b)
            assert a.stride() == b.stride()
    assert counter.frame_count == 1


class Rotate(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.rope = RotaryEmbedding(spec)

    def forward(self, q, k, position_ids):
        return self.rope(q, k, position_ids)


def example(seq=7):
    return (
        vectors(2, 3, seq, 8, dtype=torch.float32),
        vectors(2, 1, seq, 8, dtype=torch.float32),
        torch.arange(seq) + 100,
    )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2]], ids=["whole", "partial"])
def test_export_keeps_the_length_free_and_uses_aten_alone(spec, strict):
    seq = torch.export.Dim("seq", min=2, max=1 << 20)
    program = torch.export.export(
        Rotate(spec), example(), dynamic_shapes=({2: seq}, {2: seq}, {0: seq}), strict=strict
    )
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert all(name.startswith(("aten.", "<built-in function")) for name in targets), targets
    assert not any("complex" in name or "polar" in name for name in targets)
    for got, want in zip(program.module()(*example(31)), Rotate(spec)(*example(31)), strict=True):
        assert_alike(got, want)


@pytest.mark.filterwarnings("ignore")  # the exporter's own remarks
def test_onnx_runs_at_other_lengths(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    seq = torch.export.Dim("seq", min=2, max=1 << 20)
    model = Rotate(SPECS[0]).eval()
    path = tmp_path / "rope.onnx"
    torch.onnx.export(
        model,
        example(),
        path,
        dynamo=True,
        dynamic_shapes=({2: seq}, {2: seq}, {0: seq}),
        input_names=["q", "k", "p"],
        verbose=False,
    )
    session = ort.InferenceSession(path)
    q, k, p = example(40)
    got = session.run(None, {"q": q.numpy(), "k": k.numpy(), "p": p.numpy()})
    for a, b in zip(got, model(q, k, p), strict=True):
        # onnxruntime's sine and cosine differ from torch's by an ulp or two
        torch.testing.assert_close(torch.from_numpy(a), b, atol=1e-6, rtol=0)
