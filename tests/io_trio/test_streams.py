"""Streams in tunnels: bytes of a collective between nodes, over real links, threads and sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import tracemalloc
from collections.abc import Callable

import pytest
import trio
from sealring_protocol.codec.messages import Tunnel
from sealring_trio.collective import carrier as streams
from sealring_trio.collective import loopback
from sealring_trio.collective.carrier import CHUNK, Line, Streams
from sealring_trio.collective.loopback import ConnectionOwner

from tests.io_trio.tunnel_sides import (
    BEFORE,
    CLOSE,
    DATA,
    EPOCH,
    GONE,
    LOOPBACK,
    NEXT,
    OPEN,
    Side,
    ended,
    engine_listens,
    joined,
    receive,
    sides,
)
from tests.serving import PATIENCE


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
        with trio.fail_after(PATIENCE):
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
            assert go.wait(PATIENCE)

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
        assert go.wait(PATIENCE)
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
