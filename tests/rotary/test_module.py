import copy
import io
import pickle

import contract
import numpy as np
import pytest
import torch
from oracle import assert_within_contract, rotated
from rotary_cases import assert_alike

from ropewalk import ConfigError, Linear, RopeSpec, RotaryEmbedding, RotaryTable, ShapeError
from ropewalk.spec.scaling import ScalingRule

SPEC = RopeSpec(8, "interleaved")


def make():
    return RotaryEmbedding(SPEC)


def warmed(positions=3):
    rope = make()
    rope.rotate(torch.randn(positions, 8), torch.arange(positions))
    return rope


def through_meta():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), make())
    return model.to_empty(device="cpu")[1]


def saved_and_loaded(rope):
    buffer = io.BytesIO()
    torch.save(rope, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)  # our own object, made on the line above


LIFE_CYCLES = {
    "fresh": make,
    "half": lambda: warmed().half(),
    "to_bfloat16": lambda: warmed().to(torch.bfloat16),
    "bfloat16_inside_a_model": lambda: torch.nn.Sequential(warmed()).bfloat16()[0],
    "double": lambda: warmed().double(),
    "meta_and_to_empty": through_meta,
    "deepcopy": lambda: copy.deepcopy(warmed().bfloat16()),
    "copy": lambda: copy.copy(warmed()),
    "pickle": lambda: pickle.loads(pickle.dumps(warmed().half())),
    "torch_save": lambda: saved_and_loaded(warmed()),
    "state_dict": lambda: (lambda new: (new.load_state_dict(warmed().state_dict()), new)[1])(
        make()
    ),
}


@pytest.mark.parametrize("cycle", LIFE_CYCLES.values(), ids=LIFE_CYCLES.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rotation_survives_every_life_cycle(cycle, dtype):
    assert contract.check_precision(cycle(), dtype) is None


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16, torch.float16])
def test_rotation_survives_set_default_dtype(default):
    torch.set_default_dtype(default)
    try:
        assert contract.check_precision(make()) is None
        assert contract.check_precision(warmed()) is None
    finally:
        torch.set_default_dtype(torch.float32)


def test_rotation_survives_a_default_device():
    with torch.device("meta"):
        rope = make()
        table = rope.table(torch.arange(3, device="cpu"))
    assert table.cos.device.type == "cpu"
    assert contract.check_precision(rope) is None


def test_autocast_changes_nothing():
    rope, x = make(), torch.randn(4, 8)
    want = rope.rotate(x, torch.arange(4) + 9_999_000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(make().rotate(x, torch.arange(4) + 9_999_000), want)
        assert contract.check_precision(make()) is None


def test_inference_mode_does_not_spoil_later_training():
    rope = make()
    with torch.inference_mode():
        rope.rotate(torch.randn(3, 8), torch.arange(3))
    positions = torch.arange(3.0, requires_grad=True)
    rope.rotate(torch.randn(3, 8), positions).sum().backward()
    assert positions.grad.isfinite().all()


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
def test_rotation_survives_fsdp(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), warmed())
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        assert contract.check_precision(model[1]) is None
    finally:
        dist.destroy_process_group()


def test_nothing_is_state():
    rope = warmed()
    assert list(rope.state_dict()) == []
    assert list(rope.parameters()) == []
    assert list(rope.buffers()) == []
    assert rope._on_device
    assert copy.deepcopy(rope)._on_device == {}
    assert rope._on_device, "copying must not empty the original"


def test_frequencies_are_copied_to_a_device_once():
    rope = make()
    for _ in range(3):
        rope.table(torch.arange(4))
    assert len(rope._on_device) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_output_has_the_dtype_of_the_input(dtype):
    q, k = torch.randn(2, 1, 2, 3, 8).to(dtype)
    rotated_q, rotated_k = make()(q, k, torch.arange(3))
    assert rotated_q.dtype == rotated_k.dtype == dtype


def test_float64_vectors_get_float64_tables():
    x = torch.randn(3, 8, dtype=torch.float64)
    y = make().rotate(x, torch.tensor([1, 1000, 10_000_000]))
    # angles of float64 at 1e7 are known to 2e-9
    torch.testing.assert_close(y, rotated(x, SPEC, [1, 1000, 10_000_000]), atol=1e-8, rtol=0)


