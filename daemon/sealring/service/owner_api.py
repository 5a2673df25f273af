"""Serves the owner of a running node at its Unix socket: the API, and what only the owner may ask.

Both ends ask the kernel for the uid of the other (`local.node_socket`), so no request needs a key.
HTTP is spoken by the server and within the limits of the API. What is asked of the node itself is
``POST /node/NAME`` with a JSON object. The answer is lines, each a JSON object, to the end of the
body; a last line with an ``error`` says why the rest is missing. A client that disconnects
withdraws its request. Any other path is the API's, on a node that serves one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio
from sealring_trio.errors import OperationError, UserError
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from sealring.dialects.errors import ApiError, unavailable
from sealring.http.bodies import Bodies, ClientGone, attended
from sealring.http.connections import Connections, Place
from sealring.http.gate import error_response
from sealring.http.http1 import Endpoints, Http1, HttpConnection, refusal
from sealring.local.node_socket import MAX_CLIENTS, NODE, peer_uid
from sealring.service.verification import Reply

log = logging.getLogger("sealring")

_ACCEPT_PAUSE: Final = 0.1
"""Seconds before the next try when the kernel has no descriptor or memory for a connection."""

_ENDS: Final = Endpoints(None, ("localhost", 0))
_LINES: Final = [(b"content-type", b"application/x-ndjson")]

Answer = Callable[[str, bytes, Reply], Awaitable[None]]
"""Answers the request of this name, whose fields are JSON, by calls of a `Reply`. Raises
`UserError`."""


async def serve_owner(listener: socket.socket, app: ASGIApp) -> None:
    """Serve *app* at *listener* until cancelled."""
    book = Connections(MAX_CLIENTS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(book.turns.give)
        for number in itertools.count():
            connection = await _accepted(listener)
            connection.setblocking(False)  # the book of connections looks at what has come
            if peer_uid(connection.getsockopt) != os.geteuid():
                connection.close()
            elif (place := book.admit(f"client {number}", connection)) is not None:
                nursery.start_soon(_serve, app, connection, place)
            else:
                _refuse(connection)


async def _accepted(listener: socket.socket) -> socket.socket:
    while True:
        await trio.lowlevel.wait_readable(listener)
        try:
            return listener.accept()[0]
        except BlockingIOError:
            continue
        except OSError as error:  # too many open files, say; it may pass
            log.warning("cannot take a client of the control socket: %s", error.strerror)
            await trio.sleep(_ACCEPT_PAUSE)


def _refuse(connection: socket.socket) -> None:
    """Send that there are too many clients, without waiting, and close."""
    full = unavailable(f"this node has {MAX_CLIENTS} clients already", "overloaded")
    with connection, contextlib.suppress(OSError):
        connection.send(refusal(full))


async def _serve(app: ASGIApp, connection: socket.socket, place: Place) -> None:
    """Serve one client. An error is logged, and ends this connection alone."""
    try:
        with place.scope:
            await HttpConnection(app, place, Http1(connection, place), _ENDS).run()
    except* Exception:
        log.exception("a client of the control socket could not be answered")


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise ApiError(404, f"This node serves no API, and has no {scope['path']}.", "not_found")


class OwnerApi:
    """The ASGI app of the socket. *answer* knows the node's own requests, and *api* gives the app
    of the API, which a node may serve at one time and not at another."""

    def __init__(self, answer: Answer, api: Callable[[], ASGIApp | None]) -> None:
        self._answer = answer
        self._api = api
        self._bodies = Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        app = self._own if path.startswith(NODE) else self._api() or _nothing
        try:
            await app(scope, receive, send)
        except ApiError as error:
            await error_response(error, path)(scope, receive, send)

    async def _own(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for the node itself. Raises `ApiError`."""
        if scope["method"] != "POST":
            raise ApiError(405, "Requests to the node itself are POST.", "method_not_allowed")
        name = scope["path"].removeprefix(NODE)
        with contextlib.suppress(ClientDisconnect, ClientGone):
            body = await self._bodies.read(Request(scope, receive), "owner")
            await attended(receive, partial(self._lines, name, body, send))

    async def _lines(self, name: str, body: bytes, send: Send) -> None:
        begun = False

        async def begin(status: int = 200) -> None:
            nonlocal begun
            if not begun:
                begun = True
                start = {"type": "http.response.start", "status": status, "headers": [*_LINES]}
                await send(start)

        async def reply(line: dict[str, Any], status: int = 200) -> None:
            await begin(status)
            data = json.dumps(line).encode() + b"\n"
            await send({"type": "http.response.body", "body": data, "more_body": True})

        try:
            await self._answer(name, body, reply)
        except UserError as error:
            known = {"what": error.what, "advice": error.advice, "exit_code": error.exit_code}
            await reply({"error": known}, 503 if isinstance(error, OperationError) else 400)
        await begin()  # of an answer without a line
        await send({"type": "http.response.body", "body": b"", "more_body": False})
