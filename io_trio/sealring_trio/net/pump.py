"""One link of a node on one connected socket.

The pump is the only code that touches the socket. Received bytes go to the node through the
pump's owner, which then carries out what they caused and flushes every pump. Bytes to send are
drained from the node only when the socket can take them, and are sent in the same call. So nothing
comes between, and the bytes of a link leave in the order in which they were sealed, or the link
ends.

Anything that ends the pump ends the link: an end of stream, an error of the socket, cancellation.
If the node ends the link itself (`hang_up`), its last bytes are sent first. If there are none, as
with every stranger, the socket is closed at once, and its descriptor is free. A link that turns
out to be a tunnel is given away (`release`): a thread carries it on.
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
    """OPEN: bytes are sent and received. PARTING: the last ones are being sent. OVER: the socket is
    closed, or about to be. RELEASED: it belongs to somebody else."""

    OPEN = "open"
    PARTING = "parting"
    OVER = "over"
    RELEASED = "released"


class PumpEvent(enum.Enum):
    """PART: the node hangs up and there are bytes to send. END: there are none, all are sent, or
    the stream broke. RELEASE: the socket is given away."""

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
        """*data* was received. The owner flushes all pumps before it returns."""

    def ended(self, link: int) -> None:
        """The stream of *link* is over. Called once."""

    def data_to_send(self, link: int) -> bytes | bytearray:
        """The bytes that the node has for *link*. Once taken they are sent, or the link ends."""


class Pump:
    """Moves the bytes of *link* between *owner* and *sock* while `run` runs."""

    def __init__(self, owner: LinkOwner, link: int, sock: socket.socket) -> None:
        self._owner = owner
        self._link = link
        self._wire = Wire(sock, self.flush)
        self._machine = Machine(PUMP_TABLE, PumpState.OPEN)
        self._open = trio.CancelScope()
        self._senders = trio.lowlevel.ParkingLot()  # who waits in `sent`

    def flush(self) -> None:
        """Send what the node has for this link, as far as the socket takes it."""
        if self._machine.state is PumpState.OPEN and not self._wire.busy:
            self._send(self._owner.data_to_send(self._link))
        if not self._wire.busy:
            self._senders.unpark_all()

    async def sent(self) -> None:
        """Wait until the kernel has all that there is to send, or the link is over."""
        while self._machine.state is PumpState.OPEN and self._wire.busy:
            await self._senders.park()

    def make_room(self, lacking: Callable[[], int]) -> None:
        """Receive up to `ROOM` bytes at once, but beyond `RECEIVE_SIZE` only as many as the frame
        under way is *lacking*. Only for members: strangers do not get that much memory."""
        self._wire.make_room(ROOM, lacking)

    def hang_up(self, last: bytes) -> None:
        """Send what waits and then *last*, then end the stream; at once if there is nothing to
        send."""
        if self._machine.state is PumpState.OPEN:
            self._send(last)
        if self._machine.state is PumpState.OPEN:
            self._machine.fire(PumpEvent.PART if last or self._wire.busy else PumpEvent.END)
            self._open.cancel()

    def release(self) -> tuple[socket.socket, bytes] | None:
        """Give the caller the socket and the bytes that wait to be sent on it. The pump touches the
        socket no more and does not call `ended`. None if the stream is not open any more."""
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
                self._senders.unpark_all()
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
