"""Run in a network of its own, which nothing leaves: ``python -m tests.discovery.in_network NAME``
runs one of the functions below, which fails if something is not so."""

from __future__ import annotations

import ctypes
import re
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import psutil  # type: ignore[import-untyped]
import trio
from sealring.discovery.discovery import Announced, Discovery, find_doors
from sealring.discovery.neighbours import Circle, Nearby
from sealring_protocol.joining.announcement import door_text, node_text, waiting_text

CLUSTER = b"c" * 32
IDS = [secrets.token_bytes(32) for _ in range(3)]
HOST = "10.78.0.1"
GROUP = ("224.0.0.251", 5353)
PATIENCE = 30.0
NAME = "desk-of-somebody"
_CLONE_NEWUTS = 0x04000000
FLOOD_SECONDS = 2.0
_NONCE = re.compile(rb"\x12n=(.{16})", re.DOTALL)
WORDS = "abandon-ability-able-zoo"


def node(number: int) -> Announced:
    return Announced(partial(node_text, CLUSTER, IDS[number]), 7470 + number)


def door() -> Announced:
    return Announced(partial(door_text, CLUSTER), 7479)


class Program:
    """One that announces and looks."""

    def __init__(self, circle: Circle | None, *announced: Announced) -> None:
        self.discovery = Discovery("0.0.0.0", self._heard)
        self.discovery.look_for(circle)
        self.discovery.announce(*announced)
        self._changed = trio.Event()

    def _heard(self, found: Nearby) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, what: Callable[[Nearby], object]) -> None:
        while not what(self.discovery.found):
            await self._changed.wait()


@asynccontextmanager
async def running(*programs: Program) -> AsyncIterator[list[trio.CancelScope]]:
    """*programs* run within the block, or until their scopes are cancelled."""
    scopes = [trio.CancelScope() for _ in programs]

    async def run(program: Program, scope: trio.CancelScope) -> None:
        with scope:
            await program.discovery.run()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for program, scope in zip(programs, scopes, strict=True):
                nursery.start_soon(run, program, scope)
            yield scopes
            nursery.cancel_scope.cancel()


async def find() -> None:
    """Programs find each other, and what one takes back is gone."""
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sniffer.setblocking(False)
    assert ctypes.CDLL(None).unshare(_CLONE_NEWUTS) == 0
    socket.sethostname(NAME)  # a short one may be in random bytes
    desk = Program(Circle(CLUSTER, frozenset(IDS[1:])), node(0), door())
    den = Program(Circle(CLUSTER, frozenset(IDS[:1])), node(1))
    alone = Program(None, Announced(lambda _: waiting_text(WORDS), 7477))
    async with running(desk, den, alone) as scopes:
        await den.until(lambda found: found.members == {IDS[0]: ((HOST, 7470),)})
        await den.until(lambda found: found.doors == ((HOST, 7479),))
        await den.until(lambda found: found.waiting == {WORDS: ((HOST, 7477),)})
        await desk.until(lambda found: found.members == {IDS[1]: ((HOST, 7471),)})
        await alone.until(lambda found: len(found.others) == 3)
        desk.discovery.announce(node(0))
        await den.until(lambda found: not found.doors and found.members)
        den.discovery.look_for(Circle(CLUSTER, frozenset({IDS[2]})))  # the roster has changed
        await den.until(lambda found: not found.members)
        den.discovery.look_for(Circle(CLUSTER, frozenset(IDS)))
        await den.until(lambda found: found.members.keys() == {IDS[0]})
        scopes[0].cancel()
        await den.until(lambda found: not found.members)
    seen = b""
    while piece := _received(sniffer):
        seen += piece
    assert b"_sealring" in seen
    for said in (NAME.encode(), CLUSTER, *IDS):
        assert said not in seen
        assert said.hex().encode() not in seen


def _received(sniffer: socket.socket) -> bytes:
    try:
        return sniffer.recv(65536)
    except BlockingIOError:
        return b""


