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
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
from sealring_protocol.codec.local_messages import Group, Grouped, LocalMessage
from sealring_protocol.codec.messages import Epoch, Failure, FailureKind, Step, StepDone
from sealring_protocol.control.effects import (
    EndCollective,
    Level,
    Note,
    PrepareCollective,
    RestartEngine,
    StepTiming,
    ToEngine,
)
from sealring_protocol.control.head.plan import Strategy
from sealring_protocol.control.scheduler.requests import (
    Request,
    RequestDone,
    SchedulerConfig,
    TokenOut,
)
from sealring_protocol.errors import SealringError
from sealring_protocol.events import (
    Dial,
    EncapsulationRequested,
    Hangup,
    LinkUp,
    RosterInForce,
    SignatureRequested,
    StoreRoster,
)
from sealring_protocol.link import Link, LinkClosed
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, Roster, SignedRoster, sign_roster

from tests.driver import encapsulate, events_of
from tests.sim.fake_engine import FakeEngine, info

WALL = 1_700_000_000_000
COORDINATOR = SoftwareSigner.from_scalar(99991)


def signer(index: int) -> SoftwareSigner:
    return SoftwareSigner.from_scalar(1000 + index)


def make_roster(
    world: int,
    serial: int = 1,
    inner_seal: bool = True,
    order: tuple[int, ...] = (),
    lifetime_ms: int = 10**9,
    *,
    tensor: bool = True,
) -> SignedRoster:
    members = tuple(
        Member(signer(index).public_key, f"node{index}", (f"host{index}:1",))
        for index in order or range(world)
    )
    until = WALL + lifetime_ms
    roster = Roster(b"c" * 32, "test", serial, WALL - 1000, until, inner_seal, members, tensor)
    return sign_roster(roster, COORDINATOR)


@attrs.define(eq=False)
class Wire:
    """One TCP connection: *ends* are (host, link number); number 0 until it is accepted."""

    ends: list[tuple[str, int]]
    alive: bool = True
    last: list[float] = attrs.field(factory=lambda: [0.0, 0.0])


@attrs.define(eq=False)
class Collective:
    """The engines of one group. A member's step is done when every member has come to it, unless
    one has gone: then each finds out when it next says something."""

    size: int
    members: dict[int, tuple[Host, FakeEngine]] = attrs.field(factory=dict)
    steps: dict[int, dict[int, Any]] = attrs.field(factory=dict)
    broken: bool = False


