"""Deadlines for those who owe answers, from what they have been seen to need.

A daemon answers PING whatever its engine does, so a hung engine, or a rank that swallows steps,
shows only in the steps themselves. The deadline of a step is a multiple of the slowest so far, and
generous until the first are known: a first step compiles and pages in. Loading has a deadline of
its own, which whoever orders it gives.

Deadlines are in an engine's own time: while it starves (`starvation`) they are put off, up to
`LONGEST_EXTENSION` for each answer, so that nobody waits for ever.
"""

from __future__ import annotations

from typing import Final

import attrs

_WARM_UP: Final = 4

LONGEST_EXTENSION: Final = 600.0
"""Seconds that the deadline of one answer is put off at most: as long as loading may take. So a
rank that only claims to starve gains no more than that."""


def earliest(*times: float | None) -> float | None:
    """The first of *times*; None if none is given. Asked several times for each token: no more than
    one call."""
    first: float | None = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first


class Extension:
    """By how much the deadline of one answer is put off."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds to add to the deadline; 0 again when another answer is waited for."""

    def add(self, seconds: float, since: float, now: float) -> None:
        """Whoever owes the answer, which is waited for since *since*, has starved for *seconds*
        more: not for longer than it has been waited for."""
        most = min(LONGEST_EXTENSION, now - since) - self.seconds
        self.seconds += max(0.0, min(seconds, most))

    @property
    def told(self) -> str:
        """What to add to the reason, where an answer has not come all the same."""
        return f", nor within {self.seconds:.0f} s more, as it starved" if self.seconds >= 1 else ""


class Deadline:
    """One deadline, for an answer that may take a known time. Times are monotonic seconds."""

    __slots__ = ("_ends", "_extension", "_since")

    def __init__(self) -> None:
        self._extension = Extension()
        self._since = 0.0
        self._ends: float | None = None

    def set(self, now: float, seconds: float) -> None:
        """The answer may take *seconds* from now on."""
        self._since, self._ends = now, now + seconds
        self._extension.seconds = 0.0

    def clear(self) -> None:
        """No answer is waited for."""
        self._ends = None

    def starved(self, seconds: float, now: float) -> None:
        """Whoever owes the answer has starved for *seconds* more."""
        if self._ends is not None:
            self._extension.add(seconds, self._since, now)

    @property
    def extended(self) -> str:
        """What to add to the reason, if the answer has not come."""
        return self._extension.told

    @property
    def at(self) -> float | None:
        """When the answer is overdue; None while none is waited for."""
        return None if self._ends is None else self._ends + self._extension.seconds


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
    """Tells when somebody who owes answers is overdue. Times are monotonic seconds.

    `tensor.StepDeadline` is another class, because it asks another question. This one is generous:
    whoever is late holds up only those who wait for it, so one number, the slowest answer, will
    do. In a collective a rank that is frozen hangs every other, so there the deadline is short, and
    has to know what makes a step slow: its kind, its tokens, and whether a device compiles for it.
    They share `Extension`, the time by which starvation puts an answer off.
    """

    __slots__ = ("_extension", "_order_ends", "_owed", "_rule", "_seen", "_since", "_slowest")

    def __init__(self, patience: DeadlineRule) -> None:
        self._rule = patience
        self._extension = Extension()
        self._owed = 0
        self._since = 0.0
        self._order_ends: float | None = None
        self._slowest = 0.0
        self._seen = 0

    def owe(self, now: float) -> None:
        """One more answer is owed."""
        if not self._owed:
            self._begin(now)
        self._owed += 1

    def _begin(self, now: float) -> None:
        """Wait for the next answer from now on."""
        self._since = now
        self._extension.seconds = 0.0

    def order(self, now: float, seconds: float | None) -> None:
        """One answer is owed instead of all before: to an order that may take *seconds*, or, if
        None, no longer than a first step."""
        self._owed = 1
        self._begin(now)
        self._order_ends = now + (self._rule.first if seconds is None else seconds)

    def answered(self, now: float) -> None:
        """One answer came. More than are owed change nothing."""
        if not self._owed:
            return
        if self._order_ends is None:
            taken = now - self._since - self._extension.seconds
            self._slowest = max(self._slowest, taken)
            self._seen += 1
        self._order_ends = None
        self._owed -= 1
        self._begin(now)

    def starved(self, seconds: float, now: float) -> None:
        """Whoever owes an answer has starved for *seconds* more."""
        if self._owed:
            self._extension.add(seconds, self._since, now)

    @property
    def extended(self) -> str:
        """What to say of an answer that did not come, if its deadline was put off."""
        return self._extension.told

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
            return self._order_ends + self._extension.seconds
        patience = self._rule.first
        if self._seen >= _WARM_UP:
            patience = max(self._rule.least, self._rule.factor * self._slowest)
        return self._since + patience + self._extension.seconds
