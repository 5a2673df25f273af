"""A non-blocking stream socket that sends at once.

A hop of a ring is a few microseconds of sealing, so what the event loop adds decides how long it
takes. trio's own stream switches tasks once per send; a `Wire` does not: `send` hands the bytes to
the kernel from whatever handler made them, and only what the kernel does not take waits for the
writer task. `send` never awaits, so no other sender can come between the draining of a machine
and the bytes going out: the lock that such an order would need is held by construction.

The owner runs `write` in a task of its own beside its reader. After any error the wire is closed;
bytes that it held are gone, and the owner must treat its peer as lost.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

import trio
from sealring_protocol.codec.wire import Buffer

RECEIVE_SIZE: Final = 1 << 16
"""Bytes asked of the kernel at once."""

ROOM: Final = 1 << 20
"""The same, where hidden states of many rows are to come in one go. Memory: that much per such
wire, which strangers do not get."""

SMALL: Final = 1 << 12
"""Bytes up to which pieces that wait are put together."""

EAGER_RECEIVES: Final = 8
"""Receives in a row after which other tasks get their turn, however much has come in."""

LINGER: Final = 1.0
"""Seconds that a closing wire may take to flush, and then to see the peer's end of stream."""


class Wire:
    """One connected stream socket, TCP or local.

    *drained* is called when bytes that had to wait have gone out, so that the owner can offer
    more. Bytes that wait are bounded by the owner: it offers none while `busy`.
    """

    def __init__(self, sock: socket.socket, drained: Callable[[], None]) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            # macOS refuses (EINVAL) where the peer has reset the connection already; whoever reads
            # next sees the end of the stream.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._room: memoryview | None = None
        self._drained = drained
        self._waiting: deque[memoryview | bytearray] = deque()
        self._unsent = 0
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._flushing = trio.Lock()
        self._eager = EAGER_RECEIVES

    @property
    def busy(self) -> bool:
        """Whether bytes of an earlier `send` still wait."""
        return bool(self._waiting)

    @property
    def unsent(self) -> int:
        """How many they are."""
        return self._unsent

    async def idle(self) -> None:
        """Wait until no bytes wait, or the wire is closed."""
        while self._waiting and self._socket.fileno() >= 0:
            await self._idle.wait()

    def send(self, data: Buffer) -> None:
        """Send *data*, now or as soon as the kernel takes it. Raises `OSError`."""
        sent = 0
        if not self._waiting:
            try:
                sent = self._offer(data)
            except BlockingIOError:
                sent = 0
        if sent < len(data):
            self._keep(memoryview(data)[sent:])
            self._rouse()

    def _offer(self, data: Buffer) -> int:
        """How many bytes of *data* the kernel takes. It never waits, though a socket may be one
        that does (`threaded_socket`)."""
        return self._socket.send(data, socket.MSG_DONTWAIT)

    def _rouse(self) -> None:
        """Have the writer look."""
        self._wake.set()

    def _keep(self, rest: memoryview) -> None:
        """Have *rest* wait. Small pieces become one: alone they take more room than their bytes."""
        self._unsent += len(rest)
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, bytearray) and len(last) < SMALL:
            last += rest
        else:
            self._waiting.append(rest if len(rest) >= SMALL else bytearray(rest))

    async def receive(self) -> bytes:
        """The next bytes, or none at the end of the stream. Raises `OSError`.

        What is there already is taken without asking the event loop, a few times at most.
        """
        self._eager -= 1
        if self._eager >= 0:
            try:
                return self.take()
            except BlockingIOError:
                pass
        self._eager = EAGER_RECEIVES
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self.take()
            except BlockingIOError:
                continue

    def take(self, flags: int = 0) -> bytes:
        """What is there already, or none at the end of the stream. Raises `BlockingIOError` where
        there is nothing yet, or another `OSError`. *flags* are for the system call."""
        if self._room is None:
            return self._socket.recv(RECEIVE_SIZE, flags)
        most = min(self._most(), len(self._room))
        return self._room[: self._socket.recv_into(self._room, most, flags)].tobytes()

    def _most(self) -> int:
        """Bytes to take at once, where there is room for them."""
        return sys.maxsize

    def make_room(self, size: int) -> None:
        """Have `take` give as many bytes at once."""
        # Kept, for to allocate and to give back as much each time takes longer than to copy.
        self._room = memoryview(bytearray(size))

    async def write(self) -> None:
        """Send what waits, for ever. Raises `OSError`."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await self.flush()
            self._drained()
            if not self._waiting:
                self._tell_idle()

    async def flush(self) -> None:
        """Send what waits. Raises `OSError`."""
        if self._waiting:
            async with self._flushing:  # two tasks may not wait for one socket
                while self._waiting:
                    await trio.lowlevel.wait_writable(self._socket)
                    with contextlib.suppress(BlockingIOError):
                        self._push()

    def _push(self) -> None:
        """Send of what waits first as much as goes."""
        # A view, so that nothing is added to it from here on.
        self._waiting[0] = memoryview(self._waiting[0])
        sent = self._offer(self._waiting[0])
        self._unsent -= sent
        self._waiting[0] = self._waiting[0][sent:]
        if not self._waiting[0]:
            self._waiting.popleft()

    async def hang_up(self) -> None:
        """Flush, end the stream, and wait a moment for the peer to end its own.

        Closing at once with bytes unread makes the kernel reset the connection, which can destroy
        the last frame on its way to the peer.
        """
        with trio.move_on_after(LINGER):
            try:
                await self.flush()
                self._socket.shutdown(socket.SHUT_WR)
                while await self.receive():
                    pass
            except OSError:
                pass
        self.close()

    def close(self) -> None:
        """Close at once; tasks that wait on the socket see `trio.ClosedResourceError`."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
            self._tell_idle()

    def _tell_idle(self) -> None:
        self._idle.set()
        self._idle = trio.Event()
