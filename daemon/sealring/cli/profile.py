"""`sealring profile`: where the time of a step goes, rank by rank, recorded, shown in tables, and
written as a trace.

`generation.trace.StepRecorder` says what a record is. The parts are means over the steps of a
profile. In a pipeline they follow each other and add up to the step:

    each rank   waiting (for its device, which still has the step before), compute, sealing,
                node (between node and engine, both event loops included), wire (to the next rank)
    closing     the head's second pass, which draws the token: the same parts but wire
    head        from the answer to one step of a group until its next begins

*node* and *wire* are known apart for ranks of this machine alone. Of other ranks both are in the
*wire* of the rank before. In tensor parallelism all ranks work at once, and a rank's *wire* is what
the step took longer than its stay there; the sums of the layers are in *compute*.
"""

from __future__ import annotations

import contextlib
import itertools
import json as jsons
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
import cyclopts
from sealring_trio.errors import OperationError, UserError
from sealring_trio.files.models import TINY, find_whole_model

from sealring.cli.options import AsJson, Positive
from sealring.files.config import has_own_config, own_config
from sealring.local.node_socket import ANSWER_SECONDS, ask
from sealring.local.ring import local_ring
from sealring.output import print_facts, print_json, print_table, reporter

Seconds = Annotated[float, cyclopts.Parameter(validator=cyclopts.validators.Number(gt=0))]

WARM_UP: Final = 8
"""Tokens that a ring that was just started draws before its profile."""

PROMPT: Final = "Tell me a long story."


def profile(
    *,
    config: tuple[Path, ...] = (),
    seconds: Seconds | None = None,
    tokens: Positive = 128,
    rows: Positive = 1,
    prompt: str = PROMPT,
    ranks: Positive | None = None,
    model: str | None = None,
    trace: Path | None = None,
    json: AsJson = False,
) -> None:
    """Show where the time of a token goes, rank by rank.

    Records the steps of a running ring, or of one that it starts on this
    machine, and shows how long each rank waited, computed and sealed, and how
    long its node and the wire took. It sends the ring requests itself, or with
    --seconds watches those that run. A trace file opens in ui.perfetto.dev.

        sealring profile
        sealring profile --config desk.toml --trace ring.json
        sealring profile --config desk.toml --seconds 10

    Of ranks on other machines only the times that steps carry are known; the
    rest of their nodes' time is in the wire of the rank before. To see it, run
    this there, with --seconds.

    Next: 'Where a token's time goes' in docs/operations.md says what helps.

    Parameters
    ----------
    config
        The config of a node that runs on this machine; repeat the option for
        several. That of the default folder if left out, if there is one and
        no --ranks or --model is given; or else a ring is started.
    seconds
        Watch what runs for so long, in place of asking.
    tokens
        Tokens of each answer.
    rows
        Requests at once.
    prompt
        What to ask.
    ranks
        Ranks of the ring that is started; 2 if left out.
    model
        Its model; the one that ships with sealring if left out.
    trace
        Write a trace file there, in the Trace Event Format.
    """
    took = 0.0

    def work(recordings: list[Recording]) -> None:
        nonlocal took
        began = time.perf_counter()
        if seconds is not None:
            time.sleep(seconds)
        else:
            _ask(_head(sockets, recordings), prompt, rows, tokens)
        took = time.perf_counter() - began

    configs: tuple[Path | None, ...] = config
    if not config and ranks is None and model is None and has_own_config():
        configs = (None,)
    if seconds is not None and not configs:
        raise UserError("nothing runs in a ring that is just started", "Give --config or --tokens.")
    with _nodes(configs, ranks or 2, model or TINY) as sockets:
        recordings = gather(sockets, work)
    if not any(each.stays for each in recordings):
        what = "no step passed meanwhile"
        raise OperationError(what, "Ask the ring something, or leave out --seconds.")
    if trace is not None:
        write_trace(recordings, trace)
    profiled = describe(recordings, took)
    if json:
        print_json(profiled)
    else:
        show(profiled)


@contextlib.contextmanager
def _nodes(configs: Sequence[Path | None], ranks: int, model: str) -> Iterator[list[Path]]:
    """The sockets of the nodes to profile."""
    if configs:
        yield [own_config(each).control_socket for each in configs]
        return
    reporter()(f"starting {ranks} nodes")
    with local_ring(ranks, find_whole_model(model)) as nodes:
        _ask(nodes[0].control, PROMPT, 1, WARM_UP)
        yield [node.control for node in nodes]


