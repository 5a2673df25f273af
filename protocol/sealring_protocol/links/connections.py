"""What the switchboard keeps of each connection, and the news that it has for its node."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Message
from sealring_protocol.errors import CloseCode
from sealring_protocol.link import Link
from sealring_protocol.link_events import Hop
from sealring_protocol.links.dialer import Key
from sealring_protocol.security.roles import Purpose, may_open
from sealring_protocol.security.roster import Roster


@attrs.frozen
class Up:
    """The *link* with *purpose* to *rank* is up, on connection *number*; *hop* has its activation
    secrets."""

    rank: int
    purpose: Purpose
    hop: Hop
    number: int
    link: Link


@attrs.frozen
class Down:
    """It is gone."""

    rank: int
    purpose: Purpose
    reason: str


@attrs.frozen
class Incoming:
    """*rank* sent *message* on the link with *purpose*."""

    rank: int
    purpose: Purpose
    message: Message


@attrs.frozen
class Adopted:
    """A newer roster is in force; *changed* if its ring is another: members, ranks or policy."""

    changed: bool

    @classmethod
    def after(cls, before: Roster, roster: Roster) -> Adopted:
        """The news that *roster* has replaced *before*."""

        def decides(of: Roster) -> tuple[bool, bool, list[bytes]]:
            return of.inner_seal, of.tensor_parallelism, [member.id for member in of.members]

        return cls(decides(before) != decides(roster))


@attrs.frozen
class Unreached:
    """A wanted link with *purpose* to *rank* cannot be dialed: *why*."""

    rank: int
    purpose: Purpose
    why: str


News = Up | Down | Incoming | Adopted | Unreached


@attrs.define(eq=False)
class Connection:
    """One connection, by its *number*, on its way to a link or past it."""

    number: int
    source: str  # where an incoming connection came from
    key: Key | None  # of an own dial from the start, else once the peer is proved
    link: Link | None = None  # None until a dial is connected
    up: bool = False
    address: str = ""  # that was dialed

    @property
    def dialed(self) -> bool:
        """This node opened it."""
        return not self.source


def why_not(
    purpose: Purpose, peer: int, own: int, world: int, *, engine: bool
) -> tuple[CloseCode, str] | None:
    """Why rank *own* of *world* takes no link with *purpose* from rank *peer*; None if it does.
    Step links need an *engine*."""
    if not may_open(purpose, peer, own, world):
        return CloseCode.ROLE_VIOLATION, f"rank {peer} opens no {purpose.name} link to rank {own}"
    if purpose is Purpose.STEP and not engine:
        return CloseCode.NOT_READY, "the engine is not up yet"
    return None
