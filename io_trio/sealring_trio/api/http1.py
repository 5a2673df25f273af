"""HTTP/1.1 on one socket: h11 says what the bytes mean, and this reads and writes them. The socket
may be one of TLS (`tls`), which is read and written in the same way.

Bytes to be sent stay in a buffer until the kernel has taken them. A task that is cancelled while it
waits for that loses nothing: the next one to send begins with what is left. So when a request times
out because its client reads nothing, its last bytes still go out in order.

A client that reads nothing for `STUCK_SECONDS` is given up. Where the system has
`TCP_USER_TIMEOUT`, the kernel also notices a machine that vanished while bytes were not yet
acknowledged.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from typing import Final

import h11
import trio

from sealring_trio.api.connections import Place
from sealring_trio.api.tls_socket import TlsSocket

MAX_HEADER: Final = 16 << 10
"""Bytes of a request's header."""

PIECE: Final = 64 << 10
"""Bytes of a body that are copied for its connection at once. The rest waits where it is: so many
slow readers of one large answer share it."""

MAX_AHEAD: Final = 16 << 10
"""Bytes that are read beyond the request under way, to see that its client has not left."""

STUCK_SECONDS: Final = 60.0
"""Time after which a client that takes no bytes is given up."""

LINGER_SECONDS: Final = 2.0
MAX_LINGER: Final = 8 << 20
"""How long, and for how many bytes, a client that is refused may go on sending: its own kernel
would throw away the answer if the connection were closed before that."""

_READ: Final = 16 << 10

_SENDS: Final = (h11.SEND_BODY, h11.ERROR)
"""States of a client that may still be sending."""


class Http1:
    """One connection. Takes over *sock*, and tells *place* when it waits for the client."""

    def __init__(self, sock: socket.socket | TlsSocket, place: Place) -> None:
        self.gone = False  # nothing can be sent any more
        self.left = False  # nothing more will come
        self._socket = sock
        self._place = place
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER)
        self._unsent = bytearray()
        self._later: deque[h11.Event | memoryview] = deque()
        self._ahead = 0
        self._watching: trio.CancelScope | None = None
        sock.setblocking(False)

    @property
    def begun(self) -> bool:
        """Whether a part of a request is there."""
        return bool(self._http.trailing_data[0])

    @property
    def refusable(self) -> bool:
        """Whether an error answer can still begin."""
        return not self.gone and self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    async def next_event(self) -> h11.Event | None:
        """What the client sends next; None if that must wait for the answer.

        Raises `h11.RemoteProtocolError`.
        """
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Event):
                return event
            if event is h11.PAUSED:
                return None
            with self._place.stalled():
                self._http.receive_data(await self._read())

    async def invite(self) -> None:
        """Send "100 Continue" to a client that waits for it before it sends its body."""
        if self._http.they_are_waiting_for_100_continue:
            self.put(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            await self.flush()

    async def until_left(self) -> None:
        """Wait for the client to leave, or for the answer's end, which `release` tells.

        What it sends meanwhile is kept for later, up to `MAX_AHEAD`.
        """
        if self.left or self.gone:
            return
        with trio.CancelScope() as self._watching:
            while self._ahead < MAX_AHEAD:
                data = await self._read()
                if not data:
                    return
                self._ahead += len(data)
                self._http.receive_data(data)
            await trio.sleep_forever()

    def release(self) -> None:
        """End the wait for the client to leave."""
        if self._watching is not None:
            self._watching.cancel()

    def put(self, event: h11.Event) -> None:
        """Have *event* sent by the next `flush`. Raises `h11.LocalProtocolError`."""
        if isinstance(event, h11.Data):
            body = memoryview(event.data)
            self._later.extend(body[at : at + PIECE] for at in range(0, len(body), PIECE))
        else:
            self._later.append(event)
        self._make_bytes()

    def _make_bytes(self) -> None:
        """Make bytes of what comes next, unless enough of them wait."""
        while self._later and len(self._unsent) < PIECE:
            event = self._later.popleft()
            if isinstance(event, memoryview):
                event = h11.Data(data=bytes(event))
            self._unsent += self._http.send(event) or b""

    async def flush(self) -> None:
        """Send what there is; if the client is given up instead, `gone` is true."""
        while self._unsent and not self.gone:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._give_up()
                break
            if sent:
                del self._unsent[:sent]
                self._make_bytes()
                continue
            with self._place.stalled(), trio.move_on_after(STUCK_SECONDS) as limit:
                await trio.lowlevel.wait_writable(self._socket)
            if limit.cancelled_caught:
                self._give_up()
        await trio.lowlevel.checkpoint()

    def discard_body(self) -> bool:
        """Throw away what has come of the request's body. True if that was all of it."""
        try:
            while self._http.their_state is h11.SEND_BODY:
                if self._http.next_event() is h11.NEED_DATA:
                    return False
        except h11.RemoteProtocolError:
            return False
        return True

    def again(self) -> bool:
        """Get ready for the next request. True if there may be one."""
        if self.gone or self._http.our_state is not h11.DONE:
            return False
        try:
            self._http.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        self._ahead = 0
        self._watching = None
        return True

    async def linger(self) -> None:
        """Let a client that still sends read its answer before the connection is closed."""
        if self.gone or self.left or self._http.their_state not in _SENDS:
            return
        self._end_tls()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        rest = MAX_LINGER
        with trio.move_on_after(LINGER_SECONDS):
            while rest > 0 and (data := await self._read()):
                rest -= len(data)

    def close(self) -> None:
        """Close the socket."""
        self._end_tls()
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    def _end_tls(self) -> None:
        """Tell a client of TLS that nothing more comes, so that it can tell the end from a cut."""
        if isinstance(self._socket, TlsSocket) and not self.gone:
            with contextlib.suppress(OSError, ValueError):
                self._socket.unwrap()  # says so at once, and does not wait for the client's own end

    async def _read(self) -> bytes:
        """Bytes, at least one; none when no more will come. Whoever is cancelled has taken none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while (data := self._receive()) is None:
            await trio.lowlevel.wait_readable(self._socket)
        # Others have their turn; to be cancelled here would lose what has been taken.
        await trio.lowlevel.cancel_shielded_checkpoint()
        self.left = not data
        return data

    def _receive(self) -> bytes | None:
        """What is there; None if nothing is yet."""
        try:
            return self._socket.recv(_READ)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except OSError:
            self._give_up()
            return b""

    def _give_up(self) -> None:
        self.gone = True
        self._later.clear()
        self.release()
