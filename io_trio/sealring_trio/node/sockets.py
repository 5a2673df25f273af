"""The sockets of one node's links: accepted or dialed, pumped, lent to a collective, closed.

The link manager in the node decides which links there are. What it asks for (`Dial`, `Hangup`, a
signature) is carried out here. Each link has a pump, until it turns out to be a tunnel: then its
socket goes to the thread of `tunnels`.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from sealring_protocol.codec.messages import Piece
from sealring_protocol.control.effects import EndCollective, PrepareCollective
from sealring_protocol.errors import SealringError
from sealring_protocol.events import (
    Dial,
    Hangup,
    LinkUp,
    Requested,
    WeightsAsked,
)
from sealring_protocol.link import EncapsulationRequested, LinkClosed, SignatureRequested
from sealring_protocol.security.identity import Signer
from sealring_protocol.security.roles import Purpose

from sealring_trio.collective.loopback import Loopback
from sealring_trio.collective.tunnels import Tunnels
from sealring_trio.errors import OperationError
from sealring_trio.fetching.shared_files import Giving
from sealring_trio.net.connecting import dial
from sealring_trio.net.pump import Pump
from sealring_trio.units import wall_ms

if TYPE_CHECKING:
    from sealring_trio.node.runtime import Runtime

log = logging.getLogger("sealring.node")

ACCEPT_ENTROPY: Final = 32
"""Random bytes that the handshake of an accepted connection takes."""

DIAL_ENTROPY: Final = 96
"""The same, of a dialed one."""

STOP_TIMEOUT: Final = 2.0
"""Seconds that all links together may take to close."""

LinkEffect = Dial | Hangup | LinkUp | Requested | WeightsAsked | PrepareCollective | EndCollective


class NodeSockets:
    """All sockets of the links of *owner*'s node; handshakes are signed with *signer*. Other
    members may have files of the *model*'s folder."""

    def __init__(self, owner: Runtime, signer: Signer, model: Path) -> None:
        self._owner = owner
        self._signer = signer
        self._pumps: dict[int, Pump] = {}
        self._tunnels = Tunnels(self)
        self._giving = Giving(model, owner.spawn, self._give)
        self._sent = 0  # bytes over the links, without tunnels, since the node began
        self._received = 0
        self._closed = trio.Event()  # a socket; replaced by whoever waits for the next

    @property
    def bytes_sent(self) -> int:
        """Over all links, since the node began."""
        return self._sent + self._tunnels.sent

    @property
    def bytes_received(self) -> int:
        """The same."""
        return self._received + self._tunnels.received

    def accepted(self, sock: socket.socket, source: str) -> None:
        """*sock* is a new connection from the host *source*."""
        entropy = secrets.token_bytes(ACCEPT_ENTROPY)
        now = trio.current_time()
        self._pump(self._owner.node.accepted(source, entropy, now, wall_ms()), sock)

    def carry_out(self, event: LinkEffect) -> None:
        """Do what the node wants of its links or of a collective."""
        match event:
            case LinkUp(_, Purpose.TUNNEL, link):
                if error := self._tunnels.up(event, self._pumps.pop(link, None)):
                    self._owner.node.link_over(link, error, trio.current_time())
            case LinkUp(_, _, link, session):
                if pump := self._pumps.get(link):
                    pump.make_room(lambda: session.lacking)
            case Dial():
                self.spawn(self._dial, event)
            case Hangup(link, last):
                self._giving.over(link)
                if not self._tunnels.hang_up(event) and (pump := self._pumps.get(link)):
                    pump.hang_up(last)
            case Requested(link, EncapsulationRequested() as request):
                secret, ciphertext = request.key.encapsulate()
                now = trio.current_time()
                self._owner.node.provide_encapsulation(link, ciphertext, secret, now)
            case Requested(link, SignatureRequested(payload)):
                self.spawn(self._sign, link, payload)
            case WeightsAsked():
                self._giving.asked(event)
            case PrepareCollective() | EndCollective():
                self._tunnels.carry_out(event, self._owner.node)

    def flush(self, links: Iterable[int]) -> None:
        """Send what *links* have to send."""
        for link in links:
            if pump := self._pumps.get(link):
                pump.flush()

    def renew(self) -> None:
        """A newer roster is in force."""
        self._tunnels.renew(self._owner.node.roster)

    async def wait_closed(self) -> None:
        """Wait until no socket is left, for `STOP_TIMEOUT` at most."""
        with trio.move_on_after(STOP_TIMEOUT):
            while self._pumps or self._tunnels.open:
                self._closed = trio.Event()
                await self._closed.wait()

    async def _dial(self, dialed: Dial) -> None:
        try:
            sock = await dial(dialed.address)
        except OperationError as error:
            self._owner.enter(self._owner.node.dial_failed, dialed.link, error.what)
            return
        entropy = secrets.token_bytes(DIAL_ENTROPY)
        self._owner.node.connected(dialed.link, entropy, trio.current_time(), wall_ms())
        self._pump(dialed.link, sock)

    def _pump(self, link: int, sock: socket.socket) -> None:
        pump = self._pumps[link] = Pump(self, link, sock)
        self.spawn(pump.run)
        self._owner.carry_out_and_flush()

    async def _sign(self, link: int, payload: bytes) -> None:
        # In a thread, for a signer may be a slow chip.
        try:
            signature = await trio.to_thread.run_sync(self._signer.sign, payload)
        except RuntimeError as error:  # the system has no thread for it
            log.warning("cannot sign for a link: %s", error)
            if pump := self._pumps.get(link):
                pump.hang_up(b"")
        else:
            self._owner.enter(self._owner.node.provide_signature, link, signature)

    # ------------------------------------------------- for pumps and tunnels

    def received(self, link: int, data: bytes) -> None:
        """See `LinkOwner.received`."""
        self._received += len(data)
        self._owner.enter(self._owner.node.receive_data, link, data)

    def ended(self, link: int) -> None:
        """See `LinkOwner.ended`."""
        self._pumps.pop(link, None)
        self._closed.set()
        self._owner.enter(self._owner.node.receive_eof, link)

    def data_to_send(self, link: int) -> bytes | bytearray:
        """See `LinkOwner.data_to_send`."""
        data = self._owner.node.data_to_send(link)
        self._sent += len(data)
        return data

    async def _give(self, link: int, piece: Piece) -> None:
        """Answer a question for weights on connection *link*, and wait until that has left."""
        self._owner.enter(self._owner.node.give_piece, link, piece)
        if pump := self._pumps.get(link):
            await pump.sent()
        await trio.lowlevel.checkpoint()

    def link_over(self, link: int, end: SealringError | LinkClosed) -> None:
        """See `TunnelOwner.link_over`."""
        self._owner.enter(self._owner.node.link_over, link, end)

    def tunnel_closed(self) -> None:
        """See `TunnelOwner.tunnel_closed`."""
        self._closed.set()

    def meet(self) -> Loopback:
        """See `TunnelOwner.meet`."""
        return self._owner.meet()

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """See `Runtime.spawn`."""
        self._owner.spawn(task, *arguments)
