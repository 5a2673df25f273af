"""The brain of every rank but the head: obeys BOOTSTRAP, works on steps, says when it cannot.

Its epoch is what the head's last BOOTSTRAP said. Steps of an older one are dropped; a newer one
can come by BOOTSTRAP alone. It is ready when its engine has loaded its layers and the link to
the next rank is up.
"""

from __future__ import annotations

import attrs

from sealring_protocol.codec.local_messages import EngineInfo, Grouped, Loaded, LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Backend,
    Bootstrap,
    CannotServe,
    Epoch,
    Failure,
    FailureKind,
    Message,
    Ready,
    Row,
    Step,
    StepDone,
)
from sealring_protocol.codec.waiting import Reason, Waiting
from sealring_protocol.control.effects import (
    Effect,
    Level,
    Note,
    RestartEngine,
    Send,
    Shut,
    ToEngine,
    Want,
)
from sealring_protocol.control.epoch import pipeline
from sealring_protocol.control.epoch.collective import Joining
from sealring_protocol.control.epoch.deadlines import ENGINE, AnswerDeadline
from sealring_protocol.control.epoch.link_wait import LinkWait
from sealring_protocol.control.head.membership import hello
from sealring_protocol.control.standing import Phase, Standing
from sealring_protocol.errors import CloseCode, LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import NO_RANK, ORDERS_PER_SECOND, WAITINGS_PER_SECOND
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.roles import Purpose


@attrs.frozen
class FollowerConfig:
    """This rank's place; *names* of all ranks, rank order. *trusted* collectives may go beside the
    sealed links. The roster says whether there is an *inner_seal*, and whether there may be
    *tensor* parallelism."""

    rank: int
    names: tuple[str, ...]
    inner_seal: bool = True
    trusted: bool = False
    tensor: bool = True


