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
token; several groups in flight keep the stages busy. The rank that draws the token has it on the
device at once, so the next decode can follow before the head knows the token. With one rank, or in
tensor parallelism, two may therefore be in flight (*window* 2). In a pipeline, a decode stops
counting when its hidden states are back at the head.

`losses` says what becomes of rows when a forward fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import Logprobs
from sealring_protocol.codec.messages import (
    NO_WORK,
    Decode,
    Epoch,
    Failure,
    Join,
    Open,
    Prefill,
    Ready,
    Save,
    Step,
    Work,
)
from sealring_protocol.control.epoch.ledger import DIGEST_SIZE, Ledger
from sealring_protocol.control.epoch.pipeline import weight
from sealring_protocol.control.scheduler.chunks import Chunks
from sealring_protocol.control.scheduler.losses import Losses
from sealring_protocol.control.scheduler.requests import (
    FinishReason,
    Outcome,
    Request,
    RowOpened,
    SchedulerConfig,
    TokenOut,
)
from sealring_protocol.control.scheduler.rows import Flight, LiveRow, Planned
from sealring_protocol.control.scheduler.running_rows import RunningRows
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import (
    ENTRY_WEIGHT,
    MAX_ROW_WEIGHT,
    MAX_ROWS,
    MAX_SEALED_BODY,
    MAX_STEPS_WAITING,
    MAX_WEIGHT_WAITING,
)

_LISTS: Final = 6 * MAX_ROWS * ENTRY_WEIGHT
"""The most that the lists of a step weigh, with one token id for each join."""

_NO_LOGPROBS: Final[Mapping[int, Logprobs]] = {}


