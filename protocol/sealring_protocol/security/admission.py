"""Limits on what strangers can cost: caps on open handshakes, a signature budget, a replay cache.

Anyone can connect, and anyone who has once read a roster can make a valid-looking INIT. So a node
holds few handshakes at a time, few of them from one address, remembers the tags of the INITs that
it has answered, and signs a limited number of RESPs per second. None of this authenticates anybody.

No newcomer is turned away: it takes the place of another. So holding places, silently or not,
cannot keep a member out: the member's connection is the newest, and a handshake takes only a few
round trips. The connection that gives way belongs to the source with the most places, so a source
with one connection is safe from a source with several. Strangers never take a place from a source
that is known to have members.

*now* is always monotonic seconds.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import attrs

from sealring_protocol.errors import AuthenticationFailed, LimitExceeded
from sealring_protocol.limits import (
    MAX_HANDSHAKES,
    MAX_HANDSHAKES_PER_SOURCE,
    MAX_SOURCES,
    NEW_SOURCE_SECONDS,
    REPLAY_CACHE,
    RESERVED_HANDSHAKES,
    SIGNATURES_PER_NEW_SOURCE,
    SIGNATURES_PER_SECOND,
    SIGNATURES_PER_SOURCE,
    SOURCES_PER_MEMBER,
)


class TokenBucket:
    """A token bucket: *rate* tokens per second, with a burst of the same size."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate)
        self._at = now

    def take(self, now: float) -> bool:
        """Take a token. False if there is none. A *now* before the last one counts as the last
        one."""
        passed = max(0.0, now - self._at)
        self._at += passed
        self._tokens = min(float(self._rate), self._tokens + passed * self._rate)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class ReplayCache:
    """The tags of the latest INITs that were accepted.

    When it is full it forgets the oldest. An attacker that can fill it while an INIT is still valid
    can make as many new INITs, and gains nothing from an old one.
    """

    __slots__ = ("_known", "_order")

    def __init__(self, size: int = REPLAY_CACHE) -> None:
        self._known: set[bytes] = set()
        self._order: deque[bytes] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, tag: bytes) -> None:
        """Remember *tag*. Raises `AuthenticationFailed` if it is known, which means a replay."""
        if tag in self._known:
            raise AuthenticationFailed("this INIT has been here before")
        if len(self._order) == self._order.maxlen:
            self._known.discard(self._order[0])
        self._known.add(tag)
        self._order.append(tag)


@attrs.define(eq=False)
class _Place:
    """An accepted connection whose peer is not authenticated yet."""

    number: int
    network: str
    silent: bool = True


class Admission:
    """The limits shared by all links of a node whose peers are not authenticated yet."""

    __slots__ = (
        "_buckets",
        "_expected",
        "_for_new",
        "_places",
        "_proved",
        "_signatures",
        "_signed",
        "replay",
    )

    def __init__(self, now: float) -> None:
        self._places: dict[int, _Place] = {}  # the oldest first
        self._buckets: dict[str, TokenBucket] = {}
        self._proved: dict[bytes, dict[str, None]] = {}  # networks by member; the latest last
        self._expected: frozenset[str] = frozenset()
        self._signatures = TokenBucket(SIGNATURES_PER_SECOND, now)
        self._for_new = TokenBucket(SIGNATURES_PER_NEW_SOURCE, now)
        self._signed: dict[str, float] = {}  # when a source last had a signature; the latest last
        self.replay = ReplayCache()
        """The replay cache of every `Responder` of the node."""

    @property
    def open(self) -> int:
        """The number of handshakes under way."""
        return len(self._places)

    def expect(self, hosts: Iterable[str]) -> None:
        """Set the *hosts* of members: connections from there count as members'."""
        self._expected = frozenset(network_of(host) for host in hosts)

    def opened(self, number: int, source: str) -> int | None:
        """Connection *number* came from the address *source*, and takes a place.

        Returns the number of the connection that has lost its place to it, which the caller closes;
        None if there is none.
        """
        network = network_of(source)
        loser = self._loser(network)
        if loser is not None:
            del self._places[loser]
        self._places[number] = _Place(number, network)
        return loser

    def spoke(self, number: int) -> None:
        """A whole INIT came on connection *number*."""
        if number in self._places:
            self._places[number].silent = False

    def settled(self, number: int) -> None:
        """Free the place of connection *number*: its handshake is over, or its peer is
        authenticated."""
        self._places.pop(number, None)

    def _loser(self, network: str) -> int | None:
        """The connection whose place a newcomer from *network* takes; None if a place is free."""
        places = self._places.values()
        own = [place for place in places if place.network == network]
        if len(own) >= MAX_HANDSHAKES_PER_SOURCE:
            return _first_to_go(own)
        strangers = [place for place in places if not self._is_known(place.network)]
        crowded = len(strangers) >= MAX_HANDSHAKES - RESERVED_HANDSHAKES
        if len(places) >= MAX_HANDSHAKES or (crowded and not self._is_known(network)):
            return _first_to_go(strangers or list(places))
        return None

    def _is_known(self, network: str) -> bool:
        """True if members are known to come from *network*."""
        proved = any(network in networks for networks in self._proved.values())
        return proved or network in self._expected

    def proved(self, source: str, member: bytes = b"") -> None:
        """*member* (node id) was authenticated from *source*: strangers elsewhere can no longer
        starve it.

        Only a member's latest `SOURCES_PER_MEMBER` sources count, so that no member gets places and
        signatures for any number of addresses.
        """
        networks = self._proved.setdefault(member, {})
        networks.pop(network_of(source), None)
        networks[network_of(source)] = None
        if len(networks) > SOURCES_PER_MEMBER:
            del networks[next(iter(networks))]

    def put_out(self, member: bytes) -> None:
        """*member* was removed from the roster: forget its sources."""
        self._proved.pop(member, None)

    def take_signature(self, source: str, now: float) -> None:
        """Spend one signature on *source*. Raises `LimitExceeded` if none is left for now."""
        network = network_of(source)
        bucket = self._buckets.setdefault(network, TokenBucket(SIGNATURES_PER_SOURCE, now))
        _forget_oldest(self._buckets)
        if not bucket.take(now):
            raise LimitExceeded(f"too many handshakes from {source} ask for a signature")
        if not self._is_known(network) and not self._spend(network, now):
            raise LimitExceeded("too many handshakes ask for a signature")
        self._signed.pop(network, None)
        self._signed[network] = now
        _forget_oldest(self._signed)

    def _spend(self, network: str, now: float) -> bool:
        """Take a signature from the strangers' budget, or from the budget for new sources."""
        if self._signatures.take(now):
            return True
        last = self._signed.get(network)
        is_new = last is None or now - last >= NEW_SOURCE_SECONDS
        return is_new and self._for_new.take(now)


def network_of(source: str) -> str:
    """The network that counts as one source: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _first_to_go(places: list[_Place]) -> int:
    """The connection in *places* to close, from the source with the most places: its oldest silent
    one, else its oldest."""
    held = Counter(place.network for place in places)
    most = max(held.values())
    greedy = [place for place in places if held[place.network] == most]
    return next((place.number for place in greedy if place.silent), greedy[0].number)


def _forget_oldest(known: dict[str, Any]) -> None:
    if len(known) > MAX_SOURCES:
        del known[next(iter(known))]
