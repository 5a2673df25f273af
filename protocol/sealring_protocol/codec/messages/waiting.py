"""WAITING: why the head has begun no epoch, for people at the other machines."""

from __future__ import annotations

import enum
from typing import ClassVar

import attrs

from sealring_protocol.codec.codes import MessageCode, rule


class Hindrance(enum.IntEnum):
    """What keeps a head from beginning an epoch."""

    ABSENT = 1
    REFUSED = 2
    MODEL = 3
    ENGINE = 4
    PLAN = 5
    FAILED = 6
    COLLECTIVE = 7
    LINK = 8
    UNSERVABLE = 9


@attrs.frozen
class Reason:
    """One reason why the head begins no epoch, in its words (*text*). It concerns *rank*, or no
    rank in particular (`NO_RANK`)."""

    hindrance: Hindrance
    rank: int
    text: str

    def __attrs_post_init__(self) -> None:
        rule(bool(self.text), "a reason has words")


@attrs.frozen
class Waiting:
    """The head has begun no epoch, for these *reasons*. Without any, it withdraws the earlier ones.

    It is for people only: a rank shows it and does not act on it.
    """

    CODE: ClassVar = MessageCode.WAITING
    reasons: tuple[Reason, ...] = ()
