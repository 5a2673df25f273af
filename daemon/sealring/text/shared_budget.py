"""A budget of bytes that owners share, of which each may take only a part."""

from __future__ import annotations

from collections import Counter
from typing import Final

PART: Final = 0.5
"""The part of the budget that one owner may take; the rest stays for all others."""


class SharedBudget:
    """A budget of *room* bytes for all owners together, of which each may take `PART`."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._taken = 0
        self._of_owner: Counter[str] = Counter()

    def take(self, owner: str, size: int) -> bool:
        """Give *owner* *size* bytes more. False, and nothing changes, if that exceeds the
        budget."""
        own = self._of_owner[owner] + size
        if self._taken + size > self._room or own > self._room * PART:
            return False
        self._of_owner[owner] = own
        self._taken += size
        return True

    def give_back(self, owner: str, size: int) -> None:
        """Take back *size* bytes that *owner* was given."""
        self._of_owner[owner] -= size
        self._taken -= size
        if not self._of_owner[owner]:
            del self._of_owner[owner]
