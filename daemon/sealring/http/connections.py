"""Counts the API's connections, and decides whose turn it is and which is closed for a new one.

Anybody who reaches the port may open a connection, and needs no key for it. So there is a limit for
all connections together, and a lower one for each source. A source is an IPv4 address, the 64-bit
prefix of an IPv6 address, or all of loopback.

A connection is idle until a whole request header has come, unless it waits for its turn, or has
sent something that was not read yet. It stalls while its request waits for the client, to send the
body or to take the answer. At a limit, one that has its last answer and lingers is closed for the
new one; if none does, the oldest idle one; if none is idle, the stalled one whose request has
waited longest for its client, if that is at least `STALL_SECONDS` in all. At a source's limit only
its own connections are considered, at the limit of all every one is. A connection for which this
server works is never closed. If all are such, the new one is refused. So a client that keeps
connections open, silent or slow, takes nothing from others.

HTTP is served by the event loop that also carries the sealed links. So connections take turns
(`Turns`): one in each pass of the loop, however many have sent something, and the links have theirs
in between. `http1` says what one turn may do.

Systems allow a process 256 to 1,024 descriptors. It may raise that up to a hard limit, and a node
does so when it starts (`raise_limit`). Some are reserved for the ring and the node's own work: a
node that cannot open one more socket can neither accept a member nor start an engine. API clients
share the rest. Importing mlx-lm lowers both limits; only engine processes import it, and they do so
through `sealring_model.mlx_lm_import`, which prevents that.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import resource
import socket
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio
from sealring_protocol.limits import MAX_HANDSHAKES, MAX_WORLD

log = logging.getLogger("sealring.api")

MAX_CONNECTIONS: Final = 1024
"""Most connections at once, where the process's limit on descriptors allows as many. Memory: about
48 KiB for each, in buffers, besides what its request takes."""

MOST_LOOKS: Final = 16
"""Connections that are looked at for one that may be closed for another."""

PART_OF_SOURCE: Final = 0.75
"""How much of them one source may have."""

STALL_SECONDS: Final = 1.0
"""Seconds that a request must have waited for its client, all waits together, before its connection
may be closed for another. A client that sends a byte now and then gains nothing."""

LOG_SECONDS: Final = 60.0
"""Time between two lines of the log about connections which had to go."""

WANTED: Final = 16_384
"""Descriptors that a node asks for, where the hard limit is no lower."""

_LINKS: Final = MAX_HANDSHAKES + 2 * 4 * MAX_WORLD
"""Connections of strangers and members that prove themselves; then for each member control, step,
tunnel and API, each of which may be replaced while it is up."""

_ENGINES: Final = 8 * MAX_WORLD
"""A socket pair, pipes and the relay's sockets of each engine process, twice at a new start."""

_FILES: Final = 128
"""Logs, stores, the control socket's clients, and what Python's libraries keep open."""

RESERVED: Final = _LINKS + _ENGINES + _FILES
"""Descriptors that the API's clients cannot have."""

_OF_CLIENT: Final = 2  # a connection, and a file of the page that it asks for

OWNER: Final = "owner of the node"
"""Who asks at the Unix socket. Prompts that come there share cached prefixes with each other, and
with no caller at a port."""

_numbers = itertools.count(1)


