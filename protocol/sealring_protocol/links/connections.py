"""The link manager's record of each connection, and which links a rank accepts."""

from __future__ import annotations

import attrs

from sealring_protocol.errors import CloseCode
from sealring_protocol.link import Link
from sealring_protocol.links.dialer import Key
from sealring_protocol.security.roles import Purpose, may_open


@attrs.define(eq=False)
class Connection:
    """One connection, by its *number*, from its start on, with its link."""

    number: int
    source: str  # where an incoming connection came from
    key: Key | None  # known for this node's dials, else once the peer is authenticated
    link: Link | None = None  # None until a dial is connected
    up: bool = False
    lent: bool = False  # a tunnel that is up: its owner drives the link
    address: str = ""  # the address dialed

    @property
    def driven(self) -> Link | None:
        """The link, if the link manager drives it."""
        return None if self.lent else self.link

    @property
    def dialed(self) -> bool:
        """True if this node dialed it."""
        return not self.source


def why_not(
    purpose: Purpose, peer: int, own: int, world: int, *, engine: bool
) -> tuple[CloseCode, str] | None:
    """Why rank *own* of *world* refuses a link with *purpose* from rank *peer*; None to accept it.
    Step links need an *engine*."""
    if not may_open(purpose, peer, own, world):
        return CloseCode.ROLE_VIOLATION, f"rank {peer} opens no {purpose.name} link to rank {own}"
    if purpose is Purpose.STEP and not engine:
        return CloseCode.NOT_READY, "the engine is not up yet"
    return None
