"""Carries the connections of a collective in tunnel links.

MLX's ring connects its ranks over plain TCP, without keys. So each engine listens and connects on
its own machine alone, and its node is at the other end of both connections. What the engine sends
to its right neighbour goes in TUNNEL messages to that rank's node, which gives it to the engine
there; what comes from the left neighbour arrives in the same way. A stream is one such connection,
in both directions. Its number is the rank whose engine dialed it: stream r connects ranks r and
r + 1.

All of this runs in the carrier's thread. The node lends it the sessions of its tunnel links
(`LinkUp`), so no byte of a collective enters the node. The thread serves their deadlines, and tells
the node when one is over.

Back-pressure: while bytes wait on a tunnel link, the engine is not read. Bytes that the engine does
not take are kept, up to `MAX_UNTAKEN`. A ring never has as many in flight, because its ranks wait
for each other.

Messages of an earlier collective may still arrive when the next one has begun. So every message
names its epoch, and those of another epoch are dropped.

A stream ends on both sides at once, whatever ends it: an engine that stops, a lost tunnel link, or
a node that ends the collective. That frees an engine which hangs in a collective, since MLX raises
an error when a connection closes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from functools import partial
from typing import Final, Protocol

import attrs
from sealring_protocol.codec.messages import Epoch, Tunnel, TunnelEvent
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.errors import CloseCode, LocalProtocolError, SealringError
from sealring_protocol.link import Link, LinkClosed
from sealring_protocol.security.roster import SignedRoster

from sealring_trio.collective.carrier import Carrier, Line

log = logging.getLogger("sealring.relay")

CHUNK: Final = 1 << 18
"""Most bytes of a stream in one message. Longer sums are sent on while the rest is still read."""

MAX_UNTAKEN: Final = 64 << 20
"""Most bytes that wait for the engine to read them. Memory: as many per stream, two per node."""


class Home(Protocol):
    """Who is told of what happens here. The calls are made in the event loop."""

    def over(self, link: int, end: SealringError | LinkClosed) -> None:
        """The session of connection *link* is over."""

    def closed(self, link: int) -> None:
        """The socket of connection *link* is closed."""

    def wanted(self, epoch: Epoch) -> None:
        """The left neighbour has opened its stream. Connect to the engine, and give the connection
        to `Streams.reached`."""

    def unwanted(self, epoch: Epoch) -> None:
        """The left neighbour's stream is over. Stop connecting."""


@attrs.frozen
class Place:
    """This node in the ring of *epoch*: rank *own*, between *left* and *right*."""

    epoch: Epoch
    own: int
    left: int
    right: int


@attrs.define(eq=False)
class _Lane:
    """The tunnel link with *rank*, on connection *number*."""

    rank: int
    number: int
    session: Link
    line: Line = attrs.field(init=False)


@attrs.define(eq=False)
class _Stream:
    """Stream *number*, whose other end is with *rank*."""

    number: int
    rank: int
    early: bytearray = attrs.field(factory=bytearray)  # what came before the engine was reached
    line: Line | None = None

    @property
    def untaken(self) -> int:
        """Bytes that wait for the engine."""
        return self.line.unsent if self.line else len(self.early)


