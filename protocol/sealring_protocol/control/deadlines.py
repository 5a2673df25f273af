"""Deadlines for answers, learnt from the times of earlier ones, and put off by starvation.

A daemon answers PING even when its engine hangs, so a hung engine, or a rank that swallows steps,
shows only in the steps themselves. The deadline of a step is a multiple of the slowest step so far.
It is generous until the first steps are known, because a first step compiles and pages in. Loading
has its own deadline, set by the caller that orders it.

An engine starves while it is ready to run, and its machine does not let it. A hung engine sleeps,
or spins; one that waits for a GPU sleeps. A starved one waits for a processor, or for memory to be
read back from disk, and operating systems count such waiting (`Starvation`). Ranks report it to one
another (`StarvedRanks`), and deadlines exclude it (`Wait`), by at most `LONGEST_EXTENSION` for each
answer, so that no wait is endless. So a starved engine gets as much running time as any other, and
a hung one gets no more than before.

Some delays cannot be seen here, and count against the deadline: a device or disk that is slow or
busy with other programs, a lower clock rate, and compressed memory, which costs processor time
instead of waiting.

What failed is tried again after a pause, twice as long each time (`Backoff`): dials, epochs and
engine restarts. Its owner decides what counts as success.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from sealring_protocol.codec.messages import Progress


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


@attrs.frozen
class Starved:
    """The engine of *rank* has starved for the fraction *part* of its time, since *since*
    (monotonic seconds)."""

    rank: int
    part: float
    since: float


AVERAGED: Final = 5.0
"""Seconds over which starvation is averaged."""

STARVED: Final = 0.75
"""The fraction of its time from which an engine counts as starved."""

FED: Final = 0.5
"""The fraction of its time below which it no longer counts as starved."""

LOG_AGAIN: Final = 600.0
"""Least seconds between two log lines about the same engine."""


@attrs.define
class _Rank:
    began: float  # the first sample
    at: float  # the latest
    seconds: float  # the total reported then
    counted: float = 0.0
    part: float = 0.0
    since: float | None = None
    logged: float | None = None


class StarvedRanks:
    """How much the engine of each rank starves. Times are monotonic seconds."""

    __slots__ = ("_process", "_ranks", "lent", "own")

    def __init__(self) -> None:
        self.own = 0.0
        """Seconds that this node's engine processes have starved, in all."""
        self.lent = 0.0
        """Seconds that tensor parallelism has waited for other ranks' starved engines."""
        self._process = 0.0  # the present process's part of `own`
        self._ranks: dict[int, _Rank] = {}

    def process(self, seconds: float) -> None:
        """This node's engine process has starved for *seconds* in all. Report 0 for a new
        process."""
        self.own += max(0.0, seconds - self._process)
        self._process = seconds

    def added_to(self, progress: Progress) -> tuple[Progress, Progress]:
        """Two copies of *progress*: one with this engine's starvation, and one for the peers, which
        adds the time spent waiting for other starved engines."""
        own, sent = int(self.own * 1e6), int((self.own + self.lent) * 1e6)
        return attrs.evolve(progress, starved_us=own), attrs.evolve(progress, starved_us=sent)

    def renumbered(self) -> None:
        """Forget all ranks: they are other nodes now."""
        self._ranks.clear()

    def look(self, rank: int, seconds: float | None, now: float) -> float:
        """The engine of *rank* has starved for *seconds* in all. Returns how much of that is new.

        A smaller total than before means that its node has a new process. None means that nothing
        was reported yet on a new link; the next report counts against the last one. A report beyond
        the time since the first sample is cut.
        """
        known = self._ranks.setdefault(rank, _Rank(now, now, seconds or 0.0))
        seconds = known.seconds if seconds is None else seconds
        elapsed, more = now - known.at, max(0.0, seconds - known.seconds)
        more = min(more, now - known.began - known.counted)
        known.at, known.seconds = now, seconds
        known.counted += more
        if elapsed <= 0:
            return more
        part = min(1.0, more / elapsed)
        known.part += (part - known.part) * min(1.0, elapsed / AVERAGED)
        if known.part < FED:
            known.since = None
        elif known.part >= STARVED and known.since is None:
            known.since = now
        return more

    def is_news(self, rank: int, now: float) -> bool:
        """True if the engine of *rank* starves and the log should report it now."""
        known = self._ranks[rank]
        if known.since is None or known.since == known.logged:
            return False
        if known.logged is not None and now - known.logged < LOG_AGAIN:
            return False
        known.logged = known.since
        return True

    def reset_all_but(self, ranks: set[int]) -> None:
        """Count every rank except *ranks* as not starved: nothing is reported about them for
        now."""
        for rank, known in self._ranks.items():
            if rank not in ranks:
                known.part, known.since = 0.0, None

    def of(self, *ranks: int) -> tuple[Starved, ...]:
        """The engines of *ranks* that starve now."""
        return tuple(
            Starved(rank, known.part, known.since)
            for rank in ranks
            if (known := self._ranks.get(rank)) is not None and known.since is not None
        )


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


