"""Where time goes: that of each request (`Trace`), and that of each step while a node is profiled.


A trace follows one request from its header to its last token. The head measures parsing, the queue,
the prefill and the first token where they happen. What the ranks did comes with each step's timing,
and is added to every request that had a row in that step. All rows of a group wait for the whole
step, so each is charged the whole: the traces of a batch add up to more than the time that passed.

    total = body + parse + tokenise + queue + steps + turn
    steps = compute of every rank + sample + wait + seal + hop

If steps of one request overlap (chunks of its prompt, choices in several groups), the time counts
once, for the step that came back first. *wait* is the time that a step waited for a busy device.
*hop* is the time that was neither computing, waiting nor sealing: sockets, event loops and frames.
*turn* is the rest: the time between two steps of the request, in which other requests had theirs.

Three more are shown that are not parts of *total*. *prefill* is the span from the queue to the
first token, and *first token* that from the header. *detokenise* overlaps with the next step.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence, ValuesView
from typing import Any, Final

import attrs
import trio
from sealring_protocol.codec.local_messages import LocalMessage
from sealring_protocol.codec.messages import Decode, Prefill, Spent, Step, StepDone
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.requests import RowOpened
from sealring_trio.engine.supervisor import ProcessUsage, read_usage
from sealring_trio.units import wall_ms

log = logging.getLogger("sealring.requests")
step_log = logging.getLogger("sealring.steps")

TRACES_KEPT: Final = 1024
"""How many traces of finished requests are kept. Memory: about 2 KiB each."""

STILL_SECONDS: Final = 8.0
"""Seconds without a step after which a person is to know. One chunk of a prompt can take some."""

MAX_RECORDS: Final = 1 << 16
"""Steps, and stays, that wait to be sent; older ones are dropped. Memory: 64 MiB for a client that
takes nothing."""

_US: Final = 1e-3  # microseconds in milliseconds
_S: Final = 1e3  # seconds in milliseconds


class StepParts:
    """The parts of a step's time, in microseconds. Made once for all requests with a row in it."""

    __slots__ = (
        "away_us",
        "busy_us",
        "compute_us",
        "sample_us",
        "seal_us",
        "total_us",
        "wait_us",
    )

    def __init__(self, timing: StepTiming) -> None:
        closing = timing.closing
        self.total_us = timing.total_us
        self.away_us = timing.away_us
        self.compute_us = [spent.compute_us for spent in timing.spent]
        self.sample_us = closing.compute_us
        self.wait_us, self.seal_us = closing.wait_us, closing.seal_us
        for spent in timing.spent:
            self.wait_us += spent.wait_us
            self.seal_us += spent.seal_us
        self.busy_us = self.away_us + sum(self.compute_us) + self.sample_us + self.seal_us


