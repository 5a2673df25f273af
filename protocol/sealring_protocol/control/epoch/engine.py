"""A rank's own engine, as its brain sees it: its model, its order, and the deadline of its answers.

The order of an epoch goes to it once, and again to the process that replaces it. A process that was
in a collective is replaced when the epoch ends; the next order waits for the new process.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo, Group, Grouped
from sealring_protocol.codec.messages import (
    NO_EPOCH,
    Backend,
    Bootstrap,
    CannotServe,
    Epoch,
    Failure,
    FailureKind,
    Prepared,
    Ready,
)
from sealring_protocol.control.deadlines import AnswerDeadline
from sealring_protocol.control.effects import (
    Effect,
    EndCollective,
    PrepareCollective,
    RestartEngine,
    Shut,
    ToEngine,
    Want,
)
from sealring_protocol.errors import CloseCode
from sealring_protocol.security.roles import Purpose
from sealring_protocol.table import Machine, Table
from sealring_protocol.words import named

LOOPBACK: Final = "127.0.0.1"
TUNNEL_SECONDS: Final = 30.0
"""Seconds to wait for the tunnel link once everything else is ready. Loading may take long, but a
link that is not up by then probably never will be. The wait doubles after each failure, up to
`LONGEST_TUNNEL_SECONDS`, because giving up makes every rank load again."""

LONGEST_TUNNEL_SECONDS: Final = 600.0

_NOWHERE: Final = (LOOPBACK, 1)
"""The address given to an engine for ranks that it does not talk to."""


class JoiningState(enum.Enum):
    """How far this rank has come into the collective."""

    OUT = "out"
    PREPARING = "preparing"
    PREPARED = "prepared"
    JOINING = "joining"
    JOINED = "joined"
    REPLACING = "replacing"


class JoiningEvent(enum.Enum):
    """What changes the state. LEAVE ends the collective; ENGINE_UP is a new engine process."""

    PREPARE = "prepare"
    PREPARED = "prepared"
    JOIN = "join"
    JOINED = "joined"
    LEAVE = "leave"
    ENGINE_LOST = "engine_lost"
    ENGINE_UP = "engine_up"


_S, _E = JoiningState, JoiningEvent
JOINING_TABLE: Final[Table[JoiningState, JoiningEvent]] = {
    (_S.OUT, _E.PREPARE): _S.PREPARING,
    (_S.PREPARING, _E.PREPARED): _S.PREPARED,
    (_S.PREPARED, _E.JOIN): _S.JOINING,
    (_S.JOINING, _E.JOINED): _S.JOINED,
    (_S.OUT, _E.LEAVE): _S.OUT,
    (_S.PREPARING, _E.LEAVE): _S.REPLACING,
    (_S.PREPARED, _E.LEAVE): _S.REPLACING,
    (_S.JOINING, _E.LEAVE): _S.REPLACING,
    (_S.JOINED, _E.LEAVE): _S.REPLACING,
    (_S.REPLACING, _E.LEAVE): _S.REPLACING,
    (_S.OUT, _E.ENGINE_LOST): _S.OUT,
    (_S.PREPARING, _E.ENGINE_LOST): _S.OUT,
    (_S.PREPARED, _E.ENGINE_LOST): _S.OUT,
    (_S.JOINING, _E.ENGINE_LOST): _S.OUT,
    (_S.JOINED, _E.ENGINE_LOST): _S.OUT,
    (_S.REPLACING, _E.ENGINE_LOST): _S.REPLACING,
    (_S.OUT, _E.ENGINE_UP): _S.OUT,
    (_S.REPLACING, _E.ENGINE_UP): _S.OUT,
}


@attrs.frozen
class _Ports:
    """The engine's port, and its node's relay port (0: no relay)."""

    port: int
    relay: int


class Joining:
    """The way into the collective of an epoch, of the rank that `take_place` says: load a share,
    open a port, join. Methods return the effects to carry out.

    A rank cannot leave a collective's `init` once it has called it, so no rank calls it before
    every rank can. The head therefore orders two rounds by BOOTSTRAP. In *prepare* the engine
    loads its share of the weights and the node chooses the port that the engine will listen on;
    the rank answers PREPARED. In *join* the engine joins; the rank answers READY. The head
    holds the barrier between the rounds.

    Over sealed links the collective's connections run through local relays. The engine listens
    and connects on its own machine only, and the node carries the bytes in a tunnel link to
    each neighbour. This module makes the engine's addresses out of typed fields, so no text of
    a peer reaches its environment.

    An engine process joins one group in its life, so the next collective needs a new process.
    """

    def __init__(self, place: int, ring: tuple[int, ...], ranks: Sequence[str] = ()) -> None:
        self._ranks = ranks
        self._machine = Machine(JOINING_TABLE, JoiningState.OUT)
        self.take_place(place, ring)
        self._order: Bootstrap | None = None
        self._ports: _Ports | None = None
        self._loaded = False
        self._tunnel = False  # the link to the right neighbour is up
        self.deadline: float | None = None
        """When to give up waiting for the tunnel link; None while it is not waited for. To be read
        only."""
        self._tunnel_seconds = TUNNEL_SECONDS
        self._grouped: Grouped | None = None

    def take_place(self, place: int, ring: tuple[int, ...]) -> None:
        """This rank is at *place* of *ring*, the ranks in their order, from the next order on."""
        self._place, self._world = place, len(ring)
        self._after = (place + 1) % len(ring)
        self._right, self._left = ring[self._after], ring[place - 1]

    @property
    def state(self) -> JoiningState:
        """How far this rank has come into the collective."""
        return self._machine.state

    @property
    def replacing(self) -> bool:
        """The engine process is being replaced. Orders wait for the new one."""
        return self.state is JoiningState.REPLACING

    @property
    def committed(self) -> bool:
        """This rank has answered PREPARED. From then on losing a tunnel is a failure."""
        return self.state in (JoiningState.PREPARED, JoiningState.JOINING, JoiningState.JOINED)

    def prepare(self, order: Bootstrap) -> list[Effect]:
        """Start the *prepare* round of *order*: load the share, open a port, and want the tunnel
        links."""
        self._machine.fire(JoiningEvent.PREPARE)
        self._order, self._ports, self._loaded, self._grouped = order, None, False, None
        self.deadline = None
        alone = Bootstrap(
            order.epoch,
            Backend.PIPELINE,
            0,
            order.inner_seal,
            order.deadline_ms,
            order.model,
            order.bounds,
            checked=order.checked,
            steps=order.steps,
        )
        effects: list[Effect] = [
            ToEngine(Group(order.backend, self._place, self._world, order.deadline_ms)),
            ToEngine(alone),
            PrepareCollective(order.epoch, not order.trusted),
        ]
        # Of two ranks each is the other's right neighbour; one link is enough.
        if not order.trusted:
            if self._world > 2 or self._place == 0:
                effects.append(Want(self._right, Purpose.TUNNEL))
            if self._world > 2 or self._place == 1:
                effects.append(Want(self._left, Purpose.TUNNEL, yields=True))
        return effects

    def loaded(self, now: float) -> None:
        """The engine has loaded its share."""
        self._loaded = True
        self._wait_for_tunnel(now)

    def ports(self, epoch: Epoch, port: int, relay: int, now: float) -> None:
        """The answer to `PrepareCollective` of *epoch*: the engine's *port* and its *relay* (0:
        none)."""
        if epoch == self._epoch:
            self._ports = _Ports(port, relay)
            self._wait_for_tunnel(now)

    def is_of_now(self, epoch: Epoch) -> bool:
        """True if *epoch*'s collective is under way."""
        over = (JoiningState.OUT, JoiningState.REPLACING)
        return epoch == self._epoch and self.state not in over

    @property
    def _epoch(self) -> Epoch:
        return self._order.epoch if self._order is not None else NO_EPOCH

    def tunnel(self, rank: int, now: float, *, up: bool) -> None:
        """The tunnel link with *rank* came up, or went down."""
        if rank == self._right:
            self._tunnel = up
            self._wait_for_tunnel(now)

    def _wait_for_tunnel(self, now: float) -> None:
        """Start the tunnel's deadline if only the tunnel is missing, else clear it."""
        preparing = self.state is JoiningState.PREPARING
        sealed = self._order is not None and not self._order.trusted
        if self._tunnel or not (preparing and sealed and self._loaded and self._ports):
            self.deadline = None
        elif self.deadline is None:
            self.deadline = now + self._tunnel_seconds

    def give_up(self) -> str:
        """The tunnel's deadline has passed. Returns the reason to report."""
        self.deadline = None
        waited, most = self._tunnel_seconds, LONGEST_TUNNEL_SECONDS
        self._tunnel_seconds = min(2 * waited, most)
        return (
            f"no tunnel link with {named(self._ranks, self._right)} came up within {waited:.0f} s"
        )

    def try_prepared(self) -> Prepared | None:
        """PREPARED, once, when nothing is missing; None before and after that."""
        order, ports = self._order, self._ports
        if self.state is not JoiningState.PREPARING or order is None or ports is None:
            return None
        if not self._loaded or not (order.trusted or self._tunnel):
            return None
        self._machine.fire(JoiningEvent.PREPARED)
        return Prepared(order.epoch, ports.port)

    def follows(self, order: Bootstrap, before: Bootstrap) -> bool:
        """True if *order* is the *join* round of the *prepare* order *before*, with nothing else
        changed."""
        if self.state is not JoiningState.PREPARED or not order.joins:
            return False
        return order == attrs.evolve(before, hosts=order.hosts, deadline_ms=order.deadline_ms)

    def join(self, order: Bootstrap) -> list[Effect]:
        """Start the *join* round of *order*: every rank is prepared, and the engine joins."""
        self._machine.fire(JoiningEvent.JOIN)
        hosts = list(order.hosts)
        if not order.trusted and self._ports is not None:
            hosts = [_NOWHERE] * self._world
            hosts[self._after] = (LOOPBACK, self._ports.relay)
            hosts[self._place] = (LOOPBACK, self._ports.port)
        group = Group(order.backend, self._place, self._world, order.deadline_ms, tuple(hosts))
        return [ToEngine(group)]

    def grouped(self, message: Grouped) -> None:
        """The engine has joined."""
        self._grouped = message

    def joined(self, ready: Ready) -> Ready:
        """The answer to *join*: the engine's *ready* with the times that it measured when it
        joined."""
        self._machine.fire(JoiningEvent.JOINED)
        self._tunnel_seconds = TUNNEL_SECONDS
        if self._grouped is None:
            return ready
        return attrs.evolve(ready, sum_us=self._grouped.sum_us, token_us=self._grouped.token_us)

    def is_due(self, epoch: Epoch) -> bool:
        """True if this rank waits for the engine's READY of *epoch*."""
        return self.state is JoiningState.JOINING and epoch == self._epoch

    def leave(self) -> list[Effect]:
        """The collective is over. Close its connections and replace the engine that was in it."""
        before = self.state
        after = self._machine.fire(JoiningEvent.LEAVE)
        self.deadline = None
        if before is after:
            return []
        why = "the one before was in a collective that is over, and joins no other"
        return [EndCollective(self._epoch), RestartEngine(why, planned=True)]

    def engine_lost(self) -> list[Effect]:
        """The engine process is gone, and its collective with it."""
        before = self.state
        after = self._machine.fire(JoiningEvent.ENGINE_LOST)
        self.deadline = None
        return [] if before is after else [EndCollective(self._epoch)]

    def engine_up(self) -> bool:
        """A new engine process is up. True if it is the awaited replacement."""
        was = self.replacing
        if self.state in (JoiningState.OUT, JoiningState.REPLACING):
            self._machine.fire(JoiningEvent.ENGINE_UP)
        return was


