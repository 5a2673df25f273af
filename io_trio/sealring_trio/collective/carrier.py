"""One thread that moves bytes between sockets that it alone uses.

In tensor parallelism each layer has two sums, each sum passes two nodes, and the model waits for
it. In the event loop every message would cost a task switch, and would wait for whatever else the
node does. So one thread has all sockets of a collective, and polls them together.

The thread and the event loop share no object that either of them changes, so there is no lock. One
thing is excepted: whoever tells of the node's state reads single numbers of a session here.
The event loop calls `order`, which queues a call for the thread and wakes it. The thread calls
`tell`, which queues a call for the event loop. Both queues keep their order. The thread empties its
queue after each receive and before it handles what it received. So an order comes before anything
that a peer sends because of it.
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
        the call that follows tells which."""
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
    """The thread, while `serve` runs. Any thread may call `order` and `tell`. Everything else is
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

    def tell(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the event loop do *call*, after all that it was told earlier. *call* must not
        raise."""
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
