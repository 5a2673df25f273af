"""What no waiting mends: it is tried once, told everywhere, and no request waits for it."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.local_messages import Group, LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Bootstrap,
    CannotServe,
    Failure,
    FailureKind,
    Step,
    StepDone,
)
from sealring_protocol.control.effects import Phase
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import FinishReason, NotServed, Request
from sealring_protocol.diagnosis import Cause, first_permanent
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_ENDS
from sealring_protocol.security.roster import Rights

from tests.sim.cluster import Cluster, Host
from tests.sim.fake_engine import VOCABULARY, FakeEngine, info
from tests.sim.rosters import make_roster

UNSERVABLE = FailureKind.UNSERVABLE
WHY = "the model cannot be cut before layer 3"
CANNOT_READ = CannotServe(NO_EPOCH, UNSERVABLE, "model-00002.safetensors is missing")


@attrs.define
class Refusing(FakeEngine):
    """An engine that can never load what it is ordered to. *orders* is how often it was."""

    orders: int = 0

    def receive(self, message: LocalMessage) -> list[LocalMessage]:
        if not isinstance(message, Bootstrap):
            return []
        self.orders += 1
        return [CannotServe(message.epoch, UNSERVABLE, WHY)]


@attrs.define
class Mute(FakeEngine):
    """An engine that takes long to load."""

    def receive(self, message: LocalMessage) -> list[LocalMessage]:
        return []


@attrs.define
class NoShard(FakeEngine):
    """An engine that has only whole layers."""

    shares: bool = False

    def receive(self, message: LocalMessage) -> list[LocalMessage]:
        if isinstance(message, Group):
            self.shares = True
            return []
        if self.shares and isinstance(message, Bootstrap):
            self.shares = False
            return [CannotServe(message.epoch, UNSERVABLE, "it has no shard()")]
        return super().receive(message)


class Ring(Cluster):
    """Two ranks. The engine of *rank* can never load its layers, or, if *unreadable*, cannot read
    its model, until it is `mended`."""

    def __init__(
        self, rank: int, *, unreadable: bool = False, splits: int = 0, least: int = 0
    ) -> None:
        self.broken = f"host{rank}"
        self.unreadable = unreadable
        super().__init__(2, 1, splits=splits, least=least)

    def start_engine(self, host: Host) -> None:
        if host.name != self.broken:
            super().start_engine(host)
        elif host.alive and host.engine is None:
            if self.unreadable:
                host.node.engine_message(CANNOT_READ, self.now)
            else:
                host.engine = Refusing(info(splits=self.splits))
                host.node.engine_message(host.engine.model, self.now)
            self.settle(host)

    def mend(self) -> None:
        """The model is put right, and the engine's process is another."""
        host = self.hosts[self.broken]
        self.broken = ""
        host.engine = None
        host.node.engine_lost("it has ended", self.now)
        self.settle(host)
        self.start_engine(host)

    @property
    def obstacle(self) -> str:
        """What the head says that no request should wait for."""
        found = first_permanent(self.head.node.obstacles(self.now))
        return "" if found is None else found.what


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_can_never_serve_is_asked_once(rank: int) -> None:
    ring = Ring(rank)
    ring.run_for(600.0)
    engine = ring.hosts[f"host{rank}"].engine
    assert isinstance(engine, Refusing)
    assert engine.orders == 1
    who = "rank 1 (node1)" if rank else "this node"
    assert ring.obstacle == f"{who} cannot serve this model: {WHY}"
    told = [each for each in ring.hosts["host1"].node.obstacles(ring.now) if each.permanent]
    assert WHY in told[0].what


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("unreadable", [False, True])
def test_it_is_tried_again_once_something_has_changed(rank: int, unreadable: bool) -> None:
    ring = Ring(rank, unreadable=unreadable)
    ring.run_for(60.0)
    assert not ring.ready
    ring.mend()
    ring.run_until(lambda: ring.ready, 10.0)
    assert ring.obstacle == ""
    uid = ring.submit(Request((4, 5, 6), 5))
    ring.run_until(lambda: ring.all_done)
    assert ring.done[uid].reason is FinishReason.LENGTH


def test_a_rank_that_comes_and_refuses_again_and_again_costs_a_try_every_few_seconds() -> None:
    ring = Ring(1)
    ring.run_for(60.0)
    host = ring.hosts["host1"]
    before = ring.head.node.standing().epoch.counter
    for _ in range(120):
        host.node.engine_lost("it has ended", ring.now)
        host.engine = Refusing(info())
        host.node.engine_message(host.engine.model, ring.now)
        ring.settle(host)
        ring.run_for(0.5)
    assert ring.head.node.standing().epoch.counter - before < 20