class Streams:
    """All tunnel links and streams of a node. For the thread of *carrier* alone, except for `sent`
    and `received`, which any thread may read."""

    def __init__(self, carrier: Carrier, home: Home) -> None:
        self.sent = 0  # bytes on tunnel links
        self.received = 0
        self.order: Final = carrier.order
        """Have the thread do something, here or with one of these methods."""
        self._carrier = carrier
        self._home = home
        self._lanes: dict[int, _Lane] = {}  # by rank
        self._streams: dict[int, _Stream] = {}
        self._engines: set[Line] = set()  # connections with the engine, also those that part
        self._place: Place | None = None
        self._opened = False  # the left neighbour's stream, which begins once
        self._late: _Stream | None = None  # it, once over, while the engine is to get what it said
        carrier.tended = self

    # ---------------------------------------------------------- tunnel links

    def up(self, rank: int, number: int, session: Link, sock: socket.socket, rest: bytes) -> None:
        """*session* with *rank* is up on *sock*. *rest* has been taken from it and is to be sent
        first."""
        lane = _Lane(rank, number, session)
        lane.line = Line(
            self._carrier,
            sock,
            partial(self._heard, lane),
            partial(self._ended, lane),
            partial(self._drained, lane),
            lacking=lambda: session.lacking,
        )
        self._lanes[rank] = lane
        if rest:
            lane.line.send(rest)
        self._take(lane)  # what came right behind the handshake

    def hang_up(self, number: int, code: CloseCode, reason: str) -> None:
        """Close the session of connection *number*, unless it is over."""
        for lane in [lane for lane in self._lanes.values() if lane.number == number]:
            with contextlib.suppress(SealringError):
                lane.session.close(code, reason)
            self._part(lane)

    def renew(self, roster: SignedRoster) -> None:
        """A newer *roster* is in force."""
        for lane in self._lanes.values():
            lane.session.renew(roster)

    def abandon(self) -> None:
        """End all links, because there is no thread. The event loop calls this in its place."""
        for lane in list(self._lanes.values()):
            self._over(lane, LocalProtocolError("the system gives no thread to carry it"))
            lane.line.close()
            self._home.closed(lane.number)

    def next_timeout(self) -> float:
        """See `Tended`."""
        times = [lane.session.next_timeout() for lane in self._lanes.values()]
        return min([time for time in times if time is not None], default=math.inf)

    def tend(self, now: float) -> None:
        """See `Tended`."""
        for lane in list(self._lanes.values()):
            try:
                lane.session.handle_timeout(now)
            except SealringError as error:
                self._over(lane, error)
            else:
                self._flush(lane)

    def _heard(self, lane: _Lane, data: bytes) -> None:
        self.received += len(data)
        try:
            lane.session.receive_data(data, self._carrier.now())
        except SealringError as error:
            self._over(lane, error)
        else:
            self._take(lane)

    def _take(self, lane: _Lane) -> None:
        """Handle every message that *lane* has received."""
        try:
            while (event := lane.session.next_event()) is not None:
                if not isinstance(event, Tunnel):
                    assert isinstance(event, LinkClosed)  # noqa: S101  its role allows no other
                    self._over(lane, event)
                    return
                self.message(lane.rank, event)
        except SealringError as error:
            self._over(lane, error)
        else:
            self._flush(lane)

    def _flush(self, lane: _Lane) -> None:
        if lane.session.has_data_to_send and not lane.line.busy:
            data = lane.session.data_to_send()
            self.sent += len(data)
            lane.line.send(data)

    def _drained(self, lane: _Lane) -> None:
        self._flush(lane)
        if not lane.line.busy:
            for stream in self._streams.values():
                if stream.rank == lane.rank and stream.line is not None:
                    stream.line.resume()

    def _ended(self, lane: _Lane) -> None:
        """The socket of *lane* is closed."""
        if self._lanes.get(lane.rank) is lane:
            try:
                lane.session.receive_eof()
            except SealringError as error:
                self._over(lane, error)
        self._carrier.tell(self._home.closed, lane.number)

    def _over(self, lane: _Lane, end: SealringError | LinkClosed) -> None:
        """The session of *lane* is over, for the reason *end*."""
        if self._lanes.get(lane.rank) is lane:
            self._carrier.tell(self._home.over, lane.number, end)
            self._part(lane)

    def _part(self, lane: _Lane) -> None:
        """End *lane* and its streams. The session's last bytes are sent."""
        del self._lanes[lane.rank]
        for stream in [each for each in self._streams.values() if each.rank == lane.rank]:
            self._end(stream)
        if lane.session.has_data_to_send:
            lane.line.send(lane.session.data_to_send())
        lane.line.part()

    # ------------------------------------------------------------ collectives

    def begin(self, place: Place) -> None:
        """Begin the collective of *place*, and end the one before."""
        self._clear()
        self._place, self._opened = place, False

    def end(self, epoch: Epoch) -> None:
        """End the collective of *epoch*, unless a newer one has begun."""
        if self._place is not None and self._place.epoch == epoch:
            self._clear()

    def _clear(self) -> None:
        for stream in list(self._streams.values()):
            self._end(stream)
        for line in self._engines:
            line.close()
        self._engines.clear()
        self._place = self._late = None

    def dialed(self, epoch: Epoch, sock: socket.socket) -> None:
        """The engine has made its one connection, *sock*. It is this rank's own stream."""
        place = self._place
        if place is None or place.epoch != epoch:
            sock.close()
            return
        stream = self._streams[place.own] = _Stream(place.own, place.right)
        self._say(stream, TunnelEvent.OPEN)
        self._connect(stream, sock)

    def reached(self, epoch: Epoch, sock: socket.socket | None) -> None:
        """The engine has accepted *sock* for the left neighbour's stream; None if it has not."""
        place = self._place
        here = place is not None and place.epoch == epoch
        stream = self._late or self._streams.get(place.left) if place and here else None
        if stream is None or stream.line is not None:
            if sock is not None:
                sock.close()
        elif sock is None:
            self._late = None
            self._end(stream)
        else:
            line = self._connect(stream, sock)
            if stream is self._late:
                line.part()

    def _connect(self, stream: _Stream, sock: socket.socket) -> Line:
        line = stream.line = Line(
            self._carrier,
            sock,
            partial(self._pass_on, stream),
            partial(self._left, stream),
            room=CHUNK,
        )
        self._engines.add(line)
        if stream.early:
            line.send(stream.early)
            stream.early = bytearray()
        return line

    def message(self, rank: int, message: Tunnel) -> None:
        """*message* came on the tunnel link with *rank*."""
        place, number = self._place, message.stream
        if place is None or message.epoch != place.epoch:
            return
        if (number, rank) not in ((place.own, place.right), (place.left, place.left)):
            log.debug("rank %d speaks of stream %d, which is not between us", rank, number)
            return
        match message.event:
            case TunnelEvent.OPEN:
                # The engine takes one connection. One for each OPEN would have no bound.
                if number == place.left and not self._opened:
                    self._opened = True
                    self._streams[number] = _Stream(number, rank)
                    self._carrier.tell(self._home.wanted, place.epoch)
            case TunnelEvent.DATA:
                if (stream := self._streams.get(number)) and not self._give(stream, message.data):
                    self._end(stream)
            case TunnelEvent.CLOSE:
                if stream := self._streams.pop(number, None):
                    # What the engine has been given, or is to be given, goes out first.
                    if stream.line is not None:
                        stream.line.part()
                    elif stream.early:
                        self._late = stream
                    else:
                        self._carrier.tell(self._home.unwanted, place.epoch)

    def _give(self, stream: _Stream, data: Buffer) -> bool:
        """Send *data* to the engine, or keep it until the engine listens. False if too many bytes
        wait already."""
        if stream.untaken + len(data) > MAX_UNTAKEN:
            log.warning("the engine leaves %d bytes of a collective untaken", stream.untaken)
            return False
        if stream.line is None:
            stream.early += data
        else:
            stream.line.send(data)
        return True

    def _pass_on(self, stream: _Stream, data: bytes) -> None:
        """The engine sent *data*: send it to the other end of *stream*."""
        if self._streams.get(stream.number) is stream:
            self._say(stream, TunnelEvent.DATA, data)
            lane = self._lanes.get(stream.rank)
            if lane is not None and lane.line.busy and stream.line is not None:
                stream.line.pause()

    def _left(self, stream: _Stream) -> None:
        """The connection of *stream* with the engine is closed."""
        if stream.line is not None:
            self._engines.discard(stream.line)
        if self._streams.get(stream.number) is stream:
            self._end(stream)

    def _end(self, stream: _Stream) -> None:
        """*stream* is over. Close the connection with the engine, and tell the other end."""
        if self._streams.pop(stream.number, None) is None:
            return
        if stream.line is not None:
            stream.line.close()
            self._engines.discard(stream.line)
        elif self._place is not None:
            self._carrier.tell(self._home.unwanted, self._place.epoch)
        self._say(stream, TunnelEvent.CLOSE)

    def _say(self, stream: _Stream, event: TunnelEvent, data: bytes = b"") -> None:
        """Send *event* to the other end of *stream*. Dropped if there is no tunnel link."""
        lane = self._lanes.get(stream.rank)
        if lane is not None and self._place is not None:
            try:
                lane.session.send(Tunnel(self._place.epoch, stream.number, event, data))
            except SealringError as error:
                self._over(lane, error)
            else:
                self._flush(lane)
