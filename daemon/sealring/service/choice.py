"""Whether the head alone is faster than the ring of all, and takes over.

A ring begins with a pipeline of the members that are there. Once some tokens have been timed, that
is compared with each machine alone, as `sealring plan` does (`forecast.judge`). If the head alone
is clearly faster, the node prefers a ring of itself (`Node.prefer`), which it becomes while no
request is there; the other machines stay ready, and are left out. Then its pace is compared with
what the ring of all gave. If it gives less, all are back in.

A ring is judged again after twice as many steps, until the head is taken; what was found before is
not taken if it has become untrue meanwhile. A head alone is compared once, as longer texts make any
ring slower later.

Either figure may be of a bad minute. So what a change has shown counts for `REST` steps, and after
each change for twice as many. Then a head that is alone calls all back in, at the end of a request,
to be compared anew; one that was slower alone may be tried again. So changes become ever rarer, and
no machine is left out for ever for a minute in which it was slow.

A strategy that asks for one way, chosen layers, and any `min_ranks` but 1 keep all machines in: the
comparison is then only told. Tensor parallelism is tried by the head's own measurements before
(`head.trial`), and is not left.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
from collections import deque
from typing import Any, Final

import attrs
from sealring_model.errors import LoadError
from sealring_model.loading.model_store import check_whole
from sealring_protocol.codec.messages import CacheCost
from sealring_protocol.control.effects import Preference, Standing, StepTiming
from sealring_protocol.control.plan import PlanRequest, Strategy
from sealring_protocol.errors import LocalProtocolError

from sealring.files.config import Config
from sealring.forecast import CONTEXT, Candidate, Forecast, Overheads, Workload, judge
from sealring.forecast import ways as find_ways
from sealring.generation.generation import Generator
from sealring.generation.status import TakenRing, describe_costs, describe_paces
from sealring.generation.trace import Observer, Trace
from sealring.local.paces import LONGEST_TURN, is_measured, measured_machines

log = logging.getLogger("sealring.node")

EVERY: Final = 32
"""Steps between two looks at whether enough is known."""

ENOUGH: Final = 64
"""Tokens by which a ring is known."""

KEPT: Final = 1024
"""Tokens that count: the latest."""

REST: Final = 50_000
"""Steps after which what was found by a change is no longer relied on, at first. To compare anew
takes some hundred steps of the slower ring."""


class PaceMeter:
    """What a ring gives in tokens per second of all its streams, guesses included, by the tokens
    that came while as many rows were under way as there are *streams* to be.

    It is never more than what the ring gave: a client that reads slowly has its tokens late, and
    many at once.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._gaps: deque[float] = deque(maxlen=KEPT)

    def clear(self) -> None:
        """The ring is another from now on."""
        self._gaps.clear()

    def token(self, seconds: float, rows: int) -> None:
        """One of so many *rows* had a token, so long after the one before."""
        if rows == self._streams:
            self._gaps.append(seconds)

    @property
    def pace(self) -> float:
        """Tokens per second; 0 while too little is known."""
        if len(self._gaps) < ENOUGH:
            return 0.0
        return self._streams / max(statistics.fmean(self._gaps), 1e-6)


@attrs.frozen
class _Measured:
    """The ways to run the model on the ring of now, the first of which it has taken; *gave* is what
    that gives in tokens per second. *least*, *asked* and *facts* are those of `judge` and
    `TakenRing`."""

    ways: list[Forecast]
    asked: Workload
    least: Forecast | None
    gave: float
    facts: dict[str, Any]


