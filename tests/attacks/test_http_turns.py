"""Clients whose bytes are much work: how much of it is done in one pass of the event loop, which
carries the ring's links too. Work is counted, not timed."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from sealring.dashboard import pages
from sealring.http.connections import Connections
from sealring.http.gate import PROBES
from sealring.http.http1 import LINGER_SECONDS, MAX_CHUNKS, MAX_FIELDS, MAX_FRAMING, MAX_READ
from sealring.http.tls import Tls
from starlette.applications import Starlette
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.certificates import write_pair
from tests.attacks.doorway import CHUNKED, HOST, Door, door, get, hello, one, read, reply, rest

MANY = 40
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
ONE_BYTE = b"1\r\nx\r\n"


def recorded() -> tuple[list[str], Any]:
    """What is asked for, and an app that answers as `hello` does."""
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await hello(scope, receive, send)

    return asked, app


class Passes:
    """Counts the passes of the event loop, as a link's task that always has something to do."""

    def __init__(self) -> None:
        self.count = 0
        self.work: Counter[int] = Counter()

    async def run(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1

    def did(self, work: int = 1) -> None:
        """So much was done in this pass."""
        self.work[self.count] += work

    @property
    def most(self) -> int:
        """The most work of two passes that follow each other, for the count goes up in the middle
        of a pass."""
        return max(self.work[at] + self.work[at + 1] for at in list(self.work))


@asynccontextmanager
async def counted(app: Any, passes: Passes) -> AsyncIterator[Door]:
    async with trio.open_nursery() as nursery, door(app, limit=2 * MANY) as served:
        nursery.start_soon(passes.run)
        yield served
        nursery.cancel_scope.cancel()


async def test_a_pass_answers_one_request_of_many_connections() -> None:
    passes = Passes()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passes.did()
        await hello(scope, receive, send)

    async with counted(app, passes) as served:
        clients = [await served.connect() for _ in range(MANY)]
        for stream in clients:
            await stream.send_all(20 * get("/") + get("/", "Connection: close"))
        for stream in clients:
            got = await rest(stream)
            assert got.count(b"HTTP/1.1 200 OK\r\n") == 21
            await stream.aclose()
    assert sum(passes.work.values()) == 21 * MANY
    assert passes.most <= 4


async def test_a_new_client_does_not_wait_for_all_that_keep_the_server_busy() -> None:
    asked, app = recorded()
    async with door(app, limit=2 * MANY) as served:
        busy = [await served.connect() for _ in range(MANY)]
        async with trio.open_nursery() as nursery:
            for stream in busy:
                nursery.start_soon(stream.send_all, 60 * get("/busy"))
            while len(asked) < 10 * MANY:
                await trio.lowlevel.checkpoint()
            before = len(asked)
            assert (await served.answer(get("/new", "Connection: close"))).endswith(b"GET /new")
            # Ten or so passes take it from the client's socket to the server's app.
            assert asked.index("/new") - before < MANY / 2
            nursery.cancel_scope.cancel()
        for stream in busy:
            await stream.aclose()


async def test_those_that_keep_the_server_busy_do_not_wait_for_all_new_ones() -> None:
    asked, app = recorded()
    async with door(app, limit=2 * MANY) as served:
        known = await served.connect()
        for _ in range(10):
            await known.send_all(get("/"))
            assert await one(known) == (200, b"GET /")
        new = [await served.connect() for _ in range(MANY)]
        await wait_all_tasks_blocked()
        for stream in [*new, known]:  # all in one pass
            os.write(stream.socket.fileno(), get("/known" if stream is known else "/new"))
        for stream in [*new, known]:
            await one(stream)
            await stream.aclose()
    assert asked.index("/known") - 10 < MANY / 2


@pytest.mark.parametrize("path", PROBES)
async def test_probes_do_not_wait_for_others(path: str) -> None:
    asked, app = recorded()
    async with door(app, limit=2 * MANY) as served:
        new = [await served.connect() for _ in range(MANY)]
        probe = await served.connect()
        await wait_all_tasks_blocked()
        for stream in [*new, probe]:  # all in one pass
            os.write(stream.socket.fileno(), get(path if stream is probe else "/new"))
        for stream in [*new, probe]:
            await one(stream)
            await stream.aclose()
    assert asked.index(path) <= 4


async def test_probes_leave_turns_to_others() -> None:
    asked, app = recorded()
    async with door(app, limit=2 * MANY) as served:
        probes = [await served.connect() for _ in range(MANY)]
        other = await served.connect()
        await wait_all_tasks_blocked()
        for stream in [*probes, other]:
            os.write(stream.socket.fileno(), get("/new" if stream is other else "/livez"))
        for stream in [*probes, other]:
            await one(stream)
            await stream.aclose()
    assert asked.index("/new") <= 4


async def test_who_has_left_waits_for_no_turn() -> None:
    """One connection after the other would be closed, while others come."""
    passes = Passes()
    async with counted(hello, passes) as served:
        clients = [await served.connect(get("/")) for _ in range(MANY)]
        for stream in clients:
            assert await one(stream) == (200, b"GET /")
        assert len(served.book) == MANY
        for stream in clients:
            stream.socket.shutdown(socket.SHUT_WR)
        before = passes.count
        while len(served.book):
            await trio.lowlevel.checkpoint()
        assert passes.count - before < MANY / 4
        for stream in clients:
            await stream.aclose()


async def test_new_and_known_connections_share_the_turns() -> None:
    asked, app = recorded()
    async with door(app, limit=4 * MANY) as served:
        known = await served.connect(get("/"))
        await one(known)
        new = [await served.connect() for _ in range(2 * MANY)]
        await wait_all_tasks_blocked()
        for stream in [*new, known]:
            said = MANY * get("/known") if stream is known else get("/new")
            os.write(stream.socket.fileno(), said)
        for stream in new:
            await one(stream)
            await stream.aclose()
        assert asked.count("/known") > 0.7 * MANY
        await known.aclose()


@pytest.mark.parametrize("body", [False, True])
async def test_a_probe_is_the_first_request_of_its_connection(*, body: bool) -> None:
    """What comes later on one does not go before others, nor what a body carries."""
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await read(receive)
        asked.append(scope["path"])
        await hello(scope, receive, send)

    begun = POST + CHUNKED + b"\r\n14\r\n" if body else get("/health")
    said = b"GET /health HTTP/1.1\r\n0\r\n\r\n" if body else get("/health")
    async with door(app, limit=2 * MANY) as served:
        clients = [await served.connect(begun) for _ in range(MANY)]
        if not body:
            for stream in clients:
                await one(stream)
        probe = await served.connect()
        await wait_all_tasks_blocked()
        asked.clear()
        for stream in [*clients, probe]:
            os.write(stream.socket.fileno(), get("/livez") if stream is probe else said)
        for stream in [*clients, probe]:
            assert (await one(stream))[0] == 200
            await stream.aclose()
    assert asked.index("/livez") <= 4


async def test_sources_have_turns_by_turns() -> None:
    """Whoever has many connections waits longer, and nobody else does."""
    book, went = Connections(4 * MANY), list[str]()

    async def wait(source: str) -> None:
        place = book.admit(source)
        assert place is not None
        await place.turn()
        went.append(source)

    async with trio.open_nursery() as nursery:
        for source in [*MANY * ["mallory"], "alice"]:
            nursery.start_soon(wait, source)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as giving:
            giving.start_soon(book.turns.give)
            await wait_all_tasks_blocked()
            giving.cancel_scope.cancel()
    assert len(went) == MANY + 1
    assert went.index("alice") <= 3


async def test_many_connections_are_accepted_in_a_pass() -> None:
    passes = Passes()
    async with counted(hello, passes) as served:
        clients = [socket.create_connection((HOST, served.port)) for _ in range(MANY)]
        before = passes.count
        while len(served.book) < MANY:
            await trio.lowlevel.checkpoint()
        assert passes.count - before <= MANY / 4
        for client in clients:
            client.close()


async def test_who_waits_for_a_turn_is_not_closed_for_another() -> None:
    async with door(limit=MANY) as served:
        most = served.book.limit_of_source
        clients = [await served.connect() for _ in range(most)]
        await wait_all_tasks_blocked()
        for stream in clients:
            os.write(stream.socket.fileno(), get("/"))
        for _ in range(4):
            await trio.lowlevel.checkpoint()  # now most of them wait
        others = [socket.create_connection((HOST, served.port)) for _ in range(4)]
        for stream in clients:
            assert await one(stream) == (200, b"GET /")
            await stream.aclose()
        for other in others:
            other.close()


async def test_who_lingers_is_closed_before_others() -> None:
    async with door(limit=MANY) as served:
        kept = await served.connect(get("/"))
        assert await one(kept) == (200, b"GET /")
        lingering = [
            await served.connect(b"\0\r\n\r\n" + bytes(9))
            for _ in range(served.book.limit_of_source - 1)
        ]
        for stream in lingering:
            assert (await one(stream))[0] == 400
        await served.works()
        await kept.send_all(get("/"))
        assert await one(kept) == (200, b"GET /")
        for stream in [kept, *lingering]:
            await stream.aclose()


async def test_who_lingers_has_the_last_turns() -> None:
    passes = Passes()
    async with counted(hello, passes) as served:
        lingering = [await served.connect(b"\0\r\n\r\n" + bytes(9)) for _ in range(MANY)]
        for stream in lingering:
            assert (await one(stream))[0] == 400
        new = await served.connect()
        for _ in range(MANY):
            await trio.lowlevel.checkpoint()
        for stream in [*lingering, new]:
            os.write(stream.socket.fileno(), get("/") if stream is new else bytes(1 << 20))
        before = passes.count
        assert await one(new) == (200, b"GET /")
        assert passes.count - before < MANY / 2
        for stream in [*lingering, new]:
            await stream.aclose()


async def test_who_is_refused_may_send_on_for_a_while(mock_clock: MockClock) -> None:
    """It would lose the answer if it were cut off, however much it sends meanwhile."""
    async with door() as served, await served.connect(b"\0\r\n\r\n" + bytes(9)) as stream:
        await stream.send_all(bytes(32 << 20))
        assert (await one(stream))[0] == 400
        mock_clock.jump(LINGER_SECONDS)
        assert await rest(stream) == b""


@pytest.mark.parametrize("fields", [MAX_FIELDS, MAX_FIELDS + 1])
@pytest.mark.parametrize("end", ["\r\n", "\n"])
async def test_the_fields_of_a_header_are_few(fields: int, end: str) -> None:
    lines = ["GET /few HTTP/1.1", "Host: x", "Connection: close", *(fields - 2) * ["a:"], "", ""]
    async with door() as served:
        got = await served.answer(end.join(lines).encode())
        head, _, body = got.partition(b"\r\n\r\n")
        if fields > MAX_FIELDS:
            assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
            assert str(MAX_FIELDS) in json.loads(body)["error"]["message"]
        else:
            assert body == b"GET /few"
        await served.works()


async def test_fields_are_counted_before_the_header_has_ended() -> None:
    """Lines that go on with a field are as much work as fields are."""
    async with door() as served:
        for line in (b"a:\r\n", b" folded\r\n"):
            got = await served.answer(b"GET / HTTP/1.1\r\nHost: x\r\n" + 3200 * line)
            assert got.startswith(b"HTTP/1.1 431 ")
        # Those of the next request do not count for this one.
        got = await served.answer(MAX_FIELDS * get("/") + get("/", "Connection: close"))
        assert got.count(b"HTTP/1.1 200 OK\r\n") == MAX_FIELDS + 1


BLANKS = {
    "a field": (b"a:" + b" " * 16200, 400),
    "a trailer": (CHUNKED + b"\r\n0\r\na:" + b" " * (2 * MAX_READ - 120), 400),
}


@pytest.mark.parametrize("wrong", [b"\0", b"\v", b"\f", b"\rx", b"\r\r\n"])
@pytest.mark.parametrize(("begin", "status"), BLANKS.values(), ids=BLANKS)
async def test_blanks_take_linear_time(begin: bytes, status: int, wrong: bytes) -> None:
    """Ten such requests, of which each took 0.7 s in a field and 0.05 s in a trailer."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if await read(receive) is not None:
            await reply(send, b"whole")

    async with door(app) as served:
        before = time.process_time()
        for _ in range(10):
            got = await served.answer(POST + begin + wrong + b"\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 %d " % status), got
        assert time.process_time() - before < 0.4


RANGES = "Range: bytes=" + ",".join(f"{3 * at}-{3 * at}" for at in range(100))


async def test_a_file_of_the_page_is_answered_from_memory() -> None:
    """Of a hundred ranges each took 0.04 s; a deep path took as long, in a thread."""
    async with door(Starlette(routes=pages.routes())) as served:
        before = time.process_time()
        for _ in range(20):
            async with await served.connect(get("/dashboard/main.js", RANGES)) as stream:
                assert await one(stream) == (200, (pages.FILES / "main.js").read_bytes())
            async with await served.connect(get("/dashboard/" + 800 * "a/" + "main.js")) as stream:
                assert (await one(stream))[0] == 404
        assert time.process_time() - before < 0.4
        for path in ("/", "/dashboard/vendor/temml.js"):
            got = (await served.answer(get(path, "Connection: close"))).decode("latin-1")
            tag = re.search(r'etag: ("[0-9a-f]+")', got)
            assert tag
            again = await served.answer(get(path, f"If-None-Match: {tag[1]}", "Connection: close"))
            assert again.startswith(b"HTTP/1.1 304 ")
            assert tag[1].encode() in again


@pytest.mark.parametrize("target", ["/" + "a/" * 7900, "/" + "%2f" * 5200, "/?" + "a&" * 7900])
async def test_a_long_target_is_refused_before_it_is_looked_at(target: str) -> None:
    async with door() as served:
        got = await served.answer(get(target))
        assert got.startswith(b"HTTP/1.1 414 ")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "uri_too_long"
        assert (await served.answer(get("/" + "a" * 2000, "Connection: close"))).endswith(b"aaa")


async def test_chunks_are_read_a_few_in_each_pass() -> None:
    passes = Passes()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            passes.did(len(message["body"]))
            size, more = size + len(message["body"]), message["more_body"]
        await reply(send, str(size).encode())

    async with counted(app, passes) as served:
        clients = [await served.connect(POST + CHUNKED + b"\r\n") for _ in range(MANY)]
        for stream in clients:
            await stream.send_all(1000 * ONE_BYTE + b"0\r\n\r\n")
        for stream in clients:
            assert await one(stream) == (200, b"1000")
            await stream.aclose()
    assert passes.most <= 4 * MAX_CHUNKS


WASTEFUL = {
    "chunks of a byte": (ONE_BYTE * MAX_FRAMING, 400),
    "extensions": ((b"1;" + b"e" * (MAX_READ - 10) + b"\r\nx\r\n") * 20, 400),
    "a large extension": (b"1;" + b"e" * 3 * MAX_READ, 431),
    "a large extension, and content": (b"1;" + b"e" * 3 * MAX_READ + b"\r\nx\r\n", 431),
    "trailers": (b"1\r\nx\r\n0\r\n" + b"t:\r\n" * 3200 + b"\r\n", 431),
    "trailers without an end": (b"1\r\nx\r\n0\r\n" + b"t:\r\n" * 3200, 431),
}


@pytest.mark.parametrize(("body", "status"), WASTEFUL.values(), ids=WASTEFUL)
async def test_a_body_that_carries_next_to_nothing_is_cut_off(body: bytes, status: int) -> None:
    taken = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal taken
        while (message := await receive())["type"] == "http.request":
            taken += len(message["body"])
            if not message["more_body"]:
                await reply(send, b"whole")
                return

    async with door(app) as served:
        got = await served.answer(POST + CHUNKED + b"\r\n" + body)
        assert got.startswith(b"HTTP/1.1 %d " % status), got
        said = json.loads(got.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert "chunk" in said.lower()
        assert taken < MAX_FRAMING


@pytest.mark.parametrize(("body", "status"), WASTEFUL.values(), ids=WASTEFUL)
async def test_a_body_that_nobody_reads_is_not_read_for_long(body: bytes, status: int) -> None:
    """It is thrown away as far as it has come, or the connection ends with the answer."""
    async with door() as served:
        got = await served.answer(POST + CHUNKED + b"\r\n" + body)
        assert got.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in got.lower()
        await served.works()


async def test_small_chunks_that_carry_something_are_read() -> None:
    """As `json.iterencode` writes them."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await reply(send, str(len(await read(receive) or b"")).encode())

    async with door(app) as served, await served.connect() as stream:
        body = 4000 * (b"6\r\n, 1234\r\n" + b"4\r\n, 12\r\n")
        await stream.send_all(POST + CHUNKED + b"\r\n" + body + b"0\r\n\r\n")
        assert await one(stream) == (200, b"40000")
        await stream.send_all(POST + CHUNKED + b"\r\n20000\r\n" + bytes(1 << 17) + b"\r\n0\r\n\r\n")
        assert await one(stream) == (200, str(1 << 17).encode())


async def test_large_chunks_take_few_turns() -> None:
    """A turn for every 2 KiB made a body of 4 MiB time out beside a flood."""
    passes, turns = Passes(), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal turns
        size, more = 0, True
        while more:
            message = await receive()
            turns += 1
            passes.did(len(message["body"]))
            size, more = size + len(message["body"]), message["more_body"]
        await reply(send, str(size).encode())

    async with counted(app, passes) as served, await served.connect() as stream:
        chunk = b"4000\r\n" + bytes(1 << 14) + b"\r\n"
        await stream.send_all(POST + CHUNKED + b"\r\n" + 64 * chunk + b"0\r\n\r\n")
        assert await one(stream) == (200, str(1 << 20).encode())
    assert turns < 64
    assert passes.most <= 4 * MAX_CHUNKS * MAX_READ


async def test_trailers_after_large_chunks_are_few() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if await read(receive) is not None:
            await reply(send, b"whole")

    async with door(app) as served:
        large = b"8000\r\n" + bytes(1 << 15) + b"\r\n0\r\n"
        for trailers in (3200 * b"t:\r\n" + b"\r\n", 3200 * b"t:\r\n"):
            got = await served.answer(POST + CHUNKED + b"\r\n" + large + trailers)
            assert got.startswith(b"HTTP/1.1 431 "), got


async def test_handshakes_take_turns(tmp_path: Path) -> None:
    """Of many clients of TLS that begin at once, all are served."""
    tls = Tls.read(*write_pair(tmp_path))
    context = ssl.create_default_context(cafile=str(tls.certificate))
    context.check_hostname = False
    async with door(limit=2 * MANY, tls=tls) as served:

        async def client() -> None:
            plain = await served.connect()
            stream = trio.SSLStream(plain, context, https_compatible=True)
            await stream.send_all(get("/"))
            assert await one(stream) == (200, b"GET /")
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(client)


def first_record() -> bytes:
    """What a client of TLS says first."""
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ours, theirs, server_hostname="x").do_handshake()
    return theirs.read()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_probe_does_not_wait_for_all_handshakes_of_its_source(
    tmp_path: Path, *, begun: bool
) -> None:
    """Neither for those that came before its first step, nor for those that come before its
    second."""
    key = rsa.generate_private_key(65537, 3072)  # a step takes longer than a pass of the loop
    tls, said = Tls.read(*write_pair(tmp_path, key=key)), first_record()
    context = ssl.create_default_context(cafile=str(tls.certificate))
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(ours, theirs, server_hostname="localhost")
    async with door(limit=4 * MANY, tls=tls) as served:
        flood = [await served.connect() for _ in range(2 * MANY)]
        probe = await served.connect()

        async def begin(streams: list[trio.SocketStream]) -> None:
            for stream in streams:
                os.write(stream.socket.fileno(), said)
            for _ in range(10):
                await trio.lowlevel.checkpoint()

        async def step(do: Callable[[], object]) -> None:
            while True:
                try:
                    do()
                except ssl.SSLWantReadError:
                    await probe.send_all(theirs.read())
                    ours.write(await probe.receive_some())
                else:
                    return

        await wait_all_tasks_blocked()
        if not begun:
            await begin(flood)
        await step(client.do_handshake)
        client.write(get("/livez"))
        if begun:
            await begin(flood[:MANY])
            await probe.send_all(theirs.read())
            await begin(flood[MANY:])
        got = bytearray()
        while not got.endswith(b"GET /livez"):
            await step(lambda: got.extend(client.read(1 << 16)))
        answered, _, _ = select.select([stream.socket for stream in flood], [], [], 0)
        assert len(answered) < MANY
        for stream in [*flood, probe]:
            await stream.aclose()


