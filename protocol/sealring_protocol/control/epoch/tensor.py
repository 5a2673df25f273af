"""One epoch of tensor parallelism, as the head sees it: the leader of ranks in lockstep.

Every step goes to every rank at once, including the head's own engine, and each rank answers it
once with the tokens that it drew. All draw from the same logits, so all draw the same tokens. A
step is over when every rank has answered. A rank whose tokens differ has diverged, which ends the
epoch. Up to two steps are under way; the scheduler enforces that.

A rank that fails leaves the others blocked inside a collective, where no message reaches them. So
at the first failure the leader *drains*: it begins no more steps, collects further answers for a
moment, and then reports all failures together. A later message belongs to an epoch that is over,
and is dropped by its epoch number.

A follower uses the same machine as a pipeline's last rank, which answers the head.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import attrs

from sealring_protocol.codec.messages import (
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Prefill,
    Step,
    StepDone,
    Work,
)
from sealring_protocol.control.deadlines import Wait
from sealring_protocol.control.epoch.pipeline import (
    Action,
    Answered,
    ToOwnEngine,
    ToRanks,
    check_spent,
    weight,
)
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import MAX_WEIGHT_WAITING, PING_TIMEOUT
from sealring_protocol.table import Machine, Table
from sealring_protocol.words import named


class LeaderState(enum.Enum):
    """The state of the leader."""

    RUNNING = "running"
    DRAINING = "draining"
    BROKEN = "broken"


class LeaderEvent(enum.Enum):
    """What changes the leader's state."""

    STEP = "step"
    ANSWER = "answer"
    FAILURE = "failure"
    DRAINED = "drained"


LEADER_TABLE: Final[Table[LeaderState, LeaderEvent]] = {
    (LeaderState.RUNNING, LeaderEvent.STEP): LeaderState.RUNNING,
    (LeaderState.RUNNING, LeaderEvent.ANSWER): LeaderState.RUNNING,
    (LeaderState.RUNNING, LeaderEvent.FAILURE): LeaderState.DRAINING,
    (LeaderState.DRAINING, LeaderEvent.ANSWER): LeaderState.DRAINING,
    (LeaderState.DRAINING, LeaderEvent.FAILURE): LeaderState.DRAINING,
    (LeaderState.DRAINING, LeaderEvent.DRAINED): LeaderState.BROKEN,
    (LeaderState.BROKEN, LeaderEvent.FAILURE): LeaderState.BROKEN,
    (LeaderState.BROKEN, LeaderEvent.DRAINED): LeaderState.BROKEN,
}


@attrs.define
class _Flight:
    """A step under way, and its answers so far, by rank."""

    step: Step
    answers: dict[int, StepDone] = attrs.field(factory=dict)


