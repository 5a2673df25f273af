"""The scheduler: which step comes next, and what its answer means. It runs on the head alone.

Rows come in as requests and wait; a few at a time are read in (prefilled) chunk by chunk into
private caches, join a group, and then get one token per DECODE step of their group. Everything
that changes the set of rows is one of two moves: open and prefill, or leave (evict, drop). So
cancelling, preempting and recovering from a lost epoch share one path: leave, then, if the row
is to go on, prefill its prompt and its tokens so far again.

Steps travel first in, first out, so a step may name rows whose earlier steps are still under
way: an evict takes effect behind the decode in flight, whose surplus token is then dropped
because its row is gone or its position is taken. In a pipeline a group has one decode in flight
(*window* 1), for its next one needs the token; with one rank the token stays on the device and
two may be in flight (*window* 2).

When a forward fails, the rows of that very step are suspects. After the new epoch each is run
alone until it has got past the point; then it makes room for the next. So a request that
crashes engines spends only its own retry budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from sealring_protocol.codec.messages import (
    NO_WORK,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Join,
    Logprobs,
    Open,
    Prefill,
    Step,
    Work,
)
from sealring_protocol.control.ledger import DIGEST_SIZE, Ledger
from sealring_protocol.control.requests import (
    ContextOverflow,
    FinishReason,
    Outcome,
    Request,
    RequestDone,
    RowEvent,
    RowOpened,
    RowState,
    TokenOut,
)
from sealring_protocol.control.rows import Flight, LiveRow, Planned, SchedulerConfig
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError

_SUSPICIOUS: Final = {FailureKind.ENGINE_ERROR, FailureKind.ENGINE_LOST, FailureKind.MEMORY}
_STALLS: Final = {FailureKind.DEADLINE: 8}
"""What a lost step counts, if not one: a deadline has cost minutes."""

_REOPENED: Final = (RowState.PREFILL, RowState.READY)
_MIN_CHUNK: Final = 16
_NO_LOGPROBS: Final[Mapping[int, Logprobs]] = {}


class Scheduler:
    """Rows, groups and steps of a head. All times are the caller's monotonic seconds."""

    def __init__(self, config: SchedulerConfig, context: int, first_uid: int = 1) -> None:
        """*context* is the longest row in tokens; uids rise from *first_uid*."""
        self.config = config
        self._context = context
        self._rows: dict[int, LiveRow] = {}
        self._next_uid = first_uid
        self._epoch: Epoch | None = None
        self._n = 0
        self._ledger = Ledger()
        self._flights: dict[int, Flight] = {}
        self._leaving: list[int] = []  # rows to evict from their groups
        self._dropping: list[int] = []  # private caches to drop
        self._chunk = config.chunk
        self._read_last = False
        self._chunks_sent = 0
        self._decoded = [0] * config.groups  # the step at which each group decoded last
        self._answered_at = 0.0

    # -------------------------------------------------------------- requests

    @property
    def live(self) -> int:
        """Requests that are not over."""
        return len(self._rows)

    @property
    def in_flight(self) -> int:
        """Steps that wait for their answer."""
        return len(self._flights)

    @property
    def ledger(self) -> Ledger:
        """The head's ledger of this epoch."""
        return self._ledger

    def submit(self, request: Request) -> int:
        """Queue *request*; returns its uid. Raises `LocalProtocolError` if it can never fit."""
        length = len(request.prompt)
        if not length:
            raise LocalProtocolError("the prompt has no tokens; give at least one")
        room = self._context - length
        if room < max(1, request.max_tokens):
            raise ContextOverflow(length, max(1, request.max_tokens), self._context)
        uid = self._next_uid
        self._next_uid += 1
        self._rows[uid] = LiveRow(uid, request, request.max_tokens or room, list(request.prompt))
        return uid

    def cancel(self, uid: int) -> list[Outcome]:
        """End *uid* wherever it is; its caches go with the next step. Unknown uids are over."""
        return self._end(uid, FinishReason.CANCELLED)

    def finish(self, uid: int) -> list[Outcome]:
        """End *uid* as complete: its text reached a stop string."""
        return self._end(uid, FinishReason.STOP)

    def _end(self, uid: int, reason: FinishReason, message: str = "") -> list[Outcome]:
        row = self._rows.pop(uid, None)
        if row is None:
            return []
        self._leave(row)
        row.state.fire(RowEvent.END)
        return [RequestDone(uid, reason, message)]

    def _leave(self, row: LiveRow) -> None:
        """Have *row*'s caches freed on every rank by the next step."""
        if row.state.state is RowState.DECODE and row.uid not in self._leaving:
            if row.uid in self._ledger.rows(row.group):
                self._leaving.append(row.uid)
        elif row.state.state in (RowState.PREFILL, RowState.READY) and not self._is_new(row):
            self._dropping.append(row.uid)

    def preempt(self, uid: int) -> None:
        """Take *uid* out of its caches; it is prefilled again when there is room."""
        row = self._rows[uid]
        self._leave(row)
        self._requeue(row)

    def _requeue(self, row: LiveRow) -> None:
        row.state.fire(RowEvent.PREEMPT)
        row.position = 0

    # ---------------------------------------------------------------- epochs

    def begin(self, epoch: Epoch) -> None:
        """Start *epoch* with an empty ledger; rows under way are read in again."""
        self.abandon()
        self._epoch = epoch
        self._n = 0
        self._decoded = [0] * self.config.groups

    def abandon(self) -> None:
        """The epoch is over: nothing is in flight, every row waits to be read in again."""
        if self._epoch is not None:
            self._epoch = None
            self._ledger = Ledger()
            self._flights.clear()
            self._leaving.clear()
            self._dropping.clear()
            for row in self._rows.values():
                self._requeue(row)
                row.flying = 0

    def failed(self, n: int, failure: Failure) -> list[Outcome]:
        """Step *n* failed, and its epoch with it. Its rows are suspects if a forward was at fault;
        one that has spent its retries, or gets nowhere, ends here."""
        flight = self._flights.get(n)
        self.abandon()
        outcomes: list[Outcome] = []
        uids = flight.uids if flight is not None else ()
        for row in [self._rows[uid] for uid in uids if uid in self._rows]:
            row.tries += 1
            row.stalls += _STALLS.get(failure.kind, 1)
            if failure.kind in _SUSPICIOUS:
                row.suspect = True
                row.failures += 1
            if row.failures > self.config.retries or row.stalls > self.config.stalls:
                message = (
                    f"given up after {row.tries} tries; the last, on rank {failure.rank}: "
                    f"{failure.message}"
                )
                outcomes += self._end(row.uid, FinishReason.FAILED, message)
        return outcomes

    # ----------------------------------------------------------------- steps

    def plan(self, now: float) -> Planned | None:
        """The next step, or None while there is nothing to do or no credit to do it."""
        if self._epoch is None:
            return None
        self._retire()
        opened = self._open_rows()
        group = self._next_group()
        row = self._next_chunk()
        if row is not None and (group is None or not self._read_last):
            self._read_last = True
            return self._emit(opened, (), self._prefill(row), now)
        self._read_last = False
        if group is not None:
            return self._emit(opened, self._join_rows(group), Decode(group), now)
        if self._leaving or self._dropping:
            return self._emit(opened, (), NO_WORK, now)
        return None

    def _retire(self) -> None:
        """Rows whose last token is in flight leave before their group's next decode."""
        for row in self._rows.values():
            if (
                row.flying
                and row.emitted + row.flying >= row.limit
                and row.uid in self._ledger.rows(row.group)
                and row.uid not in self._leaving
            ):
                self._leaving.append(row.uid)

    def _in_state(self, *states: RowState) -> list[LiveRow]:
        return [row for row in self._rows.values() if row.state.state in states]

    def _open_rows(self) -> list[LiveRow]:
        """Rows that begin to be read in now: suspects first and alone, then the interrupted,
        then the queue."""
        live = self._in_state(RowState.PREFILL, RowState.READY, RowState.DECODE)
        waiting = self._in_state(RowState.PREEMPTED) + self._in_state(RowState.QUEUED)
        suspects = [row for row in waiting if row.suspect]
        if any(row.suspect for row in live):
            return []
        if suspects:
            chosen = [] if live else suspects[:1]
        else:
            reading = sum(row.state.state is RowState.PREFILL for row in live)
            room = self.config.groups * self.config.rows - len(live)
            chosen = waiting[: max(0, min(room, self.config.chunks * 2 - reading))]
        for row in chosen:
            row.state.fire(RowEvent.OPEN)
            if row.unread == 0:
                self._make_ready(row)
        return [
            row for row in self._in_state(RowState.PREFILL, RowState.READY) if self._is_new(row)
        ]

    def _is_new(self, row: LiveRow) -> bool:
        """No rank has it, or the next step frees its former life before it opens this one."""
        gone = row.uid in self._leaving or row.uid in self._dropping
        return gone or not self._ledger.holds(row.uid)

    def _make_ready(self, row: LiveRow) -> None:
        row.state.fire(RowEvent.READ)
        row.group = self._bucket(row)

    def _bucket(self, row: LiveRow) -> int:
        """The group whose longest row is nearest in length, among those with room.

        A batched cache is a rectangle: every row costs as much as the longest.
        """

        def misfit(group: int) -> tuple[bool, int, int]:
            others = [
                len(other.tokens)
                for other in self._in_state(RowState.READY, RowState.DECODE)
                if other.group == group and other is not row
            ]
            gap = abs(max(others) - len(row.tokens)) if others else 0
            return len(others) >= self.config.rows, gap, group

        return min(range(self.config.groups), key=misfit)

    def _next_group(self) -> int | None:
        """The group that has waited longest, of those that have rows and credit."""
        ready = []
        for group in range(self.config.groups):
            flying = sum(f.work == Decode(group) for f in self._flights.values())
            stay = [uid for uid in self._ledger.rows(group) if uid not in self._leaving]
            if flying < self.config.window and (stay or self._joiners(group)):
                ready.append(group)
        return min(ready, key=lambda group: self._decoded[group], default=None)

    def _join_rows(self, group: int) -> list[LiveRow]:
        stay = sum(uid not in self._leaving for uid in self._ledger.rows(group))
        return self._joiners(group)[: self.config.rows - stay]

    def _joiners(self, group: int) -> list[LiveRow]:
        """Rows that may join now. One that came back while a decode of its former life is in
        flight waits for that."""
        return [r for r in self._in_state(RowState.READY) if r.group == group and not r.flying]

    def _next_chunk(self) -> LiveRow | None:
        """The row to read on: the shortest first, and every other time the oldest.

        While rows decode, one chunk may be in flight, so that their tokens wait for one at most.
        """
        flying = sum(isinstance(f.work, Prefill) for f in self._flights.values())
        if flying >= (1 if self._ledger.groups else self.config.chunks):
            return None
        rows = self._in_state(RowState.PREFILL)
        if not rows:
            return None
        return rows[0] if self._chunks_sent % 2 else min(rows, key=lambda row: row.unread)

    def _prefill(self, row: LiveRow) -> Prefill:
        return Prefill(row.uid, row.position, min(row.unread, self._chunk))

    def _emit(
        self, opened: list[LiveRow], joining: Iterable[LiveRow], work: Work, now: float
    ) -> Planned:
        joining = tuple(joining)
        ids = [row.tokens[-1] for row in joining]
        for row in joining:
            row.state.fire(RowEvent.JOIN)
        if isinstance(work, Prefill):
            self._chunks_sent += 1
            ids += self._rows[work.uid].tokens[work.position : work.position + work.count]
        assert self._epoch is not None  # noqa: S101  plan() checked it
        self._n += 1
        step = Step(
            self._epoch,
            self._n,
            bytes(DIGEST_SIZE),
            evict=tuple(self._leaving),
            drop=tuple(self._dropping),
            open=tuple(Open(row.uid) for row in opened),
            join=tuple(Join(row.uid, row.group) for row in joining),
            work=work,
            ids=tuple(ids),
        )
        self._leaving.clear()
        self._dropping.clear()
        self._ledger.apply(step)
        self._flights[self._n] = self._flight(work, now)
        rows = tuple(row.sampling for row in opened)
        told = tuple(RowOpened(row.uid, len(row.tokens), 0) for row in opened)
        return Planned(attrs.evolve(step, digest=self._ledger.digest(self._n)), rows, told)

    def _flight(self, work: Work, now: float) -> Flight:
        match work:
            case Decode(group):
                uids = self._ledger.rows(group)
                self._decoded[group] = self._n
                for uid in uids:
                    self._rows[uid].position += 1
                    self._rows[uid].flying += 1
                return Flight(work, uids, tuple(self._ledger.length(u) for u in uids), now)
            case Prefill(uid, _, count):
                row = self._rows[uid]
                row.position += count
                if row.unread == 0:
                    self._make_ready(row)
                return Flight(work, (uid,), (), now)
            case _:
                return Flight(work, (), (), now)

    def uids(self, n: int) -> tuple[int, ...]:
        """The rows that step *n*, in flight, works on."""
        return self._flights[n].uids

    # --------------------------------------------------------------- answers

    def expects(self, n: int) -> int:
        """How many tokens the answer to step *n* has; 0 as well for one that is not in flight."""
        flight = self._flights.get(n)
        return len(flight.uids) if flight and isinstance(flight.work, Decode) else 0

    def answered(
        self,
        n: int,
        ids: tuple[int, ...],
        now: float,
        logprobs: Mapping[int, Logprobs] = _NO_LOGPROBS,
    ) -> list[Outcome]:
        """Step *n* is done and gave *ids*, one for each of its rows, and *logprobs* of some.

        Raises `RemoteProtocolError` for a step that waits for no answer, or a wrong number.
        """
        expected = self.expects(n)
        flight = self._flights.pop(n, None)
        if flight is None:
            raise RemoteProtocolError(f"an answer to step {n}, which waits for none")
        if len(ids) != expected:
            raise RemoteProtocolError(f"step {n} was answered with {len(ids)} of {expected} tokens")
        if isinstance(flight.work, Prefill):
            self._pace(flight.work.count, now - max(flight.sent, self._answered_at))
        self._answered_at = now
        outcomes: list[Outcome] = []
        for uid, position, token in zip(flight.uids, flight.positions, ids, strict=False):
            row = self._rows.get(uid)
            if row is not None:
                row.flying -= 1
                # A row that is being read in again has been given its tokens; what its former life
                # still gives is drawn again, the same.
                if position == len(row.tokens) and row.state.state not in _REOPENED:
                    outcomes += self._token(row, token, logprobs.get(uid))
        return outcomes

    def _token(self, row: LiveRow, token: int, logprobs: Logprobs | None) -> list[Outcome]:
        position = len(row.tokens)
        row.tokens.append(token)
        row.stalls = row.tries = 0
        if token in row.request.eos:
            return self._end(row.uid, FinishReason.STOP)
        outcomes: list[Outcome] = [TokenOut(row.uid, token, position, logprobs)]
        if row.emitted >= row.limit:
            return outcomes + self._end(row.uid, FinishReason.LENGTH)
        if row.suspect:
            row.suspect = False
            if any(other.suspect for other in self._rows.values()):
                self.preempt(row.uid)
        return outcomes

    def _pace(self, count: int, seconds: float) -> None:
        """Keep a chunk within its time budget, so that other rows never wait longer."""
        budget = self.config.chunk_seconds
        if seconds > budget:
            self._chunk = max(min(_MIN_CHUNK, self.config.chunk), int(count * budget / seconds))
        elif count == self._chunk and seconds < budget / 4:
            self._chunk = min(self.config.chunk, self._chunk * 2)