async def test_a_handshake_that_is_closed_as_it_is_called_holds_up_nobody(tmp_path: Path) -> None:
    tls, book, said = Tls.read(*write_pair(tmp_path)), Connections(MANY), first_record()

    async def client(far: socket.socket, scope: trio.CancelScope) -> None:
        place = book.admit("mallory")
        assert place is not None
        with scope:
            await tls.greet(far, place)
        place.leave()

    for passes in range(5 * MANY):
        async with trio.open_nursery() as clients:
            pairs = [socket.socketpair() for _ in range(3)]
            scopes = [trio.CancelScope() for _ in pairs]
            for (near, far), scope in zip(pairs, scopes, strict=True):
                near.send(said)
                clients.start_soon(client, far, scope)
                await trio.lowlevel.checkpoint()
            for _ in range(passes % 20):
                await trio.lowlevel.checkpoint()
            scopes[2].cancel()  # it is the next, if the first one is still being computed
            for near, _ in pairs[:2]:
                await trio.lowlevel.wait_readable(near)
                assert near.recv(1)
            for near, _ in pairs:
                near.close()


async def test_handshakes_of_sources_take_turns(tmp_path: Path) -> None:
    """Whoever repeats the first record of a handshake keeps nobody else waiting."""
    tls, book, answered = Tls.read(*write_pair(tmp_path)), Connections(4 * MANY), list[str]()
    first = first_record()

    async def client(source: str) -> None:
        near, far = socket.socketpair()
        place = book.admit(source)
        assert place is not None
        near.setblocking(False)
        near.send(first)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tls.greet, far, place)
            await trio.lowlevel.wait_readable(near)
            answered.append(source)
            near.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(book.turns.give)
        async with trio.open_nursery() as clients:
            for source in [*MANY * ["mallory"], "alice"]:
                clients.start_soon(client, source)
        nursery.cancel_scope.cancel()
    assert answered.index("alice") < MANY / 2