class RingChoice(Observer):
    """Watches the steps and tokens of *generator*'s node, and chooses for it as *config* allows."""

    def __init__(self, generator: Generator, config: Config) -> None:
        self._generator = generator
        self._runtime = generator.runtime
        self._config = config
        self._rows = generator.tracer.of_row
        self._meter = PaceMeter(config.streams)
        self._epoch = 0  # the one that is measured
        self._steps = 0  # in it
        self._due = 0.0  # from which of these on it is judged
        self._all_steps = 0
        self._rest = REST  # for how many steps the next finding counts
        self._rests_until = 0  # until which of all steps the last one counts
        self._told = False  # what was compared in it
        self._gave = 0.0  # what the ring of all gave, when the head alone was preferred to it
        self._stays: set[tuple[int, tuple[int, ...]]] = set()  # rings that were faster, by serial
        generator.tracer.observers.append(self)

    def token(self, seconds: float, *, first: bool) -> None:
        """A request had its first token, or a choice its next."""
        if not first:
            self._meter.token(seconds, len(self._rows))

    def step(self, timing: StepTiming) -> None:
        """A step was answered."""
        if timing.parallel:
            return
        self._steps += 1
        self._all_steps += 1
        if self._steps % EVERY == 0:
            self._look(self._runtime.node.standing())

    def over(self, trace: Trace) -> None:
        """A request is over: at a pause, a head that has been alone for long enough calls all in,
        to be compared anew."""
        if self._all_steps < self._rests_until or self._rows:
            return
        standing = self._runtime.node.standing()
        preference = standing.preference
        if preference is None or preference.ring != standing.ring or self._due < math.inf:
            return
        text = "all machines serve again, to be compared with the head alone anew"
        self._runtime.spawn(self._prefer, None, TakenRing(text))

    def _look(self, standing: Standing) -> None:
        if standing.epoch.counter != self._epoch:
            self._epoch, self._told = standing.epoch.counter, False
            self._steps, self._due = 0, 0.0
            self._meter.clear()
        if self._steps < self._due or standing.checked or not self._meter.pace:
            return
        self._due = 2 * self._steps
        if (found := self._measured(standing)) is None:
            return
        preference = standing.preference
        if preference is not None and preference.ring == standing.ring:
            self._due = math.inf
            self._compare(preference, found)
        elif len(standing.ring) > 1:
            self._judge(standing, found)

    def _measured(self, standing: Standing) -> _Measured | None:
        """What is known of the present ring; None while that is too little."""
        node, plan, ring = self._runtime.node, standing.plan, standing.ring
        info = node.engine_info
        if plan is None or info is None or len(ring) != plan.world:
            return None
        members = node.roster.roster.members
        ranks: list[dict[str, Any]] = [
            {"rank": place, "name": members[rank].name, "addresses": list(members[rank].addresses)}
            for place, rank in enumerate(ring)
        ]
        facts: dict[str, Any] = {
            "bounds": list(plan.split.bounds),
            "paces": describe_paces(self._runtime.timings),
        }
        guess_ms = describe_costs(standing)
        named = {**ranks[0], "peers": ranks[1:], **facts, "sum_us": 0, "guess_ms": guess_ms}
        several = max(map(int, facts["paces"]["decode_us"]), default=0)
        streams = self._config.streams
        known_of = standing.ready.keys() & standing.rooms.keys()
        if not is_measured(named, plan.world) or not known_of >= set(ring):
            return None
        if streams > 1 and 2 * several < streams:  # rows of one group
            return None
        known = measured_machines(info.head, [standing.rooms[rank] for rank in ring], named)
        costs = [CacheCost(0, 0)] * len(info.layers)
        for place, rank in enumerate(ring):
            costs[plan.layers(place).start] = standing.ready[rank].cost  # of all its layers
        asked = Workload(min(CONTEXT, info.context), streams)

        def found(machines: tuple[Candidate, ...], network: Overheads) -> list[Forecast]:
            counts = tuple(len(plan.layers(rank)) for rank in range(len(machines)))
            request = PlanRequest(Strategy.PIPELINE, counts if machines[1:] else ())
            return find_ways(info, costs, machines, network, asked, request)

        turn = min(known.network.hop, LONGEST_TURN)
        network = attrs.evolve(known.network, turn=turn, turn_measured=True)
        every = found(known.machines, known.network)
        least = next(iter(found(known.machines[:1], network)), None)
        if not every or len(every[0].machines) != plan.world:
            return None
        given = every[0].many if streams > 1 else every[0].one
        return _Measured(every, asked, least, max(given, self._meter.pace), facts)

    def _judge(self, standing: Standing, found: _Measured) -> None:
        """Prefer the head alone to the ring of several that was *found*, if that is faster."""
        verdict = judge(found.ways, found.least, found.gave, found.asked)
        why_not = self._why_not(standing) if verdict.takes else ""
        waits = standing.preference is not None and not standing.preference.failed
        if not verdict.takes or why_not:
            text = f"{verdict.text}; but {why_not}" if why_not else verdict.text
            if waits:  # for a pause, and what it waits for is no longer so
                self._runtime.spawn(self._prefer, None, TakenRing(text))
            else:
                self._tell(TakenRing(text), again=self._told)
            return
        self._gave = found.gave
        text = f"{verdict.why}: taken at the next pause between requests"
        taken = TakenRing(text, found.facts, standing.ring)
        self._runtime.spawn(self._prefer, Preference((0,), verdict.why), taken, waits)

    def _why_not(self, standing: Standing) -> str:
        """What keeps the head from taking over alone; empty if nothing does."""
        config, serial = self._config, self._runtime.node.roster.roster.serial
        if config.strategy != "auto":
            return f"strategy = '{config.strategy}' asks for this ring"
        if config.layers:
            return "the chosen layers ask for this ring"
        if config.min_ranks != 1:
            return f"min_ranks = {config.min_ranks} asks for more than one machine"
        stays = (serial, standing.ring) in self._stays
        if stays and self._all_steps < self._rests_until:
            return "it was slower when it was tried"
        if standing.preference is not None and standing.preference.failed:
            return f"it failed when it was tried: {standing.preference.failed}"
        try:
            check_whole(self._generator.model)
        except LoadError as error:
            return str(error)
        return ""

    def _compare(self, preference: Preference, found: _Measured) -> None:
        """The head is alone, as *found*: go back if it gives less than the ring of all did."""
        if (before := self._generator.choice) is None:
            return
        name, ring = found.ways[0].name, before.compared
        gives = f"{found.gave:.3g} tokens/s for {found.asked.text}"
        gave = f"and the ring of {len(ring)} gave {self._gave:.3g}"
        self._rests_until = self._all_steps + self._rest
        self._rest *= 2
        if found.gave >= self._gave:
            text = f"{name} gives {gives}, measured, {gave}"
            kept = attrs.evolve(preference, why=text)
            self._runtime.spawn(self._prefer, kept, attrs.evolve(before, text=text))
            return
        self._stays.add((self._runtime.node.roster.roster.serial, ring))
        text = f"{name} gave only {gives}, {gave}: all machines serve again"
        self._runtime.spawn(self._prefer, None, TakenRing(text))

    async def _prefer(
        self, preference: Preference | None, choice: TakenRing, again: bool = False
    ) -> None:
        """Have the node prefer that, by this *choice*, which is no news if it is so *again*. Where
        the ring is another by now, nothing is done: that one is judged anew."""
        with contextlib.suppress(LocalProtocolError):
            self._runtime.enter(self._runtime.node.prefer, preference)
            self._tell(choice, again=again)

    def _tell(self, choice: TakenRing, *, again: bool = False) -> None:
        """Let people know of *choice*: in the log, too, unless a line is there *again*."""
        self._generator.choice, self._told = choice, True
        if not again:
            log.info("%s", choice.text)
