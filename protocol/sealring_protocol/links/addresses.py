"""The addresses of the other members: which there are, which answer, and which one to dial.

A member has the addresses of the roster, and learnt ones beside them: those that the member says of
itself or the head passes on, and those that the caller heard of on the network, perhaps from a
stranger. An address decides nothing about trust. Whoever answers there proves to be the member in
the handshake, or the address has failed. So a lie costs dials that fail, and this module bounds
them: a member has few learnt addresses of either kind, and one that fails is dialed less and less
often.

The best address is the one that answered fastest. A time is what a connection took to open, the
least of the latest few, and one is better than another only if it took about half as long.
Addresses that were not tried come next, in the roster's order, and then those that failed, the
longest ago first. Those that were only heard of wait longer, so that a stranger's lies do not keep
this node from the roster's.

While a member is linked, its addresses are probed now and then: dialed beside the link. So the best
is known before it is needed, and a dead one is told while nobody misses it.
"""

from __future__ import annotations

import enum
import ipaddress
import math
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

import attrs

from sealring_protocol.codec.messages import Addresses
from sealring_protocol.control.deadlines import Backoff
from sealring_protocol.control.effects import Level, Note
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError
from sealring_protocol.limits import ADDRESSES_PER_SECOND, MAX_LEARNT_ADDRESSES
from sealring_protocol.security.admission import TokenBucket
from sealring_protocol.security.roster import Roster

__all__ = ["KnownFrom", "Route"]

REFILL_SECONDS: Final = 60.0
"""Seconds between two addresses heard of a member that each take the place of another."""

HEARD_PENALTY: Final = 30.0
"""Seconds by which an address that failed is dialed later if it was only heard of."""

SETTLE_SECONDS: Final = 2.0
"""Seconds from a link with a member to the first probe of its addresses."""

PROBE_PAUSE: Final = 1.0
"""Least seconds between two probes of a member."""

PROBES_AT_ONCE: Final = 8
PROBE_EVERY: Final = 30.0
"""Probes of a member that may follow each other so, and seconds for each further one. A member may
say that it is anywhere, and something else each second: what failed and was taken back is known no
more, so that no pause of an address bounds what is dialed for it."""

FAILED_PAUSE: Final = 60.0
"""Seconds until an address that failed is probed again. They double up to `ANSWERED_PAUSE`."""

ANSWERED_PAUSE: Final = 600.0
"""Seconds until an address that answered is probed again."""

TIMES: Final = 3
"""Times of an address that are remembered."""

_FINEST: Final = 0.0005  # seconds: times below it are the same
_MAPPED: Final = bytes(10) + b"\xff\xff"  # before an IPv4 address that is written as IPv6

AS_SEEN: Final = bytes(16)
"""What stands in ADDRESSES for the host from which the sender's connection comes."""

Pairs = tuple[tuple[bytes, int], ...]
"""Addresses as ADDRESSES has them."""


class KnownFrom(enum.Enum):
    """Where an address is known from."""

    ROSTER = "roster"
    TOLD = "told"
    """The member said so itself, or the head did, over a link."""
    HEARD = "heard"
    """The caller heard so, perhaps from a stranger."""


@attrs.frozen
class Route:
    """One *address* of a member. *seconds* is what a connection to it took to open; None if the
    member never proved itself there. *trouble* is why the last dial failed; empty if it did not."""

    address: str
    known_from: KnownFrom
    seconds: float | None
    trouble: str

    @property
    def answers(self) -> bool:
        """True if the member proved itself there when it was last dialed."""
        return self.seconds is not None and not self.trouble


@attrs.define
class _Address:
    known_from: KnownFrom
    due: float = math.inf  # for a probe
    times: deque[float] = attrs.field(factory=partial(deque, maxlen=TIMES))
    trouble: str = ""
    tried: float = -math.inf
    pause: Backoff = attrs.field(factory=partial(Backoff, ANSWERED_PAUSE, FAILED_PAUSE))
    warned: bool = False  # that it is dead

    @property
    def answers(self) -> bool:
        return bool(self.times) and not self.trouble

    def order(self) -> tuple[int, float]:
        """The address with the least is dialed first."""
        if self.answers:
            return 0, round(math.log2(max(min(self.times), _FINEST)))
        only_heard = self.known_from is KnownFrom.HEARD and not self.times
        later = HEARD_PENALTY if only_heard else 0.0
        return (2, self.tried + later) if self.trouble else (1, 0)


