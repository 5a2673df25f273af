"""The scheduler, on the head alone: it chooses the next step and interprets its answer.

Requests become rows and wait (`running_rows`). As far as the ranks have room for their caches
(`CacheRoom`), rows are prefilled chunk by chunk (`batching`) into private caches, join a group, and
get one token for each DECODE step of their group. Every change of the set of rows is one of two:
open and prefill, or leave (evict, drop). Cancelling, preempting and recovering from a lost epoch
therefore share one path: the row leaves, and if it goes on, its prompt and its tokens so far are
prefilled again. A row that ends leaves a snapshot (`running_rows`), from which a later row with the
same beginning is opened.

Steps are executed in order, so a step may name rows whose earlier steps are still under way. An
evict takes effect after the decode in flight. That decode's surplus token is dropped, because its
row is gone or has that token already.

In a pipeline, a group has one decode on its way round (*window* 1), because its next one needs the
token; several groups in flight keep the stages busy. Where stages would still be idle, a row that
is alone in its group decodes on guesses of its next tokens (`guesses`), until as many decodes are
under way as there are stages. A step may also read several guesses (*ahead*), where that pays: with
or without steps behind it, and on one rank and in tensor parallelism as well. Wrong guesses are
taken back by the next step. In a pipeline, a decode stops counting when its hidden states are back
at the head.

The rank that draws the token has it on the device at once, so the next decode can follow before the
head knows the token. With one rank, or in tensor parallelism, two may therefore be in flight
(*window* 2).

`Losses` says what becomes of rows when a forward fails.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from sealring_protocol.codec.local_messages import Logprobs, Scores
from sealring_protocol.codec.messages import (
    NO_LOGPROBS,
    NO_WORK,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Join,
    KeptCache,
    Open,
    Prefill,
    Ready,
    Save,
    Step,
    Work,
)
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.epoch.ledger import DIGEST_SIZE, Ledger
from sealring_protocol.control.epoch.pipeline import weight
from sealring_protocol.control.requests import (
    FinishReason,
    Outcome,
    Request,
    RowOpened,
    SchedulerConfig,
    ScoresOut,
    TokenIds,
    TokenOut,
)
from sealring_protocol.control.scheduler.batching import Chunks, group_count
from sealring_protocol.control.scheduler.rows import (
    GUESSES_AHEAD,
    Fed,
    Flight,
    Flights,
    GuessCosts,
    LiveRow,
    Planned,
    Ways,
)
from sealring_protocol.control.scheduler.running_rows import RunningRows
from sealring_protocol.control.scheduler.times import StepTimes
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_GUESSED
from sealring_protocol.words import named


@attrs.frozen
class Guess:
    """*row*, alone in its group, is likely to go on with *tokens*."""

    row: LiveRow
    tokens: tuple[int, ...]


class Guessing:
    """Guesses of the rows *running*, whose steps are *flights*.

    A row has its guesses in two ways. Steps that begin with a guess follow the one that reads its
    last token, so that idle stages have work. And a step may read several *ahead*; then the next
    one that begins with no guess waits until the tokens are known.
    """

    def __init__(self, running: RunningRows, flights: Flights, times: StepTimes) -> None:
        self._running = running
        self._flights = flights
        self.costs = GuessCosts(times)
        self._stages = 0
        self._sizes: tuple[int, ...] = ()

    def shape(self, stages: int) -> None:
        """A step passes so many *stages*, which guesses may keep at work; 0: there are no
        guesses."""
        self._stages = stages
        most = (self._running.config.ahead or 0) if stages else 0
        most = min(most, MAX_GUESSED)
        self._sizes = tuple(sorted({*(n for n in GUESSES_AHEAD if n < most), most} - {0}))
        self._running.room.ahead = most

    def prompt_read(self, row: LiveRow, count: int) -> None:
        """Ranks have read so many further tokens of the prompt of *row*. It may guess, unless there
        are more rows than stages: those keep the stages at work."""
        able = self._sizes or self._stages > 1
        if able and len(self._running.live) <= self._stages:
            row.guesses.prompt_read(count)

    def next(self) -> Guess | None:
        """What to guess now, if stages are idle and there is a guess."""
        if not 0 < self._flights.busy < self._stages or self.reading:
            return None
        rows = list(filter(None, map(self._alone, self._running.ledger.groups)))
        if len(rows) > 1:
            rows.sort(key=lambda row: len(row.guesses.fed))
        for row in rows:
            if self._may_guess(row):
                self._find_ways(row)
                most = min(MAX_GUESSED - len(row.guesses.under_way), self._left(row))
                if tokens := row.guesses.next(self.costs, most):
                    return Guess(row, tokens)
        return None

    def waits(self, group: int) -> bool:
        """Whether the next decode of *group* waits for the tokens of the one in flight: that has
        read guesses ahead, or the next one is to read some after it."""
        for uid in self._running.ledger.groups.get(group, ()):
            if (each := self._running.rows.get(uid)) is not None and each.guesses.ahead:
                return True
        row = self._alone(group)
        return row is not None and row.coming > 0 and bool(self._after_last(row))

    def ahead(self, group: int) -> tuple[int, ...]:
        """The guesses that the row of *group* reads ahead with its next decode, if it is alone."""
        row = self._alone(group)
        return () if row is None or row.coming else self._after_last(row)

    def drawn(self, row: LiveRow, flight: Flight, tokens: Sequence[int], now: float) -> None:
        """*row* goes on with *tokens*, which *flight* gave: its guesses are confirmed, or have the
        next step take them back."""
        alone = self._is_only(row)
        right = row.guesses.drawn(flight.guesses, tokens, now, self.costs, alone=alone)
        if right is None:
            self._running.waste(row)
        else:
            self._flights.confirm(right)

    @property
    def reading(self) -> bool:
        """Whether prompts are read."""
        return self._flights.chunks > 0 or (bool(self._running.reading and self._running.unread()))

    def _is_only(self, row: LiveRow) -> bool:
        """Whether nothing but *row* is at work."""
        return len(self._running.live) == 1 and row.uid in self._running.live

    def _alone(self, group: int) -> LiveRow | None:
        """The row that is alone in *group*, if there is one, and nobody is about to join it."""
        rows = self._running.ledger.groups.get(group, ())
        single = len(rows) == 1 and not (self._running.reading and self._running.joiners(group))
        return self._running.rows.get(rows[0]) if single else None

    def _after_last(self, row: LiveRow) -> tuple[int, ...]:
        """The guesses that *row*, alone in its group, is to read ahead with the step that reads its
        last token, once those in flight are known."""
        self._find_ways(row)
        sizes = row.guesses.ways.sizes
        if not sizes or self.reading or not self._running.stays(row):
            return ()
        most = min(sizes[-1], self._left(row) - 1)
        return row.guesses.after_last(self.costs, row.coming, most) if most > 0 else ()

    def _find_ways(self, row: LiveRow) -> None:
        """Tell *row*, alone in its group, in which ways it may guess."""
        running = self._running
        able = running.prefixes.cuttable and row.request.sampling.logprobs == NO_LOGPROBS
        sizes = self._sizes if able else ()
        row.guesses.ways = Ways(len(running.live) < self._stages, sizes, self._is_only(row))

    def _left(self, row: LiveRow) -> int:
        """How many tokens *row* may read beyond those in flight, so that one is drawn after
        each."""
        return min(row.end, self._running.room.longest) - row.reach

    def _may_guess(self, row: LiveRow) -> bool:
        """Whether *row*, alone in its group, may decode on a guess now: each of its steps in flight
        but the first begins with a guess."""
        settled = row.uid not in self._running.backs and self._running.stays(row)
        return settled and row.coming == len(row.guesses.fed) + 1 and self._fits(row)

    def _fits(self, row: LiveRow) -> bool:
        """Whether each rank has room to keep what takes one more guess of *row* back: a state, if
        its caches cannot be cut, which is no larger than a snapshot. For the first one there is the
        room of a copy (`CacheRoom`)."""
        running = self._running
        if running.prefixes.cuttable:
            return True
        kept = sum(len(other.guesses.fed) for other in running.live.values())
        held = [*running.snapshot_lengths(), *[len(row.tokens)] * kept]
        return running.room.shortage(running.live.values(), held) <= 0


class Results:
    """What comes of the steps of the rows *running*, some of which are *guessing*."""

    def __init__(self, running: RunningRows, guessing: Guessing) -> None:
        self._running = running
        self._guessing = guessing

    def of_prefill(self, work: Prefill, scores: Sequence[Scores]) -> list[Outcome]:
        """A chunk was read, and gave *scores*. Those that were given before (of a row that was
        interrupted) are dropped."""
        row = self._running.rows.get(work.uid)
        if row is None:
            return []
        if row.draws:
            self._guessing.prompt_read(row, work.count)
        due = row.scored + 1
        new = [some.since(due) for some in scores if some.end > due]
        if new:
            row.scored = new[-1].end - 1
            row.stalls = row.tries = 0
        outcomes: list[Outcome] = [ScoresOut(row.uid, some) for some in new]
        if not row.draws and work.position + work.count == len(row.tokens) - 1:
            outcomes += self._running.end(row.uid, FinishReason.LENGTH)
        return outcomes

    def of_decode(
        self,
        flight: Flight,
        ids: Sequence[int],
        now: float,
        logprobs: Mapping[int, Logprobs],
        over: Mapping[int, str],
    ) -> list[Outcome]:
        """The step *flight* gave *ids*, with *logprobs* for some rows. Those that are *over* end in
        place of their last token: complete, or for the reason that is given."""
        outcomes: list[Outcome] = []
        for uid, position, tokens in flight.tokens(ids):
            row = self._running.rows.get(uid)
            # Ignore the surplus token of a row that is in prefill again: it will be drawn again,
            # with the same result.
            if row is not None and position == len(row.tokens) and uid not in self._running.reading:
                outcomes += self._drew(row, flight, tokens, now, logprobs.get(uid), over.get(uid))
        return outcomes

    def _drew(
        self,
        row: LiveRow,
        flight: Flight,
        tokens: Sequence[int],
        now: float,
        logprobs: Logprobs | None,
        over: str | None,
    ) -> list[Outcome]:
        """The step *flight* gave *row* *tokens*. See `of_decode` for a row that is *over*."""
        ahead, known = len(flight.guesses), len(row.tokens)
        takes_back = ahead > 0 and self._running.stays(row)
        if over is not None:
            tokens = tokens[:-1]
        if tokens:
            self._guessing.drawn(row, flight, tokens, now)
        outcomes: list[Outcome] = []
        for token in tokens:
            if row.uid in self._running.rows:
                outcomes += self._token(row, token, logprobs)
        if over is not None:
            ended = FinishReason.UNHELD if over else FinishReason.STOP
            outcomes += self._running.end(row.uid, ended, over)
        if takes_back:
            self._running.take_back(row, known + 1 + ahead - len(row.tokens))
        return outcomes

    def _token(self, row: LiveRow, token: int, logprobs: Logprobs | None) -> list[Outcome]:
        position = len(row.tokens)
        row.tokens.append(token)
        row.stalls = row.tries = 0
        if token in row.request.eos:
            return self._running.end(row.uid, FinishReason.STOP)
        outcomes: list[Outcome] = [TokenOut(row.uid, token, position, logprobs)]
        if len(row.tokens) >= row.end:
            return outcomes + self._running.end(row.uid, FinishReason.LENGTH)
        if row.suspect:
            row.suspect = False
            row.failures = 0
            if any(other.suspect for other in self._running.rows.values()):
                self._running.preempt(row.uid)
        return outcomes


_SUSPICIOUS: Final = {FailureKind.ENGINE_ERROR, FailureKind.ENGINE_LOST, FailureKind.MEMORY}
_ANY_STEP: Final = {FailureKind.ENGINE_LOST, FailureKind.MEMORY}
"""Failures that any step under way may have caused."""

_NO_MEMORY: Final = (
    ". That rank has too little memory for this request, even alone: shorten the prompt, lower "
    "max_tokens, or give the rank more"
)
_STALLS: Final = {FailureKind.DEADLINE: 8, FailureKind.INTEGRITY: 5, FailureKind.LEDGER: 5}
"""How many stalls a lost step counts as; others count one. A deadline has cost minutes, and a rank
that answers wrongly will do so again. A broken link comes back."""


@attrs.frozen
class Loss:
    """What was under way when *epoch* was lost.

    *uids* are the rows of the steps at fault, *all_uids* those of all steps. *alone* is whether
    only one row had caches. *taken* has two byte counts for each rank: what all caches took, and
    what the longest row's took.
    """

    epoch: Epoch | None
    uids: tuple[int, ...]
    all_uids: tuple[int, ...]
    alone: bool
    taken: tuple[tuple[int, int], ...]


class Losses:
    """What becomes of the rows *running* when a step is lost: which are suspected, and which are
    given up.

    If a forward fails, the rows of its step are suspects. If nobody knows which step was at
    fault (an engine died, or memory ran out), the rows of every step under way are. In the new
    epoch each suspect runs alone until it gets a token; then the next suspect runs. Only a row
    that fails alone is given up. If memory ran out while several rows had caches, the rank is
    assumed to have less room than they took, so that fewer rows run together.
    """

    def __init__(self, running: RunningRows) -> None:
        self._running = running
        self._unexplained: Loss | None = None  # the last, if only a broken link has reported it

    def forget(self) -> None:
        """Expect no explanation of the last loss: the ranks may be other machines now."""
        self._unexplained = None

    def of(
        self, epoch: Epoch | None, flights: Mapping[int, Flight], n: int, kind: FailureKind
    ) -> Loss:
        """The `Loss` if step *n* of *epoch* fails with *kind* and ends all *flights*, the steps
        under way by number."""
        every = tuple(dict.fromkeys(itertools.chain(*(f.uids for f in flights.values()))))
        # An engine that died does not say which step killed it, and any step may have taken too
        # much memory.
        own = flights[n].uids if n in flights else ()
        at_fault = every if kind in _ANY_STEP else own
        return Loss(epoch, at_fault, every, len(self._running.live) == 1, self._running.taken())

    def settle(self, loss: Loss, failure: Failure) -> list[Outcome]:
        """Count the loss against its rows. They become suspects if *failure* is a forward's. Those
        that have used up their retries, or make no progress, end."""
        rows = self._living(loss.uids)
        for row in rows:
            row.tries += 1
            row.guesses.pause()  # a guess takes more room, and may have been at fault
            row.stalls += _STALLS.get(failure.kind, 1)
        suspicious = failure.kind in _SUSPICIOUS
        self._unexplained = None if suspicious else loss
        outcomes = self._suspect(loss.uids, loss, failure) if suspicious else []
        for row in rows:
            if row.stalls > self._running.config.stalls:
                outcomes += self._give_up(row, failure)
        return outcomes

    def explained(self, epoch: Epoch, failure: Failure) -> list[Outcome]:
        """*failure* explains why *epoch* was lost, which so far only a broken link had reported.
        Its rows become suspects. Rows that the next epoch has opened meanwhile are preempted."""
        loss = self._unexplained
        if loss is None or loss.epoch != epoch or failure.kind not in _ANY_STEP:
            return []
        self._unexplained = None
        for uid in list(self._running.live):
            self._running.preempt(uid)
        return self._suspect(loss.all_uids, loss, failure)

    def _living(self, uids: Iterable[int]) -> list[LiveRow]:
        return [self._running.rows[uid] for uid in uids if uid in self._running.rows]

    def _suspect(self, uids: Iterable[int], loss: Loss, failure: Failure) -> list[Outcome]:
        """A forward with *uids* failed: suspect them. A row that has failed alone too often
        ends."""
        outcomes: list[Outcome] = []
        if failure.kind is FailureKind.MEMORY and not loss.alone:
            self._running.room.learn(failure.rank, loss.taken)
        for row in self._living(uids):
            row.suspect = True
            row.failures += 1
            if loss.alone and row.failures > self._running.config.retries:
                advice = _NO_MEMORY if failure.kind is FailureKind.MEMORY else ""
                outcomes += self._give_up(row, failure, advice)
        return outcomes

    def _give_up(self, row: LiveRow, failure: Failure, advice: str = "") -> list[Outcome]:
        place = named(self._running.config.ranks, failure.rank)
        text = f"given up after {row.tries} tries; the last, on {place}: "
        return self._running.end(row.uid, FinishReason.FAILED, text + failure.message + advice)


class StepMaker:
    """The steps of one epoch after the other, of the rows *running*; they become *flights*."""

    def __init__(self, running: RunningRows, flights: Flights) -> None:
        self._running = running
        self._flights = flights
        self.decoded: Counter[int] = Counter()
        """The number of each group's latest decode step; 0 before the first."""
        self.epoch: Epoch | None = None
        """The epoch; None between two."""
        self.n = 0
        """The number of the latest step."""

    def begin(self, epoch: Epoch) -> None:
        """Number the steps of *epoch* from 1."""
        self.epoch = epoch
        self.n = 0
        self.decoded.clear()

    def end(self) -> None:
        """The epoch is over."""
        self.epoch = None

    def make(
        self,
        saves: list[Save],
        opened: list[LiveRow],
        joining: Sequence[LiveRow],
        work: Work,
        now: float,
        guesses: tuple[int, ...] = (),
    ) -> Planned:
        """The next step: with *work*, which reads *guesses*, and all that comes and goes before."""
        running = self._running
        ids = [*[row.tokens[-1] for row in joining], *guesses]
        for row in joining:
            running.join(row)
        if isinstance(work, Prefill):
            end = work.position + work.count + work.scored  # the token after them is scored, too
            ids += running.rows[work.uid].tokens[work.position : end]
        assert self.epoch is not None  # noqa: S101  the caller has checked it
        self.n += 1
        step = Step(
            self.epoch,
            self.n,
            bytes(DIGEST_SIZE),
            back=running.taken_back,
            save=tuple(saves),
            evict=tuple(running.leaving),
            drop=tuple(running.dropping),
            open=tuple([Open(row.uid, row.handle, row.kept) for row in opened]),
            join=tuple([Join(row.uid, row.group) for row in joining]),
            work=work,
            ids=tuple(ids),
        )
        running.carried_out(step)
        flight = self._flight(work, now, guesses)
        if step.changes:
            flight.moved = moved_by(step, cuttable=running.prefixes.cuttable)
        tokens = work.count if isinstance(work, Prefill) else len(flight.uids) + len(flight.guesses)
        flight.weight = weight(step) + tokens * running.config.hidden_bytes
        for row in opened:
            row.unready += row.held
            flight.weight += row.row_weight
        self._flights.add(self.n, flight)
        step = attrs.evolve(step, digest=running.ledger.digest(self.n))
        rows = tuple([RowOpened(row.uid, len(row.tokens), row.kept) for row in opened])
        return Planned(step, tuple([row.sampling for row in opened]), rows)

    def _flight(self, work: Work, now: float, guesses: tuple[int, ...]) -> Flight:
        running = self._running
        match work:
            case Decode(group, _, ahead) as decode:
                uids, drawn = running.ledger.groups[group], list[int]()
                self.decoded[group] = self.n
                for uid in uids:
                    row = running.rows[uid]
                    row.position += 1 + ahead
                    row.flying += 1
                    drawn.append(running.ledger.length(uid) - ahead)
                read_ahead = guesses[len(guesses) - ahead :]
                if ahead and not decode.on_guess:
                    running.rows[uids[0]].guesses.ahead = read_ahead
                return Flight(work, uids, tuple(drawn), now, guesses=read_ahead)
            case Prefill(uid, _, count):
                row = running.rows[uid]
                row.position += count
                if row.position in row.stops:
                    running.keep_prefix(row)
                if row.unread == 0:
                    running.read(row)
                return Flight(work, (uid,), (), now)
            case _:
                return Flight(work, (), (), now)


