"""The caches of one rank: private ones for each row, batched ones for each batch, snapshots by
handle.

All of them are mlx-lm's own. A row is prefilled into private caches. When it joins others in a
batch, the joiners' caches are merged into batched ones (left-padded rectangles), and these are
appended to the batch's. Rows that leave are filtered out. When the last row leaves, the caches are
dropped: filtering a batched cache down to nothing fails, and keeping it would keep its memory.

A row that is alone in its batch keeps its private caches, or gets private ones back. A batched
cache has offsets and padding on the device. On a GPU these cost launches in every layer, which a
single row does not need.

`CacheStore.apply` carries out a ledger's `Change` and decides nothing: order and membership are the
ledger's, and the head alone decides them.

A snapshot of a private row, and a row that is opened from a snapshot, share arrays with it. MLX
writes to an array in place only if nobody else holds it, and copies it otherwise. So whichever is
written first pays for the copy, and one that is never written costs nothing. A snapshot of a row
that shares a rectangle with others is copied at once, into memory of its own; sharing would hold
the whole rectangle.

Caches are kept by slot of the stage's layout. `row` and `batch` give the slots, and the stage
spreads them over the model's layers.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import mlx.core as mx
from sealring_protocol.codec.messages import CacheCost, Decode, KeptCache, Open, Prefill, Step
from sealring_protocol.control.epoch.ledger import Change, Ledger, Regroup, Saved

from sealring_model.errors import LedgerError
from sealring_model.mlx_lm_import import mlx_lm
from sealring_model.stage.device import start
from sealring_model.stage.stage import Stage, flat

_PLAIN: Final = frozenset({int, float, bool, str, type(None)})
"""Types of immutable values."""

FULL_CACHES: Final = frozenset({"KVCache", "QuantizedKVCache"})
"""mlx-lm's caches that hold every token, and so can always drop the last ones."""


