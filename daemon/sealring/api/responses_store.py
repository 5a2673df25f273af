"""Responses that are kept for ``previous_response_id`` and to be read again, in memory.

Each account has so much room, and all together have some; the oldest go first. What one owner has
kept, no other owner sees. Without known keys one account may have many owners, or one owner many
accounts (`gate.Caller`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import attrs

MAX_KEPT: Final = 128 << 20
"""Bytes of all responses that are kept, with the items before them."""

MAX_KEPT_OF_ONE: Final = 32 << 20
MAX_KEPT_COUNT: Final = 256
"""Bytes and number of one account's."""

MAX_KEPT_ITEMS: Final = 1 << 17
"""Items of one account's. Memory: some 400 bytes for each that has an id of its own."""

MAX_KEPT_EACH: Final = 8 << 20
"""Bytes of one. A larger one is not kept."""


_ID: Final = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*+")')


@attrs.frozen
class Kept:
    """A *response*, and the items of its conversation: those *before* its input, its *inputs* and
    its *outputs*. Each is JSON, and each item begins with its id. It counts to *account*."""

    response: bytes
    before: tuple[bytes, ...]
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]
    account: str

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
    """What one owner has kept, by name, and the items by their id: those of one id by the name of
    their response, the latest last. A look at all of them would take 0.1 s."""

    kept: dict[str, Kept] = attrs.field(factory=dict)
    items: dict[bytes, dict[str, bytes]] = attrs.field(factory=dict)

    def keep(self, name: str, kept: Kept) -> None:
        """Keep response *name*."""
        self.kept[name] = kept
        for item in kept.items:
            self.items.setdefault(id_of(item), {})[name] = item

    def drop(self, name: str) -> Kept:
        """Drop response *name*."""
        dropped = self.kept.pop(name)
        for known in set(map(id_of, dropped.items)):
            del self.items[known][name]
            if not self.items[known]:
                del self.items[known]
        return dropped

    def item(self, known: bytes) -> bytes | None:
        """The latest item whose id is *known*, as JSON; None if there is none."""
        return next(reversed(self.items.get(known, {}).values()), None)


@attrs.define
class _Account:
    """The owner and name of each response that counts to one account, the oldest first; their
    bytes and items."""

    kept: dict[tuple[str, str], None] = attrs.field(factory=dict)
    size: int = 0
    items: int = 0

    @property
    def full(self) -> bool:
        """Whether it is more than one account may have."""
        many = len(self.kept) > MAX_KEPT_COUNT or self.items > MAX_KEPT_ITEMS
        return many or self.size > MAX_KEPT_OF_ONE


class ResponseStore:
    """What all owners have kept."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owned] = {}
        self._accounts: dict[str, _Account] = {}
        # By the bits of their size: to make room takes as long for many accounts as for one.
        self._by_bits: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._size = 0

    def keep(self, owner: str, name: str, kept: Kept) -> None:
        """Keep response *name* for *owner*, if it is not too large; older ones make room."""
        if kept.size > MAX_KEPT_EACH:
            return
        self._owners.setdefault(owner, _Owned()).keep(name, kept)
        account = self._accounts.setdefault(kept.account, _Account())
        account.kept[owner, name] = None
        self._count(kept, 1)
        while account.full:
            self.drop(*next(iter(account.kept)))
        while self._size > MAX_KEPT:
            most = max(bits for bits, names in self._by_bits.items() if names)
            largest = self._accounts[next(iter(self._by_bits[most]))]
            self.drop(*next(iter(largest.kept)))

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
        owned = self._owners[owner]
        dropped = owned.drop(name)
        if not owned.kept:
            del self._owners[owner]
        del self._accounts[dropped.account].kept[owner, name]
        self._count(dropped, -1)
        return True

    def _count(self, kept: Kept, sign: int) -> None:
        """Count *kept* to its account, or no more if *sign* is -1."""
        account = self._accounts[kept.account]
        self._by_bits[account.size.bit_length()].pop(kept.account, None)
        account.size += sign * kept.size
        account.items += sign * len(kept.items)
        self._size += sign * kept.size
        if account.kept:
            self._by_bits[account.size.bit_length()][kept.account] = None
        else:
            del self._accounts[kept.account]


def id_of(item: bytes) -> bytes:
    """The id of *item*, which it begins with, as JSON."""
    found = _ID.match(item)
    return found[1] if found is not None else b"null"
