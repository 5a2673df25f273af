"""The roster in force at a node, and how a newer one takes its place: it is stored first."""

from __future__ import annotations

import enum
from typing import Final

import attrs

from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError, RosterExpired
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.roster import Roster, SignedRoster, check_succession, newer


class Arrival(enum.Enum):
    """How a roster that arrived compares with the one in force."""

    KNOWN = "known"
    STALE = "stale"
    TO_STORE = "to store"


_FOR_OWNERS: Final = {
    "the peer holds another roster": "sign one with a greater serial: it is another roster",
    "both ends of this link": "this node; a member that it holds can take it",
}
"""Words about a roster that a peer brings, and those for the owner who brings it."""


def supersedes(given: Roster, current: Roster) -> bool:
    """True if *given* is newer than *current*."""
    return current.is_behind(given.serial, given.digest, given.mandate)


class CurrentRoster:
    """The roster in force, inside the *config* of every handshake that begins now, and its
    replacement by a newer one, which is stored first.

    A peer may bring a roster that was newer than the node's when its handshake began. Another may
    be in force by the time it arrives, so it is compared again. One roster is stored at a time. A
    stored roster takes effect even if its connection is gone, so that the file is never ahead of
    the node.
    """

    __slots__ = ("_storing", "config")

    def __init__(self, config: HandshakeConfig) -> None:
        self.config = config
        self._storing: tuple[int, SignedRoster] | None = None

    def is_in_force(self, roster: SignedRoster) -> bool:
        """True if *roster* is the one in force, with its mandate."""
        given, current = roster.roster, self.config.roster.roster
        return (given.digest, given.mandate) == (current.digest, current.mandate)

    def came(self, number: int, roster: SignedRoster) -> Arrival:
        """Connection *number* brought *roster*. STALE means that it is no longer newer, or that
        another is being stored; the peer may dial again."""
        if self.is_in_force(roster):
            return Arrival.KNOWN
        current = self.config.roster.roster
        if not supersedes(roster.roster, current) or self._storing is not None:
            return Arrival.STALE
        try:
            check_succession(current.appointment, roster.roster.appointment)
        except RemoteProtocolError:
            return Arrival.STALE
        self._storing = (number, roster)
        return Arrival.TO_STORE

    def checked(self, data: bytes, wall_ms: int) -> SignedRoster:
        """The signed roster *data*, which the owner brings. Raises `LocalProtocolError` with the
        reason if it may not replace the one in force."""
        config = self.config
        try:
            return newer(config.coordinator, config.roster.roster, data, wall_ms, config.node_id)
        except RosterExpired:
            raise LocalProtocolError("it has expired, by this machine's clock") from None
        except RemoteProtocolError as error:
            reason = str(error)
            for of_peer, of_owner in _FOR_OWNERS.items():
                reason = reason.replace(of_peer, of_owner)
            raise LocalProtocolError(reason) from None

    def brought(self, roster: SignedRoster) -> bytes:
        """The owner, not a peer, brings *roster*, which is `checked`. It counts as connection 0,
        which no peer has. Returns the bytes to store. Raises `LocalProtocolError` if another is
        being stored."""
        if self.came(0, roster) is not Arrival.TO_STORE:
            raise LocalProtocolError("another roster is being stored; try again")
        return roster.encode()

    def overtakes(self, elected: SignedRoster) -> bool:
        """True if the members have *elected* a head while a roster with a greater serial is being
        stored, which takes long where a head lets its requests finish first. The election is in
        force at once: it has no place on disk beside that one, and needs none."""
        given, current = elected.roster, self.config.roster.roster
        waits = self._storing is not None and self._storing[1].roster.serial > given.serial
        if not waits or not supersedes(given, current):
            return False
        self.config = attrs.evolve(self.config, roster=elected)
        return True

    def stored(self, number: int) -> bool:
        """Connection *number*'s roster is stored and takes effect. False if none was being stored
        for it."""
        if self._storing is None or self._storing[0] != number:
            return False
        self.config = attrs.evolve(self.config, roster=self._storing[1])
        self._storing = None
        return True

    def not_stored(self, number: int) -> bool:
        """Connection *number*'s roster could not be stored, and is dropped. False if none was being
        stored for it."""
        if self._storing is None or self._storing[0] != number:
            return False
        self._storing = None
        return True
