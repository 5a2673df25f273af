"""What the answer to a step brings its rows: tokens, scores, and perhaps their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sealring_protocol.codec.local_messages import Logprobs, Scores
from sealring_protocol.codec.messages import Prefill
from sealring_protocol.control.scheduler.guessing import Guessing
from sealring_protocol.control.scheduler.requests import (
    FinishReason,
    Outcome,
    ScoresOut,
    TokenOut,
)
from sealring_protocol.control.scheduler.rows import Flight, LiveRow
from sealring_protocol.control.scheduler.running_rows import RunningRows


class Results:
    """What comes of the steps of the rows *running*, some of which are *guessing*."""

    def __init__(self, running: RunningRows, guessing: Guessing) -> None:
        self._running = running
        self._guessing = guessing

    def of_prefill(self, work: Prefill, scores: Sequence[Scores]) -> list[Outcome]:
        """A chunk was read, and gave *scores*. Those that have been told before (of a row that was
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
