"""Deadlines for answers, learnt from the times that earlier answers took.

A daemon answers PING even when its engine hangs, so a hung engine, or a rank that swallows steps,
shows only in the steps themselves. The deadline of a step is a multiple of the slowest step so far.
It is generous until the first steps are known, because a first step compiles and pages in. Loading
has its own deadline, set by the caller that orders it.

Deadlines exclude starvation (`Starvation`): while an engine starves, its deadline is extended, by
at most `LONGEST_EXTENSION` for each answer, so that no wait is endless.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

# ---------------------------------------------------------------------- starvation
# Whether an engine starves: it is ready to run, and its machine does not let it.
#
# A hung engine sleeps, or spins; one that waits for a GPU sleeps. A starved one is ready to run
# and waits for a processor, or for memory to be read back from disk. Operating systems count such
# waiting. Deadlines exclude it (`deadlines`), so a starved engine gets as much running time as
# any other, and a hung one gets no more than before.
#
# Some delays cannot be seen here, and count against the deadline: a device or disk that is slow
# or busy with other programs, a lower clock rate, and compressed memory, which costs processor
# time instead of waiting.


@attrs.frozen
class ThreadUse:
    """One thread of an engine, as the operating system reports it. *cpu* and *waited* are seconds
    since the thread began: on a processor, and runnable without one. A thread is *ready* if it runs
    or is runnable, and *blocked* if it waits for a disk."""

    cpu: float
    waited: float
    ready: bool = False
    blocked: bool = False


@attrs.frozen
class _Seen:
    cpu: float
    counted: float  # seconds of its waiting counted so far


class Starvation:
    """The seconds that one engine process has starved. Times are monotonic seconds."""

    __slots__ = ("_at", "_faults", "_seen", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds that it has starved, since the first look."""
        self._at: float | None = None
        self._faults = 0
        self._seen: dict[int, _Seen] = {}

    def look(self, threads: Mapping[int, ThreadUse], faults: int, now: float) -> float:
        """Take a sample: the process's *threads* by id, and its count so far of page *faults* that
        waited for the disk. Returns the seconds starved since the last sample."""
        elapsed = 0.0 if self._at is None else now - self._at
        paging = faults > self._faults
        cpu = waited = 0.0
        seen = {}
        for thread, use in threads.items():
            before = self._seen.get(thread, _Seen(0.0, 0.0))
            if use.cpu < before.cpu:  # the id was reused by another thread
                before = _Seen(0.0, 0.0)
            counted = max(before.counted, use.waited)
            if (use.ready and use.cpu == before.cpu) or (use.blocked and paging):
                # The system counts a wait only when it is over.
                counted = max(counted, before.counted + elapsed)
            cpu += use.cpu - before.cpu
            waited += counted - before.counted
            seen[thread] = _Seen(use.cpu, counted)
        # With several threads, scale by the share of their time that they waited.
        more = elapsed * waited / max(elapsed, cpu + waited) if elapsed > 0 else 0.0
        self.seconds += more
        self._at, self._faults, self._seen = now, faults, seen
        return more


# ---------------------------------------------------------------------- deadlines


_WARM_UP: Final = 4

LONGEST_EXTENSION: Final = 600.0
"""Cap, in seconds, on the extension of one answer's deadline: as long as loading may take. A rank
that falsely claims to starve gains no more than that."""


def earliest(*times: float | None) -> float | None:
    """The earliest of *times*, ignoring None; None if all are. It runs several times for each
    token, so it avoids further calls."""
    first: float | None = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first


def is_due(deadline: float | None, now: float) -> bool:
    """True if *deadline* has passed."""
    return deadline is not None and now >= deadline


class Extension:
    """How far the deadline of one answer is extended."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds to add to the deadline. Reset to 0 for each new answer."""

    def add(self, seconds: float, since: float, now: float) -> None:
        """Extend by *seconds* of starvation. *since* is when the wait for the answer began; the
        extension never exceeds the time waited."""
        most = min(LONGEST_EXTENSION, now - since) - self.seconds
        self.seconds += max(0.0, min(seconds, most))

    @property
    def told(self) -> str:
        """Text to append to the timeout's reason; empty below one second."""
        return f", nor within {self.seconds:.0f} s more, as it starved" if self.seconds >= 1 else ""


