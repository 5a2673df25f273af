"""The collectives of a simulated cluster: engines that join each other, and step together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealring_protocol.codec.local_messages import Group, Grouped, LocalMessage, Scores
from sealring_protocol.codec.messages import Checked, Epoch, Failure, FailureKind, StepDone

from tests.sim.fake_engine import FakeEngine
from tests.sim.hosts import Collective, Host

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster


class Collectives:
    """The collectives of *cluster*."""

    def __init__(self, cluster: Cluster, sums: tuple[int, int]) -> None:
        """*sums* are microseconds that a sum and a token take."""
        self.joins = True  # collectives come up
        self._cluster = cluster
        self._sums = sums
        self._made: dict[Any, Collective] = {}

    def prepared(self, host: Host, epoch: Epoch, relay: int) -> None:
        """*host* has a port for its engine, and a *relay* (0: none)."""
        if host.alive:
            host.node.collective_prepared(epoch, 7000, relay, host.clock(self._cluster.now))
            self._cluster.settle(host)

    def join(self, host: Host, engine: FakeEngine, group: Group) -> None:
        """*engine* calls init, which comes back when all have."""
        if not self.joins or engine.ready is None:
            return
        ring = (engine.ready.epoch, group.size)  # a new roster begins to count epochs anew
        collective = self._made.setdefault(ring, Collective(group.size))
        collective.members[group.rank] = (host, engine)
        collective.hosts = group.hosts
        host.collective = collective
        if len(collective.members) < group.size or collective.broken:
            return
        for other, joined in collective.members.values():
            self._cluster.after(
                0.001, lambda other=other, joined=joined: self._joined(other, joined)
            )

    def _joined(self, host: Host, engine: FakeEngine) -> None:
        if not host.alive or host.engine is not engine or engine.ready is None:
            return
        now = host.clock(self._cluster.now)
        host.node.engine_message(Grouped(len(self._cluster.hosts), *self._sums), now)
        host.node.engine_message(engine.ready, now)
        self._cluster.settle(host)

    def in_step(self, host: Host, collective: Collective, answers: list[LocalMessage]) -> None:
        """An engine has come to the end of a step: with the others, or with an error."""
        for answer in answers:
            if isinstance(answer, Checked | Scores):
                self.tell(host, answer)
                continue
            assert isinstance(answer, StepDone)
            rank = next(r for r, (h, _) in collective.members.items() if h is host)
            if answer.failed is not None:
                self.tell(host, answer)
                continue
            reached = collective.steps.setdefault(answer.n, {})
            reached[rank] = answer
            if collective.broken:
                self._fail(collective, answer.n)
            elif len(reached) == collective.size:
                for member, done in collective.steps.pop(answer.n).items():
                    self._answer_later(collective.members[member][0], done)

    def _answer_later(self, host: Host, answer: StepDone) -> None:
        cluster = self._cluster
        delay = cluster.random.random() * 0.003 if cluster.pace is None else 0.0
        host.answers_at = max(host.answers_at, cluster.now + delay)  # an engine answers in order
        cluster.at(host.answers_at, lambda: self.tell(host, answer))

    def tell(self, host: Host, answer: StepDone | Checked) -> None:
        """The engine of *host* gives *answer*."""
        if host.alive and not host.frozen and host.engine is not None:
            host.node.engine_message(answer, host.clock(self._cluster.now))
            self._cluster.settle(host)

    def leave(self, host: Host) -> None:
        """A member, or its way to the others, is gone: the others get errors, soon."""
        collective, host.collective = host.collective, None
        if collective is not None and not collective.broken:
            collective.broken = True
            for n in sorted(collective.steps):
                self._cluster.after(0.012, lambda n=n: self._fail(collective, n))

    def _fail(self, collective: Collective, n: int) -> None:
        for rank, done in collective.steps.pop(n, {}).items():
            failed = Failure(0, FailureKind.ENGINE_ERROR, "a peer of the group is gone")
            self.tell(collective.members[rank][0], StepDone(done.epoch, n, failed=failed))
