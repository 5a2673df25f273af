"""Nodes with real cryptography on simulated wires, in virtual time.

Every node runs whole: links, handshakes, seals, brain. Its engine is the fake one. The wires
deliver bytes in pieces of random size after random delays; engines answer after a while. A wire
can be cut, a node can crash or freeze and come back as a new process. Everything random comes
from one seed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from sealring_protocol.codec.local_messages import Group, LocalMessage, Scores
from sealring_protocol.codec.messages import Build, Piece, Spent, Step, StepDone
from sealring_protocol.control import plan
from sealring_protocol.control.effects import (
    EndCollective,
    Level,
    Note,
    PrepareCollective,
    RestartEngine,
    StepChecked,
    StepTiming,
    StepToCheck,
    ToEngine,
)
from sealring_protocol.control.election import Ballot
from sealring_protocol.control.plan import Strategy
from sealring_protocol.control.requests import (
    Request,
    RequestDone,
    SchedulerConfig,
    ScoresOut,
    TokenOut,
)
from sealring_protocol.errors import SealringError
from sealring_protocol.events import (
    CastVote,
    Dial,
    Hangup,
    LinkUp,
    RelayDown,
    RelayEventCame,
    RelayUp,
    Requested,
    RosterInForce,
    StoreRoster,
    WeightsAsked,
)
from sealring_protocol.link import EncapsulationRequested, Link, LinkClosed, SignatureRequested
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import SignedRoster

from tests.driver import encapsulate, events_of
from tests.sim.collectives import Collectives
from tests.sim.fake_engine import FakeEngine, info
from tests.sim.hosts import Host
from tests.sim.network import Network
from tests.sim.rosters import COORDINATOR, make_roster, signer


class Cluster:
    def __init__(
        self,
        world: int,
        seed: int,
        *,
        scheduler: SchedulerConfig | None = None,
        rosters: list[SignedRoster] | None = None,
        models: list[bytes] | None = None,
        delay: float = 0.002,
        at_once: bool = False,
        rooms: dict[int, int] | None = None,
        pace: Callable[[LocalMessage], float] | None = None,
        slower: dict[int, float] | None = None,
        strategy: Strategy | None = None,
        splits: int = 0,
        sums: tuple[int, int] = (10, 1000),
        unpinned: dict[int, bytes] | None = None,
        pins: dict[int, tuple[int, ...]] | None = None,
        trust_weights: bool = False,
        builds: dict[int, Build] | None = None,
        trimmable: bool = True,
        least: int = 0,
        cannot_load: dict[int, str] | None = None,
        memory: int = 1 << 30,
        at: dict[int, tuple[str, ...]] | None = None,
        trusted: bool = False,
        clocks: dict[str, float] | None = None,
        relays: Collection[int] = (),
        rates: dict[int, float] | None = None,
    ) -> None:
        """*rooms* are the bytes for caches on each rank; *pace* the seconds that an engine works
        on a message, one after the other (left out: some, and nothing waits for another); some
        ranks are so many times *slower*. The model's heads split over *splits* ranks; *sums* are
        microseconds that a sum and a token take in a collective; *unpinned* are the digests of
        models without their manifests, *pins* those of their weights, for a head that does not
        *trust_weights*. Unless *trimmable*, no cache can be cut. *least* is `NodeConfig.least`.
        The engines of *cannot_load* can load no layers, and say why, by rank; each rank has
        *memory* bytes for weights and caches. Hosts are *at* these addresses, and say so; or
        else at their names, and say nothing. *trusted* is `plan.Collectives.trusted`. The clocks
        of the hosts in *clocks* are so many seconds ahead. The nodes *relays*
        have clients. The monotonic clocks of the nodes *rates* run so many times as fast."""
        self.random = Random(seed)
        self.now = 0.0
        self.at_once = at_once
        self.rosters = rosters or [make_roster(world)] * world
        self.rooms = rooms or {}
        self.pace = pace
        self.slower = slower or {}
        self.strategy = strategy or (Strategy.TENSOR if splits else Strategy.AUTO)
        self.splits = splits
        self.unpinned = unpinned or {}
        self.pins = pins or {}
        self.trust_weights = trust_weights
        self.builds = builds or {}  # what the programs can do, where not the usual
        self.trimmable = trimmable
        self.least = least
        self.allowed = plan.Collectives(trusted)
        self.cannot_load = cannot_load or {}
        self.memory = memory
        self.at_addresses = at or {}
        self.clocks = clocks or {}
        self.relays = relays
        self.rates = rates or {}
        self.network = Network(self, delay)
        self.collectives = Collectives(self, sums)
        self.models = models or [b"m" * 32] * world
        self.scheduler = scheduler or SchedulerConfig()
        self.hosts: dict[str, Host] = {}
        self.answering = "host0"  # whose tokens are kept
        self.tokens: dict[int, list[int]] = {}
        self.scores: dict[int, list[Scores]] = {}
        self.done: dict[int, RequestDone] = {}
        self.notes: list[tuple[float, str, str]] = []
        self.warnings: list[tuple[str, str]] = []
        self.lines: Counter[str] = Counter()  # in the log of each host, as it usually is
        self.timings: list[StepTiming] = []
        self.checks: list[StepToCheck | StepChecked] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for index in range(world):
            self.boot(index)

    # ------------------------------------------------------------------ hosts

    def restart(self, index: int, ballot: Ballot | None = None) -> Host:
        """Start the process of node *index* again, with what its disk has. Of votes that is
        *ballot*, if given."""
        old = self.hosts[f"host{index}"]
        stored = SignedRoster.decode(old.stored[-1]) if old.stored else self.rosters[index]
        if ballot is None:
            digest, ballot = old.votes[-1]
            ballot = ballot if digest == stored.roster.digest else Ballot()
        host = self.boot(index, stored, ballot)
        host.stored = old.stored
        return host

    def boot(
        self, index: int, roster: SignedRoster | None = None, ballot: Ballot | None = None
    ) -> Host:
        """Start the process of node *index*; its engine comes up a little later. It has *roster*,
        or else the one it is given for a start, and has cast *ballot* last."""
        roster = roster or self.rosters[index]
        ballot = ballot or Ballot()
        votes = [(roster.roster.digest, ballot)]
        config = NodeConfig(
            signer(index).public_key,
            roster,
            COORDINATOR.public_key,
            self.random.getrandbits(64),
            build=self.builds.get(index, Build()),
            unpinned=self.unpinned.get(index, b""),
            trust_weights=self.trust_weights,
            strategy=self.strategy,
            scheduler=self.scheduler,
            least=self.least,
            collectives=self.allowed,
            relays=index in self.relays,
            listens=("0.0.0.0", 1) if index in self.at_addresses else None,
            ballot=ballot,
        )
        rate = self.rates.get(index, 1.0)
        node = Node(config, rate * self.now)
        host = Host(f"host{index}", node, None, votes=votes, rate=rate)
        host.at = dict.fromkeys(self.at_addresses.get(index, (host.name,)), 0.0)
        self.hosts[host.name] = host
        self.after(0 if self.at_once else self.random.random() * 0.05, lambda: self._start(host))
        self.after(self.random.random() * 0.2, lambda: self.start_engine(host))
        return host

    def _start(self, host: Host) -> None:
        if host.alive:
            host.node.start(host.clock(self.now))
            self.settle(host)

    def start_engine(self, host: Host) -> None:
        if not host.alive or host.engine is not None:
            return
        index = int(host.name.removeprefix("host"))
        host.engine = FakeEngine(
            info(
                model=self.models[index],
                trimmable=self.trimmable,
                splits=self.splits,
                pins=self.pins.get(index, ()),
                memory=self.memory,
            ),
            room=self.rooms.get(index, 1 << 30),
            unloadable=self.cannot_load.get(index, ""),
        )
        host.inbox.clear()
        for message in host.engine.start():
            host.node.engine_message(message, host.clock(self.now))
        self.settle(host)

    def kill_engine(self, host: Host, back_after: float = 0.3) -> None:
        if host.engine is None:
            return
        host.engine = None
        self.collectives.leave(host)
        host.node.engine_lost("it was killed", host.clock(self.now))
        self.settle(host)
        self.after(back_after, lambda: self.start_engine(host))

    def crash(self, host: Host) -> None:
        """The process dies; the kernel ends its connections."""
        host.alive = False
        for wire in list(host.wires.values()):
            self.network.cut(wire)

    # ------------------------------------------------------------------- time

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def soon(self, host: Host, seconds: float, action: Callable[[float], None]) -> None:
        """Have *action* happen in the process of *host*, by its clock, once it is not frozen."""

        def act() -> None:
            if host.frozen and host.alive:
                self.after(0.1, act)
            elif host.alive:
                action(host.clock(self.now))
                self.settle(host)

        self.after(seconds, act)

    def step(self, until: float = float("inf")) -> bool:
        """Let the next thing happen, if it happens before *until*."""
        timers = [
            (deadline, host)
            for host in self.hosts.values()
            if host.alive and not host.frozen and (deadline := host.next_timeout()) is not None
        ]
        timer = min(timers, key=lambda item: item[0], default=None)
        if self._queue and (timer is None or self._queue[0][0] <= timer[0]):
            if self._queue[0][0] > until:
                return False
            when, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            action()
            return True
        if timer is None or timer[0] > until:
            return False
        self.now = max(self.now, timer[0])
        host = timer[1]
        now = host.clock(self.now)
        host.node.handle_timeout(now)
        for number in list(host.tunnels):
            if number in host.tunnels:
                self.drive(host, number, lambda session: session.handle_timeout(now))
        self.settle(host)
        return True

    def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        while self.step(until):
            pass
        self.now = until

    def run_until(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        until = self.now + seconds
        while not condition():
            if not self.step(until):
                story = "\n".join(f"{at:8.3f} {who}: {text}" for at, who, text in self.notes[-60:])
                raise AssertionError(f"not within {seconds} s of virtual time:\n{story}")

    # --------------------------------------------------------------- requests

    @property
    def head(self) -> Host:
        return self.hosts[self.answering]

    def ask_at(self, host: Host) -> None:
        """Requests go to *host* from now on, and what others say of theirs is forgotten."""
        self.answering = host.name
        self.tokens, self.scores, self.done = {}, {}, {}

    def submit(self, request: Request) -> int:
        uid = self.head.node.submit(request, self.head.clock(self.now))
        self.tokens[uid] = []
        self.scores[uid] = []
        self.settle(self.head)
        return uid

    def cancel(self, uid: int) -> None:
        self.head.node.cancel(uid, self.head.clock(self.now))
        self.settle(self.head)

    def check(self, on: bool) -> None:
        """Have the head begin a checked epoch, or end it."""
        self.head.node.check(on, self.head.clock(self.now))
        self.settle(self.head)

    @property
    def ready(self) -> bool:
        return any("the ring is ready" in text for _, _, text in self.notes)

    @property
    def all_done(self) -> bool:
        return len(self.done) == len(self.tokens)

    # ----------------------------------------------------------------- wiring

    def settle(self, host: Host) -> None:
        """Carry out what *host*'s node asks for, unless it is frozen or dead."""
        if host.frozen or not host.alive:
            return
        node = host.node
        self._carry_out(host)
        while node.plan_steps(host.clock(self.now)):
            self._carry_out(host)
        for number in node.links_to_flush():
            self.network.transmit(host, number, bytes(node.data_to_send(number)))
        host.settled = True

    def _carry_out(self, host: Host) -> None:
        for event in events_of(host.node):
            self._on(host, event)

    def drive(self, host: Host, number: int, action: Callable[[Link], None]) -> None:
        """Have *action* happen to a tunnel's session, which *host*'s node has lent."""
        session = host.tunnels[number]
        try:
            action(session)
            while (event := session.next_event()) is not None:
                assert isinstance(event, LinkClosed), "nobody sends anything in these tunnels"
                host.node.link_over(number, event, host.clock(self.now))
        except SealringError as error:
            host.node.link_over(number, error, host.clock(self.now))
        self.network.transmit(host, number, bytes(session.data_to_send()))
        host.settled = True

    def _on(self, host: Host, event: Any) -> None:
        node = host.node
        match event:
            case Dial(link, address):
                delay = self.network.seconds_to(address)
                self.after(delay, lambda: self.network.connect(host, link, address))
            case Hangup(link, last, code, reason):
                if (session := host.tunnels.pop(link, None)) is not None:
                    with contextlib.suppress(SealringError):
                        session.close(code, reason)
                    last = bytes(session.data_to_send())
                self.network.transmit(host, link, last)
                wire = host.wires.get(link)
                if wire is not None:
                    self.network.cut(wire)
            case Requested(link, SignatureRequested(payload)):
                index = int(host.name.removeprefix("host"))
                signature = signer(index).sign(payload)
                self.soon(host, 0.0005, lambda now: node.provide_signature(link, signature, now))
            case Requested(link, EncapsulationRequested(key)):
                given = encapsulate(key)
                self.soon(host, 0.0002, lambda now: node.provide_encapsulation(link, *given, now))
            case StoreRoster(link, data):
                if not host.full:
                    host.stored.append(data)
                self.soon(host, host.storing, lambda _: self._stored(host, link))
            case CastVote(digest, ballot, payload):
                if host.full:
                    self.soon(host, host.storing, node.vote_not_cast)
                    return
                host.votes.append((digest, ballot))
                signed = signer(int(host.name.removeprefix("host"))).sign(payload)
                self.soon(host, host.storing, lambda now: node.vote_cast(signed, now))
            case ToEngine(message):
                if host.engine is not None:
                    host.inbox.append(message)
                    engine = host.engine
                    took, spent = self._work(host, message)
                    self.after(took, lambda: self._compute(host, engine, spent))
            case RestartEngine(_, planned):
                host.planned += planned
                # A process takes a moment to die, and its node goes on meanwhile.
                self.after(0.001, lambda: self.kill_engine(host))
            case PrepareCollective(epoch, sealed):
                relay = 7001 if sealed else 0
                self.after(0.0005, lambda: self.collectives.prepared(host, epoch, relay))
            case EndCollective():
                self.collectives.leave(host)
            case LinkUp(_, Purpose.TUNNEL, link, session):
                host.tunnels[link] = session
                self.drive(host, link, lambda _: None)
            case WeightsAsked(_, link, get):
                piece = Piece(100, bytes(min(get.length, max(0, 100 - get.offset))))
                late = self.random.random() * 0.01
                self.soon(host, late, lambda now: node.give_piece(link, piece, now))
            case RosterInForce():
                for session in host.tunnels.values():
                    session.renew(node.roster)
            case RelayUp() | RelayEventCame() | RelayDown():
                host.relayed.append(event)
            case LinkUp():
                pass
            case TokenOut() | ScoresOut() | RequestDone() if host.name != self.answering:
                pass  # of a head that is head no more
            case TokenOut(uid, token):
                self.tokens[uid].append(token)
            case ScoresOut(uid, scores):
                self.scores[uid].append(scores)
            case RequestDone(uid):
                assert uid not in self.done, "answered twice"
                self.done[uid] = event
            case StepToCheck() | StepChecked():
                self.checks.append(event)
            case StepTiming():
                self.timings.append(event)
            case Note(level, text):
                self.notes.append((self.now, host.name, text))
                if level is Level.WARNING:
                    self.warnings.append((host.name, text))
                self.lines[host.name] += level is not Level.DEBUG

    def _work(self, host: Host, message: LocalMessage) -> tuple[float, Spent | None]:
        """Seconds until the engine has done *message*, and what it says of it."""
        if self.pace is None:
            return self.random.random() * 0.003, None
        start = max(self.now, host.free)
        index = int(host.name.removeprefix("host"))
        host.free = start + self.pace(message) * self.slower.get(index, 1.0)
        if isinstance(message, Step | StepDone):
            host.busy.append((start, host.free))
        compute, wait = host.free - start, start - self.now
        return host.free - self.now, Spent(round(compute * 1e6), round(wait * 1e6))

    def _stored(self, host: Host, link: int) -> None:
        answer = host.node.roster_not_stored if host.full else host.node.roster_stored
        answer(link, host.clock(self.now))
        self.settle(host)

    def _compute(self, host: Host, engine: FakeEngine, spent: Spent | None) -> None:
        if not host.alive or host.engine is not engine or not host.inbox:
            return
        message = host.inbox.popleft()
        if isinstance(message, Group) and message.hosts:
            self.collectives.join(host, engine, message)
            return
        engine.spent = spent
        answers = engine.receive(message)
        if host.collective is not None and isinstance(message, Step):
            self.collectives.in_step(host, host.collective, answers)
            return
        for answer in answers:
            host.node.engine_message(answer, host.clock(self.now))
        self.settle(host)
