"""The head's brain: it gathers the ranks, plans, starts epochs, schedules steps, and recovers.

Events come in (a link came up, a message, the engine's answer, a request); effects go out. It knows
ranks and messages. The node handles links and bytes; text and sampling arithmetic are outside of
this process's core.
"""

from __future__ import annotations

from typing import Final

import attrs

from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Grouped,
    Loaded,
    LocalMessage,
    Logprobs,
)
from sealring_protocol.codec.messages import (
    CannotServe,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Message,
    Prepared,
    Ready,
    Step,
    StepDone,
)
from sealring_protocol.control.effects import Effect, Level, Note, RestartEngine, Shut
from sealring_protocol.control.epoch.deadlines import earliest
from sealring_protocol.control.epoch.orders import renewed_keys
from sealring_protocol.control.epoch.tensor import TensorLeader
from sealring_protocol.control.head.epochs import HeadConfig, HeadEpochs
from sealring_protocol.control.head.membership import MembershipState, hello
from sealring_protocol.control.head.models import differ
from sealring_protocol.control.scheduler.requests import Request
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.errors import (
    CloseCode,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
)
from sealring_protocol.limits import MAX_SEALED_BODY, PRESENTATIONS_PER_SECOND
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.roles import Purpose

__all__ = ["Head", "HeadConfig"]

_STEP_ROOM: Final = 64 * 1024
"""Bytes of a frame reserved for the rest of a step, beside the hidden states of a prefill chunk."""


_GRAVE: Final = (FailureKind.ENGINE_LOST, FailureKind.MEMORY)
"""Failures that only the failed rank itself may report with effect."""


