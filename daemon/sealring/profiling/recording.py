"""What nodes of this machine recorded, as values. `StepRecorder` says what a record is."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs
from sealring_trio.errors import UserError

from sealring.local.control_client import ANSWER_SECONDS, ask


@attrs.frozen
class PartTimes:
    """What an engine says of one step, in seconds."""

    compute: float
    wait: float
    seal: float

    @classmethod
    def of(cls, told: Sequence[float]) -> PartTimes:
        """From microseconds, in this order."""
        return cls(*(each * 1e-6 for each in told))

    @property
    def total(self) -> float:
        """All three."""
        return self.compute + self.wait + self.seal


NOTHING = PartTimes(0.0, 0.0, 0.0)


@attrs.frozen
class Stay:
    """One message in one engine, from *begin* to *end*; *closing* is the head's second pass."""

    n: int
    closing: bool
    begin: float
    end: float
    spent: PartTimes

    @property
    def around(self) -> float:
        """Seconds between node and engine, there and back: neither work, nor waiting, nor
        sealing."""
        return max(0.0, self.end - self.begin - self.spent.total)


@attrs.frozen
class StepRecord:
    """One step as the head saw it. *spent* is by rank; *closing* is nothing where ranks draw the
    token themselves."""

    n: int
    work: str
    group: int
    tokens: int
    begin: float
    end: float
    spent: tuple[PartTimes, ...]
    closing: PartTimes


@attrs.define
class Recording:
    """What one node recorded. *place* is what it last said of itself. *first* and *last* are its
    clock and its `processor_times` at the start and at the end."""

    place: Mapping[str, Any] = attrs.field(factory=dict)
    steps: list[StepRecord] = attrs.field(factory=list)
    stays: list[Stay] = attrs.field(factory=list)
    first: tuple[float, Mapping[str, Any]] | None = None
    last: tuple[float, Mapping[str, Any]] | None = None

    @property
    def rank(self) -> int:
        """Whose it is."""
        return int(self.place["rank"])

    @property
    def parallel(self) -> bool:
        """Whether all ranks work on a step at once."""
        return bool(self.place["strategy"] == "tp")

    def add(self, told: Mapping[str, Any]) -> None:
        """Add one line of records."""
        self.place = told["place"]
        for n, work, group, tokens, begin, end, spent, closing in told["steps"]:
            ranks = tuple(map(PartTimes.of, spent))
            step = StepRecord(n, work, group, tokens, begin, end, ranks, PartTimes.of(closing))
            self.steps.append(step)
        for n, closing, begin, end, *spent in told["stays"]:
            self.stays.append(Stay(n, closing, begin, end, PartTimes.of(spent)))
        self.last = told["clock"], told["processors"]
        self.first = self.first or self.last

    def used(self) -> dict[str, tuple[float, float]]:
        """Seconds on a processor, and ready without one, of the node and its engine meanwhile."""
        if self.first is None or self.last is None:
            return {}
        before, after = self.first[1], self.last[1]
        return {
            who: (after[who][0] - before[who][0], after[who][1] - before[who][1])
            for who in after
            if who in before
        }


# ---------------------------------------------------------------------- gather
# Has nodes of this machine record what passes them, while something runs.


Records = Iterator[dict[str, Any]]


def gather(sockets: Sequence[Path], work: Callable[[list[Recording]], None]) -> list[Recording]:
    """What the nodes at these control *sockets* recorded during *work*, by rank. *work* is given
    the recordings, which say whose they are, in the order of *sockets*. Raises `OperationError`
    when a node goes away."""
    with contextlib.ExitStack() as stack:
        lines: list[Records] = []
        recordings: list[Recording] = []
        for socket in sockets:
            records = ask(socket, {"do": "profile"}, ANSWER_SECONDS)
            stack.enter_context(contextlib.closing(records))  # type: ignore[type-var]
            recordings.append(Recording())
            recordings[-1].add(next(records))  # from here on it records
            lines.append(records)
        ended = threading.Event()
        with ThreadPoolExecutor(len(lines)) as threads:
            reading = [
                threads.submit(_read, records, recording, ended)
                for records, recording in zip(lines, recordings, strict=True)
            ]
            try:
                work(recordings)
            finally:
                ended.set()
            for each in reading:
                each.result()
    return sorted(recordings, key=lambda recording: recording.rank)


def _read(records: Records, recording: Recording, ended: threading.Event) -> None:
    """Add all *records* to *recording* until one comes that was made after *ended*."""
    until = None
    for told in records:
        recording.add(told)
        if until is None and ended.is_set():
            until = time.perf_counter()
        if until is not None and told["clock"] >= until:
            return


# ---------------------------------------------------------------------- trace file
# A profile as a trace file that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#
# Each rank is a process. The head's steps are in lanes "steps", what is in each engine in lanes
# "engine": a step is in the first lane that is free, so that what is in a lane follows each other
# or nests. Inside a stay the parts stand in their order; seal and opening are told together, and
# stand at the end. What is left of a stay, and is empty there, is the way between node and
# engine.
#
# A rank that recorded nothing, because it is on another machine, has lanes "engine (estimated)":
# its parts as they came with the step, with the rest of the time shared evenly among the ways
# between.
#
# The format is Chrome's Trace Event Format; times are microseconds from the profile's start.


