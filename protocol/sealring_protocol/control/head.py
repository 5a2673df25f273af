"""The head's brain: gathers the ranks, plans, raises epochs, schedules steps, recovers.

Events in (a link came up, a message, the engine said something, a request), effects out. It
knows ranks and messages; links and bytes are the node's, text and sampling arithmetic are not
in this process's core at all.
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo, LocalMessage, Logprobs
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Decode,
    Failure,
    FailureKind,
    Message,
    Ready,
    Step,
    StepDone,
    Work,
)
from sealring_protocol.control import pipeline
from sealring_protocol.control.effects import (
    Effect,
    Level,
    Note,
    RestartEngine,
    Send,
    Shut,
    StepTiming,
    ToEngine,
    Want,
)
from sealring_protocol.control.membership import Membership, MembershipState, hello
from sealring_protocol.control.pace import Pace
from sealring_protocol.control.plan import Plan, Strategy, bootstraps, make_plan
from sealring_protocol.control.recovery import LONGEST_PAUSE, Recovery
from sealring_protocol.control.requests import Request
from sealring_protocol.control.rows import SchedulerConfig
from sealring_protocol.control.scheduler import Scheduler
from sealring_protocol.control.watch import ENGINE, ROUND, Watch
from sealring_protocol.errors import (
    CloseCode,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.limits import MAX_SEALED_BODY, MAX_WORLD
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.roles import Purpose

PRESENTATIONS_PER_SECOND: Final = 2 * MAX_WORLD
"""READYs without an epoch that all ranks together may send (a token bucket)."""

_STEP_ROOM: Final = 64 * 1024
"""What a frame keeps for the rest of a step beside the hidden states of a prefill chunk."""


@attrs.frozen
class HeadConfig:
    """*names* of the ranks, rank order; *layers* per rank if someone chose them."""

    instance: int
    names: tuple[str, ...]
    strategy: Strategy = Strategy.AUTO
    layers: tuple[int, ...] = ()
    inner_seal: bool = True
    scheduler: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    bootstrap_seconds: float = 600.0
    first_uid: int = 1


class Head:
    """Rank 0. Every method returns the effects to carry out, in order."""

    def __init__(self, config: HeadConfig) -> None:
        self._config = config
        self._world = len(config.names)
        self.membership = Membership(config.instance, self._world)
        self.scheduler: Scheduler | None = None
        self.plan: Plan | None = None
        self._info: EngineInfo | None = None
        self._engine_ready: Ready | None = None
        self._loaded: range | None = None  # what the engine has, or is loading
        self._recovery = Recovery()
        self._pipeline: pipeline.HeadPipeline | None = None
        self._watch = Watch(ENGINE)
        self._rounds = Watch(ROUND)
        self._presentations = TokenBucket(PRESENTATIONS_PER_SECOND, 0.0)
        self._next_up = self._world == 1  # the step link to rank 1
        self._bootstrap_ends: float | None = None
        self._flights: dict[int, tuple[float, Work, tuple[int, ...]]] = {}  # when sent, what, whose
        chosen = config.scheduler.groups or self._world == 1
        self._pace = None if chosen else Pace(self._world)
        self._logprobs: dict[tuple[int, int], Logprobs] = {}  # of (step, uid), for its answer

    # ------------------------------------------------------------- requests

    def submit(self, request: Request, now: float) -> tuple[int, list[Effect]]:
        """Queue *request*. Raises `LocalProtocolError` if it can never be done."""
        if self.scheduler is None:
            raise LocalProtocolError("the head has not read its model yet; try again in a moment")
        uid = self.scheduler.submit(request)
        return uid, self._pump(now)

    def cancel(self, uid: int, now: float) -> list[Effect]:
        """End request *uid*; its caches are freed by the next step."""
        if self.scheduler is None:
            return []
        return [*self.scheduler.cancel(uid), *self._pump(now)]

    def finish(self, uid: int, now: float) -> list[Effect]:
        """End request *uid* as complete."""
        if self.scheduler is None:
            return []
        return [*self.scheduler.finish(uid), *self._pump(now)]

    # --------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage, now: float) -> list[Effect]:
        """The own engine said *message*."""
        match message:
            case EngineInfo():
                return self._engine_info(message, now)
            case Ready():
                if message.epoch != self.membership.epoch:
                    return []
                self._watch.answered(now)
                self._engine_ready = message
                return self._self_ready(now)
            case Logprobs():
                self._logprobs[message.n, message.uid] = message
                return []
            case Step() | StepDone():
                self._watch.answered(now)
                if message.epoch != self.membership.epoch:
                    return []
                if message.n == 0 and isinstance(message, StepDone) and message.failed:
                    return self._refused(0, message.failed, now)
                if self._pipeline is None:
                    return []
                message = self._checked(message)
                effects = self._act(self._pipeline.output(message), now)
                if message.failed is not None:
                    effects = [*self._renew_keys(message.failed), *effects]
                return effects
            case _:
                return []

    def _checked(self, message: Step | StepDone) -> Step | StepDone:
        """*message* of the own engine, or the failure that it is if it has not its tokens."""
        if self.scheduler is None or not isinstance(message, StepDone) or message.failed:
            return message
        expected = self.scheduler.expects(message.n)
        if len(message.ids) == expected:
            return message
        text = f"the engine answered step {message.n} with {len(message.ids)} of {expected} tokens"
        return StepDone(message.epoch, message.n, failed=Failure(0, FailureKind.ENGINE_ERROR, text))

    def _engine_info(self, info: EngineInfo, now: float) -> list[Effect]:
        self._info = info
        if self.scheduler is None:
            asked = self._config.scheduler
            largest = (MAX_SEALED_BODY - _STEP_ROOM) // (info.hidden * info.dtype.width)
            alone = self._world == 1
            config = attrs.evolve(
                asked,
                groups=asked.groups or (1 if alone else 2 * self._world),
                window=2 if alone else 1,
                chunk=max(1, min(asked.chunk, largest)),
            )
            self.scheduler = Scheduler(config, info.context, self._config.first_uid)
            self.scheduler.tune(asked.groups or self._world)
        present = self.membership.present
        others = [rank for rank, ready in present.items() if ready.model != info.model]
        for rank in others:
            self.membership.lost(rank)
        return [*map(self._mismatch, others), *self._present(0, hello(info), now)]

    def engine_lost(self, reason: str, now: float) -> list[Effect]:
        """The own engine is gone."""
        self._engine_ready = None
        self._loaded = None
        self._watch.clear()
        self._next_up = self._world == 1
        lost = Failure(0, FailureKind.ENGINE_LOST, reason)
        effects: list[Effect] = [Note(Level.WARNING, f"this rank's engine is gone: {reason}")]
        if self.membership.lost(0):
            effects += self._broken(lost, now)
        return effects

    # ---------------------------------------------------------------- links

    def link_up(self, rank: int, purpose: Purpose, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is established."""
        if purpose is Purpose.STEP and rank == 1:
            self._next_up = True
            return self._self_ready(now)
        return []

    def link_down(self, rank: int, purpose: Purpose, reason: str, now: float) -> list[Effect]:
        """It is gone."""
        name = self._config.names[rank]
        if purpose is Purpose.CONTROL:
            note = Note(Level.WARNING, f"rank {rank} ({name}) is gone: {reason}")
            running = self.membership.lost(rank)
        else:
            if rank == 1:
                self._next_up = False
            note = Note(Level.WARNING, f"the step link with rank {rank} ({name}) broke: {reason}")
            running = self.membership.state is not MembershipState.GATHERING
        if not running:
            return [note]
        return [note, *self._broken(Failure(rank, FailureKind.LINK_LOST, reason), now)]

    def message(self, rank: int, purpose: Purpose, message: Message, now: float) -> list[Effect]:
        """*rank* sent *message*. Raises `RemoteProtocolError` if it may not be."""
        match message:
            case Ready(epoch=epoch) if epoch == NO_EPOCH:
                if not self._presentations.take(now):
                    raise LimitExceeded("ranks present themselves too often")
                if self._info is not None and message.model != self._info.model:
                    return [self._mismatch(rank)]
                return self._present(rank, message, now)
            case Ready():
                return self._ready(rank, message, now)
            case StepDone() if purpose is Purpose.CONTROL:
                return self._told(rank, message, now)
            case StepDone():
                return self._step_done(message, now)
            case _:
                raise RemoteProtocolError(f"rank {rank} sent {type(message).__name__} to the head")

    def _mismatch(self, rank: int) -> Effect:
        return Shut(
            rank,
            Purpose.CONTROL,
            CloseCode.MODEL_MISMATCH,
            f"rank {rank} ({self._config.names[rank]}) holds another model than the head",
        )

    def _told(self, rank: int, message: StepDone, now: float) -> list[Effect]:
        """A rank says on its control link that it cannot serve an epoch (any more)."""
        if message.failed is None:
            raise RemoteProtocolError("an answer to a step on a control link")
        if not self.membership.is_current(message.epoch):
            return []
        if self._pipeline is not None:
            failed = attrs.evolve(message.failed, rank=rank)
            if message.n:
                return self._act(self._pipeline.failure(message.n, failed), now)
            return self._broken(failed, now)
        return self._refused(rank, message.failed, now)

    def _step_done(self, message: StepDone, now: float) -> list[Effect]:
        if not self.membership.is_current(message.epoch) or self._pipeline is None:
            return []
        if message.failed is not None and not 0 < message.failed.rank < self._world:
            raise RemoteProtocolError("a failure of a rank that is not on the chain")
        self._rounds.answered(now)
        return self._act(self._pipeline.done(message), now)

    # --------------------------------------------------------------- epochs

    def _present(self, rank: int, ready: Ready, now: float) -> list[Effect]:
        running = self.membership.presented(rank, ready)
        effects: list[Effect] = [
            Note(Level.INFO, f"rank {rank} ({self._config.names[rank]}) is here")
        ]
        if running:
            restarted = Failure(rank, FailureKind.ENGINE_LOST, "it started anew")
            return effects + self._broken(restarted, now)
        return effects + self._try_start(now)

    def _try_start(self, now: float) -> list[Effect]:
        if self.membership.state is not MembershipState.GATHERING or self._info is None:
            return []
        missing = self.membership.missing
        if missing:
            names = ", ".join(f"rank {rank} ({self._config.names[rank]})" for rank in missing)
            return [Note(Level.INFO, f"waiting for {names}")]
        if not self._recovery.may_start(now):
            return []
        rooms = [self.membership.present[rank].room for rank in range(self._world)]
        try:
            plan = make_plan(self._config.strategy, self._info, rooms, self._config.layers)
        except LocalProtocolError as error:
            self._recovery.wait(now, LONGEST_PAUSE)
            return [Note(Level.ERROR, f"no plan: {error}")]
        self.plan = plan
        epoch = self.membership.start()
        self._engine_ready = None
        self._bootstrap_ends = now + self._config.bootstrap_seconds
        orders = bootstraps(
            plan,
            epoch,
            self._info.model,
            inner_seal=self._config.inner_seal,
            deadline_ms=int(self._config.bootstrap_seconds * 1000),
        )
        layers = plan.split.layers(0)
        known = self._loaded == layers
        self._watch.order(now, None if known else self._config.bootstrap_seconds)
        self._loaded = layers
        effects: list[Effect] = [
            Note(Level.INFO, f"epoch {epoch.counter}: {plan.reason}; layers {plan.split.bounds}"),
            ToEngine(orders[0]),
        ]
        effects += [Send(order.rank, Purpose.CONTROL, order) for order in orders[1:]]
        if self._world > 1:
            effects.append(Want(1, Purpose.STEP))
        return effects

    def _self_ready(self, now: float) -> list[Effect]:
        if self._engine_ready is None or not self._next_up:
            return []
        if self.membership.state is not MembershipState.STARTING or 0 in self.membership.ready:
            return []
        return self._ready(0, self._engine_ready, now)

    def _ready(self, rank: int, ready: Ready, now: float) -> list[Effect]:
        assert self.plan is not None or self.membership.epoch.counter == 0  # noqa: S101
        layers = self.plan.split.layers(rank) if self.plan else range(0)
        if not self.membership.answered(rank, ready, layers):
            return []
        self._bootstrap_ends = None
        self._recovery.serving(now)
        epoch = self.membership.epoch
        self._pipeline = pipeline.HeadPipeline(epoch, self._world)
        if self.scheduler is not None:
            ready_ranks = [self.membership.ready[rank] for rank in range(self._world)]
            self.scheduler.begin(epoch, ready_ranks)
        return [Note(Level.INFO, f"the ring is ready: epoch {epoch.counter}"), *self._pump(now)]

    def _refused(self, rank: int, failed: Failure, now: float) -> list[Effect]:
        """A rank did not get ready. Loading is tried again after a longer pause."""
        self._abandon(now)
        name = self._config.names[rank]
        note = Note(Level.ERROR, f"rank {rank} ({name}) cannot serve: {failed.message}")
        if failed.kind is FailureKind.LOAD:
            self._recovery.wait(now, LONGEST_PAUSE)
        return [note, *self._try_start(now)]

    def _broken(self, failed: Failure, now: float) -> list[Effect]:
        """The epoch cannot go on: answer what is under way, then try for the next one."""
        effects: list[Effect] = []
        if self._pipeline is not None:
            actions = self._pipeline.lost(failed)
            effects += self._settle(actions)
        self._abandon(now)
        return effects + self._try_start(now)

    def _renew_keys(self, failed: Failure) -> list[Effect]:
        """The engine could not open a tensor: only a new link brings it a new key."""
        if failed.kind is not FailureKind.INTEGRITY:
            return []
        reason = "a tensor did not open"
        return [Shut(self._world - 1, Purpose.STEP, CloseCode.AUTHENTICATION_FAILED, reason)]

    def _abandon(self, now: float) -> None:
        """The epoch, or the start of one, is over."""
        self.membership.interrupt()
        self._recovery.ended(now)
        self._bootstrap_ends = None
        self._pipeline = None
        self._flights.clear()
        self._logprobs.clear()
        self._rounds.clear()
        if self.scheduler is not None:
            self.scheduler.abandon()

    # ---------------------------------------------------------------- steps

    def _pump(self, now: float) -> list[Effect]:
        """Plan and begin steps while there is work and credit."""
        effects: list[Effect] = []
        while self._pipeline is not None and self.scheduler is not None:
            planned = self.scheduler.plan(now)
            effects += self.scheduler.ended()
            if planned is None:
                break
            effects += [ToEngine(row) for row in planned.rows]
            n, work = planned.step.n, planned.step.work
            self._flights[n] = (now, work, self.scheduler.uids(n))
            effects += planned.opened
            effects += self._act(self._pipeline.begin(planned.step), now)
        return effects

    def _act(self, actions: list[pipeline.Action], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for action in actions:
            match action:
                case pipeline.ToEngine(message):
                    self._watch.owe(now)
                    effects.append(ToEngine(message))
                case pipeline.ToNext(message):
                    self._rounds.owe(now)
                    effects.append(Send(1, Purpose.STEP, message))
                case pipeline.Answered(failed=None):
                    effects += self._answered(action, now)
                case pipeline.Answered():
                    return effects + self._step_failed(actions, now)
        return effects

    def _answered(self, action: pipeline.Answered, now: float) -> list[Effect]:
        assert self.scheduler is not None  # noqa: S101  a step was planned
        self._recovery.progressed()
        effects = self._timing(action, now)
        effects += self.scheduler.answered(action.n, action.ids, now, self._told_of(action.n))
        return effects + self._pump(now)

    def _timing(self, action: pipeline.Answered, now: float) -> list[Effect]:
        sent, work, uids = self._flights.pop(action.n)
        total = int((now - sent) * 1e6)
        spent, closing = action.spent[: self._world], action.spent[self._world :]
        timing = StepTiming(action.n, work, uids, total, spent, *closing[:1])
        if self._pace is not None and isinstance(work, Decode) and self.scheduler is not None:
            groups = self._pace.groups(timing)
            if groups is not None:
                self.scheduler.tune(groups)
        return [timing]

    def _told_of(self, n: int) -> dict[int, Logprobs]:
        """The log probabilities that came with the answer to step *n*, by row."""
        if not self._logprobs:
            return {}
        return {uid: self._logprobs.pop((n, uid)) for m, uid in list(self._logprobs) if m == n}

    def _step_failed(self, actions: list[pipeline.Action], now: float) -> list[Effect]:
        effects = self._settle(actions)
        self._abandon(now)
        return effects + self._try_start(now)

    def _settle(self, actions: list[pipeline.Action]) -> list[Effect]:
        """Every step under way is over; the first of *actions* is the one at fault."""
        failures = [a for a in actions if isinstance(a, pipeline.Answered) and a.failed]
        if not failures or self.scheduler is None:
            return []
        first = failures[0]
        assert first.failed is not None  # noqa: S101  filtered above
        note = Note(
            Level.WARNING,
            f"step {first.n} failed on rank {first.failed.rank} "
            f"({first.failed.kind.name.lower()}): {first.failed.message}",
        )
        return [note, *self.scheduler.failed(first.n, first.failed)]

    # ---------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called."""
        times = (
            self._bootstrap_ends,
            self._recovery.until,
            self._watch.deadline,
            self._rounds.deadline,
        )
        return min((time for time in times if time is not None), default=None)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Time has passed."""
        if _is_due(self._watch.deadline, now):
            self._watch.clear()
            return [RestartEngine("it has not answered within its deadline")]
        if _is_due(self._rounds.deadline, now):
            return self._step_is_lost(now)
        if _is_due(self._bootstrap_ends, now):
            missing = self.membership.missing
            note = Note(Level.WARNING, f"ranks {missing} were not ready in time; trying again")
            self._abandon(now)
            return [note, *self._try_start(now)]
        if _is_due(self._recovery.until, now):
            self._recovery.may_start(now)
            return self._try_start(now)
        return []

    def _step_is_lost(self, now: float) -> list[Effect]:
        """A step has not come back, though every link lives: somebody swallowed it."""
        reason = "a step has not come round the ring within its deadline"
        effects = self._broken(Failure(0, FailureKind.DEADLINE, reason), now)
        ends = sorted({1, self._world - 1})
        shuts = [Shut(rank, Purpose.STEP, CloseCode.TIMEOUT, reason) for rank in ends]
        return [*shuts, *effects]


def _is_due(deadline: float | None, now: float) -> bool:
    return deadline is not None and now >= deadline
