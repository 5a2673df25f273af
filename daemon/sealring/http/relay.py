"""Requests that pass through a member: a follower's API, and what the head does for it.

Every machine whose config has `api` serves the whole API. A follower reads and writes HTTP for its
clients: its TLS, its limits of connections, headers and slow clients, its names and pages
(`names`). It passes each request on to the head as a stream of its API link, and the head's answer
back (`RelayApp`). The head has its own app answer, as if the client had asked there
(`RelayedRequests`). Keys, turns, budgets and answers are the head's.

Either end holds at most a window of a stream's body. It gives credit for what its client, or its
app, has taken: so a client that reads slowly holds up the head's answer, and an upload waits for
whom it is for. A client that leaves drops its stream, which to the head's app is a client that
leaves.

Where the head is lost in the middle of a stream of events, the client gets an error event in the
dialect of its path, with the answer's id; what is no such stream, or stopped within an event, is
cut off. Before an answer has begun there is an error with a status of its own.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import attrs
import trio
from sealring_protocol.codec.relay_messages import Headers, Question
from sealring_protocol.codec.wire import clip
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.events import RelayDown, RelayEventCame, RelayNews, RelayUp
from sealring_protocol.limits import (
    MAX_CLIENT,
    MAX_METHOD,
    MAX_REASON,
    MAX_STREAMS,
    STREAM_WINDOW,
)
from sealring_protocol.relay import AskCame, BodyCame, DropCame, Relay, RelayEvent, ReplyCame
from sealring_trio.units import is_loopback
from starlette import datastructures
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealring.dialects.errors import INVALID, ApiError, unavailable
from sealring.dialects.replies import broken_off
from sealring.files.config import Config
from sealring.http.bodies import beside
from sealring.http.connections import PART_OF_SOURCE, counted, source_of
from sealring.http.gate import PREFIXES, error_response
from sealring.http.http1 import MAX_FIELDS, MAX_HEADER, MAX_TARGET, PROBES, STUCK_SECONDS
from sealring.http.names import (
    check_host,
    check_page,
    is_named,
    is_page,
    is_preflight,
    plain,
    preflight,
    share,
    shared_with,
)

if TYPE_CHECKING:
    from sealring.http.succession import Ring

log = logging.getLogger("sealring.api")

CONNECTION: Final = b"x-sealring-connection"
"""The header by which a follower tells its clients' connections apart, so that those without a key
share cached prefixes as at the head. What a client sends by this name is left out."""

_FOR_ONE_HOP: Final = frozenset(
    {
        CONNECTION,
        b"connection",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that concern a connection, or are read where it is (RFC 9110, 7.6.1)."""

_WATCHING: Final = "/v1/cluster/events"
"""What the page watches, as long as it is open."""

_BRIEF: Final = "No request can be answered here now."
"""Why, to whoever names another server: a message may name machines and their addresses."""

RING: Final = "/_ring/"
"""How the paths begin that are for doors alone."""

SUCCESSION: Final = f"{RING}succession"

_EVENTS: Final = b"text/event-stream"
_ID: Final = re.compile(rb'"id":"((?:chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]{24})"')
_NUMBER: Final = re.compile(rb'"sequence_number":(\d{1,15})')
_LENGTH: Final = re.compile(rb"[0-9]{1,20}")  # as h11 has it


class StreamGone(Exception):
    """The other end has let go of the stream, for the reason that this says."""