class _Queue:
    """Connections that wait for a turn: sources by turns, those of one as they came."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, trio.lowlevel.ParkingLot] = OrderedDict()

    async def wait(self, source: str) -> None:
        """Wait until `call` calls."""
        await self._of.setdefault(source, trio.lowlevel.ParkingLot()).park()

    def call(self) -> bool:
        """Let the first go on. False if nobody waits."""
        while self._of:
            source, lot = self._of.popitem(last=False)
            if lot.unpark():
                if lot:
                    self._of[source] = lot
                return True
        return False


class Turns:
    """Gives connections the event loop in turns: one in each pass, or two once nobody waits.

    There are four queues: of probes, of new connections, of known ones, and of those that are over.
    A connection is new until its first request has come; only the first request of each may be a
    probe. It is over when it has its last answer, and only reads what its client still sends. Each
    pass has an order of the queues, and the first one in which somebody waits has the turn. So
    three turns of four are for probes, of which each connection has one, and new and known
    connections share the others equally: a body arrives in time however many new clients come.
    """

    def __init__(self) -> None:
        self._probes, self._new, self._known, self._over = (_Queue() for _ in range(4))
        self._taken = False  # in this pass, or somebody waits
        self._giver = trio.lowlevel.ParkingLot()

    async def take(self, place: Place, *, probe: bool) -> None:
        """Wait for a turn of *place*, which lasts until the caller next waits for something."""
        if not self._taken:
            self._taken = True
            self._giver.unpark()
        elif place.over:
            await self._over.wait(place.source)
        elif not place.new:
            await self._known.wait(place.source)
        else:
            await (self._probes if probe else self._new).wait(place.source)

    async def give(self) -> None:
        """Give turns until cancelled."""
        probes, new, known, over = self._probes, self._new, self._known, self._over
        orders = (
            (probes, new, known, over),
            (probes, known, new, over),
            (probes, new, known, over),
            (new, known, probes, over),
            (probes, known, new, over),
            (probes, new, known, over),
            (probes, known, new, over),
            (known, new, probes, over),
        )
        for order in itertools.cycle(orders):
            if not self._taken:
                await self._giver.park()
            if any(queue.call() for queue in order):
                await trio.lowlevel.checkpoint()
            else:
                self._taken = False


@attrs.define(eq=False)
class Place:
    """One connection's place. Its *number* is never used again in this process; *scope* is
    cancelled when the connection has to close. What is on its way to the server can be seen at
    *sock*, if it is given."""

    _book: Connections
    source: str
    _sock: socket.socket | None = None
    number: int = attrs.field(factory=lambda: next(_numbers))
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    waited: float = 0.0  # seconds that its request has waited for the client before
    since: float = 0.0  # when it began to wait (trio's clock)
    new: bool = True  # no request of it has come
    over: bool = False  # none will be answered any more
    waiting: bool = False  # for its turn

    @property
    def spoke(self) -> bool:
        """Whether its client has sent something that nobody has looked at."""
        try:
            return self._sock is not None and bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    async def turn(self, *, probe: bool = False) -> None:
        """Wait until it is this connection's turn to do a piece of work. Meanwhile it is not closed
        for another."""
        self.waiting = True
        try:
            await self._book.turns.take(self, probe=probe)
        finally:
            self.waiting = False

    @property
    def last(self) -> bool:
        """Whether the connection ends with the request under way."""
        return self._book.closing

    def idle(self) -> None:
        """It waits for a request."""
        if self.source:  # else it has lost its place, and is about to end
            self._book.idle.add(self)

    def linger(self) -> None:
        """All has been answered; it waits for its client to leave."""
        self.over = True
        if self.source:
            self._book.idle.discard(self)
            self._book.over.add(self)

    def busy(self) -> None:
        """A request is being answered."""
        self.new = False
        self.waited = 0.0
        self._book.idle.discard(self)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Within, the request that is being answered waits for its client. A connection between
        requests is idle anyway."""
        stalled = self._book.stalled
        if self.source and not self.over and self not in self._book.idle:
            stalled.add(self)
        try:
            yield
        finally:
            if self in stalled:
                self.waited = self.stalled_seconds
                stalled.discard(self)

    @property
    def stalled_seconds(self) -> float:
        """Seconds that the stalled request has waited for its client in all."""
        return self.waited + trio.current_time() - self.since

    def leave(self) -> None:
        """The connection has ended, by itself or not, and counts no longer."""
        for line in (self._book.over, self._book.idle, self._book.stalled):
            line.discard(self)
        if self.source:
            self._book.forget(self.source)
            self.source = ""

    def end(self) -> None:
        """End the connection."""
        self.leave()
        self.scope.cancel()


class _Line:
    """Places in the order in which they came, in all and by source."""

    def __init__(self) -> None:
        self._all: OrderedDict[Place, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Place, None]] = {}

    def add(self, place: Place) -> None:
        place.since = trio.current_time()
        self._all[place] = None
        self._of.setdefault(place.source, OrderedDict())[place] = None

    def discard(self, place: Place) -> None:
        if place not in self._all:
            return
        del self._all[place]
        same = self._of[place.source]
        del same[place]
        if not same:
            del self._of[place.source]

    def of(self, source: str | None) -> Iterable[Place]:
        """The places of *source*, or all."""
        return self._all if source is None else self._of.get(source, ())

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._all))

    def __contains__(self, place: Place) -> bool:
        return place in self._all


