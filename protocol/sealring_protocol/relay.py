"""The streams of one API link: requests that a member passes on to the head, and their answers.

A member with clients asks; the head answers. Each request is a stream: its question, its body, the
answer's status and headers, and the answer's body. What travels is values, not bytes of HTTP: each
end writes HTTP by itself, for its own client or server.

Each direction of a stream has a window. An end sends no more of a body than it has credit for, and
gives credit as its owner consumes. So a client that does not read stops the head, and nobody else.

A stream is over when both bodies are whole, or when both ends have let go of it by DROP. It counts
towards `MAX_STREAMS` until then, and at the head no longer than at the member, as the latter's
messages arrive there. So neither a client that asks and leaves at once, over and over, nor a peer
that reads nothing makes an end keep more than the limits say.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from sealring_protocol.codec.messages import Message
from sealring_protocol.codec.relay_messages import (
    Ask,
    BodyPart,
    Credit,
    Drop,
    Headers,
    Question,
    Reply,
)
from sealring_protocol.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import MAX_BODY, MAX_STREAMS, STREAM_WINDOW
from sealring_protocol.table import IllegalEvent, Machine, Table


@attrs.frozen
class OfStream:
    """Something about *stream* for its owner."""

    stream: int


@attrs.frozen
class AskCame(OfStream):
    """A new stream, with its *question*. Only the head gets it."""

    question: Question


@attrs.frozen
class ReplyCame(OfStream):
    """The answer begins, with *status* and *headers*."""

    status: int
    headers: Headers


@attrs.frozen
class BodyCame(OfStream):
    """The next *data* of the peer's body, which is whole with the *last*. Call `Relay.took` as it
    is consumed."""

    data: bytes = attrs.field(repr=False)
    last: bool


@attrs.frozen
class RoomCame(OfStream):
    """`Relay.room` has grown."""


@attrs.frozen
class DropCame(OfStream):
    """The peer has let go of the stream, for *reason*, or the link is gone. Nothing more can be
    sent. Call `Relay.drop` once the work for it has ended."""

    reason: str


RelayEvent = AskCame | ReplyCame | BodyCame | RoomCame | DropCame


class StreamState(enum.Enum):
    """How far a stream is. Both ends have the same table."""

    ASKED = "asked"
    """The request's body is under way, and the answer has not begun."""
    AWAITING = "awaiting"
    """The request is whole, and the answer has not begun."""
    ANSWERED = "answered"
    """Both bodies are under way."""
    ANSWERING = "answering"
    """The request is whole, and the answer's body is under way."""
    READING_ON = "reading_on"
    """The answer is whole, and the request's body is under way."""
    GIVEN_UP = "given_up"
    """This end has sent DROP. What the peer had sent until it heard of it still comes."""
    GIVEN_UP_ANSWERING = "given_up_answering"
    """The same, and the request is whole. So the answer may become whole, too."""
    GIVEN_UP_READING_ON = "given_up_reading_on"
    """The same, and the answer is whole. So the request may become whole, too."""
    LEFT = "left"
    """The peer has sent DROP. This end's owner has not let go yet."""
    OVER = "over"


class StreamMove(enum.Enum):
    """What changes a stream. REQUEST and RESPONSE are parts of the two bodies, and ..._END the last
    of each. GIVE_UP is this end's DROP, and LEAVE the peer's."""

    REQUEST = "request"
    REQUEST_END = "request_end"
    REPLY = "reply"
    RESPONSE = "response"
    RESPONSE_END = "response_end"
    GIVE_UP = "give_up"
    LEAVE = "leave"


_S, _M = StreamState, StreamMove

