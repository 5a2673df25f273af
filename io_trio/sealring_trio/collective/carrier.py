"""A thread that carries bytes between sockets which are its alone.

A sum of tensor parallelism passes two nodes twice in every layer, and the model waits for each. In
the event loop every message would cost a task switch, and would wait for whatever else the node is
doing. So what a collective needs belongs to one thread, which sleeps in the kernel for all of its
sockets at once.

Nothing is shared, so nothing is locked. The event loop says what is to be done by `order`, which
leaves a call in a queue and wakes the thread; the thread tells the event loop by trio's own
`run_sync_soon`. Both keep their order. An order that was given before a peer could send something
is obeyed before what the peer sent is looked at: the queue is emptied after each receive.
"""

from __future__ import annotations

import contextlib
import enum
import math
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import trio
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.table import Machine, Table

from sealring_trio.net.wire import LINGER, ROOM, DirectSocket


class LineState(enum.Enum):
    """Bytes move; the last ones are being sent, and what comes is dropped; the socket is closed."""

    OPEN = "open"
    PARTING = "parting"
    CLOSED = "closed"


class LineEvent(enum.Enum):
    """Our side ends the stream in good order; the socket is closed, whoever ended it."""

    PART = "part"
    CLOSE = "close"


LINE_TABLE: Final[Table[LineState, LineEvent]] = {
    (LineState.OPEN, LineEvent.PART): LineState.PARTING,
    (LineState.OPEN, LineEvent.CLOSE): LineState.CLOSED,
    (LineState.PARTING, LineEvent.CLOSE): LineState.CLOSED,
    (LineState.CLOSED, LineEvent.CLOSE): LineState.CLOSED,
}


class Line(DirectSocket):
    """One socket of *carrier*, in its thread alone.

    *heard* gets what comes in; *drained* is called when bytes that had to wait have gone out;
    *ended* once, when the socket is closed by anything but `close`.
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
        """Send *data*, now or as soon as the kernel takes it; dropped once the line is not open."""
        if self._machine.state is LineState.OPEN:
            try:
                super().send(data)
            except OSError:
                self.fail()
            else:
                if self._waiting:
                    self._carrier.watch(self)

    def pause(self) -> None:
        """Leave with the kernel what comes, and so stop the peer, until `resume`."""
        self._read_if(0)

    def resume(self) -> None:
        """Read again."""
        self._read_if(select.POLLIN)

    def _read_if(self, reads: int) -> None:
        if self._machine.state is LineState.OPEN:
            self._reads = reads
            self._carrier.watch(self)

    def part(self) -> None:
        """Send what waits, end the stream, and give the peer a moment to end its own: to close
        with bytes unread could destroy the last ones on their way."""
        if self._machine.state is LineState.OPEN:
            self.until = self._carrier.now() + LINGER
            self._reads = select.POLLIN
            self._carrier.watch(self)
            self._machine.fire(LineEvent.PART)
            self._end_if_sent()

    def close(self) -> None:
        """Close at once. What waits is lost."""
        if self._machine.state is not LineState.CLOSED:
            self._carrier.forget(self)
            self._socket.close()
        self._machine.fire(LineEvent.CLOSE)

    def fail(self) -> None:
        """The stream is over: close, and tell the owner when it has done what it is doing."""
        if self._machine.state is not LineState.CLOSED:
            self.close()
            self._carrier.later(self._ended)

    def ready(self, mask: int) -> None:
        """The kernel says that the socket can do what *mask* tells."""
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
    """Who has deadlines in the thread."""

    def next_timeout(self) -> float:
        """When `tend` wants to be called; infinity if never."""

    def tend(self, now: float) -> None:
        """Time has passed."""


class Carrier:
    """The thread, while `serve` runs. `order` and `tell` may be called in any thread, all else in
    the carrier's."""

    def __init__(self) -> None:
        """Raises `OSError` when the system has no more sockets."""
        self.now: Final = trio.lowlevel.current_clock().current_time
        """As `trio.current_time`, in any thread."""
        self.tended: Tended
        self._token: Final = trio.lowlevel.current_trio_token()
        self._orders: deque[Callable[[], None]] = deque()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._lines: dict[int, Line] = {}
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._runs = True

    # -------------------------------------------------------- in any thread

    def order(self, call: Callable[[], None]) -> None:
        """Have the thread do *call*, after those that it was given before."""
        self._orders.append(call)
        with contextlib.suppress(OSError):  # it has been rung enough, or is over
            self._rope.send(b"!")

    def tell(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the event loop do *call*, which cannot fail, after those that it was given
        before."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, *arguments)

    # -------------------------------------------------------- the event loop

    async def serve(self) -> bool:
        """Run the thread until this is cancelled: then every line is closed at once. False, at
        once, where the system gives no thread."""
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
            self.obey()  # nobody else does any more, and what was given away is closed too
            for line in list(self._lines.values()):
                line.close()
            self._bell.close()
            self._rope.close()
        return bool(begun)

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.order(self._stop)

    # ------------------------------------------------------------ the thread

    def watch(self, line: Line) -> None:
        """Poll for what *line* wants now."""
        self._lines[line.number] = line
        self._poll.register(line.number, line.interest)

    def forget(self, line: Line) -> None:
        """Poll for *line* no more."""
        del self._lines[line.number]
        self._poll.unregister(line.number)

    def later(self, call: Callable[[], None]) -> None:
        """Do *call* once what is being done is done."""
        self._orders.append(call)

    def obey(self) -> None:
        """Do what was ordered."""
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
                    self._bell.recv(1 << 12)
        if due < math.inf and (now := self.now()) >= due:
            self.tended.tend(now)
            for line in list(self._lines.values()):
                if line.until <= now:
                    line.fail()