@pytest.mark.parametrize("shape", [(), (5,), (2, 5)])
def test_table_has_the_shape_of_the_positions_and_half_the_width(shape):
    table = make().table(torch.zeros(shape, dtype=torch.long))
    assert isinstance(table, RotaryTable)
    assert table.cos.shape == table.sin.shape == (*shape, 4)
    assert table.cos.dtype == torch.float32


def test_a_table_serves_every_layer():
    rope, positions = make(), torch.randint(0, 1000, (2, 5))
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    table = rope.table(positions)
    for got, want in zip(rope(q, k, table=table), rope(q, k, positions), strict=True):
        assert torch.equal(got, want)
    cos, sin = table
    assert torch.equal(rope.rotate(q, table=(cos, sin)), rope.rotate(q, positions))


def test_zero_dimensional_position_rotates_everything_alike():
    x = torch.randn(3, 5, 8)
    want = make().rotate(x, torch.full((5,), 7))
    assert_alike(make().rotate(x, torch.tensor(7)), want)
    assert_alike(make().rotate(x[0, 0], torch.tensor(7)), want[0, 0])


def test_negative_and_fractional_positions_turn_as_the_formula_says():
    x = torch.randn(4, 8)
    positions = torch.tensor([-3.0, -0.25, 0.5, 2.75], dtype=torch.float64)
    assert_within_contract(make().rotate(x, positions), x, SPEC, positions)
    torch.testing.assert_close(
        make().rotate(x, -positions), make().inverse(x, positions), atol=1e-7, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integer_positions_of_any_width_agree(dtype):
    x = torch.randn(5, 8)
    assert torch.equal(
        make().rotate(x, torch.arange(5).to(dtype)), make().rotate(x, torch.arange(5))
    )


@pytest.mark.parametrize("direction", [1, -1])
def test_position_map_and_direction(direction):
    spec = SPEC.replace(position_offset=3.0, position_scale=0.5, direction=direction)
    x = torch.randn(4, 8)
    y = RotaryEmbedding(spec).rotate(x, torch.tensor([0, 1, 50, 9000]))
    assert_within_contract(y, x, spec, [0, 1, 50, 9000])
    same = make().rotate(x, direction * (torch.tensor([0, 1, 50, 9000]).double() + 3) * 0.5)
    torch.testing.assert_close(y, same, atol=1e-6, rtol=0)


def test_axes_read_their_own_positions():
    axes = ((0, 0), (1, 0), (0, 1), (2, 1))
    spec = RopeSpec(8, "half", axes=axes, frequency_dim=4)
    positions = torch.randint(0, 50, (3, 2, 5))
    x = torch.randn(2, 1, 5, 8, dtype=torch.float64)
    y = RotaryEmbedding(spec).rotate(x, positions)
    from oracle import rotation_matrix

    for b in range(2):
        for s in range(5):
            R = torch.from_numpy(rotation_matrix(spec, positions[:, b, s].numpy()))
            torch.testing.assert_close(y[b, 0, s], R @ x[b, 0, s], atol=1e-13, rtol=0)


def test_blocks_rotate_their_own_slices():
    left = RopeSpec(9, "half", rotary_dim=4, theta=100.0)
    right = RopeSpec(9, "interleaved", rotary_dim=4, rotary_offset=5)
    both = RotaryEmbedding(RopeSpec(9, "half", blocks=(right, left)))
    x = torch.randn(2, 6, 9)
    y = both.rotate(x, torch.arange(6))
    assert_within_contract(y, x, both.spec, torch.arange(6))
    one_by_one = RotaryEmbedding(right).rotate(
        RotaryEmbedding(left).rotate(x, torch.arange(6)), torch.arange(6)
    )
    assert torch.equal(y, one_by_one)


def test_float32_angles_reproduce_models_trained_that_way():
    spec = RopeSpec(64, "half", angle_dtype="float32")
    positions = torch.tensor([0, 1, 4095, 131_071])
    inv_freq = torch.from_numpy(spec.inv_freq()).float()
    want = positions.float()[:, None] * inv_freq
    table = RotaryEmbedding(spec).table(positions)
    assert torch.equal(table.cos, want.cos())
    assert torch.equal(table.sin, want.sin())


class Louder(ScalingRule):
    """A rule with an amplitude, as YaRN has one."""

    def inv_freq(self, ladder, seq_len):
        return ladder.inv_freq() * 0.5

    def amplitude(self, seq_len):
        return 1.25


def test_amplitude_multiplies_the_rotated_part_and_inverse_divides_it_out():
    spec = RopeSpec(10, "half", rotary_dim=8, scaling=Louder())
    rope = RotaryEmbedding(spec)
    x = torch.randn(5, 10, dtype=torch.float64)
    y = rope.rotate(x, torch.arange(5))
    torch.testing.assert_close(y, rotated(x, spec, np.arange(5)), atol=1e-13, rtol=0)
    torch.testing.assert_close(rope.inverse(y, torch.arange(5)), x, atol=1e-14, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_shift_equals_rotating_at_the_new_place(dtype):
    source = RopeSpec(8, "interleaved", output_layout="half", scaling=Louder(), direction=-1)
    target = source.replace(scaling=Linear(4.0), direction=1)
    x = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    here, there = torch.arange(6) + 5000, torch.arange(6) + 10
    cached = RotaryEmbedding(source).rotate(x, here).to(dtype)
    moved = RotaryEmbedding(target).shift(cached, here, there, from_spec=source)
    want = RotaryEmbedding(target).rotate(
        RotaryEmbedding(source).inverse(cached.double(), here), there
    )
    assert moved.dtype == dtype
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(moved.double(), want, atol=tolerance, rtol=0)


def test_shift_by_one_distance_moves_a_whole_cache():
    rope, k = make(), torch.randn(1, 2, 6, 8, dtype=torch.float64)
    cached = rope.rotate(k, torch.arange(6) + 100)
    moved = rope.shift(cached, torch.tensor(100), torch.tensor(0))
    torch.testing.assert_close(moved, rope.rotate(k, torch.arange(6)), atol=1e-12, rtol=0)


def test_shift_refuses_other_pairs():
    with pytest.raises(ConfigError, match=r"same coordinates .*got \[\('half', 0, 8\)\]"):
        make().shift(
            torch.randn(3, 8), torch.arange(3), torch.arange(3), from_spec=RopeSpec(8, "half")
        )


x = torch.randn(2, 3, 5, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r(x, x), r"exactly one of position_ids and table must be given; got neither"),
        (
            lambda r: r(x, x, torch.arange(5), table=r.table(torch.arange(5))),
            r"exactly one of position_ids and table must be given; got both",
        ),
        (lambda r: r.rotate(x), r"got neither"),
        (lambda r: r.inverse(x), r"got neither"),
        (lambda r: r.rotate(x, [0, 1, 2, 3, 4]), r"position_ids must be a tensor; got list"),
        (lambda r: r.rotate(x, torch.arange(5).bfloat16()), r"position_ids must be .*bfloat16"),
        (lambda r: r.rotate(x, torch.arange(5) > 2), r"position_ids must be .*got torch.bool"),
        (lambda r: r.rotate(x, torch.zeros(1, 2, 5)), r"got \(1, 2, 5\)"),
        (lambda r: r.rotate(x, torch.arange(4)), r"table \(4, 4\), x \(2, 3, 5, 8\)"),
        (lambda r: r.rotate(x[..., :6], torch.arange(5)), r"head_dim=8 .*got \(2, 3, 5, 6\)"),
        (
            lambda r: r.rotate(x, table=(torch.ones(5, 3), torch.ones(5, 3))),
            r"one column for each of the 4 pairs; got \(5, 3\)",
        ),
        (lambda r: r.rotate(x, table=torch.ones(5, 4)), r"table must be a pair .*got Tensor"),
        (lambda r: r.rotate(x.numpy(), torch.arange(5)), r"x must be a tensor; got ndarray"),
        (lambda r: r.rotate(x, torch.arange(5), role="value"), r"role must be .*got 'value'"),
        (lambda r: r.table(torch.arange(5), dtype=torch.float16), r"got torch.float16"),
        (lambda r: r.table(torch.arange(5), seq_len=0), r"seq_len must be .*got 0"),
        (lambda r: r(x, x, torch.arange(5), out=x), r"out must be two tensors.*got Tensor"),
        (lambda r: RotaryEmbedding(8), r"spec must be a RopeSpec; got int"),
        (lambda r: r.rotate(x.long(), torch.arange(5)), r"x must be .*got torch.int64"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(call, message):
    with pytest.raises((ShapeError, ConfigError), match=message) as caught:
        call(make())
    assert "\n" not in str(caught.value)


def test_several_axes_need_that_many_rows_of_positions():
    rope = RotaryEmbedding(RopeSpec(4, "half", axes=((0, 0), (1, 0))))
    with pytest.raises(ShapeError, match=r"\(2, seq\) or \(2, batch, seq\) .*got \(5,\)"):
        rope.rotate(torch.randn(5, 4), torch.arange(5))
    with pytest.raises(ShapeError, match=r"got \(3, 5\)"):
        rope.rotate(torch.randn(5, 4), torch.zeros(3, 5))


def test_repr_shows_the_spec():
    assert "theta=10000.0" in repr(make())


@pytest.mark.parametrize(
    "outputs",
    [
        lambda q, k: (q, k),
        lambda q, k: (k, q),
        lambda q, k: (k, torch.empty_like(k)),
        lambda q, k: (torch.empty_like(q), q),
    ],
    ids=["in place", "swapped", "q into k", "k into q"],
)
def test_an_output_may_be_the_other_input(outputs):
    q, k = torch.randn(2, 2, 3, 5, 8)
    want = make()(q, k, torch.arange(5))
    got = make()(q, k, torch.arange(5), out=outputs(q, k))
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_slices_of_one_buffer_may_be_rotated_in_place():
    qkv = torch.randn(2, 5, 3, 4, 8)
    q, k = qkv[:, :, 0], qkv[:, :, 1]
    want = make()(q, k, torch.arange(5), seq_dim=-3)
    v = qkv[:, :, 2].clone()
    make()(q, k, torch.arange(5), seq_dim=-3, out=(q, k))
    assert torch.equal(qkv[:, :, 0], want[0])
    assert torch.equal(qkv[:, :, 1], want[1])
    assert torch.equal(qkv[:, :, 2], v)


def test_overlapping_inputs_are_read_before_they_are_written():
    buffer = torch.randn(3, 5, 8)
    q, k = buffer[:2], buffer[1:]
    want = make()(q, k, torch.arange(5))
    out = (torch.empty_like(q), k)
    assert torch.equal(make()(q, k, torch.arange(5), out=out)[0], want[0])
    assert torch.equal(k, want[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r, a: r(a, a, torch.arange(5), out=(a, a)), r"same memory for q and for k"),
        (
            lambda r, a: r(a, a, torch.arange(5), out=(a, a.view(a.shape))),
            r"same memory for q and for k",
        ),
        (lambda r, a: r(a, a, torch.arange(5), out=(a, None)), r"out for k must be a tensor"),
        (lambda r, a: r.rotate(a, torch.arange(5), out="x"), r"out must be a tensor; got str"),
        (
            lambda r, a: r.rotate(a, torch.arange(5), out=torch.empty(8).expand(2, 3, 5, 8)),
            r"memory of its own .*\(0, 0, 0, 1\)",
        ),
        (lambda r, a: r.shift(None, torch.arange(5), torch.arange(5)), r"k must be a tensor"),
        (lambda r, a: r.rotate(a.to_sparse(), torch.arange(5)), r"dense tensor; got .*sparse_coo"),
        (lambda r, a: r([1.0], a, torch.arange(5)), r"q must be a tensor; got list"),
        (lambda r, a: r(a, None, torch.arange(5)), r"k must be a tensor; got NoneType"),
        (lambda r, a: r.inverse(None, torch.arange(5)), r"x must be a tensor; got NoneType"),
        (lambda r, a: r.rotate(a, table=(torch.ones(5, 4), None)), r"sin must be a tensor"),
        (lambda r, a: r.rotate(a, torch.arange(5), seq_dim=-2.0), r"seq_dim .*integer; got -2\.0"),
        (lambda r, a: r.rotate(a, torch.arange(5), seq_dim=None), r"seq_dim .*integer; got None"),
        (
            lambda r, a: r.rotate(a, table=r.table(torch.arange(5)), role="query"),
            r"role must be left out with table.*got 'query'",
        ),
        (
            lambda r, a: r(a, a, table=r.table(torch.arange(5)), seq_len=9),
            r"seq_len must be left out with table.*got 9",
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(call, message):
    with pytest.raises((ShapeError, ConfigError), match=message):
        call(make(), torch.randn(2, 3, 5, 8))
