"""A TCP relay that keeps a copy of everything that goes through it, both ways."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Relay:
    """Listens on *port* of loopback and passes each connection on to *target*."""

    def __init__(self, port: int, target: int) -> None:
        self.captured = bytearray()
        self.connections = 0
        self._target = target
        self._server = socket.create_server(("127.0.0.1", port))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self.connections += 1
                thread = threading.Thread(target=self._serve, args=(near,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, near: socket.socket) -> None:
        to = ("127.0.0.1", self._target)
        with near, contextlib.suppress(OSError), socket.create_connection(to) as far:
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._pass_on, args=(far, near), daemon=True)
            back.start()
            self._pass_on(near, far)
            back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.captured += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more connections, and wait for the end of those there are."""
        self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._server.close()


@contextlib.contextmanager
def relay(port: int, target: int) -> Iterator[Relay]:
    """A relay for the length of the block."""
    made = Relay(port, target)
    try:
        yield made
    finally:
        made.close()