STREAM_TABLE: Final[Table[StreamState, StreamMove]] = {
    (_S.ASKED, _M.REQUEST): _S.ASKED,
    (_S.ASKED, _M.REQUEST_END): _S.AWAITING,
    (_S.ASKED, _M.REPLY): _S.ANSWERED,
    (_S.ASKED, _M.GIVE_UP): _S.GIVEN_UP,
    (_S.ASKED, _M.LEAVE): _S.LEFT,
    (_S.AWAITING, _M.REPLY): _S.ANSWERING,
    (_S.AWAITING, _M.GIVE_UP): _S.GIVEN_UP_ANSWERING,
    (_S.AWAITING, _M.LEAVE): _S.LEFT,
    (_S.ANSWERED, _M.REQUEST): _S.ANSWERED,
    (_S.ANSWERED, _M.REQUEST_END): _S.ANSWERING,
    (_S.ANSWERED, _M.RESPONSE): _S.ANSWERED,
    (_S.ANSWERED, _M.RESPONSE_END): _S.READING_ON,
    (_S.ANSWERED, _M.GIVE_UP): _S.GIVEN_UP,
    (_S.ANSWERED, _M.LEAVE): _S.LEFT,
    (_S.ANSWERING, _M.RESPONSE): _S.ANSWERING,
    (_S.ANSWERING, _M.RESPONSE_END): _S.OVER,
    (_S.ANSWERING, _M.GIVE_UP): _S.GIVEN_UP_ANSWERING,
    (_S.ANSWERING, _M.LEAVE): _S.LEFT,
    (_S.READING_ON, _M.REQUEST): _S.READING_ON,
    (_S.READING_ON, _M.REQUEST_END): _S.OVER,
    (_S.READING_ON, _M.GIVE_UP): _S.GIVEN_UP_READING_ON,
    (_S.READING_ON, _M.LEAVE): _S.LEFT,
    (_S.GIVEN_UP, _M.REQUEST): _S.GIVEN_UP,
    (_S.GIVEN_UP, _M.REQUEST_END): _S.GIVEN_UP,
    (_S.GIVEN_UP, _M.REPLY): _S.GIVEN_UP,
    (_S.GIVEN_UP, _M.RESPONSE): _S.GIVEN_UP,
    (_S.GIVEN_UP, _M.RESPONSE_END): _S.GIVEN_UP,
    (_S.GIVEN_UP, _M.LEAVE): _S.OVER,
    (_S.GIVEN_UP_ANSWERING, _M.REPLY): _S.GIVEN_UP_ANSWERING,
    (_S.GIVEN_UP_ANSWERING, _M.RESPONSE): _S.GIVEN_UP_ANSWERING,
    (_S.GIVEN_UP_ANSWERING, _M.RESPONSE_END): _S.OVER,
    (_S.GIVEN_UP_ANSWERING, _M.LEAVE): _S.OVER,
    (_S.GIVEN_UP_READING_ON, _M.REQUEST): _S.GIVEN_UP_READING_ON,
    (_S.GIVEN_UP_READING_ON, _M.REQUEST_END): _S.OVER,
    (_S.GIVEN_UP_READING_ON, _M.LEAVE): _S.OVER,
    (_S.LEFT, _M.GIVE_UP): _S.OVER,
}
"""Every legal move of a stream."""

_GIVEN_UP: Final = frozenset({_S.GIVEN_UP, _S.GIVEN_UP_ANSWERING, _S.GIVEN_UP_READING_ON})
"""The states in which this end has sent DROP."""

LIVE: Final = frozenset(StreamState) - _GIVEN_UP - {StreamState.LEFT, StreamState.OVER}
"""The states in which a stream's owner may send, and hears of what comes."""


@attrs.define
class _Stream:
    machine: Machine[StreamState, StreamMove] = attrs.field(
        factory=lambda: Machine(STREAM_TABLE, StreamState.ASKED)
    )
    room: int = STREAM_WINDOW  # bytes of this end's body that the peer has given credit for
    expected: int = STREAM_WINDOW  # bytes of the peer's body that this end has given credit for
    held: int = 0  # bytes that came, and that the owner has not consumed
    consumed: int = 0  # bytes that it has, and that no credit was given for


