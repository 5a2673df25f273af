"""A ring of brains: head and followers with fake engines, connected by queues of messages.

Deliveries happen in any order that keeps each queue's own; `random` chooses. No links, no bytes:
those have a simulator of their own (`sim.cluster`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from sealring_protocol.codec.local_messages import Scores
from sealring_protocol.codec.messages import FailureKind
from sealring_protocol.control.effects import (
    Note,
    RestartEngine,
    Send,
    Shut,
    StepTiming,
    ToEngine,
    Want,
)
from sealring_protocol.control.epoch.follower import Follower, FollowerConfig
from sealring_protocol.control.head.head import Head, HeadConfig
from sealring_protocol.control.requests import (
    FinishReason,
    Request,
    RequestDone,
    SchedulerConfig,
    ScoresOut,
    TokenOut,
)
from sealring_protocol.control.scheduler.rows import FREE, GuessCosts, Way, Ways
from sealring_protocol.control.scheduler.times import StepTimes
from sealring_protocol.security.roles import Purpose

from tests.sim.fake_engine import FakeEngine, reference


def _expected(request: Request) -> list[int]:
    count = 20 if request.max_tokens is None else request.max_tokens
    return reference(request.prompt, count, 6)


class AlwaysPay(GuessCosts):
    """Guesses pay, however few are right: in one way or the other, as *random* has it, of as many
    as there are without. If not *trusting*, a row whose first guess is wrong has to show
    that another would have been right."""

    def __init__(self, random: Random | None = None, *, trusting: bool = True) -> None:
        super().__init__(StepTimes())
        self.random = random
        self.trusting = trusting

    def break_even(self, ways: Ways) -> float:
        return 0.0 if self.trusting else 2 * FREE

    @property
    def break_even_piped(self) -> float:
        return 0.0

    def way(self, share: float, most: int, ways: Ways) -> Way:
        sizes = [0, *(guesses for guesses in ways.sizes if guesses <= most)]
        if self.random is None:
            return Way(ways.piped, max(sizes))
        return Way(self.random.choice([False, ways.piped]), self.random.choice(sizes))

    @property
    def plain(self) -> float | None:
        return 1.0


class Brains:
    def __init__(
        self,
        world: int,
        random: Random,
        scheduler: SchedulerConfig | None = None,
        engine: Callable[[], Any] = FakeEngine,
        expected: Callable[[Request], list[int]] = _expected,
    ) -> None:
        """Each *engine* computes the text that is *expected* of a request."""
        self.new_engine = engine
        self.expected = expected
        names = tuple(f"node{rank}" for rank in range(world))
        self.world = world
        self.random = random
        self.trusting = True
        self.now = 0.0
        self.head = Head(
            HeadConfig(7, names, inner_seal=False, scheduler=scheduler or SchedulerConfig())
        )
        self.followers = {
            rank: Follower(FollowerConfig(rank, names, inner_seal=False))
            for rank in range(1, world)
        }
        self.engines: dict[int, Any] = dict.fromkeys(range(world))
        self.queues: dict[tuple[Any, ...], deque[Any]] = {}
        self.up: set[tuple[int, int]] = set()
        self.tokens: dict[int, list[int]] = {}
        self.positions: dict[int, list[int]] = {}
        self.scores: dict[int, list[Scores]] = {}
        self.done: dict[int, RequestDone] = {}
        self.notes: list[str] = []
        self.timings: list[StepTiming] = []
        self.kills = 0
        self.memory: dict[int, int] = {}  # tokens in caches beyond which an engine of a rank dies
        self.dies_of = FailureKind.MEMORY

    # ---------------------------------------------------------------- inputs

    def start(self) -> None:
        for rank in range(self.world):
            self.start_engine(rank)
        for rank in range(1, self.world):
            self.control_up(rank)
        self.run()

    def control_up(self, rank: int) -> None:
        self.absorb(0, self.head.link_up(rank, Purpose.CONTROL, self.now))
        self.absorb(rank, self.followers[rank].link_up(0, Purpose.CONTROL, self.now))

    def start_engine(self, rank: int) -> None:
        engine = self.new_engine()
        self.engines[rank] = engine
        for message in engine.start():
            self.put(("from_engine", rank), message)

    def kill_engine(self, rank: int, kind: FailureKind = FailureKind.ENGINE_LOST) -> None:
        self.kills += 1
        self.engines[rank] = None
        self.queues.pop(("to_engine", rank), None)
        self.queues.pop(("from_engine", rank), None)
        self.absorb(rank, self.brain(rank).engine_lost("killed", self.now, kind))
        for hop in [hop for hop in self.up if rank in hop]:
            self.cut(hop)

    def cut(self, hop: tuple[int, int]) -> None:
        """Break the step link between the two ranks."""
        self.up.discard(hop)
        a, b = hop
        self.queues.pop(("link", a, b, Purpose.STEP), None)
        self.queues.pop(("link", b, a, Purpose.STEP), None)
        for rank, other in ((a, b), (b, a)):
            effects = self.brain(rank).link_down(other, Purpose.STEP, "cut", self.now)
            self.absorb(rank, effects)
        self.put(("redial",), hop)

    def submit(self, request: Request) -> int:
        """Guesses of its tokens are given, or not; some of them may be wrong."""
        uid, effects = self.head.submit(request, self.now)
        self.tokens[uid] = []
        self.positions[uid] = []
        self.scores[uid] = []
        self.absorb(0, effects)
        scheduler = self.head.scheduler
        if scheduler is not None:
            scheduler._guessing.costs = AlwaysPay(self.random, trusting=self.trusting)
        spoilt = self.random.choice((0.0, 0.3, 0.9, None))
        if spoilt is not None:
            guesses = [
                3 if self.random.random() < spoilt else token for token in self.expected(request)
            ]
            self.absorb(0, self.head.guess(uid, len(request.prompt), guesses, self.now))
        return uid

    def cancel(self, uid: int) -> None:
        self.absorb(0, self.head.cancel(uid, self.now))

    # ------------------------------------------------------------ the machine

    def brain(self, rank: int) -> Head | Follower:
        return self.head if rank == 0 else self.followers[rank]

    def put(self, key: tuple[Any, ...], item: Any) -> None:
        self.queues.setdefault(key, deque()).append(item)

    def absorb(self, rank: int, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Send(other, purpose, message):
                    if purpose is Purpose.STEP and not {(rank, other), (other, rank)} & self.up:
                        continue
                    self.put(("link", rank, other, purpose), message)
                case Want(other, Purpose.STEP):
                    if (rank, other) not in self.up:
                        self.put(("redial",), (rank, other))
                case ToEngine(message):
                    if self.engines[rank] is not None:
                        self.put(("to_engine", rank), message)
                case TokenOut(uid, token, position):
                    self.tokens[uid].append(token)
                    self.positions[uid].append(position)
                case ScoresOut(uid, scores):
                    self.scores[uid].append(scores)
                case RequestDone(uid):
                    assert uid not in self.done, "answered twice"
                    self.done[uid] = effect
                case Note(_, text):
                    self.notes.append(text)
                case StepTiming():
                    self.timings.append(effect)
                case RestartEngine():
                    self.kill_engine(rank)
                    self.start_engine(rank)
                case Shut() | Want():
                    raise AssertionError(effect)
        if self.head.may_plan:
            self.absorb(0, self.head.plan_steps(self.now))

    def step(self) -> bool:
        """Deliver one message of one queue."""
        keys = [key for key, queue in self.queues.items() if queue]
        if not keys:
            return False
        key = self.random.choice(sorted(keys, key=repr))
        item = self.queues[key].popleft()
        self.now += 0.001
        match key:
            case ("link", sender, receiver, purpose):
                self.absorb(receiver, self.brain(receiver).message(sender, purpose, item, self.now))
            case ("to_engine", rank):
                engine = self.engines[rank]
                if engine is not None:
                    answers = engine.receive(item)
                    if engine.held > self.memory.get(rank, engine.held):
                        self.kill_engine(rank, self.dies_of)
                        self.start_engine(rank)
                        return True
                    for answer in answers:
                        self.put(("from_engine", rank), answer)
            case ("from_engine", rank):
                self.absorb(rank, self.brain(rank).engine_message(item, self.now))
            case ("redial",):
                self._redial(item)
        return True

    def _redial(self, hop: tuple[int, int]) -> None:
        if hop in self.up:
            return
        if self.engines[hop[0]] is None or self.engines[hop[1]] is None:
            if any(queue for key, queue in self.queues.items() if key != ("redial",)):
                self.put(("redial",), hop)
            return
        self.up.add(hop)
        for rank, other in (hop, hop[::-1]):
            self.absorb(rank, self.brain(rank).link_up(other, Purpose.STEP, self.now))

    def run(self, limit: int = 200_000) -> None:
        """Deliver until nothing is left to deliver and no request waits for a timer."""
        for _ in range(limit):
            if self.step():
                continue
            if not self.waiting or not self.fire_timer():
                return
        raise AssertionError("it does not come to rest")

    @property
    def waiting(self) -> bool:
        return len(self.done) < len(self.tokens)

    def fire_timer(self) -> bool:
        """Let time pass until the next deadline of any brain."""
        due = [
            (deadline, rank)
            for rank in range(self.world)
            if (deadline := self.brain(rank).next_timeout()) is not None
        ]
        if not due:
            return False
        self.now, rank = min(due)
        self.absorb(rank, self.brain(rank).handle_timeout(self.now))
        return True

    def finished(self, uid: int) -> FinishReason:
        return self.done[uid].reason
