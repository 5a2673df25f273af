"""What each way to run a model on some machines would give: bytes, context, tokens per second.

The splits are those of `control.plan`. The times follow from what a machine takes for one layer
(`Pace`) and from what a step takes beside computing (`Overheads`). A pipeline of W ranks answers
one stream in the sum of all ranks' work and W hops. Several streams are spread over G groups, of
which each rank serves one at a time: a round of all groups takes as long as one group's way round
the ring, or as G turns of the slowest machine, if that is longer. Ranks of one machine take turns
on its processors, so they count as one there. A prompt is read in chunks, which follow each other
through the ring like groups.

Whether a figure was measured is said with it: what a way takes is measured only if each part of it
was. Nothing here asks, reads or measures anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import le
from typing import Final

import attrs
from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import CacheCost
from sealring_protocol.control.plan import CLEARLY, Plan, PlanRequest, Strategy, make_plan
from sealring_protocol.errors import LocalProtocolError

ENGINE: Final = 95 << 20
"""Bytes that an engine's process takes beside weights and caches: an estimate, of a CPU."""

CONTEXT: Final = 4096
"""Tokens of a row that there should be room for, where nobody says how many."""

PROMPT: Final = 1000
"""Tokens of the prompt whose first token is timed."""

CHUNKS: Final = 4
"""Chunks in which a ring of several ranks reads such a prompt: a guess."""

APART: Final = "two rings of one"
"""The name of the way that has a ring on each of two machines."""

STREAMS: Final = 8
"""How many streams together a pace is given for, where one stream is asked for."""

_CLOSE: Final = 1.05
"""How much faster a way with more machines must be to be recommended: figures are this good."""


@attrs.frozen
class Pace:
    """What a machine takes for one layer, in seconds: *layer* for a token of one row, *more* as a
    part of that for each further row, *prompt* for each token of a prompt. *head* is what the norm,
    the output head and the draw take, in layers."""

    layer: float
    more: float
    prompt: float
    head: float
    measured: bool = False

    def decode(self, layers: int, rows: int, *, head: bool) -> float:
        """Seconds of a step of *rows* rows through *layers*, with the output head or without."""
        return self.layer * (layers + self.head * head) * (1 + self.more * (rows - 1))

    def read(self, layers: int, tokens: int) -> float:
        """Seconds that *layers* take to read *tokens* of a prompt."""
        return self.prompt * layers * tokens


@attrs.frozen
class Candidate:
    """A machine by the *name* of its node: *room* bytes for weights and caches, and its *pace*.
    Those of one *host* share its processors."""

    name: str
    host: str
    room: int
    pace: Pace


@attrs.frozen
class Overheads:
    """What a step takes beside computing, in seconds: *turn* with one rank, and *hop* for each rank
    of several. *sums* is what a sum of tensor parallelism takes, or None if nobody measured it."""

    turn: float
    hop: float
    sums: float | None = None
    turn_measured: bool = False
    hop_measured: bool = False


@attrs.frozen
class Workload:
    """What the ring is for: *rows* streams at once, of *context* tokens at most."""

    context: int
    rows: int

    @property
    def text(self) -> str:
        """*rows*, for people."""
        return f"{self.rows} streams" if self.rows > 1 else "one stream"

    @property
    def streams(self) -> int:
        """How many streams together `Forecast.many` is of: *rows*, if these are several."""
        return self.rows if self.rows > 1 else STREAMS


@attrs.frozen
class Forecast:
    """One way to run the model. Of the ranks in order, and of rings of one in the order of
    machines: *layers*, bytes of *weights*, of *caches*, and whether all *fits*. *longest* is the
    context of one row in tokens, *one* and *many* are tokens per second of one stream and of all
    streams together, *first* is seconds to the first token of a prompt of `PROMPT`."""

    name: str
    strategy: str
    machines: tuple[str, ...]
    layers: tuple[range, ...]
    weights: tuple[int, ...]
    caches: tuple[int, ...]
    fits: bool
    longest: int
    one: float
    many: float
    first: float
    measured: bool
    """Whether *one* and *many* follow from what was measured; *first* is always an estimate."""

    @property
    def engines(self) -> int:
        """Bytes of the engines' own."""
        return ENGINE * len(self.machines)


