"""The brain of every rank but the head: it obeys BOOTSTRAP, works on steps, and reports failures.

Its epoch is that of the head's last BOOTSTRAP. It drops steps of an older epoch; only a BOOTSTRAP
can begin a newer one. A pipeline's rank is ready when its engine has loaded its layers and the link
to the next rank is up.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo, Grouped, Loaded, LocalMessage
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Backend,
    Bootstrap,
    Build,
    CannotServe,
    Checked,
    Epoch,
    Failure,
    FailureKind,
    Hindrance,
    Message,
    Ready,
    Reason,
    Row,
    Step,
    StepDone,
    Waiting,
)
from sealring_protocol.control.deadlines import earliest, is_due
from sealring_protocol.control.effects import (
    Effect,
    Level,
    NewRing,
    Note,
    Phase,
    Send,
    Shut,
    Standing,
    ToEngine,
)
from sealring_protocol.control.epoch import pipeline
from sealring_protocol.control.epoch.engine import RankEngine, layers_of, renewed_keys
from sealring_protocol.control.membership import hello
from sealring_protocol.control.plan import Partition, Plan, Strategy
from sealring_protocol.errors import CloseCode, LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import MAX_REASON, NO_RANK, ORDERS_PER_SECOND, WAITINGS_PER_SECOND
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Rights
from sealring_protocol.table import Machine, Table


@attrs.frozen
class FollowerConfig:
    """A follower: its *rank*, and the *names* of all ranks by rank. Its place in the ring comes
    with each order.

    With *trusted*, a collective may run outside of the sealed links. *inner_seal* and *tensor*
    (whether tensor parallelism is allowed) come from the roster, and *rights*, by rank; left out,
    each rank has the usual ones. *build* is `NodeConfig.build`.
    """

    rank: int
    names: tuple[str, ...]
    inner_seal: bool = True
    trusted: bool = False
    tensor: bool = True
    build: Build = attrs.field(factory=Build)
    rights: tuple[Rights, ...] = ()

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.names)

    @property
    def ring(self) -> tuple[int, ...]:
        """The ranks that may be in a ring."""
        return tuple(rank for rank in range(self.world) if not self._has(rank, Rights.WITNESS))

    def _has(self, rank: int, right: Rights) -> bool:
        return right in (self.rights[rank] if self.rights else Rights.TEXT)

    def no_ring(self, ring: Iterable[int], *, tensor: bool) -> str:
        """Why the roster has no such *ring*, which may be for *tensor* parallelism; empty if it
        may be."""
        for rank in ring:
            if self._has(rank, Rights.WITNESS):
                return f"{self.names[rank]} is a witness, which is in no ring"
            if tensor and not self._has(rank, Rights.TEXT):
                return f"tensor parallelism shows texts to {self.names[rank]}, which may see none"
        if tensor and not self.tensor:
            return "the roster forbids tensor parallelism"
        return ""

    @property
    def ranks(self) -> tuple[str, ...]:
        """What people call each rank."""
        return tuple(f"rank {rank} ({name})" for rank, name in enumerate(self.names))


class FollowerState(enum.Enum):
    """The state of a follower.

    FAILED lasts from the report to the head until the head's next order. CUT is FAILED with the
    link to the next rank broken in this epoch. The next rank has missed steps that cannot be
    repeated, so nothing more is sent to it before the next epoch, even if the link comes up
    again. IDLE is SERVING after the head has said (WAITING) that there is no epoch.
    """

    NO_HEAD = "no_head"
    GATHERING = "gathering"
    LOADING = "loading"
    PREPARED = "prepared"
    JOINING = "joining"
    LINKING = "linking"
    SERVING = "serving"
    IDLE = "idle"
    FAILED = "failed"
    CUT = "cut"


class FollowerEvent(enum.Enum):
    """What changes the state.

    ORDER is a BOOTSTRAP that begins an epoch; JOIN is a collective's second BOOTSTRAP. LOADED is
    the engine's READY while the link to the next rank is missing. PREPARED and READY: the message
    of that name was sent to the head. NO_EPOCH is the head's WAITING.
    """

    HEAD_UP = "head_up"
    HEAD_DOWN = "head_down"
    ORDER = "order"
    PREPARED = "prepared"
    JOIN = "join"
    LOADED = "loaded"
    READY = "ready"
    NO_EPOCH = "no_epoch"
    FAILURE = "failure"
    CUT = "cut"


_S, _E = FollowerState, FollowerEvent
FOLLOWER_TABLE: Final[Table[FollowerState, FollowerEvent]] = {
    (_S.NO_HEAD, _E.HEAD_UP): _S.GATHERING,
    (_S.GATHERING, _E.ORDER): _S.LOADING,
    (_S.LOADING, _E.ORDER): _S.LOADING,
    (_S.PREPARED, _E.ORDER): _S.LOADING,
    (_S.JOINING, _E.ORDER): _S.LOADING,
    (_S.LINKING, _E.ORDER): _S.LOADING,
    (_S.SERVING, _E.ORDER): _S.LOADING,
    (_S.IDLE, _E.ORDER): _S.LOADING,
    (_S.FAILED, _E.ORDER): _S.LOADING,
    (_S.CUT, _E.ORDER): _S.LOADING,
    (_S.LOADING, _E.PREPARED): _S.PREPARED,
    (_S.PREPARED, _E.JOIN): _S.JOINING,
    (_S.LOADING, _E.LOADED): _S.LINKING,
    (_S.LOADING, _E.READY): _S.SERVING,
    (_S.LINKING, _E.READY): _S.SERVING,
    (_S.JOINING, _E.READY): _S.SERVING,
    (_S.SERVING, _E.NO_EPOCH): _S.IDLE,
    (_S.LOADING, _E.FAILURE): _S.FAILED,
    (_S.PREPARED, _E.FAILURE): _S.FAILED,
    (_S.JOINING, _E.FAILURE): _S.FAILED,
    (_S.LINKING, _E.FAILURE): _S.FAILED,
    (_S.SERVING, _E.FAILURE): _S.FAILED,
    (_S.IDLE, _E.FAILURE): _S.FAILED,
    (_S.FAILED, _E.CUT): _S.CUT,
    (_S.CUT, _E.CUT): _S.CUT,
    (_S.GATHERING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.LOADING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.PREPARED, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.JOINING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.LINKING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.SERVING, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.IDLE, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.FAILED, _E.HEAD_DOWN): _S.NO_HEAD,
    (_S.CUT, _E.HEAD_DOWN): _S.NO_HEAD,
}

PHASES: Final = {
    FollowerState.NO_HEAD: Phase.NO_HEAD,
    FollowerState.GATHERING: Phase.GATHERING,
    FollowerState.LOADING: Phase.LOADING,
    FollowerState.PREPARED: Phase.PREPARED,
    FollowerState.JOINING: Phase.JOINING,
    FollowerState.LINKING: Phase.LINKING,
    FollowerState.SERVING: Phase.SERVING,
    FollowerState.IDLE: Phase.GATHERING,
    FollowerState.FAILED: Phase.FAILED,
    FollowerState.CUT: Phase.FAILED,
}
"""The phase that the status shows in each state."""


class HeadReasons:
    """The head's last WAITING to a rank of *world*. Times are monotonic seconds."""

    __slots__ = ("_bucket", "_world", "no_epoch", "reasons")

    def __init__(self, world: int) -> None:
        self._world = world
        self._bucket = TokenBucket(WAITINGS_PER_SECOND, 0.0)
        self.no_epoch = False
        """The head has said that there is no epoch, and no epoch has begun since."""
        self.reasons: dict[Reason, float] = {}
        """Each reason, with the time it was first heard."""

    def hear(self, waiting: Waiting, now: float) -> None:
        """The head sent *waiting*. Raises `LimitExceeded` if the head sends too many, and
        `RemoteProtocolError` if it names a rank that does not exist."""
        if not self._bucket.take(now):
            raise LimitExceeded(f"more than {WAITINGS_PER_SECOND} WAITINGs a second")
        strange = [r.rank for r in waiting.reasons if r.rank not in (*range(self._world), NO_RANK)]
        if strange:
            raise RemoteProtocolError(f"WAITING is about rank {strange[0]} of {self._world}")
        known = self.reasons
        self.no_epoch = True
        self.reasons = {reason: known.get(reason, now) for reason in waiting.reasons}

    @property
    def outside(self) -> bool:
        """The ring goes on without this rank."""
        return any(reason.hindrance is Hindrance.OUTSIDE for reason in self.reasons)

    def withdraw(self) -> None:
        """Forget the reasons: an epoch begins, or the head is gone."""
        self.no_epoch = False
        self.reasons = {}


