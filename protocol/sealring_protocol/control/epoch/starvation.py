"""Whether an engine starves: it is ready to run, and its machine does not let it.

A hung engine sleeps, or spins; one that waits for a GPU sleeps. A starved one is ready to run and
waits for a processor, or for memory to be read back from disk. Operating systems count such
waiting. Deadlines exclude it (`deadlines`), so a starved engine gets as much running time as any
other, and a hung one gets no more than before.

Some delays cannot be seen here, and count against the deadline: a device or disk that is slow or
busy with other programs, a lower clock rate, and compressed memory, which costs processor time
instead of waiting.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


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
