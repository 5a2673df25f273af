"""A node's tunnel links and the collective in them, as the event loop sees them.

Their bytes are carried by a thread (`carrier`, `streams`), which begins with the first of them.
Here is what needs the event loop: to give the thread a link that has come up, and to meet the
engine, which listens on one port and connects to another (`loopback`).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import attrs
import trio
from sealring_protocol.codec.messages import Epoch
from sealring_protocol.control.effects import EndCollective, PrepareCollective
from sealring_protocol.errors import ConnectionLost, LocalProtocolError, SealringError
from sealring_protocol.events import Hangup, LinkUp
from sealring_protocol.link_events import LinkClosed
from sealring_protocol.node import Node
from sealring_protocol.security.roster import SignedRoster

from sealring_trio.collective.carrier import Carrier
from sealring_trio.collective.loopback import Loopback
from sealring_trio.collective.ports import Port, reserve
from sealring_trio.collective.streams import Place, Streams
from sealring_trio.net.pump import Pump
from sealring_trio.processes.namespace import ALLOW, NoNamespace

log = logging.getLogger("sealring.relay")


class TunnelOwner(Protocol):
    """The runtime, as its tunnels see it."""

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run *task* beside everything else."""

    def meet(self) -> Loopback:
        """Where the engine is met. Raises `OSError` when there is no port, `NoNamespace` when
        there is no place that others cannot reach."""

    def link_over(self, link: int, end: SealringError | LinkClosed) -> None:
        """The session of connection *link* is over."""

    def tunnel_closed(self) -> None:
        """A tunnel's socket is closed."""


