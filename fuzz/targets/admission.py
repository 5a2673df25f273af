"""What keeps strangers cheap, beside a model that keeps all that has happened.

Input: one byte for each command and its choices: connections from few addresses come and are over,
members prove themselves, signatures are asked for, INITs come again, and time passes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Final

import attrs
from sealring_protocol.errors import AuthenticationFailed, LimitExceeded, LocalProtocolError
from sealring_protocol.limits import (
    MAX_HANDSHAKES,
    MAX_HANDSHAKES_PER_SOURCE,
    SIGNATURES_PER_SECOND,
    SIGNATURES_PER_SOURCE,
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
}
"""Addresses, and which of them count as one."""

CACHE: Final = 5
SLACK: Final = 1e-6


def seeds() -> Iterator[bytes]:
    """Each command alone and after others, and enough of one source to be refused."""
    for source in range(len(SOURCES)):
        yield bytes([0, source]) * (MAX_HANDSHAKES_PER_SOURCE + 2) + bytes([1, source, 0, source])
        yield (
            bytes([2, source, 40]) + bytes([3, source]) + bytes([2, source, 40, 5, 9, 2, source, 9])
        )
    yield bytes(part for tag in (*range(7), 0, 6, 1) for part in (4, tag))
    yield bytes(part for source in range(7) for part in (0, source)) * 30
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


def check(data: bytes) -> None:
    """It refuses exactly what is too much."""
    source = Source(data)
    admission, cache, now = Admission(0.0), ReplayCache(CACHE), 0.0
    opened: Counter[str] = Counter()
    proved: set[str] = set()
    tags: deque[bytes] = deque(maxlen=CACHE)
    shared = Budget(SIGNATURES_PER_SECOND, SIGNATURES_PER_SECOND)
    budgets: dict[str, Budget] = {}
    while not source.empty:
        command = source.below(6)
        address = source.pick(tuple(SOURCES)) if command < 4 else ""
        network = SOURCES.get(address, "")
        match command:
            case 0:
                full = opened[network] >= MAX_HANDSHAKES_PER_SOURCE
                full = full or opened.total() >= MAX_HANDSHAKES
                assert admission.full == (opened.total() >= MAX_HANDSHAKES)
                error = raised(partial(admission.opened, address))
                assert isinstance(error, LimitExceeded) if full else error is None
                opened[network] += not full
            case 1:
                error = raised(partial(admission.settled, address))
                assert isinstance(error, LocalProtocolError) == (not opened[network])
                opened[network] -= opened[network] > 0
            case 2:
                for _ in range(1 + source.below(64)):
                    own = budgets.setdefault(
                        network, Budget(SIGNATURES_PER_SOURCE, SIGNATURES_PER_SOURCE, now)
                    )
                    may = own.take(now)
                    if may and network not in proved:
                        may = shared.take(now)
                    if may is None:
                        return
                    error = raised(partial(admission.take_signature, address, now))
                    assert error is None if may else isinstance(error, LimitExceeded)
            case 3:
                admission.proved(address)
                proved.add(network)
            case 4:
                tag = bytes([source.below(8)])
                error = raised(partial(cache.add, tag))
                assert isinstance(error, AuthenticationFailed) == (tag in tags)
                if error is None:
                    tags.append(tag)
                assert len(cache) == len(tags)
            case _:
                now += source.below(100) / 64
        assert admission.open == opened.total()
