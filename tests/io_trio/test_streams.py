"""Nodes that carry a collective: real links, threads and sockets, real processes, real sums."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from sealring_protocol.codec.messages import Epoch, Message, Tunnel, TunnelEvent
from sealring_protocol.errors import CloseCode, ConnectionLost, SealringError
from sealring_protocol.events import Hangup, LinkUp
from sealring_protocol.link import Link, LinkClosed
from sealring_protocol.security.roles import Purpose
from sealring_trio.collective import loopback, streams
from sealring_trio.collective.carrier import Line
from sealring_trio.collective.loopback import SharedLoopback
from sealring_trio.collective.ports import ConnectionOwner
from sealring_trio.collective.streams import CHUNK, Streams
from sealring_trio.collective.tunnels import Tunnels
from sealring_trio.net.pump import Pump

from tests.link.pair import established
from tests.sim.cluster import make_roster

LOOPBACK = "127.0.0.1"
BEFORE, EPOCH, NEXT = (Epoch(7, counter) for counter in (1, 2, 3))
DATA, OPEN, CLOSE = TunnelEvent.DATA, TunnelEvent.OPEN, TunnelEvent.CLOSE


class Ports(NamedTuple):
    """Where an engine is to listen, and to connect."""

    port: int
    relay: int


class Side:
    """A node of *world* with nothing but tunnels; its links are real, and so is its thread."""

    def __init__(self, rank: int, world: int, nursery: trio.Nursery) -> None:
        self.rank = rank
        self.world = world
        self.pids = [os.getpid()]
        self.links: dict[int, Link] = {}
        self.sent: list[Tunnel] = []
        self.came = 0  # messages on tunnel links
        self.overs: list[SealringError | LinkClosed] = []
        self.news = trio.Event()
        self.ports = Ports(0, 0)
        self.tunnels = Tunnels(self)
        self._token = trio.lowlevel.current_trio_token()
        self._nursery = nursery

    def up(self, rank: int, link: Link, sock: socket.socket) -> None:
        """The tunnel *link* with *rank* is up, on *sock*; the connection has the rank's number."""
        send = link.send

        def record(message: Message) -> None:
            if isinstance(message, Tunnel):
                self.sent.append(message)
                self._token.run_sync_soon(self._tell)
            send(message)

        link.send = record  # type: ignore[method-assign]
        self.links[rank] = link
        pump = Pump(self, rank, sock)
        self.spawn(pump.run)
        event = LinkUp(rank, Purpose.TUNNEL, rank, link)
        assert self.tunnels.up(event, pump) is None
        count = self.streams.message

        def counting(rank: int, message: Tunnel) -> None:
            count(rank, message)
            self.came += 1
            self._token.run_sync_soon(self._tell)

        self.streams.message = counting  # type: ignore[method-assign]

    @property
    def streams(self) -> Streams:
        assert self.tunnels._streams is not None
        return self.tunnels._streams

    def prepare(self, epoch: Epoch, *, sealed: bool = True) -> Ports:
        self.ports = Ports(*self.tunnels.prepare(epoch, self.rank, self.world, sealed=sealed))
        return self.ports

    async def turn(self) -> None:
        """Wait until the thread has done what it was told."""
        done = trio.Event()
        self.streams.order(partial(self._token.run_sync_soon, done.set))
        await done.wait()

    async def say(self, *messages: Tunnel) -> None:
        """Send *messages* on the link with the only neighbour, as if a stream had them."""
        (rank,) = self.links

        def send() -> None:
            lane = self.streams._lanes[rank]
            for message in messages:
                Link.send(lane.session, message)
            self.streams._flush(lane)

        self.streams.order(send)
        await self.turn()

    def _tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    async def has_sent(self, *messages: tuple[int, TunnelEvent]) -> None:
        """Wait until the latest messages are these."""
        while [(m.stream, m.event) for m in self.sent[-len(messages) :]] != list(messages):
            await self.news.wait()

    async def heard(self, count: int) -> None:
        """Wait until so many messages have come."""
        while self.came < count:
            await self.news.wait()

    async def is_over(self) -> SealringError | LinkClosed:
        """Wait until a link is, and say why."""
        while not self.overs:
            await self.news.wait()
        return self.overs[0]

    # ------------------------------------------------- for tunnels and pumps

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self._nursery.start_soon(task, *arguments)

    def meet(self) -> SharedLoopback:
        return SharedLoopback(lambda: self.pids)

    def link_over(self, link: int, end: SealringError | LinkClosed) -> None:
        self.overs.append(end)
        self._tell()

    def tunnel_closed(self) -> None:
        self._tell()

    def received(self, link: int, data: bytes) -> None:
        raise AssertionError("a tunnel's bytes do not pass here")

    def ended(self, link: int) -> None:
        raise AssertionError("nor its end")

    def data_to_send(self, link: int) -> bytes:
        return b""


