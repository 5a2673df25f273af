"""What has been heard of other machines in this network: a few entries, however many are announced.

Only what an announcement says is kept, and only where somebody wants it: members and doors of one's
own cluster, machines that wait to be invited, and, for whoever has no cluster, where sealring runs.
Of each there are few places. The first announcement keeps its place until it is taken back or runs
out, so whoever repeats one a thousand times pushes nothing out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

import attrs
from sealring_protocol.joining.announcement import DOOR, WaitingMachine, read_text, recognise

from sealring.joining.fingerprint import is_fingerprint

MAX_ADDRESSES: Final = 4
"""Addresses of one announcement that are kept."""

MAX_TWINS: Final = 4
"""Announcements of one member that are kept: a node that was started again has another until the
one before runs out."""

MAX_DOORS: Final = 4
MAX_WAITING: Final = 16
MAX_OTHERS: Final = 8
"""Announcements of doors, of machines that wait, and of others that are kept."""

_PRIVATE: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
        *("fc00::/7", "fe80::/10"),
    )
)
"""Networks that no other network reaches: RFC 1918, RFC 3927, RFC 4193, RFC 4291 section 2.5.6."""


def is_private(host: str) -> bool:
    """Whether *host* is an address of a private network, or of one link."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return any(address in network for network in _PRIVATE)


@attrs.frozen
class Circle:
    """Whose announcements can be recognised: *members* (node ids) of the cluster whose
    coordinator's public key has the SHA-256 *coordinator*."""

    coordinator: bytes
    members: frozenset[bytes]


Place = tuple[str, int]
"""An IP address and a port."""


@attrs.frozen
class Nearby:
    """What is known of the network. Each place is a hint.

    *members* has those of each node id, *doors* those of one's own cluster's doors, *waiting* those
    of each machine that waits to be invited, by its words, and *others* those of nodes and doors
    that cannot be recognised."""

    members: dict[bytes, tuple[Place, ...]] = attrs.field(factory=dict)
    doors: tuple[Place, ...] = ()
    waiting: dict[str, tuple[Place, ...]] = attrs.field(factory=dict)
    others: tuple[Place, ...] = ()


Who = bytes | WaitingMachine | None
"""A node id or `DOOR`; a machine that waits; or somebody else."""


@attrs.frozen
class _Entry:
    who: Who
    places: tuple[Place, ...]


class Neighbours:
    """The announcements that have a place. Those of *circle* are recognised, which may be None."""

    def __init__(self, circle: Circle | None) -> None:
        self._circle = circle
        self._entries: dict[str, _Entry] = {}  # by instance, the oldest first

    def heard(self, instance: str, text: bytes, hosts: Iterable[str], port: int) -> bool:
        """*instance* announces *text*, and that it listens at *port* of *hosts*. Whether that may
        change `found`."""
        entry = self._entry(text, hosts, port)
        if entry is None:
            return self.gone(instance)
        before = self._entries.get(instance)
        if before == entry or (before is None and not self._has_room(entry)):
            return False
        if before is not None and before.who != entry.who:
            self.gone(instance)
            if not self._has_room(entry):
                return True
        self._entries[instance] = entry
        return True

    def gone(self, instance: str) -> bool:
        """*instance* is announced no more. Whether that may change `found`."""
        return self._entries.pop(instance, None) is not None

    @property
    def found(self) -> Nearby:
        """What there is now."""
        found = Nearby()
        doors: tuple[Place, ...] = ()
        others: tuple[Place, ...] = ()
        for entry in self._entries.values():
            places, who = entry.places, entry.who
            if isinstance(who, WaitingMachine):
                found.waiting[who.words] = _joined(found.waiting.get(who.words, ()), places)
            elif who is None:
                others = _joined(others, places)
            elif who == DOOR:
                doors = _joined(doors, places)
            else:
                found.members[who] = _joined(found.members.get(who, ()), places)
        return attrs.evolve(found, doors=doors, others=others)

    # ----------------------------------------------------------------- inside

    def _entry(self, text: bytes, hosts: Iterable[str], port: int) -> _Entry | None:
        said = read_text(text)
        near = tuple((host, port) for host in hosts if is_private(host))[:MAX_ADDRESSES]
        if said is None or not near or not 0 < port < 1 << 16:
            return None
        if isinstance(said, WaitingMachine):
            return _Entry(said, near) if is_fingerprint(said.words) else None
        who = None
        if self._circle is not None:
            who = recognise(said, self._circle.coordinator, self._circle.members)
            if who is None:  # of another cluster, which is no concern of this one
                return None
        return _Entry(who, near)

    def _has_room(self, entry: _Entry) -> bool:
        if isinstance(entry.who, WaitingMachine):
            same = [each for each in self._entries.values() if isinstance(each.who, WaitingMachine)]
            return len(same) < MAX_WAITING
        places = {DOOR: MAX_DOORS, None: MAX_OTHERS}.get(entry.who, MAX_TWINS)
        return sum(each.who == entry.who for each in self._entries.values()) < places


def _joined(one: Iterable[Place], other: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys([*one, *other]))
