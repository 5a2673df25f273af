"""The node's tunnel links, and the relay of the collective that they carry.

Bytes of a collective pass here in the threads that read them, and past the node: what an engine
says is sealed by the link's session itself and goes out at once, and what is opened goes to the
engine at once. All else that may happen on a tunnel link is for the event loop: a stream that
begins or ends, the link's own end or errors. What comes behind something of that kind waits until
it has been dealt with, so that nothing changes places.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import attrs
import trio
from sealring_protocol.codec.messages import Tunnel
from sealring_protocol.control.effects import EndCollective, PrepareCollective
from sealring_protocol.errors import SealringError
from sealring_protocol.events import LinkUp, TunnelLost, TunnelMessage
from sealring_protocol.link import Link
from sealring_protocol.node import Node

from sealring_trio.collective.loopback import Loopback
from sealring_trio.collective.relay import Relays
from sealring_trio.net.pump import Pump
from sealring_trio.net.threaded_socket import Guard

TunnelNews = TunnelLost | TunnelMessage | PrepareCollective | EndCollective


class TunnelOwner(Protocol):
    """The runtime, as its tunnels see it."""

    bytes_received: int

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run *task* beside everything else."""

    def meet(self) -> Loopback:
        """As `RelayOwner.meet`."""

    def received(self, link: int, data: bytes) -> None:
        """Enter the node with *data* of connection *link*."""


@attrs.frozen(eq=False)
class _Lane:
    """The tunnel link with *rank*, on connection *number*; *left* is for the event loop."""

    rank: int
    number: int
    session: Link
    pump: Pump
    left: deque[Tunnel] = attrs.field(factory=deque)


class Tunnels:
    """All of them. Every call but `idle` needs the lock of *guard*."""

    def __init__(self, owner: TunnelOwner, guard: Guard) -> None:
        self._owner = owner
        self.guard = guard
        self._lanes: dict[int, _Lane] = {}
        self._relays = Relays(self)

    def up(self, event: LinkUp, pump: Pump) -> None:
        """A tunnel link is up, on *pump*."""
        lane = _Lane(event.rank, event.link, event.session, pump)
        self._lanes[lane.rank] = lane
        pump.hand_over(partial(self._heard, lane), lambda: event.session.lacking)

    def carry_out(self, event: TunnelNews, node: Node) -> None:
        """Do what *node* wants."""
        match event:
            case TunnelLost(rank):
                if gone := self._lanes.pop(rank, None):
                    self._give_left(gone)
                self._relays.lost(rank)
            case TunnelMessage(rank, message):
                self._relays.message(rank, message)
            case _:
                self._relays.carry_out(event, node)

    def forget(self, link: int) -> None:
        """Connection *link* is gone, whoever ended it."""
        for lane in [lane for lane in self._lanes.values() if lane.number == link]:
            del self._lanes[lane.rank]

    # -------------------------------------------------------- for the relay

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run *task* beside everything else."""
        self._owner.spawn(task, *arguments)

    def meet(self) -> Loopback:
        """As `RelayOwner.meet`."""
        return self._owner.meet()

    def send(self, rank: int, message: Tunnel) -> bool:
        """Send *message* on the tunnel link with *rank*, in any thread; dropped if there is none.
        Whether more may follow at once: if not, `idle` tells when."""
        lane = self._lanes.get(rank)
        if lane is None:
            return True
        try:
            lane.session.send(message)
        except SealringError:
            self.guard.later(partial(self._deal, lane))
        lane.pump.flush()
        return not lane.pump.busy

    async def idle(self, rank: int) -> None:
        """Wait until nothing waits on the tunnel link with *rank*; at once if nothing does."""
        if (lane := self._lanes.get(rank)) and lane.pump.busy:
            await lane.pump.idle()

    # ------------------------------------------------------ what comes in

    def _heard(self, lane: _Lane, data: bytes) -> None:
        """*data* came in, in the thread that reads *lane*."""
        session = lane.session
        with self.guard.lock:
            self._owner.bytes_received += len(data)
            with contextlib.suppress(SealringError):  # which stays pending
                session.receive_data(data, self.guard.now())
            while (message := session.take(Tunnel)) is not None:
                if lane.left or not self._relays.carry(lane.rank, message):
                    lane.left.append(message)
            if session.has_data_to_send:
                lane.pump.flush()
            left = lane.left or session.pending
        if left:  # and nothing more is read meanwhile
            trio.from_thread.run_sync(self._deal, lane)

    def _deal(self, lane: _Lane) -> None:
        """What is left is the event loop's."""
        with self.guard.lock:
            self.guard.catch_up()  # it was there before
            self._give_left(lane)
            if lane.session.pending:
                self._owner.received(lane.number, b"")

    def _give_left(self, lane: _Lane) -> None:
        while lane.left:
            self._relays.message(lane.rank, lane.left.popleft())
