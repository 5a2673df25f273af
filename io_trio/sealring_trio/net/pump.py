"""One link of a node on one connected socket.

The pump is the only code that touches the socket. Bytes that come in go to the node through its
owner, which then settles whatever they caused and flushes every pump; bytes that the node has for
this link are drained only when the socket can take them, and go out in the same call, with the lock
held: nothing can come between, so the bytes of a link leave in the order in which they were sealed,
or the link dies.

Once a link is up, a thread reads it (`hand_over`): strangers are not given one.

Anything that ends the pump kills the link: an end of stream, an error of the socket, cancellation.
A link that the node ends itself (`hang_up`) has its last bytes flushed first; one that has none to
send, as with every stranger, is closed at once: its descriptor is free for the next.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

import trio

from sealring_trio.net.threaded_socket import Guard, SharedWire


class LinkOwner(Protocol):
    """The runtime, as its pumps see it."""

    @property
    def guard(self) -> Guard:
        """Its lock is held whenever the node is entered."""

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
        self._wire = SharedWire(sock, self.flush, owner.guard)
        self._open = trio.CancelScope()
        self._over = False
        self._graceful = False
        self._by_loop = trio.CancelScope()
        self._heard: Callable[[bytes], None] | None = None
        self._lacking: Callable[[], int] | None = None

    def flush(self) -> None:
        """Send what the node has for this link, as far as the socket takes it."""
        with self._owner.guard.lock:
            if not self._wire.busy and not self._over:
                self._send(self._owner.data_to_send(self._link))

    @property
    def busy(self) -> bool:
        """Whether bytes wait for the peer to take them."""
        return self._wire.busy

    async def idle(self) -> None:
        """Wait until none do, or the stream is over."""
        await self._wire.idle()

    def hand_over(
        self, heard: Callable[[bytes], None], lacking: Callable[[], int], *, eager: bool = False
    ) -> None:
        """Have a thread read from here on, *eager* or not, and give what comes to *heard*;
        *lacking* as in `SharedWire.hear`."""
        self._heard, self._lacking = heard, lacking
        self._wire.eager = eager
        self._by_loop.cancel()

    def hang_up(self, last: bytes) -> None:
        """End the stream once *last*, and what waits before it, has been sent; at once if there is
        nothing to send."""
        if not self._over:
            self._send(last)
            self._graceful = bool(last) or self._wire.busy
            self._over = True  # from now on a flush drains nothing
            if self._graceful:
                self._wire.be_polite()
            self._open.cancel()

    def _send(self, data: bytes | bytearray) -> None:
        if data:
            try:
                self._wire.send(data)
            except OSError:
                self._over = True
                self._owner.guard.soon(self._open.cancel)

    async def run(self) -> None:
        """Pump until either side ends the stream."""
        try:
            with self._open:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
                    nursery.cancel_scope.cancel()
            if self._graceful:
                await self._wire.hang_up()
        finally:
            self._over = True
            self._wire.close()
            self._owner.ended(self._link)

    async def _read(self) -> None:
        try:
            with self._by_loop:
                while data := await self._wire.receive():
                    self._owner.received(self._link, data)
        except OSError:
            return
        if self._heard is not None:
            await self._wire.hear(self._heard, lacking=self._lacking)

    async def _write(self) -> None:
        try:
            await self._wire.write()
        except OSError:
            self._open.cancel()