class Relay:
    """One end of one API link. *asks* is True for the member that passes requests on, and False for
    the head, which answers them.

    The owner of a stream calls `drop` when it is done with it, whatever happened: that does nothing
    if the stream is over. After each call that may have something to send, `messages` has it.
    """

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks
        self._streams: dict[int, _Stream] = {}
        self._last = 0  # the newest stream
        self._out: list[Message] = []
        self._ended = ""  # why the link is gone
        self._own = (_M.REQUEST, _M.REQUEST_END) if asks else (_M.RESPONSE, _M.RESPONSE_END)
        self._peers = (_M.RESPONSE, _M.RESPONSE_END) if asks else (_M.REQUEST, _M.REQUEST_END)

    # ------------------------------------------------------------ the owner's calls

    @property
    def streams(self) -> int:
        """The number of streams that are not over: at most `MAX_STREAMS`."""
        return len(self._streams)

    @property
    def ended(self) -> bool:
        """Whether the link is gone."""
        return bool(self._ended)

    def messages(self) -> list[Message]:
        """Take what is to be sent, in order."""
        out, self._out = self._out, []
        return out

    def ask(self, question: Question) -> int:
        """Begin a stream with *question*; returns its number. Its body follows by `send`, with a
        last part even if it is empty.

        Raises `LocalProtocolError` on the end that answers, if there are `MAX_STREAMS`, and once
        the link is gone."""
        if not self._asks:
            raise LocalProtocolError("the head answers, and asks nothing")
        if self._ended:
            raise LocalProtocolError(self._ended)
        if len(self._streams) == MAX_STREAMS:
            raise LocalProtocolError(f"{MAX_STREAMS} requests are under way to the head")
        self._last += 1
        self._streams[self._last] = _Stream()
        self._out.append(Ask(self._last, question))
        return self._last

    def reply(self, stream: int, status: int, headers: Headers) -> None:
        """Begin the answer of *stream*. Its body follows by `send`, with a last part even if it is
        empty.

        Raises `LocalProtocolError` if the stream is not live or was answered, and on the end that
        asks."""
        if self._asks:
            raise LocalProtocolError("only the head replies")
        reply = Reply(stream, status, headers)
        self._live(stream).machine.fire(StreamMove.REPLY)
        self._out.append(reply)

    def is_live(self, stream: int) -> bool:
        """True if *stream* is neither over nor given up by either end."""
        found = self._streams.get(stream)
        return found is not None and found.machine.state in LIVE

    def room(self, stream: int) -> int:
        """The bytes of *stream*'s body that may be sent now. With 0 wait for `RoomCame`; it stays 0
        if the stream is not live."""
        return self._streams[stream].room if self.is_live(stream) else 0

    def send(self, stream: int, data: bytes, *, last: bool) -> None:
        """Send *data*, at most `room`, of this end's body on *stream*; nothing follows the *last*.

        Raises `LocalProtocolError` if it may not be sent now, and then sends nothing."""
        found = self._live(stream)
        if len(data) > found.room:
            raise LocalProtocolError(f"{len(data)} bytes, with room for {found.room}")
        if not data and not last:
            return
        self._fire(stream, found, self._own[last])
        found.room -= len(data)
        for at in range(0, max(1, len(data)), MAX_BODY):
            whole = last and at + MAX_BODY >= len(data)
            self._out.append(BodyPart(stream, data[at : at + MAX_BODY], whole))

    def took(self, stream: int, size: int) -> None:
        """The owner has consumed *size* more bytes of what came on *stream*: the peer gets credit,
        from half a window on. Does nothing if the stream is not live.

        Raises `LocalProtocolError` if fewer had come."""
        if not self.is_live(stream):
            return
        found = self._streams[stream]
        if not 0 <= size <= found.held:
            raise LocalProtocolError(f"{size} bytes consumed, of {found.held} that came")
        found.held -= size
        found.consumed += size
        more = (found.machine.state, self._peers[False]) in STREAM_TABLE
        if more and found.consumed >= STREAM_WINDOW // 2:
            self._out.append(Credit(stream, found.consumed))
            found.expected += found.consumed
            found.consumed = 0

    def drop(self, stream: int, reason: str = "") -> None:
        """Let go of *stream*, for *reason*. Nothing of it comes any more. Does nothing if it is
        over, or was given up."""
        found = self._streams.get(stream)
        if found is not None and found.machine.state not in _GIVEN_UP:
            self._fire(stream, found, StreamMove.GIVE_UP)
            self._out.append(Drop(stream, reason))

    def end(self, reason: str) -> list[RelayEvent]:
        """The link is gone, for *reason*, and with it every stream. Returns the end of each."""
        live = [stream for stream in self._streams if self.is_live(stream)]
        self._ended = reason
        self._streams.clear()
        self._out.clear()
        return [DropCame(stream, reason) for stream in live]

    # ------------------------------------------------------------ the peer's messages

    def receive(self, message: Message) -> list[RelayEvent]:
        """What the peer's *message* means. Raises `RemoteProtocolError` if it may not come now."""
        match message:
            case Ask(stream, question) if not self._asks:
                return [self._asked(stream, question)]
            case Reply(stream, status, headers) if self._asks:
                return self._came(stream, StreamMove.REPLY, ReplyCame(stream, status, headers))
            case BodyPart(stream, data, last):
                self._arrived(stream, len(data))
                return self._came(stream, self._peers[last], BodyCame(stream, data, last))
            case Credit(stream, size):
                return self._credited(stream, size)
            case Drop(stream, reason):
                return self._dropped(stream, reason)
        raise RemoteProtocolError(f"{message.CODE.name} came to the wrong end of an API link")

    def _asked(self, stream: int, question: Question) -> AskCame:
        if stream != self._last + 1:
            raise RemoteProtocolError(f"ASK has stream {stream} after {self._last}")
        if len(self._streams) == MAX_STREAMS:
            raise LimitExceeded(f"more than {MAX_STREAMS} requests at a time")
        self._last = stream
        self._streams[stream] = _Stream()
        return AskCame(stream, question)

    def _arrived(self, stream: int, size: int) -> None:
        found = self._found(stream)
        if size > found.expected:
            raise LimitExceeded(f"{size} bytes of a body, with credit for {found.expected}")
        found.expected -= size
        found.held += size

    def _came(self, stream: int, move: StreamMove, event: RelayEvent) -> list[RelayEvent]:
        """The peer made *move*; *event* says so to an owner that still listens."""
        found = self._found(stream)
        live = found.machine.state in LIVE
        try:
            self._fire(stream, found, move)
        except IllegalEvent as error:
            raise RemoteProtocolError(f"stream {stream}: {error}") from None
        return [event] if live else []

    def _credited(self, stream: int, size: int) -> list[RelayEvent]:
        """Credit may cross this end's last part, or its DROP."""
        found = self._streams.get(stream)
        if found is None or not self.is_live(stream):
            self._has_been(stream)
            return []
        if found.room + size > STREAM_WINDOW:
            raise LimitExceeded(f"credit for more than the window of {STREAM_WINDOW} bytes")
        found.room += size
        return [RoomCame(stream)]

    def _dropped(self, stream: int, reason: str) -> list[RelayEvent]:
        if stream not in self._streams:  # it crossed the end of the last body
            self._has_been(stream)
            return []
        return self._came(stream, StreamMove.LEAVE, DropCame(stream, reason))

    # ------------------------------------------------------------ internals

    def _found(self, stream: int) -> _Stream:
        found = self._streams.get(stream)
        if found is None:
            raise RemoteProtocolError(f"stream {stream} is over, or never began")
        return found

    def _has_been(self, stream: int) -> None:
        if not 0 < stream <= self._last:
            raise RemoteProtocolError(f"stream {stream} never began")

    def _live(self, stream: int) -> _Stream:
        if not self.is_live(stream):
            raise LocalProtocolError(f"stream {stream} is over")
        return self._streams[stream]

    def _fire(self, stream: int, found: _Stream, move: StreamMove) -> None:
        if found.machine.fire(move) is StreamState.OVER:
            del self._streams[stream]
