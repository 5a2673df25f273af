"""The caches of one rank: private ones per row, batched ones per group, snapshots by handle.

All of them are mlx-lm's own. A row is read into private caches; when it joins a group, the
joiners' caches are merged into batched ones (left-padded rectangles) and these are appended to
the group's. Leaving rows are filtered out. When the last row has left, the caches go: filtering
a batched cache down to nothing fails, and holding it would hold its memory.

`CacheStore.apply` carries out a ledger's `Change` and nothing of its own: order and membership
are the ledger's, the head's alone to decide.

Caches are kept per slot of the stage's layout; `row` and `group` give the slots, and the stage
spreads them over the model's layers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
from sealring_protocol.codec.messages import CacheCost, Open
from sealring_protocol.control.ledger import Change, Ledger, Regroup

from sealring_model.errors import LedgerError
from sealring_model.stage import Stage
from sealring_model.tensors import start


class CacheStore:
    """Every cache of one rank in one epoch. Raises `LedgerError` for what it does not hold."""

    def __init__(self, stage: Stage, ledger: Ledger) -> None:
        self._stage = stage
        self._ledger = ledger
        self._private: dict[int, list[Any]] = {}
        self._snaps: dict[int, list[Any]] = {}
        self._groups: dict[int, list[Any]] = {}

    def row(self, uid: int) -> list[Any]:
        """The private caches of row *uid*."""
        return _held(self._private, uid, "row")

    def group(self, group: int) -> list[Any]:
        """The batched caches of *group*."""
        return _held(self._groups, group, "group")

    @property
    def nbytes(self) -> int:
        """Bytes that all caches occupy."""
        stores = (self._private, self._snaps, self._groups)
        return sum(c.nbytes for store in stores for slots in store.values() for c in slots)

    def apply(self, change: Change) -> None:
        """Save, drop, open and regroup, in that order, as *change* says."""
        for save in change.saved:
            self._snaps[save.handle] = copy.deepcopy(self.row(save.uid))
        for uid in change.dropped_rows:
            del self._private[uid]
        for handle in change.dropped_snaps:
            del self._snaps[handle]
        for row in change.opened:
            self._private[row.uid] = self._opened(row)
        for group, regroup in change.regroup.items():
            self._regroup(group, regroup)

    def _opened(self, row: Open) -> list[Any]:
        if not row.handle:
            return self._stage.new_caches()
        slots = copy.deepcopy(_held(self._snaps, row.handle, "snapshot"))
        excess = self._ledger.snaps[row.handle] - row.keep
        if excess:
            if not all(c.is_trimmable() for c in slots):
                raise LedgerError(f"snapshot {row.handle} cannot be cut to {row.keep} tokens")
            for cache in slots:
                cache.trim(excess)
        return slots

    def _regroup(self, group: int, regroup: Regroup) -> None:
        slots = self._groups.pop(group, [])
        if not regroup.kept:
            slots = []
        elif len(regroup.kept) < regroup.before:
            for cache in slots:
                cache.filter(list(regroup.kept))
        joiners = [self._private.pop(uid) for uid in regroup.joined]
        if joiners:
            merged = [type(rows[0]).merge(list(rows)) for rows in zip(*joiners, strict=True)]
            slots = _extended(slots, merged)
        if slots:
            # Now, so that the private caches go, and nothing unread piles up from change to change.
            start(*arrays(slots))
            self._groups[group] = slots


def _extended(slots: list[Any], merged: list[Any]) -> list[Any]:
    if not slots:
        return merged
    for cache, joiners in zip(slots, merged, strict=True):
        cache.extend(joiners)
    return slots


def _held(store: dict[int, list[Any]], number: int, what: str) -> list[Any]:
    slots = store.get(number)
    if slots is None:
        raise LedgerError(f"this rank has no {what} {number}")
    return slots


def arrays(slots: Iterable[Any]) -> list[mx.array]:
    """Every array in the state of *slots*, to be evaluated."""
    return [leaf for cache in slots for leaf in _leaves(cache.state)]


def _leaves(tree: Any) -> list[mx.array]:
    if isinstance(tree, mx.array):
        return [tree]
    if isinstance(tree, list | tuple):
        return [leaf for child in tree for leaf in _leaves(child)]
    return []


def is_trimmable(slots: Sequence[Any]) -> bool:
    """Whether a snapshot of any length can be cut to any shorter one."""
    # A rotating cache says that it can until it is full, and then it cannot.
    return all(cache.is_trimmable() and not hasattr(cache, "max_size") for cache in slots)


def cost_of(slots: Sequence[Any]) -> CacheCost:
    """What a row costs in *slots*, from caches that two tokens have been read into.

    Caches grow in steps, so one step is charged as fixed, and so is a window within one step.
    """
    fixed = per_token = 0
    windows: dict[int, int] = {}
    for cache in slots:
        if not hasattr(cache, "keys"):
            fixed += cache.nbytes
            continue
        pair = sum(a.nbytes // a.shape[2] for a in (cache.keys, cache.values))
        window = getattr(cache, "max_size", None)
        fixed += pair * min(cache.step, window or cache.step)
        if window is None:
            per_token += pair
        elif window > cache.step:
            windows[window] = windows.get(window, 0) + pair
    return CacheCost(fixed, per_token, tuple(sorted(windows.items())))
