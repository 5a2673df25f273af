"""The engine's end of the socketpair to its node: frames of kind LOCAL, each one message.

A thread of its own reads, so that steps and tensors are in memory by the time the compute thread
wants them, and the node never waits for room in the socket. Any thread writes, gathered from the
message's parts, so that a hidden state is not copied on its way out.

To be woken by another thread takes about as long as all else that is done with a hidden state here.
So a compute thread that has nothing to do in between is *attentive*: it reads itself, and that of
its own only looks, now and then, whether it has been away for long. Where the device waits for what
comes next, the thread looks for it without sleeping, as the device does.

When the node's end closes, by intent or because its process died, the reader says so in order,
behind what it has read, and at once to who asks with `check`. Should the compute thread not come
back from where it is, the process exits without it after a while. (Linux can kill a child when
its parent dies, but really when the *thread* that started it ends. Only who starts the child
knows whether that thread lasts, so asking for it is left to them.)
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import sys
import threading
import time
from typing import Final

from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_SEALED_BODY

_READ: Final = 1 << 20
"""Bytes to read at once: hidden states of many rows in one go."""
_PARTS: Final = 512
_LAST_WAIT: Final = 5.0

_AWAY: Final = 0.05
"""Seconds after which an attentive thread is away for long."""

_PROCESSORS: Final = (
    len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
)
_SOON: Final = 15_000_000 if _PROCESSORS >= 8 else 0
"""Nanoseconds to look for what is about to come without sleeping; where processors are few, others
need this one."""


class ChannelClosed(Exception):
    """The node's end of the channel is closed."""


class ChannelBroken(ChannelClosed):
    """What came from the node is no message of this protocol."""


class Channel:
    """Messages from and to the node. Raises `ChannelClosed` once it has ended.

    *arrived* is when the message received last came, in nanoseconds of `time.perf_counter_ns`; to
    one who is *attentive*, when it was looked for.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 4 * 1024 * 1024)
        self._sock = sock
        self._decoder = FrameDecoder({FrameKind.LOCAL: MAX_SEALED_BODY})
        self._room = memoryview(bytearray(_READ))
        self._reading = threading.Lock()  # from the socket to the inbox
        self._ringing = threading.Lock()
        self._bell, self._rope = os.pipe()
        for end in (self._bell, self._rope):
            os.set_blocking(end, False)
        self._arriving = select.poll()  # for the reader alone, as the other for who receives
        self._anything = select.poll()
        for poll in (self._arriving, self._anything):
            poll.register(sock, select.POLLIN)
        self._anything.register(self._bell, select.POLLIN)
        self._inbox: queue.SimpleQueue[tuple[LocalMessage | ChannelClosed | None, int]]
        self._inbox = queue.SimpleQueue()
        self.arrived = 0
        self.attentive = False
        self._left_at = 0  # when the attentive thread went away, or 0
        self._end: ChannelClosed | None = None
        self._sending = threading.Lock()
        self._finished = threading.Event()
        self.last_wait = _LAST_WAIT
        """Seconds that the compute thread has to come back once the stream has ended."""
        self._reader = threading.Thread(target=self._read, name="channel", daemon=True)

    def open(self) -> None:
        """Begin to read."""
        self._reader.start()

    def finish(self) -> None:
        """The compute thread is done: nothing needs to be forced, and nobody wakes it."""
        self._finished.set()
        with self._ringing:
            self.attentive = False
            for end in (self._bell, self._rope):
                os.close(end)

    def end(self, reason: ChannelClosed) -> None:
        """There is no more to do: who receives is told *reason*."""
        self._end = reason
        self._inbox.put((reason, time.perf_counter_ns()))
        self._ring()

    def check(self) -> None:
        """Raise `ChannelClosed` if the stream has ended, even if messages are left."""
        if self.attentive:
            self._look(0)
        if self._end is not None:
            raise self._end

    @property
    def is_quiet(self) -> bool:
        """Nothing is there to be received."""
        if self.attentive and self._inbox.empty():
            self._look(0)
        return self._inbox.empty()

    def wake(self) -> None:
        """Have whoever receives look up, in its turn; for any thread."""
        self._inbox.put((None, 0))
        self._ring()

    def receive(self, *, soon: bool = False) -> LocalMessage | None:
        """The next message, or None for a call of `wake`; waits for it. An attentive thread may
        know that it is to come *soon*."""
        if self.attentive:
            self._left_at = 0
            until = time.perf_counter_ns() + _SOON if soon else 0
            while self._inbox.empty():
                self._look(0 if time.perf_counter_ns() < until else None)
        message, self.arrived = self._inbox.get()
        self._left_at = time.perf_counter_ns()
        if isinstance(message, ChannelClosed):
            raise message
        return message

    def _look(self, timeout: int | None) -> None:
        """Take what has come, or comes in as many milliseconds."""
        for at, _ in self._anything.poll(timeout):
            if at == self._bell:
                os.read(at, _PARTS)
            else:
                self._take()

    def _ring(self) -> None:
        with self._ringing, contextlib.suppress(BlockingIOError):  # it has rung often enough
            if self.attentive:
                os.write(self._rope, b"!")

    def send(self, message: LocalMessage) -> None:
        """Write *message* as one frame; waits until the socket has it."""
        parts = encode(message)
        size = sum(len(part) for part in parts)
        try:
            with self._sending:
                self._write([frame_header(FrameKind.LOCAL, size), *parts])
        except OSError as error:
            raise ChannelClosed(f"the node is gone: {error.strerror}") from None

    def _write(self, parts: list[Buffer]) -> None:
        if len(parts) > _PARTS:
            parts = [b"".join(parts)]
        sent = self._sock.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self._sock.sendall(memoryview(part)[sent:])
                sent = 0
            else:
                sent -= len(part)

    def _read(self) -> None:
        while self._end is None:
            if self._is_minded:
                time.sleep(_AWAY)
            elif self._arriving.poll() and not self._is_minded:
                self._take()
                self._ring()
        if not self._finished.wait(self.last_wait):
            os._exit(70)

    @property
    def _is_minded(self) -> bool:
        """Whether the attentive thread is there, or not long away."""
        away = time.perf_counter_ns() - self._left_at if self._left_at else 0
        return self.attentive and away < _AWAY * 1e9

    def _take(self) -> None:
        """Put what has come, as far as it is there, into the inbox."""
        with self._reading:
            try:
                self._receive()
            except BlockingIOError:
                return  # another thread was first
            except OSError as error:
                self.end(ChannelClosed(f"the node is gone: {error.strerror}"))
            except SealringError as error:
                self.end(ChannelBroken(f"the channel to the node broke: {error}"))

    def _receive(self) -> None:
        count = self._sock.recv_into(self._room, 0, socket.MSG_DONTWAIT)
        if not count:
            self.end(ChannelClosed("the node is gone"))
        arrived = time.perf_counter_ns()
        self._decoder.receive_data(self._room[:count].tobytes())
        while (frame := self._decoder.next_frame()) is not None:
            self._inbox.put((decode_local(frame.body), arrived))
