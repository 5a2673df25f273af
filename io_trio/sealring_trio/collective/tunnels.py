"""The event loop's part of tunnel links and collectives.

A thread moves their bytes (`carrier`, `streams`); it starts with the first tunnel link. This module
does what needs the event loop: it gives the thread each new link, and it makes the connections with
the engine, which listens on one port and connects to another (`loopback`).
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
from sealring_protocol.link import LinkClosed
from sealring_protocol.node import Node
from sealring_protocol.security.roster import SignedRoster

from sealring_trio.collective.carrier import Carrier, Streams, TunnelPlace
from sealring_trio.collective.loopback import Loopback, Port, reserve
from sealring_trio.net.pump import Pump
from sealring_trio.processes.namespace import ALLOW, NoNamespace

log = logging.getLogger("sealring.relay")


class TunnelOwner(Protocol):
    """The runtime, as its tunnels see it."""

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run *task* beside everything else."""

    def meet(self) -> Loopback:
        """The two ports on which node and engine connect. Raises `OSError` if no port is free, and
        `NoNamespace` if the engine's network cannot be made private."""

    def link_over(self, link: int, end: SealringError | LinkClosed) -> None:
        """The session of connection *link* is over."""

    def tunnel_closed(self) -> None:
        """A tunnel's socket is closed."""


class Tunnels:
    """All tunnel links and the collective of one node."""

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
        """A tunnel link is up: give the socket of *pump* to the thread. Returns why that cannot be
        done, or None."""
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
        """Close the link of *event* if it is a tunnel that is up. False if it is not."""
        streams, ours = self._streams, event.link in self._links
        if ours and streams is not None:
            streams.order(partial(streams.hang_up, event.link, event.code, event.reason))
        return ours

    def renew(self, roster: SignedRoster) -> None:
        """A newer *roster* is in force."""
        if self._streams is not None:
            self._streams.order(partial(self._streams.renew, roster))

    def _thread(self) -> Streams:
        """The streams of the thread, which is started if it does not run. Raises `OSError`."""
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
                    port, relay = self.prepare(epoch, node.rank, node.ring, sealed=sealed)
                except OSError as error:
                    node.collective_failed(epoch, f"no port is free: {error.strerror}", now)
                except NoNamespace as error:
                    node.collective_failed(epoch, f"{error}; {ALLOW}", now)
                else:
                    node.collective_prepared(epoch, port, relay, now)

    def prepare(
        self, epoch: Epoch, rank: int, ring: tuple[int, ...], *, sealed: bool
    ) -> tuple[int, int]:
        """Open the collective of *epoch* between the ranks of *ring*, and end the one before.
        Returns the port where the engine of *rank* is to listen, and the one to connect to: 0 if
        the collective is not *sealed*.

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
        at = ring.index(rank)
        left, right = ring[at - 1], ring[(at + 1) % len(ring)]
        streams.order(partial(streams.begin, TunnelPlace(epoch, rank, left, right)))
        self._owner.spawn(self._collective.listen)
        return place.port, place.relay

    def end(self, epoch: Epoch) -> None:
        """Close the collective of *epoch*, unless a newer one is open."""
        if self._collective is not None and self._collective.epoch == epoch:
            self.close()

    def close(self) -> None:
        """Close the collective that is open, if any."""
        collective, self._collective = self._collective, None
        if collective is not None:
            collective.close()


@attrs.frozen
class OpenCollective:
    """A collective that is not sealed. Its engines connect to each other; only the *port* where the
    engine listens is reserved here."""

    epoch: Epoch
    port: Port

    def close(self) -> None:
        """Give the port back."""
        self.port.close()


@attrs.frozen
class Meeting:
    """How this node and its engine connect in the sealed collective of *epoch*: on the ports of
    *place*. The connections are then given to *streams*."""

    epoch: Epoch
    place: Loopback
    streams: Streams
    listening: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connecting: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def listen(self) -> None:
        """Accept the one connection that the engine makes."""
        with self.listening:
            sock = await self.place.accept()
            # No await from here on, so the connection is in somebody's hands.
            if self.listening.cancel_called:  # while it was asked whose the connection is
                sock.close()
            else:
                self.streams.order(partial(self.streams.dialed, self.epoch, sock))

    async def connect(self) -> None:
        """Make the one connection that the engine accepts."""
        sock: socket.socket | None = None
        with self.connecting:
            sock = await self.place.connect()
        self.streams.order(partial(self.streams.reached, self.epoch, sock))

    def close(self) -> None:
        """Stop connecting, and end the connections that there are."""
        self.listening.cancel()
        self.connecting.cancel()
        self.place.close()
        self.streams.order(partial(self.streams.end, self.epoch))
