"""Which kernel serves a call, and that none of them changes what autograd and torch see."""

import os
import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import ropewalk as rw
from ropewalk.errors import ConfigError, ShapeError
from ropewalk.rotary.kernels import native, native_status, ops, registry

needs_native = pytest.mark.skipif(not native.loaded(), reason=native_status())

ROPE = rw.RotaryEmbedding(rw.RopeSpec(head_dim=16, layout="half"))
PAIRED = rw.RotaryEmbedding(rw.RopeSpec(head_dim=16, layout="interleaved"))
IDS = torch.arange(3, 10)
TABLE = ROPE.table(IDS)


def vectors(*, seed=0, dtype=torch.float32, heads=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, heads, 7, 16, generator=generator).to(dtype)


def by_definition(x, rope=ROPE, table=TABLE):
    with rw.use_kernel("reference"):
        return rope.rotate(x, table=table)


class Spy:
    """The extension, counting the plain calls that it serves."""

    def __init__(self):
        self.real, self.served = native._extension, 0

    def __getattr__(self, name):
        return getattr(self.real, name)

    def rotate(self, guarded, *args):
        result = self.real.rotate(guarded, *args)
        self.served += bool(guarded and result is not None)
        return result


@pytest.fixture
def spy(monkeypatch):
    if not native.loaded():
        pytest.skip(native_status())
    spy = Spy()
    monkeypatch.setattr(native, "_extension", spy)
    return spy


def test_the_reference_is_always_there_and_auto_is_the_choice_at_first():
    assert rw.available_kernels()[0] == "reference"
    assert registry.current_kernel() == "auto"


def test_a_choice_ends_with_its_block_even_by_an_error():
    with rw.use_kernel("reference"):
        assert registry.current_kernel() == "reference"
        with pytest.raises(ConfigError), rw.use_kernel("eager"):
            rw.use_kernel("none")
        assert registry.current_kernel() == "reference"
    assert registry.current_kernel() == "auto"


def test_an_unknown_or_absent_kernel_is_refused_by_name(monkeypatch):
    with pytest.raises(ConfigError, match=r"name must be .*; got 'cuda'"):
        rw.use_kernel("cuda")
    monkeypatch.setattr(native, "_extension", None)
    monkeypatch.setattr(native, "_status", "native: the extension was not built")
    with pytest.raises(ConfigError, match="got 'native'; native: the extension was not built"):
        rw.use_kernel("native")
    assert rw.available_kernels() == ("reference", "eager")
    assert torch.equal(ROPE.rotate(vectors(), table=TABLE), by_definition(vectors()))


@pytest.mark.parametrize(
    ("value", "expected"), [("off", "native: off"), ("mmx", "must be off or one of")]
)
def test_the_environment_switches_the_kernel_off_or_says_what_it_may_name(value, expected):
    code = "from ropewalk.rotary.kernels import *; print(native_status(), available_kernels())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"ROPEWALK_NATIVE": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'native'" not in found.stdout
    if "was not built" not in found.stdout:
        assert expected in found.stdout
        # A name that means nothing is said once, aloud.
        assert ("RuntimeWarning: native: ROPEWALK_NATIVE must" in found.stderr) == (value != "off")


def test_every_plain_way_in_is_served_by_the_compiled_kernel(spy):
    q, k = vectors(), vectors(seed=1, heads=1)
    wanted = by_definition(q), by_definition(k)
    fresh = ROPE(q, k, table=TABLE)
    positioned = ROPE(q, k, IDS)
    given = ROPE(q, k, table=TABLE, out=(torch.empty_like(q), torch.empty_like(k)))
    both = q.clone(), k.clone()
    over = ROPE(*both, table=TABLE, out=both)
    assert over[0] is both[0]
    assert over[1] is both[1]
    for found in (fresh, positioned, given, over):
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
    assert spy.served == 4
    assert torch.equal(rw.rotate(q, *TABLE, layout="half"), wanted[0])
    assert torch.equal(
        ROPE.inverse(q, table=TABLE), rw.rotate(q, *TABLE, layout="half", inverse=True)
    )
    assert spy.served == 7
    with rw.use_kernel("reference"):
        ROPE(q, k, table=TABLE)
    assert spy.served == 7


