import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import ConfigError, RopeSpec, RotaryEmbedding, ShapeError, convert_layout

layouts = st.sampled_from(["interleaved", "half"])


@given(layouts, layouts, st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3))
def test_scores_are_unchanged_by_converting_both_projections(
    source, target, pairs, before, after, kv_heads
):
    head_dim, heads, width, seq = 2 * pairs + before + after, 2 * kv_heads, 7, 5
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    projections = [(draw(n * head_dim, width), draw(n * head_dim)) for n in (heads, kv_heads)]
    x = draw(seq, width)
    where = {"head_dim": head_dim, "rotary_dim": 2 * pairs, "rotary_offset": before}

    def scores(layout, parts):
        rope = RotaryEmbedding(
            RopeSpec(head_dim, layout, rotary_dim=2 * pairs, rotary_offset=before)
        )
        q, k = ((x @ w.T + b).view(seq, -1, head_dim).transpose(0, 1) for w, b in parts)
        q, k = rope(q, k, torch.arange(seq))
        return q @ k.repeat_interleave(2, 0).transpose(-1, -2)

    converted = [
        [convert_layout(t, source=source, target=target, **where) for t in part]
        for part in projections
    ]
    torch.testing.assert_close(
        scores(target, converted), scores(source, projections), atol=1e-12, rtol=0
    )


def test_rotating_converted_vectors_is_converting_rotated_vectors():
    x = torch.randn(8, dtype=torch.float64)
    turn = lambda x, layout: RotaryEmbedding(RopeSpec(8, layout)).rotate(x, torch.tensor(5))  # noqa: E731
    convert = lambda x: convert_layout(x, source="interleaved", target="half", head_dim=8)  # noqa: E731
    assert torch.equal(turn(convert(x), "half"), convert(turn(x, "interleaved")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_there_and_back_is_the_identity_in_any_dtype(dtype):
    w = torch.randint(-99, 99, (12, 3)).to(dtype)
    there = convert_layout(w, source="half", target="interleaved", head_dim=6)
    back = convert_layout(there, source="interleaved", target="half", head_dim=6)
    assert torch.equal(back, w)
    assert not torch.equal(there, w)
    assert there.dtype == dtype


def test_same_layout_copies():
    w = torch.randn(4, 2)
    same = convert_layout(w, source="half", target="half", head_dim=4)
    assert torch.equal(same, w)
    assert same.data_ptr() != w.data_ptr()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "neox"}, "source must be one of .*got 'neox'"),
        ({"target": "gptj"}, "target must be one of .*got 'gptj'"),
        ({"head_dim": 5}, r"multiple of 5; got \(8, 3\)|rotary_dim=5"),
        ({"head_dim": 3, "rotary_dim": 2}, r"multiple of 3; got \(8, 3\)"),
        ({"rotary_dim": 3}, "got rotary_dim=3, rotary_offset=0, head_dim=4"),
        ({"rotary_offset": 2}, "got rotary_dim=4, rotary_offset=2, head_dim=4"),
        ({"head_dim": 0}, "head_dim must be .*got 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(options, message):
    good = {"source": "half", "target": "interleaved", "head_dim": 4}
    with pytest.raises((ConfigError, ShapeError), match=message):
        convert_layout(torch.randn(8, 3), **(good | options))
