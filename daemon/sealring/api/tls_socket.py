"""A client's socket behind TLS, with those methods of a non-blocking socket that `Http1` uses.

OpenSSL on a socket of its own reads on for as long as records come that carry nothing: a client
that sends `KeyUpdate` after `KeyUpdate` (TLS 1.3, and no request or key is needed for it) would
hold the event loop in one call. So the bytes go through memory: OpenSSL sees as many as one read
took from the kernel, and others have their turn. A client whose bytes carry far less than they are
is given up.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

MAX_EMPTY: Final = 128 << 10
"""Bytes that may come without any content: two of the largest records, and a handshake's own."""

MAX_OVERHEAD: Final = 64
"""Bytes beyond those that may come for each byte of content: one in a record of its own takes some
25, and padding more."""

_RECORD: Final = 16 << 10


class TlsSocket:
    """TLS on *sock*, as a server with *context*. Errors are OpenSSL's, all of which are
    `OSError`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self._unsent = bytearray()  # records that the kernel has not taken yet
        self._sealed = 0  # bytes of content in them that `send` has not told of yet
        self._came = 0
        self._content = 0

    @property
    def pending(self) -> bool:
        """Whether there may be content that the kernel has given already."""
        return bool(self._in.pending or self._tls.pending())

    def fileno(self) -> int:
        """The socket's descriptor, to wait for it."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        """As a socket's."""
        self._socket.setblocking(flag)

    def do_handshake(self) -> bool:
        """Take a step of the handshake; `push` what it says. False if the client has left. Raises
        `BlockingIOError` or `ssl.SSLWantReadError` when it needs more from the client."""
        if not self.pull():
            return False
        self._tls.do_handshake()
        return True

    def pull(self) -> bool:
        """Take what the kernel has, at most one record's size. False if nothing more will come.
        Raises `BlockingIOError`."""
        data = self._socket.recv(_RECORD)
        self._came += len(data)
        self._in.write(data)
        return bool(data)

    def push(self) -> None:
        """Send the records that there are. Raises `BlockingIOError`; the rest waits for the next
        call."""
        self._unsent += self._out.read()
        while self._unsent:
            del self._unsent[: self._socket.send(self._unsent)]

    def recv(self, size: int) -> bytes:
        """Content, at most *size* bytes; none when no more will come. Raises `BlockingIOError` or
        `ssl.SSLWantReadError` when there is none yet, as also after what carried none."""
        try:
            content = self._tls.read(size)
        except ssl.SSLWantReadError:
            if not self.pull():
                return b""
            content = self._read_pulled(size)
        self._content += len(content)
        return content

    def _read_pulled(self, size: int) -> bytes:
        try:
            return self._tls.read(size)
        except ssl.SSLWantReadError:
            if self._came > MAX_EMPTY + MAX_OVERHEAD * self._content:
                raise ConnectionAbortedError("its TLS carries next to nothing") from None
            raise
        finally:
            with contextlib.suppress(BlockingIOError):
                self.push()  # an alert, or the answer to an update of keys

    def send(self, data: bytes | bytearray) -> int:
        """How many bytes of *data* have been sent whole. Raises `BlockingIOError` until they are;
        the next call has to begin with the same bytes."""
        if not self._sealed:
            with memoryview(data) as view:
                self._sealed = self._tls.write(view[:_RECORD])
        self.push()
        sent, self._sealed = self._sealed, 0
        return sent

    def unwrap(self) -> None:
        """Tell the client that nothing more comes; its own end is not waited for."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self.push()

    def shutdown(self, how: int) -> None:
        """As a socket's."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """As a socket's."""
        self._socket.close()