def test_several_rotations_of_one_head_are_served_too(spy):
    low = rw.RopeSpec(head_dim=16, layout="half", rotary_dim=6, rotary_offset=2)
    high = rw.RopeSpec(head_dim=16, layout="interleaved", rotary_dim=8, rotary_offset=8)
    rope = rw.RotaryEmbedding(rw.RopeSpec(head_dim=16, layout="half", blocks=(low, high)))
    x, table = vectors(), rope.table(IDS)
    wanted = by_definition(x, rope, table)
    assert torch.equal(rope.rotate(x, table=table), wanted)
    out = torch.empty_like(x)
    assert rope.rotate(x, table=table, out=out) is out
    assert torch.equal(out, wanted)
    assert rope.rotate(x, table=table, out=x) is x
    assert torch.equal(x, wanted)
    assert spy.served == 6


def test_gradients_are_those_of_the_definition(spy):
    x, weight = vectors().requires_grad_(), vectors(seed=2)
    turned = ROPE.rotate(x, table=TABLE)
    (turned * weight).sum().backward()
    with rw.use_kernel("reference"):
        y = vectors().requires_grad_()
        expected = ROPE.rotate(y, table=TABLE)
        (expected * weight).sum().backward()
    assert torch.equal(turned, expected)
    assert torch.equal(x.grad, y.grad)
    assert spy.served == 0
    with torch.no_grad():
        ROPE.rotate(x, table=TABLE)
    assert spy.served == 1


@pytest.mark.parametrize("rope", [ROPE, PAIRED], ids=["half", "interleaved"])
def test_first_and_second_derivatives(rope):
    x = vectors(dtype=torch.float64)[:1, :1, :2].requires_grad_()
    table = rope.table(IDS[:2], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: rope.rotate(x, table=table), x)
    assert torch.autograd.gradgradcheck(lambda x: rope.rotate(x, table=table), x)


def test_writing_while_gradients_are_recorded_is_refused():
    x = vectors().requires_grad_()
    with pytest.raises(ConfigError, match="out must not be given while gradients are recorded"):
        ROPE.rotate(x, table=TABLE, out=x)
    with torch.no_grad():
        before = by_definition(x)
        assert ROPE.rotate(x, table=TABLE, out=x) is x
        assert torch.equal(x, before)


def test_a_table_that_learns_gets_its_gradient():
    cos, sin = (part.clone().requires_grad_() for part in TABLE)
    rw.rotate(vectors(), cos, sin, layout="half").square().sum().backward()
    assert cos.grad is not None
    assert cos.grad.abs().sum() > 0
    assert sin.grad is not None


def test_a_rotation_in_place_is_seen_by_autograd():
    x, weight = vectors(), vectors(seed=3).requires_grad_()
    product = x * weight
    ROPE.rotate(x, table=TABLE, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


class Marked(torch.Tensor):
    pass


def test_a_subclass_stays_one(spy):
    found = ROPE.rotate(vectors().as_subclass(Marked), table=TABLE)
    assert type(found) is Marked
    assert torch.equal(found.as_subclass(torch.Tensor), by_definition(vectors()))
    assert spy.served == 0


def test_modes_see_the_rotation(spy):
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    for mode in (Functions, Calls):
        seen.clear()
        with mode():
            found = ROPE.rotate(vectors(), table=TABLE)
        assert seen
        assert torch.equal(found, by_definition(vectors()))
    assert spy.served == 0


def test_transforms_get_the_definition(spy):
    x, tangent = vectors(), vectors(seed=4)

    def turn(x):
        return ROPE.rotate(x, table=TABLE)

    stack = torch.stack([x, tangent])
    assert torch.equal(torch.vmap(turn)(stack)[1], by_definition(tangent))
    assert torch.equal(torch.func.jvp(turn, (x,), (tangent,))[1], by_definition(tangent))
    grad = torch.func.grad(lambda x: (turn(x) * tangent).sum())(x)
    assert torch.equal(grad, ROPE.inverse(tangent, table=TABLE))
    with forward_ad.dual_level():
        dual = turn(forward_ad.make_dual(x, tangent))
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, by_definition(tangent))
    assert spy.served == 1  # the inverse, outside all of them


def test_a_view_of_negated_numbers_is_read_as_what_it_means():
    x = torch.complex(vectors(), vectors(seed=5)).conj().imag
    assert x.is_neg()
    assert torch.equal(ROPE.rotate(x, table=TABLE), by_definition(x.clone()))