class RankEngine:
    """The engine of the rank at *place* of *ring*, which has the ranks in their order; people call
    them *ranks* (`words.named`). Methods return the effects to carry out."""

    def __init__(self, place: int, ring: tuple[int, ...], ranks: Sequence[str] = ()) -> None:
        self._place = place
        self._ring = ring
        self.info: EngineInfo | None = None
        """The process's description of its model. A head keeps that of the last process."""
        self.unreadable: CannotServe | None = None
        """What the process said if it cannot read its model."""
        self.order: Bootstrap | None = None
        """This rank's order in the present epoch."""
        self.loaded: range | None = None
        """The layers that the process has, or is loading."""
        self.ready: Ready | None = None
        """The answer to the order of a pipeline, or to the order to join."""
        self.deadline = AnswerDeadline()
        """When the next answer is overdue."""
        self.joining = Joining(place, ring, ranks)
        """The way into the epoch's collective."""

    def take_place(self, place: int, ring: tuple[int, ...]) -> None:
        """This rank is at *place* of another *ring* from the next order on."""
        self._place, self._ring = place, ring
        self.joining.take_place(place, ring)

    @property
    def is_checked(self) -> bool:
        """Whether the present epoch is checked."""
        return self.order is not None and self.order.checked

    def up(self, info: EngineInfo) -> bool:
        """A new process is up and sent *info*. True if it is the awaited replacement, and has the
        same model."""
        known, self.info, self.unreadable = self.info, info, None
        return self.joining.engine_up() and known is not None and known.model == info.model

    def lost(self) -> list[Effect]:
        """The process is gone."""
        self.ready = self.loaded = None
        self.deadline.clear()
        return self.joining.engine_lost()

    def begin(self, order: Bootstrap, now: float) -> list[Effect]:
        """An epoch begins: work on *order*, once a process is there, and none is being replaced."""
        self.order, self.ready = order, None
        there = self.info is not None and not self.joining.replacing
        return self.start(order, now) if there else []

    def start(self, order: Bootstrap, now: float) -> list[Effect]:
        """Give the process its part of *order*: the present one."""
        seconds = order.deadline_ms / 1000
        if order.backend is not Backend.PIPELINE:
            self.deadline.order(now, seconds)
            return self.joining.prepare(order)
        layers = layers_of(order)
        self.deadline.order(now, None if self.loaded == layers else seconds)
        self.loaded = layers
        effects: list[Effect] = [ToEngine(order)]
        world, place = len(self._ring), self._place
        # Of two ranks each is next to the other on both sides; one link is enough.
        if world > 2 or place + 1 < world:
            effects.append(Want(self._ring[(place + 1) % world], Purpose.STEP))
        if world > 2 or place > 0:
            effects.append(Want(self._ring[place - 1], Purpose.STEP, yields=True))
        return effects

    def join(self, order: Bootstrap, now: float) -> list[Effect]:
        """All ranks are prepared: join the collective of *order*."""
        self.order = order
        self.deadline.order(now, order.deadline_ms / 1000)
        return self.joining.join(order)

    def take_prepared(self) -> Prepared | None:
        """PREPARED, once, when nothing is missing; None before and after that."""
        prepared = None if self.info is None else self.joining.try_prepared()
        if prepared is not None:
            self.deadline.clear()
        return prepared

    def take_ready(self, *, linked: bool) -> Ready | None:
        """READY, when nothing is missing; else None. A pipeline needs the link to the next rank,
        too: it is up if *linked*."""
        if self.ready is not None and self.joining.is_due(self.ready.epoch):
            return self.joining.joined(self.ready)
        return self.ready if linked else None

    def end(self) -> list[Effect]:
        """The epoch is over: leave its collective."""
        self.order = None
        left = self.joining.leave()
        if left:
            self.deadline.clear()
        return left

    def replace(self) -> list[Effect]:
        """The deadline has passed: replace the process."""
        self.deadline.clear()
        late = f"it has not answered within its deadline{self.deadline.extended}"
        return [RestartEngine(late)]


def layers_of(order: Bootstrap) -> range:
    """The layers that *order* gives this rank; empty in tensor parallelism, where each rank takes a
    share of every layer."""
    if order.backend is not Backend.PIPELINE:
        return range(0)
    return range(order.bounds[order.rank], order.bounds[order.rank + 1])


def renewed_keys(previous: int, failed: Failure) -> list[Effect]:
    """Close the link from rank *previous* if the engine could not open a tensor from it: only a new
    link brings a new key."""
    if failed.kind is not FailureKind.INTEGRITY:
        return []
    code, reason = CloseCode.AUTHENTICATION_FAILED, "a tensor did not open"
    return [Shut(previous, Purpose.STEP, code, reason)]
