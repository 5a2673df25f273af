"""Attacks on the way in: places held in silence or past INIT, a log that strangers write, and
descriptors that they keep. The members get through meanwhile."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest
import trio
import trio.testing
from sealring_protocol import limits
from sealring_protocol.errors import LimitExceeded
from sealring_protocol.events import Hangup
from sealring_protocol.link import Link
from sealring_protocol.links.logs import TELL_SECONDS, TELL_SOURCES, RefusalLog
from sealring_protocol.node import Node, NodeConfig
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.roles import Purpose
from sealring_trio.errors import OperationError
from sealring_trio.net.connecting import accept, dial
from sealring_trio.net.pump import LINGER, Pump

from tests.attacks.test_floods import at_work
from tests.driver import End, drive
from tests.link.pair import config
from tests.sim.cluster import Cluster
from tests.sim.hosts import Host
from tests.sim.rosters import COORDINATOR, WALL, make_roster, signer

SOON = 2.0
"""Seconds within which a member gets through."""


class Attacker:
    """Opens *at_once* connections to every node of *cluster*, from *sources* in turn, every *pause*
    seconds; with *speak* each sends an INIT, as a former member can make it."""

    def __init__(
        self,
        cluster: Cluster,
        sources: list[str],
        pause: float,
        *,
        speak: bool = False,
        at_once: int,
    ) -> None:
        self._cluster = cluster
        self._sources = itertools.cycle(sources)
        self._pause = pause
        self._dice = Random(5)
        self._former = config(7, make_roster(8, serial=1)) if speak else None
        self._at_once = at_once
        self._go_on()

    def fill(self) -> None:
        """Open as many as it does at once."""
        for _ in range(self._at_once):
            self._open_all()

    def _go_on(self) -> None:
        self.fill()
        self._cluster.after(self._pause, self._go_on)

    def _open_all(self) -> None:
        source = next(self._sources)
        for host in list(self._cluster.hosts.values()):
            if host.alive:
                self._open(host, source)
                self._cluster.settle(host)

    def _open(self, host: Host, source: str) -> None:
        now, wall = self._cluster.now, WALL + int(self._cluster.now * 1000)
        number = host.node.accepted(source, self._dice.randbytes(32), now, wall)
        if self._former is not None:
            victim = node_id(signer(int(host.name.removeprefix("host"))).public_key)
            entropy = self._dice.randbytes(96)
            link = Link.dial(self._former, victim, Purpose.CONTROL, now, wall, entropy)
            host.node.receive_data(number, bytes(link.data_to_send()), now)


def comes_back(cluster: Cluster, attack: Callable[[], Attacker]) -> float:
    """Seconds that rank 1 takes to be part of a ring again, while *attack* goes on."""
    cluster.run_until(lambda: cluster.ready)
    cluster.crash(cluster.hosts["host1"])
    attacker = attack()
    attacker.fill()
    cluster.run_for(3.0)
    cluster.notes.clear()
    begun = cluster.now
    cluster.boot(1)
    attacker.fill()
    cluster.run_until(lambda: cluster.ready, 60.0)
    return cluster.now - begun


OWN = ["host0", "host1"]
"""The members' own addresses: a machine that others use too, or a NAT."""


@pytest.mark.parametrize("seed", range(4))
def test_idle_connections_from_the_members_own_addresses_keep_nobody_out(seed: int) -> None:
    cluster = Cluster(2, seed)
    places = 2 * limits.MAX_HANDSHAKES_PER_SOURCE
    assert comes_back(cluster, lambda: Attacker(cluster, OWN, 0.05, at_once=places)) < SOON


@pytest.mark.parametrize("seed", range(4))
def test_a_former_member_with_16_addresses_keeps_nobody_out(seed: int) -> None:
    newest = make_roster(2, serial=2)
    cluster = Cluster(2, seed, rosters=[newest, newest])
    sources = [f"10.66.0.{n}" for n in range(16)]
    everything = limits.MAX_HANDSHAKES
    attack = lambda: Attacker(cluster, sources, 0.25, speak=True, at_once=everything)  # noqa: E731
    assert comes_back(cluster, attack) < SOON


