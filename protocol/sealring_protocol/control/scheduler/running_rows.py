"""Who has caches on the ranks, who is about to, and who waits: the scheduler's rows.

A request becomes a row and waits (`waiting`) until there is a place and, on every rank, room for
its caches (`kv_budget`). It is opened, perhaps from a snapshot (`prefixes`), read in, joins its
group, and leaves: because it ended, or because it has to make room, in which case it waits again
and is read in anew with its tokens so far. What leaves is only noted here (`leaving`, `dropping`);
the next step carries it out on all ranks.

Rows of one sharer that come with equal prompts are read once: one leads, and the others wait for
the snapshot that is made of it. A row that ends leaves a snapshot behind as well, for what
continues it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sealring_protocol.codec.messages import Ready, Save
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.scheduler.kv_budget import GRAIN, KvBudget, Shape
from sealring_protocol.control.scheduler.prefixes import SHORTEST, Prefixes, Snapshot
from sealring_protocol.control.scheduler.requests import (
    ContextOverflow,
    FinishReason,
    Outcome,
    QueueFull,
    Request,
    RequestDone,
    RoomOverflow,
    SchedulerConfig,
)
from sealring_protocol.control.scheduler.rows import LiveRow, RowEvent, RowState
from sealring_protocol.control.scheduler.waiting import Waiting
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_IDS, MAX_ROW_WEIGHT

_RESERVE: Final = 2 * GRAIN
"""Tokens that a row must have room to grow by when it is opened."""

_WASTE: Final = 1024
"""Padding in a group's caches, in tokens, that counts as much as one row more."""