@attrs.define
class _Member:
    """What is known of one member, and the bounds of what is dialed for it."""

    known: dict[str, _Address] = attrs.field(factory=dict)
    refilled: float = -math.inf
    next_probe: float = -math.inf
    probes_spent: float = -math.inf  # until when, at `PROBE_EVERY` for each
    passed_on: Pairs = ()
    budget: TokenBucket = attrs.field(factory=partial(TokenBucket, ADDRESSES_PER_SECOND, 0.0))

    def renew(self, addresses: Iterable[str]) -> None:
        """The roster has *addresses*. What was learnt stays."""
        before, self.known = self.known, {}
        for at in addresses:
            self.known[at] = before.pop(at, _Address(KnownFrom.ROSTER))
            self.known[at].known_from = KnownFrom.ROSTER
        for at, each in before.items():
            if each.known_from is not KnownFrom.ROSTER:
                self.known[at] = each

    def told(self, addresses: set[str], now: float) -> None:
        """These *addresses* take the place of those that were told before."""
        known = self.known
        for at in [at for at, each in known.items() if each.known_from is KnownFrom.TOLD]:
            if at not in addresses:
                del known[at]
        for at in sorted(addresses):
            each = known.setdefault(at, _Address(KnownFrom.TOLD, now))
            if each.known_from is KnownFrom.HEARD:
                each.known_from = KnownFrom.TOLD


