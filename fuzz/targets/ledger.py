"""The ledger against a model of the specification's table, step by step.

Input: choices from a small world (nine numbers, three groups), so that they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from sealring_protocol.codec.encoding import decode
from sealring_protocol.codec.messages import (
    NO_WORK,
    Decode,
    Epoch,
    Join,
    Open,
    Prefill,
    Save,
    Step,
    TakeBack,
    Work,
)
from sealring_protocol.control.epoch.ledger import Change, Ledger
from sealring_protocol.errors import RemoteProtocolError

from fuzz.source import Source
from fuzz.vectors import vectors
from spec.vectors.plain import LedgerState

FOUND: Final = (
    # a row that comes back into another group than it left
    "000000000101000001010000000001010000000000000000010100000101010000000101000301000002000003000002020001",
    # a row in a group is saved
    "000000000101000000000000000000010100000001010200000000000000",
)
"""Inputs that once failed."""

_LENGTHS: Final = (1, 2, 3, 5, 2**32 - 1, 2**31)


def seeds() -> Iterator[bytes]:
    """The vectors' courses, told in this target's choices, and a few walks of its own."""
    yield from map(bytes.fromhex, FOUND)
    for vector in vectors("ledgers"):
        steps = [decode(bytes.fromhex(data)) for data in vector["input"]["steps"]]
        yield b"".join(_told(step) for step in steps if isinstance(step, Step))
    yield bytes(range(256))
    yield bytes(200)


def _told(step: Step) -> bytes:
    """*step* in the choices that `_step` takes; numbers beyond the small world wrap."""
    told = bytes([len(step.back)]) + b"".join(bytes([b.uid % 9, b.count % 4]) for b in step.back)
    told += bytes([len(step.save)]) + b"".join(bytes([s.uid % 9, s.handle % 9]) for s in step.save)
    told += bytes([len(step.evict), *(uid % 9 for uid in step.evict)])
    told += bytes([len(step.drop), *(number % 9 for number in step.drop)])
    told += bytes([len(step.open)])
    told += b"".join(bytes([o.uid % 9, o.handle % 9, o.keep % 8]) for o in step.open)
    told += bytes([len(step.join)]) + b"".join(bytes([j.uid % 9, j.group % 3]) for j in step.join)
    match step.work:
        case Prefill(uid, position, count, scored):
            length = _LENGTHS.index(count) if count in _LENGTHS else 0
            return told + bytes([1, uid % 9, 1, position % 8, length, scored])
        case Decode(group, guessed, ahead):
            return told + bytes([2, group % 3, guessed % 5, ahead % 5])
        case _:
            return told + b"\0"


def check(data: bytes) -> None:
    """Both refuse a step, or both take it and hold the same; the change says what happened."""
    source, ledger, model, n = Source(data), Ledger(), Model(), 0
    while not source.empty:
        n += 1
        step = _step(source, n, ledger)
        refused = model.apply(step)
        rows = model.rows()
        try:
            change = ledger.apply(step)
        except RemoteProtocolError:
            assert refused, step
            return
        assert not refused, step
        assert ledger.private == model.private
        assert ledger.snaps == model.snaps
        assert ledger.groups == rows
        grouped = [uid for uids in rows.values() for uid in uids]
        assert {uid: ledger.guessed(uid) for uid in grouped} == model.guessed
        assert ledger.digest(n) == model.state().digest(n)
        _check_change(change, step, model)


def _step(source: Source, n: int, ledger: Ledger) -> Step:
    def few(make: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(make() for _ in range(source.below(4)))

    def number() -> int:
        return source.below(9)

    backs = few(lambda: TakeBack(number(), source.below(4)))
    saves = few(lambda: Save(number(), number()))
    evicts, drops = few(number), few(number)
    opens = few(lambda: Open(number(), number(), source.below(8)))
    joins = few(lambda: Join(number(), source.below(3)))
    lists = (backs, saves, evicts, drops, opens, joins)
    return Step(Epoch(1, 1), n, bytes(16), *lists, _work(source, ledger))


def _work(source: Source, ledger: Ledger) -> Work:
    match source.below(3):
        case 1:
            uid = source.below(9)
            known = ledger.private.get(uid, 0)
            position = source.below(8) if source.flag() else known
            return Prefill(uid, position, source.pick(_LENGTHS), source.flag())
        case 2:
            group, guessed = source.below(3), source.below(5)
            return Decode(group, guessed, min(guessed, source.below(5)))
        case _:
            return NO_WORK


class Model:
    """The table of section 11.3, row by row."""

    def __init__(self) -> None:
        self.private: dict[int, int] = {}
        self.snaps: dict[int, int] = {}
        self.groups: dict[int, list[tuple[int, int]]] = {}
        self.guessed: dict[int, int] = {}
        self.scored = 0
        self.before: dict[int, list[int]] = {}

    def _free(self, number: int) -> bool:
        grouped = {uid for rows in self.groups.values() for uid, _ in rows}
        return number != 0 and number not in {*self.private, *self.snaps, *grouped}

    def apply(self, step: Step) -> bool:
        """Apply *step*; whether it is to be refused."""
        self.before = {group: [uid for uid, _ in rows] for group, rows in self.groups.items()}
        lists = (self._back, self._save, self._evict, self._drop, self._open, self._join)
        return not all(done for part in (*lists, self._work) for done in part(step))

    def _back(self, step: Step) -> Iterator[bool]:
        for back in step.back:
            yield 1 <= back.count <= self.guessed.get(back.uid, 0)
            self.guessed[back.uid] -= back.count
            for group, rows in self.groups.items():
                taken = {uid: back.count if uid == back.uid else 0 for uid, _ in rows}
                self.groups[group] = [(uid, length - taken[uid]) for uid, length in rows]

    def _save(self, step: Step) -> Iterator[bool]:
        for save in step.save:
            held = self.private | {uid: n for rows in self.groups.values() for uid, n in rows}
            yield save.uid in held and self._free(save.handle)
            self.snaps[save.handle] = held[save.uid]

    def _evict(self, step: Step) -> Iterator[bool]:
        for uid in step.evict:
            found = [group for group, rows in self.groups.items() if uid in dict(rows)]
            yield bool(found)
            left = [row for row in self.groups[found[0]] if row[0] != uid]
            self.groups[found[0]] = left
            del self.guessed[uid]

    def _drop(self, step: Step) -> Iterator[bool]:
        for number in step.drop:
            yield number in self.private or number in self.snaps
            (self.private if number in self.private else self.snaps).pop(number)

    def _open(self, step: Step) -> Iterator[bool]:
        for row in step.open:
            yield self._free(row.uid)
            kept = self.snaps.get(row.handle, 0) if row.handle else 0
            yield (0 < row.keep <= kept) if row.handle else row.keep == 0
            self.private[row.uid] = row.keep

    def _join(self, step: Step) -> Iterator[bool]:
        for join in step.join:
            yield join.uid in self.private
            rows = self.groups.setdefault(join.group, [])
            rows.append((join.uid, self.private.pop(join.uid)))
            self.guessed |= {uid: 0 for uid, _ in rows}

    def _work(self, step: Step) -> Iterator[bool]:
        self.groups = {group: rows for group, rows in self.groups.items() if rows}
        self.scored = 0
        match step.work:
            case Prefill(uid, position, count, scored):
                yield self.private.get(uid) == position and position + count < 2**32
                self.private[uid] = position + count
                self.scored = scored * count
            case Decode(group, guessed, ahead):
                yield group in self.groups
                (uid, _), *others = self.groups[group]
                most = guessed if guessed == ahead else self.guessed[uid] + 1 + ahead
                yield not guessed or (not others and guessed <= most)
                self.guessed[uid] = guessed
                reads = 1 + ahead
                yield all(length + reads < 2**32 for _, length in self.groups[group])
                self.groups[group] = [(uid, length + reads) for uid, length in self.groups[group]]
            case _:
                yield True

    def rows(self) -> dict[int, tuple[int, ...]]:
        """The rows of every group, in order."""
        return {group: tuple(uid for uid, _ in rows) for group, rows in self.groups.items()}

    def state(self) -> LedgerState:
        """What it holds, as the digest takes it."""
        groups = {group: tuple(rows) for group, rows in self.groups.items()}
        return LedgerState(self.private, self.snaps, groups, self.guessed, self.scored)


def _check_change(change: Change, step: Step, model: Model) -> None:
    """An engine that carries out *change* has the rows that the ledger says."""
    told = [(taken.uid, taken.count) for taken in change.taken_back]
    assert told == [(back.uid, back.count) for back in step.back]
    assert all(model.before[taken.group] == [taken.uid] for taken in change.taken_back)
    rows = {group: list(uids) for group, uids in model.before.items()}
    for group, regroup in change.regroup.items():
        before = rows.pop(group, [])
        assert regroup.before == len(before)
        after = [before[i] for i in regroup.kept] + list(regroup.joined)
        if after:
            rows[group] = after
    assert {group: tuple(uids) for group, uids in rows.items()} == model.rows()
    assert {*change.dropped_rows, *change.dropped_snaps} == set(step.drop)
