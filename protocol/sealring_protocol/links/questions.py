"""The links on which members ask each other something: for files of the model, and for answers to
their clients."""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Get, Piece
from sealring_protocol.control.effects import Effect, Send
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError, RoleViolation
from sealring_protocol.events import NodeEvent, RelayDown, RelayEventCame, RelayUp, WeightsAsked
from sealring_protocol.limits import MAX_GETS
from sealring_protocol.links.link_manager import (
    CameUp,
    LinkDown,
    LinkManager,
    MessageReceived,
    OfLink,
)
from sealring_protocol.relay import Relay
from sealring_protocol.security.roles import Purpose


@attrs.define
class _Asking:
    number: int
    unanswered: int = 0


class WeightRequests:
    """The WEIGHTS links among *links*, on which other members ask this node for files of its model.

    The end that dials such a link asks, and the dialed end answers in the order of the questions.
    This node's own questions do not pass here: whoever fetches dials a link of its own (`Link`).

    The node only counts what is unanswered. Its caller reads the files, and answers a GET when the
    answer before it has left, so that a member that does not read costs a few pieces and nothing
    else.
    """

    def __init__(self, links: LinkManager) -> None:
        self._links = links
        self._asking: dict[int, _Asking] = {}

    def hear(self, news: OfLink, now: float) -> list[NodeEvent]:
        """Act on *news* of a WEIGHTS link; what the caller is to know of it."""
        match news:
            case CameUp(rank, event=event):
                self._asking[rank] = _Asking(event.link)
                return [event]
            case LinkDown(rank):
                self._asking.pop(rank, None)
            case MessageReceived(rank, purpose, message):
                try:
                    return [self._asked(rank, message)]
                except RemoteProtocolError as error:
                    self._links.fail(rank, purpose, error, now)
        return []

    def _asked(self, rank: int, message: object) -> WeightsAsked:
        if not isinstance(message, Get):
            raise RoleViolation("only the end that was dialed answers on a link for weights")
        asking = self._asking[rank]
        if asking.unanswered == MAX_GETS:
            raise LimitExceeded(f"more than {MAX_GETS} GETs without an answer")
        asking.unanswered += 1
        return WeightsAsked(rank, asking.number, message)

    def answer(self, number: int, piece: Piece) -> list[Effect]:
        """Answer the oldest question on connection *number* with *piece*; nothing is sent if that
        is gone."""
        for rank, asking in self._asking.items():
            if asking.number == number and asking.unanswered:
                asking.unanswered -= 1
                return [Send(rank, Purpose.WEIGHTS, piece)]
        return []


class RelayLinks:
    """The API links among *links*, on which a member passes its clients' requests on to the head.

    There is one with each linked rank that has clients, as long as neither end refuses it. Its
    `Relay` has the streams, which are the caller's. If the link is lost, all of its streams end,
    and the caller hears of each.
    """

    def __init__(self, links: LinkManager) -> None:
        self._links = links
        self._relays: dict[int, Relay] = {}

    def relay(self, rank: int) -> Relay | None:
        """This node's end of the API link with *rank*; None while there is none."""
        return self._relays.get(rank)

    def control_up(self, rank: int, now: float) -> None:
        """The control link with *rank* is up. Which end asks follows from the ranks, so either may
        dial; the head dials a moment later."""
        if not self._links.no_relay(rank):
            self._links.want(rank, Purpose.API, now, yields=self._links.rank == 0)

    def control_down(self, rank: int) -> None:
        """The control link with *rank* is gone. An API link that stands goes on, and is not dialed
        again before the control link is back."""
        self._links.unwant(Purpose.API, rank=rank)

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
