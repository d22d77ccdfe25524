"""Push the identity matrix through a model's own table and apply function."""

import inspect
import math

import torch

_NAMES = (
    "apply_rotary_pos_emb_interleave",
    "apply_rotary_emb",
    "apply_rotary_pos_emb",
)
_PLANE = (
    "apply_rotary_pos_emb_vision",
    "apply_rotary_pos_emb_2d",
    "apply_rotary_pos_emb_2d_self_attn",
    "apply_multidimensional_rope",
    "apply_rotary_pos_emb",
)


def matrices(found, config, label, width, positions, seq_len=None):
    """Return R (positions, width, width) with y = R x, as the model's own code rotates.

    ``positions`` is (count, axes), float64. Rules that depend on the length are asked for the
    table of a row that ends at ``seq_len`` - 1.
    """
    with torch.no_grad():
        if found.name in SPECIAL:
            return SPECIAL[found.name](found, config, width, positions).double().numpy()
        count = len(positions)
        if seq_len is not None:
            positions = torch.cat([positions, torch.full((1, positions.shape[1]), seq_len - 1.0)])
        rotary = found.cls(config)
        plane = hasattr(rotary, "compute_axial_rope_parameters")
        table = _table(rotary, positions, label, plane)
        return _applied(found, table, width, positions, plane).double().numpy()[:count]


def _table(rotary, positions, label, plane):
    """Call the class as its model does: (B, S), (axes, B, S), or for images (S, axes)."""
    if plane:
        is_batched = type(rotary).__name__ == "Gemma4VisionRotaryEmbedding"
        ids = positions[None] if is_batched else positions
    else:
        ids = positions.T.long() if positions.shape[1] == 1 else positions.T[:, None].long()
    arguments = [torch.zeros(1, len(positions), 1), ids]
    if "layer_type" in inspect.signature(rotary.forward).parameters and label is not None:
        arguments.append(label)
    return rotary(*arguments)


def _applied(found, table, width, positions, plane):
    """Rotate every unit vector, one per head, at every position."""
    names = _PLANE if plane else _NAMES
    if found.name == "Dots3NoteAudioRotaryEmbedding":  # whose module has the text model's too
        names = ("apply_rotary_pos_emb",)
    apply = next(getattr(found.module, name) for name in names if hasattr(found.module, name))
    count = len(positions)
    by_head = torch.eye(width)[None, :, None, :].expand(1, width, count, width)  # (B, H, S, D)
    by_token = by_head.transpose(1, 2)
    first = next(iter(inspect.signature(apply).parameters))
    if apply.__name__ == "apply_multidimensional_rope":
        y = apply(by_token, *table, positions[None], unsqueeze_dim=2).transpose(1, 2)
    elif apply.__name__ == "apply_rotary_pos_emb_vision":
        y = apply(by_token[0], by_token[0], *table)[0].transpose(0, 1)[None]
    elif apply.__name__ == "apply_rotary_emb" and found.model == "llama4":
        y = apply(by_token, by_token, table)[0].transpose(1, 2)
    elif apply.__name__ == "apply_rotary_emb":
        y = apply(by_head, by_head, table)[0]
    elif first == "tensor":  # GPT-J
        y = apply(by_token, *table).transpose(1, 2)
    elif first == "x":
        y = apply(by_head, *table)
    elif found.name == "Qwen2_5OmniDiTRotaryEmbedding":  # taken apart in its attention
        apart = by_head.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        y = apply(apart, apart, *table)[0]
    elif found.name == "PixtralVisionRotaryEmbedding":
        y = apply(by_head, by_head, *table, unsqueeze_dim=0)[0]
    else:
        y = apply(by_head, by_head, *table)[0]
    return y[0].permute(1, 2, 0)  # (S, D, H): column h is the image of e_h


def _roformer(found, config, width, positions):
    module = found.module
    table = module.RoFormerSinusoidalPositionalEmbedding(2048, width)
    table.weight = torch.nn.Parameter(table.create_weight(), requires_grad=False)
    rows = table.weight[positions[:, 0].long()][None, None]
    unit = torch.eye(width)[None, :, None, :].expand(1, width, len(positions), width)
    apply = module.RoFormerSelfAttention.apply_rotary_position_embeddings
    return apply(rows, unit, unit)[0][0].permute(1, 2, 0)


def _before_projection(found, config, width, positions):
    """The speech encoders rotate hidden states cut into heads."""
    rotary = found.cls(config)
    count = int(positions.max()) + 1
    table = rotary(torch.zeros(1, count, config.hidden_size))
    attention = next(
        getattr(found.module, name)
        for name in dir(found.module)
        if hasattr(getattr(found.module, name), "_apply_rotary_embedding")
    )
    holder = type("Holder", (), {"num_heads": width, "head_size": width})()
    hidden = torch.eye(width).flatten().expand(1, count, width * width)
    y = attention._apply_rotary_embedding(holder, hidden, table)
    y = y.view(count, width, width)[positions[:, 0].long()]
    return y.transpose(1, 2)


