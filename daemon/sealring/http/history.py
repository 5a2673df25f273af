"""The last minutes of a ring, second by second: what the page plots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import attrs
from sealring_protocol.codec.messages import Decode, Prefill
from sealring_protocol.control.effects import StepTiming

from sealring.generation.trace import Trace, Tracer

SAMPLES: Final = 300
"""The number of samples that are kept, one for each second."""


@attrs.frozen
class Sample:
    """One second: tokens generated and read in, requests waiting and being read in, rows that
    decode, and the mean of a hop in microseconds (None without a step)."""

    at_ms: int
    tokens: int
    prompt_tokens: int
    queued: int
    prefilling: int
    decoding: int
    hop_us: float | None


class History:
    """Takes a sample each second; an `Observer` of the traces."""

    def __init__(self, hops: int) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._hops = hops
        self._tokens = 0
        self._prompt_tokens = 0
        self._away: list[int] = []

    def step(self, timing: StepTiming) -> None:
        """A step went round."""
        match timing.work:
            case Prefill(count=count):
                self._prompt_tokens += count
            case Decode():
                self._hops = len(timing.spent)  # a newer roster may have another number of ranks
                self._away.append(timing.away_us)

    def first_token(self, seconds: float) -> None:
        """A request had its first token."""
        self._tokens += 1

    def next_token(self, seconds: float) -> None:
        """A choice had its next token."""
        self._tokens += 1

    def over(self, trace: Trace) -> None:
        """A request is over."""

    def sample(self, tracer: Tracer, now_ms: int) -> None:
        """A second is over."""
        rows = count_rows(tracer)
        hop = None
        if self._away and self._hops > 1:
            hop = sum(self._away) / len(self._away) / self._hops
        self.samples.append(
            Sample(
                now_ms,
                self._tokens,
                self._prompt_tokens,
                rows["queued"],
                rows["prefill"],
                rows["decode"],
                None if hop is None else round(hop, 1),
            )
        )
        self._tokens = self._prompt_tokens = 0
        self._away.clear()

    def columns(self) -> dict[str, list[Any]]:
        """The samples by column, the oldest first."""
        return columns(self.samples)


def columns(samples: Iterable[Sample]) -> dict[str, list[Any]]:
    """*samples* by column."""
    told = list(samples)
    names = [field.name for field in attrs.fields(Sample)]
    return {name: [getattr(sample, name) for sample in told] for name in names}


def count_rows(tracer: Tracer) -> dict[str, int]:
    """How many choices wait, are read in, and decode."""
    counts = {"queued": 0, "prefill": 0, "decode": 0}
    for trace in tracer.live:
        if trace.state in counts:
            counts[trace.state] += trace.choices
    return counts


def count_requests(tracer: Tracer) -> tuple[int, int]:
    """How many requests wait (to be read, or in the queue), and how many have begun."""
    running = sum(trace.state in ("prefill", "decode") for trace in tracer.live)
    return len(tracer.live) - running, running
