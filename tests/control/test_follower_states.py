"""A follower in each of its states: what status says, and what it does of what can happen there."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from sealring_protocol.codec.local_messages import Loaded
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Decode,
    Epoch,
    FailureKind,
    Hindrance,
    KeptCache,
    Prepared,
    Ready,
    Reason,
    Step,
    Waiting,
)
from sealring_protocol.control.effects import Phase, PrepareCollective, Send, ToEngine
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.security.roles import Purpose

from tests.sim.fake_engine import info

CONTROL, STEP, TUNNEL = Purpose.CONTROL, Purpose.STEP, Purpose.TUNNEL
HEAD = 77
MODEL = info().model
ORDER = Bootstrap(Epoch(HEAD, 1), Backend.PIPELINE, 1, True, 1000, MODEL, (0, 2, 4, 6))
NOWHERE = (("", 0),) * 3
PREPARE = Bootstrap(Epoch(HEAD, 1), Backend.RING, 1, True, 600_000, MODEL, (0, 6), NOWHERE)
JOIN = attrs.evolve(PREPARE, hosts=(("a", 1), ("b", 2), ("c", 3)))
NO_EPOCH = Waiting((Reason(Hindrance.ABSENT, 2, "n2 is away"),))


def ready(order: Bootstrap, first: int, last: int) -> Ready:
    return Ready(order.epoch, first, last, True, 1 << 30, CacheCost(0, 0))


READY = ready(ORDER, 2, 4)


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects, rank=0):
    return [e.message for e in effects if isinstance(e, Send) and e.rank == rank]


def step(n: int) -> Step:
    return Step(ORDER.epoch, n, bytes(16), work=Decode(0))


# ------------------------------------------------------- the way into each state


def without_head() -> Follower:
    rank = Follower(FollowerConfig(1, ("n0", "n1", "n2")))
    rank.engine_message(info(splits=3), 0.0)
    return rank


def gathering() -> Follower:
    rank = without_head()
    rank.link_up(0, CONTROL, 1.0)
    return rank


def loading() -> Follower:
    rank = gathering()
    rank.message(0, CONTROL, ORDER, 2.0)
    return rank


def linking() -> Follower:
    rank = loading()
    assert not sent(rank.engine_message(READY, 3.0))
    return rank


def serving() -> Follower:
    rank = linking()
    assert sent(rank.link_up(2, STEP, 4.0)) == [READY]
    return rank


def idle() -> Follower:
    rank = serving()
    rank.message(0, CONTROL, NO_EPOCH, 5.0)
    return rank


def failed() -> Follower:
    rank = serving()
    assert sent(rank.engine_lost("died", 5.0))
    rank.engine_message(info(splits=3), 6.0)
    return rank


def cut() -> Follower:
    rank = serving()
    (told,) = sent(rank.link_down(2, STEP, "reset", 5.0))
    assert told.kind is FailureKind.LINK_LOST
    return rank


def prepared() -> Follower:
    rank = gathering()
    (wanted,) = of(rank.message(0, CONTROL, PREPARE, 2.0), PrepareCollective)
    rank.engine_message(Loaded(1, 1, 1), 3.0)
    rank.link_up(2, TUNNEL, 3.0)
    assert sent(rank.collective_prepared(wanted.epoch, 7, 8, 4.0)) == [Prepared(PREPARE.epoch, 7)]
    return rank


def joining() -> Follower:
    rank = prepared()
    assert of(rank.message(0, CONTROL, JOIN, 5.0), ToEngine)
    return rank


def in_parallel() -> Follower:
    rank = joining()
    (told,) = sent(rank.engine_message(ready(PREPARE, 0, 6), 6.0))
    assert (told.first, told.last) == (0, 6)
    return rank


PHASES = {
    without_head: Phase.NO_HEAD,
    gathering: Phase.GATHERING,
    loading: Phase.LOADING,
    prepared: Phase.PREPARED,
    joining: Phase.JOINING,
    linking: Phase.LINKING,
    serving: Phase.SERVING,
    in_parallel: Phase.SERVING,
    idle: Phase.GATHERING,
    failed: Phase.FAILED,
    cut: Phase.FAILED,
}
WITH_HEAD = [way for way in PHASES if way is not without_head]
AT_WORK = [loading, prepared, joining, linking, serving, in_parallel, idle]
Way = Callable[[], Follower]

# ------------------------------------------------------------ what can happen in them


@pytest.mark.parametrize("way", PHASES)
def test_each_state_has_its_phase(way: Way):
    rank = way()
    assert rank.standing().phase is PHASES[way]
    assert rank.serving is (way in (serving, in_parallel))
    assert (rank.standing().failed is not None) is (way in (failed, cut))


@pytest.mark.parametrize("way", WITH_HEAD)
def test_the_head_may_go_at_any_time_and_come_back(way: Way):
    rank = way()
    assert not sent(rank.link_down(0, CONTROL, "reset", 10.0))
    standing = rank.standing()
    assert (standing.phase, standing.since, standing.head_reasons) == (Phase.NO_HEAD, 10.0, {})
    assert not sent(rank.link_up(2, STEP, 10.5))
    assert not sent(rank.engine_message(READY, 10.5))
    if rank.replacing:
        rank.engine_lost("replaced", 11.0)
        rank.engine_message(info(splits=3), 12.0)
    assert len(sent(rank.link_up(0, CONTROL, 13.0))) == 1
    assert rank.standing().phase is Phase.GATHERING


@pytest.mark.parametrize("way", WITH_HEAD)
def test_a_new_epoch_may_begin_at_any_time_and_is_served(way: Way):
    rank = way()
    order = attrs.evolve(ORDER, epoch=Epoch(HEAD, 2))
    rank.message(0, CONTROL, order, 10.0)
    standing = rank.standing()
    assert (standing.phase, standing.since, standing.head_reasons) == (Phase.LOADING, 10.0, {})
    if rank.replacing:
        rank.engine_lost("replaced", 11.0)
        rank.engine_message(info(splits=3), 12.0)
    effects = [*rank.link_up(2, STEP, 13.0)]
    effects += rank.engine_message(ready(order, 2, 4), 14.0)
    assert sent(effects) == [ready(order, 2, 4)]
    assert rank.serving
    assert rank.standing().failed is None


@pytest.mark.parametrize("way", AT_WORK)
def test_a_rank_that_loses_its_engine_says_once_that_it_cannot_serve(way: Way):
    rank = way()
    (told,) = sent(rank.engine_lost("died", 10.0))
    assert isinstance(told, CannotServe)
    assert (told.epoch, told.kind) == (ORDER.epoch, FailureKind.ENGINE_LOST)
    assert rank.standing().phase is Phase.FAILED
    assert rank.standing().failed is not None
    rank.engine_message(info(splits=3), 11.0)
    assert not sent(rank.engine_lost("died", 12.0))


@pytest.mark.parametrize("way", [without_head, gathering])
def test_a_rank_without_an_epoch_has_nothing_to_fail_in(way: Way):
    rank = way()
    phase = rank.standing().phase
    assert not sent(rank.engine_lost("died", 10.0))
    assert rank.standing().phase is phase


def test_an_engine_that_cannot_load_is_no_rank_that_serves():
    rank = loading()
    assert not rank.serving
    wrong = CannotServe(ORDER.epoch, FailureKind.LOAD, "no such tensor")
    (told,) = sent(rank.engine_message(wrong, 3.0))
    assert told.reason == "no such tensor"
    assert rank.standing().phase is Phase.FAILED
    assert not sent(rank.engine_message(READY, 4.0))
    assert not rank.serving


def test_a_rank_that_gets_ready_for_an_epoch_that_is_over_does_not_serve():
    rank = linking()
    rank.message(0, CONTROL, NO_EPOCH, 3.5)
    assert rank.standing().phase is Phase.LINKING
    assert sent(rank.link_up(2, STEP, 4.0)) == [READY]
    assert rank.standing().phase is Phase.GATHERING
    assert rank.standing().head_reasons
    assert not rank.serving


def test_a_link_that_breaks_before_this_rank_is_ready_is_waited_for_again():
    rank = loading()
    rank.link_up(2, STEP, 3.0)
    assert not sent(rank.link_down(2, STEP, "the ring has other members now", 4.0))
    assert not sent(rank.engine_message(READY, 5.0))
    assert rank.standing().phase is Phase.LINKING
    assert sent(rank.link_up(2, STEP, 6.0)) == [READY]


@pytest.mark.parametrize("way", [linking, serving, idle, failed, cut, gathering])
def test_an_engine_that_is_ready_unasked_or_twice_changes_nothing(way: Way):
    rank = way()
    phase = rank.standing().phase
    assert not sent(rank.engine_message(READY, 10.0))
    assert rank.standing().phase is phase


def test_an_engine_that_is_ready_before_it_has_joined_changes_nothing():
    rank = prepared()
    assert not sent(rank.engine_message(ready(PREPARE, 0, 6), 10.0))
    assert rank.standing().phase is Phase.PREPARED


def test_a_rank_that_cannot_serve_is_not_prepared_either():
    rank = gathering()
    (wanted,) = of(rank.message(0, CONTROL, PREPARE, 2.0), PrepareCollective)
    rank.engine_message(Loaded(1, 1, 1), 3.0)
    assert not sent(rank.collective_prepared(wanted.epoch, 7, 8, 4.0))
    (told,) = sent(rank.handle_timeout(rank.next_timeout()))
    assert told.kind is FailureKind.GROUP
    assert not sent(rank.link_up(2, TUNNEL, 100.0))
    assert rank.standing().phase is Phase.FAILED


def test_what_fails_goes_down_the_chain_unless_the_chain_is_cut():
    rank = failed()
    effects = rank.message(0, STEP, step(1), 10.0)
    (passed,) = sent(effects, 2)
    assert passed.failed.kind is FailureKind.ENGINE_LOST
    rank = cut()
    for now in (10.0, 12.0):  # the next rank has missed steps: it hears no more of this epoch
        assert not sent(rank.link_up(2, STEP, now))
        assert not sent(rank.message(0, STEP, step(int(now) // 2 - 4), now), 2)
        assert not sent(rank.link_down(2, STEP, "reset", now + 1))
    rank.link_up(2, STEP, 14.0)
    order = attrs.evolve(ORDER, epoch=Epoch(HEAD, 2))
    rank.message(0, CONTROL, order, 15.0)
    rank.engine_message(ready(order, 2, 4), 16.0)
    next_step = attrs.evolve(step(1), epoch=order.epoch)
    assert of(rank.message(0, STEP, next_step, 17.0), ToEngine)
    assert sent(rank.engine_message(next_step, 18.0), 2) == [next_step]


@pytest.mark.parametrize("instance", [HEAD, HEAD + 1])
def test_caches_are_kept_only_for_a_head_that_has_given_orders_before(instance):
    """Its link may have broken meanwhile."""
    rank = loading()
    rank.link_down(0, CONTROL, "it broke", 3.0)
    rank.link_up(0, CONTROL, 4.0)
    order = attrs.evolve(ORDER, epoch=Epoch(instance, 2), kept=(KeptCache(1, 40),))
    effects = rank.message(0, CONTROL, order, 5.0)
    refused = [each.kind for each in sent(effects) if isinstance(each, CannotServe)]
    assert refused == ([] if instance == HEAD else [FailureKind.LEDGER])
    assert [each.message for each in of(effects, ToEngine)] == ([] if refused else [order])