def test_a_member_from_an_address_that_nobody_knows_gets_past_16_addresses() -> None:
    """The place of a newcomer is taken only by as many others as one source may have."""
    head = Node(
        NodeConfig(signer(0).public_key, make_roster(2), COORDINATOR.public_key, 1), now=0.0
    )
    dice = Random(3)
    former = config(7, make_roster(8, serial=1))
    victim = node_id(signer(0).public_key)

    def open_one(source: str, now: float) -> int:
        wall = WALL + int(now * 1000)
        number = head.accepted(source, dice.randbytes(32), now, wall)
        link = Link.dial(former, victim, Purpose.CONTROL, now, wall, dice.randbytes(96))
        head.receive_data(number, bytes(link.data_to_send()), now)
        return number

    for n in range(500):
        open_one(f"10.66.0.{n % 16}", n * 0.01)
    member = open_one("192.0.2.7", 5.0)
    for n in range(100):
        open_one(f"10.66.0.{n % 16}", 5.0 + n * 0.01)
    assert member in head._links._connections


def carry(node: Node, end: End, number: int) -> list[int]:
    """Carry out what *node*, that of index 0, asks for, and bring what it says on connection
    *number* to *end*. The connections that it hangs up."""
    events = drive(node, signer(0), 0.0)
    end.receive(bytes(node.data_to_send(number)), 0.0)
    return [event.link for event in events if isinstance(event, Hangup)]


def test_a_handshake_that_outlasts_its_members_place_makes_no_address_known() -> None:
    """Who is about to be put out keeps one handshake short of its end, and ends it afterwards."""
    old, newer = make_roster(3), make_roster(3, serial=2, order=(0, 1))
    node = Node(NodeConfig(signer(0).public_key, old, COORDINATOR.public_key, 1), now=0.0)
    victim = node_id(signer(0).public_key)
    link = Link.dial(config(2, old), victim, Purpose.CONTROL, 0.0, WALL, bytes(96))
    number = node.accepted("10.66.0.1", bytes(32), 0.0, WALL)
    node.receive_data(number, bytes(link.data_to_send()), 0.0)
    former = End(link, signer(2))
    carry(node, former, number)
    node.bring_roster(newer.encode(), 0.0, WALL)
    carry(node, former, number)
    assert node.roster.roster.serial == 2
    node.receive_data(number, bytes(link.data_to_send()), 0.0)
    assert number in carry(node, former, number)
    for n in range(limits.MAX_HANDSHAKES - limits.RESERVED_HANDSHAKES):
        node.accepted(f"10.0.0.{n}", bytes(32), 0.0, WALL)
    assert carry(node, former, number) == []
    node.accepted("10.66.0.1", bytes(32), 0.0, WALL)  # a stranger now, as all the others
    assert len(carry(node, former, number)) == 1


def test_sources_that_are_refused_write_few_lines_and_are_counted() -> None:
    strangers = RefusalLog()
    notes = []
    for n in range(3339):
        now = n * 0.003
        notes += strangers.refused(f"10.0.{n // 256}.{n % 256}", LimitExceeded("no room"), now)
    loud = [note.text for note in notes if note.level.value != "debug"]
    assert len(loud) == TELL_SOURCES
    deadline = strangers.next_timeout()
    assert deadline == TELL_SECONDS
    [told] = strangers.handle_timeout(deadline)
    assert told.text.startswith(f"refused {3339 - TELL_SOURCES} more connections within a minute")
    assert strangers.next_timeout() is None


def test_a_node_tells_how_many_it_left_out_though_nobody_comes_any_more() -> None:
    cluster = Cluster(1, 1)
    cluster.run_until(lambda: cluster.ready)
    host = cluster.head
    for n in range(50):
        number = host.node.accepted(f"10.0.0.{n}", bytes(32), cluster.now, WALL)
        host.node.receive_data(number, b"GET / HTTP/1.1\r\n\r\n", cluster.now)
    cluster.settle(host)
    cluster.run_for(TELL_SECONDS + 1.0)
    texts = [text for _, _, text in cluster.notes if "more connections" in text]
    assert len(texts) == 1
    assert "refused 40 more" in texts[0]


# ------------------------------------------------------------------ sockets


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