class RelayStream:
    """Stream *number* of *relay*, for the tasks that work on it. *flush* has the node send what the
    relay has to send."""

    def __init__(self, relay: Relay, number: int, flush: Callable[[], None]) -> None:
        self._relay = relay
        self._number = number
        self._flush = flush
        self._reply: ReplyCame | None = None
        self._body = bytearray()  # in one piece: a part may have one byte, and an event has 100
        self._whole = False
        self._consumed = 0
        self._gone: DropCame | None = None
        self.endless = False
        """It ends when its client leaves: nobody waits for that."""
        self.ended: ApiError | None = None
        """Why this node has ended it, for its client."""
        self._changed = trio.lowlevel.ParkingLot()

    def hear(self, event: RelayEvent) -> None:
        """*event* came on the stream."""
        match event:
            case ReplyCame():
                self._reply = event
            case BodyCame(_, data, last):
                self._body += data
                self._whole = last
            case DropCame():
                self._gone = event
        self._changed.unpark_all()

    async def take(self) -> ReplyCame | BodyCame | DropCame:
        """What comes next, a body as far as it has come. Call `took` once that is consumed."""
        await trio.lowlevel.checkpoint()
        while not (self._reply or self._body or self._whole):
            if self._gone is not None:
                return self._gone
            await self._changed.park()
        if (reply := self._reply) is not None:
            self._reply = None
            return reply
        body = BodyCame(self._number, bytes(self._body), self._whole)
        self._body.clear()
        self._whole = False
        return body

    def took(self, size: int) -> None:
        """*size* more bytes are consumed."""
        self._consumed += size
        if self._consumed >= STREAM_WINDOW // 2:  # from which on there is credit
            self._relay.took(self._number, self._consumed)
            self._consumed = 0
            self._flush()

    def reply(self, status: int, headers: Headers) -> None:
        """Begin the answer. Raises `StreamGone`."""
        self._check()
        self._relay.reply(self._number, status, headers)
        self._flush()

    def offer(self, data: bytes) -> int:
        """Send as much of *data* as the other end has room for, at once, and nothing of a stream
        that is over; how much that was."""
        if piece := data[: self._relay.room(self._number)]:
            self._relay.send(self._number, piece, last=False)
            self._flush()
        return len(piece)

    async def changed(self) -> bool:
        """Wait until there is room, or something has come; whether the stream goes on."""
        await self._changed.park()
        return self._relay.is_live(self._number)

    @property
    def lost(self) -> bool:
        """Whether it is over because its link is gone."""
        return self._relay.ended

    async def send(self, data: bytes, *, last: bool) -> None:
        """Send *data*, as the other end has room for it; nothing follows the *last*. An end that
        makes no room for `STUCK_SECONDS` is given up. Raises `StreamGone`."""
        at = 0
        while True:
            self._check()
            piece = data[at : at + self._relay.room(self._number)]
            at += len(piece)
            whole = at == len(data)
            if piece or whole:
                self._relay.send(self._number, piece, last=last and whole)
                self._flush()
            if whole:
                break
            with trio.move_on_after(STUCK_SECONDS) as limit:
                await self._changed.park()
            if limit.cancelled_caught:
                self.drop(f"it took nothing for {STUCK_SECONDS:g} s")
        await trio.lowlevel.checkpoint()

    def drop(self, reason: str = "") -> None:
        """Let go of the stream, for *reason*; that is nothing if it is over."""
        if self._gone is None:
            self._gone = DropCame(self._number, reason)
        self._changed.unpark_all()
        self._relay.drop(self._number, clip(reason, MAX_REASON))
        self._flush()

    def end(self, error: ApiError) -> None:
        """End the stream here, and have its client hear *error* once what has come is sent."""
        self.ended = error
        self.drop(error.message)

    def _check(self) -> None:
        if not self._relay.is_live(self._number):
            raise StreamGone(self._gone.reason if self._gone is not None else "it is over")


Asked = Callable[[int, Question, RelayStream], None]
"""Hears that the member of a rank asks something."""


