"""The roster in force on a node, and its replacement by a newer one, which is stored first.

A peer may bring a roster that was newer than the node's when its handshake began. Another may be in
force by the time it arrives, so it is compared again. One roster is stored at a time. A stored
roster takes effect even if its connection is gone, so that the file is never ahead of the node.
"""

from __future__ import annotations

import enum

import attrs

from sealring_protocol.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RosterConflict,
    RosterExpired,
)
from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.roster import SignedRoster, newer


class HeadFirst(LocalProtocolError):
    """The roster makes another member the head, and the present head is to have it first."""


class Arrival(enum.Enum):
    """How a roster that arrived compares with the one in force."""

    KNOWN = "known"
    STALE = "stale"
    TO_STORE = "to store"


class CurrentRoster:
    """The roster in force, inside the *config* of every handshake that begins now."""

    __slots__ = ("_storing", "config")

    def __init__(self, config: HandshakeConfig) -> None:
        self.config = config
        self._storing: tuple[int, SignedRoster] | None = None

    def is_in_force(self, roster: SignedRoster) -> bool:
        """True if *roster* is the one in force."""
        return roster.roster.digest == self.config.roster.roster.digest

    def came(self, number: int, roster: SignedRoster) -> Arrival:
        """Connection *number* brought *roster*. STALE means that it is no longer newer, or that
        another is being stored; the peer may dial again."""
        if self.is_in_force(roster):
            return Arrival.KNOWN
        if roster.roster.serial <= self.config.roster.roster.serial or self._storing is not None:
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
        except RosterConflict:
            raise LocalProtocolError(
                "it is another roster with the serial of the one in force; sign one with a greater"
            ) from None
        except RemoteProtocolError as error:
            elsewhere = "this node; a member that it holds can take it"
            reason = str(error).replace("both ends of this link", elsewhere)
            raise LocalProtocolError(reason) from None

    def brought(self, data: bytes, wall_ms: int) -> bytes:
        """The owner, not a peer, brings the signed roster *data*. It counts as connection 0, which
        no peer has. Returns the bytes to store. Raises as `checked`, and `LocalProtocolError` if
        another is being stored."""
        roster = self.checked(data, wall_ms)
        if self.came(0, roster) is not Arrival.TO_STORE:
            raise LocalProtocolError("another roster is being stored; try again")
        return roster.encode()

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
