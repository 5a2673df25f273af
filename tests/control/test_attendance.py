"""Who takes part in the ring, by who is there."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sealring_protocol.codec.messages import Failure, FailureKind, Hello
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.effects import Preference
from sealring_protocol.control.head.attendance import (
    FAILURES,
    GATHER_SECONDS,
    LONG_STAY,
    LONGEST_ASIDE,
    LOSS_SECONDS,
    STEADY_SECONDS,
    Attendance,
)
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.words import STILL_FETCHED

ALL = (0, 1, 2)


def said(room: int = 1000) -> Hello:
    return Hello(b"m" * 32, 6, DType.U32, 1, room)


def always(_ring: tuple[int, ...]) -> bool:
    return True


class House:
    """Three members, in a ring that follows what `Attendance` says."""

    def __init__(self, *here: int, least: int = 1, fits=always, world: int = 3) -> None:
        self.now = 0.0
        self.free = math.inf  # when the ring will have been idle for long enough
        self.fits = fits
        self.current = tuple(range(world))
        self.of = Attendance(self.current, least, 0.0)
        for rank in here:
            self.came(rank)

    def look(self) -> tuple[int, ...]:
        self.current = self.of.ring(self.current, self.now, self.fits, self.free)
        return self.current

    def came(self, rank: int, room: int = 1000) -> tuple[int, ...]:
        self.of.came(rank, said(room), self.now)
        return self.look()

    def broke(self, rank: int, kind: FailureKind = FailureKind.ENGINE_LOST) -> tuple[int, ...]:
        self.after(STEADY_SECONDS)
        self.of.broke(Failure(rank, kind, "no"), self.now)
        return self.look()

    def lost(self, rank: int) -> tuple[int, ...]:
        self.of.lost(rank, self.now)
        return self.look()

    def failed(self, rank: int, kind: FailureKind = FailureKind.GROUP, why: str = "no") -> None:
        self.of.epoch_over(Failure(rank, kind, why), self.now)
        self.look()

    def prefer(self, *ring: int) -> tuple[int, ...]:
        self.of.prefer(Preference(ring, "3 and not 2 tokens/s"), self.current)
        return self.look()

    def idle(self, seconds: float = 0.0) -> tuple[int, ...]:
        """From now on, or so many *seconds* later, the ring is idle for long enough."""
        self.free = self.now + seconds
        return self.look()

    def served(self) -> None:
        self.of.serves(self.current)

    def after(self, seconds: float) -> tuple[int, ...]:
        """Look at each time that it names within *seconds*."""
        until = self.now + seconds
        while (at := self.of.deadline(self.current, self.now, self.free)) and at <= until:
            assert at > self.now
            self.now = at
            self.look()
        self.now = until
        return self.look()


def test_whole_at_once():
    assert House(0, 1, 2).current == ALL


def test_the_others_are_waited_for_from_when_the_head_itself_has_come():
    house = House(1)
    assert house.after(100) == ALL  # nothing is without the head
    house.came(0)
    assert house.after(GATHER_SECONDS - 0.1) == ALL
    assert house.after(0.1) == (0, 1)
    out = house.of.why_outside(2)
    assert (out.why, out.since) == ("it is not here", 0.0)  # a head before may have seen it


def test_one_that_is_lost_is_waited_for_and_then_left_out():
    house = House(*ALL)
    house.after(LONG_STAY)
    house.lost(2)
    assert house.after(LOSS_SECONDS - 0.1) == ALL
    assert house.after(0.1) == (0, 1)
    house.came(2)
    assert house.after(STEADY_SECONDS - 0.1) == (0, 1)
    assert house.after(0.1) == ALL


def test_each_is_waited_for_from_its_own_loss():
    house = House(*ALL)
    house.after(LONG_STAY)
    house.lost(1)
    house.after(LOSS_SECONDS)
    assert house.current == (0, 2)
    house.came(1)
    house.after(1)
    house.lost(1)  # it is outside: nobody waits for it
    house.lost(2)
    assert house.after(LOSS_SECONDS) == (0,)


def test_an_unsteady_one_waits_longer_each_time_and_is_not_waited_for():
    house = House(*ALL)
    waits = []
    for _ in range(5):
        house.after(1)
        house.lost(2)
        gone = house.now
        while house.current == ALL:
            house.after(0.5)
        waits.append(house.now - gone)
        house.came(2)
        back = house.now
        while house.current != ALL:
            house.after(0.5)
        waits.append(house.now - back)
    assert waits[::2] == [LOSS_SECONDS] + [0.0] * 4
    assert waits[1::2] == [6.0, 12.0, 24.0, 48.0, LONG_STAY]
    house.after(LONG_STAY)
    house.lost(2)  # after a long stay, all is as at first
    assert house.current == ALL
    assert house.after(LOSS_SECONDS) == (0, 1)
    house.came(2)
    assert house.after(STEADY_SECONDS) == ALL


def test_no_ring_of_fewer_than_the_least():
    house = House(0, 1, least=3)
    assert house.after(1000) == ALL
    assert House(0, least=9, world=3).after(1000) == ALL


def test_no_ring_without_room_and_no_busy_wait_for_one():
    house = House(0, 1, fits=lambda ring: len(ring) == 3)
    assert house.after(1000) == ALL
    assert house.of.deadline(house.current, house.now) is None
    assert house.came(2) == ALL


def test_one_with_too_little_room_is_left_out_where_the_others_have_enough():
    house = House(0, 1, fits=lambda ring: 2 not in ring)
    assert house.came(2, room=1) == (0, 1)
    assert "too little room" in house.of.why_outside(2).why
    assert house.after(100) == (0, 1)
    assert house.of.deadline(house.current, house.now) is None


def test_the_ring_goes_on_with_another_that_has_come_meanwhile():
    house = House(0, 1, fits=lambda ring: len(ring) > 1)
    assert house.after(GATHER_SECONDS) == (0, 1)
    house.lost(1)
    assert house.after(20) == (0, 1)
    assert house.came(2) == (0, 2)  # nothing serves: it need not wait


def test_one_that_fails_alone_again_and_again_is_left_out_until_it_comes_anew():
    house = House(*ALL)
    for rank in (1, 2, 1, 1):
        house.failed(rank, FailureKind.LOAD)
        assert house.current == ALL
    house.failed(1, FailureKind.LOAD)
    assert house.current == (0, 2)
    assert "could not get ready" in house.of.why_outside(1).why
    assert house.after(10 * LONGEST_ASIDE) == (0, 2)
    house.came(1)
    assert house.after(2 * STEADY_SECONDS) == ALL


def test_an_epoch_that_works_begins_the_count_again():
    house = House(*ALL)
    for _ in range(FAILURES):
        house.failed(1)
        house.of.epoch_over(None, house.now)
    assert house.look() == ALL
    house.failed(1)
    house.failed(1)
    house.came(1)  # its word alone does not
    house.failed(1)
    assert house.look() == (0, 2)


def test_one_that_may_not_be_at_fault_is_tried_again_after_a_longer_time_each_time():
    """A rank reports that the next hop broke, whichever end broke it."""
    house = House(*ALL)
    waits = []
    for _ in range(10):
        for _ in range(FAILURES):
            house.failed(1, FailureKind.LINK_LOST)
        assert house.current == (0, 2)
        out = house.of.why_outside(1)
        assert out.until is not None
        waits.append(out.until - house.now)
        assert house.after(waits[-1] - 1) == (0, 2)
        assert house.after(1) == ALL
    assert waits[:3] == [2 * LONG_STAY, 4 * LONG_STAY, 8 * LONG_STAY]
    assert waits[-1] == LONGEST_ASIDE


def test_an_engine_that_ends_again_and_again_makes_short_stays():
    house = House(*ALL)
    assert house.broke(1) == ALL
    assert house.broke(1) == (0, 2)
    assert "after a short stay" in house.of.why_outside(1).why
    assert house.after(4 * STEADY_SECONDS) == ALL
    assert house.broke(1) == (0, 2)
    assert house.after(8 * STEADY_SECONDS) == ALL
    house.after(LONG_STAY)
    assert house.broke(1) == ALL  # that was a long one


def test_a_link_or_the_heads_engine_that_breaks_again_and_again_leaves_nobody_out():
    house = House(*ALL)
    for _ in range(10):
        assert house.broke(1, FailureKind.LINK_LOST) == ALL
        assert house.broke(0) == ALL


def test_one_whose_engine_ends_again_and_again_stays_where_the_others_have_too_little_room():
    house = House(*ALL, fits=lambda ring: len(ring) == 3)
    for _ in range(10):
        assert house.broke(1) == ALL


def test_a_head_that_failed_goes_on_without_whoever_is_lost():
    house = House(*ALL)
    for _ in range(FAILURES):
        house.failed(0, FailureKind.DEADLINE)
    house.lost(2)
    assert house.after(LOSS_SECONDS) == (0, 1)


def test_one_that_can_never_serve_is_left_out_at_once():
    house = House(*ALL)
    house.failed(2, FailureKind.UNSERVABLE)
    assert house.current == (0, 1)


def test_the_head_is_never_left_out():
    house = House(*ALL)
    for _ in range(2 * FAILURES):
        house.failed(0, FailureKind.UNSERVABLE)
    assert house.current == ALL


def test_the_others_keep_one_that_fails_where_they_have_no_room_without_it():
    house = House(*ALL, fits=lambda ring: len(ring) == 3)
    for _ in range(FAILURES):
        house.failed(1)
    assert house.current == ALL
    assert not house.of.stuck
    house.served()
    assert house.after(100) == ALL


def test_one_that_failed_is_tried_again_where_the_others_come_to_have_no_room_without_it():
    house = House(*ALL, fits=lambda ring: len(ring) > 1)
    house.failed(1, FailureKind.UNSERVABLE)
    assert house.current == (0, 2)
    house.after(LONG_STAY)
    house.lost(2)
    assert house.after(LOSS_SECONDS) == (0, 1)
    assert not house.of.stuck
    assert house.came(2) == (0, 2)


@pytest.mark.parametrize("kind", [FailureKind.LOAD, FailureKind.MEMORY])
def test_one_that_comes_to_a_ring_that_served_fails_once(kind):
    house = House(0, 1)
    house.after(GATHER_SECONDS)
    house.served()
    house.came(2)
    assert house.after(STEADY_SECONDS) == ALL
    house.failed(2, kind, f"its {STILL_FETCHED}; 1 of 2 GB")
    assert house.current == (0, 1)


def test_layers_that_are_still_fetched_do_not_count_before_a_ring_has_served():
    house = House(*ALL)
    for _ in range(100):
        house.failed(2, FailureKind.LOAD, f"its {STILL_FETCHED}; 1 of 2 GB")
    assert house.current == ALL


def test_a_smaller_ring_is_taken_once_the_present_one_is_idle():
    house = House(*ALL)
    assert house.prefer(0) == ALL
    assert house.after(1000) == ALL
    assert house.idle(30.0) == ALL
    assert house.after(29.9) == ALL
    assert house.after(0.1) == (0,)
    house.free = math.inf
    assert house.after(1000) == (0,)
    out = house.of.why_outside(1)
    assert out.chosen
    assert out.why == "the ring is faster without it: 3 and not 2 tokens/s"
    house.of.prefer(Preference((0,), "4 and not 2 tokens/s"), house.current)
    assert house.look() == (0,)
    assert house.of.why_outside(1).why.endswith(": 4 and not 2 tokens/s")
    assert house.of.deadline(house.current, house.now) is None


def test_nothing_changes_until_the_ring_is_idle_but_what_changed_before():
    house = House(*ALL)
    house.after(LONG_STAY)
    house.prefer(0)
    house.lost(2)
    assert house.after(LOSS_SECONDS) == (0, 1)
    house.came(2)
    assert house.after(STEADY_SECONDS) == ALL
    assert house.idle() == (0,)


def test_a_smaller_ring_does_not_wait_for_who_is_not_in_it():
    house = House(*ALL)
    house.prefer(0)
    house.idle()
    house.lost(1)
    assert house.of.why_outside(1).why == "it is away"
    assert house.after(1000) == (0,)
    house.came(1)  # it was compared
    assert house.after(1000) == (0,)


def test_a_smaller_ring_is_over_when_one_of_it_goes_away():
    house = House(*ALL)
    house.after(LONG_STAY)
    house.prefer(0, 1)
    assert house.idle() == (0, 1)
    house.lost(1)
    assert house.of.preference is None
    assert house.after(LOSS_SECONDS) == (0, 2)
    house.came(1)
    assert house.after(STEADY_SECONDS) == ALL
    house.prefer(0, 1)  # it may be preferred again
    assert house.look() == (0, 1)


def test_the_heads_new_engine_does_not_end_it():
    house = House(*ALL)
    house.prefer(0)
    house.idle()
    house.lost(0)
    assert house.came(0) == (0,)


def test_a_smaller_ring_is_over_once_one_has_come_to_stay_that_was_not_compared():
    house = House(0, 1)
    assert house.after(GATHER_SECONDS) == (0, 1)
    house.prefer(0)
    assert house.idle() == (0,)
    house.came(2)
    assert house.after(STEADY_SECONDS - 0.1) == (0,)
    house.lost(2)
    assert house.after(STEADY_SECONDS) == (0,)
    house.came(2)
    assert house.after(2 * STEADY_SECONDS - 0.1) == (0,)
    assert house.after(0.1) == ALL
    assert house.of.preference is None


def test_the_caller_that_prefers_no_smaller_ring_any_more_has_all_at_once():
    house = House(*ALL)
    house.after(STEADY_SECONDS)
    house.prefer(0)
    assert house.idle() == (0,)
    house.free = math.inf
    house.of.prefer(None, house.current)
    assert house.look() == ALL


@pytest.mark.parametrize("kind", [FailureKind.LOAD, FailureKind.MEMORY, FailureKind.LINK_LOST])
def test_a_smaller_ring_that_fails_once_is_never_taken_again(kind):
    house = House(*ALL)
    house.after(STEADY_SECONDS)
    house.prefer(0)
    house.idle()
    house.failed(0, kind, f"its {STILL_FETCHED}; 1 of 2 GB")
    assert house.current == ALL
    assert house.of.preference is not None
    assert house.of.preference.failed.startswith("its ")
    assert house.prefer(0, 1) == ALL
    assert house.after(10 * LONGEST_ASIDE) == ALL


@pytest.mark.parametrize("kind", [FailureKind.ENGINE_LOST, FailureKind.MEMORY])
def test_a_smaller_ring_whose_engine_ends_is_never_taken_again(kind):
    house = House(*ALL)
    house.prefer(0)
    house.idle()
    assert house.broke(0, kind) == ALL
    assert house.prefer(0) == ALL


def test_what_fails_in_the_ring_of_all_says_nothing_of_the_smaller_one():
    house = House(*ALL)
    house.prefer(0)
    house.failed(1)
    assert house.broke(1) == ALL
    assert house.idle() == (0,)


def test_a_smaller_ring_without_room_is_not_taken():
    house = House(*ALL, fits=lambda ring: len(ring) > 1)
    house.prefer(0)
    assert house.idle() == ALL
    assert house.after(100) == ALL


@pytest.mark.parametrize("ring", [(), (1,), (0, 2, 1), (0, 0), ALL, (0, 3)])
def test_what_is_no_smaller_ring(ring):
    house = House(*ALL)
    with pytest.raises(LocalProtocolError):
        house.prefer(*ring)
    with pytest.raises(LocalProtocolError):
        House(*ALL, least=2).prefer(0)
    assert house.of.preference is None


class Comings(RuleBasedStateMachine):
    """Anyone comes, goes and fails at any time; nobody's room is known beforehand. The caller may
    prefer any smaller ring."""

    @initialize(world=st.integers(1, 5), least=st.integers(0, 6), need=st.integers(1, 3000))
    def begin(self, world, least, need):
        self.world, self.least, self.need = world, max(1, min(least, world)), need
        self.rooms = {}
        self.house = House(world=world, least=least, fits=self.fits)

    def fits(self, ring):
        return sum(self.rooms[rank] for rank in ring) >= self.need

    @rule(rank=st.integers(0, 4), room=st.sampled_from([1, 500, 1000, 3000]))
    def comes(self, rank, room):
        if rank < self.world:
            self.rooms[rank] = room
            self.house.came(rank, room)

    @rule(rank=st.integers(0, 4))
    def goes(self, rank):
        self.rooms.pop(rank, None)
        self.house.lost(rank)

    @rule(rank=st.integers(0, 4), kind=st.sampled_from(FailureKind))
    def fails(self, rank, kind):
        if rank in self.house.current and set(self.house.current) <= self.rooms.keys():
            self.house.failed(rank, kind)

    @rule(ranks=st.sets(st.integers(1, 4)), free=st.sampled_from([0.0, 2.0, math.inf]))
    def prefers(self, ranks, free):
        ring = tuple(sorted({0, *ranks}))
        self.house.idle(free)
        if set(ring) < set(self.house.current) and len(ring) >= self.least:
            self.house.prefer(*ring)

    @rule()
    def prefers_none(self):
        self.house.of.prefer(None, self.house.current)
        self.house.look()

    @rule()
    def serves(self):
        if set(self.house.current) <= self.rooms.keys():
            self.house.served()

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 20.0, 100.0]))
    def waits(self, seconds):
        before, here = self.house.current, set(self.rooms)
        ring = self.house.after(seconds)
        preference = self.house.of.preference
        if preference is not None and ring == preference.ring:
            assert not preference.failed
        elif set(before) <= here and self.fits(before):
            assert set(before) <= set(ring) or self.house.of.ring(before, 0, self.fits) != before

    @invariant()
    def holds(self):
        ring = self.house.current
        assert ring[0] == 0
        assert list(ring) == sorted(set(ring))
        assert ring[-1] < self.world
        assert len(ring) >= self.least
        assert self.house.look() == ring  # asked again, it says the same
        at = self.house.of.deadline(ring, self.house.now, self.house.free)
        assert at is None or at > self.house.now
        for rank in set(range(self.world)) - set(ring):
            assert self.house.of.why_outside(rank).text(self.house.now)

    def teardown(self):
        """In the end all come and stay: the ring is whole, if it has room."""
        if not hasattr(self, "house"):
            return
        for rank in range(self.world):
            self.rooms[rank] = 3000
            self.house.came(rank, 3000)
        self.house.of.prefer(None, self.house.current)
        assert self.house.after(2 * LONG_STAY) == tuple(range(self.world))


Comings.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestComings = Comings.TestCase
