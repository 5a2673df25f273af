"""The scheduler, on the head alone: it chooses the next step and interprets its answer.

Requests become rows and wait (`waiting`). As far as the ranks have room for their caches
(`cache_room`), rows are prefilled chunk by chunk (`chunks`) into private caches, join a group, and
get one token for each DECODE step of their group. Every change of the set of rows is one of two:
open and prefill, or leave (evict, drop). Cancelling, preempting and recovering from a lost epoch
therefore share one path: the row leaves, and if it goes on, its prompt and its tokens so far are
prefilled again. A row that ends leaves a snapshot (`prefixes`), from which a later row with the
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

`results` says what an answer brings its rows, and `losses` what becomes of them when a forward
fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from sealring_protocol.codec.local_messages import Logprobs, Scores
from sealring_protocol.codec.messages import (
    NO_WORK,
    Decode,
    Epoch,
    Failure,
    Prefill,
    Ready,
)
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.epoch.ledger import Ledger
from sealring_protocol.control.scheduler.chunks import Chunks
from sealring_protocol.control.scheduler.flights import Flights
from sealring_protocol.control.scheduler.group_tuner import GroupTuner
from sealring_protocol.control.scheduler.guesses import Fed
from sealring_protocol.control.scheduler.guessing import Guessing
from sealring_protocol.control.scheduler.losses import Losses
from sealring_protocol.control.scheduler.requests import (
    FinishReason,
    Outcome,
    Request,
    SchedulerConfig,
    TokenIds,
)
from sealring_protocol.control.scheduler.results import Results
from sealring_protocol.control.scheduler.rows import LiveRow, Planned
from sealring_protocol.control.scheduler.running_rows import RunningRows
from sealring_protocol.control.scheduler.step_making import StepMaker
from sealring_protocol.errors import RemoteProtocolError

_NONE: Final[Mapping[int, Any]] = {}


class Scheduler:
    """The rows, groups and steps of a head. Times are monotonic seconds from the caller."""

    def __init__(self, config: SchedulerConfig, context: int, first_uid: int = 1) -> None:
        """*context* is the longest row in tokens; uids rise from *first_uid*."""
        self.config = config
        self._running = RunningRows(config, context, first_uid)
        self._flights = Flights()
        self._maker = StepMaker(self._running, self._flights)
        self._chunks = Chunks(config)
        self._read_last = False
        self._losses = Losses(self._running)
        self._window = self._stages = 1
        self._groups = config.groups  # 0: as many as pay
        self._tuner = GroupTuner()
        self._guessing = Guessing(self._running, self._flights)
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
        return len(self._flights)

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
        self._chunks.shape(stages)
        self._spread()

    def _spread(self) -> None:
        """Say over how many groups new rows are spread."""
        most, groups = max(1, self.config.groups), self._groups
        if not groups:
            rows = len(self._running.live) + len(self._running.waiting)
            groups = self._tuner.groups(rows, self._stages, most, self.config.rows)
        self._running.groups = min(groups, most)
        self._running.most_groups = self._running.groups if self._groups else most

    def resize(self, config: SchedulerConfig) -> None:
        """Change the configuration; the ring may have other ranks now. Call only between epochs."""
        self.config = config
        self._running.config = config
        self._chunks.resize(config)
        self._spread()

    def forget_ranks(self) -> None:
        """Forget the ranks' memory limits and times: each may be another machine now. Call only
        between epochs."""
        self._losses.forget()
        self._running.room.learnt.clear()
        self._tuner = GroupTuner()

    # ---------------------------------------------------------------- epochs

    def begin(self, epoch: Epoch, ranks: Sequence[Ready] = ()) -> None:
        """Start *epoch* with an empty ledger; open rows are prefilled again. *ranks* report their
        room."""
        self.abandon()
        self._maker.begin(epoch)
        self._running.begin(ranks)

    def abandon(self) -> None:
        """The epoch is over: no step is in flight, and every row waits to be prefilled again."""
        if self._maker.epoch is not None:
            self._maker.end()
            self._flights.clear()
            self._running.abandon()

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
        self._flights.waste(self._running.wrong)
        self._running.retire()
        self._running.make_room()
        saves = self._running.saves()
        if self._running.waiting:
            self._spread()
        self._running.open_rows()
        opened = self._running.new()
        group = self._next_group()
        row = self._next_chunk()
        if row is not None and (group is None or not self._read_last):
            self._read_last = True
            chunk = self._chunks.cut(row, self._running.unread(), decoding=self._decoding)
            return self._maker.make(saves, opened, (), chunk, now)
        self._read_last = False
        if group is not None:
            room = self.config.rows - self._running.staying(group)
            joining = self._running.joiners(group)[:room]
            ahead = self._guessing.ahead(group)
            work = Decode(group, len(ahead), len(ahead))
            return self._maker.make(saves, opened, joining, work, now, ahead)
        held = any(row.held for row in opened)  # their grammars can be prepared meanwhile
        changes = held or saves or self._running.leaving or self._running.dropping
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
        running, decodes = self._running, self._flights.decodes(max(1, self.config.groups))
        credit = [group for group, steps in enumerate(decodes) if steps < self._window]
        ready = [group for group in credit if running.staying(group) or running.joiners(group)]
        ready = [group for group in ready if not self._guessing.waits(group)]
        return min(ready, key=self._maker.decoded, default=None)

    def _next_chunk(self) -> LiveRow | None:
        """The row to prefill next; None if there is none, or no credit for it."""
        if not self._chunks.has_room(self._flights.by_number.values(), decoding=self._decoding):
            return None
        return self._chunks.next(self._running.unread())

    @property
    def _decoding(self) -> bool:
        """Whether rows wait for tokens."""
        return bool(self.ledger.groups) or self._flights.decoding

    def uids(self, n: int) -> tuple[int, ...]:
        """The rows that step *n* works on; it must be in flight."""
        return self._flights.by_number[n].uids

    def lengths(self, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rows that step *n* works on, and how many tokens their caches hold after it."""
        return self.uids(n), tuple(map(self.ledger.length, self.uids(n)))

    # --------------------------------------------------------------- answers

    def passed_on(self, n: int) -> None:
        """The head's engine has passed step *n* on to the next rank."""
        self._flights.passed_on(n)

    @property
    def slow_links(self) -> str:
        """See `ChunkPace.slow_links`."""
        return self._chunks.slow_links

    @property
    def guess_seconds(self) -> dict[str, float]:
        """See `GuessCosts.told`."""
        return self._guessing.costs.told

    def took(self, timing: StepTiming) -> None:
        """Learn from *timing*, of a step that was answered."""
        self._chunks.took(timing)
        if not isinstance(timing.work, Decode) or timing.work.guessed or timing.parallel:
            return
        if not (self._flights.guesses or self._flights.chunks or self._running.unread()):
            self._tuner.took([len(rows) for rows in self.ledger.groups.values()], timing)

    def returned(self, n: int) -> None:
        """Step *n* has come back from the ring. Only the head's engine still works on it, and it
        can start the next step without waiting for the tokens."""
        self._flights.returned(n)

    def expects(self, n: int) -> int:
        """The number of tokens in the answer to step *n*, at most; 0 if it is not in flight."""
        return self._flights.expects(n)

    def gives(self, n: int, ids: Sequence[int]) -> bool:
        """See `Flights.gives`."""
        return self._flights.gives(n, ids)

    def scores(self, n: int) -> int:
        """See `Flights.scores`."""
        return self._flights.scores(n)

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
        right, expected = self.gives(n, ids), self.expects(n)
        scored, to_score = sum(len(some.chosen) for some in scores), self.scores(n)
        flight = self._flights.pop(n)
        if flight is None:
            raise RemoteProtocolError(f"an answer to step {n}, which waits for none")
        if not right:
            raise RemoteProtocolError(f"step {n} was answered with {len(ids)} of {expected} tokens")
        if scored != to_score:
            raise RemoteProtocolError(f"step {n} gave the scores of {scored} of {to_score} tokens")
        self._running.landed(flight)
        if isinstance(flight.work, Prefill):
            return self._results.of_prefill(flight.work, scores)
        return self._results.of_decode(flight, ids, now, logprobs, over)
