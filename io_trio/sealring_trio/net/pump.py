"""One link of a node on one connected socket.

The pump is the only code that touches the socket. Bytes that come in go to the node through its
owner, which then settles whatever they caused and flushes every pump. Bytes that the node has for
this link are drained only when the socket can take them, and go out in the same call: nothing can
come between, so the bytes of a link leave in the order in which they were sealed, or the link dies.

Anything that ends the pump kills the link: an end of stream, an error of the socket, cancellation.
A link that the node ends itself (`hang_up`) has its last bytes flushed first; one that has none to
send, as with every stranger, is closed at once: its descriptor is free for the next. A link that
has turned out to be a tunnel is let go (`release`): a thread carries it on.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Callable
from typing import Final, Protocol

import trio
from sealring_protocol.table import Machine, Table

from sealring_trio.net.wire import ROOM, Wire


class PumpState(enum.Enum):
    """Bytes move; the last ones are being sent; none move; the socket is somebody else's."""

    OPEN = "open"
    PARTING = "parting"
    OVER = "over"
    RELEASED = "released"


class PumpEvent(enum.Enum):
    """There are last bytes to send; there are none, or they are sent, or the stream is gone; the
    socket is given away."""

    PART = "part"
    END = "end"
    RELEASE = "release"


PUMP_TABLE: Final[Table[PumpState, PumpEvent]] = {
    (PumpState.OPEN, PumpEvent.PART): PumpState.PARTING,
    (PumpState.OPEN, PumpEvent.END): PumpState.OVER,
    (PumpState.OPEN, PumpEvent.RELEASE): PumpState.RELEASED,
    (PumpState.PARTING, PumpEvent.END): PumpState.OVER,
    (PumpState.OVER, PumpEvent.END): PumpState.OVER,
}


class LinkOwner(Protocol):
    """The runtime, as its pumps see it."""

    def received(self, link: int, data: bytes) -> None:
        """*data* came in; the owner flushes all pumps before it returns."""

    def ended(self, link: int) -> None:
        """The stream of *link* is over; no more bytes move."""

    def data_to_send(self, link: int) -> bytes | bytearray:
        """What the node has for *link*; once taken, it is sent or the link is dead."""


class Pump:
    """Moves the bytes of *link* between *owner* and *sock*, as long as `run` runs."""

    def __init__(self, owner: LinkOwner, link: int, sock: socket.socket) -> None:
        self._owner = owner
        self._link = link
        self._wire = Wire(sock, self.flush)
        self._machine = Machine(PUMP_TABLE, PumpState.OPEN)
        self._open = trio.CancelScope()

    def flush(self) -> None:
        """Send what the node has for this link, as far as the socket takes it."""
        if self._machine.state is PumpState.OPEN and not self._wire.busy:
            self._send(self._owner.data_to_send(self._link))

    def make_room(self, lacking: Callable[[], int]) -> None:
        """Have much come in at once, as far as a frame under way is *lacking* it: this is no
        stranger."""
        self._wire.make_room(ROOM, lacking)

    def hang_up(self, last: bytes) -> None:
        """End the stream once *last*, and what waits before it, has been sent; at once if there is
        nothing to send."""
        if self._machine.state is PumpState.OPEN:
            self._send(last)
        if self._machine.state is PumpState.OPEN:
            self._machine.fire(PumpEvent.PART if last or self._wire.busy else PumpEvent.END)
            self._open.cancel()

    def release(self) -> tuple[socket.socket, bytes] | None:
        """The socket and what waits to be sent on it, if the stream is open: from here on they are
        the caller's, and `ended` is not called."""
        if self._machine.state is not PumpState.OPEN:
            return None
        self._machine.fire(PumpEvent.RELEASE)
        self._open.cancel()
        return self._wire.detach()

    def _send(self, data: bytes | bytearray) -> None:
        if data:
            try:
                self._wire.send(data)
            except OSError:
                self._machine.fire(PumpEvent.END)
                self._open.cancel()

    async def run(self) -> None:
        """Pump until either side ends the stream."""
        try:
            with self._open:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
                    nursery.cancel_scope.cancel()
            if self._machine.state is PumpState.PARTING:
                await self._wire.hang_up()
        finally:
            if self._machine.state is not PumpState.RELEASED:
                self._machine.fire(PumpEvent.END)
                self._wire.close()
                self._owner.ended(self._link)

    async def _read(self) -> None:
        try:
            while data := await self._wire.receive():
                self._owner.received(self._link, data)
        except OSError:
            return

    async def _write(self) -> None:
        try:
            await self._wire.write()
        except OSError:
            self._open.cancel()
