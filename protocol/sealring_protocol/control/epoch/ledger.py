"""The ledger: which rows and snapshots every rank holds, in which order, and how long they are.

The head's scheduler applies each step to its own ledger. Every engine applies the same step to its
own and compares digests before it touches a cache. A batched cache is a rectangle whose row order
is a convention: first the rows that stay, in their old order, then the joiners in the order of the
step. This module alone defines it.

A ledger begins empty, or with what is kept of the epoch before, as snapshots. A row that is opened
from the snapshot of its own number takes it over.

A step is applied in the order back, save, evict, drop, open, join, work. `Ledger.apply` returns the
`Change` that an engine carries out on its caches in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import attrs
from cryptography.hazmat.primitives.hashes import SHA256, Hash

from sealring_protocol.codec.messages import (
    Decode,
    KeptCache,
    NoWork,
    Open,
    Prefill,
    Save,
    Step,
    TakeBack,
)
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_TOKENS

DIGEST_SIZE: Final = 16
_PAIR: Final = struct.Struct(">QI")
_ROW: Final = struct.Struct(">QIB")
_GROUP: Final = struct.Struct(">HI")
_COUNTS: Final = struct.Struct(">QIIII")


@attrs.frozen
class Regroup:
    """How the rows of one group change. Of *before* rows those at the indices *kept* stay, in
    order; the private caches of *joined* follow them."""

    before: int
    kept: tuple[int, ...]
    joined: tuple[int, ...]


@attrs.frozen
class Saved:
    """Keep *length* tokens of row *uid*'s cache as snapshot *handle*. The cache is the row's
    private one, or row *index* of *group*."""

    uid: int
    handle: int
    length: int
    group: int | None = None
    index: int = 0


@attrs.frozen
class TakenBack:
    """Drop the last *count* tokens of row *uid*, the only one of *group*. *length* are left."""

    uid: int
    group: int
    count: int
    length: int


@attrs.frozen
class Change:
    """What one step does to the caches before its work. *dropped_rows* are private caches."""

    taken_back: tuple[TakenBack, ...] = ()
    saved: tuple[Saved, ...] = ()
    dropped_rows: tuple[int, ...] = ()
    dropped_snaps: tuple[int, ...] = ()
    opened: tuple[Open, ...] = ()
    regroup: dict[int, Regroup] = attrs.field(factory=dict)


_UNCHANGED: Final = Change()


class Ledger:
    """The rows and snapshots of one epoch, which begins with those that are *kept*. Lengths count
    the tokens in a cache.

    The last tokens of a row that is alone in its group may be guesses. Each decode says how many
    still are. There are none any more once the rows of the group change.

    A step that does not fit raises `RemoteProtocolError`. Discard the ledger then, and end the
    epoch.
    """

    __slots__ = ("_guessed", "_lengths", "_private", "_scored", "_snaps", "groups")

    def __init__(self, kept: Iterable[KeptCache] = ()) -> None:
        self._private: dict[int, int] = {}
        self._snaps: dict[int, int] = {each.number: each.length for each in kept}
        self.groups: dict[int, tuple[int, ...]] = {}
        """The rows of every group that has any, in order. To be read only."""
        self._lengths: dict[int, int] = {}
        self._guessed: dict[int, int] = {}  # of rows in groups: tokens at their ends
        self._scored = 0  # tokens that the last step scored

    @property
    def private(self) -> dict[int, int]:
        """The tokens in each private cache, by row."""
        return dict(self._private)

    @property
    def snaps(self) -> dict[int, int]:
        """The tokens in each snapshot, by handle."""
        return dict(self._snaps)

    @property
    def empty(self) -> bool:
        """True if it has no rows and no snapshots."""
        return not (self._private or self._snaps or self.groups)

    def length(self, uid: int) -> int:
        """Tokens in the cache of row *uid*."""
        return self._lengths[uid] if uid in self._lengths else self._private[uid]

    def guessed(self, uid: int) -> int:
        """How many of the last tokens of row *uid* may be taken back."""
        return self._guessed.get(uid, 0)

    def holds(self, uid: int) -> bool:
        """True if row *uid* has a cache."""
        return uid in self._private or uid in self._lengths

    def apply(self, step: Step) -> Change:
        """Apply *step* and return what it changes. Raises `RemoteProtocolError` if it does not
        fit."""
        change = self._compose(step) if step.changes else _UNCHANGED
        self._scored = 0
        match step.work:
            case Decode(group, guessed, ahead) as work:
                rows = self.groups.get(group)
                if not rows:
                    raise RemoteProtocolError(
                        f"step {step.n} decodes group {group}, which is empty"
                    )
                if guessed or self._guessed:
                    self._guess(step.n, rows, work)
                for uid in rows:
                    self._lengths[uid] = self._longer(step.n, self._lengths[uid], 1 + ahead)
            case Prefill(uid, position, count, scored):
                if self._private.get(uid) != position:
                    raise RemoteProtocolError(
                        f"step {step.n} prefills row {uid} from {position}; "
                        f"its private cache ends at {self._private.get(uid)}"
                    )
                self._private[uid] = self._longer(step.n, position, count)
                self._scored = count if scored else 0
            case NoWork():
                pass
        return change

    @staticmethod
    def _longer(n: int, length: int, count: int) -> int:
        if length + count > MAX_TOKENS:
            raise RemoteProtocolError(f"step {n} makes a row longer than {MAX_TOKENS} tokens")
        return length + count

    def _guess(self, n: int, rows: tuple[int, ...], work: Decode) -> None:
        """Of the only one of *rows* the last tokens are guesses now, those that *work* reads
        included; those before are none any more."""
        guessed = work.guessed
        many = guessed > work.guesses + (self.guessed(rows[0]) if work.on_guess else 0)
        if guessed and (len(rows) > 1 or many):
            raise RemoteProtocolError(f"step {n} has {guessed} guesses, more than there can be")
        for uid in rows:
            self._guessed.pop(uid, None)
        if guessed:
            self._guessed[rows[0]] = guessed

    def _compose(self, step: Step) -> Change:
        taken_back = tuple(self._take_back(step.n, back) for back in step.back)
        saved = tuple(self._save(step.n, save) for save in step.save)
        before = dict(self.groups)
        touched: set[int] = set()
        for uid in step.evict:
            touched.add(self._evict(step.n, uid))
        rows, snaps = self._drop(step)
        self._open(step)
        joined: dict[int, list[int]] = {}
        for join in step.join:
            if join.uid not in self._private:
                raise RemoteProtocolError(f"step {step.n} joins row {join.uid}, which is not open")
            self._lengths[join.uid] = self._private.pop(join.uid)
            self.groups[join.group] = *self.groups.get(join.group, ()), join.uid
            joined.setdefault(join.group, []).append(join.uid)
        regroup = {
            group: self._regroup(before.get(group, ()), set(step.evict), joined.get(group, []))
            for group in sorted(touched | joined.keys())
        }
        if self._guessed:
            for uid in [uid for group in regroup for uid in self.groups[group]]:
                self._guessed.pop(uid, None)
        for group in [group for group, left in self.groups.items() if not left]:
            del self.groups[group]
        return Change(taken_back, saved, rows, snaps, step.open, regroup)

    def _take_back(self, n: int, back: TakeBack) -> TakenBack:
        uid, count = back.uid, back.count
        if not 0 < count <= self.guessed(uid):
            raise RemoteProtocolError(
                f"step {n} takes {count} tokens of row {uid} back; {self.guessed(uid)} are guesses"
            )
        self._lengths[uid] -= count
        self._guessed[uid] -= count
        if not self._guessed[uid]:
            del self._guessed[uid]
        group = next(group for group, rows in self.groups.items() if uid in rows)
        return TakenBack(uid, group, count, self._lengths[uid])

    def _save(self, n: int, save: Save) -> Saved:
        if not (self.holds(save.uid) and self._unused(save.handle)):
            raise RemoteProtocolError(
                f"step {n} saves row {save.uid} as {save.handle}: "
                "the row has no cache or the handle is taken"
            )
        length = self._snaps[save.handle] = self.length(save.uid)
        if save.uid in self._private:
            return Saved(save.uid, save.handle, length)
        group, rows = next(item for item in self.groups.items() if save.uid in item[1])
        return Saved(save.uid, save.handle, length, group, rows.index(save.uid))

    def _evict(self, n: int, uid: int) -> int:
        for group, rows in self.groups.items():
            if uid in rows:
                self.groups[group] = tuple(other for other in rows if other != uid)
                del self._lengths[uid]
                self._guessed.pop(uid, None)
                return group
        raise RemoteProtocolError(f"step {n} evicts row {uid}, which is in no group")

    def _drop(self, step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
        rows: list[int] = []
        snaps: list[int] = []
        for number in step.drop:
            if self._private.pop(number, None) is not None:
                rows.append(number)
            elif self._snaps.pop(number, None) is not None:
                snaps.append(number)
            else:
                raise RemoteProtocolError(f"step {step.n} drops {number}, which is unknown")
        return tuple(rows), tuple(snaps)

    def _open(self, step: Step) -> None:
        for row in step.open:
            if row.handle == row.uid and row.uid in self._snaps:
                length = self._snaps.pop(row.uid)
                if row.keep != length:
                    raise RemoteProtocolError(
                        f"step {step.n} opens row {row.uid} from {row.keep} tokens of its own "
                        f"snapshot, which has {length}"
                    )
                self._private[row.uid] = length
                continue
            if not self._unused(row.uid):
                raise RemoteProtocolError(f"step {step.n} opens row {row.uid}, which is taken")
            if row.handle:
                if not 0 < row.keep <= self._snaps.get(row.handle, 0):
                    raise RemoteProtocolError(
                        f"step {step.n} opens row {row.uid} from {row.keep} tokens of "
                        f"snapshot {row.handle}, which does not have them"
                    )
            elif row.keep:
                raise RemoteProtocolError(f"step {step.n} keeps tokens of no snapshot")
            self._private[row.uid] = row.keep

    def _unused(self, number: int) -> bool:
        return number > 0 and not (
            number in self._private or number in self._snaps or number in self._lengths
        )

    @staticmethod
    def _regroup(before: tuple[int, ...], evicted: set[int], joined: list[int]) -> Regroup:
        # A row evicted and joined in one step counts as a joiner: its cache is a new one.
        stay = tuple(i for i, uid in enumerate(before) if uid not in evicted)
        return Regroup(len(before), stay, tuple(joined))

    def digest(self, n: int) -> bytes:
        """16 bytes that two ledgers share exactly when they hold the same after step *n*."""
        counts = len(self._private), len(self._snaps), len(self.groups)
        parts = [_COUNTS.pack(n, self._scored, *counts)]
        for cache in (self._private, self._snaps):
            for number in sorted(cache):
                parts.append(_PAIR.pack(number, cache[number]))
        for group in sorted(self.groups):
            rows = self.groups[group]
            parts.append(_GROUP.pack(group, len(rows)))
            for uid in rows:
                parts.append(_ROW.pack(uid, self._lengths[uid], self._guessed.get(uid, 0)))
        context = Hash(SHA256())
        context.update(b"".join(parts))
        return context.finalize()[:DIGEST_SIZE]
