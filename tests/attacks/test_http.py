"""Attacks on the API's front door: each ends, at most, the connection that it came on."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import h11
import pytest
import trio
from sealring.http.http1 import HEADER_SECONDS, STUCK_SECONDS
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.attacks.doorway import CHUNKED, door, get, hello, one, read, reply, rest

# ------------------------------------------------------------------- HTTP/2


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    head = len(body).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + body


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = frame(4, 0, 0, b"")
# A GET of / (HPACK, static table: method GET, scheme http, path /), then a POST whose data follow.
HEADERS = frame(1, 4, 1, b"\x82\x86\x84")
DATA = frame(0, 1, 1, b'{"model": "tiny"}')
RESET = frame(3, 0, 1, bytes(4))


@pytest.mark.parametrize(
    "frames",
    [
        b"",
        SETTINGS + HEADERS + DATA,  # data on a stream that was refused
        SETTINGS + 1000 * (HEADERS + RESET),
        b"\xff" * 100_000,
    ],
    ids=["alone", "data of a refused stream", "rapid reset", "junk"],
)
async def test_http_2_is_told_no_in_http_1(frames: bytes) -> None:
    async with door() as served:
        got = await served.answer(PREFACE + frames)
        assert got.startswith(b"HTTP/1.1 505 ")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == (
            "http_version_not_supported"
        )
        await served.works()


@pytest.mark.parametrize(
    "offer",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
        (
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
    ],
    ids=["h2c", "websocket"],
)
async def test_an_offer_of_another_protocol_is_not_taken_up(offer: tuple[str, ...]) -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, await read(receive) or b"")

    async with door(echo) as served, await served.connect() as stream:
        for body in (b"", b"12345", b""):  # and the connection goes on
            head = "\r\n".join(
                ["POST / HTTP/1.1", "Host: x", *offer, f"Content-Length: {len(body)}", "", ""]
            )
            await stream.send_all(head.encode() + body)
            assert await one(stream) == (200, body)


# ------------------------------------------------------------------- one connection's fault


async def test_a_fault_of_the_app_ends_its_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if scope["path"] == "/header":
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b\r\nc: d")]}
            )
            await send({"type": "http.response.body", "body": b""})
        if scope["path"] != "/health":
            async with trio.open_nursery():
                raise KeyError(scope["path"])
        await hello(scope, receive, send)

    async with door(app) as served:
        bystander = await served.connect()
        got = await served.answer(get("/none"))
        assert got.startswith(b"HTTP/1.1 500 ")
        assert b"internal_error" in got
        got = await served.answer(get("/begun"))
        assert got.endswith(b"4\r\nhalf\r\n")  # and no last chunk, so its client sees that it broke
        await served.answer(get("/header"))
        await bystander.send_all(get("/health"))
        assert await one(bystander) == (200, b"GET /health")
        await bystander.aclose()
        await served.works()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    for record in caplog.records:
        assert record.exc_info
    assert "KeyError: '/none'" in caplog.text


async def test_a_fault_of_the_server_itself_ends_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = h11.Connection.receive_data

    def faulty(self: h11.Connection, data: bytes) -> None:
        if b"/fault" in data:
            raise KeyError("a fault that a test has made")
        real(self, data)

    monkeypatch.setattr(h11.Connection, "receive_data", faulty)
    async with door() as served:
        assert await served.answer(get("/fault")) == b""
        await served.works()
        assert len(served.book) == 0
    assert "a connection of the API failed" in caplog.text
    assert "a fault that a test has made" in caplog.text


# ------------------------------------------------------------------- slow clients


async def test_a_header_that_does_not_end(mock_clock: MockClock) -> None:
    async with door() as served:
        silent, slow = await served.connect(), await served.connect(b"GET / HTTP/1.1\r\n")
        await wait_all_tasks_blocked()
        for _ in range(3):
            mock_clock.jump(HEADER_SECONDS / 4)
            await slow.send_all(b"a: b\r\n")
            await wait_all_tasks_blocked()
        mock_clock.jump(HEADER_SECONDS / 4)
        assert await rest(silent) == b""
        got = await rest(slow)
        assert got.startswith(b"HTTP/1.1 408 ")
        assert b"request_timeout" in got
        await silent.aclose()
        await slow.aclose()


async def test_a_request_that_comes_as_its_time_ends_is_answered(mock_clock: MockClock) -> None:
    """Where the event loop was late, the time has passed when it sees the request."""
    async with door() as served:
        stream = await served.connect()
        for _ in range(2):
            await wait_all_tasks_blocked()
            os.write(stream.socket.fileno(), get("/late"))
            mock_clock.jump(HEADER_SECONDS)  # before the event loop has a turn
            assert await one(stream) == (200, b"GET /late")
        await stream.aclose()


async def test_a_client_that_takes_nothing_is_given_up(mock_clock: MockClock) -> None:
    ended = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert await read(receive) == b""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                assert (await receive())["type"] == "http.disconnect"
                nursery.cancel_scope.cancel()

            nursery.start_soon(leave)
            while True:
                part = {"type": "http.response.body", "body": bytes(1 << 20), "more_body": True}
                await send(part)
        ended.set()

    async with door(app) as served:
        deaf = await served.connect(get("/"))
        await wait_all_tasks_blocked()
        assert not ended.is_set()
        while not ended.is_set():  # the kernel may have taken some more meanwhile
            mock_clock.jump(STUCK_SECONDS)
            await wait_all_tasks_blocked()
        await deaf.aclose()


async def test_what_is_said_last_comes_in_order_after_what_was_cut_short() -> None:
    """A request runs out of time while its client takes nothing; the client reads on later."""
    cut = trio.Event()
    size = 8 << 20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with trio.CancelScope() as scope:

            async def when_blocked() -> None:
                await wait_all_tasks_blocked()
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(when_blocked)
                await send({"type": "http.response.body", "body": bytes(size), "more_body": True})
        cut.set()
        await send({"type": "http.response.body", "body": b"the end"})

    async with door(app) as served:
        stream = await served.connect(get("/"))
        await cut.wait()
        status, body = await one(stream)
        assert (status, len(body), body[-7:]) == (200, size + 7, b"the end")
        await stream.aclose()


# ------------------------------------------------------------------- what clients rely on


async def test_a_client_is_asked_for_its_body_only_when_somebody_reads_it() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = await read(receive) if scope["path"] == "/read" else b"unread"
        await reply(send, body or b"")

    head = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    async with door(app) as served:
        stream = await served.connect(head.format("/read").encode())
        assert await stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(b"abc")
        assert await one(stream) == (200, b"abc")
        await stream.aclose()
        got = await served.answer(head.format("/unread").encode())
        assert got.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in got.lower()


@pytest.mark.parametrize("status", [200, 204, 304])
async def test_answers_without_a_body_have_none(status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"a body"})

    async with door(app) as served:
        got = await served.answer(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 %d " % status)
        assert got.endswith(b"\r\n\r\n")
        got = await served.answer(b"GET / HTTP/1.0\r\n\r\n")  # which knows no chunks
        assert got.endswith(b"\r\n\r\na body" if status == 200 else b"\r\n\r\n")


@pytest.mark.parametrize(
    ("target", "host", "asked"),
    [
        (b"http://ring.example:1/a/b?c", b"ring.example:1", b"/a/b c"),
        (b"HTTPS://ring.example", b"ring.example", b"/ "),
        (b"http://ring.example?c", b"ring.example", b"/ c"),
        (b"/http://ring.example/", b"x", b"/http://ring.example/ "),
        (b"http:///a", b"x", b"http:///a "),
    ],
)
async def test_a_target_may_name_the_host(target: bytes, host: bytes, asked: bytes) -> None:
    """Whoever decides by the host decides by what the target says, whatever a header adds."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        (named,) = [value for name, value in scope["headers"] if name == b"host"]
        await reply(send, b" ".join([named, scope["path"].encode(), scope["query_string"]]))

    async with door(app) as served:
        got = await served.answer(
            b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        assert got.partition(b"\r\n\r\n")[2] == host + b" " + asked


async def test_a_client_that_closes_its_side_too_early_is_told() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with door(app) as served, await served.connect(get("/")) as stream:
        await stream.send_eof()
        got = await rest(stream)
        assert got.startswith(b"HTTP/1.1 499 ")
        assert b"client_closed" in got


async def test_bodies_in_chunks_come_whole() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, await read(receive) or b"")

    async with door(app) as served:
        stream = await served.connect()
        said = (
            b"POST / HTTP/1.1\r\nHost: x\r\n"
            + CHUNKED
            + b"\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nx: y\r\n\r\n"
        )
        for byte in said:
            await stream.send_all(bytes([byte]))
        assert await one(stream) == (200, b"abcde")
        await stream.send_all(said)
        assert await one(stream) == (200, b"abcde")
        await stream.aclose()


async def test_a_server_that_closes_finishes_what_runs() -> None:
    begun, release = trio.Event(), trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await release.wait()
        await hello(scope, receive, send)

    async with door(app) as served:
        idle, busy = await served.connect(), await served.connect(get("/"))
        await begun.wait()
        served.closing.set()
        assert await rest(idle) == b""
        release.set()
        got = await rest(busy)
        assert got.endswith(b"GET /")
        assert b"connection: close" in got.lower()
        with pytest.raises(OSError, match=r"(?i)connect"):
            await served.connect()
        await idle.aclose()
        await busy.aclose()
