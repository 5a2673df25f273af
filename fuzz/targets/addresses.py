"""The address book of one rank: what members say of themselves and of others, what strangers say,
dials and probes that end in any way, and rosters that come in force.

Input: one byte for each command and its choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv6Address
from typing import Final

import attrs
from sealring_protocol.codec.messages import Addresses
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import ADDRESSES_PER_SECOND, MAX_LEARNT_ADDRESSES
from sealring_protocol.links.addresses import (
    AS_SEEN,
    PROBE_EVERY,
    PROBE_PAUSE,
    PROBES_AT_ONCE,
    AddressBook,
    KnownFrom,
)
from sealring_protocol.security.identity import SoftwareSigner
from sealring_protocol.security.roster import Member, Roster

from fuzz.expect import raised
from fuzz.source import Source

WORLD: Final = 4
_KEYS: Final = tuple(SoftwareSigner.from_scalar(1 + rank).public_key for rank in range(WORLD))
_V4: Final = bytes(10) + b"\xff\xff"
_IPS: Final = (
    *(_V4 + bytes([10, 0, 0, last]) for last in range(1, 7)),
    *(_V4 + bytes(ip) for ip in ((127, 0, 0, 1), (224, 0, 0, 1), (0, 0, 0, 0))),
    *(bytes([first, *bytes(14), 1]) for first in (0x20, 0xFD, 0xFF, 0)),
    bytes([0xFE, 0x80, *bytes(13), 1]),
    AS_SEEN,
)
_HOSTS: Final = ("10.0.0.1", "10.0.0.9", "fd00::7", "fe80::1%eth0", "127.0.0.1", "::1", "desk")


def _roster(places: tuple[int, ...]) -> Roster:
    """The members are at these last bytes of 10.0.0.0; 0: nowhere."""
    members = (
        Member(key, f"rank {rank}", (f"10.0.0.{last}:1",) if last else ())
        for rank, (key, last) in enumerate(zip(_KEYS, places, strict=True))
    )
    return Roster(bytes(32), "ring", 1, 0, 1, False, tuple(members))


ROSTERS: Final = tuple(map(_roster, ((1, 2, 3, 4), (1, 5, 0, 4), (4, 3, 2, 1))))
IDS: Final = tuple(member.id for member in ROSTERS[0].members)


@attrs.define
class Told:
    """How many ADDRESSES of one peer came: `ADDRESSES_PER_SECOND` at once, and as many a second."""

    left: float = ADDRESSES_PER_SECOND
    at: float = 0.0

    def take(self, now: float) -> bool:
        """Whether one more may come; times are whole 64ths, so that nothing is rounded."""
        self.left = min(ADDRESSES_PER_SECOND, self.left + (now - self.at) * ADDRESSES_PER_SECOND)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


def seeds() -> Iterator[bytes]:
    """Each command, alone and after what it needs; a flood; and lies of each kind."""
    for own in range(WORLD):
        for command in range(9):
            yield bytes([own, 1, command, 1, 1, 2, 3, 4, 5, 6])
            yield bytes([own, 0, 2, 1, 0, 1, 2, 4, 0, command, 1, 1, 2, 3]) * 3
        for member in range(WORLD + 1):
            for ip in range(len(_IPS)):
                yield bytes([own, 1, 0, 1, 0, member, 2, ip, 0, 1, 7])
    yield bytes([0, 1]) + bytes([0, 1, 0, 1, 0]) * (ADDRESSES_PER_SECOND + 2)
    yield bytes([0, 1]) + bytes([7, 1, 8, 64]) * 20
    heard = bytes(part for port in range(8) for part in (1, 1, port % 2, port))
    yield bytes([0, 1]) + heard + bytes([8, 255]) + heard
    full = bytes(part for port in range(1, 5) for part in (1, 1, 1, port))
    all_answer = bytes(part for place in range(1, 5) for part in (4, 1, place, 9))
    yield bytes([0, 0]) + full + all_answer + bytes([8, 0, 255, 1, 1, 1, 1, 5])
    yield bytes([0, 0, 2, 1, 1, 2, 1, 2]) + full
    answered = bytes([0, 1, 0, 1, 1, 14, 1, 4, 1, 9, 3, 6, 1, 2, 5, 1, 9, 1])
    yield bytes([0, 1]) + answered * 4


def check(data: bytes) -> None:
    """What is kept is few, each member speaks for itself, nobody is sent where the member has not
    proved itself, and probes are as rare as the specification says."""
    source = Source(data)
    own = source.below(WORLD)
    listens = (source.pick(("0.0.0.0", "10.0.0.1", "desk")), 1) if source.flag() else None
    roster, now = ROSTERS[0], 0.0
    book = AddressBook(roster, IDS[own], listens)
    told = {member: Told() for member in IDS}
    proved: dict[bytes, set[str]] = {member: set() for member in IDS}
    probes: dict[bytes, list[float]] = {member: [] for member in IDS}
    while not source.empty:
        command, member = source.below(9), source.pick(IDS)
        places = [route.address for route in book.routes(member)]
        at = source.pick(places) if places and command in (3, 4, 5) else "10.9.9.9:1"
        match command:
            case 0 if member != IDS[own]:
                _tell(source, book, roster, own, member, told[member], now)
            case 1:
                before = book.routes(member)
                book.heard(member, source.pick(_HOSTS), source.below(9), now)
                kept = {route.address for route in book.routes(member)}
                gone = [route for route in before if route.address not in kept]
                assert all(r.known_from is KnownFrom.HEARD and not r.answers for r in gone)
                assert len(gone) <= 1
            case 2:
                roster = source.pick(ROSTERS)
                book.renew(roster, IDS[own])
            case 3:
                book.dialed(member, at, now)
            case 4:
                book.answered(member, at, source.below(200) / 1000, now)
                proved[member].add(at)
            case 5:
                notes = book.failed(member, at, "no answer", now, linked=source.flag())
                assert len(notes) <= 1
            case 6:
                book.linked(member, at, now)
            case 7 if (due := book.next_probe(member)) is not None and due <= now:
                assert book.most_due(member) in places
                book.probed(member, now)
                _check_probes(probes[member], now)
            case _:
                now += source.below(256) / 64 * (16 if source.flag() else 1)
        for one in IDS:
            _check(book, roster, own, one, proved)


def _tell(
    source: Source,
    book: AddressBook,
    roster: Roster,
    own: int,
    sender: bytes,
    told: Told,
    now: float,
) -> None:
    pairs = tuple((source.pick(_IPS), 1 + source.below(3)) for _ in range(source.below(5)))
    of, seen = source.below(WORLD + 1), source.pick(("10.0.0.9", "127.0.0.1", "fe80::1%3"))
    before = {each: book.routes(each) for each in IDS}
    error = raised(partial(book.told, sender, seen, Addresses(of, pairs), now))
    rank = roster.rank(sender)
    may = of < WORLD and (of == rank or (rank == 0 and of != own))
    may = may and (of == rank or all(ip != AS_SEEN for ip, _ in pairs))
    if not told.take(now):
        assert isinstance(error, LimitExceeded)
    elif not may:
        assert isinstance(error, RemoteProtocolError)
    else:
        assert error is None
    changed = {each for each in IDS if book.routes(each) != before[each]}
    assert changed <= ({IDS[of]} if error is None else set())
    if error is None:
        said = [r for r in book.routes(IDS[of]) if r.known_from is KnownFrom.TOLD]
        assert len(said) <= len(set(pairs))


def _check(
    book: AddressBook, roster: Roster, own: int, member: bytes, proved: dict[bytes, set[str]]
) -> None:
    routes = book.routes(member)
    if member == IDS[own]:
        assert not routes
        return
    known = {route.address: route for route in routes}
    rank = roster.rank(member)
    of_roster = {route.address for route in routes if route.known_from is KnownFrom.ROSTER}
    assert of_roster == set(roster.members[rank].addresses)
    heard = [route for route in routes if route.known_from is KnownFrom.HEARD]
    assert len(heard) <= MAX_LEARNT_ADDRESSES
    best = book.best(member)
    assert (best in known) == bool(known)
    if any(route.answers for route in routes):
        assert best is not None
        assert known[best].answers
    for message in book.introduction(rank):
        if message.member != own:
            assert own == 0
            assert message.member != rank
            there = proved[IDS[message.member]]
            assert all(_written(ip, port) in there for ip, port in message.addresses)


def _written(ip: bytes, port: int) -> str:
    if ip.startswith(_V4):
        return ".".join(map(str, ip[12:])) + f":{port}"
    return f"[{IPv6Address(ip)}]:{port}"


def _check_probes(times: list[float], now: float) -> None:
    """At most `PROBES_AT_ONCE`, a pause apart, and one more for each `PROBE_EVERY`."""
    assert not times or now - times[-1] >= PROBE_PAUSE
    times.append(now)
    for begin, first in enumerate(times):
        most = PROBES_AT_ONCE + math.floor((now - first) / PROBE_EVERY)
        assert len(times) - begin <= most