@attrs.define
class Trace:
    """The times of one request: seconds of trio's clock; those from steps are microseconds."""

    id: str
    kind: str
    owner: str
    began: float = attrs.field(factory=trio.current_time)
    began_ms: int = attrs.field(factory=wall_ms)
    asked: str = ""  # what the client calls the request
    trace_id: str = ""  # W3C Trace Context's
    body: float = 0.0
    parse: float = 0.0
    tokenise: float = 0.0
    detokenise: float = 0.0
    submitted: float | None = None
    opened: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    outcome: str = ""
    fault: str = ""  # of a request that was refused or failed, for the log
    choices: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    read_tokens: int = 0  # of the prompt, by steps that have come back
    withdrawn: bool = False
    given_up: str = ""  # why the head ended it, if nobody withdrew it
    survives: bool = False  # the next head goes on with it
    tokens: int = 0
    accepted: int = 0  # of the tokens that were guessed, as the next two lines have it
    rejected: int = 0
    steps: int = 0
    steps_us: float = 0.0
    compute_us: list[float] = attrs.field(factory=list)
    sample_us: float = 0.0
    wait_us: float = 0.0
    seal_us: float = 0.0
    hop_us: float = 0.0
    _covered: float = 0.0  # when the latest step ended

    def step(self, step: StepParts, now: float) -> None:
        """A step with a row of this request has come back."""
        self.steps += 1
        began = now - step.total_us * 1e-6
        # What it waited in the queue until the head knew that it is begun is counted as that.
        fresh = max(0.0, now - max(began, self._covered, self.opened or 0.0)) * 1e6
        self._covered = now
        self.steps_us += fresh
        # The rest of the step's time has been counted: what it waited then, it waited for that.
        wait = min(fresh, max(0.0, step.wait_us - (step.total_us - fresh)))
        share = (fresh - wait) / step.busy_us if step.busy_us else 0.0
        self.wait_us += wait
        self.hop_us += share * step.away_us
        self.sample_us += share * step.sample_us
        self.seal_us += share * step.seal_us
        if len(self.compute_us) < len(step.compute_us):
            self.compute_us += [0.0] * (len(step.compute_us) - len(self.compute_us))
        for rank, spent in enumerate(step.compute_us):
            self.compute_us[rank] += share * spent

    def guessed(self, accepted: int, rejected: int) -> None:
        """A choice is over, for which so many tokens were guessed rightly and wrongly."""
        self.accepted += accepted
        self.rejected += rejected

    @property
    def state(self) -> str:
        """What the request waits for, or how it ended."""
        if self.ended is not None:
            return self.outcome
        if self.first is not None:
            return "decode"
        if self.opened is not None:
            return "prefill"
        return "queued" if self.submitted is not None else "parse"

    def phases(self) -> dict[str, Any]:
        """Each phase in milliseconds; None if it has not been reached."""
        now = self.ended if self.ended is not None else trio.current_time()
        total = (now - self.began) * _S
        queue = _span(self.submitted, self.opened if self.opened is not None else now)
        parse, tokenise = self.parse * _S, self.tokenise * _S
        body = self.body * _S
        known = body + parse + tokenise + (queue or 0.0) + self.steps_us * _US
        return {
            "body": _round(body),
            "parse": _round(parse),
            "tokenise": _round(tokenise),
            "queue": _round(queue),
            "prefill": _round(_span(self.opened, self.first)),
            "compute": [_round(spent * _US) for spent in self.compute_us],
            "sample": _round(self.sample_us * _US),
            "wait": _round(self.wait_us * _US),
            "seal": _round(self.seal_us * _US),
            "hop": _round(self.hop_us * _US),
            "turn": _round(max(0.0, total - known)),
            "detokenise": _round(self.detokenise * _S),
            "first_token": _round(_span(self.began, self.first)),
            "total": _round(total),
        }

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second after the first token, over all choices."""
        if self.first is None or self.last is None or self.last <= self.first:
            return 0.0
        return (self.tokens - 1) / (self.last - self.first)

    def describe(self) -> dict[str, Any]:
        """The trace as a JSON object."""
        return {
            "id": self.id,
            "request_id": self.asked or self.id,
            "trace_id": self.trace_id,
            "kind": self.kind,
            "owner": self.owner,
            "began_ms": self.began_ms,
            "state": self.state,
            "choices": self.choices,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "read_tokens": self.read_tokens,
            "tokens": self.tokens,
            "tokens_per_s": round(self.tokens_per_s, 2),
            "accepted_guesses": self.accepted,
            "rejected_guesses": self.rejected,
            "steps": self.steps,
            "phases_ms": self.phases(),
        }

    def prefill_progress(self) -> str:
        """How far its prompt has been read."""
        read = min(self.prompt_tokens, self.cached_tokens + self.read_tokens)
        return f"reading your prompt: {read:,} of {self.prompt_tokens:,} tokens"

    def line(self) -> str:
        """The same as one line for the log, without what the request never had."""
        phases = self.phases()
        ranks = phases.pop("compute")
        total, first = phases.pop("total"), phases.pop("first_token")
        parts = []
        for name, spent in phases.items():
            if name == "sample":
                parts += [f"rank {rank} {spent}" for rank, spent in enumerate(ranks)]
            if spent or self.tokens:
                parts.append(f"{name} {'-' if spent is None else spent}")
        who = f" for {self.owner}" if self.owner else ""
        who += f", called {self.asked}" if self.asked else ""
        who += f", trace {self.trace_id}" if self.trace_id else ""
        how = f"{self.outcome} ({self.fault})" if self.fault else self.outcome
        counts, took = [], f"{total} ms"
        if self.prompt_tokens:
            counts.append(f"{self.prompt_tokens} tokens in ({self.cached_tokens} known)")
        if self.tokens:
            counts.append(f"{self.tokens} out, {self.tokens_per_s:.1f} tokens/s")
            took += f", first token {'-' if first is None else first} ms"
        said = [how, *([", ".join(counts)] if counts else []), f"{took}: {', '.join(parts)}"]
        return f"{self.id}{who}: {'; '.join(said)}"


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * _S


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


class Observer:
    """Sees each step, token and end: metrics, and the choice of the ring."""

    def step(self, timing: StepTiming) -> None:
        """A step has been answered."""

    def token(self, seconds: float, *, first: bool) -> None:
        """A request had its *first* token, so long after its first byte; or a choice had its next,
        so long after the one before."""

    def over(self, trace: Trace) -> None:
        """A request is over."""


class Tracer:
    """The traces of one head: those that run, and the latest that are over."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self._live: dict[str, Trace] = {}
        self._past: OrderedDict[str, Trace] = OrderedDict()
        self.of_row: dict[int, Trace] = {}
        """The request of each row that is not over, by its uid. To be read only."""
        self._stepped = 0.0  # when the latest step of any request came back

    @property
    def live(self) -> ValuesView[Trace]:
        """The requests that are not over, as they come and go."""
        return self._live.values()

    @property
    def latest(self) -> Iterator[Trace]:
        """Those that are over, the latest first."""
        return reversed(self._past.values())

    def find(self, name: str, owner: str) -> list[Trace]:
        """The trace of the request with the id *name*, if it is known; or else of those which
        *owner* calls so, those under way first, and then the latest first. What other callers call
        so is none of *owner*'s concern."""
        if (found := self._live.get(name) or self._past.get(name)) is not None:
            return [found]
        every = (*self.live, *self.latest)
        return [each for each in every if each.asked == name and each.owner == owner]

    def doing(self, trace: Trace) -> str:
        """What is done for *trace* until its first token, for the person who waits."""
        since = trace.submitted or 0.0
        match trace.state:
            case "parse":
                return "reading the text of your request"
            case "queued":
                before = [each for each in self.live if (each.submitted or math.inf) < since]
                many = f"{len(before)} requests are" if len(before) != 1 else "1 request is"
                return f"{many} before yours" if before else "waiting for a place in the ring"
            case "prefill":
                still = trio.current_time() - max(self._stepped, trace.opened or 0.0)
                if still < STILL_SECONDS:
                    return trace.prefill_progress()
                return f"{trace.prefill_progress()}; the ring stands still (for {still:.0f} s)"
            case _:
                return ""

    def rows(self, trace: Trace) -> list[int]:
        """The uids of *trace*'s rows."""
        return [uid for uid, owner in self.of_row.items() if owner is trace]

    def begin(self, trace: Trace) -> None:
        """Follow *trace*."""
        self._live[trace.id] = trace

    def follow(self, uid: int, trace: Trace) -> None:
        """Row *uid* is one of *trace*'s."""
        self.of_row[uid] = trace

    def leave(self, uid: int) -> None:
        """Row *uid* is over."""
        self.of_row.pop(uid, None)

    def watch(self, event: StepTiming | RowOpened) -> None:
        """Something of the ring that traces are made of."""
        if isinstance(event, StepTiming):
            self._step(event)
        elif (trace := self.of_row.get(event.uid)) is not None and trace.opened is None:
            # A row that comes back after an interruption is opened again, which does not count.
            trace.opened = trio.current_time()
            trace.cached_tokens = event.cached

    def _step(self, timing: StepTiming) -> None:
        """Charge a step to each request that had a row in it."""
        self._stepped = now = trio.current_time()
        charged = {id(t): t for uid in timing.uids if (t := self.of_row.get(uid)) is not None}
        work = timing.work
        if isinstance(work, Prefill) and (trace := self.of_row.get(work.uid)) is not None:
            trace.read_tokens += work.count
        if charged:
            parts = StepParts(timing)
            for trace in charged.values():
                trace.step(parts, now)
        for observer in self.observers:
            observer.step(timing)
        if step_log.isEnabledFor(logging.INFO):
            step_log.info("%s", describe_step(timing))

    def token(self, trace: Trace, before: float | None, now: float) -> None:
        """A row of *trace* had a token; its last one came at *before*."""
        trace.tokens += 1
        trace.last = now
        if trace.first is None:
            trace.first = now
            for observer in self.observers:
                observer.token(now - trace.began, first=True)
        if before is not None:
            for observer in self.observers:
                observer.token(now - before, first=False)

    def end(self, trace: Trace, outcome: str) -> None:
        """The request is over, with *outcome*: log it in one line, and keep it for a while."""
        trace.ended, trace.outcome = trio.current_time(), outcome
        self._live.pop(trace.id, None)
        self._past[trace.id] = trace
        while len(self._past) > TRACES_KEPT:
            self._past.popitem(last=False)
        for observer in self.observers:
            observer.over(trace)
        log.info("%s", trace.line())