@attrs.define
class Connections:
    """The places of all connections, of which some are *over*, *idle* or *stalled*. *limit* is the
    most there may be."""

    limit: int
    closing: bool = False
    turns: Turns = attrs.field(factory=Turns)
    over: _Line = attrs.field(factory=_Line)
    idle: _Line = attrs.field(factory=_Line)
    stalled: _Line = attrs.field(factory=_Line)
    _of_source: Counter[str] = attrs.field(factory=Counter)
    _count: int = 0
    _closed: int = 0
    _refused: int = 0
    _logged: float | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def limit_of_source(self) -> int:
        """The most connections of one source."""
        return max(1, int(self.limit * PART_OF_SOURCE))

    def admit(self, source: str, sock: socket.socket | None = None) -> Place | None:
        """A place for a new connection from *source* on *sock*, idle; None if there is none."""
        while self._of_source[source] >= self.limit_of_source:
            if not self.make_room(source):
                self._refuse(source)
                return None
        while self._count >= self.limit:
            if not self.make_room():
                self._refuse(source)
                return None
        place = Place(self, source, sock)
        self._count += 1
        self._of_source[source] += 1
        self.idle.add(place)
        return place

    def make_room(self, source: str | None = None) -> bool:
        """Close the first connection in line, of *source* or of any. True if there was one."""
        place = next(iter(self.over.of(source)), None) or self._silent(source)
        if place is None:
            stalled = self.stalled.of(source)
            place = max(stalled, key=lambda each: each.stalled_seconds, default=None)
            if place is None or place.stalled_seconds < STALL_SECONDS:
                return False
        place.end()
        self._closed += 1
        self._log()
        return True

    def _silent(self, source: str | None) -> Place | None:
        """The first idle connection in line whose client has sent nothing. One that has spoken goes
        to the end of the line. Few are looked at, as each look asks the kernel."""
        idle = (place for place in self.idle.of(source) if not place.waiting)
        for place in [*itertools.islice(idle, MOST_LOOKS)]:
            if not place.spoke:
                return place
            self.idle.discard(place)
            self.idle.add(place)
        return None

    def close(self) -> None:
        """Close idle connections; the others end with their answers."""
        self.closing = True
        for place in [*self.over, *self.idle]:
            place.end()

    def forget(self, source: str) -> None:
        """A connection from *source* has ended."""
        self._count -= 1
        self._of_source[source] -= 1
        if not self._of_source[source]:
            del self._of_source[source]

    def _refuse(self, source: str) -> None:
        if not self._of_source[source]:
            del self._of_source[source]
        self._refused += 1
        self._log()

    def _log(self) -> None:
        """Log how many had to close, at most once in a while."""
        now = trio.current_time()
        if self._logged is not None and now - self._logged < LOG_SECONDS:
            return
        self._logged = now
        log.warning(
            "there are as many connections as may be, %d, or %d from one source: so far "
            "%d that waited for their clients were closed, and %d new ones refused",
            self.limit,
            self.limit_of_source,
            self._closed,
            self._refused,
        )


@contextmanager
def counted(counts: Counter[str], name: str) -> Iterator[None]:
    """Count one more of *name* until the block ends. Names that have none are not kept."""
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]


def source_of(host: str) -> str:
    """The source that the address *host* belongs to."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        if mapped is None:
            if address.is_loopback:
                return "loopback"
            return str(ipaddress.ip_network((address, 64), strict=False))
        address = mapped
    return "loopback" if address.is_loopback else str(address)


def raise_limit() -> int:
    """Raise the soft limit as far as the hard one allows, up to `WANTED`. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):  # macOS has a lower bound of its own, and hides it
            return soft
        return wanted
    return WANTED if soft == resource.RLIM_INFINITY else soft


def for_clients(limit: int) -> int:
    """How many connections API clients may have if the process may have *limit* descriptors."""
    return max(1, (limit - RESERVED) // _OF_CLIENT)