def test_while_it_is_tried_again_no_request_is_refused() -> None:
    ring = Ring(1)
    ring.run_for(60.0)
    ring.broken = ""
    host = ring.hosts["host1"]
    host.engine = Mute(info())
    host.node.engine_lost("it has ended", ring.now)
    host.node.engine_message(host.engine.model, ring.now)
    ring.settle(host)
    ring.run_for(5.0)
    assert ring.head.node.standing().phase is Phase.LOADING
    assert ring.obstacle == ""
    uid = ring.submit(Request((4, 5, 6), 5))
    ring.run_for(5.0)
    assert uid not in ring.done


def test_a_rank_that_cannot_read_its_model_says_so_to_the_head() -> None:
    ring = Ring(1, unreadable=True)
    ring.run_until(lambda: bool(ring.obstacle), 5.0)
    assert ring.obstacle == (
        "the engine of rank 1 (node1) cannot read its model: model-00002.safetensors is missing"
    )
    ring.network.cut(next(iter(ring.head.wires.values())))  # and says it again on a new link
    ring.run_until(lambda: not ring.obstacle, 5.0)
    ring.run_until(lambda: bool(ring.obstacle), 20.0)


def test_a_ring_that_goes_on_without_it_says_why() -> None:
    ring = Ring(1, unreadable=True, least=1)
    told = "its engine cannot read its model: model-00002.safetensors is missing"
    head = ring.head.node

    def outside() -> str:
        standing = head.standing()
        return standing.outside[1].why if 1 in standing.outside else ""

    ring.run_until(lambda: head.serving, 30.0)
    assert outside() == told
    ring.network.cut(next(iter(ring.head.wires.values())))
    ring.run_until(lambda: outside() != told, 5.0)
    ring.run_until(lambda: outside() == told, 20.0)
    ring.run_for(20.0)  # each of the two said it once, as a member and as one left out
    said = [text for _, host, text in ring.notes if host == "host0"]
    assert said.count(f"rank 1 (node1) cannot read its model: {CANNOT_READ.reason}") == 1
    assert said.count(f"node1 cannot read its model: {CANNOT_READ.reason}") == 1
    ring.mend()
    ring.run_until(lambda: head.serving and head.standing().ring == (0, 1), 20.0)
    assert outside() == ""


def test_what_a_witness_says_of_its_model_is_no_news() -> None:
    roster = make_roster(2, rights={1: Rights.WITNESS})
    ring = Cluster(2, 1, rosters=[roster] * 2, least=1)
    ring.run_until(lambda: ring.head.node.serving)
    witness = ring.hosts["host1"]
    before = len(ring.notes)
    ring.kill_engine(witness, back_after=1000)
    witness.node.engine_message(CANNOT_READ, ring.now)
    ring.settle(witness)
    ring.run_for(5.0)
    told = [text for _, host, text in ring.notes[before:] if host == "host0"]
    assert told == []


def test_a_head_that_cannot_read_its_model_says_so_to_every_rank() -> None:
    ring = Ring(0, unreadable=True)
    ring.run_until(lambda: bool(ring.obstacle), 5.0)
    ring.run_for(10.0)
    told = first_permanent(ring.hosts["host1"].node.obstacles(ring.now))
    assert told is not None
    assert "model-00002.safetensors is missing" in told.what


def test_a_prompt_beyond_the_vocabulary_ends_no_epoch() -> None:
    ring = Cluster(2, 1)
    ring.run_until(lambda: ring.ready)
    with pytest.raises(LocalProtocolError, match=f"token {VOCABULARY} is beyond the vocabulary"):
        ring.submit(Request((4, VOCABULARY, 6), 5))
    uid = ring.submit(Request((4, VOCABULARY - 1, 6), 5))
    ring.run_until(lambda: uid in ring.done)
    assert ring.done[uid].reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "asked",
    [
        Request((4, 5, -6), 5),
        Request((4, 5, 6), 5, prediction=(-1,)),
        Request((4, 5, 6), 5, frozenset((-5, 2)), min_tokens=1),
        Request((4, 5, 6), 5, frozenset(range(MAX_ENDS + 1)), min_tokens=1),
    ],
)
def test_a_request_that_no_message_can_hold_leaves_nothing_behind(asked: Request) -> None:
    ring = Cluster(2, 1)
    ring.run_until(lambda: ring.ready)
    with pytest.raises(LocalProtocolError):
        ring.submit(asked)
    assert ring.head.node.next_event() is None
    uid = ring.submit(Request((4, 5, 6), 5))
    ring.run_until(lambda: ring.all_done)
    assert ring.done[uid].reason is FinishReason.LENGTH