class TensorLeader:
    """The head's machine for ranks 0 to *world* - 1, which people call *ranks* (`words.named`)."""

    def __init__(self, epoch: Epoch, world: int, ranks: Sequence[str] = ()) -> None:
        self.epoch = epoch
        self._ranks = ranks
        self._world = world
        self._state = Machine(LEADER_TABLE, LeaderState.RUNNING)
        self._flights: deque[_Flight] = deque()
        self._failures: dict[int, Failure] = {}
        self._failed_n = 0

    @property
    def open(self) -> bool:
        """Steps may begin."""
        return self._state.state is LeaderState.RUNNING

    @property
    def draining(self) -> bool:
        """True while answers are still collected after a failure; `drained` ends it."""
        return self._state.state is LeaderState.DRAINING

    @property
    def outstanding(self) -> int:
        """Steps that are not over."""
        return len(self._flights)

    def begin(self, step: Step) -> list[Action]:
        """Start *step*, the next by number, on every rank."""
        self._state.fire(LeaderEvent.STEP)
        self._flights.append(_Flight(step))
        return [ToOwnEngine(step), ToRanks(step)]

    def output(self, message: Step | StepDone) -> list[Action]:
        """The head's engine returned *message* of this epoch."""
        if self._state.state is LeaderState.BROKEN:
            return []
        if isinstance(message, StepDone) and self._expects(0, message.n):
            return self._take(0, message)
        text = "the engine answered out of order"
        return self.failure(message.n, Failure(0, FailureKind.ENGINE_ERROR, text))

    def done(self, rank: int, message: StepDone) -> list[Action]:
        """*rank* answered with *message* of this epoch.

        Raises `RemoteProtocolError` unless it answers the oldest step that *rank* owes, or if it
        has the times of too many ranks. Raises `LimitExceeded` if too many of its answers would
        wait for the other ranks'.
        """
        if self._state.state is LeaderState.BROKEN:
            return []
        if not self._expects(rank, message.n):
            raise RemoteProtocolError(f"an answer to step {message.n}, which waits for none")
        check_spent(message, self._world)
        kept = (flight.answers.get(rank) for flight in self._flights)
        if sum(map(weight, filter(None, kept))) + weight(message) > MAX_WEIGHT_WAITING:
            raise LimitExceeded(f"the answer to step {message.n} is too large")
        return self._take(rank, message)

    def _expects(self, rank: int, n: int) -> bool:
        owed = next((f.step.n for f in self._flights if rank not in f.answers), None)
        return owed == n

    def _take(self, rank: int, message: StepDone) -> list[Action]:
        self._state.fire(LeaderEvent.ANSWER)
        flight = next(f for f in self._flights if f.step.n == message.n)
        flight.answers[rank] = message
        failed = message.failed
        if message.tensors:
            text = f"it answered step {message.n} with hidden states"
            failed = Failure(rank, FailureKind.INTEGRITY, text)
        if failed is not None:
            return self.failure(message.n, attrs.evolve(failed, rank=rank))
        return self._over() if self.open else self._gathered()

    def _over(self) -> list[Action]:
        """The finished steps, from the oldest on: those that every rank has answered."""
        actions: list[Action] = []
        while self._flights and len(self._flights[0].answers) == self._world:
            flight = self._flights[0]
            answers = [flight.answers[rank] for rank in range(self._world)]
            ids = answers[0].ids
            other = next((rank for rank, a in enumerate(answers) if a.ids != ids), None)
            if other is not None:
                text = f"it drew {list(answers[other].ids)} where the head drew {list(ids)}"
                diverged = Failure(other, FailureKind.LEDGER, text)
                return actions + self.failure(flight.step.n, diverged)
            self._flights.popleft()
            spent = tuple(part for answer in answers for part in answer.spent)
            actions.append(Answered(flight.step.n, ids, spent, None))
        return actions

    # ------------------------------------------------------------- failures

    def failure(self, n: int, failed: Failure) -> list[Action]:
        """Step *n* failed on a rank, and every later step with it. Starts to drain."""
        unasked = self.open and not self._flights
        if self.open:
            self._failed_n = n
        self._state.fire(LeaderEvent.FAILURE)
        self._failures.setdefault(failed.rank, failed)
        if unasked:  # no answer is owed, but the epoch is over
            self._state.fire(LeaderEvent.DRAINED)
            return [Answered(n, (), (), failed)]
        return self._gathered()

    def lost(self, failed: Failure) -> list[Action]:
        """A rank or its link is gone, or is silent: end every step now, without draining."""
        self._failures.setdefault(failed.rank, failed)
        self._state.fire(LeaderEvent.FAILURE)
        return self._report()

    def drained(self) -> list[Action]:
        """The drain's time is over: report what has been collected."""
        return self._report() if self.draining else []

    def _gathered(self) -> list[Action]:
        owed = any(len(flight.answers) < self._world for flight in self._flights)
        return [] if owed else self.drained()

    @property
    def late(self) -> list[int]:
        """The ranks that owe an answer to the oldest step."""
        if not self._flights:
            return []
        return [rank for rank in range(self._world) if rank not in self._flights[0].answers]

    def _report(self) -> list[Action]:
        """End every step under way: first the failed one, with the failures of all ranks."""
        self._state.fire(LeaderEvent.DRAINED)
        left = [flight.step.n for flight in self._flights]
        self._flights.clear()
        if not left:
            return []
        n = self._failed_n if self._failed_n in left else left[0]
        first = next(iter(self._failures.values()))
        others = [
            f"; {named(self._ranks, f.rank)}: {f.message}"
            for f in list(self._failures.values())[1:]
        ]
        whole = attrs.evolve(first, message=first.message + "".join(others))
        later = Failure(first.rank, FailureKind.LINK_LOST, f"after step {n}: {first.message}")
        ended: list[Action] = [Answered(n, (), (), whole)]
        return ended + [Answered(other, (), (), later) for other in left if other != n]


@attrs.frozen
class StepDeadlineRule:
    """The deadline of a step, in seconds: *factor* times the slowest of its kind, but at least
    *least*. It is at least *unseen* if this epoch has seen no step of its shape, and at least
    *first* if no step of its kind has ever been timed."""

    first: float = 30.0
    unseen: float = 10.0
    least: float = 1.0
    factor: float = 4.0

    @classmethod
    def of(cls, patience: float) -> StepDeadlineRule:
        """The rule for a peer that may be silent for *patience* seconds. What exceeds the default
        is added to *least*, because the peer's engine runs on the same slow machine."""
        return cls(least=cls().least + max(0.0, patience - PING_TIMEOUT))


