"""Many HTTP connections, and clients that stall: who gives way to a new connection."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import trio
from sealring.http import http1
from sealring.http.connections import (
    MOST_LOOKS,
    STALL_SECONDS,
    Connections,
    Place,
    source_of,
)
from sealring.http.http1 import Http1
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.attacks.doorway import HOST, door, get, hello, one, read, reply, rest
from tests.serving import Served, serving


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


def test_few_are_looked_at_for_one_that_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """And others the next time: each look asks the kernel, in the pass that accepts a client."""
    looks: list[Place] = []
    monkeypatch.setattr(Place, "spoke", property(lambda place: looks.append(place) or True))

    async def main() -> None:
        book = Connections(4 * MOST_LOOKS)  # of which one source may have three quarters
        assert all(book.admit("alice") for _ in range(3 * MOST_LOOKS))
        for times in (1, 2, 3):
            assert book.admit("alice") is None
            assert len(looks) == len({*map(id, looks)}) == times * MOST_LOOKS

    trio.run(main)


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


async def test_short_connections_do_not_pile_up() -> None:
    """Each client asks once, leaves, and comes again."""
    clients, most = 20, 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal most
        most = max(most, len(served.book))
        await hello(scope, receive, send)

    async def come_again() -> None:
        for _ in range(30):
            async with await served.connect(get("/")) as stream:
                assert await one(stream) == (200, b"GET /")

    async with door(app, limit=40 * clients) as served:
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(come_again)
        assert most <= 3 * clients


async def test_who_has_asked_is_not_closed_before_it_was_heard() -> None:
    """More clients than may come are accepted in one pass, and each has asked already."""
    async with door(limit=8) as served:
        most = served.book.limit_of_source
        clients = [socket.create_connection((HOST, served.port)) for _ in range(2 * most)]
        for client in clients:
            client.sendall(get("/", "Connection: close"))
        got = []
        for client in clients:
            async with trio.SocketStream(trio.socket.from_stdlib_socket(client)) as stream:
                got.append((await one(stream))[0])
        assert got == most * [200] + most * [503]


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


async def test_who_is_refused_and_reads_nothing_gives_way(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has sent more. The kernel is played full for what refuses a request: how much it
    takes before it is depends on the system."""
    flush, room = Http1.flush, trio.Event()

    async def full(http: Http1) -> None:
        if http._unsent.startswith(b"HTTP/1.1 400 "):
            with http._place.stalled():
                await room.wait()
        await flush(http)

    monkeypatch.setattr(Http1, "flush", full)
    async with door(hello, limit=3) as served:
        deaf = [await served.connect(b"no request\r\n\r\n" + bytes(5000)) for _ in range(3)]
        await wait_all_tasks_blocked()
        mock_clock.jump(STALL_SECONDS)
        await served.works()
        room.set()
        for stream in deaf:
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
                mock_clock.jump(http1.FULL_SECONDS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            lowest.close()
        await wait_all_tasks_blocked()
        mock_clock.jump(http1.FULL_SECONDS)
        for stream in idle:
            assert await rest(stream) == b""
            await stream.aclose()
        await served.works()
        for sock in sockets:
            sock.close()


@pytest.mark.slow
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


@contextmanager
def _work(of: psutil.Process, worked: list[float]) -> Iterator[None]:
    """Adds the seconds that the process works within the block."""
    before = of.cpu_times()
    yield
    after = of.cpu_times()
    worked.append(after.user + after.system - before.user - before.system)


@pytest.mark.parametrize(
    ("kind", "count", "seconds", "most"),
    [
        pytest.param("fields", 700, 6, 3.0, marks=pytest.mark.slow),
        pytest.param("chunks", 64, 6, 3.0, marks=pytest.mark.slow),
        pytest.param("fields", 700, 12, 0.5, marks=pytest.mark.long),
        pytest.param("chunks", 64, 12, 0.5, marks=pytest.mark.long),
        pytest.param("pipelined", 64, 12, 0.5, marks=pytest.mark.long),
        pytest.param("chunks", 700, 12, 0.5, marks=pytest.mark.long),
    ],
)
def test_a_flood_keeps_neither_clients_nor_links_waiting(
    served: Served, kind: str, count: int, seconds: int, most: float
) -> None:
    """Until ``/livez`` has answered, and until a chat has, the head's process works for *most*
    seconds at most, which is how long that takes where the machine does nothing else."""
    head = psutil.Process(served.about["ranks"][0]["pid"])
    port = httpx2.URL(served.url).port
    flood = [sys.executable, "-m", "tests.attacks.http_flood", str(port), kind, str(count)]
    with httpx2.Client(base_url=served.url, timeout=60) as http:
        epoch = http.get("/v1/cluster").json()["epoch"]
        worked: list[float] = []
        command = [*flood, str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "flooding\n"
            while process.poll() is None:
                with _work(head, worked), httpx2.Client(base_url=served.url, timeout=60) as new:
                    assert new.get("/livez").status_code == 200
                with _work(head, worked):
                    assert served.ask("Hello.", max_tokens=2).status_code == 200
        assert process.returncode == 0
        assert max(worked) <= most
        assert http.get("/v1/cluster").json()["epoch"] == epoch  # no link was lost


async def test_slow_readers_of_one_large_answer_share_it() -> None:
    """Each has a piece of it, and no copy."""
    large, readers = bytes(8 << 20), 20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, large)

    async with door(app) as served:
        tracemalloc.start()
        try:
            slow = [await served.connect(get("/", "Connection: close")) for _ in range(readers)]
            await wait_all_tasks_blocked()  # the server has filled every buffer between them
            assert tracemalloc.get_traced_memory()[1] < readers * (1 << 20)
        finally:
            tracemalloc.stop()
        assert (await rest(slow[0])).endswith(b"\r\n\r\n" + large)
        for stream in slow:
            await stream.aclose()


def test_large_requests_under_way_are_bounded_and_small_ones_go_on(served: Served) -> None:
    """A response repeats fields that the model never sees: their size is bounded by the body's
    alone, and each of them stands in several places until the client takes it."""
    port = httpx2.URL(served.url).port or 0
    said = {"model": "tiny", "input": "Hello.", "stream": True, "user": "x" * (7 << 20)}
    body = json.dumps(said).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}"
    clients, got = [], []
    for _ in range(5):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # it takes next to nothing
        client.settimeout(30)
        client.connect(("127.0.0.1", port))
        client.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        clients.append(client)
        got.append(client.recv(12))
    # What is being written counts, too: the created event has all of the request again.
    assert got == [b"HTTP/1.1 200"] * 2 + [b"HTTP/1.1 503"] * 3
    assert served.ask("Hello.", max_tokens=1).status_code == 200
    for client in clients:
        client.close()


COUNTS = """
import gc, os, signal
def tell(*_):
    with open(os.path.join({folder!r}, str(os.getpid())), "w") as file:
        file.write(f"{{gc.get_freeze_count()}}.")
signal.signal(signal.SIGUSR2, tell)
"""


@pytest.mark.long
def test_full_collections_leave_out_what_was_made_before_the_ring_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took 0.1 s each, in which no link went on."""
    (tmp_path / "sitecustomize.py").write_text(COUNTS.format(folder=str(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with serving() as served:
        head = served.about["ranks"][0]["pid"]
        kept, until = "", time.monotonic() + 30
        while kept in ("", "0.") and time.monotonic() < until:
            os.kill(head, signal.SIGUSR2)
            assert served.ask("Hello.", max_tokens=1).status_code == 200
            kept = (tmp_path / str(head)).read_text()
        assert int(kept.rstrip(".")) > 50_000