@asynccontextmanager
async def sides(count: int = 2) -> AsyncIterator[list[Side]]:
    """Nodes in a ring, each with a tunnel link to each neighbour."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            made = [Side(rank, count, nursery) for rank in range(count)]
            for low, high in itertools.combinations(range(count), 2):
                links = established(
                    purpose=Purpose.TUNNEL, indexes=(low, high), now=trio.current_time()
                )
                ends = connected()
                made[low].up(high, links.a.link, ends[0])
                made[high].up(low, links.b.link, ends[1])
            try:
                yield made
            finally:
                for side in made:
                    side.tunnels.close()
            nursery.cancel_scope.cancel()


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server((LOOPBACK, 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[list[Side], trio.SocketStream, trio.SocketStream]]:
    """Two sides, and stream 0: rank 0's "engine" at one end, rank 1's at the other."""
    async with sides() as (near, far):
        dialed = near.prepare(EPOCH)
        listens = far.prepare(EPOCH)
        await far.turn()
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as ours:
            server = engine_listens(listens.port)
            async with trio.SocketStream((await server.accept())[0]) as theirs:
                server.close()
                while far.streams._streams[0].line is None:  # it is asked whose it is
                    await far.turn()
                yield [near, far], ours, theirs


def engine_listens(port: int) -> trio.socket.SocketType:
    """What MLX's ring does: its port may be somebody's who waits there with the same option."""
    server = trio.socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server._sock.bind((LOOPBACK, port))  # type: ignore[attr-defined]
    server.listen()
    return server


async def receive(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = await stream.receive_some()
        assert part
        data += part
    return data


async def ended(stream: trio.SocketStream) -> bool:
    """Whether the next thing that *stream* has is its end, in good order or not."""
    try:
        return not await stream.receive_some()
    except trio.BrokenResourceError:
        return True


async def test_bytes_go_both_ways_in_chunks_that_fit() -> None:
    async with joined() as ((near, far), ours, theirs):
        sent = os.urandom(3 << 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, sent)
            assert await receive(theirs, len(sent)) == sent
        await theirs.send_all(b"back")
        assert await receive(ours, 4) == b"back"
        assert near.sent[0] == Tunnel(EPOCH, 0, OPEN)
        assert {m.event for m in near.sent[1:]} == {DATA}
        assert max(len(m.data) for m in near.sent) <= CHUNK
        assert far.sent == [Tunnel(EPOCH, 0, DATA, b"back")]


async def test_an_engine_may_listen_late_and_loses_nothing() -> None:
    async with sides() as (near, far):
        dialed = near.prepare(EPOCH)
        listens = far.prepare(EPOCH)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as ours:
            await ours.send_all(b"early")
            await near.has_sent((0, OPEN), (0, DATA))
            server = engine_listens(listens.port)
            async with trio.SocketStream((await server.accept())[0]) as theirs:
                assert await receive(theirs, 5) == b"early"
            server.close()


async def test_an_engine_that_never_listens_ends_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loopback, "CONNECT_SECONDS", 0.05)
    async with sides() as (near, far):
        dialed = near.prepare(EPOCH)
        far.prepare(EPOCH)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as ours:
            assert await ours.receive_some() == b""
        assert far.sent == [Tunnel(EPOCH, 0, CLOSE)]


async def test_what_was_said_before_an_engine_listens_arrives_though_the_stream_is_over() -> None:
    async with sides() as (near, far):
        listens = far.prepare(EPOCH)
        await near.say(
            *(Tunnel(EPOCH, 0, e, d) for e, d in ((OPEN, b""), (DATA, b"all"), (CLOSE, b"")))
        )
        await far.heard(3)
        server = engine_listens(listens.port)
        async with trio.SocketStream((await server.accept())[0]) as theirs:
            assert await receive(theirs, 3) == b"all"
            assert await theirs.receive_some() == b""
        server.close()


async def test_what_was_said_last_arrives_before_the_end() -> None:
    async with joined() as (_, ours, theirs):
        await ours.send_all(b"the last")
        await ours.aclose()
        assert await receive(theirs, 8) == b"the last"
        assert await theirs.receive_some() == b""


GONE = Hangup(1, b"", CloseCode.SHUTDOWN, "enough")

ENDS: dict[str, Callable[[Side, Side], None]] = {
    "the node ends the collective": lambda near, _: near.tunnels.end(EPOCH),
    "the other node does": lambda _, far: far.tunnels.end(EPOCH),
    "a newer one begins": lambda near, _: near.prepare(NEXT) and None,
    "the tunnel link is lost": lambda near, _: near.tunnels.hang_up(GONE) and None,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_an_end_frees_both_engines(end: Callable[[Side, Side], None]) -> None:
    async with joined() as ((near, far), ours, theirs):
        end(near, far)
        with trio.fail_after(2):
            assert await ended(ours)
            assert await ended(theirs)


async def test_the_end_of_an_older_collective_ends_nothing() -> None:
    async with joined() as ((near, _), ours, theirs):
        near.tunnels.end(BEFORE)
        await ours.send_all(b"still here")
        assert await receive(theirs, 10) == b"still here"


async def test_a_stranger_is_refused_and_the_engine_still_gets_in() -> None:
    async with sides() as (near, _):
        near.pids = []  # nobody is the engine
        dialed = near.prepare(EPOCH)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as stranger:
            assert await ended(stranger)
        assert near.sent == []
        near.pids = [os.getpid()]
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay):
            await near.has_sent((0, OPEN))


async def test_there_is_one_place_at_the_relay() -> None:
    async with joined() as ((near, _), *_):
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream(LOOPBACK, near.ports.relay)


async def test_a_stranger_that_listens_in_the_engines_place_hears_nothing() -> None:
    async with sides() as (near, far):
        dialed = near.prepare(EPOCH)
        listens = far.prepare(EPOCH)
        far.pids = []
        server = engine_listens(listens.port)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as ours:
            await ours.send_all(b"secret")
            async with trio.SocketStream((await server.accept())[0]) as theirs:
                assert await theirs.receive_some() == b""
            assert await ours.receive_some() == b""
        server.close()


async def test_a_busy_link_stops_the_engine_and_nobody_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token, paused = trio.lowlevel.current_trio_token(), trio.Event()
    pause = Line.pause

    def pausing(line: Line) -> None:
        pause(line)
        token.run_sync_soon(paused.set)

    monkeypatch.setattr(Line, "pause", pausing)
    async with joined() as ((near, far), ours, theirs):
        sent = os.urandom(32 << 20)
        held, go = trio.Event(), threading.Event()

        def hold() -> None:
            token.run_sync_soon(held.set)
            assert go.wait(10)

        far.streams.order(hold)  # and nothing is read from the link meanwhile
        await held.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, sent)
            await paused.wait()
            await near.turn()
            (lane,) = near.streams._lanes.values()
            assert 0 < lane.line.unsent <= 2 * CHUNK
            assert not lane.session.has_data_to_send
            count = len(near.sent)
            await near.turn()
            assert len(near.sent) == count  # the engine is not read
            go.set()
            assert await receive(theirs, len(sent)) == sent


async def test_an_engine_that_takes_nothing_ends_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "MAX_UNTAKEN", 1 << 20)
    async with joined() as ((_, far), ours, _theirs):
        with contextlib.suppress(trio.BrokenResourceError):
            await ours.send_all(bytes(32 << 20))
        assert await ended(ours)
        assert far.sent[-1] == Tunnel(EPOCH, 0, CLOSE)


async def test_single_bytes_that_wait_take_no_more_room_than_they_are() -> None:
    async with sides() as (near, far):
        near.prepare(EPOCH)
        await far.turn()  # it makes room for what comes from here, and all threads are counted
        grown: list[int] = []

        def take() -> None:
            near.streams.message(1, Tunnel(EPOCH, 1, OPEN))  # whose engine does not listen yet
            message = Streams.message
            tracemalloc.start()
            for _ in range(100_000):
                message(near.streams, 1, Tunnel(EPOCH, 1, DATA, b"x"))
            grown.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()

        near.streams.order(take)
        await near.turn()
        assert grown[0] < 1 << 20
        assert near.sent == []


async def test_without_file_descriptors_the_relay_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with trio.socket.socket() as made:
        kind = type(made)
    accept, failed = kind.accept, trio.Event()

    async def exhausted(server: trio.socket.SocketType) -> tuple[trio.socket.SocketType, object]:
        taken = await accept(server)
        if not failed.is_set():
            failed.set()
            taken[0].close()
            raise OSError(errno.EMFILE, "Too many open files")
        return taken

    monkeypatch.setattr(kind, "accept", exhausted)
    async with sides() as (near, _):
        dialed = near.prepare(EPOCH)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as refused:
            await failed.wait()
            assert await ended(refused)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay):
            await near.has_sent((0, OPEN))


async def test_a_collective_that_ends_while_it_is_asked_whose_a_connection_is_opens_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, go = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def slow(connection: socket.socket, pids: list[int]) -> ConnectionOwner:
        token.run_sync_soon(asked.set)
        assert go.wait(10)
        return ConnectionOwner.OURS

    monkeypatch.setattr(loopback, "made", slow)
    async with sides() as (near, _):
        dialed = near.prepare(EPOCH)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as late:
            await asked.wait()
            near.tunnels.end(EPOCH)
            go.set()
            assert await ended(late)
        assert near.sent == []


FOREIGN = {
    "of another pair": Tunnel(EPOCH, 2, OPEN),
    "our own, opened by the other": Tunnel(EPOCH, 0, OPEN),
    "data of none": Tunnel(EPOCH, 1, DATA, b"x"),
    "the end of none": Tunnel(EPOCH, 1, CLOSE),
    "of an epoch that is over": Tunnel(BEFORE, 1, OPEN),
    "of an epoch to come": Tunnel(NEXT, 1, OPEN),
}


@pytest.mark.parametrize("message", FOREIGN.values(), ids=FOREIGN)
async def test_what_fits_no_stream_is_dropped(message: Tunnel) -> None:
    async with sides() as (near, far):
        await far.say(message)
        await near.heard(1)  # in no collective
        near.prepare(EPOCH)
        await far.say(message)
        await near.heard(2)
        await trio.testing.wait_all_tasks_blocked()
        assert near.sent == []


LATE = {
    "bytes": Tunnel(BEFORE, 0, DATA, b"of an older collective"),
    "an end": Tunnel(BEFORE, 0, CLOSE),
}


@pytest.mark.parametrize("message", LATE.values(), ids=LATE)
async def test_what_an_older_collective_said_reaches_no_engine_of_a_newer_one(
    message: Tunnel,
) -> None:
    async with joined() as ((near, far), ours, theirs):
        await near.say(message)
        await far.say(message)
        await ours.send_all(b"there")
        assert await receive(theirs, 5) == b"there"
        await theirs.send_all(b"back")
        assert await receive(ours, 4) == b"back"


async def test_an_open_collective_has_no_relay() -> None:
    async with sides() as (near, _):
        found = near.prepare(EPOCH, sealed=False)
        assert found.port > 0
        assert found.relay == 0


# ------------------------------------------------------------- tunnel links


def stop(side: Side, change: Callable[[Line], None]) -> None:
    """Have the thread of *side* do *change* with the line of its only tunnel link."""
    (lane,) = side.streams._lanes.values()
    side.streams.order(partial(change, lane.line))


async def test_what_comes_right_behind_the_opening_of_a_stream_keeps_its_place() -> None:
    async with sides() as (near, far):
        far.prepare(EPOCH)
        server = engine_listens(far.ports.port)
        await near.say(Tunnel(EPOCH, 0, OPEN), *(Tunnel(EPOCH, 0, DATA, b) for b in (b"a", b"b")))
        await near.say(Tunnel(EPOCH, 0, DATA, b"c"))
        async with trio.SocketStream((await server.accept())[0]) as theirs:
            assert await receive(theirs, 3) == b"abc"
            await near.say(
                Tunnel(EPOCH, 0, DATA, b"d"),
                Tunnel(EPOCH, 0, CLOSE),
                Tunnel(EPOCH, 0, DATA, b"too late"),
            )
            assert await receive(theirs, 1) == b"d"
            assert await theirs.receive_some() == b""
        server.close()


async def test_a_link_that_is_closed_behind_data_loses_none_and_the_node_hears_of_it() -> None:
    async with joined() as ((near, far), ours, theirs):
        await ours.send_all(b"last")
        await near.has_sent((0, DATA))
        near.tunnels.hang_up(GONE)
        assert await far.is_over() == LinkClosed(CloseCode.SHUTDOWN, "enough")
        assert near.overs == []  # its node knows
        assert await receive(theirs, 4) == b"last"
        assert await ended(theirs)
        while near.tunnels.open or far.tunnels.open:
            await trio.testing.wait_all_tasks_blocked()


async def test_bytes_that_were_changed_on_the_way_end_the_link() -> None:
    async with joined() as ((near, far), ours, theirs):

        def forge(line: Line) -> None:
            session = near.links[1]
            session.send(Tunnel(EPOCH, 0, DATA, b"forged"))
            frame = bytearray(session.data_to_send())
            frame[-1] ^= 1
            line.send(frame)

        stop(near, forge)
        assert "does not open" in str(await far.is_over())
        assert await ended(theirs)
        assert await ended(ours)
        assert isinstance(await near.is_over(), LinkClosed)  # it was told why


@pytest.mark.parametrize("how", ["reset", "end"])
async def test_a_connection_that_breaks_is_told_once(how: str) -> None:
    async with joined() as ((near, far), ours, theirs):

        def break_off(line: Line) -> None:
            if how == "reset":
                line._socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            line.fail()

        stop(near, break_off)
        assert isinstance(await far.is_over(), ConnectionLost)
        assert isinstance(await near.is_over(), ConnectionLost)
        assert await ended(ours)
        assert await ended(theirs)
        await near.turn()
        await far.turn()
        await trio.testing.wait_all_tasks_blocked()
        assert (len(near.overs), len(far.overs)) == (1, 1)
        assert not near.tunnels.open
        assert not far.tunnels.open


async def test_the_thread_keeps_a_links_time() -> None:
    async with sides() as (near, far):
        session = near.links[1]
        near.streams.order(lambda: near.streams.tend(session.next_timeout() or 0.0))  # it is due
        while session.keepalive.rtt is None:  # the PING is answered, thread to thread
            await near.turn()
        assert (near.overs, far.overs) == ([], [])


async def test_a_newer_roster_lengthens_a_links_life() -> None:
    async with sides() as (near, _):
        before = near.links[1]._expires
        near.tunnels.renew(make_roster(3, serial=2, lifetime_ms=2 * 10**9))
        await near.turn()
        assert near.links[1]._expires > before


async def test_without_a_thread_links_are_given_up_and_the_next_may_have_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as without:
        without.setattr(trio.to_thread, "run_sync", no_thread)
        async with sides() as (near, far):
            assert "no thread" in str(await near.is_over())
            assert "no thread" in str(await far.is_over())
            assert not near.tunnels.open
            assert "no thread" in caplog.text
    async with joined() as (_, ours, theirs):
        await ours.send_all(b"now")
        assert await receive(theirs, 3) == b"now"


async def no_thread(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


# ---------------------------------------------------------------- real sums

SUMS = """
import sys
import mlx.core as mx
group = mx.distributed.init(strict=True, backend="ring")
ones = mx.ones((2048,), mx.float32)
total = mx.array(0)
rounds = int(sys.argv[1])
while rounds:
    total = mx.distributed.all_sum(ones)
    mx.eval(total)
    rounds -= 1
    if rounds == -10:
        print("going", flush=True)
