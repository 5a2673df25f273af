"""One thread (`Carrier`) that carries the connections of a collective in tunnel links (`Streams`).

In tensor parallelism each layer has two sums, each sum passes two nodes, and the model waits for
it. In the event loop every message would cost a task switch, and would wait for whatever else the
node does. So one thread has all sockets of a collective, and polls them together.

The thread and the event loop share no object that either of them changes, so there is no lock. One
thing is excepted: status reads single numbers of a session here. The event loop calls `order`,
which queues a call for the thread and wakes it. The thread calls `report`, which queues a call for
the event loop. Both queues keep their order. The thread empties its queue after each receive and
before it handles what it received. So an order comes before anything that a peer sends because of
it.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import select
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import attrs
import trio
from sealring_protocol.codec.messages import Epoch, Tunnel, TunnelEvent
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.errors import CloseCode, LocalProtocolError, SealringError
from sealring_protocol.link import Link, LinkClosed
from sealring_protocol.security.roster import SignedRoster
from sealring_protocol.table import Machine, Table

from sealring_trio.net.pump import LINGER, ROOM, DirectSocket

log = logging.getLogger("sealring.relay")

CHUNK: Final = 1 << 18
"""Most bytes of a stream in one message. Longer sums are sent on while the rest is still read."""

MAX_UNTAKEN: Final = 64 << 20
"""Most bytes that wait for the engine to read them. Memory: as many per stream, two per node."""


class LineState(enum.Enum):
    """OPEN: bytes are sent and received. PARTING: the last ones are being sent, and received bytes
    are dropped. CLOSED: the socket is closed."""

    OPEN = "open"
    PARTING = "parting"
    CLOSED = "closed"


class LineEvent(enum.Enum):
    """PART: our side ends the stream in good order. CLOSE: the socket is closed, for any reason."""

    PART = "part"
    CLOSE = "close"


LINE_TABLE: Final[Table[LineState, LineEvent]] = {
    (LineState.OPEN, LineEvent.PART): LineState.PARTING,
    (LineState.OPEN, LineEvent.CLOSE): LineState.CLOSED,
    (LineState.PARTING, LineEvent.CLOSE): LineState.CLOSED,
    (LineState.CLOSED, LineEvent.CLOSE): LineState.CLOSED,
}


class Line(DirectSocket):
    """One socket of *carrier*. Use it in the carrier's thread alone.

    *heard* is called with received bytes, up to *room* at once (for *lacking* see `make_room`),
    *drained* when all bytes that had to wait are sent, and *ended* once if the socket is closed by
    anything but `close`.
    """

    def __init__(
        self,
        carrier: Carrier,
        sock: socket.socket,
        heard: Callable[[bytes], None],
        ended: Callable[[], None],
        drained: Callable[[], None] = lambda: None,
        room: int = ROOM,
        lacking: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(sock)
        self.make_room(room, lacking)
        self.number: Final = sock.fileno()
        self.until = math.inf
        """When it is closed, whatever the peer does."""
        self._carrier = carrier
        self._heard, self._ended, self._drained = heard, ended, drained
        self._machine = Machine(LINE_TABLE, LineState.OPEN)
        self._reads = select.POLLIN
        carrier.watch(self)

    @property
    def interest(self) -> int:
        """What to poll for."""
        return self._reads | (select.POLLOUT if self._waiting else 0)

    def send(self, data: Buffer) -> None:
        """Send *data*, as soon as the kernel takes it. Dropped if the line is not open."""
        if self._machine.state is LineState.OPEN:
            try:
                super().send(data)
            except OSError:
                self.fail()
            else:
                if self._waiting:
                    self._carrier.watch(self)

    def pause(self) -> None:
        """Stop reading until `resume`. The kernel's buffer fills, and so the peer has to wait."""
        self._read_if(0)

    def resume(self) -> None:
        """Read again."""
        self._read_if(select.POLLIN)

    def _read_if(self, reads: int) -> None:
        if self._machine.state is LineState.OPEN:
            self._reads = reads
            self._carrier.watch(self)

    def part(self) -> None:
        """Send what waits, end our side, and give the peer `LINGER` seconds to end its side. To
        close a socket with bytes unread could destroy the last ones that were sent."""
        if self._machine.state is LineState.OPEN:
            self.until = self._carrier.now() + LINGER
            self._reads = select.POLLIN
            self._carrier.watch(self)
            self._machine.fire(LineEvent.PART)
            self._end_if_sent()

    def close(self) -> None:
        """Close at once. Bytes that wait are lost."""
        if self._machine.state is not LineState.CLOSED:
            self._carrier.forget(self)
            self._socket.close()
        self._machine.fire(LineEvent.CLOSE)

    def fail(self) -> None:
        """The stream is over: close, and call *ended* once the present call is done."""
        if self._machine.state is not LineState.CLOSED:
            self.close()
            self._carrier.later(self._ended)

    def ready(self, mask: int) -> None:
        """Send or receive, as *mask* of `select.poll` says. An error or a hang-up counts as both:
        the call that follows shows which."""
        if self._waiting and mask & ~select.POLLIN:
            self._push()
        if mask & ~select.POLLOUT and self._machine.state is not LineState.CLOSED:
            self._read()

    def _push(self) -> None:
        try:
            self.push()
        except OSError:
            self.fail()
            return
        if not self._waiting:
            self._carrier.watch(self)
            if self._machine.state is LineState.OPEN:
                self._drained()
            else:
                self._end_if_sent()

    def _end_if_sent(self) -> None:
        if not self._waiting:
            with contextlib.suppress(OSError):  # the peer is gone: the next read says so
                self._socket.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        try:
            data = self.take()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._carrier.obey()
        if not data:
            self.fail()
        elif self._machine.state is LineState.OPEN:
            self._heard(data)


