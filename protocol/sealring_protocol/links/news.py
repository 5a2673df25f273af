"""What the link manager reports to its node: the outputs of `link_manager.LinkManager.take`.

`LinkUp` and `RosterInForce` share their names with the `events` that the node then gives its
runtime. Each pair is the same event at two layers.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sealring_protocol.codec.local_messages import HopKey
from sealring_protocol.codec.messages import Message
from sealring_protocol.control.effects import Level
from sealring_protocol.link import Hop, Link
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster


@attrs.frozen
class OfLink:
    """What concerns the link with *purpose* to *rank*, which is or was up."""

    rank: int
    purpose: Purpose


@attrs.frozen
class LinkUp(OfLink):
    """The *link* with *purpose* to *rank* is up, on connection *number*; *hop* has its activation
    secrets."""

    hop: Hop
    number: int
    link: Link


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
class RosterInForce:
    """Another roster is in force; *changed* if members, ranks or policies differ."""

    changed: bool

    @classmethod
    def after(cls, before: Roster, roster: Roster) -> RosterInForce:
        """The news that *roster* has replaced *before*."""

        def decides(of: Roster) -> tuple[bool, bool, list[bytes]]:
            return of.inner_seal, of.tensor_parallelism, [member.id for member in of.members]

        return cls(decides(before) != decides(roster))


@attrs.frozen
class Unreachable:
    """A wanted link with *purpose* to *rank* could not be dialed, for the reason *why*."""

    rank: int
    purpose: Purpose
    why: str


News = LinkUp | LinkDown | MessageReceived | RosterInForce | Unreachable


def hop_keys(up: LinkUp, own: int, world: int, cluster: bytes) -> Iterator[HopKey]:
    """The activation secrets of the step link *up*, for the engine of rank *own* of *world*. Keep
    no other copy."""
    if up.rank == (own + 1) % world:
        yield HopKey(True, up.hop.suite, cluster, up.hop.send)
    if (up.rank + 1) % world == own:
        yield HopKey(False, up.hop.suite, cluster, up.hop.receive)
