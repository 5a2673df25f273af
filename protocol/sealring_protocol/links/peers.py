"""What went wrong with each peer lately, as the link manager records it.

A peer and purpose have two entries: for links that this node dialed, and for incoming ones. An
entry is the latest trouble, with its start and its count. It stays until a link has stood for
`STEADY_SECONDS`, because a peer that is accepted and refused in turns is in trouble all the time.
It is reported only while the link is wanted or up: a delivered greeting, or a neighbour of an
earlier ring, is no trouble any more.

A peer that is not authenticated has no rank, and is recorded in `logs`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from sealring_protocol.control.effects import Level, Note
from sealring_protocol.errors import (
    CloseCode,
    ConnectionLost,
    PeerTimeout,
    RemoteProtocolError,
    SealringError,
    wire_code,
)
from sealring_protocol.links.addresses import AddressBook, Route
from sealring_protocol.links.dialer import REST_SECONDS, Dialer
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster

__all__ = ["Fault", "PeerState", "Trouble"]


STEADY_SECONDS: Final = 5.0
"""A link that has stood for this many seconds has no trouble."""

NO_FAULT: Final = {CloseCode.SHUTDOWN, CloseCode.DUPLICATE_LINK, CloseCode.NOT_READY}
"""Codes of links that ended without a fault."""

ROSTER_CHANGED: Final = "the roster changed"
"""The reason sent to members when a newer roster has other members, ranks or policies."""

NO_MEMBER: Final = "no longer a member"
"""The reason sent to a peer that a newer roster has removed, with code `ROSTER_EXPIRED`."""

SAME_KEY: Final = "another node that runs with the same key has taken its place"
"""The reason sent to a node when another one with its key has connected, with code `REPLACED`."""

_CODES: Final = {int(code) for code in CloseCode}

PeerKey = tuple[bytes, Purpose, bool]
"""A peer's node id, the purpose of the link, and whether this node dialed it."""


class Fault(enum.Enum):
    """What kind of trouble it is."""

    UNREACHABLE = "unreachable"  # the connection could not be opened
    SILENT = "silent"  # the peer ended the handshake without a word
    ITSELF = "itself"  # this node answered its own dial
    MUTE = "mute"  # it accepted the connection, and the handshake timed out
    REFUSED_US = "refused us"  # the peer closed, and said why
    REFUSED = "refused"  # this node closed, because of what the peer is or did
    BROKEN = "broken"  # an established link broke


@attrs.frozen
class Trouble:
    """The latest trouble, seen *count* times since *since*, last at *at*.

    Times are monotonic seconds. *code* is the close code, if CLOSE was sent.
    """

    fault: Fault
    reason: str
    since: float
    at: float
    count: int = 1
    address: str = ""
    code: int | None = None