class Tended(Protocol):
    """An object that has deadlines in the thread."""

    def next_timeout(self) -> float:
        """When `tend` is to be called; infinity if never."""

    def tend(self, now: float) -> None:
        """Time has passed."""


class Carrier:
    """The thread, while `serve` runs. Any thread may call `order` and `report`. Everything else is
    for the carrier's own thread, unless a heading below says otherwise."""

    def __init__(self) -> None:
        """Raises `OSError` when the system has no more sockets."""
        self.now: Final = trio.lowlevel.current_clock().current_time
        """As `trio.current_time`, in any thread."""
        self.tended: Tended
        self._token: Final = trio.lowlevel.current_trio_token()
        self._orders: deque[Callable[[], None]] = deque()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._lines: dict[int, Line] = {}
        self._poll = select.poll()
        self._poll.register(self._wake_receiver, select.POLLIN)
        self._runs = True

    # -------------------------------------------------------- in any thread

    def order(self, call: Callable[[], None]) -> None:
        """Have the thread do *call*, after all earlier orders."""
        self._orders.append(call)
        with contextlib.suppress(OSError):  # it has been rung enough, or is over
            self._wake_sender.send(b"!")

    def report(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the event loop do *call*, after all earlier reports. *call* must not raise."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, *arguments)

    # -------------------------------------------------------- the event loop

    async def serve(self) -> bool:
        """Run the thread until cancelled; then every line is closed at once. Returns False if the
        system gives no thread."""
        begun: list[bool] = []
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_when_cancelled)
                limiter = trio.CapacityLimiter(1)  # nobody else's threads are waited for
                try:
                    await trio.to_thread.run_sync(self._run, begun, limiter=limiter)
                except RuntimeError:
                    if begun:
                        raise
                nursery.cancel_scope.cancel()
        finally:
            self.obey()  # orders still queued may bring sockets: take them, so they are closed here
            for line in list(self._lines.values()):
                line.close()
            self._wake_receiver.close()
            self._wake_sender.close()
        return bool(begun)

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.order(self._stop)

    # ------------------------------------------------------------ the thread

    def watch(self, line: Line) -> None:
        """Poll for *line* as its `interest` says now."""
        self._lines[line.number] = line
        self._poll.register(line.number, line.interest)

    def forget(self, line: Line) -> None:
        """Stop polling for *line*."""
        del self._lines[line.number]
        self._poll.unregister(line.number)

    def later(self, call: Callable[[], None]) -> None:
        """Do *call* after the present one. Like `order`, but for the thread itself."""
        self._orders.append(call)

    def obey(self) -> None:
        """Do every call that is queued."""
        while self._orders:
            self._orders.popleft()()

    def _stop(self) -> None:
        self._runs = False

    def _run(self, begun: list[bool]) -> None:
        begun.append(True)
        while self._runs:
            self._turn()
            self.obey()

    def _turn(self) -> None:
        due = min([self.tended.next_timeout(), *(line.until for line in self._lines.values())])
        wait = None if due == math.inf else max(0, math.ceil(1000 * (due - self.now())))
        for number, mask in self._poll.poll(wait):
            if number in self._lines:
                self._lines[number].ready(mask)
            else:
                with contextlib.suppress(BlockingIOError):
                    self._wake_receiver.recv(1 << 12)
        if due < math.inf and (now := self.now()) >= due:
            self.tended.tend(now)
            for line in list(self._lines.values()):
                if line.until <= now:
                    line.fail()


