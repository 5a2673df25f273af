"""Which roster is in force on a node, and how a newer one replaces it: stored first, never back.

A peer may bring a roster that was newer than the node's when its handshake began. By the time it is
here another may be in force already, so it is compared again; one is stored at a time, and what has
been stored is in force even if its connection is gone, for the file must not be ahead of the node.
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


class Arrival(enum.Enum):
    """What a roster that came is."""

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
        """*roster* is the one."""
        return roster.roster.digest == self.config.roster.roster.digest

    def came(self, number: int, roster: SignedRoster) -> Arrival:
        """Connection *number* brought *roster*. STALE: it is not newer any more, or another is
        being stored; let the peer dial again."""
        if self.is_in_force(roster):
            return Arrival.KNOWN
        if roster.roster.serial <= self.config.roster.roster.serial or self._storing is not None:
            return Arrival.STALE
        self._storing = (number, roster)
        return Arrival.TO_STORE

    def brought(self, data: bytes, wall_ms: int) -> bytes:
        """The owner gives the signed roster *data*, instead of a peer: as connection 0, which never
        is. What is to be stored.

        Raises `LocalProtocolError` with the reason if it may not replace the one in force.
        """
        config = self.config
        try:
            roster = newer(config.coordinator, config.roster.roster, data, wall_ms, config.node_id)
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
        if self.came(0, roster) is not Arrival.TO_STORE:
            raise LocalProtocolError("another roster is being stored; try again")
        return roster.encode()

    def stored(self, number: int) -> bool:
        """What connection *number* brought is stored, and in force. False if nothing was asked."""
        if self._storing is None or self._storing[0] != number:
            return False
        self.config = attrs.evolve(self.config, roster=self._storing[1])
        self._storing = None
        return True

    def not_stored(self, number: int) -> bool:
        """It could not be stored, and is not taken. False if nothing was asked."""
        if self._storing is None or self._storing[0] != number:
            return False
        self._storing = None
        return True