class RelayStreams:
    """The streams of all API links of a node. *relay_of* gives this node's end of the link with a
    rank, None if that is not up, and *flush* sends what it has to send."""

    def __init__(
        self, relay_of: Callable[[int], Relay | None], flush: Callable[[int], None]
    ) -> None:
        self._relay_of = relay_of
        self._flush = flush
        self._open: dict[tuple[int, int], RelayStream] = {}
        self._links: Counter[int] = Counter()  # that each rank has had
        self._linked = trio.lowlevel.ParkingLot()
        self.asked: Asked | None = None
        self.lost: Callable[[int], None] | None = None
        """Hears that the link with a rank is lost."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def under_way(self) -> int:
        """The number of streams that end by themselves."""
        return sum(not stream.endless for stream in self._open.values())

    @property
    def up(self) -> bool:
        """Whether this node can ask the head."""
        return self._relay_of(0) is not None

    async def linked(self) -> None:
        """Wait until this node can ask the head."""
        while not self.up:
            await self._linked.park()

    def link_of(self, rank: int) -> str:
        """A name of the link with *rank*, which no other link has. A member that starts again, or
        another of the same rank, numbers its clients' connections anew."""
        return f"{rank} {self._links[rank]}"

    def hear(self, news: RelayNews) -> None:
        """The node has *news*. Where a link is lost each of its streams has heard of that, and the
        streams of the next one take their numbers."""
        match news:
            case RelayUp(rank):
                self._links[rank] += 1
                self._linked.unpark_all()
            case RelayEventCame(rank, AskCame(number, question)):
                if self.asked is not None and (relay := self._relay_of(rank)) is not None:
                    self.asked(rank, question, self._made(relay, rank, number))
            case RelayEventCame(rank, came):
                if (stream := self._open.get((rank, came.stream))) is not None:
                    stream.hear(came)
            case RelayDown(rank) if self.lost is not None:
                self.lost(rank)

    @contextlib.contextmanager
    def asking(self, question: Question) -> Iterator[RelayStream]:
        """A stream to the head with *question*, until the block ends. Raises `LocalProtocolError`
        if there can be none."""
        if (relay := self._relay_of(0)) is None:
            raise LocalProtocolError("the link to the head is down")
        stream = self._made(relay, 0, relay.ask(question))
        self._flush(0)
        with self.lasting(stream):
            yield stream

    @contextlib.contextmanager
    def lasting(self, stream: RelayStream) -> Iterator[None]:
        """Let go of *stream* when the block ends."""
        try:
            yield
        finally:
            stream.drop()
            self.forget([stream])

    def forget(self, streams: Sequence[RelayStream]) -> None:
        """Nobody works on *streams*."""
        gone = set(map(id, streams))
        for key in [key for key, each in self._open.items() if id(each) in gone]:
            del self._open[key]

    def end_all(self, error: ApiError) -> None:
        """End every stream, because of *error*."""
        for stream in self._open.values():
            stream.end(error)

    def _made(self, relay: Relay, rank: int, number: int) -> RelayStream:
        stream = RelayStream(relay, number, lambda: self._flush(rank))
        self._open[rank, number] = stream
        return stream


# ---------------------------------------------------------------------- at a follower