def address_of(host: str, port: int) -> str | None:
    """*host*, an IP address, and *port* as ``host:port``; None for one at which another machine
    cannot be reached."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    if not (host.isascii() and host.isprintable()):  # the name of an interface may be anything
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    first = ip.packed[0]
    far = 0 < first < 224 and first != 127 if ip.version == 4 else 0 < first < 255
    if not far or not 0 < port < 1 << 16:
        return None
    return f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"


def packed(address: str) -> tuple[bytes, int] | None:
    """*address* as ADDRESSES has it; None for one that only its own network knows."""
    host, _, port = address.rpartition(":")
    ip = ipaddress.ip_address(host.strip("[]"))
    if isinstance(ip, ipaddress.IPv6Address):
        return None if ip.is_link_local else (ip.packed, int(port))
    return _MAPPED + ip.packed, int(port)


def unpacked(ip: bytes, port: int, seen: str = "") -> str | None:
    """The inverse of `packed`. `AS_SEEN` stands for the host *seen*. None as of `address_of`, and
    for one that only its own network knows, if it is not *seen*."""
    if ip == AS_SEEN:
        return address_of(seen, port)
    address = address_of(str(ipaddress.IPv6Address(ip)), port)
    return None if address is None or packed(address) is None else address


def _own(host: str, port: int) -> Pairs:
    """What a node says of itself that listens at *host* and *port*."""
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name, which others may not know
        everywhere = True
    if everywhere:
        return ((AS_SEEN, port),)
    address = address_of(host, port)
    pair = None if address is None else packed(address)
    return () if pair is None else (pair,)


class AddressBook:
    """The addresses of every member but this node itself, which *listens* at a host and a port and
    tells them so. Times are monotonic seconds."""

    __slots__ = ("_listens", "_members", "_rank", "_roster")

    def __init__(self, roster: Roster, own: bytes, listens: tuple[str, int] | None) -> None:
        self._listens = () if listens is None else _own(*listens)
        self._members: dict[bytes, _Member] = {}
        self.renew(roster, own)

    def renew(self, roster: Roster, own: bytes) -> None:
        """*roster* is in force: it has other addresses, perhaps. What was learnt of its members
        stays."""
        self._roster, self._rank = roster, roster.rank(own)
        others = [member for member in roster.members if member.id != own]
        self._members = {member.id: self._of(member.id) for member in others}
        for member in others:
            self._members[member.id].renew(member.addresses)

    def _of(self, member: bytes) -> _Member:
        """What is known of *member*: nothing of one whom the roster does not have."""
        return self._members.get(member) or _Member()

    def routes(self, member: bytes) -> tuple[Route, ...]:
        """The addresses of *member*, the roster's first."""
        return tuple(
            Route(at, each.known_from, min(each.times, default=None), each.trouble)
            for at, each in self._of(member).known.items()
        )

    # -------------------------------------------------------------- learning

    def heard(self, member: bytes, host: str, port: int, now: float) -> None:
        """Somebody said that *member* is at *host*, an IP address, and *port*. What is no address
        of another machine, or one of nobody known, is ignored. Beyond `MAX_LEARNT_ADDRESSES` one
        takes the place of another that does not answer, once in `REFILL_SECONDS`."""
        kept, address = self._of(member), address_of(host, port)
        known = kept.known
        if address is None or address in known:
            return
        heard = [at for at, each in known.items() if each.known_from is KnownFrom.HEARD]
        if len(heard) >= MAX_LEARNT_ADDRESSES:
            dead = [at for at in heard if not known[at].answers]
            if not dead or now - kept.refilled < REFILL_SECONDS:
                return
            kept.refilled = now
            del known[dead[0]]
        known[address] = _Address(KnownFrom.HEARD, now)

    def told(self, sender: bytes, seen: str, message: Addresses, now: float) -> None:
        """The member *sender*, whose connection comes from the host *seen*, sent *message*. Raises
        `RemoteProtocolError` if it may not say that."""
        if not self._of(sender).budget.take(now):
            raise LimitExceeded(f"more than {ADDRESSES_PER_SECOND} ADDRESSES a second")
        rank, of = self._roster.rank(sender), message.member
        if of >= len(self._roster.members) or (of != rank and (rank or of == self._rank)):
            raise RemoteProtocolError(f"rank {rank} does not speak for rank {of}")
        if of != rank and any(ip == AS_SEEN for ip, _ in message.addresses):
            raise RemoteProtocolError(f"nobody sees rank {of} here")
        found = (unpacked(ip, port, seen) for ip, port in message.addresses)
        self._of(self._roster.members[of].id).told(set(filter(None, found)), now)

    # --------------------------------------------------------------- telling

    def introduction(self, rank: int) -> list[Addresses]:
        """What to tell *rank*, whose control link is up: where this node listens, and at the head
        also where others do."""
        own = [Addresses(self._rank, self._listens)] if self._listens else []
        if self._rank:
            return own
        return own + [
            Addresses(other, pairs)
            for other, member in enumerate(self._roster.members)
            if other != rank and (pairs := self._proved(member.id))
        ]

    def to_pass_on(self, member: bytes) -> list[tuple[int, Addresses]]:
        """What the head is to tell which rank, as *member* has proved itself at other addresses
        than when this was last called."""
        kept, pairs = self._of(member), self._proved(member)
        if self._rank or set(pairs) == set(kept.passed_on):
            return []
        kept.passed_on = pairs
        of = self._roster.rank(member)
        ranks = range(1, len(self._roster.members))
        return [(rank, Addresses(of, pairs)) for rank in ranks if rank != of]

    def _proved(self, member: bytes) -> Pairs:
        """The learnt addresses at which *member* proved itself to this node, the best first: nobody
        is sent to any other."""
        known = self._of(member).known
        learnt = [
            at
            for at, each in known.items()
            if each.times and each.known_from is not KnownFrom.ROSTER
        ]
        pairs = map(packed, sorted(learnt, key=lambda at: known[at].order()))
        return tuple(pair for pair in pairs if pair is not None)[:MAX_LEARNT_ADDRESSES]

    # --------------------------------------------------------------- dialing

    def best(self, member: bytes) -> str | None:
        """The address at which to dial *member*; None if it has none."""
        known = self._of(member).known
        return min(known, key=lambda at: known[at].order(), default=None)

    def dialed(self, member: bytes, address: str, now: float) -> None:
        """*member* is dialed at *address*."""
        if (each := self._of(member).known.get(address)) is not None:
            each.due = now + FAILED_PAUSE

    def answered(self, member: bytes, address: str, seconds: float, now: float) -> list[Note]:
        """*member* proved itself at *address*, where a connection took *seconds* to open. Returns
        the notes to log."""
        if (each := self._of(member).known.get(address)) is None:
            return []
        each.times.append(seconds)
        each.trouble = ""
        each.pause.reset()
        each.tried, each.due = now, now + ANSWERED_PAUSE
        warned, each.warned = each.warned, False
        text = f"{self._name(member)} answers at {address} again"
        return [Note(Level.INFO, text)] if warned else []

    def failed(
        self, member: bytes, address: str, why: str, now: float, *, linked: bool
    ) -> list[Note]:
        """*member* did not prove itself at *address*. Returns the notes to log: an address of the
        roster is called dead once, if the member is *linked* in spite of it."""
        if (each := self._of(member).known.get(address)) is None:
            return []
        each.due = now + each.pause.next()
        each.trouble, each.tried = why, now
        if not linked or each.warned or each.known_from is not KnownFrom.ROSTER:
            return []
        each.warned = True
        name = self._name(member)
        best = next((route for route in self.routes(member) if route.answers), None)
        instead = f"is reached at {best.address}" if best else "reaches this node"
        text = f"{name} {instead}; it does not answer at {address}: {why}"
        return [Note(Level.WARNING, text)]

    def _name(self, member: bytes) -> str:
        return self._roster.members[self._roster.rank(member)].name

    # --------------------------------------------------------------- probing

    def linked(self, member: bytes, through: str, now: float) -> None:
        """A link with *member* is up, the first or a new control link, *through* an address, or
        none if the member dialed: probe the others a little later."""
        for address, each in self._of(member).known.items():
            if address != through:
                each.due = now + SETTLE_SECONDS

    def next_probe(self, member: bytes) -> float | None:
        """When to probe *member*; None: not at all."""
        kept = self._of(member)
        due = min([each.due for each in kept.known.values()], default=math.inf)
        return None if due == math.inf else max(due, kept.next_probe)

    def probed(self, member: bytes, now: float) -> None:
        """*member* is about to be probed."""
        kept = self._of(member)
        kept.probes_spent = max(kept.probes_spent, now) + PROBE_EVERY
        allowed = kept.probes_spent - (PROBES_AT_ONCE - 1) * PROBE_EVERY
        kept.next_probe = max(now + PROBE_PAUSE, allowed)

    def most_due(self, member: bytes) -> str | None:
        """The address at which to probe *member*; None if it has none."""
        known = self._of(member).known
        return min(known, key=lambda at: known[at].due, default=None)