class RunningRows:
    """The rows of a head. *ledger* is what all ranks hold once the steps so far are done."""

    def __init__(self, config: SchedulerConfig, context: int, first_uid: int) -> None:
        """*context* is the longest row in tokens; uids rise from *first_uid*."""
        self.config = config
        self.groups = max(1, config.groups)
        self.ledger = Ledger()
        self.rows: dict[int, LiveRow] = {}  # all that are not over
        self.live: dict[int, LiveRow] = {}  # those of them that have caches, or are about to
        self.reading: dict[int, LiveRow] = {}  # those of these with private ones
        self.waiting = Waiting()
        self.prefixes = Prefixes()
        self.leaving: list[int] = []  # rows to evict from their groups
        self.dropping: list[int] = []  # private caches and snapshots to drop
        self.ended: list[Outcome] = []  # what came of making room
        self._context = context
        self._longest = context
        self._next_uid = first_uid
        self._leaders: dict[tuple[tuple[str, str], tuple[int, ...]], LiveRow] = {}  # see `_follow`
        self._budget = KvBudget()  # of several rows, by what has been learnt
        self._budget_alone = KvBudget()  # of a row that is alone
        self._ranks: tuple[Ready, ...] = ()
        self.learnt: dict[int, int] = {}  # bytes for caches, of ranks whose memory ran out
        self._saving: list[LiveRow] = []  # rows to keep a snapshot of

    # ---------------------------------------------------------- come and go

    def submit(self, request: Request) -> int:
        """Queue *request*; returns its uid.

        Raises `ContextOverflow` or `RoomOverflow` if it can never fit, `QueueFull` if it cannot
        now, and another `LocalProtocolError` for an empty prompt.
        """
        length = len(request.prompt)
        if not length:
            raise LocalProtocolError("the prompt has no tokens; give at least one")
        least = max(1, request.max_tokens)
        if length + least > self._context:
            raise ContextOverflow(length, least, self._context)
        if length + least > self._longest:
            raise RoomOverflow(length + least, self._longest)
        if self.waiting.is_full(request.owner, self.config.queue):
            raise QueueFull(len(self.waiting))
        uid = self._number()
        end = length + request.max_tokens if request.max_tokens else self._longest
        row = LiveRow(uid, request, end, list(request.prompt))
        self.rows[uid] = row
        self.waiting.queue(row)
        if self.config.prefixes and length > SHORTEST:
            self._follow(row)
        return uid

    def _number(self) -> int:
        """A new uid, or handle: they share one number space."""
        self._next_uid += 1
        return self._next_uid - 1

    def _follow(self, row: LiveRow) -> None:
        """One of the rows with a prompt reads it, and the others wait for its snapshot."""
        leader = self._leaders.setdefault((row.request.sharer, row.request.prompt), row)
        if leader is not row:
            leader.followers += 1
            row.leader = leader

    def _stop_leading(self, row: LiveRow) -> None:
        key = row.request.sharer, row.request.prompt
        if self._leaders.get(key) is row:
            del self._leaders[key]

    def end(self, uid: int, reason: FinishReason, message: str = "") -> list[Outcome]:
        """End *uid* wherever it is; its caches go with the next step. Unknown uids are over."""
        row = self.rows.pop(uid, None)
        if row is None:
            return []
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._keep(row)
        self._leave(row)
        row.state.fire(RowEvent.END)
        self._take_out(row)
        self.waiting.discard(row)
        self._stop_leading(row)
        return [RequestDone(uid, reason, message)]

    def retire(self) -> None:
        """Rows whose last token is in flight leave before their group's next decode."""
        for row in self.live.values():
            if row.flying and len(row.tokens) + row.flying >= row.end and self._stays(row):
                self._keep(row)
                self.leaving.append(row.uid)

    def _stays(self, row: LiveRow) -> bool:
        """*row* is in its group, and the next step does not evict it."""
        return row.uid in self.ledger.rows(row.group) and row.uid not in self.leaving

    def _keep(self, row: LiveRow) -> None:
        """Have the ranks keep a snapshot of *row*, which is in a group, before it leaves."""
        if self.config.prefixes and self._stays(row):
            self._saving.append(row)

    def _leave(self, row: LiveRow) -> None:
        """Have *row*'s caches freed on every rank by the next step."""
        if row.state.state is RowState.DECODE:
            if self._stays(row):
                self.leaving.append(row.uid)
        elif row.uid in self.reading and not self._is_new(row):
            self.dropping.append(row.uid)

    def preempt(self, uid: int) -> None:
        """Take *uid* out of its caches; it is prefilled again when there is room."""
        row = self.rows[uid]
        self._leave(row)
        self._requeue(row)

    def _requeue(self, row: LiveRow) -> None:
        queued = row.state.state is RowState.QUEUED
        row.state.fire(RowEvent.PREEMPT)
        row.position = 0
        if not queued:
            self._stop_leading(row)
            self._take_out(row)
            self.waiting.put_back(row)

    def _take_out(self, row: LiveRow) -> None:
        self.live.pop(row.uid, None)
        self.reading.pop(row.uid, None)

    def unread(self) -> list[LiveRow]:
        """Rows that are being read in, in the order in which they were opened."""
        rows = self.reading.values()
        return [row for row in rows if row.state.state is RowState.PREFILL]

    def joiners(self, group: int) -> list[LiveRow]:
        """Rows that may join *group* now. One that came back while a decode of its former life is
        in flight waits for that."""
        rows = [row for row in self.reading.values() if row.group == group and not row.flying]
        return [row for row in rows if row.state.state is RowState.READY]

    def join(self, row: LiveRow) -> None:
        """*row* goes from its private caches into its group."""
        row.state.fire(RowEvent.JOIN)
        del self.reading[row.uid]

    def staying(self, group: int) -> int:
        """Rows of *group* that the next step does not evict."""
        rows = self.ledger.rows(group)
        return sum(uid not in self.leaving for uid in rows) if self.leaving else len(rows)

    def new(self) -> list[LiveRow]:
        """Rows that the next step opens."""
        return [row for row in self.reading.values() if self._is_new(row)]

    def _is_new(self, row: LiveRow) -> bool:
        """No rank has it, or the next step frees its former life before it opens this one."""
        gone = row.uid in self.leaving or row.uid in self.dropping
        return gone or not self.ledger.holds(row.uid)

    def read(self, row: LiveRow) -> None:
        """*row* has been read in, once the steps so far are done."""
        row.state.fire(RowEvent.READ)
        self._stop_leading(row)
        whole = not self.prefixes.cuttable and self.config.prefixes
        if (row.followers or whole) and row.position - row.kept >= SHORTEST:
            self._saving.append(row)

    # ---------------------------------------------------------------- epochs

    def begin(self, ranks: Iterable[Ready]) -> None:
        """An epoch begins, on *ranks* that hold nothing yet."""
        ranks = self._ranks = tuple(ranks)
        self._budget = KvBudget(
            (min(ready.room, self.learnt.get(rank, ready.room)), ready.cost)
            for rank, ready in enumerate(ranks)
        )
        self._budget_alone = KvBudget((ready.room, ready.cost) for ready in ranks)
        self._longest = self._budget_alone.longest(self._context)
        self.prefixes.clear(cuttable=all(ready.trimmable for ready in ranks))

    def taken(self) -> tuple[tuple[int, int], ...]:
        """For each rank, the bytes that its caches take now, and those of the longest row alone."""
        shapes = self._shapes(None)
        longest = max((longest for _, longest in shapes), default=0)
        return tuple(
            (
                KvBudget.taken(ready.cost, shapes, self.prefixes.lengths),
                KvBudget.taken(ready.cost, [(1, longest)], ()),
            )
            for ready in self._ranks
        )

    def learn(self, rank: int, taken: tuple[tuple[int, int], ...]) -> None:
        """The memory of *rank* ran out when so much was *taken*: from the next epoch on several
        rows together are to take less than that, though enough for any one of these. A row that is
        alone may take all that the rank has: another program may have taken the memory, and the
        rank would be of no use for long requests ever after."""
        if rank < len(taken):
            everything, alone = taken[rank]
            most = min(everything, self.learnt.get(rank, everything))
            self.learnt[rank] = max(alone, most - most // 10)

    def abandon(self) -> None:
        """The epoch is over: every row waits to be read in again."""
        self.ledger = Ledger()
        self.prefixes.clear(cuttable=True)
        self._saving.clear()
        self.leaving.clear()
        self.dropping.clear()
        for row in list(self.live.values()):
            self._requeue(row)
        for row in self.rows.values():
            row.flying = 0

    # ------------------------------------------------------------ who comes in

    def open_rows(self) -> None:
        """Rows begin to be read in: suspects first and alone, then the interrupted, then the
        queue."""
        while self.waiting:
            if len(self.live) >= self.groups * self.config.rows:
                return
            if any(row.suspect for row in self.live.values()):
                return
            row = self.waiting.suspect
            if row is not None and self.live:
                return
            if row is None:
                if len(self.unread()) >= self.config.chunks * 2:
                    return
                row = self.waiting.next(lambda row: not row.led)
            if row is None or self._tells_too_much(row) or not self._open(row):
                return

    def _tells_too_much(self, row: LiveRow) -> bool:
        """The next step opens others, and with *row* their ROWs would tell or weigh too much."""
        others = self.new()
        told = sum(other.told for other in others) + row.told
        heavy = sum(other.row_weight for other in others) + row.row_weight
        return bool(others) and (told > MAX_IDS or heavy > MAX_ROW_WEIGHT)

    def _open(self, row: LiveRow) -> bool:
        """Begin to read *row* in, if there is room for it."""
        row.group = self._bucket(row)
        while self._shortage(row) > 0:
            if not self._drop_oldest():
                if self.live:
                    return False
                reason = FinishReason.LENGTH if row.emitted else FinishReason.FAILED
                limits = RoomOverflow(len(row.tokens) + 1, self._longest)
                self.ended += self.end(row.uid, reason, str(limits))
                return True
        self.waiting.take(row)
        self.live[row.uid] = self.reading[row.uid] = row
        row.state.fire(RowEvent.OPEN)
        row.handle, row.kept = self.prefixes.find(row.request.sharer, row.tokens)
        row.position = row.kept
        if row.unread == 0:
            self.read(row)
        return True

    def _bucket(self, row: LiveRow) -> int:
        """The group that it costs least to have *row* in, of those with room.

        Rows are spread evenly; but a batched cache is a rectangle, in which every row costs as much
        as the longest.
        """
        lengths: list[list[int]] = [[] for _ in range(self.groups)]
        for other in self.live.values():
            if other.group < self.groups:
                lengths[other.group].append(len(other.tokens))

        def cost(group: int) -> tuple[bool, float, int]:
            others, own = lengths[group], len(row.tokens)
            gap = own - max(others, default=own)
            waste = len(others) * gap if gap > 0 else -gap
            return len(others) >= self.config.rows, len(others) + waste / _WASTE, group

        return min(range(self.groups), key=cost)

    # -------------------------------------------------------------------- room

    def _shapes(self, entering: LiveRow | None) -> list[Shape]:
        """Each group as it is when its rows have had one token more, and *entering* some."""
        shapes: dict[int, Shape] = {}
        for row in self.live.values():
            count, longest = shapes.get(row.group, (0, 0))
            shapes[row.group] = count + 1, max(longest, self._need(row, 1))
        if entering is not None:
            count, longest = shapes.get(entering.group, (0, 0))
            shapes[entering.group] = count + 1, max(longest, self._need(entering, _RESERVE))
        return list(shapes.values())

    def _need(self, row: LiveRow, growth: int) -> int:
        """Tokens that *row* has when it has grown by *growth*, or as far as it may."""
        left = min(row.end, self._longest) - len(row.tokens)
        return len(row.tokens) + row.flying + max(1, min(left, growth))

    def _shortage(self, entering: LiveRow | None = None) -> int:
        alone = len(self.live) + (entering is not None) <= 1
        room = self._budget_alone if alone else self._budget
        return room.shortage(self._shapes(entering), self.prefixes.lengths)

    def make_room(self) -> None:
        """Rows have grown: drop snapshots, and preempt the youngest rows, until all fits."""
        if all((len(row.tokens) + row.flying) % GRAIN for row in self.live.values()):
            return
        while self.live and self._shortage() > 0:
            youngest = max(self.live)
            if self._drop_oldest():
                continue
            if len(self.live) > 1:
                self.preempt(youngest)
            else:
                self.ended += self.end(youngest, FinishReason.LENGTH, "no room for more tokens")

    def _drop_oldest(self) -> bool:
        """Give up the snapshot that was used longest ago."""
        handle = self.prefixes.oldest(self._needed())
        if handle is None:
            return False
        self._give_up(handle)
        return True

    def _give_up(self, handle: int) -> None:
        self.prefixes.remove(handle)
        self.dropping.append(handle)

    def _needed(self) -> set[int]:
        """Snapshots that the next step opens rows from."""
        return {row.handle for row in self.new()}

    def saves(self) -> list[Save]:
        """What the next step keeps of rows that have been read, or are about to leave."""
        saves = []
        for row in self._saving:
            if not self.ledger.holds(row.uid) or self.ledger.length(row.uid) < SHORTEST:
                continue
            sharer, length = row.request.sharer, self.ledger.length(row.uid)
            snapshot = Snapshot(self._number(), sharer, row.tokens, length)
            for handle in set(self.prefixes.within(snapshot)) - self._needed():
                self._give_up(handle)
            if self._admits(snapshot):
                self.prefixes.add(snapshot)
                saves.append(Save(row.uid, snapshot.handle))
        self._saving.clear()
        return saves

    def _admits(self, snapshot: Snapshot) -> bool:
        """Whether *snapshot* may be kept, in the place of older ones if need be."""
        while True:
            lengths = [*self.prefixes.lengths, snapshot.length]
            if (
                len(lengths) <= self.config.prefixes
                and self._budget.share(lengths) <= self.config.prefix_share
                and self._budget.shortage(self._shapes(None), lengths) <= 0
            ):
                return True
            if not self._drop_oldest():
                return False
