"""A machine that does anything to a cluster, at any time, and then looks whether all is well.

Hypothesis chooses what happens: requests, of which some begin as others do, cancellations, stop
strings, preemption, guesses, of which some are wrong, cuts, dead and hung engines, crashed and
frozen nodes, rosters with other rights, time. Afterwards everything comes back, and every request
must have ended once, with the tokens that it gets alone. The ring may go on with some members; in
the end it has all but the witnesses. The head stays what it is: heads that change are for
`test_succession`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from sealring_protocol.control.head.attendance import LONG_STAY
from sealring_protocol.control.requests import FinishReason, Request, SchedulerConfig
from sealring_protocol.security.roster import Rights

from tests.sim.brains import AlwaysPay
from tests.sim.cluster import Cluster
from tests.sim.fake_engine import reference
from tests.sim.rosters import WALL, make_roster

LAYERS = 6
STEM = tuple(range(20, 50))
RIGHTS = st.sampled_from([Rights.TEXT, Rights(0), Rights.WITNESS])


class RingMachine(RuleBasedStateMachine):
    @initialize(
        world=st.sampled_from([1, 2, 3, 5]),
        seed=st.integers(0, 2**32),
        least=st.sampled_from([0, 1, 2]),
        rights=st.dictionaries(st.integers(1, 4), RIGHTS),
    )
    def start(self, world, seed, least, rights):
        self.cluster = Cluster(
            world,
            seed,
            least=least,
            rosters=[make_roster(world, rights=rights, fixed_head=True)] * world,
            scheduler=SchedulerConfig(
                groups=2, rows=2, chunk=5, retries=10**6, prefixes=3, prefix_share=0.5
            ),
        )
        self.world = world
        self.rights = rights
        self.asked = {}
        self.ends = set()
        self.cancelled = set()
        self.finished = set()
        self.down = set()
        self.cluster.run_until(lambda: self.cluster.ready)

    @property
    def scheduler(self):
        return self.cluster.head.node._brain.scheduler

    @rule(
        stem=st.sampled_from([0, 0, 17, 30]),
        prompt=st.lists(st.integers(0, 900), min_size=1, max_size=20),
        count=st.integers(1, 30),
        wrong=st.none() | st.sets(st.integers(0, 29), max_size=12),
        end=st.none() | st.integers(0, 29),
    )
    def submit(self, stem, prompt, count, wrong, end):
        """All tokens are guessed, but for *wrong* ones, or some may be looked up. A row may have an
        *end*: what is guessed after that is of no use, right as it may be."""
        self.scheduler._guessing.costs = AlwaysPay()
        prompt = (*STEM[:stem], *prompt)
        text = reference(prompt, count, LAYERS)
        eos = frozenset(text[end : end + 1] if end is not None else ())
        guesses = None
        if wrong is not None:
            guesses = tuple(1 if n in wrong else token for n, token in enumerate(text))
        uid = self.cluster.submit(Request(prompt, count, eos, guesses=guesses))
        told = next((n for n, token in enumerate(text) if token in eos), count)
        self.asked[uid] = (prompt, told)
        self.ends |= {uid} if eos else set()

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), ids=st.lists(st.integers(0, 900), max_size=6))
    def guess(self, data, ids):
        """A draft model says anything of any place, or what is right."""
        uid = data.draw(st.sampled_from(sorted(self.asked)))
        prompt, count = self.asked[uid]
        right = data.draw(st.booleans())
        at = data.draw(st.integers(0, len(prompt) + count + 3))
        said = [*prompt, *reference(prompt, count, LAYERS)][at:] if right else ids
        self.cluster.head.node.guess(uid, at, said, self.cluster.now)
        self.cluster.settle(self.cluster.head)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def finish(self, data):
        uid = data.draw(st.sampled_from(sorted(self.asked)))
        if uid not in self.cluster.done:
            self.finished.add(uid)
        self.cluster.head.node.finish(uid, self.cluster.now)
        self.cluster.settle(self.cluster.head)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def preempt(self, data):
        uid = data.draw(st.sampled_from(sorted(self.asked)))
        if uid not in self.cluster.done:
            self.scheduler.preempt(uid)

    @precondition(lambda self: self.world > 1)
    @rule(on=st.booleans())
    def check(self, on):
        self.cluster.check(on)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data):
        uid = data.draw(st.sampled_from(sorted(self.asked)))
        if uid not in self.cluster.done:
            self.cancelled.add(uid)
        self.cluster.cancel(uid)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 1.0]))
    def wait(self, seconds):
        self.cluster.run_for(seconds)

    @rule(data=st.data())
    def cut(self, data):
        wires = [w for host in self.cluster.hosts.values() for w in host.wires.values()]
        if wires:
            self.cluster.network.cut(data.draw(st.sampled_from(wires)))

    @rule(data=st.data())
    def kill_engine(self, data):
        host = self.cluster.hosts[f"host{data.draw(st.integers(0, self.world - 1))}"]
        if host.alive:
            self.cluster.kill_engine(host)

    @rule(data=st.data())
    def freeze(self, data):
        host = self.cluster.hosts[f"host{data.draw(st.integers(0, self.world - 1))}"]
        host.frozen = True
        self.cluster.run_for(data.draw(st.sampled_from([0.2, 1.0, 4.0])))
        host.frozen = False

    @precondition(lambda self: self.world > 1)
    @rule(data=st.data())
    def crash(self, data):
        index = data.draw(st.integers(1, self.world - 1))
        if index not in self.down:
            self.down.add(index)
            self.cluster.crash(self.cluster.hosts[f"host{index}"])

    @precondition(lambda self: self.world > 1)
    @rule(data=st.data(), rights=RIGHTS)
    def change_rights(self, data, rights):
        """The coordinator signs other rights for a member, and the head's owner brings that."""
        index = data.draw(st.integers(1, self.world - 1))
        self.rights = self.rights | {index: rights}
        node = self.cluster.head.node
        serial = node.roster.roster.serial + 1
        signed = make_roster(self.world, serial, rights=self.rights, fixed_head=True)
        node.bring_roster(signed.encode(), self.cluster.now, WALL)
        self.cluster.settle(self.cluster.head)
        self.cluster.run_until(lambda: node.roster.roster.serial == serial, 5)

    @precondition(lambda self: self.down)
    @rule()
    def come_back(self):
        self.cluster.boot(self.down.pop())

    def teardown(self):
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        while self.down:
            cluster.boot(self.down.pop())
        cluster.run_until(lambda: cluster.all_done, 300)
        for uid, (prompt, count) in self.asked.items():
            expected = reference(prompt, count, LAYERS)
            if uid in self.cancelled | self.finished:
                assert cluster.done[uid].reason in (FinishReason.CANCELLED, FinishReason.STOP)
                assert cluster.tokens[uid] == expected[: len(cluster.tokens[uid])]
            else:
                reason = FinishReason.STOP if uid in self.ends else FinishReason.LENGTH
                assert cluster.done[uid].reason is reason, cluster.done[uid]
                assert cluster.tokens[uid] == expected
        cluster.check(False)
        cluster.run_for(10.0 + LONG_STAY)
        ring = cluster.head.node.roster.roster.workers
        assert cluster.head.node.standing().ring == ring
        uid = cluster.submit(Request((1, 2, 3), 3))
        cluster.run_until(lambda: cluster.all_done, 60)
        assert cluster.tokens[uid] == reference((1, 2, 3), 3, LAYERS)
        cluster.run_for(1.0)
        for host in (cluster.hosts[f"host{rank}"] for rank in ring):
            assert host.engine is not None
            assert not host.engine.private
            assert not host.engine.groups
            assert not host.engine.pending
            assert host.engine.snaps.keys() == self.scheduler.ledger.snaps.keys()
        assert self.scheduler.live == self.scheduler.in_flight == 0


RingMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestRing = RingMachine.TestCase