def test_an_engine_that_can_no_longer_read_its_model_ends_what_runs() -> None:
    """Its folder was damaged while it served, and then it died."""
    ring = Ring(9)
    ring.run_until(lambda: ring.ready)
    uid = ring.submit(Request((4, 5, 6), 900))
    ring.run_for(0.2)
    ring.broken, ring.unreadable = "host1", True
    ring.kill_engine(ring.hosts["host1"], back_after=0.5)
    ring.run_until(lambda: uid in ring.done, 10.0)
    assert ring.done[uid].reason is FinishReason.REFUSED
    assert "model-00002.safetensors is missing" in ring.done[uid].message
    ring.mend()
    ring.run_until(lambda: ring.head.node.serving, 20.0)
    uid = ring.submit(Request((4, 5, 6), 5))
    ring.run_until(lambda: uid in ring.done)
    assert ring.done[uid].reason is FinishReason.LENGTH


def test_no_request_waits_for_what_does_not_pass() -> None:
    ring = Ring(1)
    ring.run_until(lambda: ring.head.node.engine_info is not None)
    uid = ring.submit(Request((4, 5, 6), 5))  # nobody knows it yet
    ring.run_until(lambda: uid in ring.done, 5.0)
    assert ring.done[uid].reason is FinishReason.REFUSED
    assert ring.done[uid].message == ring.obstacle
    with pytest.raises(NotServed, match=WHY):
        ring.submit(Request((4, 5, 6), 5))


def test_a_plan_that_cannot_be_is_no_lack_of_room() -> None:
    ring = Cluster(2, 1, strategy=Strategy.TENSOR, splits=0)
    ring.run_for(5.0)
    found = first_permanent(ring.head.node.obstacles(ring.now))
    assert found is not None
    assert found.cause is Cause.NO_PLAN
    assert "no sharding for models of this class" in found.what
    assert "memory" not in found.advice


def slow(message: LocalMessage) -> float:
    """Ranks that compute for so long that tensor parallelism is tried."""
    return 0.05 if isinstance(message, Step) else 0.001


def test_a_way_that_cannot_be_is_followed_by_another() -> None:
    """`auto`: tensor parallelism can never be on that rank; a pipeline can."""

    class NoShards(Cluster):
        def start_engine(self, host: Host) -> None:
            if host.name == "host1" and host.alive and host.engine is None:
                host.engine = NoShard(info(splits=12))
                host.node.engine_message(host.engine.model, self.now)
                self.settle(host)
            else:
                super().start_engine(host)

    ring = NoShards(2, 1, strategy=Strategy.AUTO, splits=12, pace=slow)
    ring.run_until(lambda: ring.ready, 20.0)
    ring.submit(Request((1, 2, 3), 40))
    ring.run_until(lambda: bool(ring.done))
    ring.run_for(20.0)
    plan = ring.head.node.standing().plan
    assert plan is not None
    assert plan.strategy is Strategy.PIPELINE
    assert "it has no shard()" in plan.reason


@attrs.define
class Raising(FakeEngine):
    """An engine whose kernels do not know the shape."""

    def receive(self, message: LocalMessage) -> list[LocalMessage]:
        if not isinstance(message, Step):
            return super().receive(message)
        failed = Failure(1, FailureKind.ENGINE_ERROR, "no implementation for problem shape")
        return [StepDone(message.epoch, message.n, failed=failed)]


def test_eight_requests_that_no_forward_can_do_are_given_up_soon() -> None:
    class Unable(Cluster):
        def start_engine(self, host: Host) -> None:
            super().start_engine(host)
            if host.name == "host1" and host.engine is not None:
                host.engine = Raising(host.engine.model)

    ring = Unable(2, 1)
    ring.run_until(lambda: ring.ready)
    for _ in range(8):
        ring.submit(Request((4, 5, 6), 5))
    ring.run_until(lambda: ring.all_done, 15.0)
    for done in ring.done.values():
        assert "no implementation for problem shape" in done.message


def test_a_rank_that_can_no_longer_serve_while_steps_run_is_not_ordered_again() -> None:
    ring = Cluster(2, 1)
    ring.run_until(lambda: ring.ready)
    uid = ring.submit(Request((4, 5, 6), 900))
    ring.run_for(0.1)
    standing = ring.head.node.standing()
    host = ring.hosts["host1"]
    host.node.engine_message(CannotServe(standing.epoch, UNSERVABLE, WHY), ring.now)
    ring.settle(host)
    ring.run_until(lambda: uid in ring.done, 5.0)
    assert ring.done[uid].reason is FinishReason.REFUSED
    ring.run_for(60.0)
    assert ring.head.node.standing().epoch == standing.epoch