class Deadline:
    """The deadline of one answer whose time limit is known. Times are monotonic seconds."""

    __slots__ = ("_ends", "_extension", "_since")

    def __init__(self) -> None:
        self._extension = Extension()
        self._since = 0.0
        self._ends: float | None = None

    def set(self, now: float, seconds: float) -> None:
        """Expect the answer within *seconds* of *now*."""
        self._since, self._ends = now, now + seconds
        self._extension.seconds = 0.0

    def clear(self) -> None:
        """Stop waiting."""
        self._ends = None

    def starved(self, seconds: float, now: float) -> None:
        """The engine that owes the answer starved for *seconds* more."""
        if self._ends is not None:
            self._extension.add(seconds, self._since, now)

    @property
    def extended(self) -> str:
        """Text to append to the timeout's reason."""
        return self._extension.told

    @property
    def at(self) -> float | None:
        """When the answer is overdue; None if none is expected."""
        return None if self._ends is None else self._ends + self._extension.seconds


@attrs.frozen
class DeadlineRule:
    """A deadline in seconds: *first* until enough answers are known, then *factor* times the
    slowest answer, but at least *least*."""

    first: float
    least: float
    factor: float


ENGINE: Final = DeadlineRule(120.0, 15.0, 20.0)
"""For this node's own engine."""

ROUND: Final = DeadlineRule(180.0, 30.0, 40.0)
"""For a step's trip round the ring. It is longer than `ENGINE`, so that the rank at fault acts
first."""


class AnswerDeadline:
    """The deadline of a peer or engine that owes one or more answers. Times are monotonic seconds.

    It differs from `tensor.StepDeadline`. Here a late answer delays only its own receiver, so a
    generous deadline from one number, the slowest answer, is enough. In a collective one frozen
    rank hangs all others; there the deadline is short and considers what makes a step slow: its
    kind, its tokens, and compilation. Both extend for starvation (`Extension`).
    """

    __slots__ = (
        *("_ends", "_extension", "_is_order", "_owed", "_rule", "_seen", "_since", "_slowest"),
        "deadline",
    )

    def __init__(self, patience: DeadlineRule) -> None:
        self._rule = patience
        self._extension = Extension()
        self._owed = 0
        self._since = self._ends = 0.0
        self._is_order = False
        self._slowest = 0.0
        self._seen = 0
        self.deadline: float | None = None
        """When the next answer is overdue; None while none is owed. To be read only."""

    def owe(self, now: float) -> None:
        """One more answer is owed."""
        self._owed += 1
        if self._owed == 1:
            self._begin(now)

    def _begin(self, now: float, seconds: float | None = None) -> None:
        """Start the wait for the next answer, if one is owed, for *seconds* or as long as a step
        may take."""
        self._since = now
        self._extension.seconds = 0.0
        if not self._owed:
            self.deadline = None
            return
        if seconds is None:
            seconds = self._rule.first
            if self._seen >= _WARM_UP:
                seconds = max(self._rule.least, self._rule.factor * self._slowest)
        self._ends = self.deadline = now + seconds

    def order(self, now: float, seconds: float | None) -> None:
        """Replace all owed answers by one: the answer to an order that may take *seconds*, or, if
        None, as long as a first step."""
        self._owed, self._is_order = 1, True
        self._begin(now, self._rule.first if seconds is None else seconds)

    def answered(self, now: float) -> None:
        """One answer came. An answer that is not owed changes nothing."""
        if not self._owed:
            return
        if not self._is_order:
            taken = now - self._since - self._extension.seconds
            self._slowest = max(self._slowest, taken)
            self._seen += 1
        self._is_order = False
        self._owed -= 1
        self._begin(now)

    def starved(self, seconds: float, now: float) -> None:
        """The engine that owes an answer starved for *seconds* more."""
        if self._owed:
            self._extension.add(seconds, self._since, now)
            self.deadline = self._ends + self._extension.seconds

    @property
    def extended(self) -> str:
        """Text to append to the timeout's reason."""
        return self._extension.told

    def clear(self) -> None:
        """Stop waiting: no answer is owed."""
        self._owed, self._is_order = 0, False
        self.deadline = None
