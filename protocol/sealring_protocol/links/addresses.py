"""The addresses of the other members: which there are, which answer, and which one to dial.

A member has the addresses of the roster, and learnt ones beside them: those that the member says of
itself or the head passes on, and those that the caller heard of on the network, perhaps from a
stranger. An address decides nothing about trust. Whoever answers there proves to be the member in
the handshake, or the address has failed. So a lie costs dials that fail, and this module bounds
them: a member has few learnt addresses of either kind, and what nobody answers is dialed less and
less often.

The best address is the one that answered fastest. A time is what a connection took to open, the
least of the latest few, and one is better than another only if it took half as long. Addresses that
were not tried come next, in the roster's order, and then those that failed, the longest ago first.

While a member is linked, its other addresses are dialed now and then, so that the best is known
before it is needed, and a dead one is told while nobody misses it.
"""

from __future__ import annotations

import enum
import ipaddress
import math
from collections import deque
from functools import partial
from typing import Final

import attrs

from sealring_protocol.security.roster import Roster

MAX_LEARNT: Final = 4
"""Learnt addresses of each kind that a member may have. Memory: about 500 bytes each."""

REFILL_SECONDS: Final = 60.0
"""Seconds between two addresses heard of a member that each take the place of another."""

TIMES: Final = 3
"""Times of an address that are remembered."""

_FINEST: Final = 0.0005  # seconds: times below it are the same


class KnownFrom(enum.Enum):
    """Where an address is known from."""

    ROSTER = "roster"
    TOLD = "told"
    """The member said so itself, or the head did, over a link."""
    HEARD = "heard"
    """The caller heard so, perhaps from a stranger."""


@attrs.define
class _Address:
    known_from: KnownFrom
    times: deque[float] = attrs.field(factory=partial(deque, maxlen=TIMES))
    trouble: str = ""
    tried: float = -math.inf

    @property
    def answers(self) -> bool:
        return bool(self.times) and not self.trouble

    def order(self) -> tuple[int, float]:
        """The address with the least is dialed first."""
        if self.answers:
            return 0, round(math.log2(max(min(self.times), _FINEST)))
        return (2, self.tried) if self.trouble else (1, 0)


def address_of(host: str, port: int) -> str | None:
    """*host*, an IP address, and *port* as ``host:port``; None for one at which another machine
    cannot be reached."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    unusable = ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_reserved
    if unusable or not 0 < port < 1 << 16:
        return None
    return f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"


class AddressBook:
    """The addresses of every member but this node itself. Times are monotonic seconds."""

    __slots__ = ("_known", "_refilled")

    def __init__(self) -> None:
        self._known: dict[bytes, dict[str, _Address]] = {}
        self._refilled: dict[bytes, float] = {}

    def renew(self, roster: Roster, own: bytes) -> None:
        """*roster* is in force: it has other addresses, perhaps. What was learnt of its members
        stays."""
        before, self._known = self._known, {}
        for member in roster.members:
            if member.id != own:
                learnt = before.get(member.id, {})
                known = {at: learnt.get(at, _Address(KnownFrom.ROSTER)) for at in member.addresses}
                for each in known.values():
                    each.known_from = KnownFrom.ROSTER
                known |= {
                    at: each
                    for at, each in learnt.items()
                    if at not in known and each.known_from is not KnownFrom.ROSTER
                }
                self._known[member.id] = known

    def heard(self, member: bytes, host: str, port: int, now: float) -> None:
        """Somebody said that *member* is at *host*, an IP address, and *port*. What is no address
        of another machine, or one of nobody known, is ignored. Beyond `MAX_LEARNT` one takes the
        place of another that does not answer, once in `REFILL_SECONDS`."""
        known, address = self._known.get(member), address_of(host, port)
        if known is None or address is None or address in known:
            return
        heard = [at for at, each in known.items() if each.known_from is KnownFrom.HEARD]
        if len(heard) >= MAX_LEARNT:
            dead = [at for at in heard if not known[at].answers]
            if not dead or now - self._refilled.get(member, -math.inf) < REFILL_SECONDS:
                return
            self._refilled[member] = now
            del known[dead[0]]
        known[address] = _Address(KnownFrom.HEARD)

    def best(self, member: bytes) -> str | None:
        """The address at which to dial *member* now; None if it has none."""
        known = self._known.get(member, {})
        return min(known, key=lambda at: known[at].order(), default=None)

    def answered(self, member: bytes, address: str, seconds: float, now: float) -> None:
        """*member* proved itself at *address*, where a connection took *seconds* to open."""
        if (each := self._known.get(member, {}).get(address)) is not None:
            each.times.append(seconds)
            each.trouble, each.tried = "", now

    def failed(self, member: bytes, address: str, why: str, now: float) -> None:
        """*member* did not prove itself at *address*."""
        if (each := self._known.get(member, {}).get(address)) is not None:
            each.trouble, each.tried = why, now
