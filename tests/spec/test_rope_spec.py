import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import rotation_matrix

from ropewalk import NTK, ConfigError, Linear, RopeSpec


def columns(spec, *names):
    pairs = spec.pairs()
    return [tuple(row[name].item() for name in names) for row in pairs]


def test_interleaved_pairs_are_neighbours_and_half_pairs_are_half_a_slice_apart():
    assert columns(RopeSpec(6, "interleaved"), "in_a", "in_b") == [(0, 1), (2, 3), (4, 5)]
    assert columns(RopeSpec(6, "half"), "in_a", "in_b") == [(0, 3), (1, 4), (2, 5)]


def test_offset_moves_the_slice():
    spec = RopeSpec(10, "half", rotary_dim=4, rotary_offset=6)
    assert columns(spec, "in_a", "in_b", "out_a", "out_b") == [(6, 8, 6, 8), (7, 9, 7, 9)]


def test_output_layout_writes_elsewhere_than_it_reads():
    # interleaved in, half out: DeepSeek-V3's convention in transformers
    spec = RopeSpec(4, "interleaved", output_layout="half")
    assert columns(spec, "in_a", "in_b", "out_a", "out_b") == [(0, 1, 0, 2), (2, 3, 1, 3)]


def test_axes_choose_axis_and_rung():
    spec = RopeSpec(8, "half", theta=16.0, frequency_dim=4, axes=((0, 0), (0, 1), (1, 0), (1, 1)))
    assert columns(spec, "axis", "inv_freq") == [(0, 1.0), (0, 0.25), (1, 1.0), (1, 0.25)]
    assert spec.n_axes == 2


def test_direction_is_the_sign_column():
    assert columns(RopeSpec(4, "half", direction=-1), "sign") == [(-1,), (-1,)]


def test_blocks_concatenate_the_pairs_of_their_slices():
    left = RopeSpec(9, "half", rotary_dim=4, theta=100.0)
    right = RopeSpec(9, "interleaved", rotary_dim=4, rotary_offset=4)
    both = RopeSpec(9, "half", blocks=(left, right))
    assert both.n_pairs == 4
    np.testing.assert_array_equal(both.pairs(), np.concatenate([left.pairs(), right.pairs()]))
    np.testing.assert_array_equal(both.inv_freq(), [1.0, 0.1, 1.0, 0.01])
    assert both.attention_factor() == 1.0


def test_wavelengths_count_real_positions():
    spec = RopeSpec(4, "half", theta=100.0, position_scale=0.5)
    np.testing.assert_allclose(spec.wavelengths(), 4 * np.pi * np.array([1.0, 10.0]), rtol=1e-15)


@given(
    st.sampled_from(["half", "interleaved"]),
    st.sampled_from(["half", "interleaved"]),
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([1, -1]),
    st.floats(-1e3, 1e3),
)
def test_rotation_is_orthogonal_and_composes(source, target, pairs, before, after, sign, p):
    spec = RopeSpec(
        2 * pairs + before + after,
        source,
        rotary_dim=2 * pairs,
        rotary_offset=before,
        output_layout=target,
        direction=sign,
    )
    R = rotation_matrix(spec, p)
    # one rounding of cos and sin each: far below 1e-14
    np.testing.assert_allclose(R @ R.T, np.eye(spec.head_dim), atol=1e-14)
    same = spec.replace(output_layout=source)
    np.testing.assert_allclose(
        rotation_matrix(same, p) @ rotation_matrix(same, 2.0),
        rotation_matrix(same, p + 2.0),
        atol=1e-12,
    )


def test_defaults_are_resolved_and_equal_specs_hash_alike():
    spec = RopeSpec(64, "half")
    assert (spec.rotary_dim, spec.frequency_dim, spec.output_layout) == (64, 64, "half")
    explicit = RopeSpec(np.int64(64), "half", rotary_dim=64, theta=10_000, output_layout="half")
    assert spec == explicit
    assert hash(spec) == hash(explicit)
    assert type(explicit.head_dim) is int
    assert type(explicit.theta) is float


def test_spec_is_frozen():
    with pytest.raises(AttributeError):
        RopeSpec(64, "half").theta = 5.0


@pytest.mark.parametrize(
    "spec",
    [
        RopeSpec(64, "half", scaling=NTK(2.0), angle_dtype="float32"),
        RopeSpec(4, "half", axes=[[0, 0], [1, 0]]),
        RopeSpec(4, "half", blocks=[RopeSpec(4, "half", rotary_dim=2)]),
    ],
)
def test_copies_and_pickles_are_equal(spec):
    for other in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), spec.replace()):
        assert other == spec
        assert hash(other) == hash(spec)


