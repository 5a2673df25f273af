"""Layer splits: in proportion, whole, and refused with the numbers when they cannot be."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Backend
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.plan import (
    Joints,
    PlanRequest,
    Strategy,
    TooLittleRoom,
    make_plan,
    partition,
    with_layers,
)
from sealring_protocol.errors import LocalProtocolError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("layers", "ends", "memory", "counts"),
    [
        (12, 0, [16, 16], [6, 6]),
        (12, 0, [32, 16], [8, 4]),
        (12, 0, [16, 32, 16], [3, 6, 3]),
        (10, 0, [10, 10, 10], [4, 3, 3]),
        (8, 4, [20, 16], [4, 4]),
        (2, 0, [100, 3], [1, 1]),
        (16, 0, [16] * 16, [1] * 16),
        (5, 0, [99], [5]),
    ],
)
def test_shares_follow_memory(layers, ends, memory, counts):
    split = partition([GIB] * layers, ends * GIB, [room * GIB for room in memory])
    assert [len(split.layers(rank)) for rank in range(len(memory))] == counts
    assert split.weights[0] == counts[0] * GIB + ends * GIB


@given(
    layers=st.lists(st.integers(1, 1000), min_size=1, max_size=60),
    ends=st.integers(0, 2000),
    memory=st.lists(st.integers(0, 100_000), min_size=1, max_size=16),
)
def test_a_split_is_whole_contiguous_and_fits_or_says_why_not(layers, ends, memory):
    try:
        split = partition(layers, ends, memory)
    except LocalProtocolError:
        return
    assert split.bounds[0] == 0
    assert split.bounds[-1] == len(layers)
    assert all(len(split.layers(rank)) >= 1 for rank in range(len(memory)))
    assert sum(split.weights) == sum(layers) + ends
    for weight, room in zip(split.weights, memory, strict=True):
        assert weight <= room * 0.9


@pytest.mark.parametrize(
    ("layers", "joined", "memory", "counts"),
    [
        (12, (6,), [16, 16], [5, 7]),
        (12, (4, 5, 6, 7), [16, 16], [8, 4]),
        # The nearest bounds that every rank has the room for, not the nearest of all.
        (12, (4, 5, 6, 7), [8, 16], [3, 9]),
        (12, tuple(range(5, 12)), [16, 16], [4, 8]),
        (10, (1, 3, 5, 7, 9), [9, 9, 9], [4, 2, 4]),
        (4, (1, 2, 3), [16], [4]),
    ],
)
def test_layers_that_are_joined_are_not_parted(layers, joined, memory, counts):
    rooms = [room * GIB for room in memory]
    split = partition([GIB] * layers, 0, rooms, Joints(joined, "they share a cache"))
    assert [len(split.layers(rank)) for rank in range(len(memory))] == counts


def test_more_ranks_than_a_model_has_parts_are_refused_with_the_reason():
    joints = Joints((2, 3), "layers 1 and 3 share a cache")
    with pytest.raises(LocalProtocolError, match=r"2 parts at most, for 3 ranks: layers 1 and 3"):
        partition([GIB] * 4, 0, [9 * GIB] * 3, joints)


def test_a_cut_that_someone_chose_and_cannot_be_is_refused_with_those_that_can():
    joints = Joints((2, 3), "layers 1 and 3 share a cache")
    with pytest.raises(LocalProtocolError, match=r"before layer 2: layers 1 and 3 .* layers 1, 4"):
        with_layers([GIB] * 5, 0, [2, 3], [9 * GIB] * 2, joints)
    assert with_layers([GIB] * 5, 0, [4, 1], [9 * GIB] * 2, joints).bounds == (0, 4, 5)


def test_the_joints_of_a_model_are_its_engines():
    info = EngineInfo(
        b"m" * 32, DType.F32, 8, 100, 100, True, GIB, 10, (100,) * 4, joined=(2,), reason="shared"
    )
    assert make_plan(PlanRequest(Strategy.PIPELINE), info, [GIB, GIB]).split.bounds == (0, 1, 4)
    with pytest.raises(LocalProtocolError, match="before layer 2: shared"):
        make_plan(PlanRequest(Strategy.PIPELINE, (2, 2)), info, [GIB, GIB])


@given(
    layers=st.lists(st.integers(1, 1000), min_size=1, max_size=40),
    joined=st.sets(st.integers(1, 39)),
    memory=st.lists(st.integers(0, 100_000), min_size=1, max_size=8),
)
def test_no_split_parts_what_is_joined(layers, joined, memory):
    numbers = tuple(sorted(number for number in joined if number < len(layers)))
    try:
        split = partition(layers, 7, memory, Joints(numbers, "shared"))
    except LocalProtocolError:
        return
    assert not set(split.bounds[1:-1]) & set(numbers)
    assert all(weight <= room * 0.9 for weight, room in zip(split.weights, memory, strict=True))


@pytest.mark.parametrize(
    ("counts", "memory", "match"),
    [
        ([6, 5], [32, 32], "add up to 11"),
        ([12, 0], [32, 32], "at least one"),
        ([10, 2], [8, 32], "rank 0 would hold 10 layers"),
        ([2, 10], [32, 8], "rank 1 would hold 10 layers"),
        ([6, 6], [32], "2 layer counts for 1 ranks"),
        ([1] * 17, [1] * 17, "1 to 16"),
    ],
)
def test_a_split_that_someone_chose_is_checked(counts, memory, match):
    with pytest.raises(LocalProtocolError, match=match):
        with_layers([GIB] * 12, GIB, counts, [room * GIB for room in memory])


def test_too_little_memory_is_told_with_the_numbers():
    with pytest.raises(LocalProtocolError, match=r"take 13.00 GiB .* room for 9.00 GiB"):
        partition([GIB] * 12, GIB, [5 * GIB, 5 * GIB])
    with pytest.raises(LocalProtocolError, match="2 layers for 3 ranks"):
        partition([GIB] * 2, 0, [5 * GIB] * 3)


def info(layers=12):
    return EngineInfo(b"m" * 32, DType.F32, 8, 100, 100, True, GIB, 10, (100,) * layers)


def test_plans_name_their_strategy_and_reason():
    one = make_plan(PlanRequest(), info(), [GIB])
    assert one.strategy is Strategy.SINGLE
    two = make_plan(PlanRequest(), info(), [GIB, GIB])
    assert two.strategy is Strategy.PIPELINE
    assert "2 ranks" in two.reason
    assert make_plan(PlanRequest(Strategy.PIPELINE, (5, 7)), info(), [GIB, GIB]).split.bounds == (
        0,
        5,
        12,
    )
    with pytest.raises(LocalProtocolError, match="single runs on one rank"):
        make_plan(PlanRequest(Strategy.SINGLE), info(), [GIB, GIB])


@pytest.mark.parametrize(
    ("head", "memory", "counts"),
    [
        (0, [16, 16], [6, 6]),
        (2000, [16, 16], [5, 7]),
        (2000, [32, 16], [7, 5]),
        (500, [16, 16, 16], [4, 4, 4]),
        (1500, [16, 16, 16], [3, 5, 4]),
        (99_000, [16, 16], [1, 11]),
    ],
)
def test_the_output_head_counts_as_layers_of_rank_0(head, memory, counts):
    split = partition([GIB] * 12, 0, [room * GIB for room in memory], head=head)
    assert [len(split.layers(rank)) for rank in range(len(memory))] == counts


def test_every_rank_of_tensor_parallelism_holds_the_ends():
    """Layers of 4 GiB, shared out, and ends of 6 GiB, which are not: 8 GiB on each rank."""
    ring = 1 << Backend.RING
    model = attrs.evolve(info(), layers=(GIB,) * 4, ends=6 * GIB, splits=2, backends=ring)
    request = PlanRequest(Strategy.TENSOR)
    with pytest.raises(TooLittleRoom, match=r"rank 0 would hold 8.00 GiB"):
        make_plan(request, model, [6 * GIB, 6 * GIB])
    assert make_plan(request, model, [9 * GIB, 9 * GIB]).split.weights == (8 * GIB,)