def describe_step(timing: StepTiming) -> str:
    """*timing* as one line for the log."""
    match timing.work:
        case Decode(group, guessed, ahead) as decode:
            work = f"decode of group {group}, rows {', '.join(map(str, timing.uids))}"
            if decode.on_guess:
                work += f", on guess {guessed - ahead}"
            if ahead:
                work += f", {ahead} {'guess' if ahead == 1 else 'guesses'} read ahead"
        case Prefill(uid, position, count):
            work = f"prefill of row {uid} from {position}, {count} tokens"
        case _:
            work = "no work"
    ranks = [f"rank {rank} {_spent_in_words(spent)}" for rank, spent in timing.by_rank]
    if timing.closing != Spent():
        ranks.append(f"sample {_spent_in_words(timing.closing)}")
    return (
        f"step {timing.n}: {work}: {timing.total_us * _US:.2f} ms: "
        f"{', '.join(ranks)}, hop {timing.away_us * _US:.2f}"
    )


def _spent_in_words(spent: Spent) -> str:
    wait, seal = spent.wait_us * _US, spent.seal_us * _US
    return f"{spent.compute_us * _US:.2f} (wait {wait:.2f}, seal {seal:.2f})"


class StepRecorder:
    """Records the steps that pass a node, while somebody profiles it (`sealring profile`), until it
    is dropped. `given` and `came` see what goes to and from the engine, `watch` the head's steps.

    A *stay* is the time of one message in the engine: from when the node gave it until the node had
    the answer. A step stays once with each rank, and in a pipeline of several ranks a second time
    with the head, whose engine draws the token (the closing pass). What the engine says that it
    computed, waited and sealed lies within the stay; the rest of it is the way between node and
    engine, and both event loops.

    The head also records each *step* as it is answered. Times are seconds of `time.perf_counter`,
    which the processes of one machine share. A record is a list, as it goes to the client in JSON:

        step    [n, work, group, tokens, begin, end, [[compute, wait, seal] of each rank], closing]
        stay    [n, closing, begin, end, compute, wait, seal]

    *work* is "decode", "prefill" or "none"; *closing* of a step is the same three numbers. compute,
    wait and seal are microseconds. *tokens* is how many a decode draws, or a prefill reads.
    """

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
        taken = {"clock": time.perf_counter(), "steps": [*self._steps], "stays": [*self._stays]}
        self._steps.clear()
        self._stays.clear()
        return taken


def _parts(spent: Spent) -> tuple[int, int, int]:
    return spent.compute_us, spent.wait_us, spent.seal_us


def processor_times(engines: Sequence[int]) -> dict[str, Any]:
    """Seconds that this node and the processes *engines* were on a processor, and ready without
    one, since they began; empty where the system does not say.

    The first thread of an engine builds and launches graphs; the others read, wait for the device,
    answer, and on a CPU compute.
    """
    times = {}
    if (node := read_usage(os.getpid())) is not None:
        times["node"] = _sum(node, set(node.threads))
    found = [(pid, usage) for pid in engines if (usage := read_usage(pid)) is not None]
    if found:
        times["launch"] = _added([_sum(usage, {pid}) for pid, usage in found])
        times["rest"] = _added([_sum(usage, set(usage.threads) - {pid}) for pid, usage in found])
    return times


def _sum(usage: ProcessUsage, threads: set[int]) -> list[float]:
    uses = [use for thread, use in usage.threads.items() if thread in threads]
    return [sum(use.cpu for use in uses), sum(use.waited for use in uses)]


def _added(pairs: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*pairs, strict=True)]
