"""Sockets that threads read, and the lock under which they enter what the event loop owns.

A step passes every node, and a sum of tensor parallelism passes two of them twice in every layer;
the model waits for whatever a node adds. An event loop adds most of that: for 4 KiB it costs
several times what sealing does. So each socket on the way (links once they are up, the engine's,
and those of its collective) is read by a thread that waits in the kernel for it alone. `bench hop`
and `bench comms` measure it.

To wake a thread takes as long as what it then does with a step. Where processors are many and the
device of the engine is so fast that a step comes every few milliseconds, threads that read are
*eager*: after what came soon one of them looks for what is next without sleeping (see `busy_poll`).

What both such a thread and trio's may touch is touched with the lock of the `Guard` held: the node,
its links, its engine, and the sending side of `SharedWire`s. Nobody waits for anything while
holding it. All else is trio's alone; what happens in a thread and is trio's to deal with is left
for it, and a thread that has left too much waits until the event loop has had a turn.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import trio
from sealring_model.engine.threads import PROCESSORS

from sealring_trio.net.busy_poll import Lookout
from sealring_trio.net.wire import LINGER, RECEIVE_SIZE, ROOM, Wire

log = logging.getLogger("sealring.node")


WAITS_IN_RECEIVE: Final = sys.platform == "linux"
"""Whether a thread may wait in the receive itself, which saves it a system call: where a send on
the same socket can be told not to wait, which macOS does not heed."""

SOON: Final = 0.01
"""Seconds between two receives that are soon."""

SPARE: Final = PROCESSORS >= 16
"""Whether there are processors to spare for threads that do not sleep."""

MOMENT: Final = 0.004
"""Seconds that a thread takes to send the rest of what the kernel took in part. For the event loop
to do it takes longer than all else on the way of a step."""

MAX_LEFT: Final = 1000
"""Things left for the event loop from which on threads that read wait for it."""


class _Here(threading.local):
    """What each thread has for itself."""

    def __init__(self) -> None:
        self.stuck: list[SharedWire] = []


class Guard:
    """One lock, and ways back to the event loop in which it was made."""

    eager = False
    """Whether threads that read an eager wire look for what is to come soon without sleeping."""

    def __init__(self) -> None:
        self.lock: Final = threading.RLock()
        self._left: deque[Callable[[], None]] = deque()
        self._here: Final = _Here()
        self._behind = trio.Event()
        self._token: Final = trio.lowlevel.current_trio_token()
        self._clock: Final = trio.lowlevel.current_clock()
        self._home: Final = threading.get_ident()
        self.lookout: Final = Lookout(self.now, lambda: self.is_stuck or self.is_behind)

    @property
    def at_home(self) -> bool:
        """Whether this is the event loop's thread."""
        return threading.get_ident() == self._home

    def now(self) -> float:
        """What `trio.current_time` gives, in any thread."""
        return self._clock.current_time()

    def soon(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have the event loop do *call*, which cannot fail, after those that it was given before;
        without the lock."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, *arguments)

    def later(self, call: Callable[[], None]) -> None:
        """Leave *call* for the event loop to do, with the lock, in the order of such calls. Needs
        the lock."""
        if not self._left:
            self.soon(self._tell)
        self._left.append(call)

    def _tell(self) -> None:
        self._behind.set()

    def stuck(self, wire: SharedWire) -> None:
        """This thread has given *wire* what does not all go out at once."""
        if not self.at_home:
            self._here.stuck.append(wire)

    @property
    def is_stuck(self) -> bool:
        """Whether there is something that this thread is to `unstick`."""
        return bool(self._here.stuck)

    def unstick(self) -> None:
        """Send what this thread got stuck, as far as that takes a `MOMENT`; without the lock. The
        event loop does the rest."""
        if self.is_stuck:
            until = time.perf_counter() + MOMENT
            while self._here.stuck:
                self._here.stuck.pop().push(until)

    @property
    def is_behind(self) -> bool:
        """Whether too much is left for the event loop."""
        return len(self._left) > MAX_LEFT

    def catch_up(self) -> None:
        """Do what is left. For the event loop, with the lock."""
        while self._left:
            self._left.popleft()()

    async def keep_up(self, then: Callable[[], None] = lambda: None) -> None:
        """Do what is left, and *then* this, for ever."""
        while True:
            await self._behind.wait()
            self._behind = trio.Event()
            with self.lock:
                self.catch_up()
                then()


class SharedWire(Wire):
    """A wire that a thread may read, and on which any thread may `send` with the lock held."""

    eager = False
    """Whether it carries steps."""

    def __init__(self, sock: socket.socket, drained: Callable[[], None], guard: Guard) -> None:
        super().__init__(sock, drained)
        self._guard = guard
        self._polite = False
        self._deaf = False
        self._hears = False
        self._to_close = False
        self._heard: Callable[[bytes], None]
        self._lacking: Callable[[], int] | None = None
        self._over = False
        self._failed: Exception | None = None
        self._last = 0.0  # when something came
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    async def hear(
        self,
        heard: Callable[[bytes], None],
        room: int = ROOM,
        lacking: Callable[[], int] | None = None,
    ) -> None:
        """Give what comes in to *heard*, in a thread of its own and up to *room* bytes at once,
        until the stream ends, by an error too. What comes once this is cancelled is dropped.

        From a peer that must hold nobody up: beyond `RECEIVE_SIZE`, no more at once than the frame
        under way is *lacking*. Each call of *heard* may hold the lock until it has seen to all that
        came, and a room full of the smallest frames takes longer than links live in silence.
        """
        begun, ended = threading.Event(), trio.Event()
        self.make_room(room)
        self._lacking = lacking
        self._hears = True
        self._socket.setblocking(WAITS_IN_RECEIVE)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._free, begun, ended)
                limiter = trio.CapacityLimiter(1)
                await trio.to_thread.run_sync(self._read, heard, begun, ended, limiter=limiter)
                nursery.cancel_scope.cancel()
        except* RuntimeError:
            if begun.is_set():
                raise
            log.warning("a connection is given up: the system gives no thread to read it")
        finally:
            self._hears = False
            self._socket.setblocking(False)
            if self._to_close:
                self.close()

    def be_polite(self) -> None:
        """When `hear` is cancelled, send what waits, and give the peer a moment to end its side."""
        self._polite = True

    def close(self) -> None:
        """As `Wire.close`; from the event loop. What a thread reads is shut down at once, and is
        closed when the thread is done."""
        with self._guard.lock:
            if self._hears:
                self._to_close = True
                self._shut_down()
            else:
                super().close()

    def _read(
        self, heard: Callable[[bytes], None], begun: threading.Event, ended: trio.Event
    ) -> None:
        begun.set()
        self._heard = heard
        try:
            if not self._deaf:  # or nobody is going to free this thread
                self._listen()
            if self._failed is not None:
                raise self._failed
        finally:
            del self._heard  # it may hold whoever holds this
            self._guard.soon(ended.set)

    def _listen(self) -> None:
        """See to what comes until the stream ends: sleep until it is there, or if it comes soon
        have it looked for."""
        self._last = self._guard.now()
        while not self._over:
            before = self._last
            self._see_to(self._wait())
            soon = self._last - before < SOON
            self._pause()
            if soon and self.eager and self._guard.eager:
                while not self._over and self._guard.lookout.watch(self, SOON):
                    self._pause()

    def _pause(self) -> None:
        """Do what this thread must before it sees to more."""
        self._guard.unstick()
        if self._guard.is_behind:
            with contextlib.suppress(trio.Cancelled):  # what cancels also ends the stream
                trio.from_thread.run(trio.lowlevel.checkpoint)

    def fileno(self) -> int:
        """The socket's number."""
        return self._socket.fileno()

    def look(self) -> bool:
        """See to what is there, if anything is, without sleeping; whether more can come."""
        data = None if self._over else self._get(socket.MSG_DONTWAIT)
        if data is not None:
            self._see_to(data)
        return not self._over

    def _most(self) -> int:
        if self._lacking is None:
            return super()._most()
        return max(RECEIVE_SIZE, self._lacking())

    def _see_to(self, data: bytes) -> None:
        """*data* has come; nothing at the end of the stream."""
        self._last = self._guard.now()
        if not data:
            self._over = True
        elif not self._deaf:
            try:
                self._heard(data)
            except Exception as error:  # noqa: BLE001  for the thread whose stream it is
                self._over, self._failed = True, error

    def _wait(self) -> bytes:
        while True:
            if not WAITS_IN_RECEIVE:
                self._readable.poll()
            if (data := self._get(0)) is not None:
                return data

    def _get(self, flags: int) -> bytes | None:
        """What is there, if anything is; no bytes at the end of the stream."""
        try:
            return self.take(flags)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    async def _free(self, begun: threading.Event, ended: trio.Event) -> None:
        """Once cancelled, free the thread that waits in the kernel. The socket must not be closed
        before, for its number could be another's when the thread reads again."""
        try:
            await trio.sleep_forever()
        finally:
            self._deaf = True
            if begun.is_set():  # or it will see at once that nobody hears
                try:
                    with trio.CancelScope(shield=True):
                        await self._part(ended)
                finally:
                    self._shut_down()

    async def _part(self, ended: trio.Event) -> None:
        if self._polite:
            with trio.move_on_after(LINGER), contextlib.suppress(OSError):
                await self.flush()
                self._socket.shutdown(socket.SHUT_WR)
                await ended.wait()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def push(self, until: float) -> None:
        """Send what waits, as the peer takes it, *until* then on the performance counter. In any
        thread, without the lock."""
        with contextlib.suppress(OSError, ValueError):  # closed, or as good as: not for here
            writable = select.poll()
            writable.register(self._socket, select.POLLOUT)
            while self._waiting and (rest := until - time.perf_counter()) > 0:
                writable.poll(math.ceil(1000 * rest))
                with contextlib.suppress(BlockingIOError):
                    self._push()

    def _rouse(self) -> None:
        self._guard.soon(super()._rouse)

    def _keep(self, rest: memoryview) -> None:
        if not self._waiting:
            self._guard.stuck(self)
        super()._keep(rest)

    def _push(self) -> None:
        with self._guard.lock:
            if self._waiting:  # or another thread has sent it
                super()._push()