class Home(Protocol):
    """Who hears of what happens here. The calls are made in the event loop."""

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
class TunnelPlace:
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
    and `received`, which any thread may read.

    MLX's ring connects its ranks over plain TCP, without keys. So each engine listens and connects
    on its own machine alone, and its node is at the other end of both connections. What the engine
    sends to its right neighbour goes in TUNNEL messages to that rank's node, which gives it to the
    engine there; what comes from the left neighbour arrives in the same way. A stream is one such
    connection, in both directions. Its number is the rank whose engine dialed it: stream r connects
    ranks r and r + 1.

    The node lends the sessions of its tunnel links (`LinkUp`), so no byte of a collective enters
    it. Their deadlines are served here, and *home* hears when one is over.

    While bytes wait on a tunnel link, the engine is not read. Bytes that the engine does not take
    are kept, up to `MAX_UNTAKEN`. A ring never has as many in flight, because its ranks wait for
    each other.

    Messages of an earlier collective may still arrive when the next one has begun. So every message
    names its epoch, and those of another epoch are dropped.

    A stream ends on both sides at once, whatever ends it: an engine that stops, a lost tunnel link,
    or a node that ends the collective. That frees an engine which hangs in a collective, since MLX
    raises an error when a connection closes.
    """

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
        self._place: TunnelPlace | None = None
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
        if lane.session.has_data_to_send and not lane.line.unsent:
            data = lane.session.data_to_send()
            self.sent += len(data)
            lane.line.send(data)

    def _drained(self, lane: _Lane) -> None:
        self._flush(lane)
        if not lane.line.unsent:
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
        self._carrier.report(self._home.closed, lane.number)

    def _over(self, lane: _Lane, end: SealringError | LinkClosed) -> None:
        """The session of *lane* is over, for the reason *end*."""
        if self._lanes.get(lane.rank) is lane:
            self._carrier.report(self._home.over, lane.number, end)
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

    def begin(self, place: TunnelPlace) -> None:
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
                    self._carrier.report(self._home.wanted, place.epoch)
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
                        self._carrier.report(self._home.unwanted, place.epoch)

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
            if lane is not None and lane.line.unsent and stream.line is not None:
                stream.line.pause()

    def _left(self, stream: _Stream) -> None:
        """The connection of *stream* with the engine is closed."""
        if stream.line is not None:
            self._engines.discard(stream.line)
        if self._streams.get(stream.number) is stream:
            self._end(stream)

    def _end(self, stream: _Stream) -> None:
        """*stream* is over. Close the connection with the engine, and say so to the other end."""
        if self._streams.pop(stream.number, None) is None:
            return
        if stream.line is not None:
            stream.line.close()
            self._engines.discard(stream.line)
        elif self._place is not None:
            self._carrier.report(self._home.unwanted, self._place.epoch)
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
