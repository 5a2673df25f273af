"""Epochs: only the head raises them, old ones are dropped, what never was is an error."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Ready,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.effects import (
    EpochExplained,
    Level,
    Note,
    Phase,
    RestartEngine,
    Send,
    Shut,
    ToEngine,
    Want,
)
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.control.head.head import Head, HeadConfig
from sealring_protocol.control.membership import Membership, MembershipState
from sealring_protocol.control.requests import Request
from sealring_protocol.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from sealring_protocol.security.roles import Purpose
from sealring_protocol.words import RING_CHANGED

from tests.sim.fake_engine import info

HEAD = 7
CONTROL, STEP = Purpose.CONTROL, Purpose.STEP
HELLO = Hello(b"m" * 32, 6, DType.U32, 1, 1 << 30)


def ready(counter, first, last):
    return Ready(Epoch(HEAD, counter), first, last, True, 1 << 30, CacheCost(0, 0))


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def text(effects):
    return " / ".join(note.text for note in of(effects, Note))


def serving_head(world=2):
    """A head whose ring is ready in epoch 1."""
    head = Head(HeadConfig(HEAD, tuple(f"n{i}" for i in range(world)), inner_seal=False))
    head.engine_message(info(), 0.0)
    for rank in range(1, world):
        effects = head.message(rank, CONTROL, HELLO, 0.0)
    order = of(effects, ToEngine)[0].message
    head.link_up(1, STEP, 0.0)
    head.engine_message(ready(1, order.bounds[0], order.bounds[1]), 0.0)
    for rank in range(1, world):
        answer = ready(1, order.bounds[rank], order.bounds[rank + 1])
        effects = head.message(rank, CONTROL, answer, 0.0)
    assert "the ring is ready" in text(effects)
    return head


def test_the_head_starts_an_epoch_when_all_are_there_and_not_before():
    head = Head(HeadConfig(HEAD, ("n0", "n1", "n2"), inner_seal=False))
    assert "waiting for rank 1 (n1), rank 2 (n2)" in text(head.engine_message(info(), 0.0))
    assert not of(head.message(2, CONTROL, HELLO, 0.0), ToEngine)
    effects = head.message(1, CONTROL, HELLO, 0.0)
    (order,) = of(effects, ToEngine)
    assert order.message.epoch == Epoch(HEAD, 1)
    assert [send.rank for send in of(effects, Send)] == [1, 2]
    assert of(effects, Want) == [Want(1, STEP), Want(2, STEP, yields=True)]


@pytest.mark.parametrize(("why", "level"), [("reset", Level.ERROR), (RING_CHANGED, Level.INFO)])
def test_a_hop_that_broke_for_a_change_of_the_ring_is_no_error(why, level):
    head = Head(HeadConfig(HEAD, ("n0", "n1", "n2"), inner_seal=False))
    head.engine_message(info(), 0.0)
    for rank in (1, 2):
        head.message(rank, CONTROL, HELLO, 0.0)
    broke = CannotServe(Epoch(HEAD, 1), FailureKind.LINK_LOST, f"the next hop broke: {why}")
    (note, *_) = of(head.message(1, CONTROL, broke, 0.0), Note)
    assert note == Note(level, f"rank 1 (n1) cannot serve: the next hop broke: {why}")


def test_an_answer_of_an_old_epoch_is_dropped_and_one_that_never_was_is_an_error():
    head = serving_head()
    head.submit(Request((1, 2, 3), 5), 0.0)
    assert head.message(1, STEP, StepDone(Epoch(HEAD, 0), 1), 0.0) == []
    assert head.message(1, STEP, StepDone(Epoch(99, 9), 1), 0.0) == []
    assert head.message(1, CONTROL, ready(0, 0, 0), 0.0) == []
    failed = Failure(1, FailureKind.LINK_LOST, "x")
    late = CannotServe(Epoch(HEAD, 0), failed.kind, failed.message)
    assert head.message(1, CONTROL, late, 0.0) == [EpochExplained(failed)]
    assert head.serving
    for message in (StepDone(Epoch(HEAD, 2), 1), ready(2, 0, 3)):
        purpose = STEP if isinstance(message, StepDone) else CONTROL
        with pytest.raises(RemoteProtocolError, match="never was"):
            head.message(1, purpose, message, 0.0)


@pytest.mark.parametrize(
    ("purpose", "message"),
    [
        (CONTROL, ready(1, 3, 6)),
        (CONTROL, StepDone(Epoch(HEAD, 1), 0)),
        (STEP, StepDone(Epoch(HEAD, 1), 1)),
        (CONTROL, Step(Epoch(HEAD, 1), 1, bytes(16))),
    ],
)
def test_what_a_rank_may_not_say_is_its_fault(purpose, message):
    with pytest.raises(RemoteProtocolError):
        serving_head().message(1, purpose, message, 0.0)


def test_a_second_ready_while_others_are_waited_for_is_the_ranks_fault():
    head = Head(HeadConfig(HEAD, ("n0", "n1", "n2"), inner_seal=False))
    head.engine_message(info(), 0.0)
    for rank in (1, 2):
        effects = head.message(rank, CONTROL, HELLO, 0.0)
    bounds = of(effects, ToEngine)[0].message.bounds
    answer = ready(1, bounds[1], bounds[2])
    head.message(1, CONTROL, answer, 0.0)
    with pytest.raises(RemoteProtocolError, match="a second READY in this epoch"):
        head.message(1, CONTROL, answer, 0.0)


def test_ready_with_other_layers_than_planned_is_the_ranks_fault():
    head = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    head.engine_message(info(), 0.0)
    head.message(1, CONTROL, HELLO, 0.0)
    with pytest.raises(RemoteProtocolError, match="layers 2:6, not 3:6"):
        head.message(1, CONTROL, ready(1, 2, 6), 0.0)


@pytest.mark.parametrize("world", [2, 3])
def test_each_way_of_losing_an_epoch_leads_to_the_next(world):
    told = CannotServe(Epoch(HEAD, 1), FailureKind.ENGINE_LOST, "gone")
    endings = {
        "presented": lambda head: head.message(1, CONTROL, HELLO, 1.0),
        "told": lambda head: head.message(1, CONTROL, told, 1.0),
        "step link": lambda head: head.link_down(1, STEP, "cut", 1.0),
    }
    for name, end in endings.items():
        head = serving_head(world)
        head.submit(Request((1, 2, 3), 5), 0.5)
        effects = end(head)
        orders = [send.message for send in of(effects, Send)]
        assert [order.epoch for order in orders] == [Epoch(HEAD, 2)] * (world - 1), name
        assert head.epochs.membership.state is MembershipState.STARTING
        assert head.scheduler.in_flight == 0
        assert head.scheduler.live == 1
    head = serving_head(world)
    assert not of(head.link_down(1, CONTROL, "gone", 1.0), Send)
    assert head.epochs.membership.missing == [1]
    assert of(head.message(1, CONTROL, HELLO, 2.0), Send)


def test_a_rank_that_cannot_load_is_asked_again_after_a_pause():
    head = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    head.engine_message(info(), 0.0)
    head.message(1, CONTROL, HELLO, 0.0)
    cannot = CannotServe(Epoch(HEAD, 1), FailureKind.LOAD, "the file is not there")
    effects = head.message(1, CONTROL, cannot, 1.0)
    assert "rank 1 (n1) cannot serve: the file is not there" in text(effects)
    assert not of(effects, Send)
    assert head.next_timeout() == 6.0
    assert head.handle_timeout(5.9) == []
    assert of(head.handle_timeout(6.0), Send)[0].message.epoch == Epoch(HEAD, 2)
    # Epochs without an answer have pauses of their own, shorter at first; the longer one holds.
    head.message(1, CONTROL, attrs.evolve(cannot, epoch=Epoch(HEAD, 2)), 7.0)
    assert head.next_timeout() == 12.0


def test_a_refusal_whose_numbers_alone_change_is_logged_once():
    head = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    head.engine_message(info(), 0.0)
    head.message(1, CONTROL, HELLO, 0.0)
    logged = []
    for counter, here in enumerate(("3.1 of 16.0 GB", "4.2 of 16.0 GB", "the disk is full")):
        why = "it is being fetched; " + here if "GB" in here else here
        cannot = CannotServe(Epoch(HEAD, counter + 1), FailureKind.LOAD, why)
        logged.append("cannot serve" in text(head.message(1, CONTROL, cannot, 10.0 * counter)))
        assert here in head.standing().failed.message
        head.handle_timeout(10.0 * counter + 6)
    assert logged == [True, False, True]


def test_the_head_says_whom_it_waits_for_itself_too():
    head = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    assert "waiting for rank 0 (n0)" in text(head.message(1, CONTROL, HELLO, 0.0))
    head = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    assert "waiting for rank 1 (n1)" in text(head.engine_message(info(), 0.0))


def test_the_heads_own_engine_that_cannot_load_says_so():
    head = Head(HeadConfig(HEAD, ("n0",), inner_seal=False))
    head.engine_message(info(), 0.0)
    done = CannotServe(Epoch(HEAD, 1), FailureKind.LOAD, "no room")
    assert "no room" in text(head.engine_message(done, 0.0))


def test_a_bootstrap_has_a_deadline():
    head = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False, bootstrap_seconds=30))
    head.engine_message(info(), 0.0)
    head.message(1, CONTROL, HELLO, 0.0)
    head.engine_message(ready(1, 0, 3), 1.0)
    head.link_up(1, STEP, 1.0)
    assert head.next_timeout() == 30.0
    effects = head.handle_timeout(30.0)
    assert "rank 1 (n1) did not get ready in time" in text(effects)
    assert of(effects, Send)[0].message.epoch == Epoch(HEAD, 2)


def test_a_plan_that_does_not_fit_is_told_and_made_again_when_a_rank_presents_itself():
    small = attrs.evolve(info(), room=10)
    head = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    head.engine_message(small, 0.0)
    effects = head.message(1, CONTROL, attrs.evolve(HELLO, room=10), 0.0)
    assert "no plan: the model's weights take" in text(effects)
    unplanned = head.standing().unplanned
    assert unplanned.message.startswith("the model's weights take")
    assert unplanned.kind is FailureKind.MEMORY
    assert head.standing().since == 0.0
    assert head.next_timeout() is None
    effects = head.message(1, CONTROL, HELLO, 20.0)
    assert "no plan" in text(effects)  # rank 0 has too little yet
    head.engine_lost("it was killed", 21.0)
    assert of(head.engine_message(info(), 22.0), Send)
    assert head.standing().unplanned is None


def test_a_rank_with_another_model_is_shut_out_whenever_it_is_found_out():
    other = attrs.evolve(HELLO, model=b"x" * 32)
    early = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    early.message(1, CONTROL, other, 0.0)
    late = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    late.engine_message(info(), 0.0)
    for effects in (early.engine_message(info(), 0.0), late.message(1, CONTROL, other, 0.0)):
        (shut,) = of(effects, Shut)
        assert (shut.rank, shut.code) == (1, CloseCode.MODEL_MISMATCH)
        assert not of(effects, Send)


def test_a_rank_with_other_hidden_states_between_ranks_is_told_which_key_differs():
    head = Head(HeadConfig(HEAD, ("n0", "n1"), inner_seal=False))
    head.engine_message(info(), 0.0)
    (shut,) = of(head.message(1, CONTROL, attrs.evolve(HELLO, dtype=DType.BF16), 0.0), Shut)
    assert (shut.rank, shut.code) == (1, CloseCode.MODEL_MISMATCH)
    assert "hop_dtype" in shut.reason


def test_a_request_before_the_model_is_read_is_refused_with_what_to_do():
    head = Head(HeadConfig(HEAD, ("n0",), inner_seal=False))
    with pytest.raises(LocalProtocolError, match="try again"):
        head.submit(Request((1,)), 0.0)
    assert head.cancel(1, 0.0) == []
    assert head.finish(1, 0.0) == []


def test_membership_does_not_start_while_a_rank_is_missing():
    with pytest.raises(LocalProtocolError, match="missing"):
        Membership(HEAD, 2).start()


# ------------------------------------------------------------------- followers

ORDER = Bootstrap(Epoch(HEAD, 1), Backend.PIPELINE, 1, False, 1000, b"m" * 32, (0, 2, 4, 6))


def follower(world=3):
    rank = Follower(FollowerConfig(1, tuple(f"n{i}" for i in range(world)), inner_seal=False))
    rank.engine_message(info(), 0.0)
    rank.link_up(0, CONTROL, 0.0)
    return rank


def test_a_rank_presents_itself_when_it_has_both_an_engine_and_the_head():
    rank = Follower(FollowerConfig(1, ("n0", "n1"), inner_seal=False))
    assert rank.engine_message(info(), 0.0) == []
    here = Note(Level.INFO, "the head (n0) is here")
    assert rank.link_up(0, CONTROL, 0.0) == [here, Send(0, CONTROL, HELLO)]
    rank.link_down(0, CONTROL, "gone", 0.0)
    rank.engine_lost("died", 0.0)
    assert rank.link_up(0, CONTROL, 0.0) == [here]
    assert rank.engine_message(info(), 0.0) == [Send(0, CONTROL, HELLO)]


def test_steps_of_other_epochs_are_dropped_and_of_one_never_told_is_an_error():
    rank = follower()
    assert rank.message(0, STEP, Step(Epoch(HEAD, 1), 1, bytes(16)), 0.0) == []
    rank.message(0, CONTROL, attrs.evolve(ORDER, epoch=Epoch(HEAD, 5)), 0.0)
    assert rank.message(0, STEP, Step(Epoch(HEAD, 4), 9, bytes(16)), 0.0) == []
    assert rank.message(0, STEP, Step(Epoch(99, 9), 9, bytes(16)), 0.0) == []
    with pytest.raises(RemoteProtocolError, match="not told of"):
        rank.message(0, STEP, Step(Epoch(HEAD, 6), 1, bytes(16)), 0.0)


WRONG_ORDERS = {
    "rank": attrs.evolve(ORDER, rank=2),
    "world": attrs.evolve(ORDER, bounds=(0, 3, 6)),
    "again": ORDER,
    "older": attrs.evolve(ORDER, epoch=Epoch(HEAD, 0)),
}


@pytest.mark.parametrize("name", WRONG_ORDERS)
def test_a_bootstrap_that_cannot_be_is_the_heads_fault(name):
    rank = follower()
    rank.message(0, CONTROL, ORDER, 0.0)
    with pytest.raises(RemoteProtocolError):
        rank.message(0, CONTROL, WRONG_ORDERS[name], 0.0)


def test_disagreement_with_the_head_closes_the_link_with_the_reason():
    sealed = attrs.evolve(ORDER, inner_seal=True)
    other = attrs.evolve(ORDER, model=b"x" * 32)
    for order, code in ((sealed, CloseCode.POLICY_MISMATCH), (other, CloseCode.MODEL_MISMATCH)):
        (shut,) = of(follower().message(0, CONTROL, order, 0.0), Shut)
        assert shut.code is code


def test_a_new_head_is_obeyed_though_its_counter_starts_anew():
    rank = follower()
    rank.message(0, CONTROL, attrs.evolve(ORDER, epoch=Epoch(HEAD, 40)), 0.0)
    rank.link_down(0, CONTROL, "gone", 0.0)
    assert rank.epoch == NO_EPOCH
    rank.link_up(0, CONTROL, 0.0)
    rank.message(0, CONTROL, attrs.evolve(ORDER, epoch=Epoch(5, 1)), 0.0)
    assert rank.epoch == Epoch(5, 1)


def test_a_bootstrap_that_comes_before_the_engine_waits_for_it():
    rank = follower()
    rank.engine_lost("died", 0.0)
    assert not of(rank.message(0, CONTROL, ORDER, 0.0), ToEngine)
    effects = rank.engine_message(info(), 0.0)
    assert of(effects, ToEngine) == [ToEngine(ORDER)]
    assert of(effects, Want) == [Want(2, STEP), Want(0, STEP, yields=True)]
    assert not of(effects, Send)


def test_ready_waits_for_the_engine_and_for_the_next_hop_in_either_order():
    answer = ready(1, 2, 4)
    for first, second in (("engine", "link"), ("link", "engine")):
        rank = follower()
        rank.message(0, CONTROL, ORDER, 0.0)
        does = {
            "engine": lambda rank=rank: rank.engine_message(answer, 0.0),
            "link": lambda rank=rank: rank.link_up(2, STEP, 0.0),
        }
        assert not of(does[first](), Send)
        assert of(does[second](), Send) == [Send(0, CONTROL, answer)]


def test_a_lost_engine_is_told_once_an_epoch():
    rank = follower()
    rank.message(0, CONTROL, ORDER, 0.0)
    first = of(rank.engine_lost("died", 0.0), Send)
    assert [send.message.kind for send in first] == [FailureKind.ENGINE_LOST]
    assert not of(rank.link_down(2, STEP, "cut", 0.0), Send)


def test_a_rank_that_has_told_that_it_cannot_serve_is_not_ready_in_that_epoch():
    rank = follower()
    rank.message(0, CONTROL, ORDER, 0.0)
    rank.engine_message(ready(1, 2, 4), 0.0)
    rank.unreached(2, STEP, "at n2:1 (no answer within 5 s)")
    (told,) = of(rank.handle_timeout(rank.next_timeout()), Send)
    assert told.message.kind is FailureKind.LINK_LOST
    assert rank.link_up(2, STEP, 20.0) == []
    assert rank.standing().phase is Phase.FAILED
    assert not rank.serving


def test_an_engine_that_owes_an_answer_for_too_long_is_replaced():
    rank = follower()
    rank.message(0, CONTROL, ORDER, 0.0)
    assert rank.next_timeout() == 1.0  # loading has the deadline that the head gave
    rank.engine_message(ready(1, 2, 4), 0.5)
    assert rank.next_timeout() is None
    rank.message(0, STEP, Step(Epoch(HEAD, 1), 1, bytes(16)), 10.0)
    assert rank.handle_timeout(20.0) == []
    deadline = rank.next_timeout()
    assert deadline == 130.0
    assert of(rank.handle_timeout(deadline), RestartEngine)
    assert rank.next_timeout() is None
    head = serving_head()
    head.submit(Request((1, 2, 3), 5), 0.0)
    assert of(head.handle_timeout(head.next_timeout()), RestartEngine)


def test_links_that_are_no_hops_of_this_rank_change_nothing():
    rank = follower()
    assert rank.link_up(0, STEP, 0.0) == []
    assert rank.link_down(2, CONTROL, "x", 0.0) == []
    early = Step(Epoch(HEAD, 1), 1, bytes(16))
    assert rank.message(0, CONTROL, early, 0.0) == []  # of no instance that it knows
    with pytest.raises(RemoteProtocolError):
        rank.message(2, CONTROL, HELLO, 0.0)
    assert serving_head().link_up(1, CONTROL, 0.0) == []
