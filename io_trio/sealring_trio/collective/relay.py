"""A collective's TCP connections, carried in the node's tunnel links.

The ring of MLX knows nothing of keys: its ranks connect to each other over plain TCP. So each
rank's engine listens and connects on its own machine alone, and the relay of its node stands at
the other end of both connections. What the engine says to its right neighbour goes, as TUNNEL
messages, to that rank's node, whose relay says it to the engine there; and so in turn from the
left neighbour. A stream is one such connection, both ways, and has the number of the rank whose
engine dialed it: rank r's own stream goes to rank r + 1, and r - 1 is the number of the one that
comes from the left.

Nobody else can get in: relay and engine meet where others cannot, or see to it that they do not
(`loopback`).

Latency counts, since a model waits for two such exchanges in every layer: bytes go on in the thread
that reads them. While the tunnel's wire has bytes that wait, the engine is not read; bytes that the
engine does not take are kept, up to `MAX_UNTAKEN`, which is more than a ring can have under way, as
its ranks wait for each other.

Streams begin and end in the event loop alone. All methods need the guard's lock; tasks and threads
take it where they do not wait.

When one collective follows another, a tunnel link may still hold what was said in the first. So
every message names its epoch, and what is of another is dropped.

What ends a stream ends it on both sides at once: an engine that stops or is killed, a tunnel link
that is lost, or the node that ends the collective. An engine which hangs in a collective is freed
by that, with an error: a closed connection is the one thing that MLX does not wait for.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

import attrs
import trio
from sealring_protocol.codec.messages import Epoch, Tunnel, TunnelEvent
from sealring_protocol.codec.wire import Buffer
from sealring_protocol.control.effects import EndCollective, PrepareCollective
from sealring_protocol.node import Node

from sealring_trio.collective.loopback import Loopback
from sealring_trio.collective.ports import Port, reserve
from sealring_trio.net.threaded_socket import Guard, SharedWire
from sealring_trio.processes.namespace import ALLOW, NoNamespace

log = logging.getLogger("sealring.relay")

CHUNK: Final = 1 << 18
"""Bytes of a stream that go on in one message, at most: the peer has the first of many when the
last are read."""

MAX_UNTAKEN: Final = 64 << 20
"""Bytes that wait for the engine to take them. Memory: that much per stream, two per node."""


class RelayOwner(Protocol):
    """The node's tunnels, as a relay sees them."""

    @property
    def guard(self) -> Guard:
        """Its lock is held for whatever a relay does."""

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run *task* beside everything else."""

    def meet(self) -> Loopback:
        """Where the engine is met. Raises `OSError` when there is no port, `NoNamespace` when
        there is no place that others cannot reach."""

    def send(self, rank: int, message: Tunnel) -> bool:
        """Send *message* on the tunnel link with *rank*; whether more may follow at once."""

    async def idle(self, rank: int) -> None:
        """Wait until more may."""


@attrs.define(eq=False)
class _Stream:
    """Stream *number*, whose other end is with *rank*."""

    number: int
    rank: int
    early: bytearray = attrs.field(factory=bytearray)  # what came before the engine was reached
    wire: SharedWire | None = None
    open: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    life: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: bool = False

    @property
    def untaken(self) -> int:
        """Bytes that wait for the engine."""
        return self.wire.unsent if self.wire else len(self.early)


class Relay:
    """The connections of the collective of *epoch*, of rank *rank* of *world*.

    *port* is where the engine is to listen; *relay* is where it is to connect, 0 where the
    collective is not *sealed* and goes its own way.
    """

    def __init__(
        self, owner: RelayOwner, epoch: Epoch, rank: int, world: int, *, sealed: bool
    ) -> None:
        """Raises `OSError` when there is no port, `NoNamespace` as `RelayOwner.meet`."""
        self.epoch = epoch
        self._owner = owner
        self._own = rank
        self._left = (rank - 1) % world
        self._right = (rank + 1) % world
        self._streams: dict[int, _Stream] = {}
        self._alive: set[_Stream] = set()
        self._opened = False  # the left neighbour's stream, which begins once
        self._listening = trio.CancelScope()
        self._place: Loopback | Port
        if sealed:
            self._place = owner.meet()
            self.port, self.relay = self._place.port, self._place.relay
            owner.spawn(self._listen, self._place)
        else:
            self._place = reserve("")
            self.port, self.relay = self._place.number, 0

    def close(self) -> None:
        """End everything at once, and tell the neighbours."""
        self._listening.cancel()
        self._place.close()
        for stream in list(self._streams.values()):
            self._end(stream)
        for stream in self._alive:
            _cut(stream)

    # ------------------------------------------------------------- the tunnel

    def message(self, rank: int, message: Tunnel) -> None:
        """*message* came from the node of *rank*."""
        number = message.stream
        if message.epoch != self.epoch or isinstance(self._place, Port):
            return
        if (number, rank) not in ((self._own, self._right), (self._left, self._left)):
            log.debug("rank %d speaks of stream %d, which is not between us", rank, number)
            return
        match message.event:
            case TunnelEvent.OPEN:
                # Its relay takes one connection. A task for each OPEN would have no bound.
                if number == self._left and not self._opened:
                    self._opened = True
                    self._begin(number, rank, None)
            case TunnelEvent.DATA:
                if (stream := self._streams.get(number)) and not self._give(stream, message.data):
                    self._end(stream)
            case TunnelEvent.CLOSE:
                if stream := self._streams.pop(number, None):
                    stream.ended = True
                    if stream.wire is None:
                        stream.life.cancel()
                    else:  # what the engine has been given goes out first
                        stream.wire.be_polite()
                        stream.open.cancel()

    def lost(self, rank: int) -> None:
        """The tunnel link with *rank* is gone."""
        for stream in list(self._streams.values()):
            if stream.rank == rank:
                self._end(stream)

    def carry(self, rank: int, message: Tunnel) -> bool:
        """Give *message*, which came from *rank*, to the engine, in any thread: False, with nothing
        done, where it is more than bytes of a stream that is open."""
        stream = self._streams.get(message.stream)
        return (
            stream is not None
            and stream.wire is not None
            and stream.rank == rank
            and message.event is TunnelEvent.DATA
            and message.epoch == self.epoch
            and self._give(stream, message.data)
        )

    def _give(self, stream: _Stream, data: Buffer) -> bool:
        """Give the engine *data*, or keep it for it; False where that cannot be."""
        if stream.untaken + len(data) > MAX_UNTAKEN:
            log.warning("the engine leaves %d bytes of a collective untaken", stream.untaken)
            return False
        if stream.wire is None:
            stream.early += data
            return True
        try:
            stream.wire.send(data)
        except OSError:
            return False
        return True

    def _end(self, stream: _Stream) -> None:
        """*stream* is over, whoever ended it: close our side, and have the other one closed."""
        if not stream.ended:
            stream.ended = True
            self._streams.pop(stream.number, None)
            _cut(stream)
            self._say(stream.rank, stream.number, TunnelEvent.CLOSE)

    def _say(self, rank: int, stream: int, event: TunnelEvent, data: bytes = b"") -> bool:
        return self._owner.send(rank, Tunnel(self.epoch, stream, event, data))

    # ------------------------------------------------------------ the engine

    async def _listen(self, loopback: Loopback) -> None:
        """Take the one connection that the engine makes: this rank's own stream."""
        with self._listening:
            sock = await loopback.accept()
            # No await from here on, so the connection is in somebody's hands.
            if self._listening.cancel_called:  # while it was asked whose the connection is
                sock.close()
                return
            with self._owner.guard.lock:
                self._begin(self._own, self._right, sock)
                self._say(self._right, self._own, TunnelEvent.OPEN)

    # --------------------------------------------------------------- a stream

    def _begin(self, number: int, rank: int, sock: socket.socket | None) -> None:
        """Carry stream *number* over *sock*, or over a connection that is yet to be made."""
        stream = self._streams[number] = _Stream(number, rank)
        self._alive.add(stream)
        self._owner.spawn(self._serve, stream, sock)

    async def _serve(self, stream: _Stream, sock: socket.socket | None) -> None:
        try:
            with stream.life:
                if sock is None and isinstance(self._place, Loopback):
                    sock = await self._place.connect()
                if sock is not None:
                    await self._carry(stream, sock)
        finally:
            self._alive.discard(stream)
            with self._owner.guard.lock:
                self._end(stream)

    async def _carry(self, stream: _Stream, sock: socket.socket) -> None:
        try:
            wire = SharedWire(sock, lambda: None, self._owner.guard)
        except OSError:  # it is over already
            sock.close()
            return
        try:
            with stream.open:
                with self._owner.guard.lock:
                    stream.wire = wire
                    if stream.early:
                        wire.send(stream.early)
                        stream.early = bytearray()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, stream, wire)
                    await wire.hear(partial(self._pass_on, stream), CHUNK)
                    nursery.cancel_scope.cancel()
            if stream.open.cancelled_caught:
                await wire.hang_up()
        except OSError:
            return
        finally:
            wire.close()

    def _pass_on(self, stream: _Stream, data: bytes) -> None:
        """The engine said *data*; in the thread that reads it."""
        with self._owner.guard.lock:
            if stream.ended or self._say(stream.rank, stream.number, TunnelEvent.DATA, data):
                return
        self._owner.guard.unstick()
        trio.from_thread.run(self._owner.idle, stream.rank)

    async def _write(self, stream: _Stream, wire: SharedWire) -> None:
        try:
            await wire.write()
        except OSError:
            with self._owner.guard.lock:
                self._end(stream)


