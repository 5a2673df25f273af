"""Whether an engine starves: it has work and wants to run, and its machine does not let it.

A hung engine sleeps, or spins; one that waits for a GPU sleeps. A starved one is ready to run and
waits for a processor, or for memory to be read back from disk. Systems count such waiting, and
deadlines leave it out (`deadlines`), so that a starved engine has as much time to itself as any
other and a hung one no more than before.

What this cannot see is left to the deadlines as they are: a device or a disk that is slow or busy
with others' work, a slower clock, and pages that are compressed in memory instead of written out,
which cost processor time and no waiting.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class ThreadUse:
    """One thread of an engine, as its system describes it: the seconds since it began that it was
    on a processor (*cpu*), and that it was ready and had none (*waited*). It is *ready* if it runs
    or would run now, and *blocked* if it waits for a disk."""

    cpu: float
    waited: float
    ready: bool = False
    blocked: bool = False


@attrs.frozen
class _Seen:
    cpu: float
    counted: float  # of its waiting, seconds


class Starvation:
    """How long one engine process has starved. Times are monotonic seconds."""

    __slots__ = ("_at", "_faults", "_seen", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds that it has starved, since the first look."""
        self._at: float | None = None
        self._faults = 0
        self._seen: dict[int, _Seen] = {}

    def look(self, threads: Mapping[int, ThreadUse], faults: int, now: float) -> float:
        """Its *threads* by id, and how often its process has waited for a page from disk so far.
        Gives the seconds that it has starved since the last look."""
        elapsed = 0.0 if self._at is None else now - self._at
        paging = faults > self._faults
        cpu = waited = 0.0
        seen = {}
        for thread, use in threads.items():
            before = self._seen.get(thread, _Seen(0.0, 0.0))
            if use.cpu < before.cpu:  # another thread has the number now
                before = _Seen(0.0, 0.0)
            counted = max(before.counted, use.waited)
            if (use.ready and use.cpu == before.cpu) or (use.blocked and paging):
                # A wait is in the system's count only when it is over.
                counted = max(counted, before.counted + elapsed)
            cpu += use.cpu - before.cpu
            waited += counted - before.counted
            seen[thread] = _Seen(use.cpu, counted)
        # Where more threads wait than one, the engine goes on at the speed of what they got.
        more = elapsed * waited / max(elapsed, cpu + waited) if elapsed > 0 else 0.0
        self.seconds += more
        self._at, self._faults, self._seen = now, faults, seen
        return more
