"""HTTP/1.1 on one socket: h11 says what the bytes mean, and this reads and writes them. The socket
may be one of TLS (`tls`), which is read and written in the same way.

Bytes to be sent stay in a buffer until the kernel has taken them. A task that is cancelled while it
waits for that loses nothing: the next one to send begins with what is left. So when a request times
out because its client reads nothing, its last bytes still go out in order.

What a client may cost is bounded by work, not by bytes alone, for a few bytes can be much work: h11
takes 2 us for each field of a header, and 6 us for each chunk of a body. Each read, and each
request that has come already, takes a turn of its own (`connections.Turns`). In one turn h11 gets
`MAX_READ` bytes, or a piece of a body whose length was declared, and reads one header of
`MAX_FIELDS` fields, or `MAX_CHUNKS` chunks. While those are large it gets `MAX_READ` bytes again
and again, up to 64 KiB. An end of the stream between requests takes no turn: it is 50 us of work,
and connections that waited to be closed would take the places of others.

A client that reads nothing for `STUCK_SECONDS` is given up. Where the system has
`TCP_USER_TIMEOUT`, the kernel also notices a machine that vanished while bytes were not yet
acknowledged.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import h11
import trio
from sealring_protocol.codec.wire import clip
from sealring_trio.net.h11_patterns import bound_h11

from sealring.dialects.errors import INVALID, ApiError
from sealring.http.connections import Place
from sealring.http.tls import TlsSocket

MAX_HEADER: Final = 16 << 10
"""Bytes of a request's header."""

MAX_FIELDS: Final = 100
"""Fields of a request's header: as many as Apache takes. They are counted before h11 reads them."""

MAX_READ: Final = 2 << 10
"""Bytes of headers and chunks that are read at once, and of one chunk's header or of the trailers;
the kernel keeps the rest."""

MAX_CHUNKS: Final = 32
"""Chunks of a body that are read in one turn."""

MAX_FRAMING: Final = 4 << 10
"""Bytes that a body's chunks may take beyond what they carry and twice as much again: one-byte
chunks are cut off after some 1,400, and chunks of three bytes never. Chunk headers, extensions and
trailers count."""

PIECE: Final = 64 << 10
"""Bytes of a body that are copied for its connection at once. The rest waits where it is: so many
slow readers of one large answer share it."""

STUCK_SECONDS: Final = 60.0
"""Time after which a client that takes no bytes is given up."""

LINGER_SECONDS: Final = 2.0
"""How long a client that is refused may go on sending: its own kernel would throw away the answer
if the connection were closed before that. What it sends is thrown away."""

_BULK: Final = 64 << 10  # bytes read at once where they only have to be kept, or thrown away

_HEADER_END: Final = re.compile(rb"\n\r?\n")  # as h11 finds it

_SHOWN: Final = 200

PROBES: Final = ("/health", "/livez", "/readyz")
"""What probes ask for. The first request of a connection is answered before others if it is one."""

_PROBE: Final = re.compile(rb"(GET|HEAD) (%b) HTTP/" % "|".join(PROBES).encode())
_PROBE_SIZE: Final = 32

bound_h11()

_SENDS: Final = (h11.SEND_BODY, h11.ERROR)
"""States of a client that may still be sending."""


