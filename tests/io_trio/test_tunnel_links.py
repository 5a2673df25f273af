"""The links that carry a collective: their order, their end, their time."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from functools import partial

import pytest
import trio
from sealring_protocol.codec.messages import Tunnel
from sealring_protocol.errors import CloseCode, ConnectionLost
from sealring_protocol.link import LinkClosed
from sealring_trio.collective.carrier import Line

from tests.io_trio.tunnel_sides import (
    CLOSE,
    DATA,
    EPOCH,
    GONE,
    OPEN,
    Side,
    ended,
    engine_listens,
    joined,
    receive,
    sides,
)
from tests.sim.rosters import make_roster


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
