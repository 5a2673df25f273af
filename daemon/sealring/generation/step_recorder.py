"""Records the steps that pass a node, while somebody profiles it (`sealring profile`).

A *stay* is the time of one message in the engine: from when the node gave it until the node had the
answer. A step stays once with each rank, and in a pipeline of several ranks a second time with the
head, whose engine draws the token (the closing pass). What the engine says that it computed, waited
and sealed lies within the stay; the rest of it is the way between node and engine, and both event
loops.

The head also records each *step* as it is answered. Times are seconds of `time.perf_counter`, which
the processes of one machine share. A record is a list, as it goes to the client in JSON:

    step    [n, work, group, tokens, begin, end, [[compute, wait, seal] of each rank], closing]
    stay    [n, closing, begin, end, compute, wait, seal]

*work* is "decode", "prefill" or "none"; *closing* of a step is the same three numbers. compute,
wait and seal are microseconds. *tokens* is how many a decode draws, or a prefill reads.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import Decode, Prefill, Spent, Step, StepDone
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.requests import RowOpened
from sealring_trio.engine.supervisor import ProcessUsage, read_usage

MAX_RECORDS: Final = 1 << 16
"""Steps, and stays, that wait to be sent; older ones are dropped. Memory: 64 MiB for a client that
takes nothing."""


class StepRecorder:
    """Records until it is dropped. `given` and `came` are told of what goes to and from the engine,
    `watch` of the head's steps."""

    def __init__(self) -> None:
        self._steps: deque[list[Any]] = deque(maxlen=MAX_RECORDS)
        self._stays: deque[list[Any]] = deque(maxlen=MAX_RECORDS)
        self._inside: deque[tuple[int, bool, float]] = deque()

    def given(self, message: LocalMessage) -> None:
        """The engine is given *message*."""
        if isinstance(message, Step | StepDone):
            self._inside.append((message.n, isinstance(message, StepDone), time.perf_counter()))

    def came(self, message: LocalMessage) -> None:
        """The engine has sent *message*."""
        if not isinstance(message, Step | StepDone):
            return
        now = time.perf_counter()
        # The engine answers in order. What it never answers belongs to an epoch that has ended.
        while self._inside:
            n, closing, begin = self._inside.popleft()
            if n == message.n:
                if message.spent:
                    self._stays.append([n, closing, begin, now, *_parts(message.spent[-1])])
                return

    def watch(self, event: StepTiming | RowOpened) -> None:
        """The head had a step answered."""
        if not isinstance(event, StepTiming):
            return
        match event.work:
            case Decode(group, _, ahead):
                work, of, tokens = "decode", group, len(event.uids) + ahead
            case Prefill(_, _, count):
                work, of, tokens = "prefill", -1, count
            case _:
                work, of, tokens = "none", -1, 0
        now = time.perf_counter()
        begin = now - event.total_us * 1e-6
        spent = [_parts(each) for each in event.spent]
        closing = _parts(event.closing)
        self._steps.append([event.n, work, of, tokens, begin, now, spent, closing])

    def take(self) -> dict[str, Any]:
        """What has been recorded since the last call."""
        told = {"clock": time.perf_counter(), "steps": [*self._steps], "stays": [*self._stays]}
        self._steps.clear()
        self._stays.clear()
        return told


def _parts(spent: Spent) -> tuple[int, int, int]:
    return spent.compute_us, spent.wait_us, spent.seal_us


def processor_times(engines: Sequence[int]) -> dict[str, Any]:
    """Seconds that this node and the processes *engines* were on a processor, and ready without
    one, since they began; empty where the system does not tell.

    The first thread of an engine builds and launches graphs; the others read, wait for the device,
    answer, and on a CPU compute.
    """
    told = {}
    if (node := read_usage(os.getpid())) is not None:
        told["node"] = _sum(node, set(node.threads))
    found = [(pid, usage) for pid in engines if (usage := read_usage(pid)) is not None]
    if found:
        told["launch"] = _added([_sum(usage, {pid}) for pid, usage in found])
        told["rest"] = _added([_sum(usage, set(usage.threads) - {pid}) for pid, usage in found])
    return told


def _sum(usage: ProcessUsage, threads: set[int]) -> list[float]:
    uses = [use for thread, use in usage.threads.items() if thread in threads]
    return [sum(use.cpu for use in uses), sum(use.waited for use in uses)]


def _added(pairs: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*pairs, strict=True)]
