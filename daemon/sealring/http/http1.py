"""The HTTP/1.1 server of a node, in its event loop, so that an answer costs no change of threads.

On one socket there are requests one after the other, until either side ends it. h11 says what the
bytes mean. The socket may be one of TLS (`tls`), which is read and written in the same way.

`ApiServer` listens. `HttpConnection` answers requests by an ASGI app, `HttpExchange` is one request
and its answer, and `Http1` reads and writes the socket. A request that is not HTTP/1.1 gets an
error in the shape of the API's other errors, and ends the connection. An offer to upgrade to HTTP/2
or to a websocket is ignored, as HTTP/1.1 asks of a server that speaks neither. An error here ends
this connection alone.

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

Neither a client nor a lack of descriptors ends the listening: connections that wait for their
clients are closed first (`connections`). The generator closes the server once the requests under
way have finished.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import logging
import re
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from http.client import responses
from typing import Final
from urllib.parse import unquote

import attrs
import h11
import trio
from sealring_protocol.codec.wire import clip
from sealring_trio.net.connecting import cannot_listen
from sealring_trio.net.h11_patterns import bound_h11
from sealring_trio.units import format_address, is_loopback
from starlette.types import ASGIApp, Message, Scope

from sealring.dialects.errors import INVALID, ApiError, failed, unavailable
from sealring.http.connections import (
    MAX_CONNECTIONS,
    Connections,
    Place,
    for_clients,
    raise_limit,
    source_of,
)
from sealring.http.tls import Tls, TlsSocket

log = logging.getLogger("sealring.api")

HEADER_SECONDS: Final = 20.0
"""Seconds for a request's header, from the connection's start or from the last answer on it."""

MAX_TARGET: Final = 2 << 10
"""Bytes of a request's target: a path is looked for among the routes, a query is split at each
``&``, and neither is for free. No path or query of this API is a tenth of it."""

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

_SENDS: Final = (h11.SEND_BODY, h11.ERROR)
"""States of a client that may still be sending."""

_VERSIONS: Final = (b"1.0", b"1.1")
_WITHOUT_BODY: Final = (204, 304)
_REASONS: Final = {**responses, 499: "Client Closed Request", 529: "Overloaded"}
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE)

bound_h11()


@attrs.define
class Endpoints:
    """Host and port of a connection's client, and of this server; *secure* if they speak TLS. At a
    Unix socket the client has none: it is the owner of the node."""

    client: tuple[str, int] | None
    server: tuple[str, int]
    secure: bool = False


@attrs.define
class HttpConnection:
    """A connection to *app*, which has *place*. With *wrong*, its first request gets that error."""

    _app: ASGIApp
    _place: Place
    _http: Http1
    _ends: Endpoints
    _wrong: ApiError | None = None
    _method: bytes = b""

    async def run(self) -> None:
        """Answer what the client asks."""
        try:
            while await self._one():
                pass
            self._place.linger()
            await self._http.linger()
        finally:
            self._http.close()
            self._place.leave()

    async def _one(self) -> bool:
        """Answer one request. True if another may follow."""
        self._place.idle()
        self._method = b""
        try:
            request = await self._request()
        except ApiError as error:
            self._place.busy()  # while this is sent, it does not wait for a request
            await self._refuse(error)
            return False
        if request is None:
            return False
        self._place.busy()
        exchange = HttpExchange(self._http, request, self._ends, self._place)
        await exchange.run(self._app)
        if not exchange.over:
            await self._break_off(exchange)
            return False
        return not self._place.last and self._http.again()

    async def _request(self) -> h11.Request | None:
        """The next request; None if there is none. Raises `ApiError`."""
        request = None
        with trio.move_on_after(HEADER_SECONDS) as limit:
            try:
                request = await self._http.request()
            except ApiError:
                if self._http.left:
                    return None  # in the middle of a header, which nobody waits for any more
                raise
        if limit.cancelled_caught:
            if not self._http.begun:
                return None
            late = f"The request's header did not arrive within {HEADER_SECONDS:g} seconds."
            raise ApiError(408, late, "request_timeout")
        if request is None:
            return None
        self._method = request.method
        if self._wrong is not None:
            raise self._wrong
        _check(request)
        return request

    async def _break_off(self, exchange: HttpExchange) -> None:
        """End a request that the app has not answered to its end."""
        if exchange.fault is not None:
            await self._refuse(exchange.fault)
        elif self._http.left:  # or has only said that it will send no more, and listens still
            hasty = "The client closed its side of the connection before it had its answer."
            await self._refuse(ApiError(499, hasty, "client_closed"))
        else:
            await self._refuse(failed())

    async def _refuse(self, error: ApiError) -> None:
        if self._http.refusable:
            for event in _answer_with(error, only_header=self._method == b"HEAD"):
                self._http.put(event)
            await self._http.flush()


def _check(request: h11.Request) -> None:
    """Raise `ApiError` for requests that h11 accepts and this server does not."""
    if request.http_version not in _VERSIONS:
        raise ApiError(505, "This server speaks HTTP/1.1.", "http_version_not_supported")
    if len(request.target) > MAX_TARGET:
        text = f"The request's path and query are larger than {MAX_TARGET >> 10} KiB."
        raise ApiError(414, text, "uri_too_long", kind=INVALID)
    size = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
    if size > MAX_HEADER:
        message = f"The header is larger than {MAX_HEADER >> 10} KiB."
        raise ApiError(431, message, "header_too_large")
    if request.method == b"CONNECT":
        raise ApiError(501, "This server is no proxy.", "not_implemented")
    names = [name for name, _ in request.headers]
    # RFC 9112, 6.1: whoever sends both, or the one in HTTP/1.0, may be smuggling a request.
    if b"transfer-encoding" in names and (
        b"content-length" in names or request.http_version == b"1.0"
    ):
        message = "The request says in two ways how long its body is."
        raise ApiError(400, message, "bad_request", kind=INVALID)


def refusal(error: ApiError) -> bytes:
    """The bytes of an answer with *error*, for a client from which nothing more is read."""
    http = h11.Connection(h11.SERVER)
    return b"".join(http.send(event) or b"" for event in _answer_with(error))


def _answer_with(error: ApiError, *, only_header: bool = False) -> list[h11.Event]:
    """The answer with *error*, which no app gives. The connection ends after it."""
    name = f"req-{secrets.token_hex(12)}"
    log.debug("%s: refused: %d %s", name, error.status, error.code)
    body = json.dumps(error.body()).encode()
    headers = {
        "content-type": "application/json",
        "x-content-type-options": "nosniff",
        **error.headers,
        "x-request-id": name,
        "content-length": str(len(body)),
        "date": formatdate(usegmt=True),
        "connection": "close",
    }
    begin = h11.Response(
        status_code=error.status, headers=list(headers.items()), reason=_reason(error.status)
    )
    return [begin, *([] if only_header else [h11.Data(data=body)]), h11.EndOfMessage()]


def _reason(status: int) -> bytes:
    """What the status line says of *status*, without which some clients do not take it."""
    return _REASONS.get(status, "Error").encode()


@attrs.define
class HttpExchange:
    """One request on *http*, to be answered once."""

    _http: Http1
    _request: h11.Request
    _ends: Endpoints
    _place: Place

    fault: ApiError | None = None
    """What is wrong with the request's body, if something is."""

    over: bool = False
    """Whether the whole answer has been given."""

    _body_read: bool = False
    _start: Message | None = None
    _begun: bool = False
    _has_body: bool = True

    async def run(self, app: ASGIApp) -> None:
        """Have *app* answer. Its faults are logged, and go no further."""
        try:
            await app(self._scope(), self._receive, self._send)
        except* Exception:
            log.exception("a request failed")

    def _scope(self) -> Scope:
        target, headers = _in_origin_form(self._request)
        path, _, query = target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._request.http_version.decode(),
            "method": self._request.method.decode(),
            "scheme": "https" if self._ends.secure else "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": self._ends.client,
            "server": self._ends.server,
            "state": {"connection": self._place.number, "owner": self._ends.client is None},
        }

    async def _receive(self) -> Message:
        if not self._body_read and not self._begun:
            return await self._part()
        if not self.over and self.fault is None:
            await self._http.until_left()
        return {"type": "http.disconnect"}

    async def _part(self) -> Message:
        """The next part of the body."""
        await self._http.invite()
        try:
            body, more = await self._http.body_part()
        except ApiError as fault:
            self.fault = fault
            self._body_read = True
            return {"type": "http.disconnect"}
        self._body_read = not more
        return {"type": "http.request", "body": body, "more_body": more}

    async def _send(self, message: Message) -> None:
        if self._http.gone:
            await trio.lowlevel.checkpoint()
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            self._begin(self._start)
            self._start = None
        body = message.get("body", b"")
        if body and self._has_body:
            self._http.put(h11.Data(data=body))
        if not message.get("more_body", False):
            self._http.put(h11.EndOfMessage())
            self.over = True
        await self._http.flush()
        if self.over:
            self._http.release()

    def _begin(self, start: Message) -> None:
        self._begun = True
        status: int = start["status"]
        headers = [*start["headers"], (b"date", formatdate(usegmt=True).encode())]
        # A body that has not come whole may never come, and a next request would be part of it.
        if not self._http.discard_body() or self._place.last:
            headers.append((b"connection", b"close"))
        self._has_body = self._request.method != b"HEAD" and status not in _WITHOUT_BODY
        self._http.put(h11.Response(status_code=status, headers=headers, reason=_reason(status)))


