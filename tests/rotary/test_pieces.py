"""The rotation in plain torch by pieces, against the definition."""

import pytest
import torch
from oracle import half_ulp
from rotary_cases import assert_same, outcome, random_case

import ropewalk as rw
from ropewalk.rotary import pieces
from ropewalk.rotary.apply import Turn, apply_turns
from ropewalk.rotary.pieces import rotate_pieces


def as_turn(arguments):
    """Return what ``rotate`` makes of its arguments."""
    source, target = arguments["layout"], arguments["output_layout"] or arguments["layout"]
    cos, sin = arguments["cos"], arguments["sin"]
    if arguments["inverse"]:
        return Turn(arguments["rotary_offset"], cos, -sin, target, source)
    return Turn(arguments["rotary_offset"], cos, sin, source, target)


def by_pieces(x, **arguments):
    result = rotate_pieces(x, [as_turn(arguments)], arguments["seq_dim"], arguments["out"])
    assert result is not None
    return result


def bound(x, turn, seq_dim, dtype):
    """Return the float64 answer, and what a kernel may be away from it."""
    wide = turn._replace(cos=turn.cos.double(), sin=turn.sin.double())
    answer = apply_turns(x.double(), [wide], seq_dim=seq_dim)
    ones = torch.ones_like(wide.cos)
    sums = [
        apply_turns(x.double().abs(), [wide._replace(cos=ones, sin=sign * ones)], seq_dim=seq_dim)
        for sign in (1, -1)
    ]
    partners = torch.maximum(*(part.abs() for part in sums))
    return answer, half_ulp(answer, dtype) + 2.0**-22 * partners


@pytest.mark.parametrize("limit", [None, 256])
@pytest.mark.parametrize("part", range(3))
def test_pieces_of_any_size_equal_the_reference_on_any_call(part, limit, monkeypatch):
    if limit:  # a few rows, so that small tensors are cut in every dimension
        monkeypatch.setattr(pieces, "_PIECE", limit)
    for seed in range(60 * part, 60 * part + 60):
        case, reference = random_case(seed), random_case(seed)
        turn, seq_dim = as_turn(case.arguments), case.arguments["seq_dim"]
        answer, allowed = bound(case.x, turn, seq_dim, case.x.dtype)
        got = outcome(case, by_pieces)
        with rw.use_kernel("reference"):
            want = outcome(reference)
        if (turn.source, turn.target) == ("interleaved", "interleaved"):
            excess = (got.result.double() - answer).abs() - allowed
            assert excess.max() <= 0, case.name
            want.result.copy_(got.result)  # what is left to compare is the memory beside it
        assert_same(got, want, case.name)


def test_long_sequences_are_cut_and_equal_the_reference():
    q = torch.randn(2, 3, 2000, 128)
    rope = rw.RotaryEmbedding(rw.RopeSpec(128, "half"))
    cos, sin = rope.table(torch.arange(2000))
    turn = Turn(0, cos, sin, "half", "half")
    assert sum(1 for _ in pieces._pieces((q, q))) >= 4
    assert torch.equal(rotate_pieces(q, [turn]), apply_turns(q, [turn]))


def test_several_slices_of_a_head_turn_in_one_call():
    x = torch.randn(2, 3, 5, 20)
    a, b = torch.rand(2, 5, 3), torch.rand(2, 5, 4)
    turns = [Turn(10, *b, "half", "half"), Turn(2, *a, "half", "interleaved")]
    want = apply_turns(x, turns)
    assert torch.equal(rotate_pieces(x, turns), want)
    assert rotate_pieces(x, turns, -2, x) is x
    assert torch.equal(x, want)


def test_a_large_interleaved_rotation_makes_no_temporary_of_its_size():
    x = torch.randn(1, 8, 1024, 64)
    cos, sin = rw.RotaryEmbedding(rw.RopeSpec(64, "interleaved")).table(torch.arange(1024))
    turn = Turn(0, cos, sin, "interleaved", "interleaved")
    with torch.profiler.profile(profile_memory=True) as seen:
        rotate_pieces(x, [turn], -2, x)
    taken = sum(max(0, event.cpu_memory_usage) for event in seen.events())
    # the complex table of (1024, 32) is an eighth of x
    assert taken <= x.nbytes // 4


@pytest.mark.parametrize(
    "out",
    [
        lambda x: x.expand(2, 4),  # not the shape of x
        lambda x: x.double(),
        lambda x: torch.zeros(4)[:1].expand(4),
        lambda x: torch.zeros(5).as_strided((2, 4), (1, 1)),
        lambda x: x.view(4),
    ],
    ids=["shape", "dtype", "expanded", "overlapping", "another view of x"],
)
def test_doubtful_outputs_are_left_to_the_reference(out):
    x = torch.arange(4.0)
    turn = Turn(0, torch.zeros(2), torch.ones(2), "half", "half")
    given = out(x)
    x = x.expand(2, 4) if given.shape == (2, 4) and given.dtype == x.dtype else x
    before = given.clone()
    assert rotate_pieces(x, [turn], -2, given) is None
    assert torch.equal(given, before)


def test_gradients_transforms_and_other_devices_are_left_to_the_reference():
    turn = Turn(0, torch.zeros(2), torch.ones(2), "half", "half")
    x = torch.ones(4)
    assert rotate_pieces(x.clone().requires_grad_(), [turn]) is None
    assert rotate_pieces(x, [turn._replace(cos=torch.zeros(2, requires_grad=True))]) is None
    assert rotate_pieces(torch.ones(4, device="meta"), [turn]) is None
    seen = []
    torch.func.vmap(lambda row: seen.append(rotate_pieces(row, [turn])) or row)(torch.ones(3, 4))
    assert seen == [None]
    with torch.no_grad():
        y = rotate_pieces(x.clone().requires_grad_(), [turn])
    assert y.tolist() == [-1, -1, 1, 1]


def test_a_table_that_does_not_fit_is_refused_as_by_the_reference():
    turn = Turn(0, torch.zeros(3, 2), torch.ones(3, 2), "half", "half")
    with pytest.raises(rw.ShapeError, match=r"table \(3, 2\), x \(5, 4\)"):
        rotate_pieces(torch.ones(5, 4), [turn])