async def move() -> None:
    """A machine that moves to another network has another name there, and none of before."""
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sniffer.setblocking(False)
    desk, heard = Program(None, node(0)), [b"", b""]
    async with running(desk):
        for place, address in enumerate((HOST, "10.79.0.1")):
            if place:
                _address("add", "10.79.0.1/24")
                _address("delete", f"{HOST}/24")
                while _received(sniffer):
                    pass
            while not (_NONCE.search(heard[place]) and socket.inet_aton(address) in heard[place]):
                await trio.lowlevel.wait_readable(sniffer)
                heard[place] += _received(sniffer)
    heard[1] += _received(sniffer)
    names = [set(re.findall(rb"[0-9a-f]{16}", said)) for said in heard]
    nonces = [set(_NONCE.findall(said)) for said in heard]
    for before, after in (names, nonces):
        assert before
        assert after
        assert not before & after


def _address(verb: str, address: str) -> None:
    subprocess.run(["ip", "address", verb, address, "dev", "eth0"], check=True)


async def find_a_door() -> None:
    """A newcomer finds the door of its inviter, and no other."""
    desk = Program(None, node(0), door())
    other = Program(None, Announced(partial(door_text, b"d" * 32), 7478))
    found: list[str] = []
    done = trio.Event()

    def hear(address: str) -> None:
        found.append(address)
        done.set()

    async with running(desk, other), trio.open_nursery() as nursery:
        nursery.start_soon(find_doors, "0.0.0.0", CLUSTER, hear)
        await done.wait()
        nursery.cancel_scope.cancel()
    assert set(found) == {f"{HOST}:7479"}


async def trip() -> None:
    """A name that zeroconf can read and not write does not keep it from asking for ever."""
    wrong = _label(b"\xff" * 60)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sniffer:
        sniffer.bind(("eth0", 3))
        sniffer.setblocking(False)
        async with running(Program(None)):
            await _seen(sniffer, _asks_for_services)
            with _neighbour() as sock:
                sock.sendto(_packet(_record(_TYPE, 12, wrong + _AGAIN)), GROUP)
            await _seen(sniffer, lambda frame: wrong in frame)
            await _seen(sniffer, _asks_for_services)


async def _seen(sniffer: socket.socket, is_it: Callable[[bytes], bool]) -> None:
    """Wait until there is such a frame."""
    while True:
        await trio.lowlevel.wait_readable(sniffer)
        if is_it(sniffer.recv(65536)):
            return


def _asks_for_services(frame: bytes) -> bool:
    flags = frame[14 + 20 + 8 + 2 :]  # after Ethernet, IPv4 and UDP
    return b"_sealring" in flags and flags[0] < 0x80


async def withstand() -> None:
    """Whoever announces thousands of machines, and much that is wrong, costs little."""
    desk = Program(Circle(CLUSTER, frozenset(IDS[1:])), node(0))
    den = Program(None, node(1))
    this = psutil.Process()
    flood = [sys.executable, "-m", "tests.discovery.in_network", "flood"]
    async with running(desk):
        async with running(den):  # all is imported, and works
            await desk.until(lambda found: found.members)
        before, began, used = this.memory_info().rss, time.monotonic(), time.process_time()
        for kind in ("asks", "all"):  # the first has it rest, and the second not
            await trio.run_process([*flood, kind])
        took = time.monotonic() - began
        share = (time.process_time() - used) / took
        grown = this.memory_info().rss - before
        assert desk.discovery.found.members.keys() <= {IDS[1]}
        assert len(desk.discovery.found.waiting) <= 1
        sys.stdout.write(f"{took:.1f} s, {share:.3f} of a processor, {grown >> 10} KiB more\n")
        assert share < 0.2, share
        assert grown < 64 << 20, grown
        async with running(Program(None, node(2))):
            await desk.until(lambda found: IDS[2] in found.members)


# ---------------------------------------------------------------- hostile bytes

