"""The head's brain: it gathers the ranks, plans, starts epochs, schedules steps, and recovers.

Events come in (a link came up, a message, the engine's answer, a request); effects go out. It knows
ranks and messages. The node handles links and bytes; text and sampling arithmetic are outside of
this process's core.

`Head` has four parts and passes each event to those that it concerns. The scheduler has the
requests, and outlives epochs. `Epochs` gathers the ranks and starts epochs. `RankEngine` is this
rank's engine. `Steps` exists while an epoch serves. No part knows `Head`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
    CannotServe,
    Checked,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Message,
    Prepared,
    Ready,
    Step,
    StepDone,
    Waiting,
)
from sealring_protocol.control.deadlines import earliest, is_due
from sealring_protocol.control.effects import Effect, EpochExplained, Standing
from sealring_protocol.control.epoch.engine import RankEngine, renewed_keys
from sealring_protocol.control.head.epochs import EffectsAndLoss, Epochs
from sealring_protocol.control.head.steps import Steps, Timekeeper, memory_notes
from sealring_protocol.control.head.trial import TrialState
from sealring_protocol.control.membership import hello
from sealring_protocol.control.plan import HeadConfig, scheduler_config
from sealring_protocol.control.requests import Request, TokenIds
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import PRESENTATIONS_PER_SECOND
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.roles import Purpose

__all__ = ["Head", "HeadConfig"]


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
