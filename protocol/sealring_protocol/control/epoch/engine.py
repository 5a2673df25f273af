"""A rank's own engine, as its brain sees it: its model, its order, and the deadline of its answers.

The order of an epoch goes to it once, and again to the process that replaces it. A process that was
in a collective is replaced when the epoch ends; the next order waits for the new process.
"""

from __future__ import annotations

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Backend, Bootstrap, CannotServe, Prepared, Ready
from sealring_protocol.control.effects import Effect, RestartEngine, ToEngine, Want
from sealring_protocol.control.epoch.collective import Joining
from sealring_protocol.control.epoch.deadlines import ENGINE, AnswerDeadline
from sealring_protocol.control.epoch.orders import layers_of
from sealring_protocol.security.roles import Purpose


class RankEngine:
    """The engine of *rank* of *world*. Methods return the effects to carry out."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
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
        self.deadline = AnswerDeadline(ENGINE)
        """When the next answer is overdue."""
        self.joining = Joining(rank, world)
        """The way into the epoch's collective."""

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
        after, before = (self._rank + 1) % self._world, (self._rank - 1) % self._world
        # Of two ranks each is next to the other on both sides; one link is enough.
        if self._world > 2 or after > self._rank:
            effects.append(Want(after, Purpose.STEP))
        if self._world > 2 or before < self._rank:
            effects.append(Want(before, Purpose.STEP, yields=True))
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