def _clvp(found, config, width, positions):
    rotary = found.cls(config)
    count = int(positions.max()) + 1
    angles = rotary(torch.zeros(1, count, 1))[0]
    rotated = angles.shape[-1]
    unit = torch.eye(rotated)[None, :, None, :].expand(1, rotated, len(positions), rotated)
    ids = positions.T.long()
    apply = found.module.apply_rotary_pos_emb
    y = apply(unit, unit, unit, angles.cos(), angles.sin(), ids)
    assert torch.equal(y[0], y[2]), "values turn like queries"
    whole = torch.eye(width).expand(len(positions), width, width).clone()
    whole[:, :rotated, :rotated] = y[0][0].permute(1, 2, 0)
    return whole


def _centres(found, config, width, positions):
    """DINOv3: positions are the centres of a grid of patches, in -1..1."""
    rotary = found.cls(config)
    size = math.isqrt(len(positions))
    patch = config.patch_size
    pixels = torch.zeros(1, 3, patch * size, patch * size)
    rotary.eval()
    cos, sin = rotary(pixels)
    unit = torch.eye(width)[None, :, None, :].expand(1, width, len(positions) + 1, width)
    y = found.module.apply_rotary_pos_emb(unit, unit, cos, sin)[0]
    assert torch.equal(y[0, :, 0], torch.eye(width)), "prefix tokens pass"
    return y[0, :, 1:].permute(1, 2, 0)


def grid(size):
    """Centres of a square grid of patches, (rows * columns, 2), in -1..1."""
    line = (torch.arange(size, dtype=torch.float64) + 0.5) / size * 2 - 1
    return torch.cartesian_prod(line, line)


def _llama4_vision(found, config, width, positions):
    rotary = found.cls(config)
    table = rotary(torch.zeros(1))
    side = config.image_size // config.patch_size
    unit = torch.eye(width)[None, None].expand(1, table.shape[0], width, width)
    y = found.module.vision_apply_rotary_emb(unit, unit, table)[0][0]
    assert torch.equal(y[-1], torch.eye(width)), "the class token does not turn"
    rows = (positions[:, 0] * side + positions[:, 1]).long()
    return y[rows].transpose(1, 2)


def _loftr(found, config, width, positions):
    rotary = found.cls(config)
    side = int(positions.max()) + 1
    kernel, stride = config.q_aggregation_kernel_size, config.q_aggregation_stride
    size = kernel + stride * (side - 1)
    cos, sin = rotary(torch.zeros(1, 1, size, size))
    rows = [(int(i), int(j)) for i, j in positions]
    cos, sin = (torch.stack([t[0, i, j] for i, j in rows])[None] for t in (cos, sin))
    unit = torch.eye(width)[None, :, None, :].expand(1, width, len(rows), width)
    return found.module.apply_rotary_pos_emb(unit, unit, cos, sin)[0][0].permute(1, 2, 0)


def _esmfold(found, config, width, positions):
    cos, sin = found.cls(config)(
        positions[None, :, :3].float(), positions[None, :, 3].float(), torch.float32
    )
    unit = torch.eye(width)[None, :, None, :].expand(1, width, len(positions), width)
    return found.module.apply_rotary_pos_emb(unit, unit, cos, sin)[0][0].permute(1, 2, 0)


WINDOW, FRAME = 3, 5


def time_stamps():
    """Positions of frame 5 of window 3 at some times: (t * window, 2 pi t * frame)."""
    times = torch.tensor([0.0, 1.0, 2.0, 7.0], dtype=torch.float64)
    return torch.stack([times * WINDOW, 2.0 * math.pi * times * FRAME], dim=1)


def _musicflamingo(found, config, width, positions):
    rotary = found.cls(config)
    frames = FRAME + 1
    unit = torch.eye(width)[:, None, :].expand(width, frames, width)
    rows = []
    for time in (positions[:, 0] / WINDOW).tolist():
        stamps = torch.full((1, frames), time, dtype=torch.float64)
        stamps[0, 0] = WINDOW * config.audio_frame_step * 4 * frames  # where the window starts
        y = found.module.apply_rotary_time_emb(unit, *rotary(stamps, frames))
        rows.append(y[:, FRAME].T)
    return torch.stack(rows)


SPECIAL = {
    "RoFormerSinusoidalPositionalEmbedding": _roformer,
    "SeamlessM4TConformerRotaryPositionalEmbedding": _before_projection,
    "Wav2Vec2BertRotaryPositionalEmbedding": _before_projection,
    "Wav2Vec2ConformerRotaryPositionalEmbedding": _before_projection,
    "ClvpRotaryPositionalEmbedding": _clvp,
    "DINOv3ViTRopePositionEmbedding": _centres,
    "EomtDinov3RotaryEmbedding": _centres,
    "Sapiens2RopePositionEmbedding": _centres,
    "Llama4VisionRotaryEmbedding": _llama4_vision,
    "EfficientLoFTRRotaryEmbedding": _loftr,
    "EsmFold2RotaryEmbedding": _esmfold,
    "MusicFlamingoRotaryEmbedding": _musicflamingo,
}
