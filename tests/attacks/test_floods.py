"""A member that sends more than a node can see to: it holds up itself, and nobody else."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import attrs
import pytest
import trio
from sealring.generation.generation import Generator
from sealring.http.head import ApiHead
from sealring_model import tiny
from sealring_protocol.codec.messages import Epoch, Message, StepDone, Tunnel, TunnelEvent
from sealring_protocol.codec.tensor import DType, Tensor
from sealring_protocol.errors import ConnectionLost
from sealring_protocol.link import Link
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Member, Roster, SignedRoster, sign_roster
from sealring_trio.net.pump import RECEIVE_SIZE
from sealring_trio.node.runtime import Runtime
from sealring_trio.units import wall_ms

from tests.driver import End
from tests.io_trio.holders import NoEngine
from tests.sim.fake_engine import info
from tests.sim.rosters import COORDINATOR, signer

SMALL = 20_000
"""Messages of a flood: more than a thread reads at once where it reads what there is."""

OTHER = Epoch(99, 1)
"""No epoch of this head: what names it is dropped without effect."""


class Hostile:
    """A member with a link of its own to a node, on a blocking *sock*."""

    def __init__(self, roster: SignedRoster, purpose: Purpose, sock: socket.socket) -> None:
        self._sock = sock
        key = signer(1)
        about = HandshakeConfig(key.public_key, roster, COORDINATOR.public_key, 7)
        peer = node_id(signer(0).public_key)
        link = Link.dial(about, peer, purpose, 0.0, wall_ms(), secrets.token_bytes(96))
        self._end = End(link, key)
        while self._end.up is None:
            sock.sendall(self._end.send())
            self._end.receive(sock.recv(65536) or pytest.fail("it hung up"), 0.0)
        self._end.taken()

    def send(self, *messages: Message) -> int:
        """All of them in one piece; how many bytes they were."""
        data = self._end.send(*messages)
        self._sock.sendall(data)
        return len(data)

    def receive(self, count: int = 1) -> list[Any]:
        """Wait for *count* events of the link, or for its end; those that came."""
        came = self._end.taken()
        while len(came) < count and (data := self._sock.recv(1 << 20)):
            self._end.receive(data, 0.0)
            came += self._end.taken()
        return came


def two() -> SignedRoster:
    """A roster of two members who do not dial each other."""
    now = wall_ms()
    members = tuple(Member(signer(index).public_key, f"node{index}", ()) for index in range(2))
    return sign_roster(Roster(b"c" * 32, "test", 1, now, now + 10**8, True, members), COORDINATOR)


class Given:
    """The sizes of what the one link of *runtime* was given, from now on."""

    def __init__(self, runtime: Runtime) -> None:
        self.sizes: list[int] = []
        self._news = trio.Event()
        token = trio.lowlevel.current_trio_token()  # a tunnel's bytes come in a thread
        ((_, _, link),) = runtime.links()
        honest = link.receive_data

        def counted(data: bytes, now: float) -> None:
            honest(data, now)
            self.sizes.append(len(data))
            token.run_sync_soon(self._tell)

        link.receive_data = counted  # type: ignore[method-assign]

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def come(self, size: int) -> None:
        """Wait until *size* bytes have come in all."""
        while sum(self.sizes) < size:
            await self._news.wait()


@attrs.frozen
class AtWork:
    """A head at work, and where the other member of its *roster* finds it."""

    runtime: Runtime
    roster: SignedRoster
    address: tuple[str, int]

    @asynccontextmanager
    async def linked(self, purpose: Purpose) -> AsyncIterator[Hostile]:
        """The other member has a link."""
        with socket.create_connection(self.address) as sock:
            yield await trio.to_thread.run_sync(
                Hostile, self.roster, purpose, sock, limiter=trio.CapacityLimiter(1)
            )


@asynccontextmanager
async def at_work(model: Path | None = None) -> AsyncIterator[AtWork]:
    """The head of a ring of two, without an engine. It gives files of *model*."""
    roster = two()
    about = NodeConfig(signer(0).public_key, roster, COORDINATOR.public_key, 5, relays=True)
    node = Node(about, trio.current_time())
    node.engine_message(info(), trio.current_time())  # as if there were one; then steps may come
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    engine: Any = lambda _: NoEngine()  # noqa: E731
    runtime = Runtime(
        node,
        signer=signer(0),
        engine=engine,
        listen=address,
        keep=lambda _: None,
        keep_vote=lambda *_: None,
        model=model or tiny.path(),
    )
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.run)
            yield AtWork(runtime, roster, address)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def attacked(purpose: Purpose) -> AsyncIterator[tuple[Given, Hostile]]:
    """The last rank of a ring of two attacks the head: what the head's link is given, and the
    attacker."""
    async with at_work() as head, head.linked(purpose) as hostile:
        yield Given(head.runtime), hostile


FLOODS = {
    Purpose.CONTROL: StepDone(OTHER, 0),
    Purpose.STEP: StepDone(OTHER, 0),
    Purpose.TUNNEL: Tunnel(OTHER, 1, TunnelEvent.CLOSE, b""),
}


@pytest.mark.parametrize("purpose", FLOODS, ids=str)
async def test_a_flood_of_small_messages_is_seen_to_in_pieces(purpose: Purpose) -> None:
    """A room full of them held the node's lock for longer than links live in silence: the others
    lost theirs, and the API stood still for seconds."""
    async with attacked(purpose) as (given, hostile):
        sent = await trio.to_thread.run_sync(hostile.send, *[FLOODS[purpose]] * SMALL)
        await given.come(sent)
        assert max(given.sizes) <= RECEIVE_SIZE


async def test_a_frame_of_many_bytes_still_comes_in_few_pieces() -> None:
    async with attacked(Purpose.CONTROL) as (given, hostile):
        many = StepDone(OTHER, 0, tensors=(Tensor(DType.U32, (1 << 21,), bytes(1 << 23)),))
        sent = await trio.to_thread.run_sync(hostile.send, many)
        await given.come(sent)
        assert max(given.sizes) > RECEIVE_SIZE


async def test_key_updates_are_not_taken_back_when_a_tunnels_thread_finds_it_broken() -> None:
    async with at_work() as head, head.linked(Purpose.TUNNEL) as hostile:
        given, config = Given(head.runtime), Mock(api=None)
        api = ApiHead(Generator(head.runtime, tiny.path()), config, "tiny", Mock())
        sent = await trio.to_thread.run_sync(hostile.send, *[FLOODS[Purpose.TUNNEL]] * 200)
        await given.come(sent)
        while (before := api.key_updates()) < 1:
            await trio.lowlevel.checkpoint()
        ((_, _, link),) = head.runtime.links()
        streams, failed = head.runtime._sockets._tunnels._streams, trio.Event()
        assert streams is not None
        # As the thread does a moment before the event loop hears of it.
        streams.order(partial(link.fail, ConnectionLost("the stream broke")))
        streams.order(partial(trio.lowlevel.current_trio_token().run_sync_soon, failed.set))
        await failed.wait()
        assert api.key_updates() == before
