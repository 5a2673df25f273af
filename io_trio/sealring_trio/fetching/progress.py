"""How far fetching is: bytes, speed, time left."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from sealring_protocol.diagnosis.causes import told_here

_WINDOW: Final = 10.0
"""Seconds over which the speed is taken."""


class Progress:
    """How far fetching *total* bytes is, of which *here* were here before. `came` tells of more."""

    def __init__(self, total: int, here: int) -> None:
        self.total = total
        self.here = here
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), here)])

    def came(self, here: int) -> None:
        """Now *here* bytes are here."""
        now = time.monotonic()
        self.here = here
        self._marks.append((now, here))
        while len(self._marks) > 2 and self._marks[1][0] < now - _WINDOW:
            self._marks.popleft()

    @property
    def speed(self) -> float:
        """Bytes per second of late."""
        (before, had), (now, has) = self._marks[0], self._marks[-1]
        return max(0, has - had) / (now - before) if now > before else 0.0

    @property
    def text(self) -> str:
        """This for people."""
        here = told_here(self.here, self.total)
        if not (speed := self.speed):
            return here
        left = (self.total - self.here) / speed
        return f"{here}, {speed / 1e6:.1f} MB/s, {_told_time(left)} left"


def _told_time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