LINK_SECONDS: Final = 12.0
"""Seconds to wait for the link once everything else is ready: enough for two failed dials from each
end."""


class NextLink:
    """The link from the rank named *own* to the one named *peer*. Times are monotonic seconds.

    Either end may dial. If one end cannot, the other may; if neither can, this rank reports
    that to the head, so that nobody takes it for a rank that is merely slow.
    """

    def __init__(self, own: str, peer: str) -> None:
        self.up = False
        """The link is up."""
        self._names = own, peer
        self._why = ""
        self._ends: float | None = None

    def begin(self, now: float) -> None:
        """Start the wait: only the link is missing now."""
        if self._ends is None:
            self._ends = now + LINK_SECONDS

    def end(self) -> None:
        """Stop the wait."""
        self._ends = None
        self._why = ""

    def came(self) -> None:
        """The link is up."""
        self.up = True
        self.end()

    def lost(self) -> None:
        """The link is down."""
        self.up = False

    def unreached(self, why: str) -> None:
        """A dial from this end failed: *why*."""
        self._why = why

    @property
    def deadline(self) -> float | None:
        """When to give up; None until a dial has failed."""
        return self._ends if self._why else None

    def give_up(self) -> str:
        """The deadline has passed. Returns the reason to report."""
        own, peer = self._names
        text = f"{own} cannot reach {peer} {self._why}, nor {peer} {own}"
        self.end()
        return text.encode()[:MAX_REASON].decode(errors="ignore")