class Tunnels:
    """All of a node's."""

    def __init__(self, owner: TunnelOwner) -> None:
        self._owner = owner
        self._streams: Streams | None = None  # once there is a thread for them
        self._links: set[int] = set()
        self._collective: Meeting | OpenCollective | None = None

    @property
    def open(self) -> bool:
        """Whether any tunnel link has a socket."""
        return bool(self._links)

    @property
    def sent(self) -> int:
        """Bytes, on all tunnel links."""
        return self._streams.sent if self._streams else 0

    @property
    def received(self) -> int:
        """The same."""
        return self._streams.received if self._streams else 0

    def up(self, event: LinkUp, pump: Pump | None) -> SealringError | None:
        """A tunnel link is up, on *pump*, whose socket goes to the thread; why it does not."""
        released = pump.release() if pump else None
        if released is None:
            return ConnectionLost("the connection ended as it came up")
        sock, rest = released
        try:
            streams = self._thread()
        except OSError as error:
            sock.close()
            return LocalProtocolError(f"no thread can be woken to carry it: {error.strerror}")
        self._links.add(event.link)
        streams.order(partial(streams.up, event.rank, event.link, event.session, sock, rest))
        return None

    def hang_up(self, event: Hangup) -> bool:
        """Do as the node says, if it is a tunnel that has come up."""
        streams, ours = self._streams, event.link in self._links
        if ours and streams is not None:
            streams.order(partial(streams.hang_up, event.link, event.code, event.reason))
        return ours

    def renew(self, roster: SignedRoster) -> None:
        """A newer *roster* is in force."""
        if self._streams is not None:
            self._streams.order(partial(self._streams.renew, roster))

    def _thread(self) -> Streams:
        """What the thread has, which begins if it does not run. Raises `OSError`."""
        if self._streams is None:
            carrier = Carrier()
            self._streams = Streams(carrier, self)
            self._owner.spawn(self._serve, carrier, self._streams)
        return self._streams

    async def _serve(self, carrier: Carrier, streams: Streams) -> None:
        if not await carrier.serve():
            log.warning("tunnels are given up: the system gives no thread to carry them")
            self._streams = None
            streams.abandon()

    # -------------------------------------------------- said by the thread

    def over(self, link: int, end: SealringError | LinkClosed) -> None:
        """See `Home.over`."""
        self._owner.link_over(link, end)

    def closed(self, link: int) -> None:
        """See `Home.closed`."""
        self._links.discard(link)
        self._owner.tunnel_closed()

    def wanted(self, epoch: Epoch) -> None:
        """See `Home.wanted`."""
        if (meeting := self._meeting(epoch)) is not None:
            self._owner.spawn(meeting.connect)

    def unwanted(self, epoch: Epoch) -> None:
        """See `Home.unwanted`."""
        if (meeting := self._meeting(epoch)) is not None:
            meeting.connecting.cancel()

    def _meeting(self, epoch: Epoch) -> Meeting | None:
        found = self._collective
        return found if isinstance(found, Meeting) and found.epoch == epoch else None

    # ------------------------------------------------------------ collectives

    def carry_out(self, event: PrepareCollective | EndCollective, node: Node) -> None:
        """Do what *node* wants."""
        match event:
            case EndCollective(epoch):
                self.end(epoch)
            case PrepareCollective(epoch, sealed):
                now = trio.current_time()
                try:
                    port, relay = self.prepare(epoch, node.rank, node.world, sealed=sealed)
                except OSError as error:
                    node.collective_failed(epoch, f"no port is free: {error.strerror}", now)
                except NoNamespace as error:
                    node.collective_failed(epoch, f"{error}; {ALLOW}", now)
                else:
                    node.collective_prepared(epoch, port, relay, now)

    def prepare(self, epoch: Epoch, rank: int, world: int, *, sealed: bool) -> tuple[int, int]:
        """Open the collective of *epoch*, which ends the one before: the ports where the engine of
        *rank* is to listen, and to connect, 0 where it is not *sealed* and goes its own way.

        Raises `OSError` when there is no port, `NoNamespace` as `TunnelOwner.meet`.
        """
        self.close()
        if not sealed:
            port = reserve("")
            self._collective = OpenCollective(epoch, port)
            return port.number, 0
        place = self._owner.meet()
        try:
            streams = self._thread()
        except OSError:
            place.close()
            raise
        self._collective = Meeting(epoch, place, streams)
        left, right = (rank - 1) % world, (rank + 1) % world
        streams.order(partial(streams.begin, Place(epoch, rank, left, right)))
        self._owner.spawn(self._collective.listen)
        return place.port, place.relay

    def end(self, epoch: Epoch) -> None:
        """Close the collective of *epoch* at once; an older one is closed already."""
        if self._collective is not None and self._collective.epoch == epoch:
            self.close()

    def close(self) -> None:
        """Close whatever collective is open."""
        collective, self._collective = self._collective, None
        if collective is not None:
            collective.close()


@attrs.frozen
class OpenCollective:
    """One that is not sealed and goes its own way: only the *port* where the engine listens is
    kept for it."""

    epoch: Epoch
    port: Port

    def close(self) -> None:
        """Give the port back."""
        self.port.close()


@attrs.frozen
class Meeting:
    """This node and its engine in the sealed collective of *epoch*: at *place* they meet, and what
    they then talk on goes to *streams*."""

    epoch: Epoch
    place: Loopback
    streams: Streams
    listening: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connecting: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def listen(self) -> None:
        """Take the one connection that the engine makes."""
        with self.listening:
            sock = await self.place.accept()
            # No await from here on, so the connection is in somebody's hands.
            if self.listening.cancel_called:  # while it was asked whose the connection is
                sock.close()
            else:
                self.streams.order(partial(self.streams.dialed, self.epoch, sock))

    async def connect(self) -> None:
        """Make the one connection that the engine takes."""
        sock: socket.socket | None = None
        with self.connecting:
            sock = await self.place.connect()
        self.streams.order(partial(self.streams.reached, self.epoch, sock))

    def close(self) -> None:
        """No connection is made or taken any more, and those there are end."""
        self.listening.cancel()
        self.connecting.cancel()
        self.place.close()
        self.streams.order(partial(self.streams.end, self.epoch))
