"""One epoch of tensor parallelism, seen from the head: the leader of ranks in lockstep.

Every step goes to every rank at once, the head's own engine among them, and each rank answers it
once with the tokens that it drew. All draw from the same logits, so all draw the same: a step is
over when every rank has answered, and a rank whose tokens differ has diverged, which ends the
epoch. Up to two steps are under way, for the scheduler counts a step as credit until it is over.

A rank that fails leaves the others waiting inside a collective, where no message reaches them. So
at the first failure the leader *drains*: it begins nothing more, gathers what the other ranks
still answer for a moment, and then reports all that went wrong together. What comes later belongs
to an epoch that is over, and is dropped by its number.

Of a follower's side nothing is new: it is a pipeline's last rank, which answers its head.
"""

from __future__ import annotations

import enum
from collections import deque
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
from sealring_protocol.control.epoch.deadlines import Extension
from sealring_protocol.control.epoch.pipeline import (
    Action,
    Answered,
    ToEngine,
    ToRanks,
    check_spent,
    weight,
)
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import MAX_WEIGHT_WAITING, PING_TIMEOUT
from sealring_protocol.table import Machine, Table


class LeaderState(enum.Enum):
    """What the leader does."""

    RUNNING = "running"
    DRAINING = "draining"
    BROKEN = "broken"


class LeaderEvent(enum.Enum):
    """What reaches it."""

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
    """A step under way, and what has been answered to it, by rank."""

    step: Step
    answers: dict[int, StepDone] = attrs.field(factory=dict)


class TensorLeader:
    """The head's machine for ranks 0 to *world* - 1."""

    def __init__(self, epoch: Epoch, world: int) -> None:
        self.epoch = epoch
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
        """A failure is known, and answers are still gathered; `drained` ends that."""
        return self._state.state is LeaderState.DRAINING

    @property
    def outstanding(self) -> int:
        """Steps that are not over."""
        return len(self._flights)

    def begin(self, step: Step) -> list[Action]:
        """Start *step*, the next by number, on every rank."""
        self._state.fire(LeaderEvent.STEP)
        self._flights.append(_Flight(step))
        return [ToEngine(step), ToRanks(step)]

    def output(self, message: Step | StepDone) -> list[Action]:
        """The own engine gave *message* of this epoch."""
        if self._state.state is LeaderState.BROKEN:
            return []
        if isinstance(message, StepDone) and self._expects(0, message.n):
            return self._take(0, message)
        text = "the engine answered out of order"
        return self.failure(message.n, Failure(0, FailureKind.ENGINE_ERROR, text))

    def done(self, rank: int, message: StepDone) -> list[Action]:
        """*rank* answered with *message* of this epoch.

        Raises `RemoteProtocolError` unless it answers the oldest step that *rank* owes, or for
        times of more ranks than there are, and
        `LimitExceeded` when more of its answers would wait for the other ranks' than may.
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
        """The answers of every step, from the oldest on, that every rank has answered."""
        actions: list[Action] = []
        while self._flights and len(self._flights[0].answers) == self._world:
            flight = self._flights[0]
            answers = [flight.answers[rank] for rank in range(self._world)]
            ids = answers[0].ids
            other = next((rank for rank, a in enumerate(answers) if a.ids != ids), None)
            if other is not None:
                text = f"it drew {list(answers[other].ids)} where rank 0 drew {list(ids)}"
                diverged = Failure(other, FailureKind.LEDGER, text)
                return actions + self.failure(flight.step.n, diverged)
            self._flights.popleft()
            spent = tuple(part for answer in answers for part in answer.spent)
            actions.append(Answered(flight.step.n, ids, spent, None))
        return actions

    # ------------------------------------------------------------- failures

    def failure(self, n: int, failed: Failure) -> list[Action]:
        """Step *n* failed on a rank, and with it every later one: gather what else is told."""
        unasked = self.open and not self._flights
        if self.open:
            self._failed_n = n
        self._state.fire(LeaderEvent.FAILURE)
        self._failures.setdefault(failed.rank, failed)
        if unasked:  # nobody owes anything, and the epoch is over all the same
            self._state.fire(LeaderEvent.DRAINED)
            return [Answered(n, (), (), failed)]
        return self._gathered()

    def lost(self, failed: Failure) -> list[Action]:
        """A rank or its link is gone, or says nothing: all is over, here and now."""
        self._failures.setdefault(failed.rank, failed)
        self._state.fire(LeaderEvent.FAILURE)
        return self._report()

    def drained(self) -> list[Action]:
        """What has not been told by now will not be."""
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
        """Every step under way is over: the one at fault first, with all that went wrong."""
        self._state.fire(LeaderEvent.DRAINED)
        left = [flight.step.n for flight in self._flights]
        self._flights.clear()
        if not left:
            return []
        n = self._failed_n if self._failed_n in left else left[0]
        first = next(iter(self._failures.values()))
        others = [f"; rank {f.rank}: {f.message}" for f in list(self._failures.values())[1:]]
        whole = attrs.evolve(first, message=first.message + "".join(others))
        later = Failure(first.rank, FailureKind.LINK_LOST, f"after step {n}: {first.message}")
        ended: list[Action] = [Answered(n, (), (), whole)]
        return ended + [Answered(other, (), (), later) for other in left if other != n]


@attrs.frozen
class StepDeadlineRule:
    """Seconds that a step may take: *factor* times the slowest of its kind, but no less than
    *least*; than *unseen* if none of its shape has been in this epoch; than *first* if none of its
    kind ever has."""

    first: float = 30.0
    unseen: float = 10.0
    least: float = 1.0
    factor: float = 4.0

    @classmethod
    def of(cls, patience: float) -> StepDeadlineRule:
        """Where a peer may be silent for *patience* seconds: what that is beyond the default is
        added to *least*, for the peer's engine shares its machine."""
        return cls(least=cls().least + max(0.0, patience - PING_TIMEOUT))