def _head(sockets: Sequence[Path], recordings: Sequence[Recording]) -> Path:
    """The socket of the head. Raises `UserError` if it is not among them."""
    for socket, recording in zip(sockets, recordings, strict=True):
        if recording.rank == 0:
            return socket
    head = recordings[0].place["names"][0]
    raise UserError(
        f"none of these nodes is the head, {head}, which alone takes requests",
        "Watch what runs: --seconds 10",
    )


def _ask(head: Path, prompt: str, rows: int, tokens: int) -> None:
    """Have *head* answer *rows* requests at once. Raises `OperationError`."""
    with ThreadPoolExecutor(rows) as threads:
        prompts = [prompt, *(f"{row}. {prompt}" for row in range(1, rows))]
        for _ in threads.map(partial(_answer, head, tokens), prompts):
            pass


def _answer(head: Path, tokens: int, prompt: str) -> None:
    for _ in ask(head, "generate", {"prompt": prompt, "max_tokens": tokens}, notice=reporter()):
        pass


# ---------------------------------------------------------------------- recording


@attrs.frozen
class PartTimes:
    """What an engine says of one step, in seconds."""

    compute: float
    wait: float
    seal: float

    @classmethod
    def of(cls, spent: Sequence[float]) -> PartTimes:
        """From microseconds, in this order."""
        return cls(*(each * 1e-6 for each in spent))

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

    def add(self, records: Mapping[str, Any]) -> None:
        """Add one line of records."""
        self.place = records["place"]
        for n, work, group, tokens, begin, end, spent, closing in records["steps"]:
            ranks = tuple(map(PartTimes.of, spent))
            step = StepRecord(n, work, group, tokens, begin, end, ranks, PartTimes.of(closing))
            self.steps.append(step)
        for n, closing, begin, end, *spent in records["stays"]:
            self.stays.append(Stay(n, closing, begin, end, PartTimes.of(spent)))
        self.last = records["clock"], records["processors"]
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


Records = Iterator[dict[str, Any]]


def gather(sockets: Sequence[Path], work: Callable[[list[Recording]], None]) -> list[Recording]:
    """What the nodes at these control *sockets* recorded during *work*, by rank. *work* is given
    the recordings, which say whose they are, in the order of *sockets*. Raises `OperationError`
    when a node goes away."""
    with contextlib.ExitStack() as stack:
        lines: list[Records] = []
        recordings: list[Recording] = []
        for socket in sockets:
            records = ask(socket, "profile", seconds=ANSWER_SECONDS)
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
    for line in records:
        recording.add(line)
        if until is None and ended.is_set():
            until = time.perf_counter()
        if until is not None and line["clock"] >= until:
            return


_STEPS, _ENGINE = 0, 100  # the first thread id of each kind of lane
_PARTS: Final = ("wait", "compute", "seal")


def write_trace(recordings: Sequence[Recording], path: Path) -> None:
    """Write what was recorded to *path*, in Chrome's Trace Event Format, which Perfetto
    (ui.perfetto.dev) and chrome://tracing open. Raises `UserError` if that cannot be."""
    trace = {"traceEvents": list(events(recordings)), "displayTimeUnit": "ms"}
    try:
        path.write_text(jsons.dumps(trace, separators=(",", ":")))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "Name another file.") from None


def events(recordings: Sequence[Recording]) -> Iterator[dict[str, Any]]:
    """The events of the trace. Times are microseconds from the profile's start.

    Each rank is a process. The head's steps are in lanes "steps", what is in each engine in lanes
    "engine": a step is in the first lane that is free, so that what is in a lane follows each other
    or nests. Inside a stay the parts stand in their order; seal and opening come as one, and stand
    at the end. What is left of a stay, and is empty there, is the way between node and engine.

    A rank that recorded nothing, because it is on another machine, has lanes "engine (estimated)":
    its parts as they came with the step, with the rest of the time shared evenly among the ways
    between.
    """
    steps = [step.begin for recording in recordings for step in recording.steps]
    stays = [stay.begin for recording in recordings for stay in recording.stays]
    zero = min([*steps, *stays], default=0.0)
    names: Sequence[str] = recordings[0].place["names"] if recordings else ()
    recorded = {recording.rank for recording in recordings}
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
            for other, span in _estimate(step, own, recorded):
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
    return _Span(name, stay.begin, stay.end, _spent(stay.spent), {})


def _spent(spent: PartTimes) -> tuple[tuple[str, float], ...]:
    return tuple(zip(_PARTS, (spent.wait, spent.compute, spent.seal), strict=True))


