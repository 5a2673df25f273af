"""One link of a node on one connected socket.

`DirectSocket` is a socket without a wait of its own, and `Wire` one with a queue of what is to be
sent. The pump is the only code that touches the socket of a link. Received bytes go to the node
through the pump's owner, which then carries out what they caused and flushes every pump. Bytes to
send are drained from the node only when the socket can take them, and are sent in the same call. So
nothing comes between, and the bytes of a link leave in the order in which they were sealed, or the
link ends.

Anything that ends the pump ends the link: an end of stream, an error of the socket, cancellation.
If the node ends the link itself (`hang_up`), its last bytes are sent first. If there are none, as
with every stranger, the socket is closed at once, and its descriptor is free. A link that turns
out to be a tunnel is given away (`release`): a thread carries it on.
"""

from __future__ import annotations

import contextlib
import enum
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import trio
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.table import Machine, Table

RECEIVE_SIZE: Final = 1 << 16
"""Bytes asked of the kernel at once."""

ROOM: Final = 1 << 20
"""The same, where hidden states of many rows are to come in one go. Memory: that much per such
wire, which strangers do not get."""

SMALL: Final = 1 << 12
"""Bytes up to which pieces that wait are put together."""

LINGER: Final = 1.0
"""Seconds that a closing wire may take to flush, and then to see the peer's end of stream."""


class DirectSocket:
    """One connected stream socket, TCP or local, that never blocks and needs no event loop.

    Sealing a hop takes a few microseconds, so the cost of the event loop decides how long it takes.
    trio's own stream switches tasks once per send. Here `send` gives the bytes to the kernel at
    once, and only what the kernel does not take waits. `send` never awaits, so no other sender
    comes between the sealing of a frame and its bytes: they leave in the order in which they were
    sealed. After an error the bytes that wait are lost, and the owner must treat the peer as lost.

    The owner bounds the bytes that wait: it sends nothing while there are any.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            # macOS refuses (EINVAL) where the peer has reset the connection already; whoever reads
            # next sees the end of the stream.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._room: memoryview | None = None
        self._lacking: Callable[[], int] | None = None
        self._waiting: deque[memoryview | bytearray] = deque()
        self.unsent = 0
        """How many bytes of earlier calls of `send` wait for the kernel. To be read only."""

    def send(self, data: Buffer) -> None:
        """Send what the kernel takes of *data* now; `push` sends the rest. Raises `OSError`."""
        sent = 0
        if not self._waiting:
            with contextlib.suppress(BlockingIOError):
                sent = self._socket.send(data)
        if sent < len(data):
            self._keep(memoryview(data)[sent:])

    def _keep(self, rest: memoryview) -> None:
        """Queue *rest*. Small pieces are joined: each object takes more memory than its bytes."""
        self.unsent += len(rest)
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, bytearray) and len(last) < SMALL:
            last += rest
        else:
            self._waiting.append(rest if len(rest) >= SMALL else bytearray(rest))

    def push(self) -> None:
        """Send what the kernel takes of the bytes that wait. Raises `OSError`."""
        with contextlib.suppress(BlockingIOError):
            while self._waiting:
                # A view, so that nothing is added to it from here on.
                self._waiting[0] = first = memoryview(self._waiting[0])
                sent = self._socket.send(first)
                self.unsent -= sent
                self._waiting[0] = first[sent:]
                if not self._waiting[0]:
                    self._waiting.popleft()

    def take(self) -> bytes:
        """The bytes that have arrived; none at the end of the stream. Raises `BlockingIOError` if
        nothing has arrived yet, or another `OSError`."""
        if self._room is None:
            return self._socket.recv(RECEIVE_SIZE)
        most = len(self._room)
        if self._lacking is not None:
            most = min(most, max(RECEIVE_SIZE, self._lacking()))
        return self._room[: self._socket.recv_into(self._room, most)].tobytes()

    def make_room(self, size: int = ROOM, lacking: Callable[[], int] | None = None) -> None:
        """Let `take` return up to *size* bytes at once.

        With *lacking*, more than `RECEIVE_SIZE` only as far as the frame under way lacks bytes. The
        reader handles everything that `take` returns before anything else runs, and a megabyte of
        the smallest frames takes so long that other links would time out.
        """
        self._lacking = lacking
        # Kept, for to allocate and to give back as much each time takes longer than to copy.
        self._room = memoryview(bytearray(size))


class Wire(DirectSocket):
    """A socket for trio's tasks: its owner runs `write` in one and `receive` in another. *drained*
    is called when all bytes that had to wait are sent, so that the owner can send more."""

    def __init__(self, sock: socket.socket, drained: Callable[[], None]) -> None:
        super().__init__(sock)
        self._drained = drained
        self._wake = trio.Event()

    def _keep(self, rest: memoryview) -> None:
        """As of `DirectSocket`; `write` sends it."""
        super()._keep(rest)
        self._wake.set()

    async def receive(self) -> bytes:
        """Wait for the next bytes; none at the end of the stream. Raises `OSError`."""
        while self._socket.fileno() >= 0:
            await trio.lowlevel.wait_readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                return self.take()
        return b""

    async def write(self) -> None:
        """Send the bytes that wait, until cancelled. Raises `OSError`."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await self._flush()
            self._drained()

    async def _flush(self) -> None:
        while self._waiting:
            await trio.lowlevel.wait_writable(self._socket)
            self.push()

    async def hang_up(self) -> None:
        """Send what waits, end our side, and wait up to `LINGER` for the peer to end its side.
        Nobody else may `receive` or `write` any more.

        Closing at once with bytes unread makes the kernel reset the connection, which can destroy
        the last frame on its way to the peer.
        """
        with trio.move_on_after(LINGER), contextlib.suppress(OSError):
            await self._flush()
            self._socket.shutdown(socket.SHUT_WR)
            while await self.receive():
                pass
        self.close()

    def close(self) -> None:
        """Close at once. Tasks that wait for the socket get `trio.ClosedResourceError`."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def detach(self) -> tuple[socket.socket, bytes]:
        """The socket, and the bytes that wait to be sent on it, for another owner. Cancel the tasks
        that `receive` and `write` first."""
        trio.lowlevel.notify_closing(self._socket)
        rest = b"".join(self._waiting)
        self._waiting.clear()  # a task that was about to send has nothing to
        return socket.socket(fileno=self._socket.detach()), rest


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
        if self._machine.state is PumpState.OPEN and not self._wire.unsent:
            self._send(self._owner.data_to_send(self._link))
        if not self._wire.unsent:
            self._senders.unpark_all()

    async def sent(self) -> None:
        """Wait until the kernel has all that there is to send, or the link is over."""
        while self._machine.state is PumpState.OPEN and self._wire.unsent:
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
            self._machine.fire(PumpEvent.PART if last or self._wire.unsent else PumpEvent.END)
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
                    nursery.start_soon(self._read)
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
            pass
        self._open.cancel()

    async def _write(self) -> None:
        try:
            await self._wire.write()
        except OSError:
            self._open.cancel()