STARVED: Final = 0.1
"""Seconds of starvation during one step from which the engines count as starved. A healthy engine,
too, waits a little for its processor."""

GRACE: Final = 6.0
"""Cap on the multiplier of `StepDeadlineRule.unseen` and `least`, which doubles with each deadline
that passes."""

STEADY: Final = 64
"""Steps of one epoch after which the multiplier is reset to 1."""


class _Shape(NamedTuple):
    """The properties of a step that decide which code a device runs: the kind of its work, whether
    that scores tokens, its tokens (as a bit length), whether rows leave a group, and whether caches
    are copied."""

    kind: tuple[type[Work], bool]
    size: int
    evicts: bool
    copies: bool


class _Owed(NamedTuple):
    """A step under way: its shape and tokens. If it *joins* rows to a group, they may be the first
    to use their sampler."""

    shape: _Shape
    tokens: int
    joins: bool


class StepDeadline(Wait):
    """The deadline of the oldest step under way, from the slowest of its kind so far.

    One frozen rank hangs every other rank of a collective, so the deadline is short. A step's time
    grows at most in proportion to its tokens (a decode has one for each row), and no step is faster
    than one of a single token. The first step of a shape may make a device compile, which takes
    seconds instead of milliseconds, and every epoch has new engines. When a deadline passes, the
    least deadlines double for the next epoch, up to `GRACE` times; otherwise no epoch would get
    past a slow compilation.
    """

    __slots__ = (
        "_grace",
        "_owed",
        "_rule",
        "_seen",
        "_slowest",
        "_steps",
        "_token",
    )

    def __init__(self, rule: StepDeadlineRule | None = None) -> None:
        super().__init__()
        self._rule = rule or StepDeadlineRule()
        self._owed: deque[_Owed] = deque()
        self._seen: set[_Shape] = set()
        self._slowest: dict[tuple[type[Work], bool], float] = {}  # seconds a token, warm
        self._token = 0.0  # seconds of a forward of one token
        self._grace = 1.0
        self._steps = 0

    def owe(self, step: Step, rows: int, now: float) -> None:
        """*step*, which works on *rows* rows, was sent."""
        if not self._owed:
            self.begin(now)
        work = step.work
        tokens = work.count if isinstance(work, Prefill) else 0
        if isinstance(work, Decode):
            tokens = rows + work.ahead
        copies = bool(step.save or step.open)
        scored = isinstance(work, Prefill) and work.scored
        shape = _Shape((type(work), scored), tokens.bit_length(), bool(step.evict), copies)
        self._owed.append(_Owed(shape, tokens, bool(step.join)))

    def answered(self, now: float) -> None:
        """The oldest step is over."""
        if not self._owed:
            return
        shape, tokens, joins = self._owed.popleft()
        if shape in self._seen and tokens and not joins:
            rate = self.taken(now) / tokens
            self._slowest[shape.kind] = max(self._slowest.get(shape.kind, 0.0), rate)
        self._seen.add(shape)
        self.begin(now)
        self._steps += 1
        if self._steps == STEADY:
            self._grace = 1.0

    def starved(self, seconds: float, now: float) -> None:
        """A rank that works on the oldest step starved for *seconds* more. Reports of starvation
        come only every half of the shortest deadline, so the deadline is doubled, as after one that
        passed."""
        if not self._owed:
            return
        super().starved(seconds, now)
        if self.extension >= STARVED:
            self._grace = max(self._grace, 2.0)

    def expect(self, seconds: float) -> None:
        """A forward of one token takes *seconds*, as measured or reported by a rank."""
        self._token = min(seconds, self._rule.first)

    def late(self) -> None:
        """The deadline has passed."""
        self._grace = min(2 * self._grace, GRACE)

    def clear(self) -> None:
        """The epoch is over, and its engines with it: no answer is owed."""
        self._owed.clear()
        self._seen.clear()
        self._steps = 0

    @property
    def deadline(self) -> float | None:
        """When the oldest step is overdue; None while none is under way."""
        if not self._owed:
            return None
        shape, tokens, joins = self._owed[0]
        rule, slowest = self._rule, self._slowest.get(shape.kind, 0.0)
        # Until a prefill was timed, assume that each of its tokens takes a forward of its own.
        reads = shape.kind[0] is Prefill
        rate = slowest if slowest and reads else max(slowest, self._token)
        known = shape in self._seen and not joins
        least = self._grace * (rule.least if known else rule.unseen)
        if not slowest and (reads or not self._token):
            least = max(least, rule.first)
        patience = max(least, rule.factor * max(self._token, tokens * rate))
        return self.since + patience + self.extension
