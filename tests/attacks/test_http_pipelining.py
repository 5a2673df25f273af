"""Requests that follow each other on one HTTP connection, and what would smuggle one."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import trio
from sealring.http.http1 import MAX_HEADER
from trio.testing import wait_all_tasks_blocked

from tests.attacks.doorway import CHUNKED, door, get, hello, one, read, reply, rest


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with door() as served:
        paths = [f"/{number}" for number in range(200)]
        said = b"".join(map(get, paths)) + get("/last", "Connection: close")
        got = await served.answer(said)
    parts = [part.partition(b"HTTP/1.1 200")[0] for part in got.split(b"\r\n\r\n")[1:]]
    assert parts == [b"GET " + path.encode() for path in [*paths, "/last"]]


async def test_a_request_that_comes_as_the_answer_before_it_ends_is_answered() -> None:
    """The watch for a client that leaves ends in the very moment that it has read this."""
    watching, release = trio.Event(), trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def listen() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            watching.set()
            await release.wait()
            await hello(scope, receive, send)

    async with door(app) as served:
        for _ in range(50):  # whose turn it is, is drawn
            watching, release = trio.Event(), trio.Event()
            stream = await served.connect(get("/first"))
            await watching.wait()
            await wait_all_tasks_blocked()
            os.write(stream.socket.fileno(), get("/second", "Connection: close"))
            release.set()  # before the event loop has a turn
            got = await rest(stream)
            assert got.endswith(b"GET /second"), got
            await stream.aclose()


async def test_a_client_that_asks_and_never_reads_is_not_answered_for_ever() -> None:
    answered = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answered
        answered += 1
        await reply(send, bytes(1 << 16))

    async with door(app) as served:
        stream = await served.connect()
        with trio.move_on_after(1) as limit:
            while not limit.cancel_called:
                await stream.send_all(100 * get("/"))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_stop_when_blocked, limit)
                    await stream.send_all(100 * get("/"))
                    nursery.cancel_scope.cancel()
        assert answered < 1000
        await stream.aclose()


async def _stop_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_little_is_read_ahead_of_the_answer_under_way() -> None:
    release = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass

            nursery.start_soon(listen)
            await release.wait()
            await hello(scope, receive, send)

    async with door(app) as served:
        stream = await served.connect(get("/first"))
        with trio.CancelScope() as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_when_blocked, limit)
                while True:
                    await stream.send_all(1000 * get("/next"))
        release.set()
        assert await one_of_many(stream) == (200, b"GET /first")
        await stream.aclose()


async def one_of_many(stream: trio.SocketStream) -> tuple[int, bytes]:
    """The first answer, whatever follows it."""
    got = b""
    while b"GET /first" not in got:
        got += await stream.receive_some()
    return int(got.split()[1]), got.partition(b"\r\n\r\n")[2][:10]


HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\n12345", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n12345", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: x\r\n" + CHUNKED + b"\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n a: folded\r\nb c: d\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"\x00" * 100, 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"x" * 2 * MAX_HEADER + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * MAX_HEADER + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"HEAD / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    ],
)
async def test_what_is_no_request_is_refused_and_ends_the_connection(
    said: bytes, status: int
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == "/"
        await read(receive)
        await receive()

    async with door(app) as served:
        got = await served.answer(said + HIDDEN)
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), got
        assert b"connection: close" in head.lower()
        if not said.startswith(b"HEAD"):
            assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


async def test_a_body_that_nobody_read_is_not_the_next_request() -> None:
    async with door() as served:
        # All of it came: it is passed over.
        stream = await served.connect(
            b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN
        )
        assert await one(stream) == (200, b"POST /a")
        await stream.send_all(get("/b"))
        assert await one(stream) == (200, b"GET /b")
        await stream.aclose()
        # Some of it did not: the connection ends, and its client gets the answer all the same.
        got = await served.answer(
            b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + HIDDEN
        )
        assert got.count(b"HTTP/1.1") == 1
        assert b"connection: close" in got.lower()
        assert got.endswith(b"POST /a")
