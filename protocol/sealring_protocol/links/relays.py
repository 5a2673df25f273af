"""The API links of one node: on which a member passes its clients' requests on to the head.

A rank wants such a link with the head from when it is linked with it, if its caller has clients.
The head admits it (`LinkManager`), and answers. Each link has a `Relay`, whose streams the caller
has. If the link is lost, all of its streams end, and the caller hears of each.
"""

from __future__ import annotations

from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.events import NodeEvent, RelayDown, RelayEventCame, RelayUp
from sealring_protocol.links.link_manager import (
    CameUp,
    LinkDown,
    LinkManager,
    MessageReceived,
    OfLink,
)
from sealring_protocol.relay import Relay
from sealring_protocol.security.roles import Purpose


class RelayLinks:
    """The API links among *links*."""

    def __init__(self, links: LinkManager) -> None:
        self._links = links
        self._relays: dict[int, Relay] = {}

    def relay(self, rank: int) -> Relay | None:
        """This node's end of the API link with *rank*; None while there is none."""
        return self._relays.get(rank)

    def control_up(self, rank: int, now: float) -> None:
        """The control link with *rank* is up."""
        if rank == 0 and self._links.may_ask(self._links.rank):
            self._links.want(0, Purpose.API, now)

    def control_down(self, rank: int) -> None:
        """The control link with *rank* is gone. An API link that stands goes on, and is not dialed
        again before the control link is back."""
        if rank == 0:
            self._links.unwant(Purpose.API)

    def hear(self, news: OfLink, now: float) -> list[NodeEvent]:
        """Act on *news* of an API link; what the caller is to know of it."""
        match news:
            case CameUp(rank, event=event):
                self._relays[rank] = Relay(asks=self._links.rank > 0)
                return [event, RelayUp(rank)]
            case LinkDown(rank, reason=reason):
                return self._end(rank, reason)
            case MessageReceived(rank, purpose, message) if relay := self._relays.get(rank):
                try:
                    events = relay.receive(message)
                except RemoteProtocolError as error:
                    self._links.fail(rank, purpose, error, now)
                    return []
                self.flush(rank, now)
                return [RelayEventCame(rank, event) for event in events]
        return []

    def flush(self, rank: int, now: float) -> None:
        """Send what the relay of *rank* has to send."""
        if relay := self._relays.get(rank):
            for message in relay.messages():
                self._links.send(rank, Purpose.API, message, now)

    def end_all(self, reason: str) -> list[NodeEvent]:
        """Every API link is gone, for *reason*."""
        return [event for rank in list(self._relays) for event in self._end(rank, reason)]

    def _end(self, rank: int, reason: str) -> list[NodeEvent]:
        relay = self._relays.pop(rank, None)
        if relay is None:
            return []
        ends = [RelayEventCame(rank, event) for event in relay.end(reason)]
        return [*ends, RelayDown(rank, reason)]
