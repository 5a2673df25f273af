"""Logs why a node does not serve: a new obstacle at once, a lasting one each minute.

An obstacle reported by the head is logged only when it is new, because the head's own log repeats
it each minute. What belongs to every start (reading the model, loading layers) is logged only if it
lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from sealring_protocol.control.effects import Level, Note
from sealring_protocol.diagnosis.causes import Cause
from sealring_protocol.diagnosis.why import Obstacle

TELL_SECONDS: Final = 60.0
"""Seconds between two lines about the same obstacle."""

FETCHING_SECONDS: Final = 10.0
"""Seconds between two lines about ranks that fetch: people want to see how far they are."""

PASSING_SECONDS: Final = 10.0
"""Seconds that a normal stage of a start may last before it is logged."""

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at the obstacles while the node does not serve."""

MAX_TOLD: Final = 64
"""Obstacles remembered. Memory: about 500 bytes each, 32 KiB."""

_PASSING: Final = {
    Cause.DIALING,
    Cause.TOKENIZER_LOADING,
    Cause.ENGINE_STARTING,
    Cause.PEER_ENGINE,
    Cause.LOADING,
    Cause.COLLECTIVE,
    Cause.BEGINNING,
    Cause.NO_EPOCH,
}

_TOLD_ONCE: Final = {Cause.NOT_A_MEMBER, Cause.STARVED}
"""Causes that are logged where they are detected, and not again here."""


@attrs.frozen
class _Told:
    """When the obstacle is logged next, and whether it has been logged before."""

    due: float
    before: bool = False


class ObstacleLog:
    """The obstacles logged so far. Times are monotonic seconds."""

    __slots__ = ("_told", "due")

    def __init__(self) -> None:
        self._told: dict[tuple[Cause, int | None, str], _Told] = {}
        self.due: float | None = None
        """When to call `look`; None while the node serves."""

    def look(self, found: Sequence[Obstacle], now: float) -> list[Note]:
        """The notes to log about the obstacles *found*."""
        self.due = None
        notes = []
        for obstacle in found:
            if obstacle.cause in _TOLD_ONCE:
                continue
            key = (obstacle.cause, obstacle.rank, obstacle.constant)
            wait = PASSING_SECONDS if obstacle.cause in _PASSING else 0.0
            told = self._told.pop(key, _Told(now + wait))
            if now >= told.due:
                advice = f". {obstacle.advice}" if obstacle.advice and not told.before else ""
                text = f"not serving: {obstacle.text(now)}{advice}"
                kind = f"{obstacle.cause.value} {obstacle.rank}"
                if obstacle.from_head:
                    kind = "the head's reasons"  # one kind for all: the head chooses these texts
                notes.append(Note(Level.INFO, text, kind))
                fetching = obstacle.cause is Cause.FETCHING
                told = _Told(now + (FETCHING_SECONDS if fetching else TELL_SECONDS), True)
            elif told.before and obstacle.from_head:  # the head's log has it each minute
                told = _Told(now + TELL_SECONDS, True)
            self._told[key] = told
        while len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
        return notes

    def turn(self, now: float, *, serving: bool) -> None:
        """Say whether the node is *serving*. If so, every obstacle is forgotten, and a later one is
        new."""
        if not serving:
            if self.due is None:
                self.due = now + LOOK_SECONDS
        elif self.due is not None or self._told:
            self.due = None
            self._told.clear()
