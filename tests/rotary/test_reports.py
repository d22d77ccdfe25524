"""Faults that users of other rotary operators reported, each as the smallest case that shows it.

What holds for every spec, rule and dtype is in the other files of this folder; here are the
reports that none of them names.
"""

import copy

import pytest
import torch
from oracle import assert_within_contract, rotated

from ropewalk import (
    CheckpointError,
    ConfigError,
    RopeSpec,
    RotaryEmbedding,
    ShapeError,
    Yarn,
    convert_layout,
    positions_for_shard,
    rotate,
)
from ropewalk.rotary.tables import angles, widest_dtype


def vectors(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# Layout


def test_interleaved_in_half_out_changes_the_order_and_no_score():
    """huggingface/transformers#39687, vllm-project/vllm#26995: DeepSeek-V3."""
    plain = RotaryEmbedding(RopeSpec(8, "interleaved"))
    other = RotaryEmbedding(RopeSpec(8, "interleaved", output_layout="half"))
    q, k = vectors(2, 5, 8, dtype=torch.float64)
    p = torch.arange(5)
    (q1, k1), (q2, k2) = plain(q, k, p), other(q, k, p)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    assert torch.equal(q2, q1[:, order])
    assert torch.equal(k2, k1[:, order])
    # a sum of eight products in another order
    torch.testing.assert_close(q2 @ k2.T, q1 @ k1.T, atol=1e-14, rtol=0)


def test_a_rotation_in_the_wrong_layout_is_no_rotation_of_the_right_pairs():
    """huggingface/transformers#47403, tenstorrent/tt-metal#26844: one table fits both layouts,
    so only the layout that is named with the rotation decides."""
    x, p = vectors(6, 8, dtype=torch.float64), torch.arange(6)
    half, interleaved = (RotaryEmbedding(RopeSpec(8, name)) for name in ("half", "interleaved"))
    assert torch.equal(half.table(p).cos, interleaved.table(p).cos)
    assert (half.rotate(x, p) - interleaved.rotate(x, p)).abs().max() > 0.5
    columns = convert_layout(x.T, source="interleaved", target="half", head_dim=8).T
    back = convert_layout(
        half.rotate(columns, p).T, source="half", target="interleaved", head_dim=8
    )
    assert torch.equal(back.T, interleaved.rotate(x, p))


# Precision


def test_half_precision_holds_where_gpt_neox_was_off_by_0_78():
    """EleutherAI/gpt-neox#1003: cos at position 1857 from angles in fp16."""
    spec, p = RopeSpec(64, "half"), torch.arange(1850, 1860)
    naive = (p.half()[:, None] * torch.from_numpy(spec.inv_freq()).half()).float().cos()
    exact = RotaryEmbedding(spec).table(p, dtype=torch.float64).cos
    assert (naive - exact).abs().max() > 0.5
    x = vectors(10, 64).half()
    assert_within_contract(RotaryEmbedding(spec).rotate(x, p), x, spec, p)


@pytest.mark.parametrize(
    ("top", "stated"), [(4096, 1.2e-4), (131_072, 3.9e-3), (1_000_000, 3.1e-2), (10_000_000, 0.24)]
)
def test_angles_of_float32_lose_what_those_of_float64_keep(top, stated):
    """huggingface/transformers 5.24 and all peers form angles in float32."""
    spec, p = RopeSpec(64, "half"), torch.arange(top - 4096, top + 1)
    exact = torch.from_numpy(spec.inv_freq())
    single = angles(spec, p, exact.float()).double()
    error = (single - angles(spec, p, exact)).abs().max().item()
    # the error of the product alone is as stated; that of the rounded frequency comes on top
    assert stated < error < 2 * stated
    x = vectors(len(p), 64)
    assert_within_contract(RotaryEmbedding(spec).rotate(x, p), x, spec, p)


def test_devices_without_float64_get_float32_from_the_host():
    """huggingface/diffusers#12665, huggingface/diffusers#13432: float64 on MPS and NPU."""
    assert widest_dtype(torch.device("mps")) == torch.float32
    assert widest_dtype(torch.device("cpu")) == torch.float64


# Checkpoints


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_frequencies_in_an_old_checkpoint_are_checked_and_ignored(dtype):
    """EleutherAI/gpt-neox#1168, pytorch/torchtitan#201: inv_freq once was persistent."""
    spec = RopeSpec(128, "half", theta=5e5)
    model = torch.nn.ModuleDict({"rotary_emb": RotaryEmbedding(spec)})
    stored = torch.from_numpy(spec.inv_freq()).to(dtype)
    given = {"rotary_emb.inv_freq": stored}
    assert model.load_state_dict(given).missing_keys == []
    assert list(given) == ["rotary_emb.inv_freq"], "the caller's dictionary stays as it is"
    assert model.state_dict() == {}
    garbage = {"rotary_emb.inv_freq": torch.full_like(stored, 0.5)}  # Bacformer#33 and its like
    with pytest.raises(CheckpointError, match=r"rotary_emb\.inv_freq .*1 for pair 0; got 0\.5"):
        model.load_state_dict(garbage)
    with pytest.raises(CheckpointError, match=r"each of the 64 pairs; got \(32,\)"):
        model.load_state_dict({"rotary_emb.inv_freq": stored[:32]})
    other = RotaryEmbedding(spec.replace(theta=1e4))
    with pytest.raises(CheckpointError, match="inv_freq must be the frequencies of the spec"):
        other.load_state_dict({"inv_freq": stored})
    meta = {"rotary_emb.inv_freq": stored.to("meta")}
    assert model.load_state_dict(meta).unexpected_keys == []


# Widths


@pytest.mark.parametrize("width", [9, 63, 1])
def test_odd_widths_are_refused_at_construction_with_the_number(width):
    """huggingface/transformers#48101, lucidrains/rotary-embedding-torch#45."""
    with pytest.raises(ConfigError, match=rf"must be even.*{width}"):
        RopeSpec(width, "half")


@pytest.mark.parametrize("width", [2, 6, 30, 72, 96, 250])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_there_is_no_smallest_width_and_no_power_of_two(width, layout):
    """lucidrains/x-transformers#296 (below 32), Dao-AILab/flash-attention#1195 (72)."""
    spec, p = RopeSpec(width, layout), torch.arange(5) + 1000
    x = vectors(2, 3, 5, width).bfloat16()
    assert_within_contract(RotaryEmbedding(spec).rotate(x, p), x, spec, p)


def test_a_table_wider_than_the_head_is_refused_before_anything_is_read():
    """linkedin/Liger-Kernel#1451: a partial table read out of bounds."""
    partial = RotaryEmbedding(RopeSpec(16, "half", rotary_dim=8)).table(torch.arange(3))
    with pytest.raises(ShapeError, match=r"each of the 8 pairs; got \(3, 4\)"):
        RotaryEmbedding(RopeSpec(16, "half")).rotate(vectors(3, 16), table=partial)
    wide = RotaryEmbedding(RopeSpec(16, "half")).table(torch.arange(3))
    with pytest.raises(ShapeError, match=r"cos \(3, 8\), x \(3, 8\)"):
        rotate(vectors(3, 8), *wide, layout="half")


# Positions


def test_positions_mean_their_values_and_nothing_wraps():
    """NVIDIA-NeMo/Automodel#2377 (only the shape counted), pytorch/torchtune (-1 was the last
    row of the table), Dao-AILab/flash-attention (past the table nothing turned)."""
    spec = RopeSpec(8, "half")
    x, p = vectors(6, 8, dtype=torch.float64), torch.tensor([7, 7, 0, -1, 8191, 8192])
    torch.testing.assert_close(
        RotaryEmbedding(spec).rotate(x, p), rotated(x, spec, p), atol=1e-11, rtol=0
    )
    assert torch.equal(
        RotaryEmbedding(spec).rotate(x[3:4], -p[3:4]),
        RotaryEmbedding(spec).inverse(x[3:4], p[3:4]),
    )


def test_offsets_on_every_axis_are_seen_whatever_was_asked_before():
    """lucidrains/rotary-embedding-torch 0.9.1: axial tables with offsets came from a cache."""
    axes = ((0, 0), (0, 1), (1, 0), (1, 1))
    rope = RotaryEmbedding(RopeSpec(8, "interleaved", axes=axes))
    grid = torch.cartesian_prod(torch.arange(4), torch.arange(4)).T
    here = rope.table(grid)
    for offset in ((3, 3), (0, 7), (7, 0)):
        moved = grid + torch.tensor(offset)[:, None]
        fresh = RotaryEmbedding(rope.spec).table(moved)
        assert torch.equal(rope.table(moved).cos, fresh.cos)
        assert not torch.equal(fresh.cos, here.cos)
        changed = (fresh.cos != here.cos).any(0)
        assert changed.tolist() == [bool(offset[axis]) for axis, _ in axes]
    assert torch.equal(rope.table(grid).cos, here.cos)


@pytest.mark.parametrize("strided", [False, True])
def test_each_of_three_axes_drives_its_own_pairs(strided):
    """alibaba/MNN#4133, mlx-node/mlx-node#80, Blaizzy/mlx-vlm#576: T, H and W unlike."""
    sections = (6, 5, 5)  # of 16 pairs
    if strided:
        owner = [j % 3 if j % 3 and j < 3 * sections[j % 3] else 0 for j in range(16)]
    else:
        owner = [0] * 6 + [1] * 5 + [2] * 5
    spec = RopeSpec(32, "half", axes=tuple((axis, j) for j, axis in enumerate(owner)))
    assert owner.count(1) == owner.count(2) == 5
    position = torch.tensor([[3], [50], [700]])
    table = RotaryEmbedding(spec).table(position, dtype=torch.float64)
    expected = position[owner, 0].double() * 1e4 ** (-torch.arange(16).double() / 16)
    torch.testing.assert_close(table.cos[0], expected.cos(), atol=1e-12, rtol=0)
    torch.testing.assert_close(table.sin[0], expected.sin(), atol=1e-12, rtol=0)


# Distributed


@pytest.mark.parametrize("zigzag", [False, True])
def test_a_shard_of_the_sequence_is_rotated_at_its_own_positions(zigzag):
    """pytorch/torchtitan#792, NVIDIA/Megatron-LM#1473: the table was sliced like the tokens."""
    rope, x = RotaryEmbedding(RopeSpec(8, "half")), vectors(2, 3, 16, 8)
    whole, seen = rope.rotate(x, torch.arange(16)), []
    for rank in range(4):
        p = positions_for_shard(16, rank=rank, world_size=4, zigzag=zigzag)
        assert torch.equal(rope.rotate(x[:, :, p], p), whole[:, :, p])
        seen += p.tolist()
    assert sorted(seen) == list(range(16))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_distributed_vectors_take_a_plain_table(tmp_path):
    """pytorch/pytorch#187443, huggingface/transformers#45028: mixed operand types."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        rope, x, p = RotaryEmbedding(RopeSpec(8, "half")), vectors(2, 4, 5, 8), torch.arange(5)
        want = rope.rotate(x, p)
        for placement in (Shard(1), Shard(0), Replicate()):
            q = distribute_tensor(x, mesh, [placement]).requires_grad_()
            y, k = rope(q, q, p)
            assert isinstance(y, DTensor)
            assert y.placements == (placement,)
            assert torch.equal(y.full_tensor(), want)
            assert torch.equal(k.full_tensor(), rope.rotate(q, table=rope.table(p)).full_tensor())
            y.sum().backward()
            assert q.grad.full_tensor().isfinite().all()
    finally:
        dist.destroy_process_group()


# Gradients and memory


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("contiguous", [True, False])
def test_inputs_are_not_written_unless_asked(layout, contiguous):
    """naver-ai/rope-vit#14, lucidrains/rotary-embedding-torch#31, unslothai/unsloth#5001."""
    rope = RotaryEmbedding(RopeSpec(8, layout))
    q = vectors(2, 3, 5, 8) if contiguous else vectors(2, 5, 3, 8).transpose(1, 2)
    k, before = q[:, :1], q.clone()
    versions = q._version
    rope(q, k, torch.arange(5))
    rope.rotate(q, torch.arange(5))
    rope.inverse(q, torch.arange(5))
    rope.shift(q, torch.arange(5), torch.arange(5) + 1)
    assert torch.equal(q, before)
    assert q._version == versions
    leaf = q.clone().requires_grad_()
    product = leaf * 2.0
    (product * rope.rotate(product, torch.arange(5))).sum().backward()
    assert leaf.grad.isfinite().all()


def test_writing_in_place_is_seen_by_autograd():
    """unslothai/unsloth#5001, Dao-AILab/flash-attention: in place without a mark."""
    rope, x = RotaryEmbedding(RopeSpec(8, "half")), vectors(5, 8)
    version = x._version
    with torch.no_grad():
        assert rope.rotate(x, torch.arange(5), out=x) is x
    assert x._version > version
    weight = torch.ones(8, requires_grad=True)
    product = x * weight
    rope.rotate(x, torch.arange(5), out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_an_amplitude_is_no_part_of_the_module_either():
    """linkedin/Liger-Kernel, Dao-AILab/flash-attention: a scale beside the frequencies was cast."""
    spec = RopeSpec(8, "half", scaling=Yarn(40.0, 4096))
    rope = RotaryEmbedding(spec)
    want = rope.table(torch.arange(4))
    cast = copy.deepcopy(rope).bfloat16()
    assert torch.equal(cast.table(torch.arange(4)).cos, want.cos)
    # YaRN times 40: 0.1 ln 40 + 1
    assert want.cos[0, 0].item() == pytest.approx(1.36889, abs=5e-6)
