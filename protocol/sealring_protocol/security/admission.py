"""What keeps strangers cheap: caps on open handshakes, a budget of signatures, a replay cache.

Anyone can connect, and whoever has once read a roster can make an INIT that looks right. So a
node holds few handshakes at a time, few of them from one address, remembers the tags of INITs it
has answered, and signs only so many RESPs per second. None of it authenticates anybody.

Time is an argument: *now* is a monotonic clock in seconds.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, deque
from typing import Any

from sealring_protocol.errors import AuthenticationFailed, LimitExceeded, LocalProtocolError
from sealring_protocol.limits import (
    MAX_HANDSHAKES,
    MAX_HANDSHAKES_PER_SOURCE,
    MAX_SOURCES,
    REPLAY_CACHE,
    SIGNATURES_PER_SECOND,
    SIGNATURES_PER_SOURCE,
)


class TokenBucket:
    """*rate* per second, and at most as many at once."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate)
        self._at = now

    def take(self, now: float) -> bool:
        """Take one if there is one. A *now* before the last one counts as the last one."""
        passed = max(0.0, now - self._at)
        self._at += passed
        self._tokens = min(float(self._rate), self._tokens + passed * self._rate)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class ReplayCache:
    """The tags of the last INITs that were taken.

    When it is full the oldest is forgotten. Whoever can fill it within the time that an INIT is
    good for can make as many new INITs, and gains nothing from an old one.
    """

    __slots__ = ("_known", "_order")

    def __init__(self, size: int = REPLAY_CACHE) -> None:
        self._known: set[bytes] = set()
        self._order: deque[bytes] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, tag: bytes) -> None:
        """Remember *tag*. Raises `AuthenticationFailed` if it is known already."""
        if tag in self._known:
            raise AuthenticationFailed("this INIT has been here before")
        if len(self._order) == self._order.maxlen:
            self._known.discard(self._order[0])
        self._known.add(tag)
        self._order.append(tag)


class Admission:
    """What all links of a node that have not proved who they are share."""

    __slots__ = ("_buckets", "_open", "_proved", "_signatures", "replay")

    def __init__(self, now: float) -> None:
        self._open: Counter[str] = Counter()
        self._buckets: dict[str, TokenBucket] = {}
        self._proved: dict[str, None] = {}
        self._signatures = TokenBucket(SIGNATURES_PER_SECOND, now)
        self.replay = ReplayCache()
        """For every `Responder` of the node."""

    @property
    def full(self) -> bool:
        """No further handshake is taken, wherever it comes from."""
        return self.open >= MAX_HANDSHAKES

    def crowded(self, source: str) -> bool:
        """No further handshake is taken from *source*."""
        return self._open[network_of(source)] >= MAX_HANDSHAKES_PER_SOURCE

    @property
    def open(self) -> int:
        """Handshakes under way."""
        return self._open.total()

    def opened(self, source: str) -> None:
        """A connection came from the address *source*.

        Raises `LimitExceeded` when there are too many already: close it, and do not call
        `settled`.
        """
        network = network_of(source)
        if self.crowded(source):
            raise LimitExceeded(f"{MAX_HANDSHAKES_PER_SOURCE} handshakes from {source}")
        if self.full:
            raise LimitExceeded(f"{MAX_HANDSHAKES} handshakes are under way")
        self._open[network] += 1

    def settled(self, source: str) -> None:
        """A handshake from *source* is over, in either way."""
        source = network_of(source)
        if not self._open[source]:
            raise LocalProtocolError(f"no handshake from {source} is under way")
        self._open[source] -= 1
        if not self._open[source]:
            del self._open[source]

    def proved(self, source: str) -> None:
        """A member has proved itself from *source*: strangers elsewhere cannot starve it."""
        self._proved[network_of(source)] = None
        _forget_oldest(self._proved)

    def take_signature(self, source: str, now: float) -> None:
        """Spend one signature on *source*. Raises `LimitExceeded` when there is none for now."""
        network = network_of(source)
        bucket = self._buckets.setdefault(network, TokenBucket(SIGNATURES_PER_SOURCE, now))
        _forget_oldest(self._buckets)
        if not bucket.take(now):
            raise LimitExceeded(f"too many handshakes from {source} ask for a signature")
        if network not in self._proved and not self._signatures.take(now):
            raise LimitExceeded("too many handshakes ask for a signature")


def network_of(source: str) -> str:
    """What counts as one source: an IPv4 address, or the /64 that an IPv6 host has to itself."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _forget_oldest(known: dict[str, Any]) -> None:
    if len(known) > MAX_SOURCES:
        del known[next(iter(known))]
