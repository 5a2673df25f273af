"""Room that callers share, and of which none may take more than a part."""

from __future__ import annotations

from collections import Counter
from typing import Final

PART: Final = 0.5
"""How much of the room one owner may have: what one sends leaves as much to all others."""


class SharedBudget:
    """*room* bytes for all owners together, of which each may have `PART`."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._taken = 0
        self._of_owner: Counter[str] = Counter()

    def take(self, owner: str, size: int) -> bool:
        """Have *owner* take *size* bytes more; False, and nothing is taken, if that is too much."""
        own = self._of_owner[owner] + size
        if self._taken + size > self._room or own > self._room * PART:
            return False
        self._of_owner[owner] = own
        self._taken += size
        return True

    def give_back(self, owner: str, size: int) -> None:
        """*owner* has *size* bytes of them no more."""
        self._of_owner[owner] -= size
        self._taken -= size
        if not self._of_owner[owner]:
            del self._of_owner[owner]
