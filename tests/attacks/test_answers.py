"""A member that answers its head too much, wrongly, or with lies about others."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import (
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Prefill,
    Spent,
    Step,
    StepDone,
    Work,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.effects import Effect
from sealring_protocol.control.epoch.follower import Follower
from sealring_protocol.control.epoch.pipeline import (
    Answered,
    FollowerPipeline,
    HeadPipeline,
)
from sealring_protocol.control.epoch.tensor import TensorLeader
from sealring_protocol.control.head.head import Head
from sealring_protocol.control.requests import FinishReason, Request
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import (
    ENTRY_WEIGHT,
    MAX_IDS,
    MAX_WEIGHT_WAITING,
)
from sealring_protocol.security.roles import Purpose

from tests.sim.cluster import Cluster

EPOCH = Epoch(7, 1)


def test_answers_that_a_head_has_to_draw_from_weigh_so_much_and_no_more() -> None:
    head = HeadPipeline(EPOCH, 2)
    hidden = (Tensor(DType.F32, (1 << 21,), bytes(1 << 23)),)
    for n in range(1, 11):
        step = Step(EPOCH, n, bytes(16), work=Decode(0))
        head.begin(step)
        head.output(step)
    for n in range(1, 9):
        head.done(1, StepDone(EPOCH, n, tensors=hidden))
    with pytest.raises(LimitExceeded):
        head.done(1, StepDone(EPOCH, 9, tensors=hidden))


def test_answers_that_wait_for_other_ranks_weigh_so_much_and_no_more() -> None:
    leader = TensorLeader(EPOCH, 3)
    for n in (1, 2):
        leader.begin(Step(EPOCH, n, bytes(16), work=Decode(0)))
    most = MAX_WEIGHT_WAITING // ENTRY_WEIGHT
    leader.done(1, StepDone(EPOCH, 1, ids=(7,) * most))
    leader.done(2, StepDone(EPOCH, 1, ids=(7,) * most))
    with pytest.raises(LimitExceeded):
        leader.done(1, StepDone(EPOCH, 2, ids=(7,)))


HIDDEN = (Tensor(DType.F32, (1, 1, 4), bytes(16)),)
TIMES = (Spent(1, 1, 1),)


def waiting_for(work: Work) -> HeadPipeline:
    """A head of three ranks, whose step 1 is on its way round."""
    head = HeadPipeline(EPOCH, 3)
    step = Step(EPOCH, 1, bytes(16), work=work)
    head.begin(step)
    head.output(step)
    return head


@pytest.mark.parametrize(
    ("work", "answer"),
    [
        (Decode(0), StepDone(EPOCH, 1)),
        (Decode(0), StepDone(EPOCH, 1, ids=(7,))),
        (Prefill(1, 0, 5), StepDone(EPOCH, 1, tensors=HIDDEN)),
        (Prefill(1, 0, 5), StepDone(EPOCH, 1, ids=(7,))),
    ],
)
def test_an_answer_that_does_not_fit_its_step_is_the_last_ranks_failure(
    work: Work, answer: StepDone
) -> None:
    """So it counts against the request, which would be tried for ever, and never reaches the head's
    engine, which would be blamed."""
    (action,) = waiting_for(work).done(2, answer)
    assert isinstance(action, Answered)
    assert action.failed is not None
    assert (action.failed.rank, action.failed.kind) == (2, FailureKind.INTEGRITY)


def test_hidden_states_that_do_not_open_are_those_of_the_rank_that_sent_them() -> None:
    head = waiting_for(Decode(0))
    head.done(2, StepDone(EPOCH, 1, tensors=HIDDEN))
    failed = Failure(0, FailureKind.INTEGRITY, "hidden states came as F32 (1, 1, 80)")
    (action,) = head.output(StepDone(EPOCH, 1, failed=failed))
    assert isinstance(action, Answered)
    assert action.failed == attrs.evolve(failed, rank=2)


def test_a_step_whose_answer_is_refused_still_waits_and_is_lost_with_its_link() -> None:
    """Else nobody would know whose it was, and its request would be tried for ever."""
    times = StepDone(EPOCH, 1, tensors=HIDDEN, spent=TIMES * 4)
    for wrong in (times, StepDone(EPOCH, 1, ids=(7,) * MAX_IDS)):
        head = waiting_for(Decode(0))
        with pytest.raises(RemoteProtocolError):
            head.done(2, wrong)
        assert [action.n for action in head.lost(Failure(2, FailureKind.LINK_LOST, ""))] == [1]


def test_times_of_more_ranks_than_are_never_reach_an_engine_that_adds_its_own() -> None:
    """An engine could not say its answer with them, and ended."""
    head = waiting_for(Decode(0))
    with pytest.raises(RemoteProtocolError):
        head.done(2, StepDone(EPOCH, 1, tensors=HIDDEN, spent=TIMES * 4))
    assert head.done(2, StepDone(EPOCH, 1, tensors=HIDDEN, spent=TIMES * 3))
    step = Step(EPOCH, 1, bytes(16), work=Decode(0), tensors=HIDDEN)
    with pytest.raises(RemoteProtocolError):
        FollowerPipeline(EPOCH, 2, last=True).step(attrs.evolve(step, spent=TIMES * 3))
    assert FollowerPipeline(EPOCH, 2, last=True).step(attrs.evolve(step, spent=TIMES * 2))
    leader = TensorLeader(EPOCH, 2)
    leader.begin(step)
    with pytest.raises(RemoteProtocolError):
        leader.done(1, StepDone(EPOCH, 1, ids=(7,), spent=TIMES * 3))


@pytest.mark.parametrize("wrong", [{"ids": (7,), "tensors": ()}, {"spent": TIMES * 9}], ids=str)
def test_a_request_whose_answers_are_wrong_each_time_is_given_up_within_seconds(
    wrong: dict[str, object],
) -> None:
    """Whether the answer fails its step or ends its link: it held the ring for minutes."""
    cluster = Cluster(3, 1)
    cluster.run_until(lambda: cluster.ready)
    last = cluster.hosts["host2"].node._brain
    assert isinstance(last, Follower)
    honest = last.engine_message

    def answers(message: LocalMessage, now: float) -> list[Effect]:
        if isinstance(message, StepDone):
            message = attrs.evolve(message, **wrong)  # type: ignore[arg-type]
        return honest(message, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(last, "engine_message", answers)
        uid = cluster.submit(Request((5,) * 9, 6))
        cluster.run_until(lambda: cluster.all_done, 10)
    assert cluster.done[uid].reason is FinishReason.FAILED
    assert "tries; the last, on rank 2 (node2): " in cluster.done[uid].message
    uid = cluster.submit(Request((5,) * 9, 6))
    cluster.run_until(lambda: cluster.all_done, 10)
    assert cluster.done[uid].reason is FinishReason.LENGTH


def away(brain: Head) -> list[int]:
    """The steps that are on their way round its ring."""
    machine = brain._steps and brain._steps._machine
    return list(machine._chain) if isinstance(machine, HeadPipeline) else []


@pytest.mark.parametrize("seed", range(3))
def test_no_rank_takes_room_from_another(seed: int) -> None:
    """The last rank says that the one before it has run out of memory, again and again."""
    cluster = Cluster(3, seed)
    cluster.run_until(lambda: cluster.ready)
    head = cluster.head.node
    brain = head._brain
    assert isinstance(brain, Head)
    for _ in range(5):
        for owner in "abc":
            cluster.submit(Request((5,) * 9, 6, owner=owner))
        cluster.run_until(lambda: bool(away(brain)))
        lie = Failure(1, FailureKind.MEMORY, "it ran out")
        done = StepDone(head.standing().epoch, away(brain)[0], failed=lie)
        head._carry_out(brain.message(2, Purpose.STEP, done, cluster.now), cluster.now)
        cluster.settle(cluster.head)
        cluster.run_until(lambda: cluster.all_done)
    assert brain.scheduler is not None
    assert not brain.scheduler.learnt