def _estimate(
    step: StepRecord, stays: Mapping[tuple[int, bool], Stay], recorded: set[int]
) -> Iterator[tuple[int, _Span]]:
    """Where the ranks that are not *recorded* had *step*, as far as it says."""
    first, closing = stays.get((step.n, False)), stays.get((step.n, True))
    unknown = [rank for rank in range(1, len(step.spent)) if rank not in recorded]
    if not unknown or first is None or len(unknown) < len(step.spent) - 1:
        return
    end = closing.begin if closing is not None else step.end
    rest = max(0.0, end - first.end - sum(step.spent[rank].total for rank in unknown))
    at = first.end
    for rank in unknown:
        at += rest / (len(unknown) + 1)
        spent = step.spent[rank]
        yield (
            rank,
            _Span(f"step {step.n}", at, at + spent.total, _spent(spent), {"estimated": True}),
        )
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


LONGEST_GAP = 0.5
"""Seconds after which a group that decodes again is taken to have had nothing to do."""


@attrs.frozen
class RankParts:
    """Means over steps, in seconds. *node* is None where nothing was recorded."""

    waiting: float
    compute: float
    sealing: float
    node: float | None
    wire: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.waiting + self.compute + self.sealing + (self.node or 0.0) + self.wire


@attrs.frozen
class Parts:
    """The steps of one kind of work. *tokens* is how many tokens a step has, *step* how long it
    takes, and *under_way* how many there are at once, all as means; *token* is the time from one
    token of a row to its next, a median. *head* is the time between two steps of a group."""

    steps: int
    tokens: float
    step: float
    token: float | None
    under_way: float
    ranks: dict[int, RankParts]
    closing: RankParts | None
    head: float


def parts_of(recordings: Sequence[Recording], work: str) -> Parts | None:
    """The parts of all steps with *work*, "decode" or "prefill"; None if there are none. Where the
    head is not among *recordings*, nobody knows them apart: then "decode" has all stays."""
    head = next((each for each in recordings if each.rank == 0), None)
    if head is None:
        return _without_head(recordings) if work == "decode" else None
    steps = [step for step in head.steps if step.work == work]
    if not steps:
        return None
    stays = {
        each.rank: {(stay.n, stay.closing): stay for stay in each.stays} for each in recordings
    }
    ranks = range(max(len(step.spent) for step in steps))
    found = [_Way.of(step, stays, parallel=head.parallel) for step in steps]
    gaps, tokens = _between(steps)
    span = max(step.end for step in steps) - min(step.begin for step in steps)
    took = [step.end - step.begin for step in steps]
    drawn = [way.closing for way in found if way.closing is not None]
    return Parts(
        steps=len(steps),
        tokens=statistics.fmean(step.tokens for step in steps),
        step=statistics.fmean(took),
        token=statistics.median(tokens) if tokens else None,
        under_way=sum(took) / span if span else 1.0,
        ranks={
            rank: _mean([way.ranks[rank] for way in found if rank in way.ranks]) for rank in ranks
        },
        closing=_mean(drawn) if drawn else None,
        head=statistics.fmean(gaps) if gaps else 0.0,
    )


def _without_head(recordings: Sequence[Recording]) -> Parts | None:
    ranks = {
        each.rank: _mean([_rank_parts(stay.spent, stay.around, 0.0) for stay in each.stays])
        for each in recordings
        if each.stays
    }
    if not ranks:
        return None
    count = max(len(each.stays) for each in recordings)
    return Parts(count, 0.0, 0.0, None, 0.0, ranks, None, 0.0)


@attrs.frozen
class _Way:
    """The parts of one step."""

    ranks: dict[int, RankParts]
    closing: RankParts | None

    @classmethod
    def of(
        cls, step: StepRecord, stays: dict[int, dict[tuple[int, bool], Stay]], *, parallel: bool
    ) -> _Way:
        inside = {
            rank: stay for rank in stays if (stay := stays[rank].get((step.n, False))) is not None
        }
        spent = dict(enumerate(step.spent))
        if parallel:
            total = step.end - step.begin
            return cls(
                {rank: _beside(each, inside.get(rank), total) for rank, each in spent.items()}, None
            )
        last = stays.get(0, {}).get((step.n, True))
        ranks = {}
        for rank, each in spent.items():
            wire = _until_next(step, rank, inside, last)
            stay = inside.get(rank)
            ranks[rank] = _rank_parts(each, None if stay is None else stay.around, wire)
        if step.closing == NOTHING:
            return cls(ranks, None)
        return cls(ranks, _rank_parts(step.closing, None if last is None else last.around, 0.0))


