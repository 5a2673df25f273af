"""Attacks on the API's front door: each ends, at most, the connection that it came on."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import socket
from typing import Any

import h11
import httpx2
import pytest
import trio
from sealring_trio.api import server
from sealring_trio.api.connection import HEADER_SECONDS
from sealring_trio.api.connections import STALL_SECONDS, Connections, source_of
from sealring_trio.api.http1 import MAX_HEADER, STUCK_SECONDS
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.attacks.doorway import HOST, door, get, hello, one, read, reply, rest
from tests.serving import Served

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


# ------------------------------------------------------------------- floods


async def test_idle_connections_give_way_the_oldest_first() -> None:
    async with door(limit=8) as served:
        strangers = [await served.connect() for _ in range(40)]
        half = [await served.connect(b"GET / HTTP/1.1\r\nHost:") for _ in range(20)]
        await served.works()
        assert len(served.book) <= served.book.limit_of_source == 6
        for stream in [*strangers, *half[:-6]]:
            assert await rest(stream) == b""
        # The latest are still there: what one of them asks is answered.
        await half[-1].send_all(b" x\r\n\r\n")
        assert await one(half[-1]) == (200, b"GET /")
        for stream in [*strangers, *half]:
            await stream.aclose()


def test_a_source_at_its_cap_loses_its_own() -> None:
    async def main() -> None:
        book = Connections(8)
        alice = [book.admit("alice") for _ in range(2)]
        mallory = [book.admit("mallory") for _ in range(20)]
        assert [place for place in alice if place and place.scope.cancel_called] == []
        ended = [place for place in mallory if place and place.scope.cancel_called]
        assert ended == mallory[:14]
        # With all places taken, the oldest of all goes for a newcomer.
        assert book.admit("bob")
        assert alice[0]
        assert alice[0].scope.cancel_called
        assert len(book) == 8

    trio.run(main)


def test_who_is_one_source() -> None:
    assert source_of("127.0.0.1") == source_of("127.9.8.7") == source_of("::1") == "loopback"
    assert source_of("::ffff:127.0.0.1") == "loopback"
    assert source_of("192.0.2.1") == source_of("::ffff:192.0.2.1") != source_of("192.0.2.2")
    assert source_of("2001:db8:1:2::3") == source_of("2001:db8:1:2:ffff::4")
    assert source_of("2001:db8:1:2::3") != source_of("2001:db8:1:3::3")
    assert source_of("fe80::1%eth0") == source_of("fe80::2%eth1")


async def test_what_is_being_answered_is_never_closed_for_another(mock_clock: MockClock) -> None:
    release = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await release.wait()
        await hello(scope, receive, send)

    async with door(app, limit=4) as served:
        busy = [await served.connect(get("/slow")) for _ in range(3)]
        await wait_all_tasks_blocked()
        mock_clock.jump(10 * STALL_SECONDS)
        refused = await served.answer(b"")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
        release.set()
        for stream in busy:
            assert await one(stream) == (200, b"GET /slow")
        await served.works()  # as they are idle now
        for stream in busy:
            await stream.aclose()


async def test_clients_that_stall_in_a_request_give_way(mock_clock: MockClock) -> None:
    """Bodies that do not come, and answers that are not taken."""
    begun: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        if scope["path"] == "/body":
            await read(receive)
        if scope["path"] == "/deaf":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(64 << 20)})
            return
        await hello(scope, receive, send)

    async with door(app, limit=4) as served:
        slow = [
            await served.connect(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"),
            await served.connect(get("/deaf")),
            await served.connect(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"),
        ]
        while len(begun) < 3:
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        # They may only just have begun to wait.
        assert (await served.answer(b"")).startswith(b"HTTP/1.1 503 ")
        mock_clock.jump(STALL_SECONDS)
        await served.works()
        assert len(served.book) == 2
        for stream in slow:
            await stream.aclose()


async def test_clients_that_say_a_byte_now_and_then_give_way(mock_clock: MockClock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/body":
            await read(receive)
        await hello(scope, receive, send)

    async with door(app, limit=4) as served:
        slow = [
            await served.connect(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            for _ in range(3)
        ]
        await wait_all_tasks_blocked()
        assert (await served.answer(b"")).startswith(b"HTTP/1.1 503 ")
        for _ in range(2):
            mock_clock.jump(0.6 * STALL_SECONDS)
            for stream in slow:
                await stream.send_all(b"1")
            await wait_all_tasks_blocked()
        await served.works()
        assert len(served.book) == 2
        for stream in slow:
            await stream.aclose()


async def test_a_request_does_not_pay_for_the_one_before_it(mock_clock: MockClock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        await hello(scope, receive, send)

    said = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"
    async with door(app, limit=1) as served:
        stream = await served.connect(said)
        await wait_all_tasks_blocked()
        mock_clock.jump(2 * STALL_SECONDS)
        await stream.send_all(b"1")
        assert await one(stream) == (200, b"POST /body")
        await stream.send_all(said)
        await wait_all_tasks_blocked()
        assert (await served.answer(b"")).startswith(b"HTTP/1.1 503 ")
        await stream.send_all(b"1")
        assert await one(stream) == (200, b"POST /body")
        await stream.aclose()


def test_no_connection_has_the_number_of_another() -> None:
    """What is known of prompts is shared by it; a head that is head again has a new book."""
    books = [Connections(8) for _ in range(2)]

    async def main() -> list[int]:
        places = [book.admit("alice") for book in books for _ in range(12)]
        return [place.number for place in places if place is not None]

    numbers = trio.run(main)
    assert len(set(numbers)) == len(numbers) == 24


async def test_a_system_without_descriptors_costs_idle_connections_and_no_more(
    mock_clock: MockClock,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with door(limit=1000) as served:
        idle = [await served.connect() for _ in range(4)]
        await wait_all_tasks_blocked()
        sockets = [trio.socket.socket() for _ in range(8)]
        lowest = socket.socket()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno() + 1, hard))
        try:
            with pytest.raises(OSError) as caught:  # noqa: PT011
                socket.socket()
            assert caught.value.errno == errno.EMFILE
            for sock in sockets:
                await sock.connect((HOST, served.port))
            for _ in sockets:
                await wait_all_tasks_blocked()
                mock_clock.jump(server.FULL_SECONDS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            lowest.close()
        await wait_all_tasks_blocked()
        mock_clock.jump(server.FULL_SECONDS)
        for stream in idle:
            assert await rest(stream) == b""
            await stream.aclose()
        await served.works()
        for sock in sockets:
            sock.close()


def test_health_answers_beside_two_thousand_idle_connections(served: Served) -> None:
    """A real node: it would run out of descriptors without a cap."""
    port = httpx2.URL(served.url).port or 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("2,000 sockets need a hard limit of 4,096 descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    idle = []
    try:
        for number in range(2000):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=30))
            if number % 400 == 0:
                assert httpx2.get(f"{served.url}/health", timeout=30).status_code == 200
        assert httpx2.get(f"{served.url}/health", timeout=30).status_code == 200
        assert served.ask("Hello.", max_tokens=1).status_code == 200
    finally:
        for sock in idle:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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


# ------------------------------------------------------------------- pipelining and smuggling


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
CHUNKED = b"Transfer-Encoding: chunked\r\n"


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
        (b"GET /" + b"x" * MAX_HEADER + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
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