@attrs.define(eq=False)
class RelayApp:
    """The ASGI app of a follower with these *streams*. *config* gives its config, *head* the
    head's name, *refusal* why it takes no more requests, if it does not, and *why_not* the error
    where none can be passed on. *page* gives the files of the page where the head cannot: the page
    says why, and goes on by itself."""

    streams: RelayStreams
    config: Callable[[], Config]
    head: Callable[[], str]
    refusal: Callable[[], str]
    why_not: Callable[[], ApiError | None]
    page: ASGIApp
    _of_source: Counter[str] = attrs.field(factory=Counter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        path = plain(scope["path"])
        headers = datastructures.Headers(scope=scope)
        config = self.config()
        shared = shared_with(headers, config.origins)
        named = self._is_named(scope, headers)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = datastructures.MutableHeaders(scope=message)
                if named:  # or a page that calls loopback by a name of its own would read it
                    # A header has no letters beyond ASCII.
                    sent["x-sealring-head"] = quote(self.head(), safe=" ")
                share(sent, shared)
            await send(message)

        try:
            own = self._own(path, brief=not named) if scope["method"] in ("GET", "HEAD") else None
            if own is not None:
                await own(scope, receive, answer)
                return
            if not (scope["state"]["owner"] or is_page(path)):
                if not (named or path in PROBES):
                    check_host(config, headers.get("host", ""))
                if not shared:
                    check_page(headers, secure=scope["scheme"] == "https")
            if shared and is_preflight(scope["method"], headers):
                await preflight(headers)(scope, receive, answer)
                return
            await self._pass_on(scope, path, receive, answer)
        except ApiError as error:
            fields = error.fields()  # others may have the same error
            if not named and error.status == 503:
                fields["message"] = _BRIEF
            name = f"req-{secrets.token_hex(12)}"
            always = {"x-content-type-options": "nosniff", "x-request-id": name}
            fields["headers"] = always | error.headers
            await error_response(ApiError(**fields), path)(scope, receive, answer)

    def _own(self, path: str, *, brief: bool) -> JSONResponse | None:
        """Whether this process is alive; or that no requests should be sent to it, and why not,
        unless it is *brief*. None for what the head answers, as whether it is ready itself."""
        if path == "/livez":
            return JSONResponse({"status": "alive"})
        if path != "/readyz":
            return None
        error = self.why_not()
        found = [why for why in (self.refusal(), "" if error is None else error.message) if why]
        if not found:
            return None
        body = {"status": "unavailable", "reasons": [] if brief else found}
        return JSONResponse(body, 503, {"Retry-After": "1"})

    def _is_named(self, scope: Scope, headers: datastructures.Headers) -> bool:
        """Whether a request names this server, or need not. Only the head knows whether it asks for
        keys; so on loopback it has to."""
        config = self.config()
        if scope["state"]["owner"] or config.api is None or not is_loopback(config.api[0]):
            return True
        return is_named(config, headers.get("host", ""))

    async def _pass_on(self, scope: Scope, path: str, receive: Receive, answer: Send) -> None:
        """Have the head answer. Raises `ApiError`."""
        if why := self.refusal():
            raise unavailable(f"{why[:1].upper()}{why[1:]}.", "shutting_down", retry=5)
        if (error := self.why_not()) is not None:
            if is_page(path):
                await self.page({**scope, "path": path}, receive, answer)
                return
            raise error
        try:
            with self._counted(scope), self.streams.asking(self._question(scope)) as stream:
                stream.endless = path == _WATCHING
                kind, name = _resumed(path)
                resumable = bool(name) or "idempotency-key" in datastructures.Headers(scope=scope)
                seen = _SeenEvents(resumable, name)
                give = partial(_answer, stream, kind, self.head(), seen, answer)
                await beside(give, partial(_send_body, receive, stream))
        except LocalProtocolError as fault:
            raise unavailable(f"No request can be passed on: {fault}.", "overloaded") from None

    def _counted(self, scope: Scope) -> contextlib.AbstractContextManager[None]:
        """Counts one more request of its client's address. Raises `ApiError` if that has its part
        of the streams, which answers that nobody takes may have for long."""
        source = "" if scope["state"]["owner"] else source_of(scope["client"][0])
        if self._of_source[source] >= MAX_STREAMS * PART_OF_SOURCE:
            text = "Too many requests from this address are passed on at once."
            raise unavailable(text, "overloaded")
        return counted(self._of_source, source)

    def _question(self, scope: Scope) -> Question:
        """What the head is asked. Raises `ApiError`."""
        target = scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        client = "" if scope["state"]["owner"] else scope["client"][0]
        config = self.config()
        if client and is_loopback(client) and config.api and not is_loopback(config.api[0]):
            # Others reach this port, and a proxy would have them look like this machine.
            client = config.api[0]
        connection = str(scope["state"]["connection"]).encode()
        headers = [(name, value) for name, value in scope["headers"] if name not in _FOR_ONE_HOP]
        try:
            return Question(
                scope["method"][:MAX_METHOD],
                target,
                scope["scheme"] == "https",
                clip(client, MAX_CLIENT),
                (*headers, (CONNECTION, connection)),
            )
        except LocalProtocolError as fault:
            text = f"The request cannot be passed on: {fault}."
            raise ApiError(400, text, "bad_request", kind=INVALID) from None


def _resumed(path: str) -> tuple[str, str]:
    """If a client comes back at *path* to an answer: the path where it was asked for, and its name.
    Else *path*, and no name."""
    name = path.rpartition("/")[2]
    for kind, begin in PREFIXES.items():
        if name.startswith(begin) and path in (f"/v1/streams/{name}", f"/v1/responses/{name}"):
            return kind, name
    return path, ""


async def _send_body(receive: Receive, stream: RelayStream, answering: trio.CancelScope) -> None:
    """Send the body of the request as it comes; then wait for its client to leave, which ends
    *answering*."""
    try:
        while (message := await receive())["type"] == "http.request":
            await stream.send(message["body"], last=not message["more_body"])
    except StreamGone:
        return  # the answer says why, or is whole
    answering.cancel()  # first, or the answer would take this for the head's end
    stream.drop("the client has left")


async def _answer(stream: RelayStream, path: str, head: str, seen: _SeenEvents, send: Send) -> None:
    """Give the client the answer of *head* to a request for *path*, as it comes. What is *seen* of
    it ends it if the head is lost. Raises `ApiError` if it does not begin."""
    begun = events = False
    while True:
        match await stream.take():
            case ReplyCame(_, status, headers):
                events = dict(headers).get(b"content-type", b"").startswith(_EVENTS)
                kept = [each for each in headers if each[0] not in _FOR_ONE_HOP]
                await send({"type": "http.response.start", "status": status, "headers": kept})
            case BodyCame(_, data, last):
                begun = True
                await send({"type": "http.response.body", "body": data, "more_body": not last})
                if last:
                    return
                stream.took(len(data))
                if events:
                    seen.add(data)
            case DropCame(_, reason):
                what = f"The head, {head}, was lost before the answer was complete: {reason}."
                error = stream.ended or unavailable(what, "head_lost")
                if not begun:
                    raise error
                log.warning("%s: %s", seen.name or path, error.message)
                if events and (event := seen.last(path, error)):
                    await send({"type": "http.response.body", "body": event})
                return


@attrs.define
class _SeenEvents:
    """What has been seen of a stream of events: the *name* of the answer, the *number* of a
    response's latest event, and the bytes at the *end*. It is *resumable* if its client gave it a
    key to come back with, or an event has an id: it was cut off here, and may go on at the head."""

    resumable: bool
    name: str = ""
    number: int = -1
    end: bytes = b"\n\n"

    def add(self, data: bytes) -> None:
        """The client was sent *data*."""
        self.resumable = self.resumable or b"\n\nid: " in self.end + data
        self.end = (self.end + data[-2:])[-2:]
        if not self.name and (found := _ID.search(data)) is not None:
            self.name = found[1].decode()
        at = data.rfind(b'"sequence_number":')
        if at >= 0 and (numbered := _NUMBER.match(data, at)) is not None:
            self.number = int(numbered[1])

    def last(self, path: str, error: ApiError) -> bytes:
        """The event for *path* that says how the stream ends; empty within another event."""
        if self.end != b"\n\n":
            return b""
        return broken_off(path, error, self.name, self.number + 1, resumable=self.resumable)


# ---------------------------------------------------------------------- at the head


@attrs.define(eq=False)
class RelayedRequests:
    """Has the head's *app* answer what members ask by *streams*, and *ring* what their doors ask.
    *name_of* gives the name of a rank's member."""

    streams: RelayStreams
    app: Callable[[], ASGIApp]
    name_of: Callable[[int], str]
    ring: Ring | None = None
    _coming: deque[tuple[int, Question, str, str, RelayStream]] = attrs.field(factory=deque)
    _asked: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def __attrs_post_init__(self) -> None:
        self.streams.asked, self.streams.lost = self._came, self._lost

    async def serve(self) -> None:
        """Answer until cancelled. One request begins in each pass of the event loop, as of
        connections."""
        async with trio.open_nursery() as nursery:
            while True:
                while not self._coming:
                    await self._asked.park()
                nursery.start_soon(self._answered, *self._coming.popleft()[1:])
                await trio.lowlevel.checkpoint()

    def _came(self, rank: int, question: Question, stream: RelayStream) -> None:
        link = self.streams.link_of(rank)
        self._coming.append((rank, question, self.name_of(rank), link, stream))
        self._asked.unpark_all()

    def _lost(self, rank: int) -> None:
        """The link with *rank* is lost: what it asked and nobody has begun is not kept. Or a member
        that links, asks and leaves, over and over, would have more wait here than a link may."""
        self.streams.forget([stream for of, *_, stream in self._coming if of == rank])
        self._coming = deque(each for each in self._coming if each[0] != rank)

    async def _answered(
        self, question: Question, member: str, link: str, stream: RelayStream
    ) -> None:
        """Answer *question*, which *member* asks by *link*. What goes wrong is logged, and ends
        with it."""
        with self.streams.lasting(stream):
            try:
                scope = _scope(question, member, link)
                if self.ring is None or not scope["path"].startswith(RING):
                    await Relayed(stream).run(self.app(), scope)
                elif scope["path"] == SUCCESSION:
                    await self.ring.tell(stream)
                else:
                    await Relayed(stream).run(self.ring, scope)
            except* Exception:
                log.exception("a request of a member failed")


def _scope(question: Question, member: str, link: str) -> Scope:
    """The scope of *question*, which *member* passes on by *link*. It is within the limits that a
    request has whose client asks here, or has a fault instead."""
    path, _, query = question.target.partition(b"?")
    headers = [each for each in question.headers if each[0] != CONNECTION]
    connection = dict(question.headers).get(CONNECTION, b"").decode("latin-1")
    owner = not question.client
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": question.method,
        "scheme": "https" if question.secure else "http",
        "path": unquote(path.decode()),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": None if owner else (question.client, 0),
        "server": ("localhost", 0),
        "state": {"connection": f"{link} {connection}", "owner": owner, "relayed": member},
    }


