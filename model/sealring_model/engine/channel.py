"""The engine's end of the socketpair to its node: frames of kind LOCAL, each one message.

A thread of its own reads, so that steps and tensors are in memory by the time the compute thread
wants them, and the node does not wait for room in the socket. It stops at `MAX_HELD` bytes that the
compute thread has not received, so that no peer of the node can fill this process's memory. Any
thread writes, gathered from the message's parts, so that a hidden state is not copied on its way
out.

Where the device waits for what comes next, that thread may give it to somebody who tells the device
(`intercept_next`), whatever the compute thread does at the time: to wake that takes as long as all else
that is done with a hidden state here, and it may be launching something for milliseconds. An
*busy_polls* channel, as long as nobody has anything to do until then, looks for it without sleeping,
as the device does, for a while after what came last.

When the node's end closes, by intent or because its process died, the reader says so in order,
behind what it has read, and at once to who asks with `raise_if_ended`. Should the compute thread not come
back from where it is, the process exits without it after a while. (Linux can kill a child when
its parent dies, but really when the *thread* that started it ends. Only who starts the child
knows whether that thread lasts, so asking for it is left to them.)
"""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from sealring_protocol.codec.encoding import decode_local, encode
from sealring_protocol.codec.frame import FrameDecoder, FrameKind, frame_header
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.errors import SealringError
from sealring_protocol.limits import MAX_SEALED_BODY, MAX_WEIGHT_WAITING

_READ: Final = 1 << 20
"""Bytes to read at once: hidden states of many rows in one go."""
MAX_HELD: Final = MAX_WEIGHT_WAITING
"""Bytes of messages that wait to be received, from which on no more is read."""
_HELD_CHECK_MS: Final = 20
"""Milliseconds after which to see again whether they are fewer."""
_MAX_PARTS: Final = 512
_EXIT_GRACE: Final = 5.0

Interceptor: TypeAlias = Callable[[LocalMessage], None]
"""What gets a message first. It raises nothing."""

_POLL_FOR_NS: Final = 15_000_000
"""Nanoseconds after what came last in which the next is looked for without sleeping."""
_POLL_CHECK_MS: Final = 1
"""Milliseconds after which to see again whether to sleep."""


class ChannelClosed(Exception):
    """The node's end of the channel is closed."""


class ChannelBroken(ChannelClosed):
    """What came from the node is no message of this protocol."""


class Channel:
    """Messages from and to the node. Raises `ChannelClosed` once it has ended.

    *arrived* is when the message received last came, in nanoseconds of `time.perf_counter_ns`. An
    *busy_polls* channel does not sleep while the next one is to come soon.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 4 * 1024 * 1024)
        self._sock = sock
        self._decoder = FrameDecoder({FrameKind.LOCAL: MAX_SEALED_BODY})
        self._buffer = memoryview(bytearray(_READ))
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._hangup = select.poll()
        self._hangup.register(sock, 0)  # tells of the stream's end, though bytes are unread
        self._inbox: queue.SimpleQueue[tuple[LocalMessage | ChannelClosed | None, int, int]]
        self._inbox = queue.SimpleQueue()
        self._put_bytes = 0  # of messages, by the thread that reads
        self._got_bytes = 0  # by the one that receives
        self._handoff = threading.Lock()  # of who gets what comes next
        self._interceptor: Interceptor | None = None
        self.arrived = 0
        self.busy_polls = False
        self._poll_now = False
        self._end: ChannelClosed | None = None
        self._sending = threading.Lock()
        self._finished = threading.Event()
        self.exit_grace = _EXIT_GRACE
        """Seconds that the compute thread has to come back once the stream has ended."""
        self._reader = threading.Thread(target=self._read, name="channel", daemon=True)

    def open(self) -> None:
        """Begin to read."""
        self._reader.start()

    def finish(self) -> None:
        """The compute thread is done: nothing needs to be forced."""
        self._finished.set()

    def end(self, reason: ChannelClosed) -> None:
        """There is no more to do: who receives is told *reason*."""
        self._end = reason
        self._inbox.put((reason, time.perf_counter_ns(), 0))

    def raise_if_ended(self) -> None:
        """Raise `ChannelClosed` if the stream has ended, even if messages are left."""
        if self._end is not None:
            raise self._end

    @property
    def is_empty(self) -> bool:
        """Nothing is there to be received."""
        return self._inbox.empty()

    def wake(self) -> None:
        """Have whoever receives look up, in its turn; for any thread."""
        self._inbox.put((None, 0, 0))

    def intercept_next(self, interceptor: Interceptor) -> None:
        """Unless there is something to be received, give *interceptor* the message that comes next, in
        the thread that reads and before it can be received."""
        with self._handoff:
            if self._inbox.empty():
                self._interceptor = interceptor

    def receive(self, *, busy_poll: bool = False) -> LocalMessage | None:
        """The next message, or None for a call of `wake`; waits for it. *busy_poll*: nobody has anything
        to do until it comes, and that will not take long."""
        self._poll_now = busy_poll
        message, self.arrived, size = self._inbox.get()
        self._got_bytes += size
        self._poll_now = False
        if isinstance(message, ChannelClosed):
            raise message
        return message

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
        if len(parts) > _MAX_PARTS:
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
            try:
                if self._put_bytes - self._got_bytes > MAX_HELD:
                    self._wait_until_received()
                if self.busy_polls:
                    self._wait_readable()
                self._receive()
            except OSError as error:
                self.end(ChannelClosed(f"the node is gone: {error.strerror}"))
            except SealringError as error:
                self.end(ChannelBroken(f"the channel to the node broke: {error}"))
        if not self._finished.wait(self.exit_grace):
            os._exit(70)

    def _wait_until_received(self) -> None:
        """Wait until fewer bytes are held, or the stream has ended: what is unread of it then is of
        no more use."""
        while self._put_bytes - self._got_bytes > MAX_HELD:
            if self._hangup.poll(_HELD_CHECK_MS):
                self.end(ChannelClosed("the node is gone"))
                return

    def _wait_readable(self) -> None:
        """Wait until something is there, for a while without sleeping when it is to come soon."""
        until = time.perf_counter_ns() + _POLL_FOR_NS
        while not self._readable.poll(0 if self._poll_now else _POLL_CHECK_MS):
            if time.perf_counter_ns() > until:
                self._readable.poll()

    def _receive(self) -> None:
        count = self._sock.recv_into(self._buffer)
        if not count:
            self.end(ChannelClosed("the node is gone"))
        arrived = time.perf_counter_ns()
        self._decoder.receive_data(self._buffer[:count].tobytes())
        while (frame := self._decoder.next_frame()) is not None:
            self._put(decode_local(frame.body), arrived, len(frame.body))

    def _put(self, message: LocalMessage, arrived: int, size: int) -> None:
        with self._handoff:
            interceptor, self._interceptor = self._interceptor, None
            if interceptor is not None:
                interceptor(message)
            self._put_bytes += size
            self._inbox.put((message, arrived, size))