class CacheStore:
    """Every cache of one rank in one epoch. Raises `LedgerError` for a row, batch or snapshot that
    it does not hold."""

    def __init__(
        self, stage: Stage, ledger: Ledger, kept: dict[int, list[Any]] | None = None
    ) -> None:
        """*kept* are the caches of the epoch before that *ledger* begins with (see `keep`)."""
        self._stage = stage
        self._ledger = ledger
        self._private: dict[int, list[Any]] = {}
        self._snaps: dict[int, list[Any]] = dict(kept or {})
        self._batched: dict[int, list[Any]] = {}  # by batch
        self._single: dict[int, list[Any]] = {}  # by batch, of those with one row
        self._undo = Undo()

    def row(self, uid: int) -> list[Any]:
        """The private caches of row *uid*."""
        return _get(self._private, uid, "row")

    def batch(self, batch: int) -> list[Any]:
        """The caches of *batch*: batched ones, or the private ones of its only row."""
        return _get(self._store(batch), batch, "group")

    def fork(self, batch: int) -> list[Any]:
        """Copies of the caches of *batch* that share its arrays, to build a graph on that may be
        dropped."""
        return forks(self.batch(batch))

    def replace(self, batch: int, slots: list[Any]) -> None:
        """Make *slots*, a fork, the caches of *batch*. The former ones are let go, so that MLX
        writes to their arrays in place."""
        self._store(batch)[batch] = slots

    def copy_lengths(self, batch: int, slots: list[Any]) -> None:
        """Make *slots*, a fork of the caches of *batch*, as long as these are now."""
        for fork, cache in zip(slots, self.batch(batch), strict=True):
            fork.offset = cache.offset

    def lengthen(self, batch: int, tokens: int) -> None:
        """The caches of *batch* have *tokens* more, which an unplaced forward wrote (see
        `lookahead`)."""
        for cache in self.batch(batch):
            cache.offset += tokens

    def drop_last_tokens(self, batch: int) -> None:
        """Drop the last token of every row from the caches of *batch*, which must be trimmable. The
        next token is written over it."""
        for cache in flat(self.batch(batch)):
            if not cache.empty():  # stand-ins for other ranks' layers stay empty
                cache.trim(1)

    def _store(self, batch: int) -> dict[int, list[Any]]:
        return self._single if batch in self._single else self._batched

    def evaluate(self, batch: int) -> None:
        """Evaluate all state of the batched caches of *batch*. State that a model never reads is a
        sum whose graph, and so its memory, grows with every token."""
        if batch in self._batched:
            start(*arrays(self._batched[batch]))

    @property
    def nbytes(self) -> int:
        """Bytes of all caches. Memory that two share counts for both."""
        stores = (self._private, self._snaps, self._single, self._batched)
        return sum(c.nbytes for store in stores for slots in store.values() for c in slots)

    def bytes_needed(self, step: Step, change: Change, cost: CacheCost) -> int:
        """Bytes more that *step* with its *change* needs for caches, which cost *cost* a row.

        A rectangle whose rows change is copied, so it counts whole; so does the rectangle of the
        joiners, which becomes a part of it. Batches are copied one by one, so the largest copy
        counts. A row that joins nobody is charged as if it were copied, which happens when its next
        token is written, if at all.
        """
        copies = [0]
        for batch, regroup in change.regroup.items():
            whole = 0
            for rows in (self._ledger.groups.get(batch, ()), regroup.joined):
                lengths = [self._ledger.length(uid) for uid in rows]
                whole += len(rows) * cost.of(max(lengths, default=0))
            copies.append(whole)
        needed = max(copies)
        for save in change.saved:
            needed += cost.of(save.length)
        for row in change.opened:
            needed += cost.of(row.keep) if row.handle not in (0, row.uid) else 0
        if isinstance(step.work, Prefill):
            needed += cost.of(step.work.position + step.work.count) - cost.of(step.work.position)
        return needed

    def reads(self, work: Decode) -> None:
        """What *work* reads is about to be written: keep what it takes to take guesses back."""
        if work.guessed:
            self._undo.keep(self.batch(work.group), work)
        else:
            self._undo.forget(work.group)

    def apply(self, change: Change) -> None:
        """Carry out *change*: take back, save, drop, open and regroup, in that order."""
        for back in change.taken_back:
            self._undo.take_back(back.group, self.batch(back.group), back.count)
        for save in change.saved:
            self._snaps[save.handle] = self._snapshot_of(save)
        for uid in change.dropped_rows:
            del self._private[uid]
        for handle in change.dropped_snaps:
            del self._snaps[handle]
        for row in change.opened:
            self._private[row.uid] = self._caches_for(row)
        for batch, regroup in change.regroup.items():
            self._regroup(batch, regroup)
            if len(change.regroup) > 1 and batch in self._ledger.groups:
                mx.eval(arrays(self.batch(batch)))  # or all copies would exist at once

    def keep(self, kept: Iterable[KeptCache]) -> dict[int, list[Any]]:
        """Take the caches that are *kept* out, by number, each cut to its length, and let all
        others go. The store is of no use after that.

        Raises `LedgerError` for one that is not here, is shorter, or cannot be cut.
        """
        wanted = {each.number: each.length for each in kept}
        lengths = self._ledger.private | self._ledger.snaps
        held = {n: slots for n, slots in (self._private | self._snaps).items() if n in wanted}
        self._private.clear()
        self._snaps.clear()
        for batch, uids in self._ledger.groups.items():
            alone, batched = self._single.pop(batch, None), self._batched.pop(batch, [])
            for at, uid in enumerate(uids):
                if uid in wanted:
                    lengths[uid] = self._ledger.length(uid)
                    held[uid] = self._extract(batched, at) if alone is None else alone
                    mx.eval(arrays(held[uid]))  # or it would hold the whole batch
        for number, length in wanted.items():
            _cut(_get(held, number, "cache"), number, lengths[number], length)
        return held

    def trim_windows(self, uid: int) -> None:
        """Free what row *uid*'s sliding windows no longer need, after a chunk of its prompt."""
        for cache in flat(self.row(uid)):
            _trim_to_window(cache)

    def _snapshot_of(self, save: Saved) -> list[Any]:
        if save.group is None:
            return forks(self.row(save.uid))
        if save.group in self._single:
            return forks(self._single[save.group])
        return self._extract(self.batch(save.group), save.index)

    def _extract(self, batched: list[Any], at: int) -> list[Any]:
        slots = [
            fresh if cache.empty() else _extract(cache, at)
            for cache, fresh in zip(batched, self._stage.new_caches(), strict=True)
        ]
        start(*arrays(slots))
        return slots

    def _caches_for(self, row: Open) -> list[Any]:
        if not row.handle:
            return self._stage.new_caches()
        if row.handle == row.uid:
            return self._snaps.pop(row.uid)
        slots = forks(_get(self._snaps, row.handle, "snapshot"))
        excess = self._ledger.snaps[row.handle] - row.keep
        if excess:
            read = [cache for cache in slots if not cache.empty()]
            if not all(cache.is_trimmable() for cache in read):
                raise LedgerError(f"snapshot {row.handle} cannot be cut to {row.keep} tokens")
            for cache in read:
                _trim(cache, excess)
        return slots

    def _regroup(self, batch: int, regroup: Regroup) -> None:
        self._undo.forget(batch)
        rows = [self._private.pop(uid) for uid in regroup.joined]
        batched, single = self._batched.pop(batch, []), self._single.pop(batch, [])
        if not regroup.kept:
            batched = []
        elif single:
            rows.insert(0, single)
        elif len(regroup.kept) == 1 and not rows:
            rows, batched = [self._extract(batched, regroup.kept[0])], []
        elif len(regroup.kept) < regroup.before:
            for cache in batched:
                cache.filter(list(regroup.kept))
        if len(rows) == 1 and not batched:
            self._single[batch] = rows[0]
            return
        if rows:
            merged = [type(caches[0]).merge(list(caches)) for caches in zip(*rows, strict=True)]
            batched = extended(batched, merged)
        if batched:
            # Now, so that the private caches are freed, and no graph grows from change to change.
            start(*arrays(batched))
            self._batched[batch] = batched