def _in_origin_form(request: h11.Request) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The target's path and query, and the headers. Where the target names a host, as for a proxy,
    that host replaces the header's (RFC 9112, 3.2.2)."""
    absolute = _ABSOLUTE.fullmatch(request.target)
    if absolute is None:
        return request.target, list(request.headers)
    host, rest = absolute.groups()
    others = [(name, value) for name, value in request.headers if name != b"host"]
    return rest if rest.startswith(b"/") else b"/" + rest, [(b"host", host), *others]


class Http1:
    """One connection. Takes over *sock*, and informs *place* when it waits for the client."""

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
        """Wait for the client to leave, or for the answer's end (`release`).

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
        """Say to a client of TLS that nothing more comes, so that the end is no cut."""
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


# ---------------------------------------------------------------------- listening

BACKLOG: Final = 1024
"""Connections that wait to be accepted."""

CLOSE_SECONDS: Final = 1.0
"""Time for the connections to close when the server does."""

FULL_SECONDS: Final = 0.1
"""Pause where the system has no room for one more connection."""

ACCEPTS: Final = 16
"""Connections that are accepted in one pass of the event loop."""

_BROKEN: Final = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@attrs.define
class ApiServer:
    """The HTTP server of a node's API: *app* at *address*, with *tls* if there is any."""

    address: tuple[str, int]
    app: ASGIApp
    tls: Tls | None = None

    _closing: trio.Event = attrs.field(factory=trio.Event)
    _closed: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`. Raises `OperationError` when it cannot listen."""
        listeners = await listen(*self.address, "for the API", "api")
        try:
            async with trio.open_nursery() as nursery:
                if self.tls is not None:
                    nursery.start_soon(self.tls.watch)
                task_status.started()
                self._log_address()
                book = Connections(most_connections())
                await serve_connections(self.app, listeners, book, self._closing, self.tls)
                nursery.cancel_scope.cancel()
        finally:
            self._closed.set()

    async def close(self) -> None:
        """Stop listening, and let the connections end."""
        self._closing.set()
        with trio.move_on_after(2 * CLOSE_SECONDS):
            await self._closed.wait()

    def _log_address(self) -> None:
        scheme = "http" if self.tls is None else "https"
        log.info("the API is at %s://%s/v1", scheme, format_address(*self.address))
        if self.tls is None and not is_loopback(self.address[0]):
            log.warning(
                "it is plain HTTP: keys and texts can be read on the way. Give it a certificate "
                "(tls_certificate and tls_key in the config), put a proxy that speaks TLS before "
                "it, or reach it through a tunnel"
            )


@functools.cache
def most_connections() -> int:
    """The most connections that the API may have in this process."""
    limit = raise_limit()
    most = min(MAX_CONNECTIONS, for_clients(limit))
    if most < MAX_CONNECTIONS:
        log.warning(
            "the API takes %d connections at once, for this process may open %d files; "
            "to have more, raise that limit: ulimit -n",
            most,
            limit,
        )
    return most


async def listen(host: str, port: int, purpose: str, key: str) -> list[trio.SocketListener]:
    """Listeners at this address. Raises `OperationError`, which names their *purpose* and the
    config's *key* for the address."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        change = f"Change '{key}' in the config."
        raise cannot_listen(error, host, port, change, purpose) from None
    for listener in listeners:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
            listener.socket.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STUCK_SECONDS * 1000)
            )
    return listeners


async def serve_connections(
    app: ASGIApp,
    listeners: Sequence[trio.SocketListener],
    book: Connections,
    closing: trio.Event,
    tls: Tls | None = None,
) -> None:
    """Serve *app* at *listeners*, which are closed at the end, until *closing*, with *tls* if it is
    given; what is still being answered then has `CLOSE_SECONDS`."""
    doors = [_plain(listener) for listener in listeners]
    try:
        async with trio.open_nursery() as turns:
            turns.start_soon(book.turns.give)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener in doors:
                        served = _Acceptor(app, book, tls, connections)
                        accepting.start_soon(served.accept, listener)
                    await closing.wait()
                    accepting.cancel_scope.cancel()
                for listener in doors:
                    listener.close()
                book.close()
                connections.cancel_scope.deadline = trio.current_time() + CLOSE_SECONDS
            turns.cancel_scope.cancel()
    finally:
        for listener in doors:
            listener.close()


def _plain(listener: trio.SocketListener) -> socket.socket:
    """The socket of *listener*, from which more than one connection can be taken in a pass."""
    of = listener.socket
    sock = socket.socket(of.family, of.type, of.proto, of.detach())
    sock.setblocking(False)
    return sock


@attrs.frozen
class _Acceptor:
    """Where connections to *app* come in, to be served in *connections*."""

    app: ASGIApp
    book: Connections
    tls: Tls | None
    connections: trio.Nursery

    async def accept(self, listener: socket.socket) -> None:
        """Take every connection that comes, and begin to serve it."""
        for number in itertools.count(1):
            if number % ACCEPTS == 0:
                await trio.lowlevel.checkpoint()
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
                continue
            except OSError as error:
                if error.errno in _BROKEN:
                    raise
                if error.errno in _FULL:
                    self.book.make_room()
                    await trio.sleep(FULL_SECONDS)
                continue  # else the client has gone
            try:
                client, server = sock.getpeername()[:2], sock.getsockname()[:2]
            except OSError:
                sock.close()  # it has been cut off already
                continue
            ends = Endpoints(client, server, secure=self.tls is not None)
            sock.setblocking(False)
            # Of a handshake that has not come whole something is always there to be read.
            seen = sock if self.tls is None else None
            place = self.book.admit(source_of(client[0]), seen)
            if place is not None:
                self.connections.start_soon(self._serve, sock, ends, place)
            elif self.tls is None:
                _turn_away(sock)
            else:
                sock.close()  # an answer would cost a handshake

    async def _serve(self, sock: socket.socket, ends: Endpoints, place: Place) -> None:
        """Serve one client. What goes wrong is logged, and ends with its connection."""
        try:
            with place.scope:
                wrong = None
                stream: socket.socket | TlsSocket | None = sock
                if self.tls is not None:
                    stream = await self._greet(self.tls, sock, place)
                    if stream is sock:
                        text = "This port speaks TLS, and the request was plain HTTP: use https://."
                        wrong = ApiError(400, text, "tls_needed", kind=INVALID)
                if stream is not None:
                    await HttpConnection(self.app, place, Http1(stream, place), ends, wrong).run()
        except* Exception:
            log.exception("a connection of the API failed")

    @staticmethod
    async def _greet(
        tls: Tls, sock: socket.socket, place: Place
    ) -> socket.socket | TlsSocket | None:
        """See `Tls.greet`. Who gets no further leaves its *place*."""
        greeted = None
        try:
            greeted = await tls.greet(sock, place)
        finally:
            if greeted is None:
                place.leave()
        return greeted


def _turn_away(sock: socket.socket) -> None:
    """Say that there is no room, and close *sock*."""
    error = unavailable("The API has as many connections as it may.", "overloaded")
    with sock, contextlib.suppress(OSError):
        sock.send(refusal(error))
        sock.recv(MAX_HEADER)  # the kernel throws the answer away if something is left unread
