"""The relay of a collective: two of them back to back, real sockets, real processes, real sums."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from sealring_protocol.codec.messages import Epoch, Tunnel, TunnelEvent
from sealring_trio.collective import loopback
from sealring_trio.collective import relay as relays
from sealring_trio.collective.loopback import SharedLoopback
from sealring_trio.collective.ports import ConnectionOwner
from sealring_trio.collective.relay import CHUNK, Relays
from sealring_trio.net.threaded_socket import Guard

LOOPBACK = "127.0.0.1"
BEFORE, EPOCH, NEXT = (Epoch(7, counter) for counter in (1, 2, 3))
DATA, OPEN, CLOSE = TunnelEvent.DATA, TunnelEvent.OPEN, TunnelEvent.CLOSE


class Side:
    """A node with no links: what its relay sends on a tunnel goes straight to *others*."""

    def __init__(
        self, rank: int, nursery: trio.Nursery, others: dict[int, Side], guard: Guard
    ) -> None:
        self.rank = rank
        self.guard = guard
        self.pids = [os.getpid()]
        self.sent: list[Tunnel] = []
        self.news = trio.Event()
        self.room = trio.Event()
        self.room.set()
        self.left: deque[tuple[int, Tunnel]] = deque()
        self.relays = Relays(self)
        self._nursery = nursery
        self._others = others
        others[rank] = self

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self._nursery.start_soon(task, *arguments)

    def meet(self) -> SharedLoopback:
        return SharedLoopback(lambda: self.pids)

    def send(self, rank: int, message: Tunnel) -> bool:
        self.sent.append(message)
        self.guard.soon(self._tell)
        if rank in self._others:
            self._others[rank].take(self.rank, message)
        return self.room.is_set()

    def _tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    def take(self, rank: int, message: Tunnel) -> None:
        if self.left or not self.relays.carry(rank, message):
            self.left.append((rank, message))
            self.guard.soon(self._deal)

    def _deal(self) -> None:
        with self.guard.lock:
            while self.left:
                self.relays.message(*self.left.popleft())

    async def idle(self, rank: int) -> None:
        await self.room.wait()

    async def has_sent(self, *messages: tuple[int, TunnelEvent]) -> None:
        """Wait until the latest messages are these."""
        while [(m.stream, m.event) for m in self.sent[-len(messages) :]] != list(messages):
            await self.news.wait()


@asynccontextmanager
async def sides(count: int = 2) -> AsyncIterator[list[Side]]:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            others: dict[int, Side] = {}
            guard = Guard()
            made = [Side(rank, nursery, others, guard) for rank in range(count)]
            try:
                yield made
            finally:
                for side in made:
                    with guard.lock:
                        side.relays.close()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[list[Side], trio.SocketStream, trio.SocketStream]]:
    """Two sides, and stream 0: rank 0's "engine" at one end, rank 1's at the other."""
    async with sides() as (near, far):
        dialed = near.relays.prepare(EPOCH, 0, 2, sealed=True)
        listens = far.relays.prepare(EPOCH, 1, 2, sealed=True)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as ours:
            server = engine_listens(listens.port)
            async with trio.SocketStream((await server.accept())[0]) as theirs:
                server.close()
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
        dialed = near.relays.prepare(EPOCH, 0, 2, sealed=True)
        listens = far.relays.prepare(EPOCH, 1, 2, sealed=True)
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
        dialed = near.relays.prepare(EPOCH, 0, 2, sealed=True)
        far.relays.prepare(EPOCH, 1, 2, sealed=True)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as ours:
            assert await ours.receive_some() == b""
        assert far.sent == [Tunnel(EPOCH, 0, CLOSE)]


async def test_what_was_said_last_arrives_before_the_end() -> None:
    async with joined() as (_, ours, theirs):
        await ours.send_all(b"the last")
        await ours.aclose()
        assert await receive(theirs, 8) == b"the last"
        assert await theirs.receive_some() == b""


ENDS: dict[str, Callable[[Side, Side], None]] = {
    "the node ends the collective": lambda near, _: near.relays.end(EPOCH),
    "the other node does": lambda _, far: far.relays.end(EPOCH),
    "a newer one begins": lambda near, _: near.relays.prepare(NEXT, 0, 2, sealed=True) and None,
    "the tunnel link is lost": lambda near, _: near.relays.lost(1),
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
        near.relays.end(BEFORE)
        await ours.send_all(b"still here")
        assert await receive(theirs, 10) == b"still here"


async def test_a_stranger_is_refused_and_the_engine_still_gets_in() -> None:
    async with sides() as (near, _):
        near.pids = []  # nobody is the engine
        dialed = near.relays.prepare(EPOCH, 0, 2, sealed=True)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as stranger:
            assert await ended(stranger)
        assert near.sent == []
        near.pids = [os.getpid()]
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay):
            await near.has_sent((0, OPEN))


async def test_there_is_one_place_at_the_relay() -> None:
    async with joined() as ((near, _), *_):
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream(LOOPBACK, near.relays._relay.relay)  # type: ignore[union-attr]


async def test_a_stranger_that_listens_in_the_engines_place_hears_nothing() -> None:
    async with sides() as (near, far):
        dialed = near.relays.prepare(EPOCH, 0, 2, sealed=True)
        listens = far.relays.prepare(EPOCH, 1, 2, sealed=True)
        far.pids = []
        server = engine_listens(listens.port)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as ours:
            await ours.send_all(b"secret")
            async with trio.SocketStream((await server.accept())[0]) as theirs:
                assert await theirs.receive_some() == b""
            assert await ours.receive_some() == b""
        server.close()


async def test_a_busy_link_stops_the_engine_and_nobody_buffers() -> None:
    async with joined() as ((near, _), ours, theirs):
        near.room = trio.Event()
        await ours.send_all(b"one")
        assert await receive(theirs, 3) == b"one"
        with trio.move_on_after(0.3) as blocked:
            await ours.send_all(bytes(64 << 20))
        assert blocked.cancelled_caught
        assert len(near.sent) == 2
        near.room.set()
        assert await theirs.receive_some()


async def test_an_engine_that_takes_nothing_ends_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relays, "MAX_UNTAKEN", 1 << 20)
    async with joined() as ((_, far), ours, _theirs):
        with contextlib.suppress(trio.BrokenResourceError):
            await ours.send_all(bytes(32 << 20))
        assert await ended(ours)
        assert far.sent[-1] == Tunnel(EPOCH, 0, CLOSE)


async def test_single_bytes_that_wait_take_no_more_room_than_they_are() -> None:
    async with sides() as (near, _):
        near.relays.prepare(EPOCH, 0, 2, sealed=True)
        near.relays.message(1, Tunnel(EPOCH, 1, OPEN))  # whose engine does not listen yet
        tracemalloc.start()
        try:
            for _ in range(100_000):
                near.relays.message(1, Tunnel(EPOCH, 1, DATA, b"x"))
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
        finally:
            tracemalloc.stop()
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
        dialed = near.relays.prepare(EPOCH, 0, 2, sealed=True)
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
        dialed = near.relays.prepare(EPOCH, 0, 2, sealed=True)
        async with await trio.open_tcp_stream(LOOPBACK, dialed.relay) as late:
            await asked.wait()
            near.relays.end(EPOCH)
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
    async with sides() as (near, _):
        near.relays.message(1, message)  # in no collective
        near.relays.prepare(EPOCH, 0, 2, sealed=True)
        near.relays.message(1, message)
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
        near.relays.message(1, message)
        far.relays.message(0, message)
        await ours.send_all(b"there")
        assert await receive(theirs, 5) == b"there"
        await theirs.send_all(b"back")
        assert await receive(ours, 4) == b"back"


async def test_an_open_collective_has_no_relay() -> None:
    async with sides() as (near, _):
        found = near.relays.prepare(EPOCH, 0, 2, sealed=False)
        assert found.port > 0
        assert found.relay == 0


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
            found = side.relays.prepare(EPOCH, side.rank, world, sealed=True)
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
            near.relays.end(EPOCH)
            with trio.fail_after(2):
                _, told = await trio.to_thread.run_sync(hung.communicate)
            assert hung.returncode != 0
            assert b"[ring]" in told
