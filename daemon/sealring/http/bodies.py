"""Bodies: those of requests, read within limits of size, time and form, and the events of answers.

A request's body is bounded before a byte of it is kept, and so are all bodies together. One that is
too large is read to its end and thrown away, as far as that goes quickly, since a client that is
cut off while it writes never sees why.

What a client has of a stream is counted in whole events, the answer's own: what breaks a silence
begins as a comment, and does not count (`count_events`). So whoever makes the rest of a stream
knows where that begins.

A client that leaves ends its request at once: `attended` runs the work beside a task that listens
for that alone. A stream sends a comment after a while of silence, since a long prompt can take
minutes to read in, and proxies cut silent connections.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Send

from sealring.dialects.errors import INVALID, ApiError, unavailable
from sealring.dialects.replies import KEEPALIVE, broken_off
from sealring.text.workers import SharedBudget

T = TypeVar("T")

MAX_BODY: Final = 8 << 20
"""Bytes of one body: a prompt of a million tokens and more. Memory: that much, twice for a moment,
for each request that is being read."""

MAX_BODIES: Final = 128 << 20
"""Bytes of all bodies that are being read at once, of which one caller's may be half."""

BODY_SECONDS: Final = 30.0
"""Seconds that a body may take to arrive."""

LARGE: Final = 64 << 10
"""Bytes from which what a request holds counts. Small ones are bounded by the connections, and are
never refused for what others hold."""

DISCARD_SECONDS: Final = 5.0
MAX_DISCARD: Final = 128 << 20
"""Most bytes of a body beyond the limit that are read and thrown away."""


class Bodies:
    """Reads bodies, and keeps count of what is being read."""

    def __init__(self) -> None:
        self._reading = SharedBudget(MAX_BODIES)

    async def read(self, request: Request, owner: str) -> bytes:
        """The JSON text in *request* of *owner*. Raises `ApiError`, or `ClientDisconnect`."""
        _check_form(request)
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > MAX_BODY:
            await _discard(request)
            raise _too_large()
        body = bytearray()
        try:
            with trio.fail_after(BODY_SECONDS):
                while True:
                    message = await _receive(request)
                    part = message.get("body", b"")
                    if not self._reading.take(owner, len(part)):
                        raise unavailable("Too many requests are being read at once.", "overloaded")
                    body += part
                    if len(body) > MAX_BODY:
                        break
                    if not message.get("more_body", False):
                        return bytes(body)
        except trio.TooSlowError:
            late = f"The body did not arrive within {BODY_SECONDS:g} seconds."
            raise ApiError(408, late, "request_timeout") from None
        finally:
            self._reading.give_back(owner, len(body))
        if message.get("more_body", False):
            await _discard(request)
        raise _too_large()


async def _receive(request: Request) -> Message:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message


async def _discard(request: Request) -> None:
    if request.headers.get("expect", "").strip().lower() == "100-continue":
        return  # its client waits for the answer, and sends nothing yet
    size = 0
    with trio.move_on_after(DISCARD_SECONDS):
        while size < MAX_DISCARD:
            message = await _receive(request)
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                return


def _check_form(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A page of another origin can send a form or plain text without asking; JSON it cannot.
        message = f"The body must be application/json, not '{kind or 'unnamed'}'."
        raise ApiError(415, message, "unsupported_media_type", param="content-type")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        message = f"The body must not be encoded; it is '{coding}'."
        raise ApiError(415, message, "unsupported_media_type", param="content-encoding")


def _too_large() -> ApiError:
    message = f"The body is larger than {MAX_BODY >> 20} MiB."
    return ApiError(413, message, "request_too_large", kind=INVALID)


KEEPALIVE_SECONDS: Final = 2
"""Silence in a stream after which a comment is sent. Whoever misses two of them may ask another
machine: this one has stopped, or the way to it is cut without a word."""

_HEADERS: Final = [
    (b"x-sealring-keepalive", b"%d" % KEEPALIVE_SECONDS),
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),  # a proxy that compresses keeps events back
    (b"x-accel-buffering", b"no"),  # has nginx pass each event on
]


def count_events(data: bytes) -> int:
    """The number of events in *data*, which is whole events. What begins with a comment is none."""
    return data.count(b"\n\n") - data.startswith(b":") - data.count(b"\n\n:")


