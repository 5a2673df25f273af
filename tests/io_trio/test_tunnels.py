"""A node's tunnels over real links and sockets: what a thread carries, and what it leaves."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from sealring_protocol.codec.messages import Epoch, Message, Tunnel, TunnelEvent
from sealring_protocol.control.effects import EndCollective, PrepareCollective
from sealring_protocol.errors import CloseCode, SealringError
from sealring_protocol.events import LinkUp, TunnelLost, TunnelMessage
from sealring_protocol.link import LinkClosed
from sealring_protocol.security.roles import Purpose
from sealring_trio.collective.loopback import SharedLoopback
from sealring_trio.collective.tunnels import Tunnels
from sealring_trio.net.pump import Pump
from sealring_trio.net.threaded_socket import Guard

from tests.driver import End
from tests.io_trio.test_relay import engine_listens, receive
from tests.io_trio.test_wire import pair
from tests.link.pair import established

EPOCH = Epoch(7, 1)
LINK = 5
OPEN, DATA, CLOSE = TunnelEvent.OPEN, TunnelEvent.DATA, TunnelEvent.CLOSE


class Node:
    """Rank 1 of two, as far as tunnels and a link's pump need it: its link to rank 0 is real."""

    rank, world = 1, 2

    def __init__(self, end: End, nursery: trio.Nursery) -> None:
        self.end = end
        self.guard = Guard()
        self.tunnels = Tunnels(self, self.guard)
        self.pumps: dict[int, Pump] = {}
        self.bytes_received = 0
        self.events: list[Any] = []
        self.error: SealringError | None = None
        self.port = 0
        self.news = trio.Event()
        self.over = trio.Event()
        self._nursery = nursery

    def begin(self, sock: socket.socket) -> None:
        self.pumps[LINK] = Pump(self, LINK, sock)
        self.spawn(self.pumps[LINK].run)
        with self.guard.lock:
            up = LinkUp(0, Purpose.TUNNEL, LINK, self.end.link)
            self.tunnels.up(up, self.pumps[LINK])
        self.carry_out(PrepareCollective(EPOCH, True))

    def carry_out(self, event: Any) -> None:
        with self.guard.lock:
            self.tunnels.carry_out(event, self)  # type: ignore[arg-type]

    def collective_prepared(self, epoch: Epoch, port: int, relay: int, now: float) -> None:
        self.port = port

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self._nursery.start_soon(task, *arguments)

    def meet(self) -> SharedLoopback:
        return SharedLoopback(lambda: [os.getpid()])

    def received(self, link: int, data: bytes) -> None:
        """As the runtime enters a node: whatever the link still has is the node's."""
        try:
            self.end.receive(data, 2.0)
        except SealringError as error:
            self.error = error
            self.news.set()
        for event in self.end.taken():
            if isinstance(event, Tunnel):
                self.carry_out(TunnelMessage(0, event))
            else:
                self.events.append(event)
                self.news.set()
        self.pumps[link].flush()

    def ended(self, link: int) -> None:
        self.over.set()

    def data_to_send(self, link: int) -> bytes | bytearray:
        return self.end.link.data_to_send()


@attrs.frozen
class Peer:
    """Rank 0's end of the link, and a blocking socket."""

    end: End
    stream: trio.SocketStream

    async def send(self, *messages: Message) -> None:
        """All of them in one piece."""
        await self.stream.send_all(self.end.send(*messages))

    async def receive(self) -> list[Any]:
        self.end.receive(bytes(await self.stream.receive_some()), 2.0)
        return self.end.taken()


@asynccontextmanager
async def tunnel() -> AsyncIterator[tuple[Node, Peer]]:
    links = established(purpose=Purpose.TUNNEL, indexes=(0, 1))
    for end in (links.a, links.b):
        end.taken()
    near, far = pair()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            node = Node(links.b, nursery)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(far))
            nursery.start_soon(node.guard.keep_up)
            node.begin(near)
            yield node, Peer(links.a, stream)
            node.carry_out(EndCollective(EPOCH))
            nursery.cancel_scope.cancel()
        await stream.aclose()


