"""The head of a ring in tensor parallelism, among ranks that lie and an engine that fails.

Input: how many ranks, whether the head starts from the first READY or from where its ring is up,
then one byte for each command and its choices. Time passes too. A rank that is refused loses its
link and comes back. At the end everybody is honest, and then nothing may be left: each request has
ended once. The leader of one epoch alone is `lockstep`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.local_messages import EngineInfo, Group, Grouped, Loaded
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Message,
    Prepared,
    Ready,
    Row,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.control.effects import (
    Effect,
    PrepareCollective,
    RestartEngine,
    Send,
    Shut,
    ToEngine,
)
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.head.head import Head, HeadConfig
from sealring_protocol.control.plan import PlanRequest, Strategy
from sealring_protocol.control.requests import (
    Request,
    RequestDone,
    SchedulerConfig,
    TokenOut,
)
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.security.roles import Purpose

from fuzz.expect import raised
from fuzz.source import Source

LAYERS: Final = 3
EOS: Final = 1
MOST: Final = 8
INFO: Final = EngineInfo(
    bytes(32), DType.F32, 1, 16, 64, True, 1 << 30, 1, (1,) * LAYERS, 12, 1 << Backend.RING
)
HELLO: Final = Hello(bytes(32), LAYERS, DType.F32, 1, 1 << 30)
DRAWN: Final = ((3,), (3,), (3,), (4,), (), (3, 3))
"""Answers to a step of the leader's; most ranks draw the same."""
FOUND: Final = (
    "3f5b7306eac46bf3c8598bbb",  # an engine that speaks unasked
    "3f5b732eeac40c006b598bbb",  # the same, of a model that it can never serve
)
"""Inputs that once failed."""

_REST: Final = 4000


def seeds() -> Iterator[bytes]:
    """Honest rings of two to four, each command in them, and a mixture."""
    yield from map(bytes.fromhex, FOUND)
    for world in range(3):
        up = bytes([3, 0, 0, 3, 1, 3, 2, 3, 3, 0, 3, 1, 3, 2, 3])
        yield bytes([world, 0]) + up * 3
        for command in range(11):
            yield bytes([world, 1, 0, 5, 4, *(3, 0, 3, 1) * 3, command, 1, 2, 3, 4]) + up
            yield bytes([world, 1, command, 0, 1, 0, 0, 1, 0, 5, 4]) + up
    yield bytes(range(256))


def check(data: bytes) -> None:
    """Commands, then the rest."""
    source = Source(data)
    ring = Ring(2 + source.below(3))
    ring.start_engine()
    ring.set_tunnel(up=True)
    if source.flag():
        ring.drain()
    while not source.empty:
        ring.now += 0.001
        _command(source, ring)
    ring.drain()


