"""Requests that pass through a member, on its API link to the head: their streams at either end,
and what the head does for them.

The front of a member (`front`) asks by streams (`RelayStreams`). The head has its own app answer,
as if the client had asked there (`RelayedRequests`).

Either end holds at most a window of a stream's body. It gives credit for what its client, or its
app, has taken: so a client that reads slowly holds up the head's answer, and an upload waits for
whom it is for. A client that leaves drops its stream, which to the head's app is a client that
leaves.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

import attrs
import trio
from sealring_protocol.codec.relay_messages import Headers, Question
from sealring_protocol.codec.wire import clip
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.events import RelayDown, RelayEventCame, RelayNews, RelayUp
from sealring_protocol.limits import MAX_REASON, STREAM_WINDOW
from sealring_protocol.relay import AskCame, BodyCame, DropCame, Relay, RelayEvent, ReplyCame
from starlette.types import ASGIApp, Message, Scope

from sealring.dialects.errors import INVALID, ApiError
from sealring.http.gate import error_response
from sealring.http.http1 import MAX_FIELDS, MAX_HEADER, MAX_TARGET, STUCK_SECONDS

log = logging.getLogger("sealring.api")

CONNECTION: Final = b"x-sealring-connection"
"""The header by which a follower tells its clients' connections apart, so that those without a key
share cached prefixes as at the head. What a client sends by this name is left out."""

INTERNAL: Final = "/_ring/"
"""How the paths begin at which fronts ask the head; there is nothing for clients."""

SUCCESSION: Final = f"{INTERNAL}succession"

FOR_ONE_HOP: Final = frozenset(
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
        self.cut = False
        """Whether its link is lost."""
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

    def come(self) -> bytes:
        """What more of a body has come, which is consumed; it does not wait."""
        data = bytes(self._body)
        self._body.clear()
        self.took(len(data))
        return data

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
        self.turned: Callable[[], None] | None = None
        """Hears that any link is up or lost."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def under_way(self) -> int:
        """The number of streams that end by themselves."""
        return sum(not stream.endless for stream in self._open.values())

    @property
    def head(self) -> Relay | None:
        """This node's end of the link with the head; None if that is not up."""
        return self._relay_of(0)

    @property
    def up(self) -> bool:
        """Whether this node can ask the head."""
        return self.head is not None

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
            case RelayDown(rank):
                for (of, _), stream in self._open.items():
                    stream.cut = stream.cut or of == rank
                if self.lost is not None:
                    self.lost(rank)
        if self.turned is not None and isinstance(news, RelayUp | RelayDown):
            self.turned()

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


# ---------------------------------------------------------------------- at the head


@attrs.define(eq=False)
class RelayedRequests:
    """Has the head's *app* answer what members ask by *streams*. *name_of* gives the name of a
    rank's member. A member that asks for that is told of answers by *tell*."""

    streams: RelayStreams
    app: Callable[[], ASGIApp]
    name_of: Callable[[int], str]
    tell: Callable[[str, RelayStream], Awaitable[None]] | None = None
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
                if scope["path"] == SUCCESSION and self.tell is not None:
                    await self.tell(member, stream)
                else:
                    await Relayed(stream).run(self.app(), scope)
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
        self._state["lost"] = self._stream.cut
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