@asynccontextmanager
async def engine(node: Node) -> AsyncIterator[trio.SocketListener]:
    async with trio.SocketListener(engine_listens(node.port)) as listener:
        yield listener


def data(*pieces: bytes) -> list[Tunnel]:
    return [Tunnel(EPOCH, 0, DATA, piece) for piece in pieces]


async def test_what_comes_right_behind_the_opening_of_a_stream_keeps_its_place() -> None:
    async with tunnel() as (node, peer), engine(node) as listener:
        await peer.send(Tunnel(EPOCH, 0, OPEN), *data(b"a", b"b"))
        await peer.send(*data(b"c"))
        async with await listener.accept() as stream:
            assert await receive(stream, 3) == b"abc"
            await peer.send(*data(b"d"))
            assert await receive(stream, 1) == b"d"
            await stream.send_all(b"back")
            assert await peer.receive() == data(b"back")
            await peer.send(*data(b"e"), Tunnel(EPOCH, 0, CLOSE), *data(b"too late"))
            assert await receive(stream, 1) == b"e"
            assert await stream.receive_some() == b""
    assert node.events == []
    assert node.error is None


async def test_a_link_that_is_closed_behind_data_loses_none_and_the_node_hears_of_it() -> None:
    async with tunnel() as (node, peer), engine(node) as listener:
        await peer.send(Tunnel(EPOCH, 0, OPEN))
        async with await listener.accept() as stream:
            for message in data(b"last"):
                peer.end.link.send(message)
            peer.end.link.close(CloseCode.SHUTDOWN, "enough")
            await peer.stream.send_all(bytes(peer.end.link.data_to_send()))
            assert await receive(stream, 4) == b"last"
            await node.news.wait()
            assert node.events == [LinkClosed(CloseCode.SHUTDOWN, "enough")]
            node.carry_out(TunnelLost(0))
            assert await stream.receive_some() == b""


async def test_bytes_that_were_changed_on_the_way_are_the_nodes_to_deal_with() -> None:
    async with tunnel() as (node, peer), engine(node) as listener:
        await peer.send(Tunnel(EPOCH, 0, OPEN))
        async with await listener.accept() as stream:
            peer.end.link.send(data(b"forged")[0])
            frame = bytearray(peer.end.link.data_to_send())
            frame[-1] ^= 1
            await peer.stream.send_all(bytes(frame))
            await node.news.wait()
            assert "does not open" in str(node.error)
            node.carry_out(TunnelLost(0))
            assert await stream.receive_some() == b""


async def test_a_ping_is_answered_by_the_thread() -> None:
    async with tunnel() as (_, peer):
        due = peer.end.link.next_timeout()
        assert due is not None
        peer.end.link.handle_timeout(due)
        assert peer.end.link.has_data_to_send  # a PING
        await peer.send()
        assert await peer.receive() == []
        assert peer.end.link.keepalive.rtt is not None


async def test_the_end_of_the_stream_ends_the_pump() -> None:
    async with tunnel() as (node, peer):
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.send_eof()
        await node.over.wait()


async def test_messages_for_a_link_that_is_gone_are_dropped() -> None:
    async with tunnel() as (node, _):
        node.carry_out(TunnelLost(0))
        with node.guard.lock:
            assert node.tunnels.send(0, data(b"x")[0])
        await node.tunnels.idle(0)


@pytest.mark.parametrize("polite", [True, False])
async def test_a_link_that_the_node_hangs_up_says_its_last(polite: bool) -> None:
    async with tunnel() as (node, peer):
        with node.guard.lock:
            node.end.link.close(CloseCode.SHUTDOWN, "enough")
            node.pumps[LINK].hang_up(bytes(node.end.link.data_to_send()))
        assert await peer.receive() == [LinkClosed(CloseCode.SHUTDOWN, "enough")]
        if polite:
            await peer.stream.send_eof()
        await node.over.wait()