class Ring:
    """A head, what its engine and its ranks have not done yet, and what came of its requests."""

    def __init__(self, world: int) -> None:
        self.world = world
        names = tuple(f"n{rank}" for rank in range(world))
        config = SchedulerConfig(rows=3, chunk=5, prefixes=2, retries=2)
        self.head = Head(
            HeadConfig(7, names, names, PlanRequest(Strategy.TENSOR), scheduler=config)
        )
        self.now = 0.0
        self.inbox: dict[int, deque[Any]] = {rank: deque() for rank in range(world)}
        self.here: set[int] = set()
        self.engine = False
        self.tunnel = False
        self.joined: set[tuple[Epoch, int]] = set()
        self.drawn: dict[tuple[Epoch, int], tuple[int, ...]] = {}
        self.ledger = Ledger()
        self.epoch = self.epoch_of_engine = NO_EPOCH
        self.expected: dict[int, int] = {}
        self.ended: set[int] = set()
        self.prepared = NO_EPOCH
        self.opening = False

    # ------------------------------------------------------------- what comes out

    def take(self, effects: list[Effect]) -> None:
        """Carry out what the head wants."""
        for effect in effects:
            match effect:
                case ToEngine(message):
                    if isinstance(message, Step):
                        self._draw(message)
                    self.inbox[0].append(message)
                case Send(rank, Purpose.CONTROL, message):
                    assert decode(b"".join(encode(message))) == message
                    if isinstance(message, Step):
                        assert (message.epoch, rank) in self.joined, "a step before READY"
                    if rank in self.here:
                        self.inbox[rank].append(message)
                case Shut(rank):
                    self.gone(rank)
                case PrepareCollective(epoch):
                    self.prepared, self.opening = epoch, True
                case RestartEngine():
                    self.lose_engine()
                case TokenOut(uid, token, position):
                    assert uid not in self.ended
                    assert token != EOS
                    assert position == self.expected[uid]
                    self.expected[uid] += 1
                case RequestDone(uid):
                    assert uid in self.expected
                    assert uid not in self.ended
                    self.ended.add(uid)
                case _:
                    pass

    def _draw(self, step: Step) -> None:
        """What every honest rank draws in *step*: its ledger says for how many rows."""
        if step.epoch != self.epoch:
            self.epoch, self.ledger = step.epoch, Ledger()
        self.ledger.apply(step)
        assert self.ledger.digest(step.n) == step.digest
        work = step.work
        rows = self.ledger.groups.get(work.group, ()) if isinstance(work, Decode) else ()
        ids = tuple(2 + (step.n + at) % 9 for at in range(len(rows)))
        self.drawn[step.epoch, step.n] = ids

    # ------------------------------------------------------------- who does what

    def submit(self, length: int, tokens: int) -> None:
        """A request, if any more are taken."""
        if len(self.expected) < MOST and self.head.scheduler is not None:
            request = Request(tuple(range(2, 3 + length)), tokens, frozenset({EOS}), Row(0))
            try:
                uid, effects = self.head.submit(request, self.now)
            except LocalProtocolError:
                return
            self.expected[uid] = 1 + length
            self.take(effects)

    def say(self, rank: int, message: Message, purpose: Purpose = Purpose.CONTROL) -> None:
        """*rank* says *message*; if that is refused it loses its link."""
        if rank not in self.here:
            return
        effects: list[Effect] = []
        call = self.head.message
        error = raised(lambda: effects.extend(call(rank, purpose, message, self.now)))
        if error is None:
            if isinstance(message, Ready) and message.last:
                self.joined.add((message.epoch, rank))
            self.take(effects)
        else:
            assert isinstance(error, RemoteProtocolError), error
            self.gone(rank)

    def gone(self, rank: int) -> None:
        """The control link with *rank* is lost."""
        if rank in self.here:
            self.here.discard(rank)
            self.inbox[rank].clear()
            self.take(self.head.link_down(rank, Purpose.CONTROL, "gone", self.now))

    def come(self, rank: int) -> None:
        """*rank* is there, or there again."""
        if rank not in self.here:
            self.here.add(rank)
            self.say(rank, HELLO)

    def lose_engine(self) -> None:
        """The own engine is gone."""
        if self.engine:
            self.engine = False
            self.inbox[0].clear()
            self.take(self.head.engine_lost("it died", self.now))

    def start_engine(self) -> None:
        """It is back."""
        if not self.engine:
            self.engine = True
            self.take(self.head.engine_message(INFO, self.now))

    def set_tunnel(self, *, up: bool) -> None:
        """The tunnel link with rank 1 came up, or went down."""
        if up != self.tunnel:
            self.tunnel = up
            if up:
                self.take(self.head.link_up(1, Purpose.TUNNEL, self.now))
            else:
                self.take(self.head.link_down(1, Purpose.TUNNEL, "cut", self.now))

    def open_way(self, *, fails: bool = False) -> None:
        """The node has a port and a relay for the engine, or cannot have any."""
        if self.opening:
            self.opening = False
            if fails:
                self.take(self.head.collective_failed(self.prepared, "no port", self.now))
            else:
                self.take(self.head.collective_prepared(self.prepared, 1, 2, self.now))

    def work(self, rank: int) -> bool:
        """*rank*, or the own engine, does honestly what it was first told to do."""
        if not self.inbox[rank]:
            return False
        message = self.inbox[rank].popleft()
        if rank:
            self._obey(rank, message)
        else:
            self._compute(message)
        return True

    def _obey(self, rank: int, order: Message) -> None:
        match order:
            case Bootstrap(epoch) if order.joins:
                self.say(rank, self.ready(epoch))
            case Bootstrap(epoch):
                self.say(rank, Prepared(epoch, 9))
            case Step(epoch, n):
                self.say(rank, StepDone(epoch, n, self.drawn[epoch, n]))
            case _:
                pass

    def ready(self, epoch: Epoch) -> Ready:
        """That a rank has joined."""
        return Ready(epoch, 0, LAYERS, True, 1 << 30, CacheCost(0, 0), 10, 100)

    def _compute(self, message: Any) -> None:
        match message:
            case Bootstrap(epoch):
                self.epoch_of_engine = epoch
                self.engine_says(Loaded(1, 1, 1))
            case Group(hosts=hosts) if hosts:
                self.engine_says(Grouped(self.world, 10, 100))
                self.engine_says(self.ready(self.epoch_of_engine))
            case Step(epoch, n):
                self.engine_says(StepDone(epoch, n, self.drawn[epoch, n]))
            case _:
                pass

    def engine_says(self, message: Any) -> None:
        """The own engine says *message*."""
        if self.engine:
            self.take(self.head.engine_message(message, self.now))

    def pass_time(self) -> bool:
        """Until the next thing is due; whether there is one."""
        due = self.head.next_timeout()
        if due is None:
            return False
        self.now = max(self.now, due)
        self.take(self.head.handle_timeout(self.now))
        return True

    def give_up(self) -> None:
        """Nothing is due. That may be where the ring can never serve as it is; then the node of the
        head has the requests end."""
        failed = self.head.standing().failed
        assert failed is not None, "it waits, and for nothing"
        assert failed.kind is FailureKind.UNSERVABLE, "it waits, and for nothing"
        self.take(self.head.end_requests(failed.message, self.now))

    def drain(self) -> None:
        """Everybody is honest, and all that is under way is done."""
        for _ in range(_REST):
            self.start_engine()
            self.set_tunnel(up=True)
            self.open_way()
            for rank in range(1, self.world):
                self.come(rank)
            did = [self.work(rank) for rank in range(self.world)]
            if any(did) or self.opening:
                continue
            if self.ended == set(self.expected):
                break
            if not self.pass_time():
                self.give_up()
        assert self.ended == set(self.expected)
        scheduler = self.head.scheduler
        assert scheduler is not None
        assert scheduler.live == 0