@attrs.define
class Relayed:
    """One request that a member passes on by *stream*, and its answer."""

    _stream: RelayStream
    _read: bool = False  # the whole body
    _begun: bool = False
    _gone: bool = False
    _state: dict[str, Any] = attrs.field(factory=dict)

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Have *app* answer the request of *scope*, whose state says if its link is ``lost``."""
        self._state = scope["state"]
        try:
            _check(scope)
            await app(scope, self._receive, self._send)
        except ApiError as error:  # of what stands before the app
            await error_response(error, scope["path"])(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        while not self._gone:
            match await self._stream.take():
                case BodyCame(_, data, last):
                    self._read = last
                    self._stream.took(len(data))
                    return {"type": "http.request", "body": data, "more_body": not last}
                case DropCame():
                    self._gone = True
        self._state["lost"] = self._stream.lost
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        try:
            if message["type"] == "http.response.start":
                self._stream.reply(message["status"], tuple(message["headers"]))
                await trio.lowlevel.checkpoint()
                return
            last = not message.get("more_body", False)
            await self._stream.send(message.get("body", b""), last=last)
        except StreamGone:
            self._gone = True  # as with a client that has left, the app hears of it by `_receive`
            await trio.lowlevel.checkpoint()


def _check(scope: Scope) -> None:
    """Raise `ApiError` for a request beyond the limits of one whose client asks here."""
    headers = scope["headers"]
    if len(scope["raw_path"]) + len(scope["query_string"]) >= MAX_TARGET:
        text = f"The request's path and query are larger than {MAX_TARGET >> 10} KiB."
        raise ApiError(414, text, "uri_too_long", kind=INVALID)
    size = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > MAX_FIELDS or size > MAX_HEADER:
        text = f"The header is larger than {MAX_HEADER >> 10} KiB, or has over {MAX_FIELDS} fields."
        raise ApiError(431, text, "header_too_large")
    lengths = [value for name, value in headers if name == b"content-length"]
    if not all(map(_LENGTH.fullmatch, lengths)):  # or a number may be too long to be read
        raise ApiError(400, "The content-length is no number.", "bad_request", kind=INVALID)
