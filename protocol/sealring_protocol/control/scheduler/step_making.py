"""Makes the scheduler's steps: numbers them, writes them against the ledger, and puts them on their
way."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from sealring_protocol.codec.messages import Decode, Epoch, Join, Open, Prefill, Save, Step, Work
from sealring_protocol.control.epoch.ledger import DIGEST_SIZE
from sealring_protocol.control.epoch.pipeline import weight
from sealring_protocol.control.scheduler.flights import Flights
from sealring_protocol.control.scheduler.requests import RowOpened
from sealring_protocol.control.scheduler.rows import Flight, LiveRow, Planned
from sealring_protocol.control.scheduler.running_rows import RunningRows


class StepMaker:
    """The steps of one epoch after the other, of the rows *running*; they become *flights*."""

    def __init__(self, running: RunningRows, flights: Flights) -> None:
        self._running = running
        self._flights = flights
        self._epoch: Epoch | None = None
        self._decoded: dict[int, int] = {}  # the number of each group's latest decode step
        self.n = 0
        """The number of the latest step."""

    @property
    def epoch(self) -> Epoch | None:
        """The epoch; None between two."""
        return self._epoch

    def begin(self, epoch: Epoch) -> None:
        """Number the steps of *epoch* from 1."""
        self._epoch = epoch
        self.n = 0
        self._decoded.clear()

    def end(self) -> None:
        """The epoch is over."""
        self._epoch = None

    def decoded(self, group: int) -> int:
        """The number of *group*'s latest decode step; 0 before the first."""
        return self._decoded.get(group, 0)

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
        ids = [*(row.tokens[-1] for row in joining), *guesses]
        for row in joining:
            running.join(row)
        if isinstance(work, Prefill):
            end = work.position + work.count + work.scored  # the token after them is scored, too
            ids += running.rows[work.uid].tokens[work.position : end]
        assert self._epoch is not None  # noqa: S101  the caller has checked it
        self.n += 1
        step = Step(
            self._epoch,
            self.n,
            bytes(DIGEST_SIZE),
            back=running.taken_back,
            save=tuple(saves),
            evict=tuple(running.leaving),
            drop=tuple(running.dropping),
            open=tuple(Open(row.uid, row.handle, row.kept) for row in opened),
            join=tuple(Join(row.uid, row.group) for row in joining),
            work=work,
            ids=tuple(ids),
        )
        running.carried_out(step)
        for row in opened:
            row.unready += row.held
        flight = self._flight(work, now, guesses)
        tokens = work.count if isinstance(work, Prefill) else len(flight.uids) + len(flight.guesses)
        heavy = weight(step) + sum(row.row_weight for row in opened)
        heavy += tokens * running.config.hidden_bytes
        self._flights.add(self.n, attrs.evolve(flight, weight=heavy))
        told = tuple(RowOpened(row.uid, len(row.tokens), row.kept) for row in opened)
        step = attrs.evolve(step, digest=running.ledger.digest(self.n))
        return Planned(step, tuple(row.sampling for row in opened), told)

    def _flight(self, work: Work, now: float, guesses: tuple[int, ...]) -> Flight:
        running = self._running
        match work:
            case Decode(group, _, ahead) as decode:
                uids = running.ledger.rows(group)
                self._decoded[group] = self.n
                for uid in uids:
                    row = running.rows[uid]
                    row.position += 1 + ahead
                    row.flying += 1
                read_ahead = guesses[len(guesses) - ahead :]
                if ahead and not decode.on_guess:
                    running.rows[uids[0]].guesses.ahead = read_ahead
                drawn = tuple(running.ledger.length(uid) - ahead for uid in uids)
                return Flight(work, uids, drawn, now, guesses=read_ahead)
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
