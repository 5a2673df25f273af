"""Bringing up a collective, brain by brain: what may cross on its way, and what none may say."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.local_messages import Group, Grouped, Loaded
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Prepared,
    Ready,
    Row,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.effects import (
    EndCollective,
    PrepareCollective,
    RestartEngine,
    Send,
    Shut,
    ToEngine,
    Want,
)
from sealring_protocol.control.epoch.engine import TUNNEL_SECONDS
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.control.head.head import Head, HeadConfig
from sealring_protocol.control.head.trial import TrialState
from sealring_protocol.control.membership import MembershipState
from sealring_protocol.control.plan import PlanRequest, Strategy
from sealring_protocol.control.requests import Request
from sealring_protocol.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from sealring_protocol.security.roles import Purpose

from tests.sim.fake_engine import info

HEAD = 7
EPOCH = Epoch(HEAD, 1)
CONTROL, STEP, TUNNEL = Purpose.CONTROL, Purpose.STEP, Purpose.TUNNEL
HELLO = Hello(b"m" * 32, 6, DType.U32, 1, 1 << 30)
PREPARED = Prepared(EPOCH, 40001)
JOINED = Ready(EPOCH, 0, 6, True, 1 << 30, CacheCost(0, 48))
PREPARE = Bootstrap(EPOCH, Backend.RING, 1, True, 60000, b"m" * 32, (0, 6), (("", 0), ("", 0)))
JOIN = attrs.evolve(PREPARE, deadline_ms=20000, hosts=(("a", 7000), ("b", 40001)))


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects):
    return [effect.message for effect in of(effects, Send)]


def told(effects):
    return [effect.message for effect in of(effects, ToEngine)]


# --------------------------------------------------------------------------- the head


def trying_head(names=("n0", "n1")):
    """A head that tries tensor parallelism in its first epoch."""
    head = Head(HeadConfig(HEAD, names, names, PlanRequest(Strategy.AUTO)))
    head.epochs.trial.begin()
    return head


def preparing_head():
    """A head that has asked everybody to prepare, and is prepared itself."""
    head = trying_head(("a", "b"))
    head.engine_message(info(splits=2), 0.0)
    effects = head.message(1, CONTROL, HELLO, 0.0)
    (order,) = sent(effects)
    assert order == attrs.evolve(PREPARE, deadline_ms=600_000)
    (wanted,) = of(effects, PrepareCollective)
    assert (wanted.sealed, of(effects, Want)) == (True, [Want(1, TUNNEL)])
    head.engine_message(Loaded(1, 1, 1), 0.0)
    head.link_up(1, TUNNEL, 0.0)
    assert head.collective_prepared(wanted.epoch, 7000, 7001, 0.0) == []
    return head


def serving_head():
    head = preparing_head()
    effects = head.message(1, CONTROL, PREPARED, 0.0)
    assert sent(effects) == [JOIN]
    own = Group(Backend.RING, 0, 2, 20000, (("127.0.0.1", 7000), ("127.0.0.1", 7001)))
    assert told(effects) == [own]
    head.engine_message(Grouped(2, 10, 1000), 0.0)
    head.engine_message(JOINED, 0.0)
    head.message(1, CONTROL, attrs.evolve(JOINED, sum_us=10, token_us=1000), 0.0)
    assert head.epochs.membership.state is MembershipState.SERVING
    return head


def test_nobody_is_told_to_join_before_everybody_is_prepared():
    assert preparing_head().epochs.membership.state is MembershipState.PREPARING


def test_a_rank_that_is_ready_before_all_are_prepared_is_at_fault():
    with pytest.raises(RemoteProtocolError, match="READY before all are prepared"):
        preparing_head().message(1, CONTROL, JOINED, 0.0)


def test_a_rank_that_is_prepared_where_nobody_is_to_be_is_at_fault():
    with pytest.raises(RemoteProtocolError, match="unasked or a second time"):
        serving_head().message(1, CONTROL, PREPARED, 0.0)


def test_a_rank_that_is_prepared_for_a_pipeline_is_at_fault():
    head = Head(HeadConfig(HEAD, ("n0", "n1"), ("a", "b")))
    head.engine_message(info(), 0.0)
    head.message(1, CONTROL, HELLO, 0.0)
    assert head.epochs.membership.state is MembershipState.STARTING
    with pytest.raises(RemoteProtocolError, match="unasked or a second time"):
        head.message(1, CONTROL, PREPARED, 0.0)


def test_a_rank_that_is_prepared_twice_while_others_are_waited_for_is_at_fault():
    head = trying_head(("n0", "n1", "n2"))
    head.engine_message(info(splits=3), 0.0)
    head.message(1, CONTROL, HELLO, 0.0)
    head.message(2, CONTROL, HELLO, 0.0)
    assert head.message(1, CONTROL, PREPARED, 0.0) == []
    assert head.epochs.membership.state is MembershipState.PREPARING
    with pytest.raises(RemoteProtocolError, match="unasked or a second time"):
        head.message(1, CONTROL, PREPARED, 0.0)


def test_a_late_answer_of_an_epoch_that_is_over_changes_nothing():
    """Whatever the head does by then: nothing, prepares again, or runs a pipeline."""
    head = serving_head()
    head.submit(Request((1, 2, 3), 5), 0.0)
    head.engine_lost("it was killed", 0.0)
    assert head.epochs.membership.state is MembershipState.GATHERING
    late = StepDone(EPOCH, 1)
    assert head.message(1, CONTROL, late, 0.1) == []
    head.engine_message(info(splits=2), 0.2)
    assert head.epochs.membership.state is MembershipState.PREPARING
    assert head.epochs.membership.epoch.counter == 2
    assert head.message(1, CONTROL, late, 0.3) == []


def test_answers_come_on_the_control_link():
    head = serving_head()
    head.submit(Request((1, 2, 3), 5), 0.0)
    with pytest.raises(RemoteProtocolError):
        head.message(1, STEP, StepDone(EPOCH, 1), 0.1)
    assert head.message(1, CONTROL, StepDone(EPOCH, 1), 0.1) == []


@pytest.mark.parametrize("failed", [None, Failure(0, FailureKind.ENGINE_ERROR, "boom")])
def test_an_engine_that_speaks_unasked_ends_the_epoch(failed):
    head = serving_head()
    effects = head.engine_message(StepDone(EPOCH, 3, failed=failed), 0.1)
    assert [(restart.planned) for restart in of(effects, RestartEngine)] == [True]
    assert head.epochs.membership.epoch.counter == 2


# -------------------------------------------------------------------------- a follower


def follower(**config):
    rank = Follower(FollowerConfig(1, ("n0", "n1"), **config))
    rank.engine_message(info(splits=2), 0.0)
    rank.link_up(0, CONTROL, 0.0)
    return rank


def prepared():
    """A rank that has its share, a port and its tunnel, and has said so."""
    rank = follower()
    effects = rank.message(0, CONTROL, PREPARE, 0.0)
    alone = Bootstrap(EPOCH, Backend.PIPELINE, 0, True, 60000, b"m" * 32, (0, 6))
    assert told(effects) == [Group(Backend.RING, 1, 2, 60000), alone]
    (wanted,) = of(effects, PrepareCollective)
    rank.engine_message(Loaded(1, 1, 1), 0.0)
    rank.link_up(0, TUNNEL, 0.0)
    assert sent(rank.collective_prepared(wanted.epoch, 40001, 40002, 0.0)) == [PREPARED]
    return rank


def test_a_rank_joins_by_its_relay():
    effects = prepared().message(0, CONTROL, JOIN, 0.0)
    (group,) = told(effects)
    assert group.hosts == (("127.0.0.1", 40002), ("127.0.0.1", 40001))


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 0},
        {"backend": Backend.NCCL, "trusted": True},
        {"trusted": True},
        {"bounds": (0, 5)},
        {"inner_seal": False},
        {"model": b"x" * 32},
        {"epoch": Epoch(HEAD, 2)},
    ],
)
def test_who_is_to_join_is_told_nothing_new_but_where(change):
    rank = prepared()
    try:
        effects = rank.message(0, CONTROL, attrs.evolve(JOIN, **change), 0.0)
    except RemoteProtocolError:
        return
    assert of(effects, Shut)
    assert not told(effects)


def test_nobody_joins_unprepared():
    with pytest.raises(RemoteProtocolError, match="unprepared"):
        follower().message(0, CONTROL, JOIN, 0.0)


def test_an_order_to_join_may_cross_the_news_that_this_rank_cannot():
    rank = prepared()
    effects = rank.engine_lost("it was killed", 0.0)
    assert of(effects, EndCollective)
    (news,) = sent(effects)
    assert isinstance(news, CannotServe)
    assert news.n == 0
    assert rank.message(0, CONTROL, JOIN, 0.0) == []


def test_who_has_said_that_it_cannot_joins_no_more_and_waits_for_the_next_epoch():
    """The order may cross the news while another engine is up already, or the old one still."""
    for engine in ("another", "the old one"):
        rank = prepared()
        if engine == "another":
            rank.engine_lost("it was killed", 0.0)
            assert told(rank.engine_message(info(splits=2), 0.1)) == []
        else:
            assert sent(rank.link_down(0, TUNNEL, "it was cut", 0.0))
        assert rank.message(0, CONTROL, JOIN, 0.2) == []
        again = attrs.evolve(PREPARE, epoch=Epoch(HEAD, 2))
        effects = rank.message(0, CONTROL, again, 0.3)
        assert told(effects) or of(effects, RestartEngine)


def test_a_tunnel_that_is_lost_before_a_rank_is_prepared_is_waited_for():
    rank = follower()
    (wanted,) = of(rank.message(0, CONTROL, PREPARE, 0.0), PrepareCollective)
    rank.link_up(0, TUNNEL, 0.0)
    assert not sent(rank.link_down(0, TUNNEL, "a late end of the one before", 0.0))
    rank.engine_message(Loaded(1, 1, 1), 0.0)
    assert sent(rank.collective_prepared(wanted.epoch, 40001, 40002, 0.0)) == []
    assert sent(rank.link_up(0, TUNNEL, 0.0)) == [PREPARED]


def test_a_tunnel_that_never_comes_up_is_not_waited_for_as_long_as_loading_is():
    rank = follower()
    (wanted,) = of(rank.message(0, CONTROL, PREPARE, 0.0), PrepareCollective)
    loading = rank.next_timeout()
    assert sent(rank.collective_prepared(wanted.epoch, 40001, 40002, 1.0)) == []
    assert rank.next_timeout() == loading  # its share is still to come
    rank.engine_message(Loaded(1, 1, 1), 20.0)
    assert rank.next_timeout() == 20.0 + TUNNEL_SECONDS < loading
    rank.link_up(0, TUNNEL, 21.0)
    assert rank.next_timeout() is None
    rank = follower()
    (wanted,) = of(rank.message(0, CONTROL, PREPARE, 0.0), PrepareCollective)
    rank.engine_message(Loaded(1, 1, 1), 1.0)
    rank.collective_prepared(wanted.epoch, 40001, 40002, 1.0)
    assert rank.handle_timeout(0.9 + TUNNEL_SECONDS) == []
    (done,) = sent(rank.handle_timeout(1.0 + TUNNEL_SECONDS))
    assert (done.n, done.kind) == (0, FailureKind.GROUP)
    assert "no tunnel link with rank 0" in done.reason
    assert rank.next_timeout() is None


def test_a_rank_that_leaves_whenever_a_collective_comes_up_has_a_pipeline_in_the_end():
    """As one does whose owner has not said that its sums may go beside the links."""
    head = trying_head()
    head.epochs.trial.came_up()
    head.engine_message(info(splits=2), 0.0)
    for now in (10.0, 20.0, 30.0):
        head.message(1, CONTROL, HELLO, now)
        assert head.epochs.membership.state is MembershipState.PREPARING
        head.link_down(1, CONTROL, "it does not say trusted-link", now + 1)
        head.engine_lost("replaced", now + 1)
        head.engine_message(info(splits=2), now + 2)
        head.handle_timeout(now + 9)
    head.message(1, CONTROL, HELLO, 40.0)
    assert head.epochs.membership.state is MembershipState.STARTING
    assert head.epochs.plan.strategy is Strategy.PIPELINE
    assert "rank 1 (n1) is gone: it does not say" in head.epochs.plan.reason


@pytest.mark.parametrize("first", [TUNNEL, CONTROL])
def test_a_node_that_goes_with_all_its_links_is_lost_once(first):
    head = preparing_head()
    head.epochs.trial.came_up()
    for now in (10.0, 20.0, 30.0):
        assert head.epochs.plan.strategy is Strategy.TENSOR
        for at, purpose in enumerate(sorted((TUNNEL, CONTROL), key=lambda p: p is not first)):
            head.link_down(1, purpose, "it is gone", now + at / 1000)
            head.engine_lost("replaced", now + 0.1)
            head.handle_timeout(now + 0.2)
        head.engine_message(info(splits=2), now + 5)
        head.message(1, CONTROL, HELLO, now + 6)
        head.handle_timeout(now + 7)
        head.engine_message(Loaded(1, 1, 1), now + 7)
        head.link_up(1, TUNNEL, now + 7)
        head.collective_prepared(head.epochs.membership.epoch, 7000, 7001, now + 7)
    assert head.epochs.plan.strategy is Strategy.PIPELINE


def test_a_head_without_a_tunnel_goes_over_to_a_pipeline():
    head = trying_head()
    head.engine_message(info(splits=2), 0.0)
    (wanted,) = of(head.message(1, CONTROL, HELLO, 0.0), PrepareCollective)
    head.engine_message(Loaded(1, 1, 1), 1.0)
    head.collective_prepared(wanted.epoch, 7000, 7001, 1.0)
    head.handle_timeout(1.0 + TUNNEL_SECONDS)
    assert head.epochs.membership.state is not MembershipState.PREPARING
    head.engine_lost("replaced", 40.0)
    head.engine_message(info(splits=2), 41.0)
    head.handle_timeout(50.0)
    assert head.epochs.plan.strategy is Strategy.PIPELINE
    assert "no tunnel link with rank 1" in head.epochs.plan.reason


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (FailureKind.LOAD, TrialState.UNTRIED),
        (FailureKind.MEMORY, TrialState.DROPPED),
        (FailureKind.GROUP, TrialState.DROPPED),
    ],
)
def test_weights_that_are_still_to_come_are_no_fault_of_the_strategy(kind, state):
    head = trying_head()
    head.engine_message(info(splits=2), 0.0)
    head.message(1, CONTROL, HELLO, 0.0)
    cannot = CannotServe(head.epochs.membership.epoch, kind, "3 of 16 GB are here")
    head.message(1, CONTROL, cannot, 10.0)
    head.engine_lost("replaced", 11.0)
    head.engine_message(info(splits=2), 12.0)
    head.handle_timeout(16.0)
    assert head.epochs.plan.strategy is Strategy.PIPELINE
    assert head.epochs.trial.state is state


def test_step_links_are_nothing_to_tensor_parallelism():
    """They may be left over from a pipeline, of another head even, with steps on their way."""
    head = serving_head()
    head.link_down(1, STEP, "the engine is being replaced", 0.1)
    assert head.epochs.membership.state is MembershipState.SERVING
    rank = Follower(FollowerConfig(1, ("n0", "n1", "n2")))
    rank.engine_message(info(splits=3), 0.0)
    rank.link_up(0, CONTROL, 0.0)
    rank.link_up(2, STEP, 0.0)
    order = attrs.evolve(PREPARE, hosts=(("", 0),) * 3)
    rank.message(0, CONTROL, order, 0.0)
    late = Step(Epoch(HEAD - 1, 9), 5, bytes(16))
    assert rank.message(0, STEP, late, 0.1) == []
    assert not sent(rank.link_down(2, STEP, "the engine is being replaced", 0.1))


def test_a_tunnel_is_nothing_to_a_pipeline():
    head = Head(HeadConfig(HEAD, ("n0", "n1"), ("a", "b")))
    head.engine_message(info(), 0.0)
    head.message(1, CONTROL, HELLO, 0.0)
    assert head.epochs.membership.state is MembershipState.STARTING
    head.link_down(1, TUNNEL, "nobody wants it any more", 0.1)
    assert head.epochs.membership.state is MembershipState.STARTING


def test_tunnels_that_break_whenever_a_collective_comes_up_end_in_a_pipeline():
    """Not the first time: it may be that a node has just gone."""
    head = preparing_head()
    head.epochs.trial.came_up()
    for now in (10.0, 20.0, 30.0):
        assert head.epochs.plan is not None
        assert head.epochs.plan.strategy is Strategy.TENSOR
        head.link_down(1, TUNNEL, "it was cut", now)
        head.engine_lost("replaced", now)
        head.handle_timeout(now + 5)
        effects = head.engine_message(info(splits=2), now + 6)
        for wanted in of(effects, PrepareCollective):
            head.engine_message(Loaded(1, 1, 1), now + 7)
            head.link_up(1, TUNNEL, now + 7)
            head.collective_prepared(wanted.epoch, 7000, 7001, now + 7)
    assert head.epochs.plan.strategy is Strategy.PIPELINE
    assert "tunnel broke" in head.epochs.plan.reason


def test_a_new_epoch_takes_another_engine_process():
    rank = prepared()
    rank.message(0, CONTROL, JOIN, 0.0)
    again = attrs.evolve(PREPARE, epoch=Epoch(HEAD, 2))
    effects = rank.message(0, CONTROL, again, 0.0)
    assert of(effects, EndCollective)
    (restart,) = of(effects, RestartEngine)
    assert restart.planned
    assert not told(effects)
    assert rank.engine_lost("replaced", 0.0) == []
    (share, alone) = told(rank.engine_message(info(splits=2), 0.0))
    assert (share.hosts, alone.epoch) == ((), again.epoch)


def test_a_port_that_is_missed_when_a_new_epoch_has_begun_is_no_failure_of_it():
    rank = prepared()
    again = attrs.evolve(PREPARE, epoch=Epoch(HEAD, 2))
    assert of(rank.message(0, CONTROL, again, 0.0), RestartEngine)
    assert rank.collective_failed(EPOCH, "no port is free", 0.0) == []
    assert rank.engine_lost("replaced", 0.0) == []
    assert told(rank.engine_message(info(splits=2), 0.0))[1].epoch == again.epoch


@pytest.mark.parametrize("backend", [Backend.JACCL, Backend.NCCL])
def test_what_cannot_be_sealed_is_nothing_but_trusted(backend):
    with pytest.raises(LocalProtocolError, match="sealed"):
        attrs.evolve(PREPARE, backend=backend)
    open_order = attrs.evolve(PREPARE, backend=backend, trusted=True)
    (shut,) = of(follower().message(0, CONTROL, open_order, 0.0), Shut)
    assert shut.code is CloseCode.POLICY_MISMATCH
    effects = follower(trusted=True).message(0, CONTROL, open_order, 0.0)
    (wanted,) = of(effects, PrepareCollective)
    assert (wanted.sealed, of(effects, Want)) == (False, [])


def test_steps_come_on_the_control_link_and_rows_to_whom_they_concern():
    rank = prepared()
    rank.message(0, CONTROL, JOIN, 0.0)
    step = Step(EPOCH, 1, bytes(16))
    with pytest.raises(RemoteProtocolError):
        rank.message(0, STEP, step, 0.0)
    assert told(rank.message(0, CONTROL, Row(1), 0.0)) == [Row(1)]
    assert told(rank.message(0, CONTROL, step, 0.0)) == [step]
    assert follower().message(0, CONTROL, step, 0.0) == []  # before any BOOTSTRAP
    with pytest.raises(RemoteProtocolError):
        follower().message(0, CONTROL, Row(1), 0.0)
