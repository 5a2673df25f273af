"""The links on which other members ask this node for files of its model.

The end that dials a WEIGHTS link asks, and the dialed end answers in the order of the questions.
This node's own questions do not pass here: whoever fetches dials a link of its own (`link.Link`).

The node only counts what is unanswered. Its caller reads the files, and answers a GET when the
answer before it has left, so that a member that does not read costs a few pieces and nothing else.
"""

from __future__ import annotations

import attrs

from sealring_protocol.codec.messages import Get, Piece
from sealring_protocol.control.effects import Effect, Send
from sealring_protocol.errors import LimitExceeded, RemoteProtocolError, RoleViolation
from sealring_protocol.events import NodeEvent, WeightsAsked
from sealring_protocol.limits import MAX_GETS
from sealring_protocol.links import news
from sealring_protocol.links.link_manager import LinkManager
from sealring_protocol.security.roles import Purpose


@attrs.define
class _Asking:
    number: int
    unanswered: int = 0


class WeightRequests:
    """The WEIGHTS links among *links*, by rank, and how many questions each has unanswered."""

    def __init__(self, links: LinkManager) -> None:
        self._links = links
        self._asking: dict[int, _Asking] = {}

    def hear(self, told: news.OfLink, now: float) -> list[NodeEvent]:
        """Act on what is *told* of a WEIGHTS link; what the caller is to know of it."""
        match told:
            case news.CameUp(rank, event=event):
                self._asking[rank] = _Asking(event.link)
                return [event]
            case news.LinkDown(rank):
                self._asking.pop(rank, None)
            case news.MessageReceived(rank, purpose, message):
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