STARVED: Final = 0.1
"""Seconds that engines have starved while a step was under way from which on they count as starved:
a healthy one, too, waits a little for its processor."""

GRACE: Final = 6.0
"""Cap on the multiplier of `StepDeadlineRule.unseen` and `least`, which doubles with each deadline
that passes."""

STEADY: Final = 64
"""Steps of one epoch after which the multiplier is 1 again."""


class _Shape(NamedTuple):
    """What of a step decides which code a device runs: its kind of work, how many tokens
    (rounded down to a power of two), and whether rows leave a group or have their caches copied."""

    kind: type[Work]
    size: int
    evicts: bool
    copies: bool


class _Owed(NamedTuple):
    """A step under way: its shape and tokens. *joins*: rows enter a group, and may be the first
    that draw as they do."""

    shape: _Shape
    tokens: int
    joins: bool


class StepDeadline:
    """The deadline of the oldest step under way, from the slowest of its kind so far.

    A rank that is frozen hangs every other one in a collective, so the deadline is short. What a
    step takes grows with its tokens at most (a decode has one for each row), and no step is done
    sooner than one token is. But the first of a shape may have a device compile for it, which takes
    seconds where the step takes milliseconds; and the engines of an epoch are new. Should that
    take longer than it may, it may take twice as long in the next epoch, or no epoch would ever
    get past it.
    """

    __slots__ = (
        "_extension",
        "_grace",
        "_owed",
        "_rule",
        "_seen",
        "_since",
        "_slowest",
        "_steps",
        "_token",
    )

    def __init__(self, rule: StepDeadlineRule | None = None) -> None:
        self._rule = rule or StepDeadlineRule()
        self._extension = Extension()
        self._owed: deque[_Owed] = deque()
        self._seen: set[_Shape] = set()
        self._since = 0.0
        self._slowest: dict[type[Work], float] = {}  # seconds a token, but for firsts of a shape
        self._token = 0.0  # seconds of a forward of one
        self._grace = 1.0
        self._steps = 0

    def owe(self, step: Step, rows: int, now: float) -> None:
        """*step*, which works on *rows* rows, was sent."""
        if not self._owed:
            self._begin(now)
        work = step.work
        tokens = work.count if isinstance(work, Prefill) else rows * isinstance(work, Decode)
        copies = bool(step.save or step.open)
        shape = _Shape(type(work), tokens.bit_length(), bool(step.evict), copies)
        self._owed.append(_Owed(shape, tokens, bool(step.join)))

    def answered(self, now: float) -> None:
        """The oldest step is over."""
        if not self._owed:
            return
        shape, tokens, joins = self._owed.popleft()
        if shape in self._seen and tokens and not joins:
            rate = (now - self._since - self._extension.seconds) / tokens
            self._slowest[shape.kind] = max(self._slowest.get(shape.kind, 0.0), rate)
        self._seen.add(shape)
        self._begin(now)
        self._steps += 1
        if self._steps == STEADY:
            self._grace = 1.0

    def _begin(self, now: float) -> None:
        """Wait for the next answer from now on."""
        self._since = now
        self._extension.seconds = 0.0

    def starved(self, seconds: float, now: float) -> None:
        """A rank that works on the oldest step has starved for *seconds* more. Reports of that are
        as far apart as half the shortest deadline, so that is doubled, as after one that passed."""
        if not self._owed:
            return
        self._extension.add(seconds, self._since, now)
        if self._extension.seconds >= STARVED:
            self._grace = max(self._grace, 2.0)

    @property
    def extended(self) -> str:
        """As `AnswerDeadline.extended`."""
        return self._extension.told

    def expect(self, seconds: float) -> None:
        """A forward of one token has been seen to take *seconds*, or so it was said."""
        self._token = min(seconds, self._rule.first)

    def late(self) -> None:
        """The deadline has passed."""
        self._grace = min(2 * self._grace, GRACE)

    def clear(self) -> None:
        """Nothing is owed any more: the epoch is over, and its engines with it."""
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
        # Until more is known, it is as if the tokens of a prefill came one by one.
        rate = slowest if slowest and shape.kind is Prefill else max(slowest, self._token)
        known = shape in self._seen and not joins
        least = self._grace * (rule.least if known else rule.unseen)
        if not slowest and (shape.kind is Prefill or not self._token):
            least = max(least, rule.first)
        patience = max(least, rule.factor * max(self._token, tokens * rate))
        return self._since + patience + self._extension.seconds
