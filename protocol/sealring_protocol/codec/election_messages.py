"""The messages of elections, which members exchange on their CONTROL links (`control.election`).

Members are named by their index in the order that the coordinator signed, which no election
changes.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import attrs

from sealring_protocol.codec.codes import MessageCode


class NoVoteReason(enum.IntEnum):
    """Why a member does not vote as it is asked."""

    HEAD_SEEN = 1
    """It is head, or sees its head, or did a moment ago."""
    VOTED = 2
    """It has voted otherwise in this term, or in a later one."""
    STALE = 3
    """The term is over, or too far ahead."""
    NO_HEAD = 4
    """The roster does not let that member be head, or this one propose it."""
    ASKING = 5
    """It asks for votes itself, and is before the other in the order of heads."""
    BUSY = 6
    """It stores another vote."""
    TOO_OFTEN = 7
    """It has voted for this candidate again and again."""


@attrs.frozen
class Candidacy:
    """Vote for *head* in *term*. The sender is that member, or the present head."""

    CODE: ClassVar = MessageCode.CANDIDACY
    term: int
    head: int


@attrs.frozen
class Vote:
    """The vote for *head* in *term*, with its *signature* (64 bytes), which the receiver
    verifies."""

    CODE: ClassVar = MessageCode.VOTE
    term: int
    head: int
    signature: bytes


@attrs.frozen
class NoVote:
    """No vote for *head* in *term*. *latest* is the latest term that the voter knows."""

    CODE: ClassVar = MessageCode.NO_VOTE
    term: int
    head: int
    latest: int
    reason: NoVoteReason


@attrs.frozen
class Renew:
    """The head of *term* asks for its lease, for the *count*th time."""

    CODE: ClassVar = MessageCode.RENEW
    term: int
    count: int


@attrs.frozen
class Renewed:
    """The answer to `Renew` number *count*. *promised* is 0, or the later term in which the sender
    has voted: it then renews nothing."""

    CODE: ClassVar = MessageCode.RENEWED
    term: int
    count: int
    promised: int = 0


ElectionMessage = Candidacy | Vote | NoVote | Renew | Renewed