__all__ = ["Follower", "FollowerConfig"]

_FAILED: Final = (FollowerState.FAILED, FollowerState.CUT)
"""States in which the head knows that this rank cannot serve the epoch."""


class Follower:
    """A rank after the head. Every method returns the effects to carry out, in order."""

    def __init__(self, config: FollowerConfig, now: float = 0.0) -> None:
        self._config = config
        ring = config.ring
        self._is_witness = config.rank not in ring
        self._take_place(0 if self._is_witness else ring.index(config.rank), ring)
        self._state = Machine(FOLLOWER_TABLE, FollowerState.NO_HEAD)
        self._since = now  # when the state was entered
        self.epoch: Epoch = NO_EPOCH
        self._obeyed: int | None = None  # the instance of the head whose order it had last
        self._tensor = False  # the order is for tensor parallelism
        self._engine = RankEngine(self._place, self._ring, config.ranks)
        self._pipeline: pipeline.FollowerPipeline | None = None
        self._next_link = NextLink(config.names[config.rank], config.names[self._next])
        self._joining = self._engine.joining
        self._failed: Failure | None = None  # why this rank cannot serve, or last could not
        self._orders = TokenBucket(ORDERS_PER_SECOND, 0.0)
        self._reasons = HeadReasons(config.world)

    def _take_place(self, place: int, ring: tuple[int, ...]) -> None:
        self._place, self._ring = place, ring
        self._next = ring[(place + 1) % len(ring)]

    def standing(self) -> Standing:
        """The status of this rank: its phase, and what it waits for."""
        waits = {Phase.NO_HEAD: (0,), Phase.GATHERING: (0,), Phase.LINKING: (self._next,)}
        phase, head_reasons = PHASES[self._state.state], self._reasons.reasons
        if self._is_witness and phase is Phase.GATHERING:
            phase = Phase.WITNESS
        return Standing(
            phase,
            self._since,
            waits.get(phase, ()),
            self._failed,
            head_reasons=head_reasons,
            ring=self._ring,
            state=phase.value,
            epoch=self.epoch,
            plan=None if self._engine.order is None else plan_of(self._engine.order),
        )

    @property
    def serving(self) -> bool:
        """This rank has sent READY, and its epoch goes on. A witness serves while it is linked to
        the head: it has no other part."""
        if self._is_witness:
            return self._state.state is FollowerState.GATHERING
        return self._state.state is FollowerState.SERVING

    def _move(self, event: FollowerEvent, now: float) -> None:
        self._state.fire(event)
        self._since = now

    @property
    def replacing(self) -> bool:
        """The engine process is being replaced."""
        return self._joining.replacing

    def starved(self, rank: int, seconds: float, now: float) -> None:
        """The engine of *rank* starved for *seconds* more. In tensor parallelism the head reports
        the slowest engine for all, because the engines of a collective wait for the slowest."""
        if rank == self._config.rank or (rank == 0 and self._tensor):
            self._engine.deadline.starved(seconds, now)

    def retire(self) -> list[Effect]:
        """Stop: another brain takes over. The engine leaves its collective."""
        return self._engine.end()

    def fetched(self) -> list[Effect]:
        """All tensors of this rank's layers are here. A ring that goes on without this rank for
        want of them may take it in now."""
        return self._present() if self._reasons.outside else []

    # --------------------------------------------------------------- engine

    def engine_message(self, message: LocalMessage, now: float) -> list[Effect]:
        """Handle *message* from this rank's engine."""
        match message:
            case EngineInfo():
                self._engine.up(message)
                return self._present() if self._engine.order is None else self._resume(now)
            case Ready() if message.epoch == self.epoch:
                self._engine.deadline.answered(now)
                return self._engine_is_ready(message, now)
            case Loaded():
                self._joining.loaded(now)
                return self._try_prepared(now)
            case Grouped():
                self._joining.grouped(message)
                return []
            case CannotServe() if message.epoch == NO_EPOCH:
                self._engine.unreadable = message
                if self._engine.order is None:
                    return self._present()
                return self._tell(0, message.of(self._config.rank), now)
            case CannotServe() if message.epoch == self.epoch:
                self._engine.deadline.answered(now)
                self._engine.loaded = None
                return self._tell(0, message.of(self._config.rank), now)
            case Checked() if message.epoch == self.epoch and self._engine.is_checked:
                return [Send(0, Purpose.CONTROL, message)]
            case Step() | StepDone():
                self._engine.deadline.answered(now)
                if message.epoch != self.epoch or self._pipeline is None:
                    return []
                effects = self._act(self._pipeline.output(message), now)
                if message.failed is not None:
                    effects += renewed_keys(self._ring[self._place - 1], message.failed)
                return effects
            case _:
                return []

    def engine_lost(
        self, reason: str, now: float, kind: FailureKind = FailureKind.ENGINE_LOST
    ) -> list[Effect]:
        """This rank's engine is gone, with its layers, caches and hop keys."""
        self._engine.info = None
        self._next_link.end()
        ended = self._engine.lost()
        if self._joining.replacing:
            return ended
        note = Note(Level.WARNING, f"this rank's engine is gone: {reason}")
        return [*ended, note, *self._fail(kind, reason, now)]

    def collective_prepared(self, epoch: Epoch, port: int, relay: int, now: float) -> list[Effect]:
        """The successful answer to `PrepareCollective`."""
        self._joining.ports(epoch, port, relay, now)
        return self._try_prepared(now)

    def collective_failed(self, epoch: Epoch, reason: str, now: float) -> list[Effect]:
        """The failed answer to `PrepareCollective`."""
        if not self._joining.is_of_now(epoch):
            return []
        return self._fail(FailureKind.GROUP, reason, now)

    # ---------------------------------------------------------------- links

    def link_up(self, rank: int, purpose: Purpose, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is established."""
        if purpose is Purpose.CONTROL and rank == 0:
            self._move(FollowerEvent.HEAD_UP, now)
            note = Note(Level.INFO, f"the head ({self._config.names[rank]}) is here")
            return [note, *self._present()]
        if purpose is Purpose.STEP and rank == self._next:
            self._next_link.came()
            return self._try_ready(now)
        if purpose is Purpose.TUNNEL:
            self._joining.tunnel(rank, now, up=True)
            return self._try_prepared(now)
        return []

    def unreached(self, rank: int, purpose: Purpose, why: str) -> None:
        """A dial of the link with *purpose* to *rank* failed: *why*."""
        if purpose is Purpose.STEP and rank == self._next:
            self._next_link.unreached(why)

    def link_down(self, rank: int, purpose: Purpose, reason: str, now: float) -> list[Effect]:
        """The link with *purpose* to *rank* is gone."""
        name = self._config.names[rank]
        if purpose is Purpose.CONTROL:
            if rank != 0:
                return []
            self._move(FollowerEvent.HEAD_DOWN, now)
            self._next_link.end()
            self._tensor = False
            self.epoch = NO_EPOCH  # this rank serves again only in a later epoch
            self._reasons.withdraw()
            self._pipeline = None
            note = Note(Level.WARNING, f"the head ({name}) is gone: {reason}")
            return [note, *self._engine.end()]
        kind = purpose.name.lower()
        unused = purpose is Purpose.STEP and (self._tensor or self._joining.replacing)
        level = Level.DEBUG if unused else Level.WARNING
        effects: list[Effect] = [
            Note(level, f"the {kind} link with {self._config.ranks[rank]} broke: {reason}")
        ]
        if purpose is Purpose.TUNNEL:
            self._joining.tunnel(rank, now, up=False)
            if self._joining.committed:
                effects += self._fail(FailureKind.LINK_LOST, f"a tunnel broke: {reason}", now)
        elif rank == self._next and self._next_link.up:
            self._next_link.lost()
            # Before this rank is ready, nothing was sent that the next one could have missed.
            loading = self._state.state is FollowerState.LOADING
            if self._pipeline is not None and not unused and not loading:
                effects += self._fail(FailureKind.LINK_LOST, f"the next hop broke: {reason}", now)
                self._move(FollowerEvent.CUT, now)
        return effects

    def message(self, rank: int, purpose: Purpose, message: Message, now: float) -> list[Effect]:
        """*rank* sent *message*. Raises `RemoteProtocolError` if it may not send it."""
        match message:
            case Bootstrap() if rank == 0 and purpose is Purpose.CONTROL:
                return self._bootstrap(message, now)
            case Waiting() if rank == 0 and purpose is Purpose.CONTROL:
                self._reasons.hear(message, now)
                if self._state.state is FollowerState.SERVING:
                    self._move(FollowerEvent.NO_EPOCH, now)
                return []
            case Step() if message.epoch != self.epoch:
                check_stale(message.epoch, self.epoch)
                return []
            case Step() if self._takes_steps(rank, purpose):
                if self._pipeline is None:
                    return []
                return self._act(self._pipeline.step(message), now)
            case Row() if self._tensor and self._pipeline is not None:
                return [ToEngine(message)] if self._pipeline.announce(message) else []
            case _:
                peer, kind = self._config.names[rank], type(message).__name__
                raise RemoteProtocolError(f"{peer} sent {kind}, which is not for this rank")

    def _takes_steps(self, rank: int, purpose: Purpose) -> bool:
        """Whether the steps of this epoch come from *rank*, on its link with *purpose*."""
        if self._tensor:
            return rank == 0 and purpose is Purpose.CONTROL
        return rank == self._ring[self._place - 1] and purpose is Purpose.STEP

    def _bootstrap(self, order: Bootstrap, now: float) -> list[Effect]:
        if not self._orders.take(now):
            raise LimitExceeded(f"more than {ORDERS_PER_SECOND} BOOTSTRAPs a second")
        if self._state.state in _FAILED and order.joins and order.epoch == self.epoch:
            return []  # the head sent it before it heard of the failure
        known = self._engine.order
        if known is not None and self._joining.follows(order, known):
            self._reasons.withdraw()
            self._move(FollowerEvent.JOIN, now)
            return self._engine.join(order, now)
        model = b"" if self._engine.info is None else self._engine.info.model
        if (shut := refusal(order, self._config, self.epoch, model)) is not None:
            return [shut]
        moved = self._move_to(order)
        failed = self._cannot_begin(order)
        self.epoch, self._obeyed = order.epoch, order.epoch.instance
        self._tensor = order.backend is not Backend.PIPELINE
        self._reasons.withdraw()
        self._next_link.end()
        self._move(FollowerEvent.ORDER, now)
        last = self._tensor or order.rank == order.world - 1
        self._pipeline = pipeline.FollowerPipeline(order.epoch, order.rank, last=last)
        layers = layers_of(order)
        part = f"layers {layers.start}:{layers.stop}" if layers else "a share of every layer"
        note = Note(Level.INFO, f"epoch {order.epoch.counter}: this rank takes {part}")
        ended = self._engine.end()
        if failed is not None:
            return [note, *moved, *ended, *self._tell(0, failed, now)]
        return [note, *moved, *ended, *self._engine.begin(order, now)]

    def _cannot_begin(self, order: Bootstrap) -> Failure | None:
        """Why this rank does not even give its engine *order*; None if it does."""
        rank, unreadable = self._config.rank, self._engine.unreadable
        if unreadable is not None:
            return unreadable.of(rank)
        if order.kept and order.epoch.instance != self._obeyed:
            return Failure(rank, FailureKind.LEDGER, "it has had no order of this head before")
        return None

    def _move_to(self, order: Bootstrap) -> list[Effect]:
        """Take the place that *order* gives this rank."""
        if order.ring == self._ring:
            return []
        self._take_place(order.rank, order.ring)
        self._engine.take_place(order.rank, order.ring)
        names = self._config.names
        self._next_link = NextLink(names[self._config.rank], names[self._next])
        return [NewRing(order.ring)]

    def _resume(self, now: float) -> list[Effect]:
        """A new engine process is up within an epoch: it gets the order, unless the epoch is over
        for this rank's collective; the next one may hold something else. If this rank reported that
        it can never serve, the head begins no epoch before the rank presents itself."""
        order, failed = self._engine.order, self._state.state in _FAILED
        if failed and self._failed and self._failed.kind is FailureKind.UNSERVABLE:
            return self._present()
        if self._reasons.outside:
            return self._present()
        if order is None or (self._tensor and failed):
            return []
        return self._engine.start(order, now)

    def _present(self) -> list[Effect]:
        engine = self._engine
        said = engine.unreadable if engine.info is None else hello(engine.info, self._config.build)
        if said is None or self._state.state is FollowerState.NO_HEAD:
            return []
        return [Send(0, Purpose.CONTROL, said)]

    def _try_prepared(self, now: float) -> list[Effect]:
        failed = self._state.state in _FAILED
        prepared = None if failed else self._engine.take_prepared()
        if prepared is None:
            return []
        self._move(FollowerEvent.PREPARED, now)
        return [Send(0, Purpose.CONTROL, prepared)]

    def _engine_is_ready(self, ready: Ready, now: float) -> list[Effect]:
        """The engine has loaded its layers, or joined the collective. An unasked or repeated READY
        changes nothing."""
        if self._state.state is FollowerState.JOINING:
            return self._serve(self._joining.joined(ready), now)
        if self._state.state is not FollowerState.LOADING or self._tensor:
            return []
        self._engine.ready = ready
        if not self._next_link.up:
            self._next_link.begin(now)
            self._move(FollowerEvent.LOADED, now)
        return self._try_ready(now)

    def _try_ready(self, now: float) -> list[Effect]:
        waits = self._state.state in (FollowerState.LOADING, FollowerState.LINKING)
        if self._engine.ready is None or not waits or not self._next_link.up:
            return []
        return self._serve(self._engine.ready, now)

    def _serve(self, ready: Ready, now: float) -> list[Effect]:
        self._engine.ready = None
        self._failed = None
        self._move(FollowerEvent.READY, now)
        if self._reasons.no_epoch:
            self._move(FollowerEvent.NO_EPOCH, now)
        note = Note(Level.INFO, f"ready: epoch {self.epoch.counter}")
        return [note, Send(0, Purpose.CONTROL, ready)]

    # ---------------------------------------------------------------- steps

    def _act(self, actions: list[pipeline.Action], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for action in actions:
            match action:
                case pipeline.ToOwnEngine(message):
                    self._engine.deadline.owe(now)
                    effects.append(ToEngine(message))
                case pipeline.ToNext(message) if self._tensor:
                    effects.append(Send(0, Purpose.CONTROL, message))
                case pipeline.ToNext(message):
                    if message.failed is not None and message.failed.rank == self._place:
                        effects += self._tell(message.n, message.failed, now)
                    if self._next_link.up and self._state.state is not FollowerState.CUT:
                        effects.append(Send(self._next, Purpose.STEP, message))
        return effects

    def _fail(self, kind: FailureKind, reason: str, now: float) -> list[Effect]:
        if self._pipeline is None:
            return []
        effects = self._act(self._pipeline.failure(kind, reason), now)
        return effects + self._tell(0, Failure(self._config.rank, kind, reason), now)

    def _tell(self, n: int, failed: Failure, now: float) -> list[Effect]:
        """Tell the head, once an epoch, that this rank cannot serve it from step *n* on."""
        if self._state.state in _FAILED:
            return []
        self._failed = failed
        self._move(FollowerEvent.FAILURE, now)
        return [Send(0, Purpose.CONTROL, CannotServe(self.epoch, failed.kind, failed.message, n))]

    # ---------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`; None: not at all."""
        joining, link = self._joining.deadline, self._next_link.deadline
        return earliest(self._engine.deadline.deadline, joining, link)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Act on the deadlines that have passed."""
        if is_due(self._joining.deadline, now):
            self._engine.deadline.clear()
            return self._fail(FailureKind.GROUP, self._joining.give_up(), now)
        if is_due(self._next_link.deadline, now):
            return self._fail(FailureKind.LINK_LOST, self._next_link.give_up(), now)
        return self._engine.replace() if is_due(self._engine.deadline.deadline, now) else []


def refusal(order: Bootstrap, config: FollowerConfig, epoch: Epoch, model: bytes) -> Shut | None:
    """The reason to refuse *order*, as the close of the control link; None to obey it. *epoch* is
    the last that this rank knows, *model* the digest of its model (empty while unknown).

    Raises `RemoteProtocolError` for an order that no correct head sends.
    """
    ring = order.ring
    if ring[order.rank] != config.rank or ring[-1] >= config.world:
        raise RemoteProtocolError(
            f"BOOTSTRAP for rank {ring[order.rank]} of the ring {list(ring)} came to rank "
            f"{config.rank} of {config.world}"
        )
    if order.epoch.instance == epoch.instance and order.epoch.counter <= epoch.counter:
        raise RemoteProtocolError("BOOTSTRAP for an epoch that is over")
    code, reason = CloseCode.POLICY_MISMATCH, ""
    if order.inner_seal != config.inner_seal:
        reason = "the head and this rank disagree on the inner seal"
    elif no_ring := config.no_ring(ring, tensor=order.backend is not Backend.PIPELINE):
        reason = no_ring
    elif order.trusted and not config.trusted:
        reason = 'this rank does not say collectives = "trusted-link", as the head does'
    elif order.steps not in config.build.steps:
        code = CloseCode.VERSION_MISMATCH
        reason = f"the head takes steps {order.steps}; {config.names[config.rank]} runs sealring "
        reason += config.build.text
    elif order.joins:
        raise RemoteProtocolError("BOOTSTRAP has this rank join a collective unprepared")
    elif model and order.model != model:
        code, reason = CloseCode.MODEL_MISMATCH, "the head holds another model than this rank"
    return Shut(0, Purpose.CONTROL, code, reason) if reason else None


def check_stale(epoch: Epoch, own: Epoch) -> None:
    """Check a step of an *epoch* other than *own*. One of a past epoch is only late, as links
    outlive epochs. Raises `RemoteProtocolError` for an epoch that this rank does not know."""
    if epoch > own and epoch.instance == own.instance:
        raise RemoteProtocolError("a step of an epoch that this rank was not told of")


def plan_of(order: Bootstrap) -> Plan:
    """The plan behind *order*, without its reason and the ranks' weights, which no rank gets."""
    pipeline = order.backend is Backend.PIPELINE
    strategy = Strategy.PIPELINE if pipeline else Strategy.TENSOR
    split = Partition(order.bounds, ())
    return Plan(strategy, split, "", order.world, order.backend, order.trusted)
