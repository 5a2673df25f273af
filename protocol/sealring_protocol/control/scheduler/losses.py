"""What becomes of rows when a step is lost: which are suspected, and which are given up.

If a forward fails, the rows of its step are suspects. If nobody can tell which step was at fault
(an engine died, or memory ran out), the rows of every step under way are. In the new epoch each
suspect runs alone until it gets a token; then the next suspect runs. Only a row that fails alone is
given up. If memory ran out while several rows had caches, the rank is assumed to have less room
than they took, so that fewer rows run together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from sealring_protocol.codec.messages import Epoch, Failure, FailureKind
from sealring_protocol.control.scheduler.requests import FinishReason, Outcome
from sealring_protocol.control.scheduler.rows import Flight, LiveRow
from sealring_protocol.control.scheduler.running_rows import RunningRows

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
    """Handles lost steps of the rows in *running*."""

    def __init__(self, running: RunningRows) -> None:
        self._running = running
        self._unexplained: Loss | None = None  # the last, if only a broken link has told of it

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
        text = f"given up after {row.tries} tries; the last, on rank {failure.rank}: "
        return self._running.end(row.uid, FinishReason.FAILED, text + failure.message + advice)
