"""Bytes as a source of choices, for targets that build something before they break it.

When the bytes run out every choice is the first, so that a shorter input is a simpler case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Source:
    """Choices from *data*, front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def empty(self) -> bool:
        """Nothing is left to choose by."""
        return self._at >= len(self._data)

    def take(self, size: int) -> bytes:
        """The next *size* bytes, or what is left."""
        piece = self._data[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))

    def below(self, limit: int) -> int:
        """A number from 0 up to *limit*, the latter excluded; one byte's worth of choice."""
        return int.from_bytes(self.take(1), "big") % limit

    def number(self, size: int) -> int:
        """A number of *size* bytes."""
        return int.from_bytes(self.take(size), "big")

    def flag(self) -> bool:
        """Yes or no."""
        return self.below(2) == 1

    def pick(self, choices: Sequence[T]) -> T:
        """One of *choices*."""
        return choices[self.below(len(choices))]
