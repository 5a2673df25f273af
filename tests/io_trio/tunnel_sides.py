"""Nodes that carry a collective: real tunnel links, threads and sockets."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import trio
from sealring_protocol.codec.messages import Epoch, Message, Tunnel, TunnelEvent
from sealring_protocol.errors import CloseCode, SealringError
from sealring_protocol.events import Hangup, LinkUp
from sealring_protocol.link import Link, LinkClosed
from sealring_protocol.security.roles import Purpose
from sealring_trio.collective.carrier import Streams
from sealring_trio.collective.loopback import SharedLoopback
from sealring_trio.collective.tunnels import Tunnels
from sealring_trio.net.pump import Pump

from tests.link.pair import established
from tests.serving import PATIENCE

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
        self.ports = Ports(
            *self.tunnels.prepare(epoch, self.rank, tuple(range(self.world)), sealed=sealed)
        )
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
    with trio.fail_after(PATIENCE):
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


GONE = Hangup(1, b"", CloseCode.SHUTDOWN, "enough")