_TYPE = b"\x09_sealring\x04_tcp\x05local\x00"
_AGAIN = b"\xc0\x0c"
_LOCAL = b"\xc0\x1b"


def _record(name: bytes, kind: int, data: bytes) -> bytes:
    return name + struct.pack("!HHIH", kind, 1, 4500, len(data)) + data


def _packet(*records: bytes) -> bytes:
    return struct.pack("!6H", 0, 0x8400, 0, len(records), 0, 0) + b"".join(records)


def _label(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _service(text: bytes) -> bytes:
    """A service as others announce theirs, called what nobody else is called."""
    label = _label(secrets.token_hex(8).encode())
    return _packet(
        _record(_TYPE, 12, label + _AGAIN),
        _record(label + _AGAIN, 33, struct.pack("!3H", 0, 0, 7470) + label + _LOCAL),
        _record(label + _AGAIN, 16, text),
        _record(label + _LOCAL, 1, bytes([10, 78, 0, 9])),
    )


def _names() -> bytes:
    """As many services in one datagram as go, with names as long as may be."""
    base = b"".join(_label(b"a" * 63) for _ in range(3))
    first = _record(_TYPE, 12, base + _AGAIN)
    place = struct.pack("!H", 0xC000 | (12 + len(first) - len(base) - 2))
    more = (_record(_AGAIN, 12, _label(secrets.token_hex(4).encode()) + place) for _ in range(50))
    return _packet(first, *more)


def _wrong() -> bytes:
    """Records of a wrong shape, and names that are none of this service."""
    evil = _label(b"evil") + b"\0"
    bad = (
        *(_record(_TYPE, 12, each) for each in (evil, b"\0", _AGAIN, b"\x01." + _AGAIN)),
        *(_record(_TYPE, kind, b"\x05abc") for kind in (1, 16, 28, 33, 47)),
        _record(_TYPE, 12, _label(b"\xff\xfe") + _AGAIN),
        _record(_TYPE, 12, _label(b"\x1b[31m") + _AGAIN),
        _record(_label(b"x") + _AGAIN, 33, b"\0"),
    )
    secrets.SystemRandom().shuffle(chosen := list(bad))
    return _packet(*chosen[: 1 + secrets.randbelow(len(bad))])


def _bent() -> bytes:
    packet = bytearray(_service(b"\x03v=1"))
    for _ in range(4):
        packet[12 + secrets.randbelow(len(packet) - 12)] = secrets.randbelow(256)
    return bytes(packet)


def _asks() -> bytes:
    question = _TYPE + struct.pack("!2H", 255, 0x8001)
    return struct.pack("!6H", secrets.randbelow(1 << 16), 0, 1, 0, 0, 0) + question


_SEALED = b"\x03v=1\x12n=%b\x12t=%b"
HOSTILE: tuple[Callable[[], bytes], ...] = (
    lambda: _service(_SEALED % (secrets.token_bytes(16), secrets.token_bytes(16))),
    lambda: _service(waiting_text(WORDS)),
    lambda: _service(5 * _label(b"k=" + b"z" * 200)),
    lambda: _service(34 * _label(b"k=" + b"z" * 253)),
    *(_names, _wrong, _bent, _asks),
)


@contextmanager
def _neighbour() -> Iterator[socket.socket]:
    """A socket that speaks multicast DNS."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, 5353))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HOST))
        yield sock


def flood(kind: str) -> None:
    """Send what a hostile neighbour would, as fast as it goes."""
    makers = HOSTILE if kind == "all" else (_asks,)
    packets = [make() for make in makers for _ in range(1000)]
    secrets.SystemRandom().shuffle(packets)
    with _neighbour() as sock:
        end = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end:
            for packet in packets:
                sock.sendto(packet, GROUP)


if __name__ == "__main__":
    if sys.argv[1] == "flood":
        flood(sys.argv[2])
    else:
        scenarios = (find, move, find_a_door, trip, withstand)
        trio.run({each.__name__: each for each in scenarios}[sys.argv[1]])
