"""How fast chunks are read, from the times that ranks tell of each step.

While rows decode, their tokens may come late by a bound, and a rank does steps in order: a decode
overtakes no chunk. Let a chunk take t[r] on rank r, and w to travel, beyond what any step takes for
that. A decode that is sent behind a chunk waits t[0] for it on rank 0, arrives at each later rank
right behind it, and waits t[r] for it there. It waits for no other chunk, if ranks are equal: when
stage 0 got that chunk it had no other, and so on down the chain. If a later rank is slower, up to
N - 1 chunks wait there, each of which comes max(t) - t[0] too early. Back at the head, the closing
pass waits for the next chunk, t[0]. So a decode waits for chunks, in all and at most::

    sum(t) + w + (N - 1) * (max(t) - t[0]) + t[0]

All of that is about in proportion to the chunk's tokens. Late chunks of a long prompt take longer,
so the slowest of the recent ones count.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from sealring_protocol.codec.messages import Prefill
from sealring_protocol.control.effects import StepTiming

_RECENT: Final = 8
"""Chunks whose times count."""

_LEAST: Final = 1e-9
"""Seconds for a token where ranks tell that they took none."""


class ChunkPace:
    """Learns from the times of steps. All of its times are seconds."""

    def __init__(self) -> None:
        self._stage: deque[float] = deque(maxlen=_RECENT)  # for each token
        self._waits: deque[float] = deque(maxlen=_RECENT)
        self._slow_links: deque[str] = deque(maxlen=_RECENT)
        self._shortest_way: float | None = None
        self.on_the_way = 0
        """Chunks that are between ranks while each rank has one."""

    def begin(self) -> None:
        """An epoch begins, perhaps over other links."""
        self._slow_links.clear()
        self._shortest_way = None
        self.on_the_way = 0

    @property
    def slow_links(self) -> str:
        """In words, that chunks wait for links rather than for ranks; empty if they do not."""
        all_do = len(self._slow_links) == _RECENT and all(self._slow_links)
        return self._slow_links[-1] if all_do else ""

    @property
    def known(self) -> bool:
        """Whether any chunk has been read."""
        return bool(self._stage)

    @property
    def stage(self) -> float:
        """What the slowest rank takes for a token of a chunk."""
        return max(self._stage)

    @property
    def waits(self) -> float:
        """What a decode waits for each token of the chunks before it."""
        return max(self._waits)

    @property
    def latency(self) -> float:
        """What the smallest step takes to travel."""
        return self._shortest_way or 0.0

    def took(self, timing: StepTiming) -> None:
        """Learn from *timing*."""
        way = timing.away_us / 1e6
        self._shortest_way = min(way, way if self._shortest_way is None else self._shortest_way)
        if not isinstance(timing.work, Prefill):
            return
        # Other ranks tell their times, and none can have taken longer than all of it.
        most = timing.total_us
        times = [min(most, each.compute_us + each.seal_us) / 1e6 for each in timing.spent] or [0.0]
        slowest, waits = max(times), max(times) + way - self._shortest_way
        if len(times) > 1 and not timing.parallel:
            waits += sum(times) - slowest + (len(times) - 1) * (slowest - times[0]) + times[0]
            self.on_the_way = min(len(times), round(way / max(slowest, _LEAST)))
            sent = (way - self._shortest_way) / (len(times) - 1)
            text = (
                "long prompts are read as fast as the links between ranks are: a chunk of "
                f"{timing.work.count} tokens is sent in {1e3 * sent:.0f} ms by each rank, and "
                f"computed in {1e3 * slowest:.0f} ms by the slowest"
            )
            self._slow_links.append(text if sent > slowest else "")
        self._stage.append(max(_LEAST, slowest / timing.work.count))
        self._waits.append(max(_LEAST, waits / timing.work.count))
