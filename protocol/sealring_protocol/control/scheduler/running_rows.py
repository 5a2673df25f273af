"""The scheduler's rows: those with caches on the ranks, those about to get them, and those waiting.

A request becomes a row and waits (`WaitingRows`) until a place is free and every rank has room for
its caches (`CacheRoom`). It is opened, perhaps from a snapshot (`Prefixes`), prefilled, and joins
its group. It leaves because it ended, or because it must make room; then it waits again, and its
prompt and its tokens so far are prefilled anew. This module only notes what leaves (`leaving`,
`dropping`); the next step carries it out on all ranks.

Of one sharer's rows with equal prompts only one, the leader, reads the prompt. The others wait for
the snapshot made of it. A row that ends also leaves a snapshot, for requests that continue it; so
does one that is read up to where others may go another way (`stops`).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

import attrs

from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.messages import (
    CacheCost,
    Decode,
    KeptCache,
    Ready,
    Save,
    Step,
    TakeBack,
)
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.requests import (
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
from sealring_protocol.control.scheduler.batching import cheapest_group
from sealring_protocol.control.scheduler.rows import Fed, Flight, LiveRow, RowEvent, RowState
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_IDS, MAX_KEPT, MAX_ROW_WEIGHT


class WaitingRows:
    """Rows that wait for prefill: interrupted rows first, then the owners in turn. Interrupted ones
    do not count in its length.

    A row that lost its caches comes back before any new one, the oldest first. New rows stand
    in one queue for each owner, and the owners take turns: one owner's hundred requests delay
    another's single one by one row. Rows that are not fit yet (see `next`) are skipped.
    """

    def __init__(self) -> None:
        self._interrupted: dict[int, LiveRow] = {}
        self._owners: dict[str, deque[LiveRow]] = {}  # in the order of their turns
        self._queued = 0

    def __len__(self) -> int:
        return self._queued

    def __iter__(self) -> Iterator[LiveRow]:
        return chain(self._interrupted.values(), chain.from_iterable(self._owners.values()))

    @property
    def suspect(self) -> LiveRow | None:
        """The first suspect; None if there is none. Only interrupted rows can be suspects."""
        return next((row for row in self._interrupted.values() if row.suspect), None)

    def __bool__(self) -> bool:
        return bool(self._queued or self._interrupted)

    def is_full(self, owner: str, places: int) -> bool:
        """True if *owner* may queue no more rows in *places*. When all places are taken, an owner
        with less than an equal share may still queue, up to twice *places* in all."""
        if self._queued < places:
            return False
        own = len(self._owners.get(owner, ()))
        share = places // (len(self._owners) + (own == 0))
        return own >= share or self._queued >= 2 * places

    def queue(self, row: LiveRow) -> None:
        """Queue a new *row* behind the others of its owner."""
        self._owners.setdefault(row.request.owner, deque()).append(row)
        self._queued += 1

    def put_back(self, row: LiveRow) -> None:
        """Queue *row* again: it has lost its caches."""
        self._interrupted[row.uid] = row

    def next(self, fit: Callable[[LiveRow], bool]) -> LiveRow | None:
        """The first row that is *fit*; None if there is none. It stays queued until `take`."""
        if self._interrupted:
            fitting = (uid for uid, row in self._interrupted.items() if fit(row))
            uid = min(fitting, default=None)
            if uid is not None:
                return self._interrupted[uid]
        queued = chain.from_iterable(self._owners.values())
        return next((row for row in queued if fit(row)), None)

    def take(self, row: LiveRow) -> None:
        """Remove *row* from the queue. Its owner's turn is over: another owner's row is next, if
        any waits."""
        if self._remove(row) and row.request.owner in self._owners:
            self._owners[row.request.owner] = self._owners.pop(row.request.owner)

    def discard(self, row: LiveRow) -> None:
        """Forget *row*, which has ended, if it waits."""
        self._remove(row)

    def _remove(self, row: LiveRow) -> bool:
        """Remove *row*. True if it was in an owner's queue."""
        if self._interrupted.pop(row.uid, None) is not None:
            return False
        queue = self._owners.get(row.request.owner)
        if queue is None or row not in queue:
            return False
        queue.remove(row)
        self._queued -= 1
        if not queue:
            del self._owners[row.request.owner]
        return True