class Head(HeadEpochs):
    """Rank 0. Every method returns the effects to carry out, in order."""

    def __init__(self, config: HeadConfig, now: float = 0.0) -> None:
        super().__init__(config, now)
        self._presentations = [TokenBucket(PRESENTATIONS_PER_SECOND, 0.0) for _ in config.names]
        self._wrong: set[int] = set()  # ranks whose link ends because of what they sent

    def inherit(self, scheduler: Scheduler | None) -> None:
        """Take over *scheduler* and its requests from the previous head, which has retired."""
        self.scheduler = scheduler
        if scheduler is not None:
            scheduler.forget_ranks()

    def readdress(self, hosts: tuple[str, ...]) -> None:
        """The ranks are at *hosts* from now on; the next collective uses these addresses."""
        self._config = attrs.evolve(self._config, hosts=hosts)

    # ------------------------------------------------------------- requests

    def submit(self, request: Request, now: float) -> tuple[int, list[Effect]]:
        """Queue *request*. Returns its uid and the effects. Raises `LocalProtocolError` if it can
        never be served, the queue is full, or the engine has not described its model yet."""
        if self.scheduler is None:
            raise LocalProtocolError("the head has not read its model yet; try again in a moment")
        uid = self.scheduler.submit(request)
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

    # --------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage, now: float) -> list[Effect]:
        """Handle *message* from the head's engine. Raises `RemoteProtocolError` if it may not send
        it."""
        match message:
            case EngineInfo():
                return self._engine_info(message, now)
            case Ready():
                if message.epoch != self.membership.epoch:
                    return []
                self._answer_deadline.answered(now)
                self._engine_ready = message
                return self._self_ready(now)
            case Loaded():
                self._joining.loaded(now)
                return self._self_prepared(now)
            case Grouped():
                self._joining.grouped(message)
                return []
            case Logprobs():
                # Keep no others: a compromised engine may send any number of them.
                flight = self._flights.get(message.n)
                if flight is not None and message.uid in flight[2]:
                    self._logprobs[message.n, message.uid] = message
                return []
            case CannotServe():
                self._answer_deadline.answered(now)
                current = message.epoch == self.membership.epoch
                return self._refused(0, message.of(0), now) if current else []
            case Step() | StepDone():
                self._answer_deadline.answered(now)
                if message.epoch != self.membership.epoch:
                    return []
                effects = self._engine_answered(message, now)
                if message.failed is not None:
                    effects = [*renewed_keys(self._world - 1, message.failed), *effects]
                return effects
            case _:
                return []

    def _engine_info(self, info: EngineInfo, now: float) -> list[Effect]:
        if not (info.hidden and info.vocabulary and info.context and info.layers):
            raise RemoteProtocolError("the engine's model has a size of 0")
        known, self._info = self._info, info
        if self._joining.engine_up() and known is not None and known.model == info.model:
            return self._start_engine(now) if self._order is not None else self._try_start(now)
        asked = self._config.scheduler
        largest = (MAX_SEALED_BODY - _STEP_ROOM) // (info.hidden * info.dtype.width)
        groups = asked.groups or (1 if self._world == 1 else 2 * self._world)
        config = attrs.evolve(
            asked,
            groups=groups,
            chunk=max(1, min(asked.chunk, largest)),
            hidden_bytes=info.hidden * info.dtype.width,
        )
        if self.scheduler is None:
            self.scheduler = Scheduler(config, info.context, self._config.first_uid)
        elif self.scheduler.config != config:
            self.scheduler.resize(config)
        present = self.membership.present
        others = [rank for rank, hello in present.items() if hello.model != info.model]
        for rank in others:
            self.membership.lost(rank)
        shuts = [self._mismatch(rank, present[rank].model) for rank in others]
        return [*shuts, *self._present(0, hello(info), now)]

    def engine_lost(
        self, reason: str, now: float, kind: FailureKind = FailureKind.ENGINE_LOST
    ) -> list[Effect]:
        """The head's engine is gone."""
        self._engine_ready = None
        self._loaded = None
        self._answer_deadline.clear()
        self._next_up = self._world == 1
        effects = self._joining.engine_lost()
        if self._joining.replacing:
            return effects
        lost = Failure(0, kind, reason)
        text = f"this rank's engine is gone: {reason}"
        effects.append(Note(Level.WARNING, text))
        if self._gives_up_tensor(now):
            effects += self._without_tensor(text)
        if self.membership.lost(0):
            effects += self._lost(lost, now)
        return effects

    def collective_prepared(self, epoch: Epoch, port: int, relay: int, now: float) -> list[Effect]:
        """The successful answer to `PrepareCollective`."""
        self._joining.ports(epoch, port, relay, now)
        return self._self_prepared(now)

    def collective_failed(self, epoch: Epoch, reason: str, now: float) -> list[Effect]:
        """The failed answer to `PrepareCollective`."""
        if not self._joining.is_of_now(epoch):
            return []
        return self._refused(0, Failure(0, FailureKind.GROUP, reason), now)

    # ---------------------------------------------------------------- links

    def link_up(self, rank: int, purpose: Purpose, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is established."""
        if purpose is Purpose.CONTROL:
            self._notices.forget(rank)
        if purpose is Purpose.STEP and rank == 1:
            self._next_up = True
            return self._self_ready(now)
        if purpose is Purpose.TUNNEL:
            self._joining.tunnel(rank, now, up=True)
            return self._self_prepared(now)
        return []

    def link_down(self, rank: int, purpose: Purpose, reason: str, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is gone."""
        name = self._config.names[rank]
        cause = FailureKind.INTEGRITY if rank in self._wrong else FailureKind.LINK_LOST
        self._wrong.discard(rank)
        if purpose is Purpose.CONTROL:
            text = f"rank {rank} ({name}) is gone: {reason}"
            note = Note(Level.WARNING, text)
            gives_up = self._gives_up_tensor(now, FailureKind.LINK_LOST)
            running = self.membership.lost(rank)
            if gives_up:
                return [note, *self._without_tensor(text), *self._end_epoch(now)]
        else:
            needed = not self._tensor
            if purpose is Purpose.TUNNEL:
                self._joining.tunnel(rank, now, up=False)
                needed = self._joining.committed
            elif rank == 1:
                self._next_up = False
            kind = purpose.name.lower()
            note = Note(Level.WARNING, f"the {kind} link with rank {rank} ({name}) broke: {reason}")
            running = needed and self.membership.state is not MembershipState.GATHERING
        if not running:
            return [note]
        if purpose is Purpose.TUNNEL and self._machine is None:
            failed = Failure(0, FailureKind.LINK_LOST, f"a tunnel broke: {reason}")
            return [note, *self._refused(0, failed, now)]
        return [note, *self._lost(Failure(rank, cause, reason), now)]

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
                if not self._presentations[rank].take(now):
                    raise LimitExceeded(f"rank {rank} presents itself too often")
                if self._info is not None and message.model != self._info.model:
                    return [self._mismatch(rank, message.model)]
                return self._present(rank, message, now)
            case Prepared():
                return self._prepared(rank, message, now)
            case Ready():
                return self._ready(rank, message, now)
            case CannotServe():
                return self._cannot(rank, message, now)
            case StepDone() if purpose is Purpose.CONTROL:
                return self._told(rank, message, now)
            case StepDone():
                return self._step_done(rank, message, now)
            case _:
                raise RemoteProtocolError(f"rank {rank} sent {type(message).__name__} to the head")

    def _mismatch(self, rank: int, model: bytes) -> Effect:
        assert self._info is not None  # noqa: S101  callers compared with it
        names, unpinned = self._config.names, self._config.unpinned
        reason = differ(names[0], self._info.model, unpinned, names[rank], model)
        return Shut(rank, Purpose.CONTROL, CloseCode.MODEL_MISMATCH, reason)

    def _cannot(self, rank: int, message: CannotServe, now: float) -> list[Effect]:
        """A rank cannot start, or go on with, an epoch."""
        failed = message.of(rank)
        over = self.membership.state is MembershipState.GATHERING
        if not self.membership.is_current(message.epoch) or over:
            return self._explained(message.epoch, failed, now)
        if self._machine is None:
            return self._refused(rank, failed, now)
        if message.n:
            return self._act(self._machine.failure(message.n, failed), now)
        return self._lost(failed, now)

    def _told(self, rank: int, message: StepDone, now: float) -> list[Effect]:
        """A rank answered a step of tensor parallelism."""
        over = self.membership.state is MembershipState.GATHERING
        if not self.membership.is_current(message.epoch) or over:
            failed = message.failed
            if failed is None:
                return []
            return self._explained(message.epoch, attrs.evolve(failed, rank=rank), now)
        if not isinstance(self._machine, TensorLeader):
            raise RemoteProtocolError("an answer to a step on a control link")
        return self._act(self._machine.done(rank, message), now)

    def _explained(self, epoch: Epoch, failed: Failure, now: float) -> list[Effect]:
        """A rank explains why it closed its link and so ended *epoch*, which is over already."""
        if self.scheduler is None:
            return []
        known = self.scheduler.learnt
        effects: list[Effect] = [*self.scheduler.explained(epoch, failed)]
        return [*effects, *self._learnt_since(known), *self.plan_steps(now)]

    def _step_done(self, rank: int, message: StepDone, now: float) -> list[Effect]:
        if not self.membership.is_current(message.epoch) or self._machine is None:
            return []
        if isinstance(self._machine, TensorLeader):
            raise RemoteProtocolError("an answer to a step of tensor parallelism on a step link")
        if message.failed is not None and not 0 < message.failed.rank < self._world:
            raise RemoteProtocolError("a failure of a rank that is not on the chain")
        message = _by_hearsay(rank, message)
        self._rounds.answered(now)
        return self._act(self._machine.done(rank, message), now)

    # ---------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None: not at all."""
        return earliest(
            self._bootstrap.at,
            self._backoff.until,
            self._answer_deadline.deadline,
            self._rounds.deadline,
            self._step_deadline.deadline,
            self._drain_ends,
            self._joining.deadline,
        )

    def handle_timeout(self, now: float) -> list[Effect]:
        """Act on the first deadline that has passed."""
        if _is_due(self._answer_deadline.deadline, now):
            self._answer_deadline.clear()
            return [
                RestartEngine(
                    f"it has not answered within its deadline{self._answer_deadline.extended}"
                )
            ]
        if _is_due(self._joining.deadline, now):
            return self._refused(0, Failure(0, FailureKind.GROUP, self._joining.give_up()), now)
        if _is_due(self._rounds.deadline, now):
            return self._step_is_lost(now)
        if _is_due(self._drain_ends, now) and isinstance(self._machine, TensorLeader):
            return self._act(self._machine.drained(), now)
        if _is_due(self._step_deadline.deadline, now):
            self._step_deadline.late()
            return self._lost(self._late(), now)
        if _is_due(self._bootstrap.at, now):
            text = f"{self._missing()} did not get ready in time"
            self._fails(Failure(self.membership.missing[0], FailureKind.DEADLINE, text))
            if self._gives_up_tensor(now):
                return [*self._without_tensor(text), *self._end_epoch(now)]
            return [Note(Level.WARNING, f"{text}; trying again"), *self._end_epoch(now)]
        if _is_due(self._backoff.until, now):
            self._backoff.may_start(now)
            return self._try_start(now)
        return []

    def _step_is_lost(self, now: float) -> list[Effect]:
        """A step has not come back although every link is up: a rank swallowed it."""
        reason = "a step has not come round the ring within its deadline" + self._rounds.extended
        effects = self._lost(Failure(0, FailureKind.DEADLINE, reason), now)
        ends = sorted({1, self._world - 1})
        shuts = [Shut(rank, Purpose.STEP, CloseCode.TIMEOUT, reason) for rank in ends]
        return [*shuts, *effects]


def _by_hearsay(rank: int, done: StepDone) -> StepDone:
    """*done* as *rank* may say it. If it claims that another rank died or ran out of memory, the
    step counts as lost for a broken link. Further consequences, such as less room for the accused
    rank, need that rank's own report (`_explained`); otherwise one rank could take room from
    another."""
    failed = done.failed
    if failed is None or failed.rank == rank or failed.kind not in _GRAVE:
        return done
    return attrs.evolve(done, failed=attrs.evolve(failed, kind=FailureKind.LINK_LOST))


def _is_due(deadline: float | None, now: float) -> bool:
    return deadline is not None and now >= deadline