def _until_next(step: StepRecord, rank: int, inside: dict[int, Stay], last: Stay | None) -> float:
    """Seconds from when *rank* had done with *step* until the next that recorded it had it, without
    what ranks between say that they took. A rank that recorded nothing has its share before."""
    stay = inside.get(rank)
    if stay is None:
        return 0.0
    following = next((each for each in range(rank + 1, len(step.spent)) if each in inside), None)
    unknown = step.spent[rank + 1 : following]
    if following is not None:
        until = inside[following].begin
    elif rank == 0 and len(step.spent) == 1:
        until = stay.end  # nothing goes anywhere
    else:
        until = step.end if last is None else last.begin
    return max(0.0, until - stay.end - sum(each.total for each in unknown))


def _beside(spent: PartTimes, stay: Stay | None, total: float) -> RankParts:
    """The parts of one rank in a step of tensor parallelism."""
    if stay is None:
        return _rank_parts(spent, None, max(0.0, total - spent.total))
    return _rank_parts(spent, stay.around, max(0.0, total - (stay.end - stay.begin)))


def _rank_parts(spent: PartTimes, node: float | None, wire: float) -> RankParts:
    return RankParts(spent.wait, spent.compute, spent.seal, node, wire)


def _mean(parts: Sequence[RankParts]) -> RankParts:
    known = [each.node for each in parts if each.node is not None]
    return RankParts(
        statistics.fmean(each.waiting for each in parts),
        statistics.fmean(each.compute for each in parts),
        statistics.fmean(each.sealing for each in parts),
        statistics.fmean(known) if known else None,
        statistics.fmean(each.wire for each in parts),
    )


def _between(steps: Sequence[StepRecord]) -> tuple[list[float], list[float]]:
    """For two steps of a group that follow each other: the time between them, none if they overlap,
    and the time from end to end."""
    groups: dict[int, list[StepRecord]] = {}
    for step in steps:
        groups.setdefault(step.group, []).append(step)
    gaps, ends = [], []
    for group in groups.values():
        for before, after in itertools.pairwise(group):
            gap = after.begin - before.end
            if gap < LONGEST_GAP:
                gaps.append(max(0.0, gap))
                ends.append(after.end - before.end)
    return gaps, ends


GAIN: Final = 1.05
"""By so much shorter the longest stage must become for another split to be worth a reload."""


def balance_of(
    layers: Sequence[int], compute: Sequence[float], closing: float
) -> dict[str, Any] | None:
    """The best split of *layers* where ranks with so many take *compute* seconds for a decode, and
    rank 0 another *closing* to draw the token, and by which factor the longest stage takes longer
    *now* (*gain*). None if today's split is about as good.

    The head splits by memory, since a model must fit. Ranks that are not equally fast for it then
    wait for the slowest whenever several rows, chunks of a prompt or guesses are under way.
    """
    each = [took / count for took, count in zip(compute, layers, strict=True)]
    beside = [closing, *(0.0 for _ in each[1:])]
    best = [1] * len(layers)
    for _ in range(sum(layers) - len(layers)):
        after = [beside[rank] + each[rank] * (best[rank] + 1) for rank in range(len(best))]
        best[after.index(min(after))] += 1
    gain = _longest(layers, each, beside) / _longest(best, each, beside)
    found = {"layers": best, "now": [*layers], "gain": round(gain, 3)}
    return found if gain >= GAIN else None


def _longest(layers: Sequence[int], each: Sequence[float], beside: Sequence[float]) -> float:
    return max(b + e * n for n, e, b in zip(layers, each, beside, strict=True))


_LEAST: Final = 0.001
"""Seconds under which a link is not called slow: most of so little are no bytes."""


def slow_links_of(ranks: Mapping[int, RankParts]) -> list[dict[str, Any]]:
    """The slow links of a pipeline whose *ranks* took so long for chunks of prompts, each with the
    rank that it leads from. The last one sends nothing of a chunk back but that it is done. A
    pipeline reads a prompt at the pace of its slowest part. Where that is a link, larger chunks or
    another split help little: fewer bytes do.
    """
    return [
        {"rank": rank, "wire_ms": _ms(took.wire), "compute_ms": _ms(took.compute)}
        for rank, took in ranks.items()
        if rank + 1 in ranks and took.wire > max(took.compute, _LEAST)
    ]


_WHO: Final = {
    "node": "node",
    "launch": "engine: builds and launches graphs",
    "rest": "engine: its other threads",
}


