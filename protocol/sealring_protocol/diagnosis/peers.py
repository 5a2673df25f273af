"""What went wrong with each peer lately: the book that the link manager keeps.

For a peer and a purpose there are two entries: what became of the links that this node dialed, and
of those that came in. An entry is the last thing that went wrong, since when it has been the same
thing, and how often. It stays until a link has stood for a while (`STEADY_SECONDS`), for a peer
that is taken and refused in turns is in trouble all the time. It is told while the link is wanted:
a greeting that was heard, or a neighbour of an earlier ring, is no trouble any more.

Whoever did not prove who it is has no rank, and stands in another book (`refusal_log`).
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
from sealring_protocol.links.dialer import REST_SECONDS, Dialer
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster

__all__ = ["Fault", "PeerState", "Trouble"]


STEADY_SECONDS: Final = 5.0
"""A link that has stood for so long is in no trouble any more."""

NO_FAULT: Final = {CloseCode.SHUTDOWN, CloseCode.DUPLICATE_LINK, CloseCode.NOT_READY}
"""How links end with which nothing is wrong."""

NO_MEMBER: Final = "no longer a member"
"""The reason that a peer is given whom a newer roster has put out. Its code is `ROSTER_EXPIRED`."""

SAME_KEY: Final = "another node that runs with the same key has taken its place"
"""The reason that a node is given whose twin came after it. Its code is `REPLACED`."""

_CODES: Final = {int(code) for code in CloseCode}

PeerKey = tuple[bytes, Purpose, bool]
"""A peer's node id, the purpose of the link, and whether this node dialed it."""


class Fault(enum.Enum):
    """What went wrong, by who knows why."""

    UNREACHABLE = "unreachable"  # there is no connection
    SILENT = "silent"  # the peer ended the handshake without a word
    MUTE = "mute"  # it took the connection, and let the handshake lapse
    REFUSED_US = "refused us"  # the peer closed, and said why
    REFUSED = "refused"  # this node closed, for what the peer is or did
    BROKEN = "broken"  # an established link broke


@attrs.frozen
class Trouble:
    """The last thing that went wrong, *count* times since *since*, the last time at *at*.

    Times are monotonic seconds. *code* is that of the CLOSE, if there was one.
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
    """How it stands with the member of *rank*: *up* are its links by purpose, with the time since
    when; *dialing* is the address that this node has dialed last, *dialed* and *incoming* are what
    went wrong last, by purpose. By *put_out* it holds a newer roster, without this node."""

    rank: int
    name: str
    addresses: tuple[str, ...]
    up: Mapping[Purpose, float] = attrs.field(factory=dict)
    dialing: Mapping[Purpose, str] = attrs.field(factory=dict)
    dialed: Mapping[Purpose, Trouble] = attrs.field(factory=dict)
    incoming: Mapping[Purpose, Trouble] = attrs.field(factory=dict)
    put_out: bool = False

    def trouble(self, purpose: Purpose, now: float) -> Trouble | None:
        """What keeps the link with *purpose* from being; None where nothing is known, or while it
        stands. Who was refused knows more than who was not reached; else the latest is told."""
        since = self.up.get(purpose)
        if since is not None and now - since >= STEADY_SECONDS:
            return None
        known = [book[purpose] for book in (self.dialed, self.incoming) if purpose in book]
        if since is not None:  # it is up, for a moment: was it refused just before?
            known = [trouble for trouble in known if _telling(trouble, now)]
        return max(known, key=lambda t: (_telling(t, now), t.at), default=None)


def _telling(trouble: Trouble, now: float) -> bool:
    """Somebody has said why, and not long ago: both ends dial again within `STEADY_SECONDS`."""
    said = trouble.fault in (Fault.REFUSED, Fault.REFUSED_US)
    return said and now - trouble.at < 3 * STEADY_SECONDS


class PeerClosed(RemoteProtocolError):
    """The peer has closed the link with *code*, for the *reason* that it gives."""

    def __init__(self, code: int, reason: str) -> None:
        known = CloseCode(code).name if code in _CODES else str(code)
        super().__init__(f"the peer closed the link ({known.lower()}): {reason}")
        self.reason = reason


def _fault(error: SealringError, *, up: bool) -> Fault:
    if isinstance(error, PeerClosed):
        return Fault.REFUSED_US
    if isinstance(error, ConnectionLost | PeerTimeout):
        if up:
            return Fault.BROKEN
        return Fault.SILENT if isinstance(error, ConnectionLost) else Fault.MUTE
    return Fault.REFUSED


class PeerBook:
    """What went wrong, by peer."""

    __slots__ = ("_addresses", "_troubles")

    def __init__(self) -> None:
        self._troubles: dict[PeerKey, Trouble] = {}
        self._addresses: dict[tuple[bytes, Purpose], str] = {}

    def dialing(self, peer: bytes, purpose: Purpose, address: str) -> None:
        """This node dials *address*."""
        self._addresses[peer, purpose] = address

    def failed(
        self,
        key: PeerKey,
        fault: Fault,
        reason: str,
        now: float,
        code: int | None = None,
    ) -> None:
        """A link of *key* did not come up, or broke."""
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
        """A connection of *key* has ended with *error*, and with *code* if somebody has said why;
        if it was a link, it was one since *since*."""
        if since is not None and now - since >= STEADY_SECONDS:
            for dialed in (True, False):
                self._troubles.pop((*key[:2], dialed), None)
        if code not in NO_FAULT and not (code == CloseCode.REPLACED and since is not None):
            reason = error.reason if isinstance(error, PeerClosed) else str(error)
            code = wire_code(error) if code is None else code
            self.failed(key, _fault(error, up=since is not None), reason, now, code)

    def again(self, key: PeerKey) -> bool:
        """The last thing that went wrong with *key* is what went wrong before it, too."""
        trouble = self._troubles.get(key)
        return trouble is not None and trouble.count > 1

    def put_out(self, peer: bytes, own: Roster, dialer: Dialer, now: float) -> list[Note]:
        """*peer* seems to hold a newer roster than *own*, in which this node is no member. If it
        seemed so the last time, too, it is left alone for a while, and that is told once."""
        member = own.member(peer)
        if member is None or not dialer.rest(peer, now):
            return []
        text = (
            f"{member.name} holds a newer roster than this node's ({own.serial}), in which this "
            f"node is no member: it is dialed every {REST_SECONDS / 60:.0f} minutes. If that is a "
            "mistake, add this node to the roster, sign it, and give it to any member"
        )
        return [Note(Level.WARNING, text)]

    def forget(self, peer: bytes) -> None:
        """*peer* is no member any more."""
        for key in [key for key in self._troubles if key[0] == peer]:
            del self._troubles[key]
        for purpose in Purpose:
            self._addresses.pop((peer, purpose), None)

    def survey(self, roster: Roster, own: bytes, dialer: Dialer) -> list[PeerState]:
        """How it stands with every member of *roster* but *own*, by rank."""
        return [
            PeerState(
                rank,
                member.name,
                tuple(member.addresses),
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
