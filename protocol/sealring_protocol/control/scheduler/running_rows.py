"""The scheduler's rows: those with caches on the ranks, those about to get them, and those waiting.

A request becomes a row and waits (`waiting`) until a place is free and every rank has room for its
caches (`cache_room`). It is opened, perhaps from a snapshot (`prefixes`), prefilled, and joins its
group. It leaves because it ended, or because it must make room; then it waits again, and its prompt
and its tokens so far are prefilled anew. This module only notes what leaves (`leaving`,
`dropping`); the next step carries it out on all ranks.

Of one sharer's rows with equal prompts only one, the leader, reads the prompt. The others wait for
the snapshot made of it. A row that ends also leaves a snapshot, for requests that continue it; so
does one that is read up to where others may go another way (`prefixes.stops`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.messages import Decode, Ready, Save, Step, TakeBack
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.scheduler.cache_room import CacheRoom
from sealring_protocol.control.scheduler.group_choice import cheapest_group
from sealring_protocol.control.scheduler.guesses import Fed
from sealring_protocol.control.scheduler.kv_budget import GRAIN
from sealring_protocol.control.scheduler.prefixes import SHORTEST, Prefixes, Snapshot, stops
from sealring_protocol.control.scheduler.requests import (
    ContextOverflow,
    FinishReason,
    HistoryOverflow,
    Outcome,
    QueueFull,
    Request,
    RequestDone,
    RoomOverflow,
    SchedulerConfig,
)
from sealring_protocol.control.scheduler.rows import Flight, LiveRow, RowEvent, RowState
from sealring_protocol.control.scheduler.waiting import Waiting
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_IDS, MAX_ROW_WEIGHT

_READING: Final = 4
"""Rows of the queue whose prompts are read in turns."""


class RunningRows:
    """The rows of a head. *ledger* is what all ranks hold once the steps so far are done."""

    def __init__(self, config: SchedulerConfig, context: int, first_uid: int) -> None:
        """*context* is the longest row in tokens; uids rise from *first_uid*."""
        self.config = config
        self.groups = self.most_groups = max(1, config.groups)
        self.ledger = Ledger()
        self.rows: dict[int, LiveRow] = {}  # every row that is not over
        self.live: dict[int, LiveRow] = {}  # rows in `rows` that have caches, or are about to
        self.reading: dict[int, LiveRow] = {}  # rows in `live` with private caches
        self.waiting = Waiting()
        self.prefixes = Prefixes()
        self.leaving: list[int] = []  # rows to evict from their groups
        self.dropping: list[int] = []  # private caches and snapshots to drop
        self.ended: list[Outcome] = []  # requests ended for want of room
        self.wrong: list[Fed] = []  # steps that give no token, because of a wrong guess
        self.backs: dict[int, int] = {}  # how many tokens to take back, by row
        self.room = CacheRoom(context)
        self._context = context
        self._next_uid = first_uid
        self._leaders: dict[tuple[tuple[str, str], tuple[int, ...]], LiveRow] = {}  # see `_follow`
        self._saving: list[LiveRow] = []  # rows to snapshot in the next step

    # ---------------------------------------------------------- come and go

    def submit(self, request: Request) -> int:
        """Queue *request*; returns its uid.

        Raises `ContextOverflow` or `RoomOverflow` if it can never fit, `QueueFull` if the queue is
        full, and another `LocalProtocolError` for an empty prompt, or for what no ROW can say.
        """
        length = len(request.prompt)
        if not length:
            raise LocalProtocolError("the prompt has no tokens; give at least one")
        least = 1 if request.max_tokens is None else request.max_tokens
        if length + least > self._context:
            raise ContextOverflow(length, least, self._context)
        longest = self.room.longest
        if request.sampling.remembers:  # its ROW tells all its tokens, in every epoch
            if length + least > MAX_IDS:
                raise HistoryOverflow(length, least, MAX_IDS)
            longest = min(longest, MAX_IDS)
        if length + least > longest:
            raise RoomOverflow(length + least, longest)
        if self.waiting.is_full(request.owner, self.config.queue):
            raise QueueFull(len(self.waiting))
        uid = self._number()
        end = longest if request.max_tokens is None else length + least
        row = LiveRow(uid, request, end, [])
        encode(row.settings)  # or else the fault would come where nobody waits for it
        self.rows[uid] = row
        self.waiting.queue(row)
        if self.config.prefixes and length > SHORTEST:
            self._follow(row)
        return uid

    def _number(self) -> int:
        """A new number for a row or a snapshot, which share one number space."""
        self._next_uid += 1
        return self._next_uid - 1

    def _follow(self, row: LiveRow) -> None:
        """Make *row* the leader of its prompt, or a follower that waits for the leader's
        snapshot. A row that wants scores cannot use one."""
        leader = self._leaders.setdefault((row.request.sharer, row.request.prompt), row)
        if leader is not row and not row.wants_scores:
            leader.followers += 1
            row.leader = leader

    def _stop_leading(self, row: LiveRow) -> None:
        if row.leader is not None:
            return
        key = row.request.sharer, row.request.prompt
        if self._leaders.get(key) is row:
            del self._leaders[key]

    def end(self, uid: int, reason: FinishReason, message: str = "") -> list[Outcome]:
        """End *uid* in any state; the next step frees its caches. An unknown uid changes
        nothing."""
        row = self.rows.pop(uid, None)
        if row is None:
            return []
        self.waste(row)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._keep(row)
        self._leave(row)
        row.state.fire(RowEvent.END)
        self._take_out(row)
        self.waiting.discard(row)
        self._stop_leading(row)
        accepted, rejected = row.guesses.accepted, row.guesses.rejected
        return [RequestDone(uid, reason, message, accepted, rejected)]

    def waste(self, row: LiveRow) -> None:
        """The guesses of *row* that are under way are wrong, or no longer of use: have the next
        step take their tokens back. The step that reads its last token still gives some."""
        fed, under_way = row.guesses.fed, row.guesses.under_way
        if not under_way:
            return
        if self.stays(row):
            self.take_back(row, len(under_way))
        row.wasted += len(fed)
        self.wrong += fed
        fed.clear()

    def take_back(self, row: LiveRow, wrong: int) -> None:
        """Have the next step take *wrong* more tokens of *row*, which is in its group, back."""
        if wrong:
            row.position -= wrong
            self.backs[row.uid] = self.backs.get(row.uid, 0) + wrong

    def landed(self, flight: Flight) -> None:
        """The step *flight* is over."""
        for row in filter(None, map(self.rows.get, flight.uids)):
            if isinstance(flight.work, Decode):
                row.flying -= 1
                row.wasted -= flight.wasted
                if not flight.wasted:  # those of a wasted one were dropped with it
                    row.guesses.ahead = ()

    @property
    def taken_back(self) -> tuple[TakeBack, ...]:
        """The tokens that the next step takes back, by row."""
        return tuple(TakeBack(uid, count) for uid, count in self.backs.items())

    def _length(self, uid: int) -> int:
        """Tokens in the cache of row *uid* once wrong guesses are taken back."""
        return self.ledger.length(uid) - self.backs.get(uid, 0)

    def retire(self) -> None:
        """Have rows whose last token is in flight leave before their group's next decode."""
        for row in self.live.values():
            sure = row.coming and not row.guesses.fed
            if sure and len(row.tokens) + row.coming >= row.end and self.stays(row):
                self._keep(row)
                self.leaving.append(row.uid)

    def stays(self, row: LiveRow) -> bool:
        """True if *row* is in its group and the next step does not evict it."""
        return row.uid in self.ledger.rows(row.group) and row.uid not in self.leaving

    def _keep(self, row: LiveRow) -> None:
        """Snapshot *row* before it leaves, if it is in a group. Those with scores use none."""
        if self.config.prefixes and not row.request.scores and self.stays(row):
            self.keep_prefix(row)

    def keep_prefix(self, row: LiveRow) -> None:
        """Have the next step keep *row*'s cache as a snapshot, as it is before that step's work."""
        if row not in self._saving:
            self._saving.append(row)

    def _leave(self, row: LiveRow) -> None:
        """Have the next step free *row*'s caches on every rank."""
        if row.state.state is RowState.DECODE:
            if self.stays(row):
                self.leaving.append(row.uid)
        elif row.uid in self.reading and not self._is_new(row):
            self.dropping.append(row.uid)

    def preempt(self, uid: int) -> None:
        """Free the caches of *uid*; it is prefilled again when there is room."""
        row = self.rows[uid]
        self.waste(row)
        self._leave(row)
        self._requeue(row)

    def _requeue(self, row: LiveRow) -> None:
        queued = row.state.state is RowState.QUEUED
        row.state.fire(RowEvent.PREEMPT)
        row.guesses.interrupted()
        row.position = 0
        if not queued:
            self._stop_leading(row)
            self._take_out(row)
            self.waiting.put_back(row)

    def _take_out(self, row: LiveRow) -> None:
        self.live.pop(row.uid, None)
        self.reading.pop(row.uid, None)

    def unread(self) -> list[LiveRow]:
        """Rows in prefill, in the order in which they were opened."""
        rows = self.reading.values()
        return [row for row in rows if row.state.state is RowState.PREFILL]

    def joiners(self, group: int) -> list[LiveRow]:
        """Rows that may join *group* now. A preempted row waits until its earlier decode is
        answered, and a row with a grammar until that is prepared: a decode waits for no other."""
        rows = [row for row in self.reading.values() if row.group == group and not row.flying]
        return [row for row in rows if row.may_join and not (row.held and self._is_new(row))]

    def join(self, row: LiveRow) -> None:
        """Move *row* from its private caches into its group."""
        row.state.fire(RowEvent.JOIN)
        del self.reading[row.uid]

    def staying(self, group: int) -> int:
        """The number of rows of *group* that the next step does not evict."""
        rows = self.ledger.rows(group)
        return sum(uid not in self.leaving for uid in rows) if self.leaving else len(rows)

    def carried_out(self, step: Step) -> None:
        """The ring carries out *step*, with all that was to leave or to be taken back."""
        for done in (self.backs, self.leaving, self.dropping):
            done.clear()
        self.ledger.apply(step)

    def new(self) -> list[LiveRow]:
        """Rows that the next step opens."""
        return [row for row in self.reading.values() if self._is_new(row)]

    def _is_new(self, row: LiveRow) -> bool:
        """True if no rank has a cache of *row*, or the next step frees the old one before it opens
        the new."""
        gone = row.uid in self.leaving or row.uid in self.dropping
        return gone or not self.ledger.holds(row.uid)

    def read(self, row: LiveRow) -> None:
        """*row* is fully prefilled once the steps so far are done."""
        row.state.fire(RowEvent.READ)
        self._stop_leading(row)
        last = not (self.prefixes.cuttable and row.draws)  # moment to keep its prompt
        near = any(stop > row.position - GRAIN for stop in row.stops)  # one that is about as long
        keeps = self.config.prefixes and last and not near and not row.request.scores
        if (row.followers or keeps) and row.position - row.kept >= SHORTEST:
            self.keep_prefix(row)

    # ---------------------------------------------------------------- epochs

    def begin(self, ranks: Iterable[Ready]) -> None:
        """An epoch begins, on *ranks* that hold nothing yet."""
        ranks = tuple(ranks)
        self.room.begin(ranks)
        self.prefixes.clear(cuttable=all(ready.trimmable for ready in ranks))

    def taken(self) -> tuple[tuple[int, int], ...]:
        """See `CacheRoom.taken`."""
        return self.room.taken(self.live.values(), self.prefixes.lengths)

    def abandon(self) -> None:
        """The epoch is over: every row waits to be prefilled again."""
        self.ledger = Ledger()
        self.prefixes.clear(cuttable=True)
        self._saving.clear()
        self.backs.clear()
        self.leaving.clear()
        self.dropping.clear()
        for row in list(self.live.values()):
            self.waste(row)
            self._requeue(row)
        for row in self.rows.values():
            row.flying = row.wasted = row.unready = 0
            row.guesses.ahead = ()
        self.wrong.clear()

    # ------------------------------------------------------------ who comes in

    def open_rows(self) -> None:
        """Open rows while there is room: suspects first, and alone; then interrupted rows; then the
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
                if len(self.unread()) >= _READING:
                    return
                row = self.waiting.next(lambda row: not row.led)
            if row is None:
                return
            if not row.tokens:
                row.tokens.extend(row.request.prompt)
            if self._tells_too_much(row) or not self._open(row):
                return

    def _tells_too_much(self, row: LiveRow) -> bool:
        """True if the next step opens other rows, and *row* would make their ROWs too long or too
        heavy."""
        others = self.new()
        told = sum(other.told for other in others) + row.told
        heavy = sum(other.row_weight for other in others) + row.row_weight
        return bool(others) and (told > MAX_IDS or heavy > MAX_ROW_WEIGHT)

    def _open(self, row: LiveRow) -> bool:
        """Open *row* if there is room. False if it has to wait."""
        row.group = cheapest_group(
            row,
            self.live.values(),
            self.groups,
            self.config.rows,
            most=max(self.groups, self.most_groups),
            padding=self.room.padding(self.config.weights),
        )
        while self._shortage(row) > 0:
            if not self._drop_oldest():
                if self.live:
                    return False
                reason = FinishReason.LENGTH if row.emitted else FinishReason.FAILED
                limits = RoomOverflow(len(row.tokens) + 1, self.room.longest)
                self.ended += self.end(row.uid, reason, str(limits))
                return True
        self.waiting.take(row)
        self.live[row.uid] = self.reading[row.uid] = row
        row.state.fire(RowEvent.OPEN)
        most = row.scored if row.wants_scores else len(row.tokens) - 1
        row.handle, row.kept, common = self.prefixes.find(row.request.sharer, row.tokens, most)
        row.position = row.kept
        row.branches, row.stops = (*row.request.branches, common), ()
        if self.config.prefixes and not (self.prefixes.cuttable or row.request.scores):
            row.stops = stops(len(row.tokens) - 1, row.kept, row.branches)
        if row.unread == 0:
            self.read(row)
            if not row.draws:
                self.ended += self.end(row.uid, FinishReason.LENGTH)
        return True

    # -------------------------------------------------------------------- room

    def _shortage(self, entering: LiveRow | None = None) -> int:
        return self.room.shortage(self.live.values(), self.prefixes.lengths, entering)

    def make_room(self) -> None:
        """Drop snapshots, then preempt the youngest rows, until all rows fit after growing."""
        lengths = [row.reach for row in self.live.values()]
        if all(-length % GRAIN > self.room.ahead for length in lengths):
            return
        while self.live and self._shortage() > 0:
            youngest = max(self.live)
            if self._drop_oldest():
                continue
            if len(self.live) > 1:
                self.preempt(youngest)
            else:
                self.ended += self.end(youngest, FinishReason.LENGTH, "no room for more tokens")

    def _drop_oldest(self, kept: Collection[int] = ()) -> bool:
        """Drop the snapshot that is the least likely to serve again, but none of *kept*. False if
        there is none to drop."""
        handle = self.prefixes.oldest(self._needed().union(kept))
        if handle is None:
            return False
        self._give_up(handle)
        return True

    def _give_up(self, handle: int) -> None:
        self.prefixes.remove(handle)
        self.dropping.append(handle)

    def _needed(self) -> set[int]:
        """The snapshots from which the next step opens rows."""
        return {row.handle for row in self.new() if row.handle in self.prefixes}

    def saves(self) -> list[Save]:
        """The snapshots that the next step saves, of rows that were read or are about to leave."""
        saves = []
        for row in self._saving:
            if not self.ledger.holds(row.uid) or self._length(row.uid) < SHORTEST:
                continue
            sharer, length = row.request.sharer, self._length(row.uid)
            snapshot = Snapshot(self._number(), sharer, row.tokens, length)
            if self.prefixes.has(snapshot):
                continue
            for handle in set(self.prefixes.within(snapshot)) - self._needed():
                self._give_up(handle)
            named = self.prefixes.pass_by(snapshot, row.branches)
            if self._admits(snapshot, () if length in row.branches else named):
                self.prefixes.add(snapshot)
                saves.append(Save(row.uid, snapshot.handle))
        self._saving.clear()
        return saves

    def _admits(self, snapshot: Snapshot, named: Collection[int]) -> bool:
        """True if *snapshot* may be kept, after others were dropped if needed, but none of those
        that are *named*."""
        stays = [self.prefixes[handle].length for handle in self._needed().union(named)]
        if not self._keeps([*stays, snapshot.length]):
            return False
        while not self._keeps([*self.prefixes.lengths, snapshot.length]):
            if not self._drop_oldest(named):
                return False
        return True

    def _keeps(self, lengths: list[int]) -> bool:
        """True if snapshots of so many tokens may be kept."""
        return len(lengths) <= self.config.prefixes and self.room.keeps(
            self.live.values(), lengths, self.config.prefix_share
        )