_STEPS, _ENGINE = 0, 100  # the first thread id of each kind of lane
_PARTS: Final = ("wait", "compute", "seal")


def write_trace(recordings: Sequence[Recording], path: Path) -> None:
    """Write what was recorded to *path*. Raises `UserError` if that cannot be."""
    trace = {"traceEvents": list(events(recordings)), "displayTimeUnit": "ms"}
    try:
        path.write_text(json.dumps(trace, separators=(",", ":")))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "Name another file.") from None


def events(recordings: Sequence[Recording]) -> Iterator[dict[str, Any]]:
    """The events of the trace."""
    steps = [step.begin for recording in recordings for step in recording.steps]
    stays = [stay.begin for recording in recordings for stay in recording.stays]
    zero = min([*steps, *stays], default=0.0)
    names: Sequence[str] = recordings[0].place["names"] if recordings else ()
    told = {recording.rank for recording in recordings}
    for recording in recordings:
        rank = recording.rank
        yield _meta(rank, "process_name", name=f"rank {rank}: {names[rank]}")
        yield _meta(rank, "process_sort_index", sort_index=rank)
        yield from _lanes(rank, _STEPS, "steps", map(_step_span, recording.steps), zero)
        yield from _lanes(rank, _ENGINE, "engine", map(_stay_span, recording.stays), zero)
        if rank:
            continue
        own = {(stay.n, stay.closing): stay for stay in recording.stays}
        estimated: dict[int, list[_Span]] = {}
        for step in recording.steps:
            for other, span in _estimate(step, own, told):
                estimated.setdefault(other, []).append(span)
        for other, found in estimated.items():
            yield _meta(other, "process_name", name=f"rank {other}: {names[other]}")
            yield _meta(other, "process_sort_index", sort_index=other)
            yield from _lanes(other, _ENGINE, "engine (estimated)", iter(found), zero)


@attrs.frozen
class _Span:
    """Something that takes from *begin* to *end*, with *parts* at the end of it."""

    name: str
    begin: float
    end: float
    parts: tuple[tuple[str, float], ...]
    args: dict[str, Any]


def _step_span(step: StepRecord) -> _Span:
    args = {"tokens": step.tokens, "group": step.group}
    return _Span(f"{step.work} {step.n}", step.begin, step.end, (), args)


def _stay_span(stay: Stay) -> _Span:
    name = f"step {stay.n}" + (", closing" if stay.closing else "")
    return _Span(name, stay.begin, stay.end, _told(stay.spent), {})


def _told(spent: PartTimes) -> tuple[tuple[str, float], ...]:
    return tuple(zip(_PARTS, (spent.wait, spent.compute, spent.seal), strict=True))


def _estimate(
    step: StepRecord, stays: Mapping[tuple[int, bool], Stay], told: set[int]
) -> Iterator[tuple[int, _Span]]:
    """Where the ranks that are not *told* of had *step*, as far as it says."""
    first, closing = stays.get((step.n, False)), stays.get((step.n, True))
    unknown = [rank for rank in range(1, len(step.spent)) if rank not in told]
    if not unknown or first is None or len(unknown) < len(step.spent) - 1:
        return
    end = closing.begin if closing is not None else step.end
    rest = max(0.0, end - first.end - sum(step.spent[rank].total for rank in unknown))
    at = first.end
    for rank in unknown:
        at += rest / (len(unknown) + 1)
        spent = step.spent[rank]
        yield rank, _Span(f"step {step.n}", at, at + spent.total, _told(spent), {"estimated": True})
        at += spent.total


def _lanes(
    process: int, first: int, name: str, spans: Iterator[_Span], zero: float
) -> Iterator[dict[str, Any]]:
    """*spans*, each in the first lane that is free."""
    free: list[float] = []
    for span in sorted(spans, key=lambda span: span.begin):
        lane = next((lane for lane, since in enumerate(free) if since <= span.begin), len(free))
        if lane == len(free):
            free.append(0.0)
            yield _meta(process, "thread_name", thread=first + lane, name=f"{name} {lane + 1}")
        free[lane] = span.end
        yield from _nested(process, first + lane, span, zero)


def _nested(process: int, thread: int, span: _Span, zero: float) -> Iterator[dict[str, Any]]:
    yield _complete(process, thread, span.name, span.begin - zero, span.end - zero, span.args)
    at = max(span.begin, span.end - sum(took for _, took in span.parts))
    for name, took in span.parts:
        until = min(span.end, at + took)
        if until > at:
            yield _complete(process, thread, name, at - zero, until - zero, {})
        at = until


def _complete(
    process: int, thread: int, name: str, begin: float, end: float, args: dict[str, Any]
) -> dict[str, Any]:
    # Both ends are rounded, so what nests goes on nesting.
    start, stop = round(begin * 1e9), round(end * 1e9)
    at = {"ph": "X", "pid": process, "tid": thread}
    return {"name": name, **at, "ts": start / 1e3, "dur": (stop - start) / 1e3, "args": args}


def _meta(process: int, what: str, *, thread: int = 0, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": args}