def moved_by(step: Step, *, cuttable: bool) -> frozenset[int]:
    """The numbers of the caches that come or go with *step*. One that a row takes over does not;
    one that gets shorter does where caches are not *cuttable*."""
    moved = {*step.evict, *step.drop, *[save.handle for save in step.save]}
    moved.update([row.uid for row in step.open if row.handle != row.uid])
    if not cuttable:
        moved.update([back.uid for back in step.back])
    return frozenset(moved)


_NONE: Final[Mapping[int, Any]] = {}


class Scheduler:
    """The rows, groups and steps of a head. Times are monotonic seconds from the caller."""

    def __init__(self, config: SchedulerConfig, context: int, first_uid: int = 1) -> None:
        """*context* is the longest row in tokens; uids rise from *first_uid*."""
        self.config = config
        self._running = RunningRows(config, context, first_uid)
        self._flights = Flights()
        self._maker = StepMaker(self._running, self._flights)
        self._times = StepTimes()
        self._chunks = Chunks(config, self._times)
        self._read_last = False
        self._losses = Losses(self._running)
        self._window = self._stages = 1
        self._groups = config.groups  # 0: as many as pay
        self._guessing = Guessing(self._running, self._flights, self._times)
        self._results = Results(self._running, self._guessing)

    # -------------------------------------------------------------- requests

    @property
    def live(self) -> int:
        """Requests that are not over."""
        return len(self._running.rows)

    @property
    def waiting(self) -> int:
        """Requests that have not been opened yet."""
        return len(self._running.waiting)

    @property
    def in_flight(self) -> int:
        """Steps that wait for their answer."""
        return len(self._flights.by_number)

    @property
    def snapshots(self) -> int:
        """Snapshots that the ranks hold."""
        return len(self._running.prefixes)

    @property
    def learnt(self) -> dict[int, int]:
        """The limit in bytes for the caches of several rows, by rank whose memory ran out."""
        return dict(self._running.room.learnt)

    @property
    def ledger(self) -> Ledger:
        """The head's ledger of this epoch."""
        return self._running.ledger

    def submit(self, request: Request) -> int:
        """Queue *request*; returns its uid.

        Raises `ContextOverflow` or `RoomOverflow` if it can never fit, `QueueFull` if the queue is
        full, and another `LocalProtocolError` for an empty prompt, or for what no ROW can say.
        """
        prediction = self._known(request.prediction)
        guesses = None if request.guesses is None else self._known(request.guesses)
        return self._running.submit(attrs.evolve(request, prediction=prediction, guesses=guesses))

    def _known(self, guesses: Sequence[int]) -> TokenIds:
        """*guesses* up to the first beyond the vocabulary, which no step may have."""
        most, ids = self.config.vocabulary, TokenIds(guesses)
        if not most or ids.bounds[1] < most:
            return ids
        return TokenIds(itertools.takewhile(lambda token: token < most, ids))

    def cancel(self, uid: int) -> list[Outcome]:
        """Cancel *uid* in any state; the next step frees its caches. It may be unknown."""
        return self._running.end(uid, FinishReason.CANCELLED)

    def refuse(self, reason: str) -> list[Outcome]:
        """End every request, because the ring cannot serve, for *reason*."""
        end = self._running.end
        return [o for uid in [*self._running.rows] for o in end(uid, FinishReason.REFUSED, reason)]

    def finish(self, uid: int) -> list[Outcome]:
        """End *uid* as complete: its text reached a stop string."""
        return self._running.end(uid, FinishReason.STOP)

    def preempt(self, uid: int) -> None:
        """Free the caches of *uid*; it is prefilled again when there is room."""
        self._running.preempt(uid)

    def shape(self, groups: int, window: int, stages: int = 1, *, guesses: bool = False) -> None:
        """Use *groups* groups (0: as many as pay), at most as many as are configured, each with at
        most *window* decodes in flight. A step passes *stages* ranks, one after the other; with
        *guesses* idle ones decode on guesses, and rows may read several ahead. Call only between
        epochs."""
        self._window, self._stages, self._groups = window, stages, groups
        self._guessing.shape(stages if guesses else 0)
        self._chunks.stages = stages
        self._times.begin()
        self._spread()

    def _spread(self) -> None:
        """Say over how many groups new rows are spread."""
        most, groups = max(1, self.config.groups), self._groups
        if not groups:
            rows = len(self._running.live) + len(self._running.waiting)
            groups = group_count(self._times, rows, self._stages, most, self.config.rows)
        self._running.groups = min(groups, most)
        self._running.most_groups = self._running.groups if self._groups else most

    def resize(self, config: SchedulerConfig) -> None:
        """Change the configuration; the ring may have other ranks now. Call only between epochs."""
        self.config = config
        self._running.config = config
        self._chunks.config = config
        self._spread()

    def forget_ranks(self) -> None:
        """Forget the ranks' memory limits and times: each may be another machine now. Call only
        between epochs."""
        self._losses.forget()
        self._running.room.learnt.clear()
        self._times.forget()

    # ---------------------------------------------------------------- epochs

    def begin(
        self, epoch: Epoch, ranks: Sequence[Ready] = (), kept: tuple[KeptCache, ...] = ()
    ) -> None:
        """Start *epoch*, of which *ranks* report their room. They hold what is *kept*, which is of
        `kept`; other rows are prefilled again."""
        self.abandon()
        self._maker.begin(epoch)
        self._running.begin(ranks, kept)

    def abandon(self) -> None:
        """The epoch is over: no step is in flight, and every row waits to be prefilled again."""
        if self._maker.epoch is not None:
            self._maker.end()
            self._running.abandon(self._flights.by_number.values())
            self._flights.clear()

    @property
    def kept(self) -> tuple[KeptCache, ...]:
        """What every rank surely held when the last epoch ended, if no engine of it has failed."""
        return self._running.kept

    def failed(self, n: int, failure: Failure) -> list[Outcome]:
        """Step *n* failed, and its epoch with it. Its rows become suspects if a forward was at
        fault. A row that has used up its retries, or makes no progress, ends."""
        loss = self._losses.of(self._maker.epoch, self._flights.by_number, n, failure.kind)
        self.abandon()
        return self._losses.settle(loss, failure)

    def explained(self, epoch: Epoch, failure: Failure) -> list[Outcome]:
        """See `Losses.explained`."""
        return self._losses.explained(epoch, failure)

    def guess(self, uid: int, position: int, tokens: Sequence[int]) -> None:
        """From *position* on row *uid*, if there is one, is likely to go on with *tokens*."""
        if (row := self._running.rows.get(uid)) is not None:
            row.guesses.give(position, self._known(tokens))

    def prepared(self, uid: int, reason: str) -> list[Outcome]:
        """The head's engine has prepared the grammar of row *uid*, which may be gone, as often as
        it was announced; or it cannot, for *reason*."""
        row = self._running.rows.get(uid)
        if row is None or not row.unready:
            return []
        row.unready -= 1
        return self._running.end(uid, FinishReason.UNHELD, reason) if reason else []

    # ----------------------------------------------------------------- steps

    def plan(self, now: float) -> Planned | None:
        """The next step; None while there is nothing to do, or no credit for it."""
        if self._maker.epoch is None or self._flights.is_full(self.config):
            return None
        running = self._running
        if running.wrong:
            self._flights.waste(running.wrong)
        running.retire()
        running.make_room()
        saves = running.saves() if running.saving else []
        if running.waiting:
            self._spread()
            running.open_rows()
        opened = running.new() if running.reading else []
        group = self._next_group()
        row = self._next_chunk() if running.reading else None
        if row is not None and (group is None or not self._read_last):
            self._read_last = True
            chunk = self._chunks.cut(row, running.unread(), decoding=self._decoding)
            return self._maker.make(saves, opened, (), chunk, now)
        self._read_last = False
        if group is not None:
            room = self.config.rows - running.staying(group)
            joining = running.joiners(group)[:room]
            ahead = self._guessing.ahead(group)
            work = Decode(group, len(ahead), len(ahead))
            return self._maker.make(saves, opened, joining, work, now, ahead)
        # Grammars of rows that are opened can be prepared meanwhile.
        held = bool(opened) and any(row.held for row in opened)
        changes = held or saves or running.leaving or running.dropping
        return self._maker.make(saves, opened, (), NO_WORK, now) if changes else self._guess(now)

    def _guess(self, now: float) -> Planned | None:
        """A decode of a row on a guess, if stages are idle and there is a guess; else None."""
        if (guess := self._guessing.next()) is None:
            return None
        guesses = guess.row.guesses
        guesses.fed.append(Fed(self._maker.n + 1, guess.tokens))
        work = Decode(guess.row.group, len(guesses.under_way), len(guess.tokens) - 1)
        return self._maker.make([], [], (), work, now, guess.tokens)

    def decided(self) -> list[tuple[int, bool]]:
        """See `Flights.decided`."""
        if self._running.wrong:
            self._flights.waste(self._running.wrong)
        return self._flights.decided()

    def ended(self) -> list[Outcome]:
        """Take the requests that planning has ended because there is no room for them."""
        ended, self._running.ended = self._running.ended, []
        return ended

    # ------------------------------------------------------------ who works next

    def _next_group(self) -> int | None:
        """Of the groups with rows and credit, the one that has waited longest; None if there is
        none."""
        running, flying, ready = self._running, self._flights.decodes(), list[int]()
        groups = {*running.ledger.groups}
        if running.reading:
            groups.update([row.group for row in running.reading.values()])
        for group in groups:
            credit = flying.get(group, 0) < self._window
            has_rows = credit and (running.staying(group) or running.joiners(group))
            if has_rows and not self._guessing.waits(group):
                ready.append(group)
        return min(ready, key=lambda group: (self._maker.decoded[group], group), default=None)

    def _next_chunk(self) -> LiveRow | None:
        """The row to prefill next; None if there is none, or no credit for it."""
        rows = self._running.unread()
        flights = self._flights.by_number.values()
        if not rows or not self._chunks.has_room(flights, decoding=self._decoding):
            return None
        return self._chunks.next(rows)

    @property
    def _decoding(self) -> bool:
        """Whether rows wait for tokens."""
        flights = self._flights.by_number.values()
        return bool(self.ledger.groups) or any(isinstance(each.work, Decode) for each in flights)

    def uids(self, n: int) -> tuple[int, ...]:
        """The rows that step *n* works on; it must be in flight."""
        return self._flights.by_number[n].uids

    def lengths(self, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rows that step *n* works on, and how many tokens their caches hold after it."""
        return self.uids(n), tuple(map(self.ledger.length, self.uids(n)))

    # --------------------------------------------------------------- answers

    def passed_on(self, n: int) -> None:
        """The head's engine has passed step *n* on to the next rank."""
        self._flights.by_number[n].passed = True

    @property
    def slow_links(self) -> str:
        """See `ChunkTimes.slow_links`."""
        return self._times.chunks[False].slow_links

    @property
    def guess_seconds(self) -> dict[str, float]:
        """See `StepTimes.of_guesses`."""
        return self._times.of_guesses

    def took(self, timing: StepTiming) -> None:
        """Learn from *timing*, of a step that was answered."""
        lone = isinstance(timing.work, Decode) and not (timing.work.guessed or timing.parallel)
        if lone and not (self._guessing.reading or self._flights.guesses):
            self._times.took(timing, [*map(len, self.ledger.groups.values())])
        else:
            self._times.took(timing)

    def returned(self, n: int) -> None:
        """Step *n* has come back from the ring. Only the head's engine still works on it, and it
        can start the next step without waiting for the tokens."""
        self._flights.by_number[n].returned = True

    def lack(self, n: int, ids: Sequence[int], scores: Sequence[Scores] = ()) -> str:
        """What an answer to step *n*, which is in flight, with *ids* and *scores* lacks, in words;
        empty if it is right. See `Flight.lack`."""
        scored = sum([len(some.chosen) for some in scores]) if scores else 0
        return self._flights.by_number[n].lack(ids, scored)

    def answered(
        self,
        n: int,
        ids: tuple[int, ...],
        now: float,
        logprobs: Mapping[int, Logprobs] = _NONE,
        scores: Sequence[Scores] = (),
        over: Mapping[int, str] = _NONE,
    ) -> list[Outcome]:
        """Step *n* is done: it gave *ids*, for each of its rows one, and *logprobs* for some. One
        that reads ahead gives its only row several. One that scores tokens gave *scores* of all, in
        order. Rows that are *over* end in place of their last token of the step: complete, or for
        the reason that is given.

        Raises `RemoteProtocolError` for a step that is not in flight, or for a wrong number of
        tokens or scores.
        """
        lack = self.lack(n, ids, scores) if n in self._flights.by_number else ""
        flight = self._flights.pop(n)
        if flight is None:
            raise RemoteProtocolError(f"an answer to step {n}, which waits for none")
        if lack:
            raise RemoteProtocolError(f"step {n} was answered with {lack}")
        self._running.landed(flight)
        if isinstance(flight.work, Prefill):
            return self._results.of_prefill(flight.work, scores)
        return self._results.of_decode(flight, ids, now, logprobs, over)