class Owner:
    """What a pump needs of a node, for a link of which nothing is known."""

    def __init__(self) -> None:
        self.over = trio.Event()

    def received(self, link: int, data: bytes) -> None:
        """Nobody listens."""

    def ended(self, link: int) -> None:
        self.over.set()

    def data_to_send(self, link: int) -> bytes:
        return b""


async def test_a_stranger_who_is_refused_keeps_no_descriptor() -> None:
    with connected() as (near, far):
        owner = Owner()
        pump = Pump(owner, 1, far)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            await trio.testing.wait_all_tasks_blocked()
            begun = trio.current_time()
            pump.hang_up(b"")
            await owner.over.wait()
            assert far.fileno() == -1
            assert trio.current_time() - begun < LINGER / 2
        near.settimeout(5)
        assert near.recv(1) == b""


async def test_who_is_told_why_gets_the_last_bytes() -> None:
    with connected() as (near, far):
        owner = Owner()
        pump = Pump(owner, 1, far)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            await trio.testing.wait_all_tasks_blocked()
            near.sendall(b"unread")  # closing at once would reset the connection
            pump.hang_up(b"why")
            near.settimeout(5)
            assert await trio.to_thread.run_sync(near.recv, 16) == b"why"
            near.close()
            await owner.over.wait()


def refuse_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets as macOS has them whose peer has reset the connection."""

    class Reset(socket.socket):
        def setsockopt(self, *_: object) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(socket, "socket", Reset)


async def test_a_socket_that_takes_no_option_is_a_link_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with connected() as (near, far):
        refuse_options(monkeypatch)
        reset = socket.socket(far.family, far.type, far.proto, fileno=far.detach())
        near.close()
        owner = Owner()
        pump = Pump(owner, 1, reset)
        await pump.run()
        assert owner.over.is_set()


class Failing:
    """A listening socket of which each accept does what comes next."""

    def __init__(self, *results: object) -> None:
        self._results = list(results)
        self.socket = self

    async def __aenter__(self) -> Failing:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def accept(self) -> object:
        if not self._results:
            await trio.sleep_forever()
        result = self._results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result


async def test_connections_that_cannot_be_accepted_end_nothing_and_fill_no_log(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    full = [OSError(errno.EMFILE, "Too many open files") for _ in range(100)]
    gone = [OSError(errno.ECONNABORTED, "Software caused connection abort") for _ in range(100)]
    with connected() as (_, far), connected() as (_, reset):
        ends = [trio.socket.from_stdlib_socket(end) for end in (reset, far)]
        listener = Failing(*full, *gone, (ends[0], None), (ends[1], ("10.0.0.9", 5)))
        came: list[tuple[socket.socket, str]] = []
        with caplog.at_level(logging.INFO), trio.move_on_after(30):
            await accept(listener, lambda sock, source: came.append((sock, source)))  # type: ignore[arg-type]
        assert [source for _, source in came] == ["10.0.0.9"]
        came[0][0].close()
    assert len([r for r in caplog.records if "cannot accept" in r.message]) == 1


async def test_names_whose_lookup_hangs_keep_no_other_member_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody on the network swallows what is asked of name servers. The threads that waited were
    all that a node has, and it could sign for nobody."""
    numeric, answers, all_hang = socket.getaddrinfo, threading.Event(), trio.Event()
    hanging: list[str] = []

    def swallowed(host: str | bytes, *rest: int, **more: int) -> object:
        name = host if isinstance(host, str) else host.decode()
        if not name.startswith("member"):
            return numeric(host, *rest, **more)
        if rest[-1] & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        hanging.append(name)
        if len(hanging) == threads:
            trio.from_thread.run_sync(all_hang.set)
        answers.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def dial_it(name: str) -> None:
        with pytest.raises(OperationError):
            await dial(f"{name}.example:1")

    threads = trio.to_thread.current_default_thread_limiter().total_tokens
    monkeypatch.setattr(socket, "getaddrinfo", swallowed)
    async with at_work() as head, trio.open_nursery() as nursery:
        for number in range(int(threads)):
            nursery.start_soon(dial_it, f"member{number}")
        try:
            await all_hang.wait()
            async with head.linked(Purpose.CONTROL):
                pass  # it was signed for
        finally:
            answers.set()
