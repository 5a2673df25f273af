"""What becomes of rows when a step is lost: who is suspected of it, and who is given up.

When a forward fails, the rows of that very step are suspects; where nobody can tell which step it
was (an engine died, or memory ran out), those of every step under way are. After the new epoch each
is run alone until it has got past the point; then it makes room for the next. Only a row that fails
alone is given up. Where memory ran out while several rows had caches, the rank is taken to have
less room than they took, so that not as many come together again.
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
"""Failures of which any step under way may be the cause."""

_NO_MEMORY: Final = (
    ". That rank has too little memory for this request, even alone: shorten the prompt, lower "
    "max_tokens, or give the rank more"
)
_STALLS: Final = {FailureKind.DEADLINE: 8, FailureKind.INTEGRITY: 5, FailureKind.LEDGER: 5}
"""What a lost step counts, if not one: a deadline has cost minutes, and a rank that answers wrongly
will again. A link that breaks comes back."""


@attrs.frozen
class Loss:
    """What was under way when *epoch* was lost: the rows of the step that failed, those of all
    steps, whether one row alone had caches, and what these took by rank: all, and the largest."""

    epoch: Epoch | None
    uids: tuple[int, ...]
    all_uids: tuple[int, ...]
    alone: bool
    taken: tuple[tuple[int, int], ...]


class Losses:
    """Steps that were lost with rows of *running*."""

    def __init__(self, running: RunningRows) -> None:
        self._running = running
        self._unexplained: Loss | None = None  # the last one, where only a link has told of it

    def forget(self) -> None:
        """What was lost is explained by nobody any more: the ranks may be other machines."""
        self._unexplained = None

    def of(
        self, epoch: Epoch | None, flights: Mapping[int, Flight], n: int, kind: FailureKind
    ) -> Loss:
        """What is lost with step *n* of *epoch* if a failure of *kind* ends all *flights*, the
        steps under way by number."""
        every = tuple(dict.fromkeys(itertools.chain(*(f.uids for f in flights.values()))))
        # An engine that has died does not say which step it died of, and where memory ran out it
        # was any of them that took too much.
        own = flights[n].uids if n in flights else ()
        at_fault = every if kind in _ANY_STEP else own
        return Loss(epoch, at_fault, every, len(self._running.live) == 1, self._running.taken())

    def settle(self, loss: Loss, failure: Failure) -> list[Outcome]:
        """Its rows wait again: suspect them if *failure* is a forward's, and end those that have
        spent their retries or get nowhere."""
        rows = self._living(loss.uids)
        for row in rows:
            row.tries += 1
            row.stalls += _STALLS.get(failure.kind, 1)
        suspicious = failure.kind in _SUSPICIOUS
        self._unexplained = None if suspicious else loss
        outcomes = self._suspect(loss.uids, loss, failure) if suspicious else []
        for row in rows:
            if row.stalls > self._running.config.stalls:
                outcomes += self._give_up(row, failure)
        return outcomes

    def explained(self, epoch: Epoch, failure: Failure) -> list[Outcome]:
        """*failure* is why *epoch* was lost, which only a link had told of so far: its rows are
        suspects after all. What the next epoch has begun meanwhile begins again without them."""
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
        """A forward with *uids* failed. One that fails so alone too often ends here."""
        outcomes: list[Outcome] = []
        if failure.kind is FailureKind.MEMORY and not loss.alone:
            self._running.learn(failure.rank, loss.taken)
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