class Wait:
    """The wait for one answer, and how far its deadline is put off. Times are monotonic seconds."""

    __slots__ = ("extension", "since")

    def __init__(self) -> None:
        self.since = 0.0
        """When it began."""
        self.extension = 0.0
        """Seconds to add to the deadline."""

    def begin(self, now: float) -> None:
        """Wait for the next answer from now on."""
        self.since, self.extension = now, 0.0

    def starved(self, seconds: float, now: float) -> None:
        """The engine that owes the answer starved for *seconds* more. The extension never exceeds
        the time waited."""
        most = min(LONGEST_EXTENSION, now - self.since) - self.extension
        self.extension += max(0.0, min(seconds, most))

    def taken(self, now: float) -> float:
        """How long it has taken, without starvation."""
        return now - self.since - self.extension

    @property
    def extended(self) -> str:
        """Text to append to the timeout's reason; empty below one second."""
        seconds = self.extension
        return f", nor within {seconds:.0f} s more, as it starved" if seconds >= 1 else ""


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


class AnswerDeadline(Wait):
    """The deadline of a peer or engine that owes one or more answers. Times are monotonic seconds.

    It differs from `tensor.StepDeadline`. Here a late answer delays only its own receiver, so a
    generous deadline from one number, the slowest answer, is enough. In a collective one frozen
    rank hangs all others; there the deadline is short and considers what makes a step slow: its
    kind, its tokens, and compilation.
    """

    __slots__ = ("_ends", "_is_order", "_owed", "_rule", "_seen", "_slowest", "deadline")

    def __init__(self, rule: DeadlineRule = ENGINE) -> None:
        super().__init__()
        self._rule = rule
        self._owed = 0
        self._ends = 0.0
        self._is_order = False
        self._slowest = 0.0
        self._seen = 0
        self.deadline: float | None = None
        """When the next answer is overdue; None while none is owed. To be read only."""

    def owe(self, now: float) -> None:
        """One more answer is owed."""
        self._owed += 1
        if self._owed == 1:
            self._next(now)

    def _next(self, now: float, seconds: float | None = None) -> None:
        """Start the wait for the next answer, if one is owed, for *seconds* or as long as a step
        may take."""
        self.since, self.extension = now, 0.0  # not by `begin`: several times for each token
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
        self._next(now, self._rule.first if seconds is None else seconds)

    def answered(self, now: float) -> None:
        """One answer came. An answer that is not owed changes nothing."""
        if not self._owed:
            return
        if not self._is_order:
            self._slowest = max(self._slowest, self.taken(now))
            self._seen += 1
        self._is_order = False
        self._owed -= 1
        self._next(now)

    def starved(self, seconds: float, now: float) -> None:
        """The engine that owes an answer starved for *seconds* more."""
        if self._owed:
            super().starved(seconds, now)
            self.deadline = self._ends + self.extension

    def clear(self) -> None:
        """Stop waiting: no answer is owed."""
        self._owed, self._is_order = 0, False
        self.deadline = None


FIRST_PAUSE: Final = 0.1
"""Seconds of the first pause."""


class Backoff:
    """The pauses of one repeated action: *first* seconds, then twice as long each time, up to
    *longest*."""

    __slots__ = ("_first", "_longest", "_pause")

    def __init__(self, longest: float, first: float = FIRST_PAUSE) -> None:
        self._longest = longest
        self._first = self._pause = first

    def next(self) -> float:
        """Seconds to wait now that a try has failed. The next pause is twice as long."""
        pause = self._pause
        self._pause = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """A try has succeeded: the next pause is the first one again."""
        self._pause = self._first