def describe(recordings: Sequence[Recording], seconds: float) -> dict[str, Any]:
    """The profile of *seconds* as JSON. Times are milliseconds for each step, as means, unless
    their names say another unit."""
    decode, prefill = parts_of(recordings, "decode"), parts_of(recordings, "prefill")
    place = recordings[0].place
    piped = place["strategy"] == "pp"
    return {
        "seconds": round(seconds, 3),
        "names": place["names"],
        "strategy": place["strategy"],
        "recorded_ranks": [recording.rank for recording in recordings],
        "decode": None if decode is None else _parts(decode),
        "prefill": None if prefill is None else _parts(prefill),
        "processors": _processors(recordings, decode),
        "balance": _balance(place, decode) if piped and decode is not None else None,
        "slow_links": slow_links_of(prefill.ranks) if piped and prefill is not None else [],
    }


def _balance(place: Mapping[str, Any], decode: Parts) -> dict[str, Any] | None:
    """A better split of a pipeline's layers, if there is one."""
    layers = [end - begin for begin, end in itertools.pairwise(place["bounds"])]
    if [*decode.ranks] != [*range(len(layers))]:
        return None
    closing = decode.closing.compute if decode.closing is not None else 0.0
    return balance_of(layers, [each.compute for each in decode.ranks.values()], closing)


def _parts(parts: Parts) -> dict[str, Any]:
    return {
        "steps": parts.steps,
        "tokens_per_step": round(parts.tokens, 3),
        "steps_under_way": round(parts.under_way, 3),
        "token_ms": _ms(parts.token),
        "step_ms": _ms(parts.step),
        "head_ms": _ms(parts.head),
        "ranks": [{"rank": rank, **_rank(each)} for rank, each in parts.ranks.items()],
        "closing": None if parts.closing is None else _rank(parts.closing),
    }


def _rank(each: RankParts) -> dict[str, float | None]:
    return {f"{name}_ms": _ms(seconds) for name, seconds in attrs.asdict(each).items()}


def _processors(recordings: Sequence[Recording], decode: Parts | None) -> list[dict[str, Any]]:
    """Processor time of each rank's processes by all decode steps; the whole time without one."""
    steps = max(1, decode.steps) if decode is not None else 1
    return [
        {
            "rank": each.rank,
            "who": who,
            "ran_ms": _ms(ran / steps),
            "waited_ms": _ms(waited / steps),
        }
        for each in recordings
        for who, (ran, waited) in each.used().items()
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4)


def show(profile: dict[str, Any]) -> None:
    """Print what `describe` has made."""
    for work in ("decode", "prefill"):
        if profile[work] is not None:
            _show_parts(work, profile[work], profile)
    if profile["processors"]:
        print()
        print_table(
            "Milliseconds of a processor for each decode step",
            ["rank", "who", "ran", "ready, without one"],
            [
                (
                    str(each["rank"]),
                    _WHO[each["who"]],
                    _cell(each["ran_ms"]),
                    _cell(each["waited_ms"]),
                )
                for each in profile["processors"]
            ],
            numbers_from=2,
        )
    _show_balance(profile["balance"])
    for link in profile["slow_links"]:
        print()
        print(
            f"A chunk of a prompt takes {link['wire_ms']:.1f} ms from rank {link['rank']} to the "
            f"next, and {link['compute_ms']:.1f} ms in it: the link holds up the reading of "
            'prompts. For a model in F32, hop_dtype = "bf16" in all configs halves what it '
            "carries, and rounds."
        )


def _show_balance(balance: dict[str, Any] | None) -> None:
    if balance is not None:
        print()
        print(
            f"The longest stage takes {balance['gain']:.2f} times as long as with layers = "
            f"{balance['layers']} in the head's config, in place of {balance['now']}. "
            "It bounds several rows, long prompts and guesses; one row alone gains nothing else."
        )


def _show_parts(work: str, parts: dict[str, Any], profile: dict[str, Any]) -> None:
    names, columns = profile["names"], ("waiting", "compute", "sealing", "node", "wire")
    rows = [(f"{each['rank']} {names[each['rank']]}", each) for each in parts["ranks"]]
    if parts["closing"] is not None:
        rows.append((f"0 {names[0]}, draws the token", parts["closing"]))
    print_table(
        f"{work}: milliseconds of a step",
        ["rank", *columns],
        [(who, *(_cell(each[f"{column}_ms"]) for column in columns)) for who, each in rows],
    )
    facts = [("steps", f"{parts['steps']}, of {parts['tokens_per_step']:.1f} tokens each")]
    if parts["step_ms"]:
        under_way = f"{parts['steps_under_way']:.1f} under way at once"
        facts.append(("a step takes", f"{parts['step_ms']:.2f} ms, {under_way}"))
    if work == "decode" and parts["token_ms"]:
        facts.append(("a row has a token", f"each {parts['token_ms']:.2f} ms (median)"))
        facts.append(("head, between steps", f"{parts['head_ms']:.2f} ms"))
    print_facts(facts)
    print()


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
