"""One end of an API link against a model of section 11.14: a peer that sends anything, and an owner
who does what he may and what he may not.

Input: whether the end asks; then of each move what it is, of which stream, a size, and whether it
is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
from sealring_protocol.codec.encoding import decode
from sealring_protocol.codec.messages import Message
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Question, Reply
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import MAX_STREAMS, STREAM_WINDOW
from sealring_protocol.relay import Relay

from fuzz.source import Source
from fuzz.vectors import vectors

QUESTION: Final = Question("GET", b"/", False, "")
SIZES: Final = (0, 1, 65_535, 65_536, 65_537, 131_072, 131_073)
"""Of bodies and of credit. A message that has none of these bytes, or more than it may, has 1."""
MOVES: Final = ("ASK", "REPLY", "BODY", "CREDIT", "DROP", "ask", "reply", "send", "took", "drop")
"""What the peer sends, and what the owner does."""


def _places(newest: int) -> tuple[int, ...]:
    """The streams that a move may be of, where *newest* is the newest."""
    return newest, newest + 1, max(0, newest - 1), max(0, newest - 2), newest + 2, 0, 1


def seeds() -> Iterator[bytes]:
    """The vectors' courses, told in this target's choices, and a few walks of its own."""
    for vector in vectors("relays"):
        given, newest = vector["input"], 0
        told = bytes([given["asks"]])
        for move in given["course"][:300]:
            if "takes" in move:
                told += bytes([8, 0, _size(move["size"]), 0])
                continue
            message = decode(bytes.fromhex(move.get("got", move.get("sends", ""))))
            kind = ("ASK", "REPLY", "BODY", "CREDIT", "DROP").index(message.CODE.name)
            owner = {0: 5, 1: 6, 2: 7, 4: 9}[kind] if "sends" in move else kind
            places = _places(newest)
            stream: int = getattr(message, "stream")  # noqa: B009  one of five classes
            place = places.index(stream) if stream in places else 0
            size = _size(len(getattr(message, "data", b"")) or getattr(message, "size", 0))
            told += bytes([owner, place, size, getattr(message, "last", False)])
            newest = max(newest, stream)
        yield told
    yield bytes(range(256))
    yield bytes([1, *range(255)])


def _size(size: int) -> int:
    return SIZES.index(size) if size in SIZES else 1


@attrs.define
class _Facts:
    """What is true of a stream that is not over."""

    replied: bool = False
    own_whole: bool = False
    peer_whole: bool = False
    given_up: bool = False
    left: bool = False
    room: int = STREAM_WINDOW
    expected: int = STREAM_WINDOW
    held: int = 0
    consumed: int = 0

    @property
    def live(self) -> bool:
        return not (self.given_up or self.left)


class Refused(Exception):
    """The model refuses what the peer sent, or what the owner does."""


def need(holds: bool) -> None:
    """Refuse unless something *holds*."""
    if not holds:
        raise Refused


class Model:
    """What the specification says, as facts of each stream instead of its table."""

    def __init__(self, *, asks: bool) -> None:
        self.asks = asks
        self.newest = 0
        self.streams: dict[int, _Facts] = {}
        self.sent: list[Message] = []
        self.heard = False

    def _begin(self, stream: int) -> None:
        need(len(self.streams) < MAX_STREAMS)
        self.newest = stream
        self.streams[stream] = _Facts()

    def _of(self, stream: int) -> _Facts:
        need(stream in self.streams)
        return self.streams[stream]

    def _settle(self, stream: int) -> None:
        facts = self.streams[stream]
        if (facts.own_whole and facts.peer_whole) or (facts.given_up and facts.left):
            del self.streams[stream]

    def come(self, message: Message) -> None:
        """The peer sends *message*."""
        match message:
            case Ask(stream):
                need(not self.asks and stream == self.newest + 1)
                self._begin(stream)
                self.heard = True
            case Reply(stream):
                need(self.asks)
                facts = self._of(stream)
                late = facts.given_up and not facts.peer_whole
                need(not facts.left and (late or not facts.replied))
                facts.replied, self.heard = True, facts.live
            case BodyPart(stream, data, last):
                self._body(stream, self._of(stream), len(data), last=last)
            case Credit(stream, size):
                need(0 < stream <= self.newest)
                if (found := self.streams.get(stream)) is not None and found.live:
                    need(found.room + size <= STREAM_WINDOW)
                    found.room, self.heard = found.room + size, True
            case Drop(stream):
                need(0 < stream <= self.newest)
                if stream not in self.streams:
                    return
                facts = self.streams[stream]
                need(not facts.left)
                self.heard, facts.left = facts.live, True
                self._settle(stream)

    def _body(self, stream: int, facts: _Facts, size: int, *, last: bool) -> None:
        need(not facts.left and size <= facts.expected)
        facts.expected -= size
        if not facts.given_up:
            need(facts.replied or not self.asks)
            facts.held += size
            self.heard = True
        elif not (facts.own_whole or facts.peer_whole):
            return  # it was under way, and cannot end the stream
        need(not facts.peer_whole)
        facts.peer_whole = last
        self._settle(stream)

    def do(self, move: str, stream: int, size: int, *, last: bool) -> None:
        """The owner makes *move*."""
        found = self.streams.get(stream)
        live = found is not None and found.live
        match move:
            case "ask":
                need(self.asks)
                self._begin(self.newest + 1)
                self.sent.append(Ask(self.newest, QUESTION))
            case "reply":
                need(not self.asks and live and found is not None and not found.replied)
                self.streams[stream].replied = True
                self.sent.append(Reply(stream, 200))
            case "send":
                need(live and size <= self.streams[stream].room)
                if size or last:
                    self._send(stream, self.streams[stream], size, last=last)
            case "took" if live:
                self._took(stream, self.streams[stream], size)
            case "drop" if found is not None and not found.given_up:
                found.given_up = True
                self.sent.append(Drop(stream))
                self._settle(stream)

    def _send(self, stream: int, facts: _Facts, size: int, *, last: bool) -> None:
        need(not facts.own_whole and (facts.replied or self.asks))
        facts.room -= size
        facts.own_whole = last
        while size > 65_536:
            self.sent.append(BodyPart(stream, bytes(65_536)))
            size -= 65_536
        self.sent.append(BodyPart(stream, bytes(size), last))
        self._settle(stream)

    def _took(self, stream: int, facts: _Facts, size: int) -> None:
        need(size <= facts.held)
        facts.held -= size
        facts.consumed += size
        if facts.consumed >= STREAM_WINDOW // 2 and not facts.peer_whole:
            self.sent.append(Credit(stream, facts.consumed))
            facts.expected += facts.consumed
            facts.consumed = 0


def check(data: bytes) -> None:
    """Both refuse a move, or both make it: then they send the same, and have the same streams."""
    source = Source(data)
    asks = source.flag()
    relay, model = Relay(asks=asks), Model(asks=asks)
    while not source.empty:
        move, place = source.pick(MOVES), source.below(7)
        stream, size = _places(model.newest)[place], source.pick(SIZES)
        last = source.flag()
        if move.isupper():
            message = _message(move, stream, size, last=last)
            refused = _refuses(model.come, message)
            try:
                events = relay.receive(message)
            except RemoteProtocolError:
                assert refused, message
                return  # the link is dead
            assert not refused, message
            assert [event.stream for event in events] == [stream] * model.heard, message
        else:
            refused = _refuses(model.do, move, stream, size, last=last)
            try:
                _do(relay, move, stream, size, last=last)
            except LocalProtocolError:
                assert refused, move
            else:
                assert not refused, move
        _same(relay, model)


def _refuses(call: Callable[..., None], *arguments: Any, **more: Any) -> bool:
    try:
        call(*arguments, **more)
    except Refused:
        return True
    return False


def _message(move: str, stream: int, size: int, *, last: bool) -> Message:
    match move:
        case "ASK":
            return Ask(stream, QUESTION)
        case "REPLY":
            return Reply(stream, 200)
        case "BODY":
            return BodyPart(stream, bytes(min(size, 65_536) or not last), last)
        case "CREDIT":
            return Credit(stream, min(max(size, 1), STREAM_WINDOW))
        case _:
            return Drop(stream, "x")


def _do(relay: Relay, move: str, stream: int, size: int, *, last: bool) -> None:
    match move:
        case "ask":
            relay.ask(QUESTION)
        case "reply":
            relay.reply(stream, 200, ())
        case "send":
            relay.send(stream, bytes(size), last=last)
        case "took":
            relay.took(stream, size)
        case _:
            relay.drop(stream)


def _same(relay: Relay, model: Model) -> None:
    assert relay.messages() == model.sent
    model.sent, model.heard = [], False
    assert relay.streams == len(model.streams) <= MAX_STREAMS
    for stream in (*_places(model.newest), *list(model.streams)[:3]):
        facts = model.streams.get(stream)
        live = facts is not None and facts.live
        assert relay.is_live(stream) == live
        assert relay.room(stream) == (facts.room if live and facts is not None else 0)
