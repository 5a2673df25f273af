"""Rows that wait for prefill: interrupted rows first, then the owners in turn.

A row that lost its caches comes back before any new one, the oldest first. New rows stand in one
queue for each owner, and the owners take turns: one owner's hundred requests delay another's single
one by one row. Rows that are not fit yet (see `next`) are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from sealring_protocol.control.scheduler.rows import LiveRow


class Waiting:
    """The waiting rows. Interrupted ones do not count in its length."""

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
        """The first suspect; None if there is none. Only interrupted rows can be suspects."""
        return next((row for row in self._interrupted.values() if row.suspect), None)

    def __bool__(self) -> bool:
        return bool(self._queued or self._interrupted)

    def is_full(self, owner: str, places: int) -> bool:
        """True if *owner* may queue no more rows in *places*. When all places are taken, an owner
        with less than an equal share may still queue, up to twice *places* in all."""
        if self._queued < places:
            return False
        own = len(self._owners.get(owner, ()))
        share = places // (len(self._owners) + (own == 0))
        return own >= share or self._queued >= 2 * places

    def queue(self, row: LiveRow) -> None:
        """Queue a new *row* behind the others of its owner."""
        self._owners.setdefault(row.request.owner, deque()).append(row)
        self._queued += 1

    def put_back(self, row: LiveRow) -> None:
        """Queue *row* again: it has lost its caches."""
        self._interrupted[row.uid] = row

    def next(self, fit: Callable[[LiveRow], bool]) -> LiveRow | None:
        """The first row that is *fit*; None if there is none. It stays queued until `take`."""
        if self._interrupted:
            fitting = (uid for uid, row in self._interrupted.items() if fit(row))
            uid = min(fitting, default=None)
            if uid is not None:
                return self._interrupted[uid]
        queued = chain.from_iterable(self._owners.values())
        return next((row for row in queued if fit(row)), None)

    def take(self, row: LiveRow) -> None:
        """Remove *row* from the queue. Its owner's turn is over: another owner's row is next, if
        any waits."""
        if self._remove(row) and row.request.owner in self._owners:
            self._owners[row.request.owner] = self._owners.pop(row.request.owner)

    def discard(self, row: LiveRow) -> None:
        """Forget *row*, which has ended, if it waits."""
        self._remove(row)

    def _remove(self, row: LiveRow) -> bool:
        """Remove *row*. True if it was in an owner's queue."""
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
