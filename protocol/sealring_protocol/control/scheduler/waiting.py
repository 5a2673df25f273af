"""Rows that wait to be read in: whoever was interrupted first, then the owners in turn.

A row that lost its caches comes back before any new one, the oldest first. New rows stand in a
queue for each owner, and the owners take turns, so that one with a hundred requests delays
another's single one by a single row. Rows that are not fit yet (see `next`) are passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from sealring_protocol.control.scheduler.rows import LiveRow


class Waiting:
    """The rows that wait. Those that were interrupted do not count towards its length."""

    def __init__(self) -> None:
        self._interrupted: dict[int, LiveRow] = {}
        self._owners: dict[str, deque[LiveRow]] = {}  # in the order of their turns
        self._queued = 0

    def __len__(self) -> int:
        return self._queued

    def __iter__(self) -> Iterator[LiveRow]:
        return chain(self._interrupted.values(), chain.from_iterable(self._owners.values()))

    @property
    def suspect(self) -> LiveRow | None:
        """The first suspect. Only a row that was interrupted can be one."""
        return next((row for row in self._interrupted.values() if row.suspect), None)

    def __bool__(self) -> bool:
        return bool(self._queued or self._interrupted)

    def is_full(self, owner: str, places: int) -> bool:
        """Whether *owner* may queue no more in *places*. One that has less than an equal share may,
        also when the others have filled them, up to twice as many in all."""
        if self._queued < places:
            return False
        own = len(self._owners.get(owner, ()))
        share = places // (len(self._owners) + (own == 0))
        return own >= share or self._queued >= 2 * places

    def queue(self, row: LiveRow) -> None:
        """A new *row*, behind its owner's others."""
        self._owners.setdefault(row.request.owner, deque()).append(row)
        self._queued += 1

    def put_back(self, row: LiveRow) -> None:
        """*row* has lost its caches."""
        self._interrupted[row.uid] = row

    def next(self, fit: Callable[[LiveRow], bool]) -> LiveRow | None:
        """The first row that is *fit*; it goes on waiting until it is taken."""
        if self._interrupted:
            fitting = (uid for uid, row in self._interrupted.items() if fit(row))
            uid = min(fitting, default=None)
            if uid is not None:
                return self._interrupted[uid]
        queued = chain.from_iterable(self._owners.values())
        return next((row for row in queued if fit(row)), None)

    def take(self, row: LiveRow) -> None:
        """*row* waits no longer; the next new one is another owner's, if another waits."""
        if self._remove(row) and row.request.owner in self._owners:
            self._owners[row.request.owner] = self._owners.pop(row.request.owner)

    def discard(self, row: LiveRow) -> None:
        """*row* has ended, wherever it was."""
        self._remove(row)

    def _remove(self, row: LiveRow) -> bool:
        """Whether *row* was in an owner's queue."""
        if self._interrupted.pop(row.uid, None) is not None:
            return False
        queue = self._owners.get(row.request.owner)
        if queue is None or row not in queue:
            return False
        queue.remove(row)
        self._queued -= 1
        if not queue:
            del self._owners[row.request.owner]
        return True
