"""What a simulated cluster is made of: processes, the wires between them, and collectives."""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs
from sealring_protocol.control.election import Ballot
from sealring_protocol.events import NodeEvent
from sealring_protocol.link import Link
from sealring_protocol.node import Node

from tests.sim.fake_engine import FakeEngine


@attrs.define(eq=False)
class Wire:
    """One TCP connection: *ends* are (host, link number); number 0 until it is accepted."""

    ends: list[tuple[str, int]]
    alive: bool = True
    last: list[float] = attrs.field(factory=lambda: [0.0, 0.0])


@attrs.define(eq=False)
class Collective:
    """The engines of one group. A member's step is done when every member has come to it, unless
    one has gone: then each finds out when it next says something."""

    size: int
    hosts: tuple[tuple[str, int], ...] = ()  # where they meet, as the last to join was told
    members: dict[int, tuple[Host, FakeEngine]] = attrs.field(factory=dict)
    steps: dict[int, dict[int, Any]] = attrs.field(factory=dict)
    broken: bool = False


@attrs.define(eq=False)
class Host:
    """One process: a node and its engine."""

    name: str
    node: Node
    engine: FakeEngine | None
    wires: dict[int, Wire] = attrs.field(factory=dict)
    tunnels: dict[int, Link] = attrs.field(factory=dict)  # sessions that the node has lent
    inbox: deque[Any] = attrs.field(factory=deque)  # to the engine
    free: float = 0.0  # when the engine has done all it was given
    busy: list[tuple[float, float]] = attrs.field(factory=list)  # it worked on steps then
    frozen: bool = False
    waiting: deque[tuple[int, bytes]] = attrs.field(factory=deque)  # bytes for it while frozen
    alive: bool = True
    stored: list[bytes] = attrs.field(factory=list)
    votes: list[tuple[bytes, Ballot]] = attrs.field(factory=list)  # on the disk is the last
    full: bool = False  # the disk
    storing: float = 0.001  # seconds that it takes to store something
    rate: float = 1.0  # of its monotonic clock
    collective: Collective | None = None
    answers_at: float = 0.0  # when the last answer of a collective's step is there
    planned: int = 0  # engines that were replaced though nothing was wrong with them
    at: dict[str, float] = attrs.field(factory=dict)  # its addresses, and seconds to connect there
    relayed: list[NodeEvent] = attrs.field(factory=list)  # what it was told of API links
    settled: bool = True  # since `next_timeout` was asked for
    _due: float | None = None

    def clock(self, now: float) -> float:
        """What its monotonic clock says at *now*."""
        return self.rate * now

    def next_timeout(self) -> float | None:
        """When something is due of its node, or of the tunnels that it has been lent. It stays
        until the host is settled again: to ask every host for every event took a fifth of the
        tests' time."""
        if self.settled:
            self.settled = False
            nodes = [self.node, *self.tunnels.values()]
            times = [due for each in nodes if (due := each.next_timeout()) is not None]
            # A quotient is rounded: its clock is not to say less than what is due.
            self._due = min(times) / self.rate + (self.rate != 1.0) * 1e-9 if times else None
        return self._due