def test_replace_derives_defaults_anew_and_keeps_what_was_set():
    spec = RopeSpec(64, "half").replace(head_dim=128, layout="interleaved")
    assert (spec.rotary_dim, spec.frequency_dim, spec.output_layout) == (128, 128, "interleaved")
    partial = RopeSpec(64, "half", rotary_dim=32, frequency_dim=64).replace(rotary_dim=16)
    assert (partial.rotary_dim, partial.frequency_dim) == (16, 64)


def test_replace_refuses_an_unknown_field():
    with pytest.raises(ConfigError, match="no field 'base'"):
        RopeSpec(64, "half").replace(base=5.0)


half9 = {"head_dim": 9, "layout": "half"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 0}, r"head_dim must be an integer of at least 1; got 0"),
        ({"head_dim": 64.0}, r"head_dim must be an integer of at least 1; got 64\.0"),
        ({"head_dim": True}, r"head_dim must be .*got True"),
        ({"layout": "neox"}, r"layout must be one of 'interleaved', 'half'; got 'neox'"),
        ({"output_layout": "neox"}, r"output_layout must be one of .*got 'neox'"),
        ({"theta": 1.0}, r"theta must be a finite number greater than 1; got 1\.0"),
        ({"theta": float("nan")}, r"theta must be .*got nan"),
        ({"theta": "1e4"}, r"theta must be .*got '1e4'"),
        ({"rotary_dim": 7}, r"rotary_dim must be even; got rotary_dim=7, head_dim=64"),
        ({"rotary_dim": 66}, r"at most head_dim; got rotary_offset=0, rotary_dim=66, head_dim=64"),
        ({"rotary_dim": 32.0}, r"rotary_dim must be an integer .*got 32\.0"),
        ({"rotary_dim": 64.0}, r"rotary_dim must be an integer .*got 64\.0"),
        ({"rotary_dim": 0}, r"rotary_dim must be an integer .*got 0"),
        ({"head_dim": 65}, r"rotary_dim must be even; got rotary_dim=65, head_dim=65"),
        ({"rotary_offset": -1}, r"rotary_offset must be .*got -1"),
        ({"rotary_offset": 2}, r"got rotary_offset=2, rotary_dim=64, head_dim=64"),
        ({"frequency_dim": 0}, r"frequency_dim must be .*got 0"),
        ({"position_scale": 0}, r"position_scale must not be 0"),
        ({"position_scale": float("inf")}, r"position_scale must be .*got inf"),
        ({"position_offset": None}, r"position_offset must be .*got None"),
        ({"direction": 0}, r"direction must be one of 1, -1; got 0"),
        ({"direction": True}, r"direction must be one of 1, -1; got True"),
        ({"angle_dtype": "bfloat16"}, r"angle_dtype must be one of .*got 'bfloat16'"),
        ({"scaling": "yarn"}, r"scaling must be a rule such as .*got 'yarn'"),
        ({"scaling": Linear}, r"scaling must be a rule such as .*got <class"),
        ({"axes": ((0, 0),)}, r"one \(axis, rung\) for each of the 32 pairs; got 1"),
        ({"axes": 3}, r"axes must be a sequence of \(axis, rung\); got 3"),
        ({"axes": ((0,),) * 32}, r"axes must be a sequence of \(axis, rung\)"),
        ({"axes": ((0, -1),) * 32}, r"rung in axes must be .*got -1"),
        ({"layout": np.array(["half", "half"])}, r"layout must be one of .*got array"),
        ({"direction": np.array([1, 1])}, r"direction must be one of .*got array"),
        ({"blocks": 5}, r"blocks must be .*got 5"),
        ({"blocks": RopeSpec(64, "half")}, r"blocks must be .*got RopeSpec"),
        ({"axes": ((0, 10**12),) * 32}, r"rung in axes must be .*got 1000000000000"),
        ({"blocks": (1,)}, r"blocks must be RopeSpecs without blocks; got 1"),
        ({"blocks": (RopeSpec(8, "half"),)}, r"head_dim of their parent, 64; got 8"),
        (
            {"blocks": (RopeSpec(64, "half"),), "theta": 500.0},
            r"theta must keep its default when blocks are given.*got theta=500",
        ),
        (
            {"blocks": (RopeSpec(64, "half"), RopeSpec(64, "half", rotary_dim=2))},
            r"disjoint slices; coordinate 0 is in two",
        ),
    ],
)
def test_bad_field_is_refused_with_its_value(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        RopeSpec(**({"head_dim": 64, "layout": "half"} | changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seq_len", [0, -3, 2.5, "8"])
def test_bad_length_is_refused_with_its_value(seq_len):
    for method in (RopeSpec(8, "half").inv_freq, RopeSpec(8, "half").attention_factor):
        with pytest.raises(ConfigError, match=f"seq_len must be .*got {seq_len!r}"):
            method(seq_len)