def _cut(stream: _Stream) -> None:
    """End the task of *stream* and its connection, now. The task first: it must not be waiting for
    a socket that is closed."""
    stream.life.cancel()
    if stream.wire is not None:
        stream.wire.close()


class Relays:
    """The relay of the collective that the node is in, if it is in one."""

    def __init__(self, owner: RelayOwner) -> None:
        self._owner = owner
        self._relay: Relay | None = None

    def carry_out(self, event: PrepareCollective | EndCollective, node: Node) -> None:
        """Do what *node* wants."""
        match event:
            case EndCollective(epoch):
                self.end(epoch)
            case PrepareCollective(epoch, sealed):
                now = trio.current_time()
                try:
                    relay = self.prepare(epoch, node.rank, node.world, sealed=sealed)
                except OSError as error:
                    node.collective_failed(epoch, f"no port is free: {error.strerror}", now)
                except NoNamespace as error:
                    node.collective_failed(epoch, f"{error}; {ALLOW}", now)
                else:
                    node.collective_prepared(epoch, relay.port, relay.relay, now)

    def prepare(self, epoch: Epoch, rank: int, world: int, *, sealed: bool) -> Relay:
        """Open the collective of *epoch*, which ends the one before. Raises as `Relay`."""
        self.close()
        self._relay = Relay(self._owner, epoch, rank, world, sealed=sealed)
        return self._relay

    def end(self, epoch: Epoch) -> None:
        """Close the collective of *epoch* at once; an older one is closed already."""
        if self._relay is not None and self._relay.epoch == epoch:
            self.close()

    def close(self) -> None:
        """Close whatever is open."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.close()

    def message(self, rank: int, message: Tunnel) -> None:
        """*message* came on the tunnel link with *rank*."""
        if self._relay is not None:
            self._relay.message(rank, message)

    def carry(self, rank: int, message: Tunnel) -> bool:
        """The same in any thread, where it takes no more than passing bytes on; False if not."""
        return self._relay is not None and self._relay.carry(rank, message)

    def lost(self, rank: int) -> None:
        """The tunnel link with *rank* is gone."""
        if self._relay is not None:
            self._relay.lost(rank)