class Scheduler:
    """The rows, groups and steps of a head. Times are monotonic seconds from the caller."""

    def __init__(self, config: SchedulerConfig, context: int, first_uid: int = 1) -> None:
        """*context* is the longest row in tokens; uids rise from *first_uid*."""
        self.config = config
        self._running = RunningRows(config, context, first_uid)
        self._epoch: Epoch | None = None
        self._n = 0
        self._flights: dict[int, Flight] = {}
        self._chunks = Chunks(config)
        self._read_last = False
        self._decoded = [0] * max(1, config.groups)  # the number of each group's latest decode step
        self._answered_at = 0.0
        self._losses = Losses(self._running)
        self._window = 1

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
        full, and another `LocalProtocolError` for an empty prompt.
        """
        return self._running.submit(request)

    def cancel(self, uid: int) -> list[Outcome]:
        """Cancel *uid* in any state; the next step frees its caches. An unknown uid changes
        nothing."""
        return self._running.end(uid, FinishReason.CANCELLED)

    def refuse(self, reason: str) -> list[Outcome]:
        """End every request, because the ring cannot serve, for *reason*."""
        uids = [*self._running.rows]
        return [end for uid in uids for end in self._running.end(uid, FinishReason.REFUSED, reason)]

    def finish(self, uid: int) -> list[Outcome]:
        """End *uid* as complete: its text reached a stop string."""
        return self._running.end(uid, FinishReason.STOP)

    def preempt(self, uid: int) -> None:
        """Free the caches of *uid*; it is prefilled again when there is room."""
        self._running.preempt(uid)

    def tune(self, groups: int) -> None:
        """Spread new rows over *groups* groups, at most as many as are configured."""
        self._running.groups = max(1, min(groups, len(self._decoded)))

    def shape(self, groups: int, window: int) -> None:
        """Use *groups* groups, each with at most *window* decodes in flight. Call only between
        epochs."""
        self._window = window
        self.tune(groups)

    def resize(self, config: SchedulerConfig) -> None:
        """Change the configuration; the ring may have other ranks now. Call only between epochs."""
        self.config = config
        self._running.config = config
        self._chunks.resize(config)
        self._decoded = [0] * max(1, config.groups)
        self.tune(len(self._decoded))

    def forget_ranks(self) -> None:
        """Forget the ranks' memory limits: each may be another machine now. Call only between
        epochs."""
        self._losses.forget()
        self._running.room.learnt.clear()

    # ---------------------------------------------------------------- epochs

    def begin(self, epoch: Epoch, ranks: Sequence[Ready] = ()) -> None:
        """Start *epoch* with an empty ledger; open rows are prefilled again. *ranks* report their
        room."""
        self.abandon()
        self._epoch = epoch
        self._n = 0
        self._decoded = [0] * len(self._decoded)
        self._running.begin(ranks)

    def abandon(self) -> None:
        """The epoch is over: no step is in flight, and every row waits to be prefilled again."""
        if self._epoch is not None:
            self._epoch = None
            self._flights.clear()
            self._running.abandon()

    def failed(self, n: int, failure: Failure) -> list[Outcome]:
        """Step *n* failed, and its epoch with it. Its rows become suspects if a forward was at
        fault. A row that has used up its retries, or makes no progress, ends."""
        loss = self._losses.of(self._epoch, self._flights, n, failure.kind)
        self.abandon()
        return self._losses.settle(loss, failure)

    def explained(self, epoch: Epoch, failure: Failure) -> list[Outcome]:
        """See `Losses.explained`."""
        return self._losses.explained(epoch, failure)

    # ----------------------------------------------------------------- steps

    def plan(self, now: float) -> Planned | None:
        """The next step; None while there is nothing to do, or no credit for it."""
        if self._epoch is None or self._is_full():
            return None
        self._running.retire()
        self._running.make_room()
        saves = self._running.saves()
        self._running.open_rows()
        opened = self._running.new()
        group = self._next_group()
        row = self._next_chunk()
        if row is not None and (group is None or not self._read_last):
            self._read_last = True
            return self._emit(saves, opened, (), self._chunks.cut(row, self._running.unread()), now)
        self._read_last = False
        if group is not None:
            return self._emit(saves, opened, self._join_rows(group), Decode(group), now)
        if saves or self._running.leaving or self._running.dropping:
            return self._emit(saves, opened, (), NO_WORK, now)
        return None

    def _is_full(self) -> bool:
        """True if no rank may be sent a further step, even of the greatest weight."""
        if not self._flights:
            return False
        tokens = max(self.config.chunk, self.config.rows)
        hidden = min(tokens * self.config.hidden_bytes, MAX_SEALED_BODY)
        heaviest = hidden + tokens * ENTRY_WEIGHT + _LISTS + MAX_ROW_WEIGHT
        waiting = sum([flight.weight for flight in self._flights.values()])
        return len(self._flights) >= MAX_STEPS_WAITING or waiting + heaviest > MAX_WEIGHT_WAITING

    def ended(self) -> list[Outcome]:
        """Take the requests that planning has ended because there is no room for them."""
        ended, self._running.ended = self._running.ended, []
        return ended

    # ------------------------------------------------------------ who works next

    def _next_group(self) -> int | None:
        """Of the groups with rows and credit, the one that has waited longest; None if there is
        none."""
        flying = [0] * len(self._decoded)
        for flight in self._flights.values():
            if isinstance(flight.work, Decode) and not flight.back:
                flying[flight.work.group] += 1
        ready = []
        for group, steps in enumerate(flying):
            waits = self._running.staying(group) or self._running.joiners(group)
            if steps < self._window and waits:
                ready.append(group)
        return min(ready, key=lambda group: self._decoded[group], default=None)

    def _join_rows(self, group: int) -> list[LiveRow]:
        room = self.config.rows - self._running.staying(group)
        return self._running.joiners(group)[:room]

    def _next_chunk(self) -> LiveRow | None:
        """The row to prefill next; None if there is none, or no credit for it.

        While rows decode, only one chunk may be in flight, so their tokens wait for one chunk at
        most.
        """
        kinds = [type(flight.work) for flight in self._flights.values()]
        flying = kinds.count(Prefill)
        decoding = self.ledger.groups or Decode in kinds
        if flying >= (1 if decoding else self.config.chunks):
            return None
        return self._chunks.next(self._running.unread())

    def _emit(
        self,
        saves: list[Save],
        opened: list[LiveRow],
        joining: Iterable[LiveRow],
        work: Work,
        now: float,
    ) -> Planned:
        joining = tuple(joining)
        ids = [row.tokens[-1] for row in joining]
        for row in joining:
            self._running.join(row)
        if isinstance(work, Prefill):
            ids += self._running.rows[work.uid].tokens[work.position : work.position + work.count]
        assert self._epoch is not None  # noqa: S101  plan() checked it
        self._n += 1
        step = Step(
            self._epoch,
            self._n,
            bytes(DIGEST_SIZE),
            save=tuple(saves),
            evict=tuple(self._running.leaving),
            drop=tuple(self._running.dropping),
            open=tuple(Open(row.uid, row.handle, row.kept) for row in opened),
            join=tuple(Join(row.uid, row.group) for row in joining),
            work=work,
            ids=tuple(ids),
        )
        self._running.leaving.clear()
        self._running.dropping.clear()
        self._running.ledger.apply(step)
        flight = self._flight(work, now)
        tokens = work.count if isinstance(work, Prefill) else len(flight.uids)
        heavy = weight(step) + tokens * self.config.hidden_bytes
        heavy += sum(row.row_weight for row in opened)
        self._flights[self._n] = attrs.evolve(flight, weight=heavy)
        rows = tuple(row.sampling for row in opened)
        told = tuple(RowOpened(row.uid, len(row.tokens), row.kept) for row in opened)
        return Planned(attrs.evolve(step, digest=self._running.ledger.digest(self._n)), rows, told)

    def _flight(self, work: Work, now: float) -> Flight:
        match work:
            case Decode(group):
                uids = self.ledger.rows(group)
                self._decoded[group] = self._n
                for uid in uids:
                    self._running.rows[uid].position += 1
                    self._running.rows[uid].flying += 1
                return Flight(work, uids, tuple(map(self.ledger.length, uids)), now)
            case Prefill(uid, _, count):
                row = self._running.rows[uid]
                row.position += count
                if row.unread == 0:
                    self._running.read(row)
                return Flight(work, (uid,), (), now)
            case _:
                return Flight(work, (), (), now)

    def uids(self, n: int) -> tuple[int, ...]:
        """The rows that step *n* works on; it must be in flight."""
        return self._flights[n].uids

    # --------------------------------------------------------------- answers

    def returned(self, n: int) -> None:
        """Step *n* has come back from the ring. Only the head's engine still works on it, and it
        can start the next step without waiting for the tokens."""
        self._flights[n] = attrs.evolve(self._flights[n], back=True)

    def expects(self, n: int) -> int:
        """The number of tokens in the answer to step *n*; 0 if it is not in flight."""
        flight = self._flights.get(n)
        return len(flight.uids) if flight and isinstance(flight.work, Decode) else 0

    def answered(
        self,
        n: int,
        ids: tuple[int, ...],
        now: float,
        logprobs: Mapping[int, Logprobs] = _NO_LOGPROBS,
    ) -> list[Outcome]:
        """Step *n* is done: it gave *ids*, one for each of its rows, and *logprobs* for some.

        Raises `RemoteProtocolError` for a step that is not in flight, or for a wrong number of
        tokens.
        """
        expected = self.expects(n)
        flight = self._flights.pop(n, None)
        if flight is None:
            raise RemoteProtocolError(f"an answer to step {n}, which waits for none")
        if len(ids) != expected:
            raise RemoteProtocolError(f"step {n} was answered with {len(ids)} of {expected} tokens")
        if isinstance(flight.work, Prefill):
            self._chunks.took(flight.work.count, now - max(flight.sent, self._answered_at))
        self._answered_at = now
        outcomes: list[Outcome] = []
        for uid, position, token in zip(flight.uids, flight.positions, ids, strict=False):
            row = self._running.rows.get(uid)
            if row is not None:
                row.flying -= 1
                # Ignore the surplus token of a row that is in prefill again: it will be drawn
                # again, with the same result.
                if position == len(row.tokens) and row.uid not in self._running.reading:
                    outcomes += self._token(row, token, logprobs.get(uid))
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
