"""Deadlines for those who owe answers, from what they have been seen to need.

A daemon answers PING whatever its engine does, so a hung engine, or a rank that swallows steps,
shows only in the steps themselves. The deadline of a step is a multiple of the slowest so far, and
generous until the first are known: a first step compiles and pages in. Loading has a deadline of
its own, which whoever orders it gives.
"""

from __future__ import annotations

from typing import Final

import attrs

_WARM_UP: Final = 4


@attrs.frozen
class DeadlineRule:
    """Seconds: *first* while little is known, then *factor* times the slowest answer, but no
    less than *least*."""

    first: float
    least: float
    factor: float


ENGINE: Final = DeadlineRule(120.0, 15.0, 20.0)
"""For the engine of the same node."""

ROUND: Final = DeadlineRule(180.0, 30.0, 40.0)
"""For a step on its way round the ring: longer, so that the rank at fault acts first."""


class AnswerDeadline:
    """Tells when somebody who owes answers is overdue. Times are monotonic seconds."""

    __slots__ = ("_order_ends", "_owed", "_rule", "_seen", "_since", "_slowest")

    def __init__(self, patience: DeadlineRule) -> None:
        self._rule = patience
        self._owed = 0
        self._since = 0.0
        self._order_ends: float | None = None
        self._slowest = 0.0
        self._seen = 0

    def owe(self, now: float) -> None:
        """One more answer is owed."""
        if not self._owed:
            self._since = now
        self._owed += 1

    def order(self, now: float, seconds: float | None) -> None:
        """One answer is owed instead of all before: to an order that may take *seconds*, or, if
        None, no longer than a first step."""
        self._owed = 1
        self._order_ends = now + (self._rule.first if seconds is None else seconds)

    def answered(self, now: float) -> None:
        """One answer came. More than are owed change nothing."""
        if not self._owed:
            return
        if self._order_ends is None:
            self._slowest = max(self._slowest, now - self._since)
            self._seen += 1
        self._order_ends = None
        self._owed -= 1
        self._since = now

    def clear(self) -> None:
        """Nothing is owed any more."""
        self._owed = 0
        self._order_ends = None

    @property
    def deadline(self) -> float | None:
        """When the next answer is overdue; None while none is owed."""
        if not self._owed:
            return None
        if self._order_ends is not None:
            return self._order_ends
        if self._seen < _WARM_UP:
            return self._since + self._rule.first
        return self._since + max(self._rule.least, self._rule.factor * self._slowest)