@attrs.define(eq=False)
class Host:
    """One process: a node and its engine."""

    name: str
    node: Node
    engine: FakeEngine | None
    wires: dict[int, Wire] = attrs.field(factory=dict)
    tunnels: dict[int, Link] = attrs.field(factory=dict)  # sessions that the node has lent
    inbox: deque[Any] = attrs.field(factory=deque)  # to the engine
    free: float = 0.0  # when the engine has done all it was given
    busy: list[tuple[float, float]] = attrs.field(factory=list)  # it worked on steps then
    frozen: bool = False
    waiting: deque[tuple[int, bytes]] = attrs.field(factory=deque)  # bytes for it while frozen
    alive: bool = True
    stored: list[bytes] = attrs.field(factory=list)
    full: bool = False  # the disk
    collective: Collective | None = None
    told: float = 0.0  # when the last answer of a collective's step is there
    planned: int = 0  # engines that were replaced though nothing was wrong with them

    def next_timeout(self) -> float | None:
        """Of its node and of the tunnels that it has been lent."""
        times = [self.node.next_timeout(), *(each.next_timeout() for each in self.tunnels.values())]
        return min((time for time in times if time is not None), default=None)


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
        strategy: Strategy = Strategy.AUTO,
        splits: int = 0,
        sums: tuple[int, int] = (10, 1000),
        unpinned: dict[int, bytes] | None = None,
    ) -> None:
        """*rooms* are the bytes for caches on each rank; *pace* the seconds that an engine works
        on a message, one after the other (left out: some, and nothing waits for another). The
        model's heads split over *splits* ranks; *sums* are microseconds that a sum and a token
        take in a collective; *unpinned* are the digests of models without their manifests."""
        self.random = Random(seed)
        self.now = 0.0
        self.delay = delay
        self.at_once = at_once
        self.rosters = rosters or [make_roster(world)] * world
        self.rooms = rooms or {}
        self.pace = pace
        self.strategy = strategy
        self.splits = splits
        self.sums = sums
        self.unpinned = unpinned or {}
        self.joins = True  # collectives come up
        self.closed: set[tuple[str, str]] = set()  # from, to: no connection can be opened so
        self._collectives: dict[Any, Collective] = {}
        self.models = models or [b"m" * 32] * world
        self.scheduler = scheduler or SchedulerConfig()
        self.hosts: dict[str, Host] = {}
        self.tokens: dict[int, list[int]] = {}
        self.done: dict[int, RequestDone] = {}
        self.notes: list[tuple[float, str, str]] = []
        self.warnings: list[tuple[str, str]] = []
        self.lines: Counter[str] = Counter()  # in the log of each host, as it usually is
        self.timings: list[StepTiming] = []
        self.tap: Callable[[str, str, bytes], None] | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for index in range(world):
            self.boot(index)

    # ------------------------------------------------------------------ hosts

    def boot(self, index: int) -> Host:
        """Start the process of node *index*; its engine comes up a little later."""
        roster = self.rosters[index]
        config = NodeConfig(
            signer(index).public_key,
            roster,
            COORDINATOR.public_key,
            self.random.getrandbits(64),
            unpinned=self.unpinned.get(index, b""),
            strategy=self.strategy,
            scheduler=self.scheduler,
        )
        host = Host(f"host{index}", Node(config, self.now), None)
        self.hosts[host.name] = host
        self.after(0 if self.at_once else self.random.random() * 0.05, lambda: self._start(host))
        self.after(self.random.random() * 0.2, lambda: self.start_engine(host))
        return host

    def _start(self, host: Host) -> None:
        if host.alive:
            host.node.start(self.now)
            self.settle(host)

    def start_engine(self, host: Host) -> None:
        if not host.alive or host.engine is not None:
            return
        index = int(host.name.removeprefix("host"))
        host.engine = FakeEngine(
            info(model=self.models[index], splits=self.splits), room=self.rooms.get(index, 1 << 30)
        )
        host.inbox.clear()
        for message in host.engine.start():
            host.node.engine_message(message, self.now)
        self.settle(host)

    def kill_engine(self, host: Host, back_after: float = 0.3) -> None:
        if host.engine is None:
            return
        host.engine = None
        self._leave(host)
        host.node.engine_lost("it was killed", self.now)
        self.settle(host)
        self.after(back_after, lambda: self.start_engine(host))

    def crash(self, host: Host) -> None:
        """The process dies; the kernel ends its connections."""
        host.alive = False
        for wire in list(host.wires.values()):
            self.cut(wire)

    def cut(self, wire: Wire) -> None:
        """Both ends see the stream end, after what was on its way."""
        if not wire.alive:
            return
        wire.alive = False
        for side, (name, number) in enumerate(wire.ends):
            host = self.hosts[name]
            host.wires.pop(number, None)
            at = max(self.now, wire.last[side]) + self.delay
            self.at(at, lambda host=host, number=number: self._eof(host, number))

    def _eof(self, host: Host, number: int) -> None:
        if host.alive and not host.frozen:
            if number in host.tunnels:
                self._drive(host, number, lambda session: session.receive_eof())
            else:
                host.node.receive_eof(number, self.now)
            self.settle(host)

    # ------------------------------------------------------------------- time

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

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
        timer[1].node.handle_timeout(self.now)
        for number in list(timer[1].tunnels):
            if number in timer[1].tunnels:
                self._drive(timer[1], number, lambda session: session.handle_timeout(self.now))
        self.settle(timer[1])
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
        return self.hosts["host0"]

    def submit(self, request: Request) -> int:
        uid = self.head.node.submit(request, self.now)
        self.tokens[uid] = []
        self.settle(self.head)
        return uid

    def cancel(self, uid: int) -> None:
        self.head.node.cancel(uid, self.now)
        self.settle(self.head)

    @property
    def ready(self) -> bool:
        return any("the ring is ready" in text for _, _, text in self.notes)

    @property
    def all_done(self) -> bool:
        return len(self.done) == len(self.tokens)

    # ----------------------------------------------------------------- wiring

    def settle(self, host: Host) -> None:
        """Carry out what *host*'s node asks for."""
        node = host.node
        self._carry_out(host)
        while node.plan_steps(self.now):
            self._carry_out(host)
        for number in node.links_to_flush():
            self._transmit(host, number, bytes(node.data_to_send(number)))

    def _carry_out(self, host: Host) -> None:
        for event in events_of(host.node):
            self._on(host, event)

    def _drive(self, host: Host, number: int, action: Callable[[Link], None]) -> None:
        """Have *action* happen to a tunnel's session, which *host*'s node has lent."""
        session = host.tunnels[number]
        try:
            action(session)
            while (event := session.next_event()) is not None:
                assert isinstance(event, LinkClosed), "nobody sends anything in these tunnels"
                host.node.link_over(number, event, self.now)
        except SealringError as error:
            host.node.link_over(number, error, self.now)
        self._transmit(host, number, bytes(session.data_to_send()))

    def _on(self, host: Host, event: Any) -> None:
        node = host.node
        match event:
            case Dial(link, address):
                self.after(self.delay, lambda: self._connect(host, link, address))
            case Hangup(link, last, code, reason):
                if (session := host.tunnels.pop(link, None)) is not None:
                    with contextlib.suppress(SealringError):
                        session.close(code, reason)
                    last = bytes(session.data_to_send())
                self._transmit(host, link, last)
                wire = host.wires.get(link)
                if wire is not None:
                    self.cut(wire)
            case SignatureRequested(link, payload):
                index = int(host.name.removeprefix("host"))
                signature = signer(index).sign(payload)
                self.after(0.0005, lambda: self._signed(host, link, signature))
            case EncapsulationRequested(link, key):
                self.after(0.0002, lambda: self._encapsulated(host, link, key))
            case StoreRoster(link, data):
                if not host.full:
                    host.stored.append(data)
                self.after(0.001, lambda: self._stored(host, link))
            case ToEngine(message):
                if host.engine is not None:
                    host.inbox.append(message)
                    engine = host.engine
                    self.after(self._work(host, message), lambda: self._compute(host, engine))
            case RestartEngine(_, planned):
                host.planned += planned
                # A process takes a moment to die, and its node goes on meanwhile.
                self.after(0.001, lambda: self.kill_engine(host))
            case PrepareCollective(epoch, sealed):
                relay = 7001 if sealed else 0
                self.after(0.0005, lambda: self._prepared(host, epoch, relay))
            case EndCollective():
                self._leave(host)
            case LinkUp(_, Purpose.TUNNEL, link, session):
                host.tunnels[link] = session
                self._drive(host, link, lambda _: None)
            case RosterInForce():
                for session in host.tunnels.values():
                    session.renew(node.roster)
            case LinkUp():
                pass
            case TokenOut(uid, token):
                self.tokens[uid].append(token)
            case RequestDone(uid):
                assert uid not in self.done, "answered twice"
                self.done[uid] = event
            case StepTiming():
                self.timings.append(event)
            case Note(level, text):
                self.notes.append((self.now, host.name, text))
                if level is Level.WARNING:
                    self.warnings.append((host.name, text))
                self.lines[host.name] += level is not Level.DEBUG

    def _work(self, host: Host, message: LocalMessage) -> float:
        """Seconds until the engine has done *message*."""
        if self.pace is None:
            return self.random.random() * 0.003
        start = max(self.now, host.free)
        host.free = start + self.pace(message)
        if isinstance(message, Step | StepDone):
            host.busy.append((start, host.free))
        return host.free - self.now

    def _signed(self, host: Host, link: int, signature: bytes) -> None:
        if host.alive:
            host.node.provide_signature(link, signature, self.now)
            self.settle(host)

    def _encapsulated(self, host: Host, link: int, key: bytes) -> None:
        if host.alive:
            host.node.provide_encapsulation(link, *encapsulate(key), self.now)
            self.settle(host)

    def _stored(self, host: Host, link: int) -> None:
        if host.alive:
            answer = host.node.roster_not_stored if host.full else host.node.roster_stored
            answer(link, self.now)
            self.settle(host)

    def _compute(self, host: Host, engine: FakeEngine) -> None:
        if not host.alive or host.engine is not engine or not host.inbox:
            return
        message = host.inbox.popleft()
        if isinstance(message, Group) and message.hosts:
            self._join(host, engine, message)
            return
        answers = engine.receive(message)
        if host.collective is not None and isinstance(message, Step):
            self._in_step(host, host.collective, answers)
            return
        for answer in answers:
            host.node.engine_message(answer, self.now)
        self.settle(host)

    # ------------------------------------------------------------ collectives

    def _prepared(self, host: Host, epoch: Epoch, relay: int) -> None:
        if host.alive:
            host.node.collective_prepared(epoch, 7000, relay, self.now)
            self.settle(host)

    def _join(self, host: Host, engine: FakeEngine, group: Group) -> None:
        """*engine* calls init, which comes back when all have."""
        if not self.joins or engine.ready is None:
            return
        ring = (engine.ready.epoch, group.size)  # a new roster begins to count epochs anew
        collective = self._collectives.setdefault(ring, Collective(group.size))
        collective.members[group.rank] = (host, engine)
        host.collective = collective
        if len(collective.members) < group.size or collective.broken:
            return
        for other, joined in collective.members.values():
            self.after(0.001, lambda other=other, joined=joined: self._joined(other, joined))

    def _joined(self, host: Host, engine: FakeEngine) -> None:
        if not host.alive or host.engine is not engine or engine.ready is None:
            return
        host.node.engine_message(Grouped(len(self.hosts), *self.sums), self.now)
        host.node.engine_message(engine.ready, self.now)
        self.settle(host)

    def _in_step(self, host: Host, collective: Collective, answers: list[LocalMessage]) -> None:
        """An engine has come to the end of a step: with the others, or with an error."""
        for answer in answers:
            assert isinstance(answer, StepDone)
            rank = next(r for r, (h, _) in collective.members.items() if h is host)
            if answer.failed is not None:
                self._tell(host, answer)
                continue
            reached = collective.steps.setdefault(answer.n, {})
            reached[rank] = answer
            if collective.broken:
                self._fail(collective, answer.n)
            elif len(reached) == collective.size:
                for member, done in collective.steps.pop(answer.n).items():
                    other = collective.members[member][0]
                    delay = self.random.random() * 0.003 if self.pace is None else 0.0
                    other.told = max(other.told, self.now + delay)  # an engine answers in order
                    self.at(other.told, lambda other=other, done=done: self._tell(other, done))

    def _tell(self, host: Host, answer: StepDone) -> None:
        if host.alive and not host.frozen and host.engine is not None:
            host.node.engine_message(answer, self.now)
            self.settle(host)

    def _leave(self, host: Host) -> None:
        """A member, or its way to the others, is gone: the others get errors, soon."""
        collective, host.collective = host.collective, None
        if collective is not None and not collective.broken:
            collective.broken = True
            for n in sorted(collective.steps):
                self.after(0.012, lambda n=n: self._fail(collective, n))

    def _fail(self, collective: Collective, n: int) -> None:
        for rank, done in collective.steps.pop(n, {}).items():
            failed = Failure(0, FailureKind.ENGINE_ERROR, "a peer of the group is gone")
            self._tell(collective.members[rank][0], StepDone(done.epoch, n, failed=failed))

    def _connect(self, host: Host, link: int, address: str) -> None:
        other = self.hosts.get(address.partition(":")[0])
        if not host.alive:
            return
        if other is not None and (host.name, other.name) in self.closed:
            self.after(5.0, lambda: self._unanswered(host, link))
            return
        if other is None or not other.alive:
            host.node.dial_failed(link, "connection refused", self.now)
            self.settle(host)
            return
        wall = WALL + int(self.now * 1000)
        number = other.node.accepted(host.name, self.random.randbytes(32), self.now, wall)
        wire = Wire([(host.name, link), (other.name, number)])
        host.wires[link] = wire
        other.wires[number] = wire
        host.node.connected(link, self.random.randbytes(96), self.now, wall)
        self.settle(other)
        self.settle(host)

    def _unanswered(self, host: Host, link: int) -> None:
        """A firewall dropped a connection that *host* would have opened."""
        if host.alive:
            host.node.dial_failed(link, "no answer within 5 s", self.now)
            self.settle(host)

    def _transmit(self, host: Host, number: int, data: bytes) -> None:
        wire = host.wires.get(number)
        if wire is None or not wire.alive or not data:
            return
        side = 1 if wire.ends[0] == (host.name, number) else 0
        other = wire.ends[side]
        if self.tap is not None:
            self.tap(host.name, other[0], data)
        at = 0
        while at < len(data):
            size = self.random.choice((1, 7, 100, 1000, 100_000))
            piece = data[at : at + size]
            at += size
            when = max(wire.last[side], self.now + self.random.random() * self.delay)
            wire.last[side] = when
            self.at(when, lambda piece=piece: self._deliver(wire, other, piece))

    def _deliver(self, wire: Wire, to: tuple[str, int], piece: bytes) -> None:
        host = self.hosts[to[0]]
        if not host.alive or host.wires.get(to[1]) not in (wire, None):
            return
        if host.frozen or host.waiting:
            host.waiting.append((to[1], piece))
            self.after(0.1, lambda: self._catch_up(host))
            return
        self._receive(host, to[1], piece)

    def _receive(self, host: Host, number: int, piece: bytes) -> None:
        if number in host.tunnels:
            self._drive(host, number, lambda session: session.receive_data(piece, self.now))
        else:
            host.node.receive_data(number, piece, self.now)
        self.settle(host)

    def _catch_up(self, host: Host) -> None:
        """A host that was frozen reads what its kernel has, in order."""
        while host.waiting and host.alive and not host.frozen:
            number, piece = host.waiting.popleft()
            self._receive(host, number, piece)
