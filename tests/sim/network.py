"""The wires between simulated hosts: they deliver bytes late, in order, in random pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.hosts import Host, Wire
from tests.sim.rosters import WALL

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster


class Network:
    """Opens and cuts the wires of *cluster*, and carries their bytes."""

    def __init__(self, cluster: Cluster, delay: float) -> None:
        """A piece is under way for *delay* seconds at most."""
        self.delay = delay
        self.closed: set[tuple[str, str]] = set()  # from, to: no connection can be opened so
        self.dead: set[tuple[str, str]] = set()  # from, to: nothing arrives so, until it does
        self._held: list[tuple[tuple[str, str], Callable[[], None]]] = []  # what is under way so
        self.sizes: tuple[int, ...] = (1, 7, 100, 1000, 100_000)  # of pieces, each as likely
        self.tap: Callable[[str, str, bytes], None] | None = None  # sees what each host sends
        self._cluster = cluster

    def seconds_to(self, address: str) -> float:
        """What a connection to *address* takes to open."""
        at = address.rpartition(":")[0]
        more = (each.at[at] for each in self._cluster.hosts.values() if at in each.at)
        return self.delay + next(more, 0.0)

    def connect(self, host: Host, link: int, address: str) -> None:
        """*host* dials *address*, for its connection *link*."""
        cluster = self._cluster
        at = address.rpartition(":")[0]
        other = next((each for each in cluster.hosts.values() if at in each.at), None)
        if not host.alive:
            return
        if other is None and cluster.at_addresses:
            cluster.after(5.0, lambda: self._unanswered(host, link))
            return
        if other is not None and {(host.name, other.name), (other.name, host.name)} & self.dead:
            cluster.after(5.0, lambda: self._unanswered(host, link))
            return
        if other is not None and (host.name, other.name) in self.closed:
            cluster.after(5.0, lambda: self._unanswered(host, link))
            return
        if other is None or not other.alive:
            host.node.dial_failed(link, "connection refused", host.clock(cluster.now))
            cluster.settle(host)
            return
        here, there = (
            WALL + int((cluster.now + cluster.clocks.get(each.name, 0.0)) * 1000)
            for each in (host, other)
        )
        number = other.node.accepted(
            next(iter(host.at)), cluster.random.randbytes(32), other.clock(cluster.now), there
        )
        wire = Wire([(host.name, link), (other.name, number)])
        host.wires[link] = wire
        other.wires[number] = wire
        host.node.connected(link, cluster.random.randbytes(96), host.clock(cluster.now), here)
        cluster.settle(other)
        cluster.settle(host)

    def _unanswered(self, host: Host, link: int) -> None:
        """A firewall dropped a connection that *host* would have opened."""
        if host.alive:
            host.node.dial_failed(link, "no answer within 5 s", host.clock(self._cluster.now))
            self._cluster.settle(host)

    def transmit(self, host: Host, number: int, data: bytes) -> None:
        """Send *data* on connection *number* of *host*."""
        cluster = self._cluster
        wire = host.wires.get(number)
        if wire is None or not wire.alive or not data:
            return
        side = 1 if wire.ends[0] == (host.name, number) else 0
        other = wire.ends[side]
        if self.tap is not None:
            self.tap(host.name, other[0], data)
        at = 0
        while at < len(data):
            size = cluster.random.choice(self.sizes)
            piece = data[at : at + size]
            at += size
            when = max(wire.last[side], cluster.now + cluster.random.random() * self.delay)
            wire.last[side] = when
            cluster.at(when, lambda piece=piece: self._deliver(wire, other, piece))

    def heal(self, *ways: tuple[str, str]) -> None:
        """What was held on these *ways*, from and to, arrives: on all, if none is given."""
        self.dead -= set(ways) or set(self.dead)
        held, self._held = self._held, []
        for way, arrive in held:
            if way in self.dead:
                self._held.append((way, arrive))
            else:
                arrive()

    def _deliver(self, wire: Wire, to: tuple[str, int], piece: bytes) -> None:
        sender = next(name for name, number in wire.ends if (name, number) != to)
        if (sender, to[0]) in self.dead:
            self._held.append(((sender, to[0]), lambda: self._deliver(wire, to, piece)))
            return
        host = self._cluster.hosts[to[0]]
        if not host.alive or host.wires.get(to[1]) not in (wire, None):
            return
        if host.frozen or host.waiting:
            host.waiting.append((to[1], piece))
            self._cluster.after(0.1, lambda: self._catch_up(host))
            return
        self._receive(host, to[1], piece)

    def _receive(self, host: Host, number: int, piece: bytes) -> None:
        now = host.clock(self._cluster.now)
        if number in host.tunnels:
            self._cluster.drive(host, number, lambda session: session.receive_data(piece, now))
        else:
            host.node.receive_data(number, piece, now)
        self._cluster.settle(host)

    def _catch_up(self, host: Host) -> None:
        """A host that was frozen reads what its kernel has, in order."""
        while host.waiting and host.alive and not host.frozen:
            number, piece = host.waiting.popleft()
            self._receive(host, number, piece)

    def cut(self, wire: Wire) -> None:
        """Both ends see the stream end, after what was on its way."""
        if not wire.alive:
            return
        wire.alive = False
        for side, (name, number) in enumerate(wire.ends):
            host = self._cluster.hosts[name]
            host.wires.pop(number, None)
            at = max(self._cluster.now, wire.last[side]) + self.delay
            way = wire.ends[1 - side][0], name
            self._cluster.at(at, lambda host=host, n=number, way=way: self._eof(host, n, way))

    def move(self, host: Host, *at: str) -> None:
        """*host* has these addresses from now on, and what it had open falls silent."""
        host.at = dict.fromkeys(at, 0.0)
        for wire in host.wires.values():
            wire.alive = False

    def _eof(self, host: Host, number: int, way: tuple[str, str]) -> None:
        if way in self.dead:
            self._held.append((way, lambda: self._eof(host, number, way)))
            return
        if host.alive and not host.frozen:
            if number in host.tunnels:
                self._cluster.drive(host, number, lambda session: session.receive_eof())
            else:
                host.node.receive_eof(number, host.clock(self._cluster.now))
            self._cluster.settle(host)