class Undo:
    """What is kept to take back the guesses of every batch, each of one row.

    A cache of keys and values forgets its last tokens by its length alone, and what comes next is
    written over them. A sliding window that is full has overwritten older tokens, and a recurrent
    state has taken the token in for good. Of these a copy is kept from before each guess. It shares
    the arrays, which do not change: whoever writes next writes to new ones.
    """

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


def extended(slots: list[Any], merged: list[Any]) -> list[Any]:
    """The batched caches *slots* with the rows of *merged* behind theirs; *merged* if there are
    none."""
    if not slots:
        return merged
    for cache, joiners in zip(slots, merged, strict=True):
        plain = type(cache) is type(joiners) is mlx_lm("models.cache").BatchKVCache
        if plain and cache.keys is not None and joiners.keys is not None:
            _append(cache, joiners)
        else:
            cache.extend(joiners)
    return slots


def forks(slots: Iterable[Any]) -> list[Any]:
    """Deep copies of *slots* that share their arrays, in a fraction of `copy.deepcopy`'s time."""
    return [fork(cache) for cache in slots]


def fork(cache: Any) -> Any:
    """A deep copy of *cache* that shares its arrays."""
    twin = object.__new__(type(cache))
    state = twin.__dict__
    state.update(cache.__dict__)
    for name, value in state.items():
        kind = type(value)
        if kind is mx.array:
            state[name] = copy.copy(value)  # += changes an array in place, also for others
        elif kind not in _PLAIN:
            state[name] = copy.deepcopy(value)
    return twin


def is_trimmable(slots: Sequence[Any]) -> bool:
    """Whether a snapshot of any length can be trimmed to any shorter length."""
    # A rotating or chunked cache says that it is trimmable until it is full; then it is not.
    windows = ("max_size", "chunk_size")
    return all(
        c.is_trimmable() and not any(hasattr(c, name) for name in windows) for c in flat(slots)
    )


