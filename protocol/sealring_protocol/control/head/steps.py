"""The steps of one epoch: planned, sent, answered or lost. Every token passes through this part.

`Head` creates `Steps` when every rank is ready, and discards it when the epoch ends. It joins the
scheduler, which says what the next step is, with a machine that says where a step goes and when it
is over: a `HeadPipeline`, or a `TensorLeader`. Methods return the effects to carry out. After a
step has failed, `over` is true; then all steps are settled, and the epoch must end.

What outlives the epoch is in a `Timekeeper`: what the times of steps have taught. In a checked
epoch `CheckedSteps` knows which fingerprints are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import attrs

from sealring_protocol.codec.local_messages import Logprobs, RowOver, RowReady, Scores
from sealring_protocol.codec.messages import (
    NO_LOGPROBS,
    Checked,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    KeptCache,
    Prefill,
    Ready,
    Row,
    Spent,
    Step,
    StepDone,
    Work,
)
from sealring_protocol.control.deadlines import ROUND, AnswerDeadline, earliest, is_due
from sealring_protocol.control.effects import (
    Effect,
    Level,
    Note,
    Send,
    Shut,
    StepChecked,
    StepTiming,
    StepToCheck,
    ToEngine,
)
from sealring_protocol.control.epoch import pipeline
from sealring_protocol.control.epoch.tensor import StepDeadline, StepDeadlineRule, TensorLeader
from sealring_protocol.control.head.epochs import EffectsAndLoss
from sealring_protocol.control.requests import RequestDone
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.control.scheduler.times import PipelineToken
from sealring_protocol.errors import CloseCode, RemoteProtocolError
from sealring_protocol.limits import MAX_STEPS_WAITING
from sealring_protocol.security.roles import Purpose
from sealring_protocol.words import named

_REMEMBERED: Final = 8 * MAX_STEPS_WAITING
"""Steps whose shape is kept. Memory: three numbers each. Fingerprints of older ones are dropped."""


@attrs.frozen
class _Shape:
    n: int
    rows: int
    tokens: int


class CheckedSteps:
    """The steps of a checked epoch of *world* ranks. In a pipeline of several ranks the head sends
    CHECKED for its second pass, too.

    Every rank sends CHECKED on its control link, which may be slower than the chain: it may
    come when its step has been answered. So the head remembers the last steps. A rank's numbers
    are passed on as the claim of that rank. They change nothing that the ring does.
    """

    def __init__(self, world: int) -> None:
        self._shapes: deque[_Shape] = deque(maxlen=_REMEMBERED)
        self._last = [0] * world  # the step of each rank's last CHECKED
        self._closed = 0  # the same of the head's second pass

    def planned(
        self, n: int, work: Work, uids: tuple[int, ...], lengths: tuple[int, ...]
    ) -> list[StepToCheck]:
        """Step *n* does *work* for the rows *uids*; after it, their caches hold *lengths* tokens.
        A step without work has nothing to check."""
        match work:
            case Prefill(uid, position, count):
                rows: tuple[tuple[int, int], ...] = ((uid, position),)
            case Decode():
                rows = tuple((uid, at - 1) for uid, at in zip(uids, lengths, strict=True))
                count = 1
            case _:
                return []
        self._shapes.append(_Shape(n, len(rows), count))
        return [StepToCheck(n, rows, count, isinstance(work, Decode))]

    def came(self, rank: int, message: Checked) -> list[StepChecked]:
        """*rank* sent *message* of this epoch. Raises `RemoteProtocolError` unless it is the one
        that is due for a step that was planned."""
        last = self._closed if message.closing else self._last[rank]
        newest = self._shapes[-1].n if self._shapes else 0
        if message.closing and rank:
            raise RemoteProtocolError(
                "fingerprints of the head's second pass, which is the head's alone"
            )
        if not last < message.n <= newest:
            raise RemoteProtocolError(f"fingerprints of step {message.n}, which are not due")
        if message.n < self._shapes[0].n:
            return []
        shape = next((each for each in self._shapes if each.n == message.n), None)
        if shape is None or (message.rows, message.tokens) != (shape.rows, shape.tokens):
            raise RemoteProtocolError(f"fingerprints of step {message.n} have another shape")
        if message.closing:
            self._closed = message.n
        else:
            self._last[rank] = message.n
        return [StepChecked(rank, message)]


DRAIN_SECONDS: Final = 0.25
"""Seconds for which the leader of tensor parallelism collects answers after the first failure."""

_GRAVE: Final = (FailureKind.ENGINE_LOST, FailureKind.MEMORY)
"""Failures that only the failed rank itself may report with effect."""


class Timekeeper:
    """What the times of steps have taught, across epochs. *groups* is the chosen number of groups
    (0: none, it follows measured times). *patience* is how many seconds a peer may be silent; it
    raises the deadlines of tensor parallelism."""

    def __init__(self, groups: int, patience: float) -> None:
        self.groups = groups
        self.rounds = AnswerDeadline(ROUND)
        self.lockstep = StepDeadline(StepDeadlineRule.of(patience))
        self.token = PipelineToken()


M = TypeVar("M")


class Steps:
    """The steps of *epoch*, for which *ranks* are ready, with the caches that are *kept*;
    *parallel* is tensor parallelism. In a *checked* epoch fingerprints are passed on. *engine* is
    the deadline of the head's own engine. None is planned unless the head *leads* at that time."""

    def __init__(
        self,
        epoch: Epoch,
        ranks: list[Ready],
        scheduler: Scheduler,
        times: Timekeeper,
        engine: AnswerDeadline,
        leads: Callable[[float], bool],
        *,
        parallel: bool,
        checked: bool,
        kept: tuple[KeptCache, ...] = (),
    ) -> None:
        self._leads = leads
        self._world = len(ranks)
        self._scheduler = scheduler
        self._times = times
        times.token.begin()
        self._engine = engine
        self._machine: pipeline.HeadPipeline | TensorLeader
        if parallel:
            self._machine = TensorLeader(epoch, self._world, scheduler.config.ranks)
            times.lockstep.expect(max(rank.token_us for rank in ranks) / 1e6)
        else:
            self._machine = pipeline.HeadPipeline(epoch, self._world)
        self._flights: dict[int, tuple[float, Work, tuple[int, ...]]] = {}  # when sent, work, rows
        self._logprobs: dict[tuple[int, int], Logprobs] = {}  # by (step, uid), for its answer
        self._scores: dict[int, list[Scores]] = {}  # by step, for its answer
        self._over: dict[tuple[int, int], RowOver] = {}  # as well
        self._checked = CheckedSteps(self._world) if checked else None
        self._drain_ends: float | None = None
        self._noted_slow_links = False
        self.parallel = parallel
        self.may_plan = False
        """A further step may fit. The caller then calls `plan`, after it has carried out the
        effects so far."""
        self.progressed = False
        """A step was answered, or a request given up."""
        self.over = False
        """A step failed."""
        self._keeps = False  # only a link broke
        # A checked epoch has no guesses, for what wrong ones compute is compared with nothing.
        token_stays_here = parallel or self._world == 1  # on the devices: no hop is waited for
        if token_stays_here:
            scheduler.shape(groups=1, window=2, guesses=not checked)
        else:
            scheduler.shape(times.groups, window=1, stages=self._world, guesses=not checked)
        scheduler.begin(epoch, ranks, kept)

    @property
    def kept(self) -> tuple[KeptCache, ...]:
        """What the next epoch may keep, once this one is over: of a pipeline of which only a link
        broke. In a checked epoch a yardstick reads what the ranks read."""
        able = self._keeps and not (self.parallel or self.is_checked)
        return self._scheduler.kept if able else ()

    @property
    def is_checked(self) -> bool:
        """Whether fingerprints are passed on."""
        return self._checked is not None

    def end(self) -> None:
        """The epoch is over: forget every step under way. This object is of no more use."""
        self._times.rounds.clear()
        self._times.lockstep.clear()
        self._scheduler.abandon()

    def starved(self, rank: int, seconds: float, now: float) -> None:
        """The engine of *rank* starved for *seconds* more: extend the deadlines of steps."""
        if rank > 0:
            self._times.rounds.starved(seconds, now)
        self._times.lockstep.starved(seconds, now)

    # ------------------------------------------------------------- outwards

    def plan(self, now: float) -> list[Effect]:
        """Plan and begin steps while there is work and credit for it, if the head leads."""
        self.may_plan = False
        effects: list[Effect] = []
        for n, right in self._scheduler.decided():
            # One that is known to be wrong may be answered by that.
            if isinstance(self._machine, pipeline.HeadPipeline):
                effects += self._act(self._machine.decide(n, right=right), now)
        if not self._leads(now):
            self.may_plan = True  # once it does again
            return effects
        while self._machine.open:
            planned = self._scheduler.plan(now)
            effects += self._scheduler.ended()
            if planned is None:
                break
            for row in planned.rows:
                effects += self._announce(row)
            n, work = planned.step.n, planned.step.work
            self._flights[n] = (now, work, self._scheduler.uids(n))
            effects += planned.opened
            if self._checked is not None:
                effects += self._checked.planned(n, work, *self._scheduler.lengths(n))
            effects += self._act(self._machine.begin(planned.step), now)
        return effects

    def _announce(self, row: Row) -> list[Effect]:
        """Send *row*, its sampling settings, to every engine that draws tokens."""
        effects: list[Effect] = [ToEngine(row)]
        if self.parallel:
            plain = attrs.evolve(row, logprobs=NO_LOGPROBS)
            effects += [Send(rank, Purpose.CONTROL, plain) for rank in range(1, self._world)]
        return effects

    def _act(self, actions: list[pipeline.Action], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for action in actions:
            match action:
                case pipeline.ToOwnEngine(message):
                    self._engine.owe(now)
                    effects.append(ToEngine(message))
                    if isinstance(message, StepDone):
                        self._scheduler.returned(message.n)
                        self.may_plan = True
                case pipeline.ToNext(message):
                    self._times.rounds.owe(now)
                    effects.append(Send(1, Purpose.STEP, message))
                    self._scheduler.passed_on(message.n)
                    self.may_plan |= isinstance(self._flights[message.n][1], Prefill)
                case pipeline.ToRanks(step):
                    self._times.lockstep.owe(step, len(self._flights[step.n][2]), now)
                    ranks = range(1, self._world)
                    effects += [Send(rank, Purpose.CONTROL, step) for rank in ranks]
                case pipeline.Answered(failed=None):
                    if self.parallel:
                        self._times.lockstep.answered(now)
                    effects += self._answered(action, now)
                case pipeline.Answered():
                    return effects + self._settle(actions)
        if isinstance(self._machine, TensorLeader) and self._machine.draining:
            self._drain_ends = self._drain_ends or now + DRAIN_SECONDS
        return effects

    # -------------------------------------------------------------- inwards

    def engine_sent(self, message: Logprobs | Scores | RowOver) -> None:
        """The head's engine sent *message* ahead of the answer that it belongs to."""
        # Keep no others: a compromised engine may send any number of them.
        _, work, uids = self._flights.get(message.n, (0.0, None, ()))
        if message.uid not in uids:
            return
        if isinstance(message, RowOver):
            self._over[message.n, message.uid] = message
        elif isinstance(message, Logprobs):
            self._logprobs[message.n, message.uid] = message
        elif isinstance(work, Prefill) and work.scored:
            scores = self._scores.setdefault(message.n, [])
            due = scores[-1].end if scores else work.position + 1
            if message.position == due and message.end <= work.position + work.count + 1:
                scores.append(message)

    def row_ready(self, message: RowReady, now: float) -> list[Effect]:
        """The head's engine sent *message* of this epoch."""
        return [*self._scheduler.prepared(message.uid, message.reason), *self.plan(now)]

    def fingerprints(self, rank: int, message: Checked) -> list[Effect]:
        """*rank* sent *message* of this epoch. Raises `RemoteProtocolError` if it may not."""
        if self._checked is None:
            raise RemoteProtocolError("fingerprints of an epoch that is not checked")
        return [*self._checked.came(rank, message)]

    def engine_answered(self, message: Step | StepDone, now: float) -> list[Effect]:
        """The head's engine returned *message* of this epoch."""
        done = isinstance(message, StepDone) and not message.failed and message.n in self._flights
        if done and (
            lack := self._scheduler.lack(message.n, message.ids, self._scores.get(message.n, ()))
        ):
            text = f"the engine answered step {message.n} with {lack}"
            failed = Failure(0, FailureKind.ENGINE_ERROR, text)
            message = StepDone(message.epoch, message.n, failed=failed)
        return self._act(self._machine.output(message), now)

    def rank_answered(
        self, rank: int, purpose: Purpose, message: StepDone, now: float
    ) -> list[Effect]:
        """*rank* returned *message* of this epoch over its link with *purpose*. Raises
        `RemoteProtocolError` if it may not."""
        if self.parallel and purpose is not Purpose.CONTROL:
            raise RemoteProtocolError("an answer to a step of tensor parallelism on a step link")
        if not self.parallel:
            if purpose is Purpose.CONTROL:
                raise RemoteProtocolError("an answer to a step on a control link")
            if message.failed is not None and not 0 < message.failed.rank < self._world:
                raise RemoteProtocolError("a failure of a rank that is not on the chain")
            message = _by_hearsay(rank, message)
            self._times.rounds.answered(now)
        return self._act(self._machine.done(rank, message), now)

    def _answered(self, action: pipeline.Answered, now: float) -> list[Effect]:
        self.progressed = True
        effects = self._timing(action, now)
        logprobs = _taken(self._logprobs, action.n) if self._logprobs else {}
        over = _taken(self._over, action.n) if self._over else {}
        reasons = {uid: message.reason for uid, message in over.items()} if over else {}
        scores = self._scores.pop(action.n, ())
        effects += self._scheduler.answered(action.n, action.ids, now, logprobs, scores, reasons)
        return effects + self.plan(now)

    def _timing(self, action: pipeline.Answered, now: float) -> list[Effect]:
        sent, work, uids = self._flights.pop(action.n)
        total = int((now - sent) * 1e6)
        spent, rest = action.spent[: self._world], action.spent[self._world :]
        if len(spent) < self._world:  # a rank has left some out: nobody knows whose these are
            spent = ()
        closing = rest[0] if rest else Spent()
        timing = StepTiming(action.n, work, uids, total, spent, closing, self.parallel)
        self._scheduler.took(timing)
        self._times.token.took(timing, now)
        read = isinstance(work, Prefill) and not self._noted_slow_links
        if not read or not self._scheduler.slow_links:
            return [timing]
        self._noted_slow_links = True
        return [timing, Note(Level.WARNING, self._scheduler.slow_links)]

    # ------------------------------------------------------------- failures

    def rank_failed(self, n: int, failed: Failure, now: float) -> list[Effect]:
        """A rank cannot go on from step *n* on, because it *failed*."""
        return self._act(self._machine.failure(n, failed), now)

    def lost(self, failed: Failure) -> list[Effect]:
        """The epoch cannot go on, because something *failed*: settle the steps under way."""
        self._keeps = failed.kind is FailureKind.LINK_LOST
        return self._settle(self._machine.lost(failed))

    def _settle(self, actions: list[pipeline.Action]) -> list[Effect]:
        """Settle every step under way. The first failed one of *actions* is the one at fault."""
        self.over = True
        failures = [a for a in actions if isinstance(a, pipeline.Answered) and a.failed]
        if not failures:
            return []
        first = failures[0]
        assert first.failed is not None  # noqa: S101  filtered above
        self._keeps = first.failed.kind is FailureKind.LINK_LOST
        note = Note(
            Level.WARNING,
            f"step {first.n} failed on {named(self._scheduler.config.ranks, first.failed.rank)} "
            f"({first.failed.kind.name.lower()}): {first.failed.message}",
        )
        known = self._scheduler.learnt
        outcomes = self._scheduler.failed(first.n, first.failed)
        # A request less to fail: the next epoch may go better, and need not wait.
        self.progressed |= any(isinstance(outcome, RequestDone) for outcome in outcomes)
        effects: list[Effect] = [note, *outcomes]
        return [*effects, *memory_notes(known, self._scheduler)]

    # ---------------------------------------------------------------- timers

    @property
    def deadline(self) -> float | None:
        """When to call `handle_timeout`; None: not at all."""
        if not self.parallel:
            return self._times.rounds.deadline
        return earliest(self._times.lockstep.deadline, self._drain_ends)

    def handle_timeout(self, now: float) -> EffectsAndLoss:
        """Act on the first deadline that has passed. Returns the effects, and why the epoch cannot
        go on, if an answer is overdue."""
        rounds, lockstep = self._times.rounds, self._times.lockstep
        if is_due(rounds.deadline, now):
            # Every link is up: a rank swallowed the step.
            reason = "a step has not come round the ring within its deadline" + rounds.extended
            ends = sorted({1, self._world - 1})
            shuts = [Shut(rank, Purpose.STEP, CloseCode.TIMEOUT, reason) for rank in ends]
            return [*shuts], Failure(0, FailureKind.DEADLINE, reason)
        if not isinstance(self._machine, TensorLeader):
            return [], None
        if is_due(self._drain_ends, now):
            return self._act(self._machine.drained(), now), None
        if is_due(lockstep.deadline, now):
            lockstep.late()
            late = self._machine.late
            names = ", ".join(named(self._scheduler.config.ranks, rank) for rank in late)
            reason = f"{names} did not answer within the deadline of a step{lockstep.extended}"
            return [], Failure(late[0] if late else 0, FailureKind.DEADLINE, reason)
        return [], None


def memory_notes(known: Mapping[int, int], scheduler: Scheduler) -> list[Effect]:
    """Note the ranks whose memory limit, as *scheduler* has learnt it now, differs from the one
    *known* before."""
    ranks = scheduler.config.ranks
    texts = [
        f"memory of {named(ranks, rank)} ran out: several requests together are given "
        f"{room >> 10} KiB of caches there at most now"
        for rank, room in scheduler.learnt.items()
        if known.get(rank) != room
    ]
    return [Note(Level.WARNING, text) for text in texts]


def _taken(sent: dict[tuple[int, int], M], n: int) -> dict[int, M]:
    """Take what was *sent* of the rows of step *n* before its answer, by row."""
    return {uid: sent.pop((n, uid)) for m, uid in list(sent) if m == n}


def _by_hearsay(rank: int, done: StepDone) -> StepDone:
    """*done* as *rank* may say it. If it claims that another rank died or ran out of memory, the
    step counts as lost for a broken link. Further consequences, such as less room for the accused
    rank, need that rank's own report (`Head._explained`); otherwise one rank could take room from
    another."""
    failed = done.failed
    if failed is None or failed.rank == rank or failed.kind not in _GRAVE:
        return done
    return attrs.evolve(done, failed=attrs.evolve(failed, kind=FailureKind.LINK_LOST))
