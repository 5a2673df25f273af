"""The scheduler under any order of requests, answers, failures and epochs.

Input: one byte for each command and its choices. No rank may ever hold more than it has room for.
Of a guess it is known whether it was right once the step before it is answered. At the end every
step is answered, and then nothing may be left: each request has ended once, and no rank holds a
row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealring_protocol.codec.encoding import decode, encode
from sealring_protocol.codec.local_messages import Scores
from sealring_protocol.codec.messages import (
    CacheCost,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Prefill,
    Ready,
    Row,
    Step,
)
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.requests import (
    FinishReason,
    Outcome,
    QueueFull,
    Request,
    RequestDone,
    SchedulerConfig,
    ScoresOut,
    TokenOut,
)
from sealring_protocol.control.scheduler.rows import GuessCosts, Planned, Way, Ways
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.control.scheduler.times import StepTimes
from sealring_protocol.errors import LocalProtocolError

from fuzz.source import Source

CONTEXT: Final = 96
MOST: Final = 12
EOS: Final = 7
EPOCH: Final = Epoch(1, 1)
CONFIGS: Final = (
    (SchedulerConfig(), 1),
    (SchedulerConfig(groups=2, rows=2, chunk=3, ahead=4), 1),
    (SchedulerConfig(groups=1, rows=1, chunk=1, ahead=3), 2),
    (SchedulerConfig(groups=3, rows=2, chunk=5, retries=1), 2),
    (
        SchedulerConfig(groups=2, rows=2, chunk=30, prefixes=3, prefix_share=0.5, queue=4, ahead=2),
        1,
    ),
    (SchedulerConfig(groups=1, rows=4, chunk=40, prefixes=2, prefix_share=1.0, ahead=16), 2),
)
"""Settings, and the decodes that a group may have in flight."""

ROOMS: Final = (1 << 30, 260, 700)
"""Tokens that a rank has room for."""
FOUND: Final = (
    "0100030000000000000000000000020003036a02",  # a decode of a group that only waits for rows
    "00000100000100000102034603",  # a token of a former life, given to the new one
    "000100004606004a0103002800004601040400010704080303001d0000280604010405000c0204040402030405003e"
    "0203040003030303004604004604003e050024020402030407040304030303040203030040250300460500460503"
    "03040803030400040804080407002801002e020407004604030303003103",  # opened and preempted for ever
)
"""Inputs that once failed."""

_REST: Final = 8000


def seeds() -> Iterator[bytes]:
    """What once failed, and walks that reach every command."""
    yield from map(bytes.fromhex, FOUND)
    for config in range(len(CONFIGS)):
        yield bytes([config, 0, 0, 0, 4, 9, 0, 3, 2]) + bytes([3, 3, 4]) * 30
        walk = [*(0, 3, 5), *(0, 9, 0), 3, 3, 4, 1, 0, 3, 4, 4, 5, 3, 3, 6, 3, 2, 1]
        yield bytes([config, 1, 0, *walk])
        yield bytes(range(9)) * 9
    yield bytes(range(256))


class AlwaysPay(GuessCosts):
    """Guesses pay, however few are right; each time another number of them is read ahead."""

    def __init__(self) -> None:
        super().__init__(StepTimes())
        self.asked = 0

    def break_even(self, ways: Ways) -> float:
        """Any share will do."""
        return 0.0

    @property
    def break_even_piped(self) -> float:
        """Any share will do."""
        return 0.0

    def way(self, share: float, most: int, ways: Ways) -> Way:
        """Any number that there may be, with steps behind or without."""
        self.asked += 1
        sizes = [0, *(guesses for guesses in ways.sizes if guesses <= most)]
        turn, size = divmod(self.asked, len(sizes))
        return Way(ways.piped and turn % 4 > 0, sizes[size])

    @property
    def plain(self) -> float | None:
        """They are known from the beginning."""
        return 1.0


class Ring:
    """A scheduler, the ledger of a rank that gets its steps, and of one that has done only those
    that were answered."""

    def __init__(self, config: SchedulerConfig, window: int, room: int, *, cuttable: bool) -> None:
        self.scheduler = Scheduler(config, CONTEXT)
        self.scheduler.shape(config.groups, window, 3 if window == 1 else 1, guesses=True)
        self.scheduler._guessing.costs = AlwaysPay()
        self.decided: dict[int, bool] = {}  # by step that begins with a guess: whether it was right
        self.config = config
        self.window = window
        cost = CacheCost(0, 1)
        self.ready = Ready(EPOCH, 0, 1, cuttable, room, cost)
        self.now = 0.0
        self.counter = 0
        self.flying: list[Planned] = []
        self.saved: list[tuple[int, int]] = []  # rows of snapshots, and their lengths
        self.expected: dict[int, int] = {}  # next position of each live request
        self.requests: dict[int, Request] = {}
        self.scored: dict[int, int] = {}  # of those with scores, the place of the next one
        self.ended: set[int] = set()
        self.raise_epoch()

    def raise_epoch(self, *, keeps: bool = False) -> None:
        """A new epoch: nothing is in flight, and nothing is held but what it *keeps*."""
        self.counter += 1
        self.scheduler.abandon()
        kept = self.scheduler.kept if keeps else ()
        for each in kept:
            for ledger in (self.ledger, self.behind):
                has = ledger.snaps.get(each.number, 0)
                has = ledger.length(each.number) if ledger.holds(each.number) else has
                assert has == each.length or (has > each.length and self.ready.trimmable)
        self.scheduler.begin(Epoch(1, self.counter), (self.ready,), kept)
        self.ledger, self.behind = Ledger(kept), Ledger(kept)
        self.kept: dict[int, int] = {}
        self.flying.clear()
        self.decided.clear()
        self.n = 0

    def submit(self, length: int, tokens: int | None, *, scores: bool) -> None:
        """A request, perhaps one that can never fit."""
        if len(self.expected) >= MOST:
            return
        request = Request(
            tuple(range(length)),
            tokens,
            frozenset({EOS}),
            Row(0),
            prediction=(1, 1, 2, 1, 1, 1),
            scores=scores,
        )
        try:
            uid = self.scheduler.submit(request)
        except QueueFull:
            assert self.scheduler.waiting == self.config.queue
            return
        except LocalProtocolError:
            assert length == 0 or length + (1 if tokens is None else tokens) > CONTEXT
            return
        assert uid not in self.expected
        self.expected[uid] = length
        self.requests[uid] = request
        self.scored[uid] = 1

    def preempt(self, uid: int) -> None:
        """A row loses its caches, if it lives."""
        if uid in self.expected and uid not in self.ended:
            self.scheduler.preempt(uid)

    def plan(self) -> bool:
        """The next step, if any: it travels, and a rank's ledger takes it."""
        planned = self.scheduler.plan(self.now)
        self.take(self.scheduler.ended())
        if planned is None:
            return False
        step = planned.step
        self.n += 1
        assert step.n == self.n
        assert decode(b"".join(encode(step))) == step
        self.ledger.apply(step)
        assert self.ledger.digest(step.n) == step.digest
        assert self.held() <= self.ready.room
        for save in step.save:
            self.saved.append((save.uid, self.ledger.snaps.get(save.handle, 0)))
        for row in step.open:
            assert not row.handle or self.ready.trimmable or self.kept[row.handle] == row.keep
        assert {row.uid for row in planned.rows} == {row.uid for row in step.open}
        count = 0
        if isinstance(step.work, Prefill):
            count = step.work.count + step.work.scored
            asked = self.requests[step.work.uid]
            assert asked.scores or not step.work.scored
        if isinstance(step.work, Decode):
            count, on_guess = step.work.guesses, step.work.on_guess
            same = sum(self.is_sure(other, step.work.group) for other in self.flying)
            assert same < self.window or on_guess
            assert not step.work.ahead or (self.ready.trimmable and (on_guess or same == 0))
        assert len(step.ids) == len(step.join) + count
        self.flying.append(planned)
        return True

    def is_sure(self, other: Planned, group: int) -> bool:
        """Whether *other* decodes *group*, and is not known to have read a wrong guess."""
        self.decided.update(self.scheduler.decided())
        decodes = isinstance(other.step.work, Decode) and other.step.work.group == group
        return decodes and self.decided.get(other.step.n, True)

    def held(self) -> int:
        """Tokens that the rank has caches for: each group is a rectangle."""
        ledger = self.ledger
        self.kept.update(ledger.snaps)
        rectangles = (len(uids) * max(map(ledger.length, uids)) for uids in ledger.groups.values())
        return sum(rectangles) + sum(ledger.private.values()) + sum(ledger.snaps.values())

    def answer(self, token: int) -> bool:
        """The oldest step in flight is done."""
        if not self.flying:
            return False
        step = self.flying.pop(0).step
        self.behind.apply(step)
        self.decided.update(self.scheduler.decided())
        count, drawn = 0, ()
        if isinstance(step.work, Decode):
            ahead = step.work.ahead
            right = not step.work.on_guess or self.decided.pop(step.n)
            count = right * (len(self.scheduler.uids(step.n)) + ahead)
            assert self.scheduler.lack(step.n, ()) == (f"0 of {count} tokens" if count else "")
            if right:
                guesses = step.ids[len(step.ids) - ahead :]
                drawn = guesses[: token % (ahead + 1)]
                if len(drawn) < ahead and guesses[len(drawn)] == token:
                    token += 1
                count -= ahead
        ids = (*drawn, *(token,) * count)
        self.take(self.scheduler.answered(step.n, ids, self.now, scores=_scores(step)))
        return True

    def fail(self, kind: FailureKind) -> None:
        """The oldest step in flight failed, and its epoch with it."""
        if self.flying:
            n = self.flying[0].step.n
            self.take(self.scheduler.failed(n, Failure(0, kind, "a failure")))
            self.raise_epoch(keeps=kind is FailureKind.LINK_LOST)

    def take(self, outcomes: list[Outcome]) -> None:
        """Tokens come in order, without a gap, and none after the end."""
        for outcome in outcomes:
            match outcome:
                case TokenOut(uid, token, position):
                    assert uid not in self.ended
                    assert token != EOS
                    assert position == self.expected[uid] < CONTEXT
                    assert self.requests[uid].max_tokens != 0
                    self.expected[uid] += 1
                    self.check_scored(uid)
                case ScoresOut(uid, scores):
                    assert uid not in self.ended
                    assert self.requests[uid].scores
                    assert scores.position == self.scored[uid]
                    self.scored[uid] = scores.end
                case RequestDone(uid, reason):
                    assert uid in self.expected
                    if reason is FinishReason.LENGTH and self.requests[uid].max_tokens == 0:
                        self.check_scored(uid)
                    assert uid not in self.ended
                    self.ended.add(uid)

    def check_scored(self, uid: int) -> None:
        """All scores of row *uid*'s prompt have been told, if it wants them."""
        asked = self.requests[uid]
        assert not asked.scores or self.scored[uid] == len(asked.prompt)

    def drain(self) -> None:
        """Answer everything; then nothing is left."""
        for _ in range(_REST):
            if not self.plan() and not self.answer(1 + (self.n % 5 == 0)):
                break
        assert not self.flying
        assert self.ended == set(self.expected)
        # The token that ended a row was not told, and may be in its cache.
        assert all(length <= self.expected[uid] + 1 for uid, length in self.saved)
        assert self.scheduler.live == self.scheduler.in_flight == 0
        for ledger in (self.ledger, self.scheduler.ledger):
            assert not ledger.private
            assert not ledger.groups
            assert len(ledger.snaps) == self.scheduler.snapshots <= self.config.prefixes


