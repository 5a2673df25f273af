"""The pipeline machines: each step answered exactly once, by whoever can still answer it."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.messages import (
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Spent,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.epoch.pipeline import (
    Answered,
    FollowerPipeline,
    HeadPipeline,
    ToNext,
    ToOwnEngine,
)
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import MAX_WEIGHT_WAITING

EPOCH = Epoch(1, 1)
HIDDEN = (Tensor(DType.F16, (1,), b"hh"),)
TIMES = (Spent(7), Spent(8, 1), Spent(9, 0, 2))
FAULT = Failure(2, FailureKind.ENGINE_ERROR, "boom")


def step(n, **fields):
    return Step(EPOCH, n, bytes(16), **fields)


def done(n, **fields):
    return StepDone(EPOCH, n, **fields)


def follower(rank=1, world=3):
    return FollowerPipeline(EPOCH, rank, last=rank == world - 1)


def test_a_middle_rank_passes_on_what_its_engine_gives():
    rank = follower()
    assert rank.step(step(1)) == [ToOwnEngine(step(1))]
    out = step(1, tensors=HIDDEN)
    assert rank.output(out) == [ToNext(out)]


def test_a_gap_or_a_repeat_is_refused():
    for *before, last in ((2,), (1, 1), (1, 3)):
        rank = follower()
        for n in before:
            rank.step(step(n))
        with pytest.raises(RemoteProtocolError):
            rank.step(step(last))


def test_a_failed_step_goes_straight_on_and_breaks_the_rank():
    rank = follower(3, 5)
    rank.step(step(1))
    failed = step(2, failed=FAULT, ids=(1,))
    assert rank.step(failed) == [
        ToNext(step(1, failed=FAULT)),
        ToNext(step(2, failed=FAULT)),
    ]
    assert rank.output(step(1, tensors=HIDDEN)) == []
    assert rank.step(step(3)) == [ToNext(step(3, failed=FAULT))]


@pytest.mark.parametrize("blamed", [0, 2, 3])
def test_a_failure_can_only_be_of_a_rank_before(blamed):
    fault = attrs.evolve(FAULT, rank=blamed)
    with pytest.raises(RemoteProtocolError, match="came down the chain"):
        follower(2, 4).step(step(1, failed=fault))


@pytest.mark.parametrize("rank", [1, 2])
def test_a_failing_engine_breaks_the_rank_and_every_step_is_answered(rank):
    machine = follower(rank)
    machine.step(step(1))
    machine.step(step(2))
    kind = done if rank == 2 else step
    actions = machine.output(kind(1, failed=FAULT))
    failure = attrs.evolve(FAULT, rank=rank)
    assert actions == [ToNext(kind(1, failed=failure)), ToNext(kind(2, failed=failure))]
    assert machine.failure(FailureKind.ENGINE_LOST, "dead") == []
    assert machine.step(step(3)) == [ToNext(kind(3, failed=failure))]


@pytest.mark.parametrize("answer", [step(2), done(1)])
def test_an_engine_that_answers_out_of_order_has_failed(answer):
    machine = follower()
    machine.step(step(1))
    (action,) = machine.output(answer)
    assert action.message.failed.kind is FailureKind.ENGINE_ERROR


def head(world=3):
    return HeadPipeline(EPOCH, world)


def decode(n, **more):
    return step(n, work=Decode(0), **more)


def round_trip(machine, n):
    assert machine.begin(decode(n)) == [ToOwnEngine(decode(n))]
    assert machine.output(decode(n, tensors=HIDDEN)) == [ToNext(decode(n, tensors=HIDDEN))]
    back = done(n, tensors=HIDDEN, spent=TIMES)
    assert machine.done(2, back) == [ToOwnEngine(back)]
    return machine.output(done(n, ids=(5,), spent=TIMES))


def test_a_step_goes_round_the_ring():
    machine = head()
    assert round_trip(machine, 1) == [Answered(1, (5,), TIMES, None)]
    assert machine.outstanding == 0


def test_a_prefill_comes_back_without_a_second_pass():
    machine = head()
    machine.begin(step(1))
    machine.output(step(1, tensors=HIDDEN))
    assert machine.done(2, done(1, spent=TIMES)) == [Answered(1, (), TIMES, None)]


def test_alone_the_engine_answers():
    machine = head(1)
    machine.begin(step(1))
    machine.begin(step(2))
    assert machine.output(done(1, ids=(4,))) == [Answered(1, (4,), (), None)]
    assert machine.output(done(2, ids=(4,))) == [Answered(2, (4,), (), None)]


def test_an_answer_that_is_not_due_is_the_peers_fault():
    machine = head()
    machine.begin(step(1))
    for answer in (done(1), done(2)):
        with pytest.raises(RemoteProtocolError):
            machine.done(2, answer)
    machine.output(step(1, tensors=HIDDEN))
    machine.done(2, done(1))
    with pytest.raises(RemoteProtocolError):
        machine.done(2, done(1))


@pytest.mark.parametrize("where", ["engine", "chain", "closing", "lost"])
def test_a_failure_answers_every_step_once_the_one_at_fault_first(where):
    machine = head()
    for n in (1, 2, 3):
        machine.begin(decode(n))
    machine.output(decode(1, tensors=HIDDEN))
    machine.output(decode(2, tensors=HIDDEN))
    machine.done(2, done(1, tensors=HIDDEN))
    match where:
        case "engine":
            at, actions = 3, machine.output(decode(3, failed=FAULT))
        case "chain":
            at, actions = 2, machine.done(2, done(2, failed=FAULT))
        case "closing":
            at, actions = 1, machine.output(done(1, failed=FAULT))
        case _:
            at, actions = 1, machine.lost(FAULT)
    assert actions[0] == Answered(at, (), (), FAULT)
    assert sorted(action.n for action in actions) == [1, 2, 3]
    assert all(action.failed is not None for action in actions)
    assert machine.begin(step(4)) == []
    assert machine.output(step(2)) == []
    assert machine.done(2, done(1)) == []
    assert machine.outstanding == 0


def test_losing_a_rank_with_nothing_under_way_answers_nothing():
    machine = head()
    assert machine.lost(FAULT) == []
    assert machine.begin(step(1)) == []


@pytest.mark.parametrize("answer", [step(9), done(9), done(1, ids=(1,))])
def test_the_own_engine_may_not_answer_out_of_order(answer):
    machine = head()
    machine.begin(step(1))
    actions = machine.output(answer)
    assert actions[0].failed.kind is FailureKind.ENGINE_ERROR


BACK = (
    None,
    done(1, tensors=HIDDEN),
    done(2, tensors=HIDDEN, spent=TIMES),
    done(3, tensors=HIDDEN),
    done(4, tensors=HIDDEN),
)


def guessing(ahead=0):
    """A decode is on the chain, and behind it one that begins with a guess. Both read so many
    guesses *ahead*."""
    machine = head()
    for n, guessed in ((1, ahead), (2, 1 + 2 * ahead)):
        machine.begin(step(n, work=Decode(0, guessed, ahead)))
        machine.output(step(n, tensors=HIDDEN))
    return machine


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_right_guess_is_drawn_from_once_it_is_known_to_be_right(ahead):
    early, late = guessing(ahead), guessing(ahead)
    for machine in (early, late):
        assert machine.done(2, BACK[1]) == [ToOwnEngine(BACK[1])]
        machine.output(done(1, ids=(5,)))
    assert late.done(2, BACK[2]) == []
    assert late.outstanding == 1
    assert late.decide(2, right=True) == [ToOwnEngine(BACK[2])]
    assert early.decide(2, right=True) == []
    assert early.done(2, BACK[2]) == [ToOwnEngine(BACK[2])]
    for machine in (early, late):
        answer = done(2, ids=(6,), spent=TIMES)
        assert machine.output(answer) == [Answered(2, (6,), TIMES, None)]
        assert machine.outstanding == 0


@pytest.mark.parametrize("right", [False, True])
def test_what_comes_after_a_guess_waits_behind_it(right):
    """Of another group, too: hidden states are opened in the order in which they were sealed."""
    machine = guessing()
    for n in (3, 4):
        machine.begin(step(n, work=Decode(1, n - 3)))
        machine.output(step(n, tensors=HIDDEN))
    assert machine.done(2, BACK[1]) == [ToOwnEngine(BACK[1])]
    for n in (2, 3, 4):
        assert machine.done(2, BACK[n]) == []
    given = [ToOwnEngine(BACK[2]), ToOwnEngine(BACK[3])]
    wrong = [ToOwnEngine(BACK[3]), Answered(2, (), TIMES, None)]
    assert machine.decide(2, right=right) == (given if right else wrong)
    assert machine.decide(4, right=True) == [ToOwnEngine(BACK[4])]
    assert machine.outstanding == 3 + right


def test_a_wrong_guess_is_answered_without_a_token():
    early, late = guessing(), guessing()
    for machine in (early, late):
        machine.done(2, BACK[1])
    assert late.done(2, BACK[2]) == []
    assert late.decide(2, right=False) == [Answered(2, (), TIMES, None)]
    assert early.decide(2, right=False) == []
    assert early.done(2, BACK[2]) == [Answered(2, (), TIMES, None)]
    for machine in (early, late):
        assert machine.outstanding == 1
        assert machine.output(done(1, ids=(5,))) == [Answered(1, (5,), (), None)]


@pytest.mark.parametrize("right", [None, False, True])
@pytest.mark.parametrize("answer", [done(2), done(2, ids=(3,))])
def test_the_answer_to_a_guess_is_like_any_other(right, answer):
    """Of a wrong one, too: the last rank cannot know."""
    machine = guessing()
    machine.done(2, BACK[1])
    if right is not None:
        machine.decide(2, right=right)
    first, *_ = machine.done(2, answer)
    assert (first.n, first.failed.kind, first.failed.rank) == (2, FailureKind.INTEGRITY, 2)


@pytest.mark.parametrize("held", [False, True])
def test_a_failure_answers_guesses_too_and_nothing_is_decided_after_it(held):
    machine = guessing()
    machine.done(2, BACK[1])
    if held:
        machine.done(2, BACK[2])
    assert sorted(action.n for action in machine.lost(FAULT)) == [1, 2]
    for right in (True, False):
        assert machine.decide(2, right=right) == []
    assert machine.outstanding == 0


def test_answers_that_wait_for_their_guesses_are_counted():
    machine = head()
    large = (Tensor(DType.F16, (1,), bytes(MAX_WEIGHT_WAITING // 3 + 1)),)
    for n in range(1, 5):
        machine.begin(step(n, work=Decode(0, n - 1)))
        machine.output(step(n, tensors=HIDDEN))
    for n in (1, 2):
        machine.done(2, done(n, tensors=large))
    with pytest.raises(LimitExceeded):
        machine.done(2, done(3, tensors=large))
    machine.decide(2, right=False)
    assert machine.done(2, done(3, tensors=large)) == []
