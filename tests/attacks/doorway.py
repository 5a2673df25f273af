"""The API's server in this process, on loopback, with an app that a test writes."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import trio
from sealring.http.connections import Connections
from sealring.http.http1 import serve_connections
from sealring.http.tls import Tls

LINUX = sys.platform == "linux"  # where all of 127/8 is loopback
HOST = f"127.{random.randrange(1, 255)}.0.{random.randrange(1, 255)}" if LINUX else "127.0.0.1"
"""Where nothing else on this machine dials."""

CHUNKED = b"Transfer-Encoding: chunked\r\n"

PATIENCE = 600.0
"""Seconds after which what should have happened has not. Tests that move the clock stay below."""


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Says which path was asked for."""
    await reply(send, f"{scope['method']} {scope['path']}".encode())


async def reply(send: Any, body: bytes, status: int = 200) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read(receive: Any) -> bytes | None:
    """The whole body; None if the client left before its end."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message["body"]
        if not message["more_body"]:
            return body


@attrs.define
class Door:
    """Where the app is served, and the book of its connections."""

    port: int
    book: Connections
    closing: trio.Event

    async def connect(self, said: bytes = b"") -> trio.SocketStream:
        """A client that has *said* something."""
        stream = await trio.open_tcp_stream(HOST, self.port)
        if said:
            await stream.send_all(said)
        return stream

    async def answer(self, said: bytes) -> bytes:
        """All that a client gets for what it has *said*, until the server closes."""
        async with await self.connect(said) as stream:
            return await rest(stream)

    async def works(self) -> None:
        """A client like any other is served."""
        got = await self.answer(get("/health", "Connection: close"))
        assert got.startswith(b"HTTP/1.1 200 "), got
        assert got.endswith(b"GET /health"), got


async def rest(stream: trio.SocketStream) -> bytes:
    """What comes until the server closes, or cuts off, the connection."""
    got = b""
    try:
        while data := await stream.receive_some():
            got += data
    except trio.BrokenResourceError:
        pass
    return got


async def one(stream: trio.abc.Stream) -> tuple[int, bytes]:
    """The next answer, its status and body, and nothing after it."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    http.send(h11.EndOfMessage())
    status, body = 0, b""
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await stream.receive_some())
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
    assert not http.trailing_data[0]
    return status, body


def get(path: str, *headers: str) -> bytes:
    """A request."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


@asynccontextmanager
async def door(app: Any = hello, limit: int = 32, tls: Tls | None = None) -> AsyncIterator[Door]:
    """*app*, served to *limit* connections at once, with *tls* if it is given."""
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    served = Door(listeners[0].socket.getsockname()[1], Connections(limit), trio.Event())
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connections, app, listeners, served.book, served.closing, tls)
            yield served
            served.closing.set()