@attrs.frozen
class PeerState:
    """The state of the member of *rank*.

    *routes* are its addresses, the roster's first, and how each answers. *up* has the start of each
    established link, by purpose. *dialing* has the address last dialed, *dialed* and *incoming* the
    latest trouble, each by purpose. *put_out* is True if the peer seems to hold a newer roster
    without this node. Times are monotonic seconds.
    """

    rank: int
    name: str
    routes: tuple[Route, ...]
    up: Mapping[Purpose, float] = attrs.field(factory=dict)
    dialing: Mapping[Purpose, str] = attrs.field(factory=dict)
    dialed: Mapping[Purpose, Trouble] = attrs.field(factory=dict)
    incoming: Mapping[Purpose, Trouble] = attrs.field(factory=dict)
    put_out: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of *routes*."""
        return tuple(route.address for route in self.routes)

    def trouble(self, purpose: Purpose, now: float) -> Trouble | None:
        """What keeps the link with *purpose* down; None if nothing is known, or the link stands.

        A stated refusal comes before a failed dial, since its reason says more; else the latest
        wins. That the peer could not be reached is past once a link with it has come up, and once
        it has another address.
        """
        since = self.up.get(purpose)
        if since is not None and now - since >= STEADY_SECONDS:
            return None
        known = [book[purpose] for book in (self.dialed, self.incoming) if purpose in book]
        known = [trouble for trouble in known if not self._is_past(trouble)]
        if since is not None:  # up only since a moment: report a recent refusal
            known = [trouble for trouble in known if _telling(trouble, now)]
        return max(known, key=lambda t: (_telling(t, now), t.at), default=None)

    def _is_past(self, trouble: Trouble) -> bool:
        if trouble.fault not in (Fault.UNREACHABLE, Fault.SILENT, Fault.ITSELF, Fault.MUTE):
            return False
        moved = bool(trouble.address) and trouble.address not in self.addresses
        return moved or trouble.at < max(self.up.values(), default=trouble.at)


def _telling(trouble: Trouble, now: float) -> bool:
    """True for a recent refusal with a reason. Both ends dial again within `STEADY_SECONDS`."""
    said = trouble.fault in (Fault.REFUSED, Fault.REFUSED_US)
    return said and now - trouble.at < 3 * STEADY_SECONDS


class PeerClosed(RemoteProtocolError):
    """The peer closed the link with *code*, for *reason*."""

    def __init__(self, code: int, reason: str) -> None:
        known = CloseCode(code).name if code in _CODES else str(code)
        super().__init__(f"the peer closed the link ({known.lower()}): {reason}")
        self.reason = reason


class MetItself(RemoteProtocolError):
    """This node answered its own dial."""

    def __init__(self) -> None:
        super().__init__("this node itself answers there")


def _fault(error: SealringError, *, up: bool) -> Fault:
    if isinstance(error, MetItself):
        return Fault.ITSELF
    if isinstance(error, PeerClosed):
        return Fault.REFUSED_US
    if isinstance(error, ConnectionLost | PeerTimeout):
        if up:
            return Fault.BROKEN
        return Fault.SILENT if isinstance(error, ConnectionLost) else Fault.MUTE
    return Fault.REFUSED


class PeerBook:
    """The latest trouble with each peer."""

    __slots__ = ("_addresses", "_troubles")

    def __init__(self) -> None:
        self._troubles: dict[PeerKey, Trouble] = {}
        self._addresses: dict[tuple[bytes, Purpose], str] = {}

    def dialing(self, peer: bytes, purpose: Purpose, address: str) -> None:
        """This node dials *peer* at *address*."""
        self._addresses[peer, purpose] = address

    def failed(
        self,
        key: PeerKey,
        fault: Fault,
        reason: str,
        now: float,
        code: int | None = None,
    ) -> None:
        """A link of *key* failed to come up, or broke."""
        peer, purpose, dialed = key
        address = self._addresses.get((peer, purpose), "") if dialed else ""
        last = self._troubles.get(key)
        trouble = Trouble(fault, reason, now, now, 1, address, code)
        if last is not None and (last.fault, last.code) == (fault, code):
            trouble = attrs.evolve(trouble, since=last.since, count=last.count + 1)
        self._troubles[key] = trouble

    def ended(
        self,
        key: PeerKey,
        error: SealringError,
        code: int | None,
        now: float,
        since: float | None,
    ) -> None:
        """A connection of *key* ended with *error*, and with the close *code* if there is one.
        *since* is when it became a link; None if it never did."""
        if since is not None and now - since >= STEADY_SECONDS:
            for dialed in (True, False):
                self._troubles.pop((*key[:2], dialed), None)
        if code not in NO_FAULT and not (code == CloseCode.REPLACED and since is not None):
            reason = error.reason if isinstance(error, PeerClosed) else str(error)
            code = wire_code(error) if code is None else code
            self.failed(key, _fault(error, up=since is not None), reason, now, code)

    def again(self, key: PeerKey) -> bool:
        """True if the latest trouble with *key* repeats the one before, or that of the links which
        the other end dialed."""
        trouble, other = self._troubles.get(key), self._troubles.get((*key[:2], not key[2]))
        if trouble is None:
            return False
        same = other is not None and (other.fault, other.code) == (trouble.fault, trouble.code)
        return same or trouble.count > 1

    def put_out(self, peer: bytes, own: Roster, dialer: Dialer, now: float) -> list[Note]:
        """*peer* seems to hold a newer roster than *own*, without this node. If it seemed so last
        time, too, *peer* is dialed rarely from now on, and one note says so."""
        member = own.member(peer)
        if member is None or not dialer.rest(peer, now):
            return []
        text = (
            f"{member.name} holds a newer roster than this node's ({own.serial}), in which this "
            f"node is no member: it is dialed every {REST_SECONDS / 60:.0f} minutes. To come back, "
            "ask for an invitation there (sealring machines invite), stop this node, and here: "
            "sealring join INVITATION"
        )
        return [Note(Level.WARNING, text)]

    def forget(self, peer: bytes) -> None:
        """Forget *peer*, which is no member any more."""
        for key in [key for key in self._troubles if key[0] == peer]:
            del self._troubles[key]
        for purpose in Purpose:
            self._addresses.pop((peer, purpose), None)

    def survey(
        self, roster: Roster, own: bytes, dialer: Dialer, addresses: AddressBook
    ) -> list[PeerState]:
        """The state of every member of *roster* except *own*, by rank."""
        return [
            PeerState(
                rank,
                member.name,
                addresses.routes(member.id),
                dialer.standing(member.id),
                {p: at for p in Purpose if (at := self._addresses.get((member.id, p)))},
                self._of(member.id, dialer, dialed=True),
                self._of(member.id, dialer, dialed=False),
                dialer.is_resting(member.id),
            )
            for rank, member in enumerate(roster.members)
            if member.id != own
        ]

    def _of(self, peer: bytes, dialer: Dialer, *, dialed: bool) -> dict[Purpose, Trouble]:
        known = [purpose for purpose in Purpose if dialer.wanted_or_up((peer, purpose))]
        keys = ((purpose, (peer, purpose, dialed)) for purpose in known)
        return {purpose: self._troubles[key] for purpose, key in keys if key in self._troubles}