def ways(
    info: EngineInfo,
    costs: Sequence[CacheCost],
    machines: Sequence[Candidate],
    network: Overheads,
    asked: Workload,
    request: PlanRequest | None = None,
) -> list[Forecast]:
    """Each way to run the model of *info*, whose layers' caches have these *costs*, on *machines*:
    as *request* would split it, in a pipeline, in tensor parallelism, on each machine alone, and,
    of two, on each. What cannot be is left out."""
    request = request or PlanRequest(Strategy.PIPELINE)
    model = _Model(info, costs, network, asked)
    found: list[Forecast] = []
    if len(machines) > 1:
        pipeline = attrs.evolve(request, strategy=Strategy.PIPELINE)
        found += model.ring(machines, pipeline)
        if network.sums is not None:
            found += model.ring(machines, attrs.evolve(request, strategy=Strategy.TENSOR))
    alone = [way for each in machines for way in model.ring([each], PlanRequest(Strategy.SINGLE))]
    found += alone
    if len(machines) == len(alone) == 2:
        found.append(model.apart(machines, alone))
    return found


def recommend(found: Sequence[Forecast], asked: Workload) -> tuple[Forecast, str] | None:
    """The way to take of *found*, and why, in a sentence; None if none fits. The fastest that has
    room for what is *asked*: for one stream, or for all if there are several. Another machine alone
    has to be clearly faster than the head (`CLEARLY`), with which the first of *found* begins."""
    fitting = [way for way in found if way.fits]
    if not fitting:
        return None
    several = asked.rows > 1

    def pace(way: Forecast) -> float:
        return _pace(way, asked)

    fastest = max(fitting, key=pace)
    near = [way for way in fitting if pace(way) * _CLOSE >= pace(fastest)]
    best = min(near, key=lambda way: (len(way.machines), -pace(way)))
    if len(best.machines) == 1:
        rings = [way for way in fitting if len(way.machines) > 1 and way.name != APART]
        most = max(map(pace, rings), default=0.0)
        for own in (way for way in fitting if way.machines == found[0].machines[:1]):
            if pace(own) * _CLOSE >= most and pace(own) >= CLEARLY * pace(best):
                best = own
    figure = f"{pace(best):.3g} tokens/s for {asked.text}"
    others = [way for way in fitting if way is not best and (several or way.name != APART)]
    if not others:
        guess = "" if best.measured else " (estimate)"
        text = "nothing else has room for it" if len(found) > 1 else "there is no other machine"
        if len(best.machines) > 1:
            text = "no machine has room for it alone"
        return best, f"{text}; {figure}{guess}"
    rings = [way for way in others if (len(way.machines) > 1) != (len(best.machines) > 1)]
    second = max(rings or others, key=pace)
    if len(best.machines) == 1 and len(second.machines) > 1:
        faster = pace(best) > pace(second)
        text = "one machine is faster" if faster else "one machine is as fast"
    elif best is fastest:
        text = "it is the fastest"
    else:
        text = "more machines bring less than 5 %"
    against = f"{second.name} gives {pace(second):.3g}"
    guess = "" if best.measured and second.measured else " (estimate)"
    return best, f"{text}: {figure}, and {against}{guess}"


@attrs.frozen
class Judgement:
    """Whether a ring is to become its head alone (*takes*), in one line what it was compared with,
    and *why* it is to, which is a part of that line."""

    takes: bool
    text: str
    why: str = ""