class Follower:
    """A rank after the head. Every method returns the effects to carry out, in order."""

    def __init__(self, config: FollowerConfig, now: float = 0.0) -> None:
        self._config = config
        self._world = len(config.names)
        self._next = (config.rank + 1) % self._world
        self.epoch: Epoch = NO_EPOCH
        self.order: Bootstrap | None = None  # the head's last, while it holds
        self._info: EngineInfo | None = None
        self._engine_ready: Ready | None = None
        self._control_up = False
        self._next_up = False
        self._cut = False  # the next hop broke in this epoch: what it missed cannot be made up
        self._told = False  # the head knows that this rank cannot serve the epoch
        self._pipeline: pipeline.FollowerPipeline | None = None
        self._answer_deadline = AnswerDeadline(ENGINE)
        self._loaded: range | None = None  # what the engine has, or is loading
        self._link = LinkWait(config.names[config.rank], config.names[self._next])
        self._joining = Joining(config.rank, self._world)
        self._phase = Phase.NO_HEAD
        self._since = now  # when that began
        self._failed: Failure | None = None  # why it cannot serve, or could not the last time
        self._orders = TokenBucket(ORDERS_PER_SECOND, 0.0)
        self._idle_since: float | None = None  # when the head first said that there is no epoch
        self._reasons: dict[Reason, float] = {}  # why, and since when
        self._waitings = TokenBucket(WAITINGS_PER_SECOND, 0.0)

    def standing(self) -> Standing:
        """How far this rank is, and what it waits for."""
        waits = {Phase.NO_HEAD: (0,), Phase.GATHERING: (0,), Phase.LINKING: (self._next,)}
        phase, since = self._phase, self._since
        if phase is Phase.SERVING and self._idle_since is not None:
            phase, since = Phase.GATHERING, self._idle_since
        return Standing(phase, since, waits.get(phase, ()), self._failed, told=self._reasons)

    @property
    def serving(self) -> bool:
        """This rank has said that it is ready, and nothing has come between since."""
        return self._phase is Phase.SERVING and self._idle_since is None

    def _enter(self, phase: Phase, now: float) -> None:
        if phase is not self._phase:
            self._phase, self._since = phase, now
        if phase is Phase.SERVING:
            self._failed = None

    @property
    def replacing(self) -> bool:
        """Another engine process is on its way."""
        return self._joining.replacing

    def starved(self, rank: int, seconds: float, now: float) -> None:
        """The engine of *rank* has starved for *seconds* more; in tensor parallelism the head says
        so for all others, for the engines of a collective wait for the slowest."""
        if rank == self._config.rank or (rank == 0 and self._tensor):
            self._answer_deadline.starved(seconds, now)

    def retire(self) -> list[Effect]:
        """Another brain takes over: what the engine is in is over."""
        return self._joining.leave()

    # --------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage, now: float) -> list[Effect]:
        """The own engine said *message*."""
        match message:
            case EngineInfo():
                self._info = message
                self._joining.engine_up()
                return self._start_engine(now) if self.order is not None else self._present()
            case Ready() if message.epoch == self.epoch:
                self._answer_deadline.answered(now)
                self._engine_ready = message
                if not self._tensor and not self._next_up:
                    self._link.begin(now)
                return self._try_ready(now)
            case Loaded():
                self._joining.loaded(now)
                return self._try_prepared()
            case Grouped():
                self._joining.grouped(message)
                return []
            case CannotServe() if message.epoch == self.epoch:
                self._answer_deadline.answered(now)
                self._loaded = None
                return self._tell(0, message.of(self._config.rank), now)
            case Step() | StepDone():
                self._answer_deadline.answered(now)
                if message.epoch != self.epoch or self._pipeline is None:
                    return []
                return self._engine_answered(message, now)
            case _:
                return []

    def _engine_answered(self, message: Step | StepDone, now: float) -> list[Effect]:
        assert self._pipeline is not None  # noqa: S101  the caller looked
        effects = self._act(self._pipeline.output(message), now)
        if message.failed is not None and message.failed.kind is FailureKind.INTEGRITY:
            # Only a new link brings the engine a new key.
            previous = self._config.rank - 1
            shut = Shut(
                previous,
                Purpose.STEP,
                CloseCode.AUTHENTICATION_FAILED,
                "a tensor did not open",
            )
            effects.append(shut)
        return effects

    def engine_lost(
        self, reason: str, now: float, kind: FailureKind = FailureKind.ENGINE_LOST
    ) -> list[Effect]:
        """The own engine is gone; its layers, caches and hop keys went with it."""
        self._info = None
        self._engine_ready = None
        self._loaded = None
        self._link.end()
        self._answer_deadline.clear()
        ended = self._joining.engine_lost()
        if self._joining.replacing:
            return ended
        note = Note(Level.WARNING, f"this rank's engine is gone: {reason}")
        return [*ended, note, *self._fail(kind, reason, now)]

    def collective_prepared(self, epoch: Epoch, port: int, relay: int, now: float) -> list[Effect]:
        """The answer to `PrepareCollective`."""
        self._joining.ports(epoch, port, relay, now)
        return self._try_prepared()

    def collective_failed(self, epoch: Epoch, reason: str, now: float) -> list[Effect]:
        """The other answer to it."""
        if not self._joining.is_of_now(epoch):
            return []
        return self._fail(FailureKind.GROUP, reason, now)

    # ---------------------------------------------------------------- links

    def link_up(self, rank: int, purpose: Purpose, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is established."""
        if purpose is Purpose.CONTROL and rank == 0:
            self._control_up = True
            self._enter(Phase.GATHERING, now)
            return self._present()
        if purpose is Purpose.STEP and rank == self._next:
            self._next_up = True
            self._link.came()
            return self._try_ready(now)
        if purpose is Purpose.TUNNEL:
            self._joining.tunnel(rank, now, up=True)
            return self._try_prepared()
        return []

    def unreached(self, rank: int, purpose: Purpose, why: str) -> None:
        """A dial of the link with *purpose* to *rank* found nobody."""
        if purpose is Purpose.STEP and rank == self._next:
            self._link.unreached(why)

    def link_down(self, rank: int, purpose: Purpose, reason: str, now: float) -> list[Effect]:
        """It is gone."""
        name = self._config.names[rank]
        if purpose is Purpose.CONTROL:
            if rank != 0:
                return []
            self._control_up = False
            self._link.end()
            self._enter(Phase.NO_HEAD, now)
            self.order = None
            self.epoch = NO_EPOCH  # the head will raise it before this rank serves again
            self._hear_no_more()
            self._pipeline = None
            note = Note(Level.WARNING, f"the head ({name}) is gone: {reason}")
            return [note, *self._leave()]
        kind = purpose.name.lower()
        effects: list[Effect] = [
            Note(Level.WARNING, f"the {kind} link with rank {rank} ({name}) broke: {reason}")
        ]
        if purpose is Purpose.TUNNEL:
            self._joining.tunnel(rank, now, up=False)
            if self._joining.committed:
                effects += self._fail(FailureKind.LINK_LOST, f"a tunnel broke: {reason}", now)
        elif rank == self._next and self._next_up:
            self._next_up = False
            if not self._tensor:
                self._cut = True
                effects += self._fail(FailureKind.LINK_LOST, f"the next hop broke: {reason}", now)
        return effects

    def message(self, rank: int, purpose: Purpose, message: Message, now: float) -> list[Effect]:
        """*rank* sent *message*. Raises `RemoteProtocolError` if it may not be."""
        match message:
            case Bootstrap() if rank == 0 and purpose is Purpose.CONTROL:
                return self._bootstrap(message, now)
            case Waiting() if rank == 0 and purpose is Purpose.CONTROL:
                return self._hear(message, now)
            case Step() if message.epoch != self.epoch:
                return self._stale(message)
            case Step() if purpose is (Purpose.CONTROL if self._tensor else Purpose.STEP):
                return self._step(message, now)
            case Row() if self._tensor and self._pipeline is not None:
                return [ToEngine(message)] if self._pipeline.announce(message) else []
            case _:
                raise RemoteProtocolError(
                    f"rank {rank} sent {type(message).__name__} to rank {self._config.rank}"
                )

    def _hear(self, waiting: Waiting, now: float) -> list[Effect]:
        """The head says why it has begun no epoch."""
        if not self._waitings.take(now):
            raise LimitExceeded(f"more than {WAITINGS_PER_SECOND} WAITINGs a second")
        strange = [r.rank for r in waiting.reasons if r.rank not in (*range(self._world), NO_RANK)]
        if strange:
            raise RemoteProtocolError(f"WAITING is about rank {strange[0]} of {self._world}")
        if self._idle_since is None:
            self._idle_since = now
        known = self._reasons
        self._reasons = {reason: known.get(reason, now) for reason in waiting.reasons}
        return []

    def _hear_no_more(self) -> None:
        """What WAITING said holds no longer."""
        self._idle_since = None
        self._reasons = {}

    def _bootstrap(self, order: Bootstrap, now: float) -> list[Effect]:
        if not self._orders.take(now):
            raise LimitExceeded(f"more than {ORDERS_PER_SECOND} BOOTSTRAPs a second")
        if self._told and order.joins and order.epoch == self.epoch:
            return []  # it crossed the news that this rank cannot
        if self.order is not None and self._joining.follows(order, self.order):
            self.order = order
            self._hear_no_more()
            self._enter(Phase.JOINING, now)
            self._answer_deadline.order(now, order.deadline_ms / 1000)
            return self._joining.join(order)
        same_head = order.epoch.instance == self.epoch.instance
        if order.rank != self._config.rank or order.world != self._world:
            raise RemoteProtocolError(
                f"BOOTSTRAP for rank {order.rank} of {order.world} came to rank "
                f"{self._config.rank} of {self._world}"
            )
        if same_head and order.epoch.counter <= self.epoch.counter:
            raise RemoteProtocolError("BOOTSTRAP for an epoch that is over")
        if order.inner_seal != self._config.inner_seal:
            reason = "the head and this rank disagree on the inner seal"
            return [Shut(0, Purpose.CONTROL, CloseCode.POLICY_MISMATCH, reason)]
        if order.backend is not Backend.PIPELINE and not self._config.tensor:
            reason = "the roster forbids tensor parallelism"
            return [Shut(0, Purpose.CONTROL, CloseCode.POLICY_MISMATCH, reason)]
        if order.trusted and not self._config.trusted:
            reason = 'this rank does not say collectives = "trusted-link", as the head does'
            return [Shut(0, Purpose.CONTROL, CloseCode.POLICY_MISMATCH, reason)]
        if order.joins:
            raise RemoteProtocolError("BOOTSTRAP has this rank join a collective unprepared")
        if self._info is not None and order.model != self._info.model:
            reason = "the head holds another model than this rank"
            return [Shut(0, Purpose.CONTROL, CloseCode.MODEL_MISMATCH, reason)]
        self.order = order
        self.epoch = order.epoch
        self._hear_no_more()
        self._engine_ready = None
        self._told = False
        self._cut = False
        self._link.end()
        self._phase, self._since = Phase.LOADING, now
        last = self._tensor or order.rank == order.world - 1
        self._pipeline = pipeline.FollowerPipeline(order.epoch, order.rank, last=last)
        layers = "a share of every layer"
        if not self._tensor:
            layers = f"layers {order.bounds[order.rank]}:{order.bounds[order.rank + 1]}"
        note = Note(Level.INFO, f"epoch {order.epoch.counter}: this rank takes {layers}")
        return [note, *self._leave(), *self._start_engine(now)]

    @property
    def _tensor(self) -> bool:
        """The epoch's ranks work in tensor parallelism."""
        return self.order is not None and self.order.backend is not Backend.PIPELINE

    def _leave(self) -> list[Effect]:
        """What the engine was in before is over."""
        left = self._joining.leave()
        if left:
            self._answer_deadline.clear()
        return left

    def _start_engine(self, now: float) -> list[Effect]:
        if self._info is None or self._joining.replacing or self.order is None:
            return []
        if self._tensor:
            if self._told:
                return []  # this epoch is over; the next one may hold something else
            self._answer_deadline.order(now, self.order.deadline_ms / 1000)
            return self._joining.prepare(self.order)
        bounds = self.order.bounds
        layers = range(bounds[self._config.rank], bounds[self._config.rank + 1])
        known = self._loaded == layers
        self._answer_deadline.order(now, None if known else self.order.deadline_ms / 1000)
        self._loaded = layers
        effects: list[Effect] = [ToEngine(self.order)]
        # With two ranks the head's link to this one is also the way back.
        if self._world > 2:
            effects.append(Want(self._next, Purpose.STEP))
        effects.append(Want(self._config.rank - 1, Purpose.STEP, yields=True))
        return effects

    def _present(self) -> list[Effect]:
        if self._info is None or not self._control_up:
            return []
        return [Send(0, Purpose.CONTROL, hello(self._info))]

    def _try_prepared(self) -> list[Effect]:
        prepared = None if self._info is None else self._joining.try_prepared()
        if prepared is None:
            return []
        self._answer_deadline.clear()
        return [Send(0, Purpose.CONTROL, prepared)]

    def _try_ready(self, now: float) -> list[Effect]:
        ready = self._engine_ready
        if ready is None or self.order is None or self._told:
            return []
        if self._joining.is_due(ready.epoch):
            ready = self._joining.joined(ready)
        elif not self._next_up:
            self._enter(Phase.LINKING, now)
            return []
        self._engine_ready = None
        self._enter(Phase.SERVING, now)
        note = Note(Level.INFO, f"ready: epoch {self.epoch.counter}")
        return [note, Send(0, Purpose.CONTROL, ready)]

    # ---------------------------------------------------------------- steps

    def _stale(self, step: Step) -> list[Effect]:
        """*step* is not of the present epoch: it may have been late, and links outlive epochs."""
        if step.epoch > self.epoch and step.epoch.instance == self.epoch.instance:
            raise RemoteProtocolError("a step of an epoch that this rank was not told of")
        return []

    def _step(self, step: Step, now: float) -> list[Effect]:
        if self._pipeline is None:
            return []
        return self._act(self._pipeline.step(step), now)

    def _act(self, actions: list[pipeline.Action], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for action in actions:
            match action:
                case pipeline.ToEngine(message):
                    self._answer_deadline.owe(now)
                    effects.append(ToEngine(message))
                case pipeline.ToNext(message) if self._tensor:
                    effects.append(Send(0, Purpose.CONTROL, message))
                case pipeline.ToNext(message):
                    if message.failed is not None and message.failed.rank == self._config.rank:
                        effects += self._tell(message.n, message.failed, now)
                    if not self._cut:
                        effects.append(Send(self._next, Purpose.STEP, message))
                case pipeline.Answered() | pipeline.ToRanks():
                    pass  # the head's alone
        return effects

    def _fail(self, kind: FailureKind, reason: str, now: float) -> list[Effect]:
        if self._pipeline is None:
            return []
        effects = self._act(self._pipeline.failure(kind, reason), now)
        return effects + self._tell(0, Failure(self._config.rank, kind, reason), now)

    def _tell(self, n: int, failed: Failure, now: float) -> list[Effect]:
        """Tell the head, once an epoch, that this rank cannot serve it: from step *n* on."""
        if self._told or not self._control_up:
            return []
        self._told = True
        self._failed = failed
        self._enter(Phase.FAILED, now)
        return [Send(0, Purpose.CONTROL, CannotServe(self.epoch, failed.kind, failed.message, n))]

    # ---------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called."""
        times = (self._answer_deadline.deadline, self._joining.deadline, self._link.deadline)
        return min((time for time in times if time is not None), default=None)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Time has passed."""
        if (ends := self._joining.deadline) is not None and now >= ends:
            self._answer_deadline.clear()
            return self._fail(FailureKind.GROUP, self._joining.give_up(), now)
        if (ends := self._link.deadline) is not None and now >= ends:
            return self._fail(FailureKind.LINK_LOST, self._link.give_up(), now)
        overdue = self._answer_deadline.deadline
        if overdue is None or now < overdue:
            return []
        self._answer_deadline.clear()
        return [
            RestartEngine(
                f"it has not answered within its deadline{self._answer_deadline.extended}"
            )
        ]
