"""What keeps strangers cheap, beside a model that keeps all that has happened.

Input: one byte for each command and its choices: connections from few addresses come, speak and
are over, members are expected, prove themselves or are put out, signatures are asked for, INITs
come again, and time passes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Final

import attrs
from sealring_protocol.errors import AuthenticationFailed, LimitExceeded
from sealring_protocol.limits import (
    MAX_HANDSHAKES,
    MAX_HANDSHAKES_PER_SOURCE,
    NEW_SOURCE_SECONDS,
    RESERVED_HANDSHAKES,
    SIGNATURES_PER_NEW_SOURCE,
    SIGNATURES_PER_SECOND,
    SIGNATURES_PER_SOURCE,
    SOURCES_PER_MEMBER,
)
from sealring_protocol.security.admission import Admission, ReplayCache

from fuzz.expect import raised
from fuzz.source import Source

SOURCES: Final = {
    "10.0.0.1": "a",
    "::ffff:10.0.0.1": "a",
    "10.0.0.2": "b",
    "fe80::1%eth0": "c",
    "fe80::2%eth0": "c",
    "fe80:0:0:1::2": "d",
    "a name": "e",
    **{f"10.0.1.{number}": f"f{number}" for number in range(6)},
}
"""Addresses, and which of them count as one."""

CACHE: Final = 5
SLACK: Final = 1e-6


def seeds() -> Iterator[bytes]:
    """Each command alone and after others, and more of each source than have places."""
    for source in range(len(SOURCES)):
        yield bytes([0, source]) * (MAX_HANDSHAKES_PER_SOURCE + 2) + bytes(
            [1, 3, 0, source, 6, 0, 7]
        )
        yield (
            bytes([2, source, 40]) + bytes([3, source]) + bytes([2, source, 40, 8, 9, 2, source, 9])
        )
        yield (
            bytes([5, source])
            + bytes(part for other in range(len(SOURCES)) for part in (0, other)) * 12
        )
    yield bytes(part for tag in (*range(7), 0, 6, 1) for part in (4, tag))
    everywhere = range(len(SOURCES))
    yield bytes(part for source in everywhere for part in (0, source)) * 30
    yield bytes(part for source in everywhere for part in (0, source, 6, source)) * 20
    yield bytes(part for source in everywhere for part in (3, source, *(0, source) * 8)) + b"\7"
    few = bytes([2, 0, 8, 2, 2, 8, 8, 3])
    yield few + bytes(part for source in (3, 5, 6, 7, 8, 9) for part in (2, source, 8))
    yield bytes(range(256))


@attrs.define
class Budget:
    """At most *rate* in any second, and *rate* at once."""

    rate: int
    left: float
    at: float = 0.0

    def take(self, now: float) -> bool | None:
        """Whether there is one; None where rounding decides."""
        self.left = min(self.rate, self.left + (now - self.at) * self.rate)
        self.at = now
        if abs(self.left - 1) < SLACK:
            return None
        if self.left < 1:
            return False
        self.left -= 1
        return True


@attrs.frozen
class Holder:
    """A connection with a place."""

    number: int
    network: str


@attrs.define
class Places:
    """Who has a place, the oldest first, by HS-31 as it stands in the specification."""

    held: list[Holder] = attrs.field(factory=list)
    spoken: set[int] = attrs.field(factory=set)
    known: set[str] = attrs.field(factory=set)

    def loser(self, network: str) -> int | None:
        """Who gives way to a newcomer from *network*."""
        own = [one for one in self.held if one.network == network]
        strangers = [one for one in self.held if one.network not in self.known]
        if len(own) == MAX_HANDSHAKES_PER_SOURCE:
            return self.first(own)
        room = len(self.held) < MAX_HANDSHAKES
        if network not in self.known:
            room = room and len(strangers) < MAX_HANDSHAKES - RESERVED_HANDSHAKES
        return None if room else self.first(strangers or self.held)

    def first(self, of: list[Holder]) -> int:
        """Of the source that holds most, a silent one if there is any, the oldest."""
        held = Counter(one.network for one in of)
        most = [one for one in of if held[one.network] == max(held.values())]
        silent = [one for one in most if one.number not in self.spoken]
        return (silent or most)[0].number

    def drop(self, number: int) -> None:
        """*number* has no place any more."""
        self.held = [one for one in self.held if one.number != number]


@attrs.define
class Signatures:
    """What sources may still ask for."""

    own: dict[str, Budget] = attrs.field(factory=dict)
    shared: Budget = attrs.field(
        factory=lambda: Budget(SIGNATURES_PER_SECOND, SIGNATURES_PER_SECOND)
    )
    new: Budget = attrs.field(
        factory=lambda: Budget(SIGNATURES_PER_NEW_SOURCE, SIGNATURES_PER_NEW_SOURCE)
    )
    last: dict[str, float] = attrs.field(factory=dict)

    def take(self, network: str, now: float, *, known: bool) -> bool | None:
        """Whether *network* gets one; None where rounding decides."""
        budget = Budget(SIGNATURES_PER_SOURCE, SIGNATURES_PER_SOURCE, now)
        may = self.own.setdefault(network, budget).take(now)
        if may and not known:
            may = self.shared.take(now)
            was = self.last.get(network)
            if may is False and (was is None or now - was >= NEW_SOURCE_SECONDS):
                may = self.new.take(now)
        if may:
            self.last[network] = now
        return may


def check(data: bytes) -> None:
    """Places and signatures go to whom the specification says."""
    source = Source(data)
    admission, cache, now = Admission(0.0), ReplayCache(CACHE), 0.0
    places, signatures = Places(), Signatures()
    proved: dict[str, None] = {}
    expected: set[str] = set()
    tags: deque[bytes] = deque(maxlen=CACHE)
    number = 0
    while not source.empty:
        command = source.below(9)
        address = source.pick(tuple(SOURCES)) if command in (0, 2, 3, 5) else ""
        network = SOURCES.get(address, "")
        match command:
            case 0:
                number += 1
                loser = places.loser(network)
                assert admission.opened(number, address) == loser
                if loser is not None:
                    places.drop(loser)
                places.held.append(Holder(number, network))
            case 1:
                over = source.below(number + 1)
                admission.settled(over)
                places.drop(over)
            case 2:
                for _ in range(1 + source.below(64)):
                    may = signatures.take(network, now, known=network in places.known)
                    if may is None:
                        return
                    error = raised(partial(admission.take_signature, address, now))
                    assert error is None if may else isinstance(error, LimitExceeded)
            case 3:
                admission.proved(address)
                proved.pop(network, None)
                proved[network] = None
                if len(proved) > SOURCES_PER_MEMBER:
                    del proved[next(iter(proved))]
            case 4:
                tag = bytes([source.below(8)])
                error = raised(partial(cache.add, tag))
                assert isinstance(error, AuthenticationFailed) == (tag in tags)
                if error is None:
                    tags.append(tag)
                assert len(cache) == len(tags)
            case 5:
                admission.expect([address])
                expected = {network}
            case 6:
                spoke = source.below(number + 1)
                admission.spoke(spoke)
                places.spoken.add(spoke)
            case 7:
                admission.put_out(b"")
                proved.clear()
            case _:
                now += source.below(100) / 64
        places.known = {*proved, *expected}
        assert admission.open == len(places.held) <= MAX_HANDSHAKES
