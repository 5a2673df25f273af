"""Prefill chunks: whose prompt is read next, and how much of it at once.

A prompt is read in chunks, because rows that decode wait while a chunk is computed. The shortest
prompt goes first, so that a long one does not delay many short ones. The oldest prompt is overtaken
only a few times in a row, so that it is never delayed for ever. A chunk that takes longer than its
time budget makes the next ones smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sealring_protocol.codec.messages import Prefill
from sealring_protocol.control.scheduler.requests import SchedulerConfig
from sealring_protocol.control.scheduler.rows import LiveRow

_SMALLEST: Final = 16
"""Tokens of the smallest chunk that the time budget leads to."""

_OVERTAKES: Final = 2
"""Chunks of shorter prompts that may overtake the oldest prompt."""


class Chunks:
    """Chooses the chunks of the rows in prefill."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._size = config.chunk
        self._overtaken = 0

    def resize(self, config: SchedulerConfig) -> None:
        """Change the configuration. The size adapted so far stays, if it is still allowed."""
        self._config = config
        self._size = min(self._size, config.chunk)

    def next(self, rows: Sequence[LiveRow]) -> LiveRow | None:
        """The row to prefill next, of *rows* in prefill, the oldest first: the one with the fewest
        tokens left, and regularly the oldest. None if there are no rows."""
        if self._overtaken >= _OVERTAKES and rows:
            return rows[0]
        return min(rows, key=lambda row: row.unread, default=None)

    def cut(self, row: LiveRow, rows: Sequence[LiveRow]) -> Prefill:
        """The next chunk of *row*, which is one of *rows* as in `next`."""
        self._overtaken = 0 if row is rows[0] else self._overtaken + 1
        return Prefill(row.uid, row.position, min(row.unread, self._size))

    def took(self, count: int, seconds: float) -> None:
        """A chunk of *count* tokens took *seconds*: adapt the size, so that other rows do not wait
        longer than the time budget."""
        most, budget = self._config.chunk, self._config.chunk_seconds
        if seconds > budget:
            self._size = max(min(_SMALLEST, most), int(count * budget / seconds))
        elif count == self._size and seconds < budget / 4:
            self._size = min(most, self._size * 2)