SHORTEST: Final = 16
"""A common prefix of fewer tokens is cheaper to read again than to copy."""

_MARK: Final = 4096
"""Tokens of a long prompt after which it is kept, though nothing says that others leave it there;
or twice as many, and so on, for at most `_MARKS` times."""

_MARKS: Final = 8


def stops(end: int, kept: int, branches: Iterable[int]) -> tuple[int, ...]:
    """Where a row of caches that cannot be cut is kept while its tokens from *kept* to *end* are
    read: at *branches*, and every few thousand tokens."""
    apart = _MARK
    while end // apart > _MARKS:
        apart *= 2
    wanted = {*branches, *range(apart, end - apart // 2, apart)}
    return tuple(sorted(stop for stop in wanted if kept + SHORTEST <= stop <= end))


@attrs.define(eq=False)
class Snapshot:
    """*length* tokens of *sharer*'s row, kept under *handle*. *tokens* is the row's own list: it
    may still grow to *length*, and stays shorter if the row ended early. It has served so many rows
    (*uses*), and is *passed* once a longer one has made it unlikely to serve again."""

    handle: int
    sharer: tuple[str, str]
    tokens: list[int]
    length: int
    uses: int = 0
    passed: bool = False


class Prefixes:
    """Every snapshot that the ranks hold in an epoch, the least recently used first, and which of
    them a new row starts from.

    Only the head decides. It has a row's cache kept under a handle, opens a new row from the
    handle with the longest common prefix, and drops the least recently used handles first.
    Every rank obeys by number, so no two can differ. A chat's next turn, which begins with what
    an earlier row read and answered, thus skips that part of its prefill. A snapshot serves
    only one sharer (`Request.sharer`): otherwise the time of a prefill, and how much of it was
    cached, would reveal what others have asked.

    If all ranks can cut their caches to any length, a prefix of a snapshot serves as well. If
    not (recurrent states, rotating windows), a snapshot serves whole or not at all. A prompt is
    then kept while it is read, too, wherever a later one may leave it (`stops`): where its
    request says so (after the system prompt, after a user's turn), where it leaves an earlier
    one itself, and every few thousand tokens. A conversation that has gone on gives up first
    what it kept on its way.
    """

    def __init__(self) -> None:
        self.cuttable = True
        self._snapshots: dict[int, Snapshot] = {}

    def __len__(self) -> int:
        return len(self._snapshots)

    def __contains__(self, handle: int) -> bool:
        return handle in self._snapshots

    def __getitem__(self, handle: int) -> Snapshot:
        return self._snapshots[handle]

    @property
    def lengths(self) -> list[int]:
        """The tokens in each snapshot."""
        return [snapshot.length for snapshot in self._snapshots.values()]

    def __iter__(self) -> Iterator[int]:
        return iter(self._snapshots)

    def begin(self, held: Container[int], *, cuttable: bool) -> None:
        """An epoch begins, in which the ranks hold those of the handles *held*; *cuttable* says
        whether every rank can cut its caches."""
        self.cuttable = cuttable
        self._forget(handle for handle in self._snapshots if handle not in held)

    def end(self, moved: Container[int]) -> None:
        """The epoch is over, and some ranks may not hold those of the handles *moved*. Of others
        what lies beyond the tokens that are known is given up: it may not be drawn again so."""
        for snapshot in self._snapshots.values():
            if self.cuttable:
                snapshot.length = min(snapshot.length, len(snapshot.tokens))
        self._forget(
            snapshot.handle
            for snapshot in self._snapshots.values()
            if snapshot.handle in moved or snapshot.length > len(snapshot.tokens)
        )

    def _forget(self, handles: Iterable[int]) -> None:
        for handle in list(handles):
            del self._snapshots[handle]

    def add(self, snapshot: Snapshot) -> None:
        """Add *snapshot*, which the next step saves."""
        self._snapshots[snapshot.handle] = snapshot

    def remove(self, handle: int) -> None:
        """Remove *handle*, which the next step drops."""
        del self._snapshots[handle]

    def oldest(self, needed: Container[int]) -> int | None:
        """The handle to drop first: the least recently used of those that are passed, or else of
        all, but none in *needed*; None if there is none."""
        free = [old for handle, old in self._snapshots.items() if handle not in needed]
        passed = (old.handle for old in free if old.passed)
        return next(passed, free[0].handle if free else None)

    def within(self, snapshot: Snapshot) -> list[int]:
        """The handles that *snapshot* makes redundant because it begins with them."""
        if not self.cuttable:
            return []
        return [
            old.handle
            for old, common in self._common(snapshot.sharer, snapshot.tokens, snapshot.length)
            if common == old.length
        ]

    def has(self, snapshot: Snapshot) -> bool:
        """True if the same tokens are kept already, in caches that cannot be cut. They count as
        used now."""
        if self.cuttable:
            return False
        for old, common in self._common(snapshot.sharer, snapshot.tokens, snapshot.length):
            if old.length == snapshot.length == common:
                self._use(old)
                return True
        return False

    def pass_by(self, snapshot: Snapshot, branches: Collection[int]) -> set[int]:
        """*snapshot* goes on from shorter ones: those that end at its request's *branches*, or
        close before, count as used now, and are returned. Others are dropped first from now on,
        unless they have served several rows. Nothing, if caches can be cut: these are redundant."""
        named: set[int] = set()
        if self.cuttable:
            return named
        for old, common in self._common(snapshot.sharer, snapshot.tokens, snapshot.length):
            if common < old.length or old.length == snapshot.length:
                continue
            if any(old.length <= branch < old.length + SHORTEST for branch in branches):
                self._use(old)
                named.add(old.handle)
            elif old.uses < 2:
                old.passed = True
        return named

    def find(self, sharer: tuple[str, str], tokens: list[int], most: int) -> tuple[int, int, int]:
        """The handle to open *sharer*'s row of *tokens* from, and how many tokens to keep, at
        *most* so many; 0 and 0 if none. Then how many tokens it has in common with any row that is
        kept.

        The last token is never kept, because the first decode takes it.
        """
        longest, best = 0, None
        shared = 0
        for snapshot, common in self._common(sharer, tokens, most):
            shared = max(shared, common)
            if (self.cuttable or common == snapshot.length) and common > longest:
                longest, best = common, snapshot
        if best is None or longest < SHORTEST:
            return 0, 0, shared
        self._use(best)
        best.uses += 1
        return best.handle, longest, shared

    def _use(self, snapshot: Snapshot) -> None:
        """*snapshot* is the most recently used one."""
        snapshot.passed = False
        self._snapshots[snapshot.handle] = self._snapshots.pop(snapshot.handle)

    def _common(
        self, sharer: tuple[str, str], tokens: list[int], most: int
    ) -> Iterator[tuple[Snapshot, int]]:
        """Each snapshot of *sharer*'s, and how many of its tokens are the first of *tokens*, at
        *most* so many. Those of one row are compared once."""
        known: dict[int, int] = {}
        for snapshot in list(self._snapshots.values()):
            if snapshot.sharer == sharer:
                row = id(snapshot.tokens)
                if row not in known:
                    known[row] = _common(snapshot.tokens, tokens, most)
                yield snapshot, min(known[row], snapshot.length)


def _common(one: list[int], other: list[int], most: int) -> int:
    """The length of the common prefix of *one* and *other*, at most *most*."""
    high = min(len(one), len(other), most)
    if one is other:
        return high
    low, step = 0, 64  # the first `low` agree
    while (end := min(low + step, high)) > low and one[low:end] == other[low:end]:
        low, step = end, 2 * step
    while end - low > 1:  # the first `end` do not
        middle = (low + end) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            end = middle
    return low


GRAIN: Final = 64
"""Lengths are rounded up to a multiple of this many tokens."""

Shape = tuple[int, int]
"""The number of rows in a group, and the tokens of the longest."""


def rounded(tokens: int) -> int:
    """*tokens*, rounded up to a multiple of `GRAIN`."""
    return -(-tokens // GRAIN) * GRAIN


class KvBudget:
    """The memory for caches: for each rank its bytes and a row's cost. Without ranks it is
    unlimited.

    Each rank reports in READY its bytes for caches and what a row costs. Caches must fit on the
    tightest rank. A group's cache is a rectangle in which every row costs as much as the
    longest. While a group's rows change, a copy of its cache exists as well; only one group
    changes at a time. Lengths are rounded up, so that this need not be computed again for every
    token.
    """

    def __init__(self, ranks: Iterable[tuple[int, CacheCost]] = ()) -> None:
        self._ranks: Final = tuple(dict.fromkeys(ranks))

    def shortage(self, groups: Collection[Shape], snapshots: Collection[int]) -> int:
        """Bytes that the tightest rank lacks for *groups* and *snapshots* (their tokens); 0 or
        less when all fits."""
        lacks = (self.taken(cost, groups, snapshots) - room for room, cost in self._ranks)
        return max(lacks, default=0)

    @staticmethod
    def taken(cost: CacheCost, groups: Collection[Shape], snapshots: Collection[int]) -> int:
        """Bytes that *groups* and *snapshots* (their tokens) take at *cost* for a row."""
        sizes = [rows * cost.of(rounded(longest)) for rows, longest in groups]
        return sum(sizes) + max(sizes, default=0) + sum(map(cost.of, snapshots))

    def share(self, snapshots: Collection[int]) -> float:
        """The largest fraction of any rank's room that *snapshots* take."""
        taken = ((sum(map(cost.of, snapshots)), room) for room, cost in self._ranks)
        return max((size / room if room else 1.0 for size, room in taken), default=0.0)

    def longest(self, context: int) -> int:
        """The most tokens that a row may have when it is alone, at most *context*."""
        low, high = 0, context
        while low < high:
            middle = (low + high + 1) // 2
            if self.shortage([(1, middle)], ()) <= 0:
                low = middle
            else:
                high = middle - 1
        return low


_RESERVE: Final = 2 * GRAIN
"""Tokens that a row must have room to grow by before it is opened."""


class CacheRoom:
    """The ranks' room; without ranks it is unlimited.

    *rows* are always those that have caches, or are about to get them, and *snapshots* the tokens
    of each snapshot.

    Rows are counted with the tokens that they are about to get. Several rows together may use
    less than a row that runs alone, because a rank whose memory ran out is trusted with less
    from then on (see `CacheRoom.learn`).
    """

    def __init__(self, context: int) -> None:
        """*context* is the longest row in tokens that the model allows."""
        self.longest = context  # tokens of the longest row that fits, alone
        self.ahead = 0  # guesses that a row may read after the first token of a step
        self.learnt: dict[int, int] = {}  # limit in bytes, by rank whose memory ran out
        self._context: Final = context
        self._ranks: tuple[Ready, ...] = ()
        self._several = KvBudget()  # of several rows, limited by `learnt`
        self._alone = KvBudget()  # of a row that runs alone

    def begin(self, ranks: Iterable[Ready]) -> None:
        """An epoch begins, on *ranks*, which report their room and what a row costs."""
        ranks = self._ranks = tuple(ranks)
        self._several = KvBudget(
            (min(ready.room, self.learnt.get(rank, ready.room)), ready.cost)
            for rank, ready in enumerate(ranks)
        )
        self._alone = KvBudget((ready.room, ready.cost) for ready in ranks)
        self.longest = self._alone.longest(self._context)

    def padding(self, weights: int) -> float:
        """The tokens of padding whose caches have as many bytes as *weights*: a device that waits
        for its memory reads either in the same time. Infinite if that is not known. No rank is
        taken to need more for a token than the least of them, so none can make this small."""
        each = len(self._ranks) * min((of.cost.per_token for of in self._ranks), default=0)
        return weights / each if weights and each else math.inf

    def taken(
        self, rows: Collection[LiveRow], snapshots: Collection[int]
    ) -> tuple[tuple[int, int], ...]:
        """For each rank, the bytes that all its caches take now, and those of the longest row
        alone."""
        shapes = self._shapes(rows, None)
        longest = max((longest for _, longest in shapes), default=0)
        return tuple(
            (
                KvBudget.taken(ready.cost, shapes, snapshots),
                KvBudget.taken(ready.cost, [(1, longest)], ()),
            )
            for ready in self._ranks
        )

    def learn(self, rank: int, taken: tuple[tuple[int, int], ...]) -> None:
        """The memory of *rank* ran out when the caches had *taken* (see `taken`). Limits it from
        the next epoch on.

        Several rows together then get a tenth less than that, but always enough for the longest of
        them. A row that runs alone may still use all of the rank's memory: another program may have
        caused the shortage, and the rank would never again serve long requests.
        """
        if rank < len(taken):
            everything, alone = taken[rank]
            most = min(everything, self.learnt.get(rank, everything))
            self.learnt[rank] = max(alone, most - most // 10)

    def shortage(
        self,
        rows: Collection[LiveRow],
        snapshots: Collection[int],
        entering: LiveRow | None = None,
    ) -> int:
        """Bytes that the tightest rank lacks for *rows*, *snapshots*, and the *entering* row with
        its reserve; 0 or less when all fits."""
        alone = len(rows) + (entering is not None) <= 1
        budget = self._alone if alone else self._several
        return budget.shortage(self._shapes(rows, entering), snapshots)

    def keeps(self, rows: Collection[LiveRow], snapshots: Collection[int], share: float) -> bool:
        """True if *snapshots* fit beside *rows*, in at most the fraction *share* of any rank's
        room."""
        return (
            self._several.share(snapshots) <= share
            and self._several.shortage(self._shapes(rows, None), snapshots) <= 0
        )

    def _shapes(self, rows: Collection[LiveRow], entering: LiveRow | None) -> list[Shape]:
        """The shape of each group after one more step for each row, with *entering* and its
        reserve."""
        shapes: dict[int, Shape] = {}
        for row in rows:
            count, longest = shapes.get(row.group, (0, 0))
            shapes[row.group] = count + 1, max(longest, self._need(row, 1 + self.ahead))
        if entering is not None:
            count, longest = shapes.get(entering.group, (0, 0))
            shapes[entering.group] = count + 1, max(longest, self._need(entering, _RESERVE))
        return list(shapes.values())

    def _need(self, row: LiveRow, growth: int) -> int:
        """The tokens of *row* after it has grown by *growth*, or as far as it may."""
        tokens = row.reach
        return tokens + max(row.draws, min(min(row.end, self.longest) - tokens, growth))


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
        self.waiting = WaitingRows()
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
        self.saving: list[LiveRow] = []  # rows to snapshot in the next step
        self._held: dict[int, int] = {}  # tokens kept of rows that no step has opened yet

    # ---------------------------------------------------------- come and go

    def submit(self, request: Request) -> int:
        """Queue *request*; returns its uid.

        Raises `ContextOverflow` or `RoomOverflow` if it can never fit, `QueueFull` if the queue is
        full, and another `LocalProtocolError` for an empty prompt, for more tokens drawn than the
        answer may have, or for what no ROW can say.
        """
        length = len(request.prompt)
        if not length:
            raise LocalProtocolError("the prompt has no tokens; give at least one")
        least = 1 if request.max_tokens is None else request.max_tokens
        if length + least > self._context:
            raise ContextOverflow(length, least, self._context)
        longest = self.room.longest
        if request.sampling.remembers:  # its ROW has all its tokens, in every epoch
            if length + least > MAX_IDS:
                raise HistoryOverflow(length, least, MAX_IDS)
            longest = min(longest, MAX_IDS)
        needed = max(length + least, request.known)
        if needed > longest:
            raise RoomOverflow(needed, longest)
        if self.waiting.is_full(request.owner, self.config.queue):
            raise QueueFull(len(self.waiting))
        uid = self._number()
        end = longest if request.max_tokens is None else length + least
        if request.known > end:
            text = f"{len(request.drawn)} tokens are drawn already, of {least} that are asked for"
            raise LocalProtocolError(text)
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
        self._drop_held(uid)
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
        if not self.backs:
            return ()
        return tuple(TakeBack(uid, count) for uid, count in self.backs.items())

    def _length(self, uid: int) -> int:
        """Tokens in the cache of row *uid* once wrong guesses are taken back."""
        return self.ledger.length(uid) - self.backs.get(uid, 0)

    def retire(self) -> None:
        """Have rows whose last token is in flight leave before their group's next decode."""
        for row in self.live.values():
            coming = row.flying - row.wasted
            sure = coming and not row.guesses.fed
            if sure and len(row.tokens) + coming >= row.end and self.stays(row):
                self._keep(row)
                self.leaving.append(row.uid)

    def stays(self, row: LiveRow) -> bool:
        """True if *row* is in its group and the next step does not evict it."""
        group = self.ledger.groups.get(row.group, ())
        return row.uid in group and row.uid not in self.leaving

    def _keep(self, row: LiveRow) -> None:
        """Snapshot *row* before it leaves, if it is in a group. Those with scores use none."""
        if self.config.prefixes and not row.request.scores and self.stays(row):
            self.keep_prefix(row)

    def keep_prefix(self, row: LiveRow) -> None:
        """Have the next step keep *row*'s cache as a snapshot, as it is before that step's work."""
        if row not in self.saving:
            self.saving.append(row)

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
        if not self.reading:
            return []
        rows = [row for row in self.reading.values() if row.group == group and not row.flying]
        return [row for row in rows if row.may_join and not (row.held and self._is_new(row))]

    def join(self, row: LiveRow) -> None:
        """Move *row* from its private caches into its group."""
        row.state.fire(RowEvent.JOIN)
        del self.reading[row.uid]

    def staying(self, group: int) -> int:
        """The number of rows of *group* that the next step does not evict."""
        rows = self.ledger.groups.get(group, ())
        return sum(uid not in self.leaving for uid in rows) if self.leaving else len(rows)

    def carried_out(self, step: Step) -> None:
        """The ring carries out *step*, with all that was to leave or to be taken back."""
        for done in (self.backs, self.leaving, self.dropping):
            done.clear()
        for row in step.open:
            self._held.pop(row.uid, None)
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
        shared = 0 if row.handle == row.uid else row.kept  # what others can be opened from
        if (row.followers or keeps) and row.position - shared >= SHORTEST:
            self.keep_prefix(row)

    # ---------------------------------------------------------------- epochs

    def begin(self, ranks: Iterable[Ready], kept: Iterable[KeptCache] = ()) -> None:
        """An epoch begins, on *ranks* that hold what is *kept*, and nothing else."""
        ranks = tuple(ranks)
        self.room.begin(ranks)
        self.ledger = Ledger(kept)
        held = self.ledger.snaps
        self.prefixes.begin(held, cuttable=all(ready.trimmable for ready in ranks))
        self._held = {uid: length for uid, length in self._held.items() if uid in held}
        self.dropping[:] = held.keys() - self._held.keys() - {*self.prefixes}

    def taken(self) -> tuple[tuple[int, int], ...]:
        """See `CacheRoom.taken`."""
        return self.room.taken(self.live.values(), self.snapshot_lengths())

    @property
    def kept(self) -> tuple[KeptCache, ...]:
        """What every rank surely held when the last epoch ended."""
        lengths = self._held | {handle: self.prefixes[handle].length for handle in self.prefixes}
        return tuple(KeptCache(number, lengths[number]) for number in sorted(lengths)[:MAX_KEPT])

    def abandon(self, flights: Iterable[Flight] = ()) -> None:
        """The epoch is over, with *flights* under way: every row waits to be prefilled again, or to
        go on from what the ranks keep of it."""
        under_way = [flight for flight in flights if not flight.returned]
        moved = frozenset().union(*(flight.moved for flight in under_way))
        read = Counter[int]()
        for flight in under_way:
            read.update(dict.fromkeys(flight.uids, flight.reads))
        self._held |= self._surely_held(moved, read)
        self.prefixes.end(moved)
        self.ledger = Ledger()
        self.saving.clear()
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

    def _surely_held(self, moved: Container[int], read: Mapping[int, int]) -> dict[int, int]:
        """How many tokens of each live row every rank has in a cache, though the steps under way
        have not reached all of them: these have *moved* some rows, and *read* so many tokens.

        The token that the next decode takes is none of them, nor what comes after it. So no wrong
        guess is: a token that follows one has come from a step that took it back. A cache that
        cannot be cut has to be as long on every rank.
        """
        held: dict[int, int] = {}
        for uid, row in self.live.items():
            if uid in moved or not self.ledger.holds(uid):
                continue
            length = self.ledger.length(uid)
            most = row.scored if row.wants_scores else len(row.tokens) - 1
            sure = min(length - read[uid], most)
            if sure >= SHORTEST and (self.prefixes.cuttable or sure == length):
                held[uid] = sure
        return held

    def _drop_held(self, uid: int) -> bool:
        """Have the next step drop what the ranks keep of row *uid*, which no step has opened. False
        if that is nothing."""
        if not self._held.pop(uid, 0):
            return False
        self.dropping.append(uid)
        return True

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
                row.tokens += (*row.request.prompt, *row.request.drawn)
            if self._says_too_much(row) or not self._open(row):
                return

    def _says_too_much(self, row: LiveRow) -> bool:
        """True if the next step opens other rows, and *row* would make their ROWs too long or too
        heavy."""
        others = self.new()
        history = sum(other.history for other in others) + row.history
        heavy = sum(other.row_weight for other in others) + row.row_weight
        return bool(others) and (history > MAX_IDS or heavy > MAX_ROW_WEIGHT)

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
            if not self._drop_any(row.uid):
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
        if held := self._held.get(row.uid, 0):
            row.handle, row.kept, common = row.uid, held, held
        else:
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
        lengths = self.snapshot_lengths(0 if entering is None else entering.uid)
        return self.room.shortage(self.live.values(), lengths, entering)

    def snapshot_lengths(self, but: int = 0) -> list[int]:
        """The tokens in each snapshot, and in what is kept of each row that waits, but row *but*,
        which takes its own over."""
        return [*self.prefixes.lengths, *self._idle(but).values()]

    def _idle(self, but: int = 0) -> dict[int, int]:
        """The tokens that are kept of each row that waits, but of row *but*, by uid."""
        if not self._held:
            return {}
        taken = self.live.keys() | {but}
        return {uid: length for uid, length in self._held.items() if uid not in taken}

    def make_room(self) -> None:
        """Drop snapshots, then preempt the youngest rows, until all rows fit after growing."""
        for row in self.live.values():
            if -row.reach % GRAIN <= self.room.ahead:
                break
        else:
            return
        while self.live and self._shortage() > 0:
            youngest = max(self.live)
            if self._drop_any():
                continue
            if len(self.live) > 1:
                self.preempt(youngest)
            else:
                self.ended += self.end(youngest, FinishReason.LENGTH, "no room for more tokens")

    def _drop_any(self, but: int = 0) -> bool:
        """Drop the snapshot that is the least likely to serve again, or else what is kept of the
        youngest row that waits, but of row *but*. False if there is none to drop."""
        return self._drop_oldest() or self._drop_held(max(self._idle(but), default=0))

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
        for row in self.saving:
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
        self.saving.clear()
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
            self.live.values(), [*lengths, *self._idle().values()], self.config.prefix_share
        )