def judge(
    found: Sequence[Forecast], least: Forecast | None, gave: float, asked: Workload
) -> Judgement:
    """Whether the ring of the first way of those that were *found* is to become its head alone. It
    *gave* so many tokens per second. *least* is the head alone with the longest turn that it may
    have, which nobody has measured.

    The head alone is taken if it has room, loses no context, and is clearly faster (`CLEARLY`) even
    so, by what was measured. Another machine alone cannot be taken, as the head is in every ring.
    """
    ring, *others = [way for way in found if way.name != APART]
    what = asked.text
    gives = f"{_world(ring)} gives {gave:.3g} tokens/s for {what}"
    alone = [way for way in others if way.fits and len(way.machines) == 1]
    if not alone:
        return Judgement(False, f"{gives}; no machine has room for the model alone")
    best, _ = recommend([ring, *alone], asked) or (ring, "")
    if len(best.machines) > 1:
        best = max(alone, key=lambda way: _pace(way, asked))
    pace = _pace(best, asked)
    guess = "" if best.measured else " (estimate)"
    beside = f"{gives}, and {best.name} would give {pace:.3g}{guess}"
    if pace * CLEARLY < gave:
        return Judgement(False, beside)
    if best.machines[0] != ring.machines[0]:
        name = best.machines[0]
        text = f"{beside}: 'sealring machines move {name} --rank 0' makes it the head, which can be"
        return Judgement(False, f"{text} alone")
    if best.longest < ring.longest:
        text = f"it has room for {best.longest} tokens of a stream, and the ring for {ring.longest}"
        return Judgement(False, f"{beside}; but {text}")
    sure = least is not None and least.measured and _pace(least, asked) * CLEARLY >= gave
    if not sure:
        return Judgement(False, f"{beside}; but that is not sure to be clearly faster")
    why = f"{best.name} gives {pace:.3g} tokens/s for {what}{guess}"
    return Judgement(True, beside, f"{why}, and {_world(ring)} gave {gave:.3g}")


def _pace(way: Forecast, asked: Workload) -> float:
    """Tokens per second of all streams that are *asked* for."""
    return way.many if asked.rows > 1 else way.one


def _world(way: Forecast) -> str:
    return f"the ring of {len(way.machines)}"