print(total.tolist() == [group.size()] * 2048, flush=True)
"""


@contextlib.contextmanager
def summing(made: list[Side], folder: Path, rounds: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The real thing: a rank of MLX's ring behind each relay, summing so often (-1: for ever)."""
    world = len(made)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for side in made:
            found = side.prepare(EPOCH)
            hosts = [[f"{LOOPBACK}:1"]] * world
            hosts[side.rank] = [f"{LOOPBACK}:{found.port}"]
            hosts[(side.rank + 1) % world] = [f"{LOOPBACK}:{found.relay}"]
            file = folder / f"hosts{side.rank}.json"
            file.write_text(json.dumps(hosts))
            process = subprocess.Popen(
                [sys.executable, "-c", SUMS, str(rounds)],
                env={**os.environ, "MLX_RANK": str(side.rank), "MLX_HOSTFILE": str(file)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            processes.append(process)
            side.pids = [process.pid]
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("world", [2, 3])
async def test_a_ring_of_mlx_sums_through_relays(world: int, tmp_path: Path) -> None:
    async with sides(world) as made:
        with summing(made, tmp_path, 50) as processes:
            for process in processes:
                out, _ = await trio.to_thread.run_sync(process.communicate)
                assert out == b"True\n"


async def test_a_rank_that_hangs_on_a_frozen_one_is_freed(tmp_path: Path) -> None:
    async with sides() as (near, far):
        with summing([near, far], tmp_path, -1) as (hung, frozen):
            assert hung.stdout is not None
            assert await trio.to_thread.run_sync(hung.stdout.readline) == b"going\n"
            frozen.send_signal(signal.SIGSTOP)
            near.tunnels.end(EPOCH)
            with trio.fail_after(2):
                _, told = await trio.to_thread.run_sync(hung.communicate)
            assert hung.returncode != 0
            assert b"[ring]" in told