def _command(source: Source, ring: Ring) -> None:
    match source.below(11):
        case 0:
            ring.submit(source.below(12), 1 + source.below(8))
        case 1:
            uid = 1 + source.below(MOST)
            ring.take(ring.head.cancel(uid, ring.now))
        case 2:
            ring.open_way(fails=source.below(8) == 1)
        case 3:
            rank = source.below(ring.world)
            ring.come(max(1, rank))
            ring.open_way()
            ring.work(rank)
        case 4:
            rank = 1 + source.below(ring.world - 1)
            purpose = source.pick((Purpose.CONTROL, Purpose.CONTROL, Purpose.STEP))
            ring.say(rank, _lie(source, ring), purpose)
        case 5:
            ring.engine_says(_lie(source, ring))
        case 6:
            ring.pass_time()
        case 7:
            ring.now += source.below(200) / 100
        case 8:
            ring.set_tunnel(up=source.flag())
        case 9:
            ring.lose_engine()
        case _:
            ring.gone(1 + source.below(ring.world - 1))


def _lie(source: Source, ring: Ring) -> Any:
    """An answer that nobody may have asked for."""
    counter = ring.head.epochs.membership.epoch.counter + source.pick((0, 0, 0, -1, 1))
    epoch = source.pick((Epoch(7, max(0, counter)), NO_EPOCH, Epoch(8, 1)))
    if source.flag():
        last, port = source.pick((0, LAYERS, 1)), source.below(3)
        if port:
            return Prepared(epoch, port)
        return Ready(epoch, 0, last, True, 1 << 30, CacheCost(0, 0))
    n = source.below(6)
    ids = ring.drawn.get((epoch, n), ()) if source.flag() else source.pick(DRAWN)
    kind = source.pick(tuple(FailureKind))
    if n == 0:
        return CannotServe(epoch, kind, "a failure", source.below(3))
    failed = Failure(source.below(4), kind, "a failure") if source.flag() else None
    return StepDone(epoch, n, () if failed else ids, failed=failed)