def _scores(step: Step) -> tuple[Scores, ...]:
    """Those of *step*, in messages of two tokens at most."""
    work = step.work
    if not (isinstance(work, Prefill) and work.scored):
        return ()
    first, end = work.position + 1, work.position + work.count + 1
    places = [range(at, min(end, at + 2)) for at in range(first, end, 2)]
    return tuple(
        Scores(step.n, work.uid, some.start, (-1.0,) * len(some), (1,) * len(some))
        for some in places
    )


def check(data: bytes) -> None:
    """Commands, then the rest."""
    source = Source(data)
    (config, window), room = source.pick(CONFIGS), source.pick(ROOMS)
    ring = Ring(config, window, room, cuttable=source.below(2) == 0)
    while not source.empty:
        ring.now += 0.01
        match source.below(10):
            case 0:
                tokens = source.below(8)
                asked = None if tokens == 1 else max(0, tokens - 1)
                ring.submit(source.below(80), asked, scores=source.below(3) == 0)
            case 1:
                ring.take(ring.scheduler.cancel(source.below(12)))
            case 2:
                ring.take(ring.scheduler.finish(source.below(12)))
            case 3:
                ring.plan()
            case 4:
                ring.answer(source.below(9))
            case 5:
                ring.fail(source.pick(tuple(FailureKind)))
            case 6:
                ring.raise_epoch()
            case 7:
                ring.preempt(source.below(12))
            case 8:
                guesses = [source.below(9) for _ in range(source.below(5))]
                ring.scheduler.guess(source.below(12), source.below(80), guesses)
            case _:
                ring.now += source.below(200) / 100
    ring.drain()
