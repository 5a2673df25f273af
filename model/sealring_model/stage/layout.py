"""Where a stage's caches stand in the full-length list that the model takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import mlx.core as mx


class Layout:
    """The slots of the stage of layers *first* to *last* (excluded).

    A stage keeps one cache per *slot*. First come the caches that its layers write, in order; on
    rank 0 also those that the loop itself writes. Then come stand-ins for what other ranks have,
    whose masks and offsets the loop reads: a cache of an owned layer serves if it is of the same
    kind, and where there is none, an empty one does that `advance` keeps as long as the others.

    *owners* has for each cache the layer that writes it, None if that is no layer.
    """

    def __init__(
        self, prototypes: Sequence[Any], owners: Sequence[int | None], first: int, last: int
    ) -> None:
        owned = [
            index
            for index, owner in enumerate(owners)
            if (first == 0 if owner is None else first <= owner < last)
        ]
        places = {index: slot for slot, index in enumerate(owned)}
        by_kind: dict[tuple[Any, ...], int] = {}
        for slot, index in enumerate(owned):
            if owners[index] is not None:
                by_kind.setdefault(_kind(prototypes[index]), slot)
        picked = list(owned)
        for index, owner in enumerate(owners):
            if index not in places:
                # What the loop itself writes to is no other's.
                slot = len(picked)
                if owner is not None:
                    slot = by_kind.setdefault(_kind(prototypes[index]), slot)
                if slot == len(picked):
                    picked.append(index)
                places[index] = slot
        self.picked: Final = tuple(picked)
        self.owned: Final = len(owned)
        self._places: Final = tuple(places[index] for index in range(len(prototypes)))

    def spread(self, slots: Sequence[Any]) -> list[Any]:
        """The full-length list, with each of *slots* in all its places."""
        return [slots[place] for place in self._places]

    def advance(self, slots: Sequence[Any], rows: int, tokens: int, value: int = 0) -> None:
        """Lengthen the stand-ins among *slots* by *tokens* tokens of each of *rows* rows. A token
        takes two numbers, each *value*."""
        for cache in flat(slots[self.owned :]):
            if hasattr(cache, "update_and_fetch"):
                nothing = mx.full((rows, 1, tokens, 1), value, mx.float32)
                cache.update_and_fetch(nothing, nothing)


def _kind(cache: Any) -> tuple[Any, ...]:
    """Two caches of the same kind (class and window) give the same mask."""
    parts = tuple(_kind(part) for part in getattr(cache, "caches", ()))
    return type(cache), getattr(cache, "max_size", None), getattr(cache, "chunk_size", None), parts


def flat(slots: Iterable[Any]) -> Iterator[Any]:
    """Each cache of *slots*; a list of caches counts as its members."""
    for cache in slots:
        if hasattr(cache, "caches"):
            yield from flat(cache.caches)
        else:
            yield cache