@contextmanager
def _faults() -> Iterator[None]:
    """Turns h11's errors within the block into `ApiError`."""
    try:
        yield
    except h11.RemoteProtocolError as fault:
        if fault.error_status_hint == 431:
            message = f"The header is larger than {MAX_HEADER >> 10} KiB."
            raise ApiError(431, message, "header_too_large") from None
        message = f"This is not a request of HTTP/1.1: {clip(str(fault), _SHOWN)}."
        raise ApiError(fault.error_status_hint, message, "bad_request", kind=INVALID) from None


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
        self._full = False  # the last read took as much as it might: there is likely to be more
        self._declared = 0  # bytes of a body of declared length that have not come
        self._framing = 0  # bytes that came after the request's header, beside those of its body
        self._carried = 0  # bytes of its body
        self._paused = False  # some of it has come, and waits for a turn
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

    async def request(self) -> h11.Request | None:
        """The next request; None if the client leaves without one. Raises `ApiError`."""
        if self.begun:
            await self._place.turn()
        while True:
            with _faults():
                self._count_fields()
                event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._begin_body(event)
                return event
            if isinstance(event, h11.ConnectionClosed):
                return None
            await self._receive(stalled=True)

    async def body_part(self) -> tuple[bytes, bool]:
        """The body's next bytes, and whether there may be more. Raises `ApiError`."""
        reads = 0
        if self._paused:
            await self._place.turn()
            reads = MAX_CHUNKS
        while True:
            with _faults():
                content, more = self._content(reads)
            if content or not more:
                return content, more
            await self._receive(stalled=True)
            reads = MAX_CHUNKS

    async def invite(self) -> None:
        """Send "100 Continue" to a client that waits for it before it sends its body."""
        if self._http.they_are_waiting_for_100_continue:
            self.put(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            await self.flush()

    async def until_left(self) -> None:
        """Wait for the client to leave, or for the answer's end, which `release` tells.

        What it sends meanwhile is kept for later, up to `MAX_READ` bytes.
        """
        if self.left or self.gone:
            return
        with trio.CancelScope() as self._watching:
            while len(self._http.trailing_data[0]) < MAX_READ:
                await self._receive()
                if self.left:
                    return
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
            with _faults():
                return self._http.their_state is not h11.SEND_BODY or not self._content()[1]
        except ApiError:
            return False

    def again(self) -> bool:
        """Get ready for the next request. True if there may be one."""
        if self.gone or self._http.our_state is not h11.DONE:
            return False
        try:
            self._http.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        self._watching = None
        return True

    async def linger(self) -> None:
        """Let a client that still sends read its answer before the connection is closed."""
        if self.gone or self.left or not (self.begun or self._http.their_state in _SENDS):
            return
        self._end_tls()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with trio.move_on_after(LINGER_SECONDS):
            while await self._read(_BULK):
                pass

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

    def _count_fields(self) -> None:
        """Raise `ApiError` if the header that is coming has too many fields."""
        came = self._http.trailing_data[0]
        end = _HEADER_END.search(came)
        lines = came.count(b"\n", 0, end.start() if end else len(came))
        if lines > MAX_FIELDS:  # the first is the request's line
            message = f"The header has more than {MAX_FIELDS} fields."
            raise ApiError(431, message, "header_too_large")

    def _begin_body(self, request: h11.Request) -> None:
        """Begin to count what comes of the body of *request*."""
        came = len(self._http.trailing_data[0])
        length = dict(request.headers).get(b"content-length", b"0")
        self._declared, self._framing, self._carried = max(0, int(length) - came), came, 0
        self._paused = came > int(length)  # chunks

    def _content(self, reads: int = 0) -> tuple[bytes, bool]:
        """What has come of the body, within one turn's work, and whether there may be more. In a
        turn it reads up to *reads* times more for chunks: so large ones take few turns."""
        parts: list[bytes] = []
        event: object = None
        while len(parts) < MAX_CHUNKS:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                parts.append(event.data)
            elif event is h11.NEED_DATA and reads and self._take_more():
                reads -= 1
            else:
                break
        content = b"".join(parts)
        self._framing -= len(content)
        self._carried += len(content)
        self._paused = len(parts) == MAX_CHUNKS
        if isinstance(event, h11.EndOfMessage):
            return content, False
        if self._framing > MAX_FRAMING + 2 * self._carried:
            text = "The body's chunks carry next to nothing: send larger ones, or a Content-Length."
            raise ApiError(400, text, "bad_request")
        if not self._paused and len(self._http.trailing_data[0]) > MAX_READ:
            text = f"A chunk's header, or what follows the last, is larger than {MAX_READ} bytes."
            raise ApiError(431, text, "header_too_large")
        return content, True

    def _take_more(self) -> bool:
        """Give h11 more of a body's chunks. False if there are none, or it has yet to read a header
        or trailers of some length, which are the work of one turn."""
        if not self._full or self._declared or len(self._http.trailing_data[0]) > MAX_READ:
            return False
        try:
            data = self._socket.recv(MAX_READ)
        except OSError:  # where it is an error, the next `_read` meets it
            data = b""
        self._full = len(data) == MAX_READ
        self._framing += len(data)
        if data:
            self._http.receive_data(data)
        return bool(data)

    async def _receive(self, *, stalled: bool = False) -> None:
        """Give h11 what comes next. While that has to be waited for the request is *stalled*, if it
        is its client that keeps it waiting."""
        data = await self._read(max(MAX_READ, min(_BULK, self._declared)), stalled=stalled)
        self._declared = max(0, self._declared - len(data))
        self._framing += len(data)
        self._http.receive_data(data)

    async def _read(self, most: int, *, stalled: bool = False) -> bytes:
        """Bytes, at most *most*; none when no more will come. If cancelled, it has taken none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        here = self._full or (isinstance(self._socket, TlsSocket) and self._socket.pending)
        while True:
            if not here:
                with self._place.stalled() if stalled else contextlib.nullcontext():
                    await trio.lowlevel.wait_readable(self._socket)
            if (come := self._peek()) != b"":  # an end of the stream is no work
                await self._place.turn(probe=_PROBE.match(come or b"") is not None)
            try:
                data = self._socket.recv(most)
            except (BlockingIOError, ssl.SSLWantReadError):
                here = False
                continue
            except OSError:
                self._give_up()
                data = b""
            self.left = not data
            self._full = len(data) == most
            return data

    def _peek(self) -> bytes | None:
        """The first of what comes, if the client may leave or begin a request: nothing if it has
        left. None otherwise, and within TLS, where it cannot be seen in time."""
        between = self._http.their_state is h11.IDLE and not self.begun
        if isinstance(self._socket, TlsSocket) or not (between or self._place.over):
            return None
        try:
            return self._socket.recv(_PROBE_SIZE, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _give_up(self) -> None:
        self.gone = True
        self._later.clear()
        self.release()
