"""The head's brain: it gathers the ranks, plans, starts epochs, schedules steps, and recovers.

Events come in (a link came up, a message, the engine's answer, a request); effects go out. It knows
ranks and messages. The node handles links and bytes; text and sampling arithmetic are outside of
this process's core.

`Head` has four parts and passes each event to those that it concerns. The scheduler has the
requests, and outlives epochs. `Epochs` gathers the ranks and starts epochs. `RankEngine` is this
rank's engine. `Steps` exists while an epoch serves. No part knows `Head`.

`Steps` are those of one epoch: planned, sent, answered or lost. Every token passes through them.
They join the scheduler, which says what the next step is, with a machine that says where a step
goes and when it is over: a `HeadPipeline`, or a `TensorLeader`. After a step has failed, `over` is
true; then all steps are settled, and the epoch must end. What outlives the epoch is in a
`Timekeeper`: what the times of steps have taught. In a checked epoch `CheckedSteps` knows which
fingerprints are due.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Grouped,
    Loaded,
    LocalMessage,
    Logprobs,
    RowOver,
    RowReady,
    Scores,
)
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    NO_LOGPROBS,
    CannotServe,
    Checked,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    KeptCache,
    Message,
    Prefill,
    Prepared,
    Ready,
    Row,
    Spent,
    Step,
    StepDone,
    Waiting,
    Work,
)
from sealring_protocol.control.deadlines import ROUND, AnswerDeadline, earliest, is_due
from sealring_protocol.control.effects import (
    Effect,
    EpochExplained,
    Level,
    Note,
    Send,
    Shut,
    Standing,
    StepChecked,
    StepTiming,
    StepToCheck,
    ToEngine,
)
from sealring_protocol.control.epoch import pipeline
from sealring_protocol.control.epoch.engine import RankEngine, renewed_keys
from sealring_protocol.control.epoch.tensor import StepDeadline, StepDeadlineRule, TensorLeader
from sealring_protocol.control.head.epochs import EffectsAndLoss, Epochs
from sealring_protocol.control.head.trial import TrialState
from sealring_protocol.control.membership import hello
from sealring_protocol.control.plan import HeadConfig, scheduler_config
from sealring_protocol.control.requests import Request, RequestDone, TokenIds
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.control.scheduler.times import PipelineToken
from sealring_protocol.errors import (
    CloseCode,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.limits import MAX_STEPS_WAITING, PRESENTATIONS_PER_SECOND
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.roles import Purpose
from sealring_protocol.words import named

__all__ = ["Head", "HeadConfig"]

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


class Head:
    """Rank 0. Methods return the effects to carry out, in order. It takes steps only while it
    *leads*, which is asked with the time."""

    def __init__(
        self, config: HeadConfig, now: float = 0.0, leads: Callable[[float], bool] = lambda _: True
    ) -> None:
        self._leads = leads
        self._world = len(config.names)
        self._config = config.scheduler
        self._build = config.build
        self._ranks = config.ranks
        self._first_uid = config.first_uid
        self._engine = RankEngine(0, tuple(range(self._world)), config.ranks)
        self.epochs = Epochs(config, self._engine, now)
        """Who is present, in which epoch, and by which plan."""
        self._times = Timekeeper(config.scheduler.groups, config.patience)
        self._steps: Steps | None = None
        self.serving = False
        """True if the ring can take steps. To be read only."""
        self._presentations = [TokenBucket(PRESENTATIONS_PER_SECOND, 0.0) for _ in config.names]
        self._wrong: set[int] = set()  # ranks whose link ends because of what they sent
        self.scheduler: Scheduler | None = None
        """The requests; None until the engine has described its model."""

    # --------------------------------------------------------- looking in, life

    def standing(self) -> Standing:
        """The status of the ring: its phase, and what it waits for."""
        standing = self.epochs.standing(0 if self.scheduler is None else self.scheduler.live)
        checked = self._steps is not None and self._steps.is_checked
        if (scheduler := self.scheduler) is None:
            return attrs.evolve(standing, checked=checked)
        return attrs.evolve(
            standing,
            checked=checked,
            slow_links=scheduler.slow_links,
            guess_seconds=scheduler.guess_seconds,
        )

    @property
    def parallel(self) -> bool:
        """True if the ring runs in tensor parallelism."""
        return self._steps is not None and self._steps.parallel

    @property
    def replacing(self) -> bool:
        """The engine process is being replaced."""
        return self._engine.joining.replacing

    def explain(self, why: Waiting, now: float) -> list[Effect]:
        """Report *why* there is no epoch to the ranks that do not know it yet."""
        return self.epochs.explain(why, now)

    def readdress(self, hosts: tuple[str, ...]) -> None:
        """The ranks are at *hosts* from now on; the next collective uses these addresses."""
        self.epochs.hosts = hosts

    def inherit(self, scheduler: Scheduler | None) -> None:
        """Take over *scheduler* and its requests from the previous head, which has retired."""
        self.scheduler = scheduler
        if scheduler is not None:
            scheduler.forget_ranks()

    def retire(self) -> list[Effect]:
        """Stop: another brain takes over. Every step ends, and the engine leaves its collective."""
        self._discard_steps()
        return self._engine.end()

    def starved(self, rank: int, seconds: float, now: float) -> None:
        """The engine of *rank* starved for *seconds* more: extend the deadlines that depend on
        it."""
        if rank == 0 or self.parallel:  # the engines of a collective wait for the slowest
            self._engine.deadline.starved(seconds, now)
        if self._steps is not None:
            self._steps.starved(rank, seconds, now)
        self.epochs.starved(seconds, now)

    # ------------------------------------------------------------- requests

    def submit(self, request: Request, now: float) -> tuple[int, list[Effect]]:
        """Queue *request*. Returns its uid and the effects. Raises `LocalProtocolError` if it can
        never be served, the queue is full, or the engine has not described its model yet."""
        if self.scheduler is None:
            raise LocalProtocolError("the head has not read its model yet; try again in a moment")
        info = self._engine.info
        guesses = TokenIds(request.guesses or ())
        for ids in (request.prompt, request.drawn, request.prediction, guesses):
            for token in ids.bounds:
                if info is not None and not 0 <= token < info.vocabulary:
                    text = f"token {token} is beyond the vocabulary of {info.vocabulary}"
                    raise LocalProtocolError(text)
        uid = self.scheduler.submit(request)
        if self.epochs.trial.state is TrialState.TRYING:  # it can wait, and the request need not
            return uid, self._end_epoch(now)
        return uid, self.plan_steps(now)

    def cancel(self, uid: int, now: float) -> list[Effect]:
        """Cancel request *uid*; the next step frees its caches."""
        if self.scheduler is None:
            return []
        return [*self.scheduler.cancel(uid), *self.plan_steps(now)]

    def finish(self, uid: int, now: float) -> list[Effect]:
        """End request *uid* as complete."""
        if self.scheduler is None:
            return []
        return [*self.scheduler.finish(uid), *self.plan_steps(now)]

    def guess(self, uid: int, position: int, tokens: Sequence[int], now: float) -> list[Effect]:
        """From *position* on request *uid* is likely to go on with *tokens*."""
        info = self._engine.info
        if self.scheduler and info is not None and max(tokens, default=0) < info.vocabulary:
            self.scheduler.guess(uid, position, tokens)
        return self.plan_steps(now)

    def check(self, on: bool, now: float) -> list[Effect]:
        """Begin a checked epoch, or end it. Requests go on, and are prefilled again."""
        if self.epochs.checked == on:
            return []
        self.epochs.checked = on
        if not self.epochs.membership.began:
            return []
        self.epochs.progressed()  # nothing has failed: the next epoch need not wait
        return self._end_epoch(now)

    @property
    def may_plan(self) -> bool:
        """A further step may fit. The caller then calls `plan_steps`, after it has carried out the
        effects so far."""
        return self._steps is not None and self._steps.may_plan

    def plan_steps(self, now: float) -> list[Effect]:
        """Plan and begin steps while there is work and credit for it."""
        return [] if self._steps is None else self._steps.plan(now)

    def end_requests(self, reason: str, now: float) -> list[Effect]:
        """End every request: the ring cannot serve, for *reason*, until somebody changes that."""
        if self.scheduler is None:
            return []
        return [*self.scheduler.refuse(reason), *self.plan_steps(now)]

    # --------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage, now: float) -> list[Effect]:
        """Handle *message* from the head's engine. Raises `RemoteProtocolError` if it may not send
        it."""
        match message:
            case EngineInfo():
                return self._engine_info(message, now)
            case Ready() | Loaded() | Grouped():
                return self._begun(self.epochs.engine_message(message, now), now)
            case Logprobs() | Scores() | RowOver():
                if self._steps is not None:
                    self._steps.engine_sent(message)
                return []
            case RowReady() if message.epoch == self.epochs.membership.epoch:
                return [] if self._steps is None else self._steps.row_ready(message, now)
            case Checked() if message.epoch == self.epochs.membership.epoch:
                return [] if self._steps is None else self._steps.fingerprints(0, message)
            case CannotServe():
                self._engine.deadline.answered(now)
                self._engine.loaded = None
                current = message.epoch == self.epochs.membership.epoch
                return self._rank_not_ready(0, message.of(0), now) if current else []
            case Step() | StepDone():
                self._engine.deadline.answered(now)
                if message.epoch != self.epochs.membership.epoch:
                    return []
                effects: list[Effect] = []
                if self._steps is not None:
                    effects = self._went_on(self._steps.engine_answered(message, now), now)
                if message.failed is not None:
                    effects = [*renewed_keys(self._world - 1, message.failed), *effects]
                return effects
            case _:
                return []

    def _engine_info(self, info: EngineInfo, now: float) -> list[Effect]:
        if not (info.hidden and info.vocabulary and info.context and info.layers):
            raise RemoteProtocolError("the engine's model has a size of 0")
        if self._engine.up(info):
            return self.epochs.engine_replaced(now)
        config = scheduler_config(self._config, info, self._ranks)
        if self.scheduler is None:
            self.scheduler = Scheduler(config, info.context, self._first_uid)
        elif self.scheduler.config != config:
            self.scheduler.resize(config)
        shuts = self.epochs.shut_other_models(info)
        own = hello(info, self._build)
        return [*shuts, *self._or_lost(self.epochs.hello_came(0, own, now), now)]

    def engine_lost(
        self, reason: str, now: float, kind: FailureKind = FailureKind.ENGINE_LOST
    ) -> list[Effect]:
        """The head's engine is gone."""
        return self._or_lost(self.epochs.engine_lost(reason, now, kind), now)

    def collective_prepared(self, epoch: Epoch, port: int, relay: int, now: float) -> list[Effect]:
        """The successful answer to `PrepareCollective`."""
        return self.epochs.collective_prepared(epoch, port, relay, now)

    def collective_failed(self, epoch: Epoch, reason: str, now: float) -> list[Effect]:
        """The failed answer to `PrepareCollective`."""
        if not self._engine.joining.is_of_now(epoch):
            return []
        return self._rank_not_ready(0, Failure(0, FailureKind.GROUP, reason), now)

    # ---------------------------------------------------------------- links

    def link_up(self, rank: int, purpose: Purpose, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is established."""
        return self._begun(self.epochs.link_up(rank, purpose, now), now)

    def link_down(self, rank: int, purpose: Purpose, reason: str, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is gone."""
        cause = FailureKind.INTEGRITY if rank in self._wrong else FailureKind.LINK_LOST
        self._wrong.discard(rank)
        return self._or_lost(self.epochs.link_down(rank, purpose, cause, reason, now), now)

    def message(self, rank: int, purpose: Purpose, message: Message, now: float) -> list[Effect]:
        """*rank* sent *message*. Raises `RemoteProtocolError` if it may not send it."""
        try:
            return self._message(rank, purpose, message, now)
        except RemoteProtocolError:
            self._wrong.add(rank)
            raise

    def _message(self, rank: int, purpose: Purpose, message: Message, now: float) -> list[Effect]:
        match message:
            case Hello():
                self._count_presentation(rank, now)
                return self._or_lost(self.epochs.hello_came(rank, message, now), now)
            case Prepared():
                return self.epochs.prepared(rank, message, now)
            case Ready():
                return self._begun(self.epochs.ready(rank, message, now), now)
            case CannotServe():
                return self._cannot(rank, message, now)
            case Checked():
                return self._fingerprints(rank, message)
            case StepDone():
                return self._step_done(rank, purpose, message, now)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is not for the head")

    def _count_presentation(self, rank: int, now: float) -> None:
        if not self._presentations[rank].take(now):
            raise LimitExceeded("it presents itself too often")

    def _cannot(self, rank: int, message: CannotServe, now: float) -> list[Effect]:
        """A rank cannot start, or go on with, an epoch."""
        failed = message.of(rank)
        if message.epoch == NO_EPOCH:
            self._count_presentation(rank, now)
            return self.epochs.unreadable(rank, failed)
        if self.epochs.is_over(message.epoch):
            return self._explained(message.epoch, failed, now)
        if self._steps is None:
            return self._rank_not_ready(rank, failed, now)
        if message.n:
            return self._went_on(self._steps.rank_failed(message.n, failed, now), now)
        return self._lost(failed, now)

    def _step_done(
        self, rank: int, purpose: Purpose, message: StepDone, now: float
    ) -> list[Effect]:
        """A rank answered a step: on its control link in tensor parallelism."""
        if self._steps is not None and message.epoch == self.epochs.membership.epoch:
            return self._went_on(self._steps.rank_answered(rank, purpose, message, now), now)
        failed, on_control = message.failed, purpose is Purpose.CONTROL
        if self.epochs.is_over(message.epoch):
            if failed is None or not on_control:
                return []
            return self._explained(message.epoch, attrs.evolve(failed, rank=rank), now)
        if on_control:
            raise RemoteProtocolError("an answer to a step on a control link")
        return []

    def _fingerprints(self, rank: int, message: Checked) -> list[Effect]:
        if self.epochs.is_over(message.epoch):
            return []
        if self._steps is None:
            raise RemoteProtocolError("fingerprints before there is a step")
        return self._steps.fingerprints(rank, message)

    def _explained(self, epoch: Epoch, failed: Failure, now: float) -> list[Effect]:
        """A rank explains why it closed its link and so ended *epoch*, which is over already."""
        if self.scheduler is None:
            return []
        known = self.scheduler.learnt
        effects: list[Effect] = [EpochExplained(failed)]
        effects += self.scheduler.explained(epoch, failed)
        return [*effects, *memory_notes(known, self.scheduler), *self.plan_steps(now)]

    # ------------------------------------------------- between epochs and steps

    def _begun(self, effects: list[Effect], now: float) -> list[Effect]:
        """Append to *effects* of the epochs the first steps, if every rank is ready now."""
        if self.scheduler is None or self._steps is not None or not self.epochs.serving:
            return effects
        self._steps = Steps(
            self.epochs.membership.epoch,
            self.epochs.ranks,
            self.scheduler,
            self._times,
            self._engine.deadline,
            self._leads,
            parallel=self.epochs.tensor,
            checked=self.epochs.checked,
            kept=self.epochs.kept,
        )
        self.serving = True
        return effects + self._steps.plan(now)

    def _went_on(self, effects: list[Effect], now: float) -> list[Effect]:
        """Append to *effects* of the steps the end of the epoch, if one of them failed."""
        over = self._steps is not None and self._steps.over
        return effects + self._end_epoch(now) if over else effects

    def _or_lost(self, outcome: EffectsAndLoss, now: float) -> list[Effect]:
        """The effects of a part, and the end of the epoch if it cannot go on."""
        effects, failed = outcome
        return effects if failed is None else effects + self._lost(failed, now)

    def _lost(self, failed: Failure, now: float) -> list[Effect]:
        """The epoch cannot go on: settle the steps under way, then try the next epoch."""
        effects = [] if self._steps is None else self._steps.lost(failed)
        self.epochs.fails(failed)
        return effects + self._end_epoch(now)

    def _rank_not_ready(self, rank: int, failed: Failure, now: float) -> list[Effect]:
        """*rank* did not get ready."""
        self._discard_steps()
        return self.epochs.rank_not_ready(rank, failed, now)

    def _end_epoch(self, now: float) -> list[Effect]:
        self._discard_steps()
        return self.epochs.end(now)

    def _discard_steps(self) -> None:
        """Forget every step under way."""
        if self._steps is not None:
            self._steps.end()
            if self._steps.progressed:
                self.epochs.progressed()
            self.epochs.kept = self._steps.kept
            self._steps, self.serving = None, False

    # ---------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None: not at all."""
        part = self.epochs if self._steps is None else self._steps
        return earliest(self._engine.deadline.deadline, part.deadline, self._trial_due)

    @property
    def _trial_due(self) -> float | None:
        """When to see whether to try tensor parallelism; None while there is a request."""
        idle = self._steps is not None and self.scheduler is not None and not self.scheduler.live
        return self.epochs.trial_due(self._times.token) if idle else None

    @property
    def idle_from(self) -> float:
        """When the ring, which is idle, may change to be faster, in monotonic seconds. Infinity
        while there is a request, while tensor parallelism is to be tried, and once it is taken."""
        scheduler = self.scheduler
        busy = scheduler is None or scheduler.live or self._trial_due is not None
        return math.inf if busy else self.epochs.idle_from(self._times.token)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Act on the first deadline that has passed."""
        if is_due(self._engine.deadline.deadline, now):
            return self._engine.replace()
        if self._steps is None:
            return self.epochs.handle_timeout(now)
        if is_due(self._trial_due, now):
            effects = self.epochs.try_tensor(self._times.token)
            begins = self.epochs.trial.state is TrialState.TRYING
            return effects + self._end_epoch(now) if begins else effects
        return self._went_on(self._or_lost(self._steps.handle_timeout(now), now), now)
