"""Listening for HTTP, in the event loop of the node, and ending in good order.

The node's event loop serves the app, so that an answer costs no change of threads; `http1` has
what each client gets. Neither a client nor a lack of descriptors ends the listening: connections
that wait for their clients are closed first (`connections`). The generator closes the server once
the requests under way have finished.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import logging
import socket
from collections.abc import Sequence
from typing import Final

import attrs
import trio
from sealring_trio.net.connecting import cannot_listen
from sealring_trio.units import format_address, is_loopback
from starlette.types import ASGIApp

from sealring.dialects.errors import INVALID, ApiError, unavailable
from sealring.http.connections import (
    MAX_CONNECTIONS,
    Connections,
    Place,
    for_clients,
    raise_limit,
    source_of,
)
from sealring.http.http1 import MAX_HEADER, STUCK_SECONDS, Endpoints, Http1, HttpConnection, refusal
from sealring.http.tls import Tls, TlsSocket

log = logging.getLogger("sealring.api")

BACKLOG: Final = 1024
"""Connections that wait to be accepted."""

CLOSE_SECONDS: Final = 1.0
"""Time for the connections to close when the server does."""

FULL_SECONDS: Final = 0.1
"""Pause where the system has no room for one more connection."""

ACCEPTS: Final = 16
"""Connections that are accepted in one pass of the event loop."""

_BROKEN: Final = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@attrs.define
class ApiServer:
    """The HTTP server of a node's API: *app* at *address*, with *tls* if there is any."""

    address: tuple[str, int]
    app: ASGIApp
    tls: Tls | None = None

    _closing: trio.Event = attrs.field(factory=trio.Event)
    _closed: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`. Raises `OperationError` when it cannot listen."""
        listeners = await listen(*self.address, "for the API", "api")
        try:
            async with trio.open_nursery() as nursery:
                if self.tls is not None:
                    nursery.start_soon(self.tls.watch)
                task_status.started()
                self._log_address()
                book = Connections(most_connections())
                await serve_connections(self.app, listeners, book, self._closing, self.tls)
                nursery.cancel_scope.cancel()
        finally:
            self._closed.set()

    async def close(self) -> None:
        """Stop listening, and let the connections end."""
        self._closing.set()
        with trio.move_on_after(2 * CLOSE_SECONDS):
            await self._closed.wait()

    def _log_address(self) -> None:
        scheme = "http" if self.tls is None else "https"
        log.info("the API is at %s://%s/v1", scheme, format_address(*self.address))
        if self.tls is None and not is_loopback(self.address[0]):
            log.warning(
                "it is plain HTTP: keys and texts can be read on the way. Give it a certificate "
                "(tls_certificate and tls_key in the config), put a proxy that speaks TLS before "
                "it, or reach it through a tunnel"
            )


@functools.cache
def most_connections() -> int:
    """The most connections that the API may have in this process."""
    limit = raise_limit()
    most = min(MAX_CONNECTIONS, for_clients(limit))
    if most < MAX_CONNECTIONS:
        log.warning(
            "the API takes %d connections at once, for this process may open %d files; "
            "to have more, raise that limit: ulimit -n",
            most,
            limit,
        )
    return most


async def listen(host: str, port: int, purpose: str, key: str) -> list[trio.SocketListener]:
    """Listeners at this address. Raises `OperationError`, which names their *purpose* and the
    config's *key* for the address."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        change = f"Change '{key}' in the config."
        raise cannot_listen(error, host, port, change, purpose) from None
    for listener in listeners:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
            listener.socket.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STUCK_SECONDS * 1000)
            )
    return listeners


async def serve_connections(
    app: ASGIApp,
    listeners: Sequence[trio.SocketListener],
    book: Connections,
    closing: trio.Event,
    tls: Tls | None = None,
) -> None:
    """Serve *app* at *listeners*, which are closed at the end, until *closing*, with *tls* if it is
    given; what is still being answered then has `CLOSE_SECONDS`."""
    doors = [_plain(listener) for listener in listeners]
    try:
        async with trio.open_nursery() as turns:
            turns.start_soon(book.turns.give)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener in doors:
                        served = _Acceptor(app, book, tls, connections)
                        accepting.start_soon(served.accept, listener)
                    await closing.wait()
                    accepting.cancel_scope.cancel()
                for listener in doors:
                    listener.close()
                book.close()
                connections.cancel_scope.deadline = trio.current_time() + CLOSE_SECONDS
            turns.cancel_scope.cancel()
    finally:
        for listener in doors:
            listener.close()


def _plain(listener: trio.SocketListener) -> socket.socket:
    """The socket of *listener*, from which more than one connection can be taken in a pass."""
    of = listener.socket
    sock = socket.socket(of.family, of.type, of.proto, of.detach())
    sock.setblocking(False)
    return sock


@attrs.frozen
class _Acceptor:
    """Where connections to *app* come in, to be served in *connections*."""

    app: ASGIApp
    book: Connections
    tls: Tls | None
    connections: trio.Nursery

    async def accept(self, listener: socket.socket) -> None:
        """Take every connection that comes, and begin to serve it."""
        for number in itertools.count(1):
            if number % ACCEPTS == 0:
                await trio.lowlevel.checkpoint()
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
                continue
            except OSError as error:
                if error.errno in _BROKEN:
                    raise
                if error.errno in _FULL:
                    self.book.make_room()
                    await trio.sleep(FULL_SECONDS)
                continue  # else the client has gone
            try:
                client, server = sock.getpeername()[:2], sock.getsockname()[:2]
            except OSError:
                sock.close()  # it has been cut off already
                continue
            ends = Endpoints(client, server, secure=self.tls is not None)
            sock.setblocking(False)
            # Of a handshake that has not come whole something is always there to be read.
            seen = sock if self.tls is None else None
            place = self.book.admit(source_of(client[0]), seen)
            if place is not None:
                self.connections.start_soon(self._serve, sock, ends, place)
            elif self.tls is None:
                _turn_away(sock)
            else:
                sock.close()  # an answer would cost a handshake

    async def _serve(self, sock: socket.socket, ends: Endpoints, place: Place) -> None:
        """Serve one client. What goes wrong is logged, and ends with its connection."""
        try:
            with place.scope:
                wrong = None
                stream: socket.socket | TlsSocket | None = sock
                if self.tls is not None:
                    stream = await self._greet(self.tls, sock, place)
                    if stream is sock:
                        text = "This port speaks TLS, and the request was plain HTTP: use https://."
                        wrong = ApiError(400, text, "tls_needed", kind=INVALID)
                if stream is not None:
                    await HttpConnection(self.app, place, Http1(stream, place), ends, wrong).run()
        except* Exception:
            log.exception("a connection of the API failed")

    @staticmethod
    async def _greet(
        tls: Tls, sock: socket.socket, place: Place
    ) -> socket.socket | TlsSocket | None:
        """See `Tls.greet`. Who gets no further leaves its *place*."""
        greeted = None
        try:
            greeted = await tls.greet(sock, place)
        finally:
            if greeted is None:
                place.leave()
        return greeted


def _turn_away(sock: socket.socket) -> None:
    """Say that there is no room, and close *sock*."""
    error = unavailable("The API has as many connections as it may.", "overloaded")
    with sock, contextlib.suppress(OSError):
        sock.send(refusal(error))
        sock.recv(MAX_HEADER)  # the kernel throws the answer away if something is left unread
