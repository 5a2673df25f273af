"""Takes back the last tokens of a row's caches, which were read on wrong guesses.

A cache of keys and values forgets its last tokens by its length alone, and what comes next is
written over them. A sliding window that is full has overwritten older tokens, and a recurrent state
has taken the token in for good. Of these a copy is kept from before each guess. It shares the
arrays, which do not change: whoever writes next writes to new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from sealring_protocol.codec.messages import Decode

from sealring_model.errors import LedgerError
from sealring_model.stage.forks import fork
from sealring_model.stage.layout import flat

FULL_CACHES: Final = frozenset({"KVCache", "QuantizedKVCache"})
"""mlx-lm's caches that hold every token, and so can always drop the last ones."""


class Undo:
    """What is kept to take back the guesses of every batch, each of one row."""

    def __init__(self) -> None:
        self._before: dict[int, deque[list[Any]]] = {}
        """By batch, and by guess: copies from before it, None where a cache can be cut."""

    def keep(self, slots: Sequence[Any], work: Decode) -> None:
        """What *work*, which has guesses, reads is about to be written to *slots*, the caches of
        its group. Raises `LedgerError` if it reads some ahead, and these caches cannot be cut."""
        batch, caches = work.group, list(flat(slots))
        if work.ahead and not all(cache.empty() or _holds_all(cache) for cache in caches):
            raise LedgerError(f"group {batch} reads guesses ahead, and its caches cannot be cut")
        before = self._before.setdefault(batch, deque())
        while len(before) > work.guessed - work.guesses:
            before.popleft()
        if work.ahead:
            before.extend([None] * len(caches) for _ in range(work.guesses))
        else:
            before.append([None if _can_trim_next(cache) else fork(cache) for cache in caches])

    def forget(self, batch: int) -> None:
        """No token of *batch* will be taken back."""
        self._before.pop(batch, None)

    def take_back(self, batch: int, slots: Sequence[Any], count: int) -> None:
        """Drop the last *count* tokens from *slots*, the caches of *batch*."""
        before = self._before.get(batch, deque())
        if len(before) < count:
            raise LedgerError(f"{count} tokens of group {batch} are taken back, and are no guesses")
        dropped = [before.pop() for _ in range(count)][::-1]
        for at, cache in enumerate(flat(slots)):
            kept = [copies[at] for copies in dropped]
            first = next((n for n, copy in enumerate(kept) if copy is not None), count)
            if first < count:
                cache.__dict__.update(kept[first].__dict__)
            if first and not cache.empty():  # stand-ins for other ranks' layers may be empty
                cache.trim(first)


def _holds_all(cache: Any) -> bool:
    return type(cache).__name__ in FULL_CACHES


def _can_trim_next(cache: Any) -> bool:
    """Whether *cache* will be able to trim the token that is written next."""
    if _holds_all(cache):
        return True
    window = getattr(cache, "max_size", None)
    return window is not None and not cache.empty() and cache.offset + 1 < window
