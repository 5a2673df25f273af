"""The engine's end of the socketpair to its node: frames of kind LOCAL, each one message.

A reader thread keeps steps and tensors in memory before the compute thread asks for them, so the
node never waits for room in the socket. It stops reading at `MAX_HELD` bytes that the compute
thread has not received, so no peer of the node can fill this process's memory. Any thread may
write. A message is written from its parts, so hidden states are not copied on their way out.

Where the device waits for the next message, the reader thread can hand that to an interceptor
(`Channel.intercept_next`) before the compute thread gets it. Waking the compute thread takes as
long as everything else that is done here with hidden states, and it may be launching for
milliseconds. With `Channel.busy_polls` the reader polls without sleeping for a while after the last
message, as the device does, if nothing else is to be done.

When the node closes its end, or dies, the reader queues that behind the messages that it has read;
`Channel.raise_if_ended` knows at once. If the compute thread does not come back within
`Channel.exit_grace`, the process exits without it. (Linux can kill a child when its parent dies,
but really does so when the *thread* that started it ends. Only the parent knows whether that thread
lasts, so the parent asks for it.)
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
"""Bytes to read at once: the hidden states of many rows."""
MAX_HELD: Final = MAX_WEIGHT_WAITING
"""Bytes of messages that the compute thread has not received; at more, nothing is read."""
_HELD_CHECK_MS: Final = 20
"""Milliseconds between two looks at whether they are fewer."""
_MAX_PARTS: Final = 512
"""Buffers that one `sendmsg` takes; a message of more parts is joined first."""
_EXIT_GRACE: Final = 5.0

Interceptor: TypeAlias = Callable[[LocalMessage], None]
"""Gets a message before it can be received. It must not raise."""

_POLL_FOR_NS: Final = 15_000_000
"""Nanoseconds after the last message for which the reader polls without sleeping."""
_POLL_CHECK_MS: Final = 1
"""Milliseconds that one poll sleeps while `receive` has not asked for busy polling."""


class ChannelClosed(Exception):
    """The node's end of the channel is closed."""


class ChannelBroken(ChannelClosed):
    """The node sent something that is no message of this protocol."""


class Channel:
    """Messages from and to the node. Raises `ChannelClosed` once it has ended.

    *arrived* is when the last received message came, in nanoseconds of `time.perf_counter_ns`. With
    *busy_polls* the reader does not sleep while `receive` is called with *busy_poll*.
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
        self._hangup.register(sock, 0)  # the stream's end, even with bytes unread
        self._inbox: queue.SimpleQueue[tuple[LocalMessage | ChannelClosed | None, int, int]]
        self._inbox = queue.SimpleQueue()
        self.is_empty: Final = self._inbox.empty
        """Whether no message waits to be received."""
        self._put_bytes = 0  # of messages, counted by the reader thread
        self._got_bytes = 0  # counted by the compute thread
        self._handoff = threading.Lock()  # between interceptor and inbox
        self._interceptor: Interceptor | None = None
        self.arrived = 0
        self.busy_polls = False
        self._poll_now = False
        self._end: ChannelClosed | None = None
        self._sending = threading.Lock()
        self._finished = threading.Event()
        self.exit_grace = _EXIT_GRACE
        """Seconds that the compute thread has to call `finish` once the stream has ended."""
        self._reader = threading.Thread(target=self._read, name="channel", daemon=True)

    def open(self) -> None:
        """Begin to read."""
        self._reader.start()

    def finish(self) -> None:
        """The compute thread is done: the process need not exit without it."""
        self._finished.set()

    def end(self, reason: ChannelClosed) -> None:
        """End the channel: `receive` raises *reason* once the messages before it are received."""
        self._end = reason
        self._inbox.put((reason, time.perf_counter_ns(), 0))

    def raise_if_ended(self) -> None:
        """Raise `ChannelClosed` if the stream has ended, even if messages are left."""
        if self._end is not None:
            raise self._end

    def wake(self) -> None:
        """Have `receive` return None, behind the messages that wait. For any thread."""
        self._inbox.put((None, 0, 0))

    def intercept_next(self, interceptor: Interceptor) -> None:
        """Give the next message to *interceptor* before it can be received, in the reader thread.
        Does nothing if a message waits already."""
        with self._handoff:
            if self._inbox.empty():
                self._interceptor = interceptor

    def receive(self, *, busy_poll: bool = False) -> LocalMessage | None:
        """Wait for the next message; None for a call of `wake`. *busy_poll* says that nobody has
        anything to do until it comes, and that it comes soon."""
        self._poll_now = busy_poll
        message, self.arrived, size = self._inbox.get()
        self._got_bytes += size
        self._poll_now = False
        if isinstance(message, ChannelClosed):
            raise message
        return message

    def send(self, message: LocalMessage) -> None:
        """Write *message* as one frame, and wait until the socket has taken it."""
        parts = encode(message)
        size = sum(map(len, parts))
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
        """Wait until fewer bytes are held, or the stream has ended. What is unread then is
        useless."""
        while self._put_bytes - self._got_bytes > MAX_HELD:
            if self._hangup.poll(_HELD_CHECK_MS):
                self.end(ChannelClosed("the node is gone"))
                return

    def _wait_readable(self) -> None:
        """Wait until there are bytes to read; poll without sleeping first, if `receive` asks so."""
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
