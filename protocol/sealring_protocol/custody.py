"""Which roster is in force on a node, and how a newer one replaces it: stored first, never back.

A peer may bring a roster that was newer than the node's when its handshake began. By the time it is
here another may be in force already, so it is compared again; one is stored at a time, and what has
been stored is in force even if its connection is gone, for the file must not be ahead of the node.
"""

from __future__ import annotations

import enum

import attrs

from sealring_protocol.security.handshake import HandshakeConfig
from sealring_protocol.security.roster import SignedRoster


class Arrival(enum.Enum):
    """What a roster that came is."""

    KNOWN = "known"
    STALE = "stale"
    TO_STORE = "to store"


class Custody:
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
