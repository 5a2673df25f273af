"""What the link manager reports to its node: the outputs of `link_manager.LinkManager.take`."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sealring_protocol.codec.local_messages import HopKey
from sealring_protocol.codec.messages import Message
from sealring_protocol.control.effects import Level
from sealring_protocol.events import LinkUp, RosterInForce
from sealring_protocol.link import Hop
from sealring_protocol.security.roles import Purpose


@attrs.frozen
class OfLink:
    """What concerns the link with *purpose* to *rank*, which is or was up."""

    rank: int
    purpose: Purpose


@attrs.frozen
class CameUp(OfLink):
    """The link with *purpose* to *rank* is up, as *event* says. *hop* has its activation
    secrets."""

    event: LinkUp
    hop: Hop


@attrs.frozen
class LinkDown(OfLink):
    """The link with *purpose* to *rank* is gone, for *reason*. *level* is how to log that: INFO if
    the peer has taken a newer roster, and DEBUG if it is as the last time."""

    reason: str
    level: Level = Level.WARNING


@attrs.frozen
class MessageReceived(OfLink):
    """*rank* sent *message* on the link with *purpose*."""

    message: Message


@attrs.frozen
class Unreachable:
    """A wanted link with *purpose* to *rank* could not be dialed, for the reason *why*."""

    rank: int
    purpose: Purpose
    why: str


News = CameUp | LinkDown | MessageReceived | RosterInForce | Unreachable


def hop_keys(up: CameUp, own: int, world: int, cluster: bytes) -> Iterator[HopKey]:
    """The activation secrets of the step link *up*, for the engine of rank *own* of *world*. Keep
    no other copy."""
    if up.rank == (own + 1) % world:
        yield HopKey(True, up.hop.suite, cluster, up.hop.send)
    if (up.rank + 1) % world == own:
        yield HopKey(False, up.hop.suite, cluster, up.hop.receive)