def test_tensors_of_inference_mode_are_written_inside_it_alone():
    with torch.inference_mode():
        x = vectors()
        wanted = by_definition(x)
        assert torch.equal(ROPE.rotate(x, table=TABLE), wanted)
        ROPE.rotate(x, table=TABLE, out=x)
        assert torch.equal(x, wanted)
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        ROPE.rotate(x, table=TABLE, out=x)


@pytest.mark.parametrize("grad", [False, True])
def test_autocast_changes_nothing(grad):
    x = vectors().requires_grad_(grad)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ROPE.rotate(x, table=TABLE)
    assert found.dtype == torch.float32
    assert torch.equal(found, by_definition(x))


def test_slices_of_a_fused_projection_turn_in_place(spy):
    fused = torch.randn(2, 7, 3 * 3 * 16)
    q, k, v = fused.view(2, 7, 3, 3, 16).unbind(2)
    wanted, before = [by_definition(x.transpose(1, 2)).transpose(1, 2) for x in (q, k)], v.clone()
    ROPE(q, k, table=TABLE, seq_dim=-3, out=(q, k))
    assert spy.served == 1
    assert torch.equal(q, wanted[0])
    assert torch.equal(k, wanted[1])
    assert torch.equal(v, before)


def test_an_output_that_overlaps_the_input_holds_the_rotation_of_what_was_there():
    memory = torch.randn(2 * 3 * 8 * 16)
    x, out = memory[: 2 * 3 * 7 * 16].view(2, 3, 7, 16), memory[16:][: 2 * 3 * 7 * 16]
    wanted = by_definition(x.clone())
    ROPE.rotate(x, table=TABLE, out=out.view(2, 3, 7, 16))
    assert torch.equal(out.view(2, 3, 7, 16), wanted)


def test_outputs_may_be_the_inputs_exchanged():
    q, k = vectors(), vectors(seed=1)
    wanted = by_definition(q), by_definition(k)
    found = ROPE(q, k, table=TABLE, out=(k, q))
    assert found[0] is k
    assert torch.equal(k, wanted[0])
    assert torch.equal(q, wanted[1])


def test_a_key_that_does_not_fit_leaves_the_query_as_it_was():
    q, k = vectors(), vectors(heads=1)[:, :, :5]
    before = q.clone()
    for kernel in rw.available_kernels():
        with rw.use_kernel(kernel), pytest.raises(ShapeError, match=r"\(2, 1, 5, 16\)"):
            ROPE(q, k, table=TABLE, out=(q, k))
        assert torch.equal(q, before)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("layouts", [("half",) * 2, ("interleaved",) * 2, ("interleaved", "half")])
def test_instruction_sets_and_threads_agree_to_the_bit(dtype, layouts):
    x = torch.randn(2, 3, 150, 144, dtype=torch.float64).to(dtype)
    spec = rw.RopeSpec(144, layouts[0], rotary_dim=134, rotary_offset=4, output_layout=layouts[1])
    rope = rw.RotaryEmbedding(spec)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    table = rope.table(torch.arange(150), dtype=wide)
    wanted = by_definition(x, rope, table)
    threads = torch.get_num_threads()
    sets = [name for name, here in native.instruction_sets().items() if here]
    assert "generic" in sets
    try:
        for name in sets:
            assert native.select_instruction_set(name)
            for count in (1, 2):
                torch.set_num_threads(count)
                assert torch.equal(rope.rotate(x, table=table), wanted), (name, count)
                assert torch.equal(rope.rotate(x.clone(), table=table, out=x.clone()), wanted)
    finally:
        torch.set_num_threads(threads)
        assert native.select_instruction_set(None)
    assert not native.select_instruction_set("none of these")


@needs_native
@pytest.mark.parametrize("seq_dim", [-2, -3])
def test_the_operators_pass_the_checks_of_torch(seq_dim):
    x = vectors() if seq_dim == -2 else vectors().transpose(1, 2)
    for source, target, inverse in (
        (True, True, False),
        (False, False, True),
        (True, False, False),
    ):
        how = (*TABLE, seq_dim, 0, source, target, inverse)
        torch.library.opcheck(ops.rotate_op, (x.detach().clone().requires_grad_(), *how))
        torch.library.opcheck(ops.rotate_in_place_op, (x.clone(), *how))
    torch.library.opcheck(ops.rotate_op, (x[..., ::1].expand(2, *x.shape)[0], *how))
