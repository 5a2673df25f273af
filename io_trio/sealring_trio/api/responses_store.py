"""Responses that are kept for ``previous_response_id`` and to be read again, in memory.

Each owner has so much room, and all together have some; the oldest go first. What one owner has
kept, no other owner sees.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import attrs

MAX_KEPT: Final = 128 << 20
"""Bytes of all responses that are kept, with the items before them."""

MAX_KEPT_OF_ONE: Final = 32 << 20
MAX_KEPT_COUNT: Final = 256
"""Bytes and number of one owner's."""

MAX_KEPT_ITEMS: Final = 1 << 17
"""Items of one owner's. Memory: some 250 bytes for each that has an id of its own."""

MAX_KEPT_EACH: Final = 8 << 20
"""Bytes of one. A larger one is not kept."""


_ID: Final = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*+")')


@attrs.frozen
class Kept:
    """A *response*, and the items of its conversation: those *before* its input, its *inputs* and
    its *outputs*. Each is JSON, and each item begins with its id."""

    response: bytes
    before: tuple[bytes, ...]
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]

    @property
    def items(self) -> tuple[bytes, ...]:
        """The whole conversation."""
        return self.before + self.inputs + self.outputs

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return len(self.response) + sum(map(len, self.items))


@attrs.define
class _Owned:
    """What one owner has kept, by id, and its bytes and items; the oldest comes first. Of items by
    their id there are how many there are, and the latest: a look at all of them would take 0.1 s.
    """

    kept: dict[str, Kept] = attrs.field(factory=dict)
    size: int = 0
    items: int = 0
    _count: Counter[bytes] = attrs.field(factory=Counter)
    _latest: dict[bytes, bytes | None] = attrs.field(factory=dict)  # None: it was deleted

    @property
    def full(self) -> bool:
        """Whether it is more than one owner may have."""
        many = len(self.kept) > MAX_KEPT_COUNT or self.items > MAX_KEPT_ITEMS
        return many or self.size > MAX_KEPT_OF_ONE

    def keep(self, name: str, kept: Kept) -> None:
        """Keep response *name*."""
        self.kept[name] = kept
        self.size += kept.size
        self.items += len(kept.items)
        for item in kept.items:
            known = id_of(item)
            self._count[known] += 1
            self._latest[known] = item

    def drop(self, name: str | None = None) -> int:
        """Drop response *name*, or the oldest; its bytes."""
        dropped = self.kept.pop(name if name is not None else next(iter(self.kept)))
        self.size -= dropped.size
        self.items -= len(dropped.items)
        for item in dropped.items:
            known = id_of(item)
            self._count[known] -= 1
            if not self._count[known]:
                del self._count[known], self._latest[known]
            elif self._latest[known] is item:
                self._latest[known] = None
        return dropped.size

    def item(self, known: bytes) -> bytes | None:
        """The latest item whose id is *known*, as JSON; None if there is none."""
        if known in self._latest and self._latest[known] is None:
            every = (item for kept in reversed(self.kept.values()) for item in reversed(kept.items))
            self._latest[known] = next(item for item in every if id_of(item) == known)
        return self._latest.get(known)


class ResponseStore:
    """What all owners have kept."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owned] = {}
        self._size = 0

    def keep(self, owner: str, name: str, kept: Kept) -> None:
        """Keep response *name* for *owner*, if it is not too large; older ones make room."""
        if kept.size > MAX_KEPT_EACH:
            return
        owned = self._owners.setdefault(owner, _Owned())
        owned.keep(name, kept)
        self._size += kept.size
        while owned.full:
            self._size -= owned.drop()
        while self._size > MAX_KEPT:
            largest = max(self._owners, key=lambda each: self._owners[each].size)
            self._size -= self._owners[largest].drop()
            self._tidy(largest)

    def find(self, owner: str, name: str) -> Kept | None:
        """Response *name* of *owner*; None if it is not kept."""
        owned = self._owners.get(owner)
        return owned.kept.get(name) if owned is not None else None

    def items(self, owner: str, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Of *owner*'s items those that *ids* name, which are JSON; of two with one id the later
        one."""
        owned = self._owners.get(owner)
        found = {} if owned is None else {each: owned.item(each) for each in ids}
        return {each: item for each, item in found.items() if item is not None}

    def drop(self, owner: str, name: str) -> bool:
        """Drop response *name* of *owner*; whether there was one."""
        if self.find(owner, name) is None:
            return False
        self._size -= self._owners[owner].drop(name)
        self._tidy(owner)
        return True

    def _tidy(self, owner: str) -> None:
        if not self._owners[owner].kept:
            del self._owners[owner]


def id_of(item: bytes) -> bytes:
    """The id of *item*, which it begins with, as JSON."""
    found = _ID.match(item)
    return found[1] if found is not None else b"null"
