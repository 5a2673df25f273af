"""Tells a node's log why it does not serve: what is new at once, what lasts once a minute.

What the head says is told when it is new alone, because the head's own log has it each minute.

What belongs to every start (an engine reads its model, layers are loaded) is no news before it has
lasted for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from sealring_protocol.control.effects import Level, Note
from sealring_protocol.diagnosis.causes import Cause
from sealring_protocol.diagnosis.why import Obstacle

TELL_SECONDS: Final = 60.0
"""How often the same thing is told again."""

PASSING_SECONDS: Final = 10.0
"""How long what belongs to every start lasts before it is told."""

LOOK_SECONDS: Final = 0.5
"""How often a node that does not serve looks at why."""

MAX_TOLD: Final = 64
"""Obstacles that are remembered. Memory: about 500 bytes each, 32 KiB."""

_PASSING: Final = {
    Cause.DIALING,
    Cause.ENGINE_STARTING,
    Cause.PEER_ENGINE,
    Cause.LOADING,
    Cause.COLLECTIVE,
    Cause.BEGINNING,
    Cause.NO_EPOCH,
}

_TOLD_ONCE: Final = {Cause.NOT_A_MEMBER, Cause.STARVED}
"""What whoever finds it out tells, and nobody repeats."""


@attrs.frozen
class _Told:
    """When it is told next, and whether it has been told."""

    due: float
    before: bool = False


class Teller:
    """What has been told. Times are monotonic seconds."""

    __slots__ = ("_told", "due")

    def __init__(self) -> None:
        self._told: dict[tuple[Cause, int | None, str], _Told] = {}
        self.due: float | None = None
        """When `look` wants to be called; None while the node serves."""

    def look(self, found: Sequence[Obstacle], now: float) -> list[Note]:
        """What to say of *found*."""
        self.due = None
        notes = []
        for obstacle in found:
            if obstacle.cause in _TOLD_ONCE:
                continue
            key = (obstacle.cause, obstacle.rank, obstacle.what.partition(";")[0])
            wait = PASSING_SECONDS if obstacle.cause in _PASSING else 0.0
            told = self._told.pop(key, _Told(now + wait))
            if now >= told.due:
                advice = f". {obstacle.advice}" if obstacle.advice and not told.before else ""
                text = f"not serving: {obstacle.text(now)}{advice}"
                kind = f"{obstacle.cause.value} {obstacle.rank}"
                if obstacle.from_head:
                    kind = "the head's reasons"  # one for all, for they are the head's to make
                notes.append(Note(Level.INFO, text, kind))
                told = _Told(now + TELL_SECONDS, True)
            elif told.before and obstacle.from_head:  # the head's log has it each minute
                told = _Told(now + TELL_SECONDS, True)
            self._told[key] = told
        while len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
        return notes

    def turn(self, now: float, *, serving: bool) -> None:
        """Whether the node is *serving* now: if so, nothing is in the way, and what comes next is
        news."""
        if not serving:
            if self.due is None:
                self.due = now + LOOK_SECONDS
        elif self.due is not None or self._told:
            self.due = None
            self._told.clear()