class ClientGone(Exception):
    """The client has left before its answer was complete."""


async def beside(
    work: Callable[[], Awaitable[T]], *others: Callable[[trio.CancelScope], Awaitable[None]]
) -> list[T]:
    """The result of *work*, which runs beside *others* until it ends; none if one of these has
    cancelled the scope that it is given. Raises any `ApiError` of *work* by itself, in no group."""
    given: list[T] = []
    failed: ApiError | None = None
    async with trio.open_nursery() as nursery:
        for other in others:
            nursery.start_soon(other, nursery.cancel_scope)
        try:
            given.append(await work())
        except ApiError as error:
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return given


async def attended(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """The result of *work*, which is cancelled when the client leaves. Raises `ClientGone` then,
    and any `ApiError` of *work*."""

    async def leave(scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    if not (given := await beside(work, leave)):
        raise ClientGone
    return given[0]


@attrs.define
class HeldBytes:
    """What one request of *owner* holds of the *budget*. It may grow until the request is over."""

    _budget: SharedBudget
    _owner: str
    _size: int = 0
    _taken: int = 0

    def grow(self, size: int) -> None:
        """Hold *size* bytes more; fewer if it is below 0. Raises `ApiError` if it would be too
        many."""
        self._size += size
        if self._size < LARGE or self._size <= self._taken:
            return
        if not self._budget.take(self._owner, self._size - self._taken):
            text = "The requests under way, and answers that their clients do not take, are large."
            raise unavailable(text, "overloaded")
        self._taken = self._size

    def end(self) -> None:
        """Hold nothing any more."""
        if self._taken:
            self._budget.give_back(self._owner, self._taken)
        self._size = self._taken = 0


@attrs.define(eq=False)
class EventStream:
    """A response of server-sent events; several tasks may write. *before* is called before anything
    is sent."""

    _send: Send
    _before: Callable[[], None] = lambda: None
    opened: bool = False
    _writing: trio.Lock = attrs.field(factory=trio.Lock)
    _last: float = attrs.field(factory=trio.current_time)

    async def open(self) -> None:
        """Send the headers of success. From here on an error is an event."""
        self.opened = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS]})

    async def write(self, events: bytes) -> None:
        """Send *events*. Waits while the client does not read."""
        async with self._writing:
            self._before()
            await self._send({"type": "http.response.body", "body": events, "more_body": True})
            self._last = trio.current_time()

    async def close(self) -> None:
        """No more events."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def keep_alive(self, events: bytes) -> None:
        """Break every silence of `KEEPALIVE_SECONDS` by *events*, until cancelled."""
        while True:
            await trio.sleep_until(self._last + KEEPALIVE_SECONDS)
            if trio.current_time() >= self._last + KEEPALIVE_SECONDS:
                await self.write(events)


_EVENTS: Final = b"text/event-stream"
_ID: Final = re.compile(rb'"id":"((?:chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]{24})"')
_EVENT_ID: Final = re.compile(rb"(?:\A|\n\n)id: ([A-Za-z0-9_-]{1,64}):([0-9]{1,12})\n")
_NUMBER: Final = re.compile(rb'"sequence_number":(\d{1,15})')

MAX_PART: Final = 128 << 10
"""Bytes of an event, or of an answer in one piece, that are held until it is whole. What is larger
is passed on as it comes, and can be gone on with no more where it stops."""


@attrs.define(eq=False)
class PassedOn:
    """What a client has of an answer, which *send* takes to it. The answer may come from one maker
    after another: each begins with headers, of which the client gets the first, and goes on after
    `place`. Of a stream whole events are passed on, and an answer in one piece once it is whole."""

    _send: Send
    begun: bool = False
    """Whether the client has any of it: an error has no status of its own any more."""

    streams: bool = False
    count: int = 0
    """The events that the client has of it."""

    last: tuple[str, int] | None = None
    """The id of the last of them, if they have ids."""

    name: str = ""
    number: int = -1
    """The answer's name, and the number of a response's latest event."""

    cut: bool = False
    """Whether a part of an event, or of an answer in one piece, is passed on."""

    _start: Message | None = None  # goes with the first part of the body
    _part: bytearray = attrs.field(factory=bytearray)
    _fits: bool = False  # an answer in one piece, which is held until it is whole
    _latest: float = attrs.field(factory=trio.current_time)

    @property
    def place(self) -> int:
        """The number of the next event that the client lacks."""
        return self.count if self.last is None else self.last[1] + 1

    @property
    def resumable(self) -> bool:
        """Whether the client can come back by itself: its events have ids."""
        return self.last is not None

    async def send(self, message: Message) -> None:
        """Pass *message* of ASGI on, as far as it may be."""
        if message["type"] == "http.response.start":
            self._part.clear()  # the next maker begins after the last whole event
            if not self.begun:
                headers = dict(message["headers"])
                self.streams = headers.get(b"content-type", b"").startswith(_EVENTS)
                length = headers.get(b"content-length", b"")
                self._fits = length.isdigit() and len(length) < 10 and int(length) <= MAX_PART
                self._start = message
            return
        data, more = message.get("body", b""), message.get("more_body", False)
        if not self.streams:
            await self._piece(data, more=more)
            return
        if self._part or not data.endswith(b"\n\n"):
            data = self._whole(data) + (b"" if more else bytes(self._part))
        if data:
            self._note(data)
        if data or not more:
            await self._give(data, more=more)

    def _whole(self, data: bytes) -> bytes:
        """What may be passed on now that *data* has come: whole events, or a part of one that is
        too large to be held."""
        self._part += data
        end = self._part.rfind(b"\n\n") + 2
        if end < 2:
            end = len(self._part) - 1 if len(self._part) > MAX_PART else 0
        whole = bytes(self._part[:end])
        del self._part[:end]
        return whole

    def _note(self, data: bytes) -> None:
        """The client is given *data* of a stream."""
        # The end of an event whose beginning it has is no comment, whatever that begins with.
        self.count += data.count(b"\n\n") - data.count(b"\n\n:")
        self.count -= data.startswith(b":") and not self.cut
        self.cut = not data.endswith(b"\n\n")
        if b"id: " in data:
            for found in _EVENT_ID.finditer(data):
                self.last = found[1].decode(), int(found[2])
        if not self.name and (named := _ID.search(data)) is not None:
            self.name = named[1].decode()
        at = data.rfind(b'"sequence_number":')
        if at >= 0 and (numbered := _NUMBER.match(data, at)) is not None:
            self.number = int(numbered[1])

    async def _piece(self, data: bytes, *, more: bool) -> None:
        """Pass *data* of an answer in one piece on, once it is whole if it fits."""
        if self._fits:
            self._part += data
            if more:
                return
            data = bytes(self._part)
            self._part.clear()
        if data or not more:
            self.cut = more
            await self._give(data, more=more)

    async def _give(self, data: bytes, *, more: bool) -> None:
        start, self._start = self._start, None
        self.begun = True
        self._latest = trio.current_time()
        if start is not None:
            await self._send(start)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def break_silence(self) -> None:
        """Send a comment if the client of a stream has had nothing for `KEEPALIVE_SECONDS`."""
        silent = trio.current_time() >= self._latest + KEEPALIVE_SECONDS
        if silent and self.streams and self.begun and not self.cut:
            await self._give(KEEPALIVE, more=True)

    async def end(self, path: str, error: ApiError, *, resumable: bool) -> None:
        """End the answer to a request for *path* by *error*, to which a client can come back if it
        is *resumable*. What stopped within an event, or is no stream, has no end. Raises *error* if
        the client has nothing of the answer."""
        if not self.begun:
            raise error
        if not self.streams or self.cut:
            return
        event = broken_off(path, error, self.name, self.number + 1, resumable=resumable)
        if event:
            await self._give(event, more=False)


@attrs.define(eq=False)
class RestOfStream(EventStream):
    """As such, of which somebody has the first *after* events, as `count_events` counts: they are
    made again, and not sent."""

    after: int = attrs.field(default=0, kw_only=True)

    async def write(self, events: bytes) -> None:
        """Send what is new of *events*."""
        if self.after:
            blocks = [block + b"\n\n" for block in events.split(b"\n\n")[:-1]]
            while blocks and self.after:
                self.after -= count_events(blocks.pop(0))
            events = b"".join(blocks)
            if not events:
                await trio.lowlevel.checkpoint()
                return
        await super().write(events)