def cost_of(slots: Sequence[Any]) -> CacheCost:
    """What a row costs in *slots*, which hold two tokens.

    Caches grow in steps, and one that has just grown has a step to spare. So one step is charged as
    fixed, and a window is charged for what exceeds a step.
    """
    fixed = per_token = 0
    windows: dict[int, int] = {}
    for cache in flat(slots):
        if not hasattr(cache, "keys"):
            fixed += cache.nbytes
            continue
        pair = sum(a.nbytes // a.shape[2] for a in (cache.keys, cache.values))
        window = getattr(cache, "max_size", None)
        fixed += pair * min(cache.step, window or cache.step)
        if window is None:
            per_token += pair
        elif window > cache.step:
            beyond = window - cache.step
            windows[beyond] = windows.get(beyond, 0) + pair
    return CacheCost(fixed, per_token, tuple(sorted(windows.items())))


def arrays(slots: Iterable[Any]) -> list[mx.array]:
    """Every array in the state of *slots*."""
    return [leaf for cache in slots for leaf in _leaves(cache.state)]


def _holds_all(cache: Any) -> bool:
    return type(cache).__name__ in FULL_CACHES


def _can_trim_next(cache: Any) -> bool:
    if _holds_all(cache):
        return True
    window = getattr(cache, "max_size", None)
    return window is not None and not cache.empty() and cache.offset < window


def _append(cache: Any, joiners: Any) -> None:
    """What ``cache.extend(joiners)`` does for plain keys and values, with one copy in place of
    three: into a rectangle that has room for the next token."""
    end = max(cache._idx, joiners._idx)
    room = (end // cache.step + 1) * cache.step
    count = len(cache.keys)
    parts = ((slice(None, count), cache), (slice(count, None), joiners))
    for name in ("keys", "values"):
        first, other = getattr(cache, name), getattr(joiners, name)
        _, heads, _, width = first.shape
        both = mx.zeros((count + len(other), heads, room, width), first.dtype)
        for rows, part in parts:
            both[rows, :, end - part._idx : end] = getattr(part, name)[:, :, : part._idx]
        setattr(cache, name, both)
    cache.left_padding = mx.concatenate([part.left_padding + end - part._idx for _, part in parts])
    cache.offset = mx.concatenate([part.offset for _, part in parts])
    cache._idx = end


def _extract(cache: Any, at: int) -> Any:
    if hasattr(cache, "caches"):
        return type(cache)(*(_extract(part, at) for part in cache.caches))
    row = cache.extract(at)
    if not hasattr(cache, "keys"):
        # Keys and values were copied. A state would be a view of the batch's, and hold all of it.
        row.cache = [mx.contiguous(state) for state in row.cache]
    return row


def _trim(cache: Any, excess: int) -> None:
    """Drop the last *excess* tokens from *cache*, and the memory that they have in it."""
    for part in flat([cache]):
        part.trim(excess)
        if not hasattr(part, "max_size"):
            part.keys = part.keys[..., : part.offset, :]
            part.values = part.values[..., : part.offset, :]


def _cut(slots: list[Any], number: int, length: int, to: int) -> None:
    """Drop what *slots*, of *length* tokens under *number*, have beyond *to* tokens. Their arrays
    stay as they are: the next tokens are written over what is dropped."""
    read = [cache for cache in flat(slots) if not cache.empty()]
    if length < to or (length > to and not is_trimmable(read)):
        raise LedgerError(f"the cache {number} of {length} tokens cannot be cut to {to}")
    for cache in read if length > to else ():
        cache.trim(length - to)


def _trim_to_window(cache: Any) -> None:
    """Cut a rotating cache down to its window after a chunk.

    mlx-lm does so when the next token is written, but a row may wait long for that.
    """
    window = getattr(cache, "max_size", None)
    if window is None or cache.keys is None or cache.keys.shape[2] <= window:
        return
    excess = cache.keys.shape[2] - window
    cache.keys, cache.values = (
        mx.concatenate([a[..., : cache.keep, :], a[..., cache.keep + excess :, :]], axis=2)
        for a in (cache.keys, cache.values)
    )
    cache._idx = window


def _get(store: dict[int, list[Any]], number: int, what: str) -> list[Any]:
    slots = store.get(number)
    if slots is None:
        raise LedgerError(f"this rank has no {what} {number}")
    return slots


def _leaves(tree: Any) -> list[mx.array]:
    if isinstance(tree, mx.array):
        return [tree]
    if isinstance(tree, list | tuple):
        return [leaf for child in tree for leaf in _leaves(child)]
    return []
