"""Arguments that cannot be meant, refused by every kernel in one line that names the value."""

import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode

import ropewalk as rw
from ropewalk.errors import ConfigError, ShapeError

SPEC = rw.RopeSpec(head_dim=16, layout="half")
ROPE = rw.RotaryEmbedding(SPEC)
STRETCHED = rw.RotaryEmbedding(
    rw.RopeSpec(16, "half", scaling=rw.Yarn(factor=4.0, original_max_position_embeddings=8))
)
IDS = torch.arange(7)
COS, SIN = ROPE.table(IDS)


def nested(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls them a prototype
        return torch.nested.nested_tensor(list(x))


def quantized(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to move them elsewhere
        return torch.quantize_per_tensor(x, 1.0, 0, torch.quint8)


REFUSED = {
    "nested x": (lambda x: ROPE.rotate(nested(x), table=(COS, SIN)), "x must be .*; got a nested"),
    "nested k": (lambda x: ROPE(x, nested(x), IDS), "k must be a dense tensor; got a nested"),
    "nested table": (
        lambda x: ROPE.rotate(x, table=(nested(COS[None]), SIN)),
        "cos must be a dense tensor; got a nested one",
    ),
    "nested positions": (
        lambda x: ROPE.rotate(x, nested(IDS[None].float())),
        "position_ids must be a dense tensor; got a nested one",
    ),
    "sparse table": (
        lambda x: ROPE.rotate(x, table=(COS, SIN.to_sparse())),
        "sin must be a dense tensor; got one of layout torch.sparse_coo",
    ),
    "sparse out": (
        lambda x: ROPE.rotate(x, table=(COS, SIN), out=x.to_sparse()),
        "out must be a dense tensor; got one of layout torch.sparse_coo",
    ),
    "opaque table": (
        lambda x: rw.rotate(x, COS.to_mkldnn(), SIN, layout="half"),
        "cos must be a dense tensor; got one of layout torch._mkldnn",
    ),
    "quantized positions": (
        lambda x: ROPE.rotate(x, quantized(IDS.float())),
        "position_ids must be integers, .*; got torch.quint8",
    ),
    "table elsewhere": (
        lambda x: ROPE.rotate(x, table=(COS, SIN.to("meta"))),
        "sin must be on the device of x, cpu; got one on meta",
    ),
    "x elsewhere": (
        lambda x: ROPE.rotate(x.to("meta"), table=(COS, SIN)),
        "cos must be on the device of x, meta; got one on cpu",
    ),
    "table of numbers without signs": (
        lambda x: ROPE.inverse(x, table=(COS.bool(), SIN.bool())),
        "cos must be float32 or float64, .*; got torch.bool",
    ),
    "the same, by the function": (
        lambda x: rw.rotate(x, COS.bool(), SIN.bool(), layout="half", inverse=True),
        "cos must be float32 or float64, .*; got torch.bool",
    ),
    "table of two shapes": (
        lambda x: STRETCHED.inverse(x, table=(COS, SIN[:3])),
        r"one shape .*; got \(7, 8\) and \(3, 8\)",
    ),
    "table of one number": (
        lambda x: ROPE.rotate(x, table=(COS[0, 0], SIN[0, 0])),
        r"one shape .*; got \(\) and \(\)",
    ),
    "no seq_dim": (
        lambda x: ROPE.rotate(x, torch.tensor(3), seq_dim=None),
        "seq_dim must be an integer; got None",
    ),
    "one output": (
        lambda x: ROPE(x, x, table=(COS, SIN), out=(None, torch.empty_like(x))),
        "out for q must be a tensor; got NoneType",
    ),
    "no outputs": (
        lambda x: ROPE(x, x, table=(COS, SIN), out=(None, None)),
        "out for q must be a tensor; got NoneType",
    ),
    "tuple for one output": (
        lambda x: ROPE.rotate(x, table=(COS, SIN), out=(x,)),
        "out must be a tensor; got tuple",
    ),
    "offset beyond all machines": (
        lambda x: rw.rotate(x, COS, SIN, layout="half", rotary_offset=2**63),
        "rotary_offset=9223372036854775808",
    ),
    "inverse by a word": (
        lambda x: rw.rotate(x, COS, SIN, layout="half", inverse="no"),
        "inverse must be True or False; got 'no'",
    ),
}


@pytest.mark.parametrize("kernel", rw.available_kernels())
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_alike_by_every_kernel(kernel, name):
    call, message = REFUSED[name]
    x = torch.randn(2, 3, 7, 16)
    before = x.clone()
    with rw.use_kernel(kernel), pytest.raises((ShapeError, ConfigError), match=message):
        call(x)
    assert torch.equal(x, before)


def test_a_module_that_was_used_serves_fake_tensors_and_then_real_ones():
    rope = rw.RotaryEmbedding(SPEC)
    x = torch.randn(2, 3, 7, 16)
    wanted = rope.rotate(x, IDS)
    with FakeTensorMode():
        fake = rope.rotate(torch.empty(2, 3, 7, 16), torch.arange(7))
    assert fake.shape == wanted.shape
    assert type(fake) is not torch.Tensor
    assert torch.equal(rope.rotate(x, IDS), wanted)
