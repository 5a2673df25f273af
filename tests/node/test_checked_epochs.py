"""Checked epochs of whole clusters in virtual time, and what a rank may claim in one."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.messages import Checked, Decode, Epoch, NoWork, Prefill
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.control.effects import StepChecked, StepToCheck
from sealring_protocol.control.head.head import CheckedSteps
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import Request
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import MAX_STEPS_WAITING

from tests.node.test_cluster import busy, check_all, check_clean
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference

PROMPT = tuple(range(5, 30))


def told(cluster: Cluster) -> dict[int, list[tuple[int, bool]]]:
    """For each step that was to be checked, who told fingerprints, and of which pass."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for event in cluster.checks:
        match event:
            case StepToCheck(n):
                found[n] = []
            case StepChecked(rank, message):
                found[message.n].append((rank, message.closing))
    return found


@pytest.mark.parametrize("strategy", [Strategy.PIPELINE, Strategy.TENSOR])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_tells_of_every_step(world: int, strategy: Strategy) -> None:
    if world == 1:
        strategy = Strategy.SINGLE
    cluster = Cluster(world, 1, strategy=strategy, splits=world)
    cluster.run_until(lambda: cluster.ready)
    cluster.check(True)
    cluster.run_until(lambda: cluster.head.node.standing().checked)
    uid = cluster.submit(Request(PROMPT, 6))
    cluster.run_until(lambda: cluster.all_done)
    cluster.run_for(0.5)
    assert cluster.tokens[uid] == reference(PROMPT, 6, 6)
    decodes = [event.n for event in cluster.checks if getattr(event, "is_decode", False)]
    assert len(decodes) >= 6
    for n, ranks in told(cluster).items():
        closing = [(0, True)] if strategy is Strategy.PIPELINE and n in decodes else []
        assert sorted(ranks) == sorted([(rank, False) for rank in range(world)] + closing)
    read = [
        (first, event.tokens)
        for event in cluster.checks
        if isinstance(event, StepToCheck)
        for _, first in event.rows
    ]
    assert {at for first, tokens in read for at in range(first, first + tokens)} >= {
        *range(len(PROMPT) + 5)
    }


@pytest.mark.parametrize("strategy", [Strategy.PIPELINE, Strategy.TENSOR])
@pytest.mark.parametrize("seed", range(3))
def test_requests_go_on_into_a_checked_epoch_and_out_of_it(seed: int, strategy: Strategy) -> None:
    cluster, asked = busy(3, seed)
    counter = cluster.head.node.standing().epoch.counter
    cluster.check(True)
    cluster.run_until(lambda: cluster.head.node.standing().checked)
    cluster.run_for(0.05)
    cluster.check(False)
    cluster.run_until(lambda: cluster.head.node.serving)
    assert not cluster.head.node.standing().checked
    assert cluster.head.node.standing().epoch.counter == counter + 2
    cluster.run_until(lambda: cluster.all_done)
    check_all(cluster, asked)
    check_clean(cluster)


def test_an_epoch_that_nobody_checks_tells_nothing() -> None:
    cluster, asked = busy(3, 0)
    cluster.run_until(lambda: cluster.all_done)
    check_all(cluster, asked)
    assert not cluster.checks
    cluster.check(False)
    assert cluster.head.node.serving, "nothing began anew"


def test_the_next_epoch_is_checked_too() -> None:
    cluster, asked = busy(2, 1)
    cluster.check(True)
    cluster.run_until(lambda: cluster.head.node.standing().checked)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(1.0)
    cluster.boot(1)
    cluster.run_until(lambda: cluster.all_done)
    assert cluster.head.node.standing().checked
    check_all(cluster, asked)


def test_it_may_begin_while_a_rank_is_absent() -> None:
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host1"])
    cluster.run_for(3.0)
    cluster.check(True)
    cluster.run_for(1.0)
    assert not cluster.head.node.standing().checked
    cluster.boot(1)
    cluster.run_until(lambda: cluster.head.node.standing().checked)


def test_only_the_head_begins_one() -> None:
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    with pytest.raises(LocalProtocolError, match="rank 1"):
        cluster.hosts["host1"].node.check(True, cluster.now)


def test_a_rank_that_tells_unasked_loses_its_link() -> None:
    cluster = Cluster(2, 1)
    cluster.run_until(lambda: cluster.ready)
    uid = cluster.submit(Request(PROMPT, 200))
    cluster.run_for(0.05)
    epoch = cluster.head.node.standing().epoch
    with pytest.raises(RemoteProtocolError, match="not checked"):
        cluster.head.node._brain.message(1, 1, claim(1, epoch=epoch), cluster.now)
    cluster.cancel(uid)


# ---------------------------------------------------------------------- what a rank may claim

EPOCH = Epoch(7, 1)


def claim(
    n: int, rows: int = 1, tokens: int = 1, *, closing: bool = False, epoch: Epoch = EPOCH
) -> Checked:
    """Fingerprints of step *n*."""
    received = Tensor(DType.F32, (0, rows, tokens, 3), b"")
    given = Tensor(DType.F32, (1, rows, tokens, 3), bytes(12 * rows * tokens))
    return Checked(epoch, n, closing, received, given)


def planned() -> CheckedSteps:
    """Two ranks; step 1 reads 5 tokens, step 2 does nothing, step 3 decodes two rows."""
    steps = CheckedSteps(2)
    assert steps.planned(1, Prefill(9, 2, 5), (9,), (7,)) == [StepToCheck(1, ((9, 2),), 5, False)]
    assert steps.planned(2, NoWork(), (), ()) == []
    found = steps.planned(3, Decode(0), (9, 8), (8, 4))
    assert found == [StepToCheck(3, ((9, 7), (8, 3)), 1, True)]
    return steps


def test_the_claims_of_a_rank_come_once_each_in_order() -> None:
    steps = planned()
    assert steps.came(1, claim(1, 1, 5)) == [StepChecked(1, claim(1, 1, 5))]
    assert steps.came(1, claim(3, 2, 1))
    assert steps.came(0, claim(1, 1, 5))
    assert steps.came(0, claim(3, 2, 1))
    assert steps.came(0, claim(3, 2, 1, closing=True))


@pytest.mark.parametrize(
    ("rank", "wrong", "why"),
    [
        (1, claim(1, 1, 5), "not due"),
        (1, claim(4, 1, 1), "not due"),
        (1, claim(2, 1, 1), "another shape"),
        (1, claim(3, 1, 1), "another shape"),
        (1, claim(3, 2, 2), "another shape"),
        (1, claim(3, 2, 1, closing=True), "second pass"),
    ],
)
def test_a_claim_that_is_not_due_is_refused(rank: int, wrong: Checked, why: str) -> None:
    steps = planned()
    steps.came(rank, claim(1, 1, 5))
    with pytest.raises(RemoteProtocolError, match=why):
        steps.came(rank, wrong)


def test_a_claim_before_the_first_step_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="not due"):
        CheckedSteps(2).came(1, claim(1))


def test_a_claim_of_a_step_long_gone_is_dropped() -> None:
    steps = planned()
    for n in range(4, 4 + 8 * MAX_STEPS_WAITING):
        steps.planned(n, Prefill(9, n, 1), (9,), (n + 1,))
    assert steps.came(1, claim(1, 1, 5)) == []
    assert steps.came(1, claim(4))
    with pytest.raises(RemoteProtocolError):
        steps.came(1, attrs.evolve(claim(4)))
