"""Which messages each sender may send. A valid key alone permits nothing.

A link has a purpose, and each direction of it has a role between two ranks. The table `ALLOWED` has
the messages that may travel; any other kills the link. It depends only on the two ranks: a ring may
leave ranks out, so any rank may be the next of any lower one, and any the last. Whether a message
fits the ring and the moment is for the receiving machine to decide.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from sealring_protocol.codec.election_messages import (
    Candidacy,
    NoVote,
    Renew,
    Renewed,
    Vote,
)
from sealring_protocol.codec.messages import (
    Addresses,
    Bootstrap,
    CannotServe,
    Checked,
    Close,
    Get,
    Hello,
    Piece,
    Ping,
    Pong,
    Prepared,
    Ready,
    Row,
    Step,
    StepDone,
    Tunnel,
    Waiting,
)
from sealring_protocol.codec.relay_messages import Ask, BodyPart, Credit, Drop, Reply


class Purpose(enum.IntEnum):
    """The purpose of a link, as FIN carries it (u8)."""

    CONTROL = 1
    """The star: the head and each other rank; and any two while one of them asks for votes."""
    STEP = 2
    """The chain: each rank of the ring and the next, and the last and the head."""
    TUNNEL = 3
    """A collective's connections, between neighbours in the ring."""
    WEIGHTS = 4
    """Files of the model, between any two members: the end that dials asks."""
    API = 5
    """Requests of clients, from another rank to the head."""


@enum.unique
class Role(enum.Enum):
    """The sender's position, as seen by the receiver."""

    HEAD_TO_RANK = "the head, to a rank"
    RANK_TO_HEAD = "a rank, to the head"
    RANK_TO_RANK = "a rank, to another, and neither is the head"
    TO_NEXT = "a rank, to the next of a ring"
    LAST_TO_HEAD = "the last rank of a ring, to the head"
    NEIGHBOUR = "a rank, to one before or after it in a ring"
    PEER = "any other member"


_ALIVE: Final[frozenset[type[Any]]] = frozenset({Ping, Pong, Close})
_ELECTS: Final[frozenset[type[Any]]] = _ALIVE | {Candidacy, Vote, NoVote}
_OF_STREAMS: Final[frozenset[type[Any]]] = _ALIVE | {BodyPart, Credit, Drop}

ALLOWED: Final[dict[tuple[Purpose, Role], frozenset[type[Any]]]] = {
    (Purpose.CONTROL, Role.HEAD_TO_RANK): _ELECTS
    | {Bootstrap, Row, Step, Waiting, Addresses, Renew},
    (Purpose.CONTROL, Role.RANK_TO_HEAD): _ELECTS
    | {Hello, Prepared, Ready, CannotServe, StepDone, Checked, Addresses, Renewed},
    (Purpose.CONTROL, Role.RANK_TO_RANK): _ELECTS,
    (Purpose.CONTROL, Role.PEER): _ALIVE,
    (Purpose.STEP, Role.TO_NEXT): _ALIVE | {Step},
    (Purpose.STEP, Role.LAST_TO_HEAD): _ALIVE | {StepDone},
    (Purpose.STEP, Role.PEER): _ALIVE,
    (Purpose.TUNNEL, Role.NEIGHBOUR): _ALIVE | {Tunnel},
    (Purpose.TUNNEL, Role.PEER): _ALIVE,
    (Purpose.WEIGHTS, Role.PEER): _ALIVE | {Get, Piece},
    (Purpose.API, Role.HEAD_TO_RANK): _OF_STREAMS | {Reply},
    (Purpose.API, Role.RANK_TO_HEAD): _OF_STREAMS | {Ask},
    (Purpose.API, Role.PEER): _ALIVE,
}
"""The messages that each role may send on a link of each purpose. ACCEPT is in no entry, because
only a link's first frame is ACCEPT."""


def role(purpose: Purpose, sender: int, receiver: int, world: int) -> Role:
    """The role of rank *sender* towards rank *receiver* on a link of *purpose*, where the roster
    has *world* members."""
    if sender == receiver or not (0 <= sender < world and 0 <= receiver < world):
        return Role.PEER
    match purpose:
        case Purpose.CONTROL | Purpose.API if sender == 0:
            return Role.HEAD_TO_RANK
        case Purpose.CONTROL | Purpose.API if receiver == 0:
            return Role.RANK_TO_HEAD
        case Purpose.CONTROL:
            return Role.RANK_TO_RANK
        case Purpose.STEP if sender < receiver:
            return Role.TO_NEXT
        case Purpose.STEP if receiver == 0:
            return Role.LAST_TO_HEAD
        case Purpose.TUNNEL:
            return Role.NEIGHBOUR
    return Role.PEER


def allowed(purpose: Purpose, sender: int, receiver: int, world: int) -> frozenset[type[Any]]:
    """The classes of message that rank *sender* may send to rank *receiver*."""
    return ALLOWED[purpose, role(purpose, sender, receiver, world)]