@attrs.frozen
class _Model:
    info: EngineInfo
    costs: Sequence[CacheCost]
    network: Overheads
    asked: Workload

    def ring(self, machines: Sequence[Candidate], request: PlanRequest) -> list[Forecast]:
        """The ring of *machines* that *request* asks for, if it can be."""
        try:
            plan = make_plan(request, self.info, [each.room for each in machines])
        except LocalProtocolError:
            return []
        ranks = range(plan.world)
        tensor = plan.strategy is Strategy.TENSOR
        share = plan.world if tensor else 1
        weights = tuple([plan.split.weights[0 if tensor else rank] for rank in ranks])
        left = [each.room - held for each, held in zip(machines, weights, strict=True)]
        layers = tuple([plan.layers(rank) for rank in ranks])

        def caches(tokens: int) -> list[int]:
            return [
                sum([cost.of(tokens) for cost in self.costs[of.start : of.stop]]) // share
                for of in layers
            ]

        held = tuple(self.asked.rows * size for size in caches(self.asked.context))
        kind = _Tensor if tensor else _Pipeline
        times = kind(machines, tuple(map(len, layers)), self.network)
        return [
            Forecast(
                name=_name(plan, machines),
                strategy=plan.strategy.value,
                machines=tuple([each.name for each in machines]),
                layers=layers,
                weights=weights,
                caches=held,
                fits=all(map(le, held, left)),
                longest=_longest(self.info.context, lambda n: all(map(le, caches(n), left))),
                one=1 / times.token(),
                many=times.streams(self.asked.streams),
                first=times.first(PROMPT),
                measured=times.measured,
            )
        ]

    def apart(self, machines: Sequence[Candidate], alone: Sequence[Forecast]) -> Forecast:
        """A ring of one on each of the two *machines*, which are the ways *alone*: the streams are
        shared out, and a single one is for the faster."""
        faster = max(alone, key=lambda way: way.one)
        half = attrs.evolve(self, asked=attrs.evolve(self.asked, rows=-(-self.asked.streams // 2)))
        single = PlanRequest(Strategy.SINGLE)
        halves = [way for each in machines for way in half.ring([each], single)]
        shared = len({each.host for each in machines}) < len(machines)
        many = max(way.many for way in alone)
        if not shared:
            many = sum(way.many for way in halves)
        return Forecast(
            name=APART,
            strategy=Strategy.SINGLE.value,
            machines=tuple(each.name for each in machines),
            layers=tuple(way.layers[0] for way in alone),
            weights=tuple(way.weights[0] for way in alone),
            caches=tuple(way.caches[0] for way in alone),
            fits=all(way.fits for way in alone),
            longest=min(way.longest for way in alone),
            one=faster.one,
            many=many,
            first=faster.first,
            measured=False,
        )


@attrs.frozen
class _Pipeline:
    """The times of a pipeline of *machines*, or of one, with so many *layers* each."""

    machines: Sequence[Candidate]
    layers: tuple[int, ...]
    network: Overheads

    @property
    def measured(self) -> bool:
        alone = len(self.machines) == 1
        way = self.network.turn_measured if alone else self.network.hop_measured
        return way and all(each.pace.measured for each in self.machines)

    @property
    def _travels(self) -> float:
        world = len(self.machines)
        return self.network.turn if world == 1 else world * self.network.hop

    def _busiest(self, stages: Sequence[float]) -> float:
        """The most that one host has to do, where the ranks take *stages*."""
        hosts = dict.fromkeys((each.host for each in self.machines), 0.0)
        for each, seconds in zip(self.machines, stages, strict=True):
            hosts[each.host] += seconds
        return max(hosts.values())

    def _decode(self, rows: int) -> list[float]:
        return [
            each.pace.decode(layers, rows, head=rank == 0)
            for rank, (each, layers) in enumerate(zip(self.machines, self.layers, strict=True))
        ]

    def token(self) -> float:
        """Seconds of a token of one stream."""
        return sum(self._decode(1)) + self._travels

    def streams(self, rows: int) -> float:
        """Tokens per second of *rows* streams together, in as many groups as is best."""
        world = len(self.machines)
        most = 1 if world == 1 else min(rows, 2 * world)
        return max(rows / self._round(groups, -(-rows // groups)) for groups in range(1, most + 1))

    def _round(self, groups: int, rows: int) -> float:
        stages = self._decode(rows)
        return max(sum(stages) + self._travels, groups * self._busiest(stages))

    def first(self, tokens: int) -> float:
        """Seconds to the first token after a prompt of *tokens*."""
        chunks = 1 if len(self.machines) == 1 else CHUNKS
        both = zip(self.machines, self.layers, strict=True)
        stages = [each.pace.read(layers, tokens) / chunks for each, layers in both]
        way = sum(stages) + self._travels + (chunks - 1) * self._busiest(stages)
        return way + self.token()


@attrs.frozen
class _Tensor:
    """The times of tensor parallelism over *machines*; *layers* has the number of all layers, for
    each. The slowest sets the pace, and a token takes two sums a layer and one for the head."""

    machines: Sequence[Candidate]
    layers: tuple[int, ...]
    network: Overheads

    @property
    def measured(self) -> bool:
        return False

    @property
    def _sums(self) -> float:
        return (2 * self.layers[0] + 1) * (self.network.sums or 0.0)

    def _step(self, rows: int) -> float:
        world = len(self.machines)
        work = max(each.pace.decode(self.layers[0], rows, head=False) for each in self.machines)
        head = max(each.pace.decode(0, rows, head=True) for each in self.machines)
        return work / world + head + self._sums + self.network.turn

    def token(self) -> float:
        """Seconds of a token of one stream."""
        return self._step(1)

    def streams(self, rows: int) -> float:
        """Tokens per second of *rows* streams together."""
        return rows / self._step(rows)

    def first(self, tokens: int) -> float:
        """Seconds to the first token after a prompt of *tokens*."""
        work = max(each.pace.read(self.layers[0], tokens) for each in self.machines)
        return work / len(self.machines) + self._sums + self.token()


def _name(plan: Plan, machines: Sequence[Candidate]) -> str:
    if plan.world == 1:
        return f"{machines[0].name} alone"
    return f"ring of {plan.world} ({plan.strategy.value})"


def _longest(most: int, has_room: Callable[[int], bool]) -> int:
    """The largest number of tokens up to *most* for which *has_room*; 0 if there is none."""
    if has_room(most):
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if has_room(middle) else (low, middle - 1)
    return low
