"""The plan of an epoch: which strategy, and what every rank holds, with the reason.

`auto` takes tensor parallelism where the model can be sharded over as many ranks as there are, a
back end for its collectives is at hand and allowed, and nothing else stands against it: that it has
not been tried yet, or what the head has learnt of it (`head.trial`). Otherwise it takes a pipeline.
Whoever asks for a strategy by name gets that one, or the reason why not.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Backend, Bootstrap, Build, Epoch, KeptCache, Ready
from sealring_protocol.control.requests import SchedulerConfig
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import (
    MAX_SEALED_BODY,
    MAX_WEIGHT_WAITING,
    MAX_WORLD,
    PING_TIMEOUT,
    STEP_ROOM,
)
from sealring_protocol.words import named

# ---------------------------------------------------------------------- partition
# Which rank holds which layers: contiguous, weighted by memory, at least one layer each.
#
# Rank 0 also has the embedding, the final norm and the output head. It is charged for their
# bytes, and for the work of the output head, which counts as layers: so the ranks work equally
# long on a token where they have equal memory. Shares are given by the largest-remainder method
# (Hamilton's), which keeps every rank within one layer of its exact share. Where a rank has not
# the room for that, or the model cannot be cut there, the nearest bounds are taken at which every
# rank has room.


RESERVE: Final = 0.1
"""Share of a rank's memory that weights may not take: caches and activations live there."""


class TooLittleRoom(LocalProtocolError):
    """The ranks have too little memory for the model."""


@attrs.frozen
class Joints:
    """The *layers*, rising, before which a model cannot be cut, for the reason *why*."""

    layers: tuple[int, ...] = ()
    why: str = ""

    def check(self, bounds: Sequence[int], count: int) -> None:
        """Raise `LocalProtocolError` if one of *bounds* of *count* layers is not to be."""
        for bound in bounds:
            if bound in self.layers:
                raise LocalProtocolError(
                    f"the model cannot be cut before layer {bound}: {self.why}; "
                    f"it can be cut before {self._others(count)}"
                )

    def _others(self, count: int) -> str:
        free = [layer for layer in range(1, count) if layer not in self.layers]
        return f"layers {', '.join(map(str, free))}" if free else "none"


@attrs.frozen
class Partition:
    """Layer *bounds* (rank i holds ``bounds[i]:bounds[i + 1]``) and the *weights* of each rank,
    bytes, rank 0's with embedding and head."""

    bounds: tuple[int, ...]
    weights: tuple[int, ...]

    def layers(self, rank: int) -> range:
        """The layers of *rank*."""
        return range(self.bounds[rank], self.bounds[rank + 1])

    @property
    def text(self) -> str:
        """The layers of every rank, in words."""
        pairs = pairwise(self.bounds)
        return ", ".join(f"{first} to {bound - 1}" for first, bound in pairs)


NO_JOINTS: Final = Joints()


def partition(
    layers: Sequence[int],
    ends: int,
    memory: Sequence[int],
    joints: Joints = NO_JOINTS,
    head: int = 0,
    ranks: Sequence[str] = (),
) -> Partition:
    """Split *layers* (bytes each) over ranks with *memory* bytes each, not at *joints*; *ends* is
    the size of embedding, norm and head, and *head* the work of the output head in thousandths of a
    layer's.

    Raises `LocalProtocolError`, with the numbers, when it does not fit.
    """
    world = len(memory)
    _check_world(len(layers), world)
    usable = [max(0, int(room * (1 - RESERVE))) for room in memory]
    total = sum(layers) + ends
    if sum(usable) < total:
        raise TooLittleRoom(
            f"the model's weights take {_gib(total)} and the {world} ranks have room for "
            f"{_gib(sum(usable))} ({RESERVE:.0%} of each rank is kept for caches); "
            "add a machine, or use a smaller or quantized model"
        )
    rooms = [max(0, usable[0] - ends), *usable[1:]]
    cuts = [cut for cut in range(1, len(layers) + 1) if cut not in joints.layers]
    if len(cuts) < world:
        raise LocalProtocolError(
            f"the model can be cut into {len(cuts)} parts at most, for {world} ranks: {joints.why}"
        )
    shares = _shares(rooms, len(layers), Fraction(head, 1000))
    bounds = _nearest([0, *accumulate(shares)], cuts, layers, rooms)
    if bounds is None:  # some rank has not the room; which one is said with the numbers
        bounds = _nearest([0, *accumulate(shares)], cuts, layers, [total] * world) or (0,)
    counts = [end - begin for begin, end in pairwise(bounds)]
    return with_layers(layers, ends, counts, memory, joints, ranks)


def with_layers(
    layers: Sequence[int],
    ends: int,
    counts: Sequence[int],
    memory: Sequence[int],
    joints: Joints = NO_JOINTS,
    ranks: Sequence[str] = (),
) -> Partition:
    """The partition with *counts* layers per rank, as someone chose them.

    Raises `LocalProtocolError` when the counts do not add up or a rank's memory is too small.
    """
    _check_world(len(layers), len(counts))
    if len(counts) != len(memory):
        raise LocalProtocolError(f"{len(counts)} layer counts for {len(memory)} ranks")
    if sum(counts) != len(layers) or min(counts) < 1:
        raise LocalProtocolError(
            f"layers {','.join(map(str, counts))} add up to {sum(counts)}; the model has "
            f"{len(layers)}, and every rank needs at least one"
        )
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    joints.check(bounds[1:-1], len(layers))
    weights = [sum(layers[a:b]) for a, b in pairwise(bounds)]
    weights[0] += ends
    for rank, (need, room) in enumerate(zip(weights, memory, strict=True)):
        if need > room * (1 - RESERVE):
            raise TooLittleRoom(
                f"{named(ranks, rank)} would hold {counts[rank]} layers of {_gib(need)} in all "
                f"and has {_gib(room)}, of which {RESERVE:.0%} is kept for caches; give it fewer "
                "layers"
            )
    return Partition(tuple(bounds), tuple(weights))


def check_share(layers: int, ends: int, memory: Sequence[int], ranks: Sequence[str] = ()) -> int:
    """What each rank holds at most, bytes, when each has an equal share of the *layers* and all of
    the *ends*. (A rank may share out an output head that is no embedding; that is not counted.)

    Raises `LocalProtocolError`, with the numbers, when a rank's memory is too small for it.
    """
    held = ends + layers // len(memory)
    for rank, room in enumerate(memory):
        if held > room * (1 - RESERVE):
            raise TooLittleRoom(
                f"{named(ranks, rank)} would hold {_gib(held)}, its share of the layers and all of "
                f"the ends, and has {_gib(room)}, of which {RESERVE:.0%} is kept for caches; add a "
                "machine, or use pp"
            )
    return held


def _check_world(layers: int, world: int) -> None:
    if not 1 <= world <= MAX_WORLD:
        raise LocalProtocolError(f"{world} ranks; a ring has 1 to {MAX_WORLD}")
    if layers < world:
        raise LocalProtocolError(
            f"the model has {layers} layers for {world} ranks; every rank needs at least one"
        )


def _shares(rooms: list[int], layers: int, head: Fraction) -> list[int]:
    """Layers per rank in proportion to *rooms*, largest remainder, one at least. Rank 0 has *head*
    of its share in the output head."""
    weights = rooms if sum(rooms) else [1] * len(rooms)
    whole, others = sum(weights), sum(weights[1:])
    first = (layers + head) * Fraction(weights[0], whole) - head if others else Fraction(layers)
    rest = layers - max(Fraction(0), first)
    exact = [layers - rest, *(rest * Fraction(weight, others or 1) for weight in weights[1:])]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(rooms)), key=lambda r: (counts[r] - exact[r], r))
    for rank in by_remainder[: layers - sum(counts)]:
        counts[rank] += 1
    for rank in range(len(counts)):
        if counts[rank] == 0:
            counts[counts.index(max(counts))] -= 1
            counts[rank] = 1
    return counts


def _nearest(
    wanted: Sequence[int], cuts: Sequence[int], layers: Sequence[int], rooms: Sequence[int]
) -> tuple[int, ...] | None:
    """The bounds nearest to *wanted*, all of them among *cuts*, with which no rank holds more than
    its room; None if there are none. *cuts* rise, and end with the number of layers."""
    before = [0, *accumulate(layers)]
    # For each layer that the next rank may begin with: how far bounds are off, and the bounds.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for rank, room in enumerate(rooms):
        after: dict[int, tuple[int, tuple[int, ...]]] = {}
        for begin, (off, bounds) in best.items():
            for end in cuts[bisect_right(cuts, begin) :]:
                if before[end] - before[begin] > room:
                    break
                found = off + abs(end - wanted[rank + 1]), (*bounds, end)
                after[end] = min(found, after.get(end, found))
        best = after
    return best.get(len(layers), (0, None))[1]


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


SEALABLE: Final = frozenset({Backend.RING})
"""Back ends whose connections can be carried in sealed links."""

CLEARLY: Final = 0.75
"""The largest part of a pipeline's time that tensor parallelism may take to be chosen."""

_PREFERRED: Final = (Backend.NCCL, Backend.JACCL, Backend.RING)


class Strategy(enum.Enum):
    """How a model is spread: chosen by us, over every layer, as a pipeline, or on one rank."""

    AUTO = "auto"
    TENSOR = "tp"
    PIPELINE = "pp"
    SINGLE = "single"


@attrs.frozen
class Collectives:
    """What someone allows of collectives: that they go beside the sealed links (*trusted*), and
    over which *backend*, if not the best one that can be had."""

    trusted: bool = False
    backend: Backend | None = None


@attrs.frozen
class Plan:
    """*strategy* (never AUTO), the *split* of the layers, and why. With tensor parallelism every
    rank has a share of each layer, *split* is of one rank, and *backend* carries the sums."""

    strategy: Strategy
    split: Partition
    reason: str
    world: int
    backend: Backend = Backend.PIPELINE
    trusted: bool = False

    def layers(self, rank: int) -> range:
        """The layers of *rank*."""
        return self.split.layers(0 if self.strategy is Strategy.TENSOR else rank)


@attrs.frozen
class PlanRequest:
    """What someone asked for: a *strategy*, *layers* per rank (chosen, or none), and what
    collectives may do; *against* is what stands against them by experience, and *forbidden* why the
    cluster's roster forbids tensor parallelism, if it does."""

    strategy: Strategy = Strategy.AUTO
    layers: tuple[int, ...] = ()
    collectives: Collectives = attrs.field(factory=Collectives)
    against: str = ""
    forbidden: str = ""


def make_plan(
    request: PlanRequest,
    info: EngineInfo,
    memory: Sequence[int],
    ranks: Sequence[str] = (),
) -> Plan:
    """Plan for ranks with *memory* bytes each, as *request* has it; errors call the
    *ranks* so (`named`).

    Raises `LocalProtocolError`, with the numbers, when the strategy or the split cannot be.
    """
    world = len(memory)
    if request.strategy is Strategy.SINGLE and world > 1:
        raise LocalProtocolError(
            f"strategy single runs on one rank and the roster has {world}; "
            "use auto or pp, or a roster with one member"
        )
    if world == 1:
        split = _split(request, info, memory, ranks)
        return Plan(Strategy.SINGLE, split, "one rank holds the whole model", 1)
    if request.strategy is Strategy.TENSOR:
        return _tensor(request, info, memory, ranks)
    because = f"a pipeline of {world} ranks, split by memory"
    if request.strategy is Strategy.AUTO and not request.layers:
        try:
            tensor = _tensor(request, info, memory, ranks)
        except LocalProtocolError as error:
            against = str(error)
        else:
            if not request.against:
                return tensor
            against = request.against
        because += f" (no tensor parallelism: {against})"
    return Plan(Strategy.PIPELINE, _split(request, info, memory, ranks), because, world)


def _split(
    request: PlanRequest,
    info: EngineInfo,
    memory: Sequence[int],
    ranks: Sequence[str],
) -> Partition:
    joints = Joints(info.joined, info.reason)
    if request.layers:
        return with_layers(info.layers, info.ends, request.layers, memory, joints, ranks)
    return partition(info.layers, info.ends, memory, joints, info.head, ranks)


def _tensor(
    request: PlanRequest,
    info: EngineInfo,
    memory: Sequence[int],
    ranks: Sequence[str],
) -> Plan:
    world = len(memory)
    if request.forbidden:
        raise LocalProtocolError(f"{request.forbidden}; use pp")
    if request.layers:
        raise LocalProtocolError("layers per rank are a pipeline's; tensor parallelism splits all")
    if not info.splits:
        raise LocalProtocolError("mlx-lm has no sharding for models of this class; use pp")
    if info.splits % world:
        raise LocalProtocolError(
            f"the model's heads split evenly over a divisor of {info.splits} ranks, and there "
            f"are {world}; use pp, or another number of ranks"
        )
    backend = _backend(request.collectives, info.backends)
    weights = check_share(sum(info.layers), info.ends, memory, ranks)
    reason = f"tensor parallelism over {world} ranks ({backend.name.lower()})"
    split = Partition((0, len(info.layers)), (weights,))
    trusted = request.collectives.trusted
    return Plan(Strategy.TENSOR, split, reason, world, backend, trusted)


def _backend(collectives: Collectives, have: int) -> Backend:
    chosen = collectives.backend
    if chosen is not None:
        name = chosen.name.lower()
        if not have & (1 << chosen):
            raise LocalProtocolError(f"the back end {name} is not there on the head; use ring")
        if chosen not in SEALABLE and not collectives.trusted:
            raise LocalProtocolError(
                f'what {name} sends cannot be sealed; say collectives = "trusted-link" if the '
                "network between the ranks is yours alone, or use ring"
            )
        return chosen
    for backend in _PREFERRED:
        if have & (1 << backend) and (backend in SEALABLE or collectives.trusted):
            return backend
    raise LocalProtocolError("no back end for collectives is there on the head; use pp")


def bootstraps(
    plan: Plan,
    epoch: Epoch,
    model: bytes,
    *,
    inner_seal: bool,
    deadline_ms: int,
    checked: bool,
    steps: int,
    members: tuple[int, ...] = (),
    kept: tuple[KeptCache, ...] = (),
) -> list[Bootstrap]:
    """What each rank, in order, gets of *plan* in *epoch*; of a collective, to prepare. *members*
    and *kept* are those of `Bootstrap`."""
    hosts = (("", 0),) * plan.world if plan.strategy is Strategy.TENSOR else ()
    return [
        Bootstrap(
            epoch,
            plan.backend,
            rank,
            inner_seal,
            deadline_ms,
            model,
            plan.split.bounds,
            hosts,
            plan.trusted,
            checked,
            steps,
            members,
            kept,
        )
        for rank in range(plan.world)
    ]


def joining(
    order: Bootstrap, addresses: Sequence[str], ports: Sequence[int], deadline_ms: int
) -> list[Bootstrap]:
    """What each rank gets, after *order*, when all have prepared; by rank, where it is."""
    hosts = tuple(zip(addresses, ports, strict=True))
    return [
        attrs.evolve(order, rank=rank, hosts=hosts, deadline_ms=deadline_ms)
        for rank in range(len(hosts))
    ]


def verdict(ready: Sequence[Ready]) -> tuple[bool, str]:
    """Whether tensor parallelism is clearly faster than a pipeline, from what the ranks measured in
    it.

    A token takes two sums a layer, and then one for the output head. What is left of its time
    would, in a pipeline, be done by one rank after the other, with a hop after each; a hop costs
    about what a sum does, one message there and one back.

    A pipeline is likely to take less. A rank of it has a part of the layers, so fewer operations.
    Ranks that share a machine take turns there, and do not wait for its processors. And other rows,
    and guesses, keep its stages at work. So tensor parallelism has to be clearly faster.
    """
    world, layers = len(ready), ready[0].last  # each rank has all layers
    token = max(rank.token_us for rank in ready)
    one_sum = max(rank.sum_us for rank in ready)
    compute = max(0, token - (2 * layers + 1) * one_sum)
    pipeline = world * (compute + one_sum)
    text = (
        f"a token takes {token / 1000:.2f} ms, measured ({one_sum / 1000:.2f} ms for a sum); "
        f"a pipeline would take about {pipeline / 1000:.2f} ms"
    )
    return token <= CLEARLY * pipeline, text


@attrs.frozen
class HeadConfig:
    """The head's configuration: the *names* and *hosts* (addresses) of the ranks, by rank.

    *bootstrap_seconds* limit the loading of an epoch; *group_seconds* limit how long a collective
    takes to come up once every rank has loaded. *patience* is `NodeConfig.patience`, in seconds.
    *build*, *unpinned* and *trust_weights* are those of `NodeConfig`. A ring that leaves ranks of
    the roster out has *members* (`Bootstrap.members`); here, ranks are the ring's places.
    """

    instance: int
    names: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    plan_request: PlanRequest = attrs.field(factory=PlanRequest)
    inner_seal: bool = True
    scheduler: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    bootstrap_seconds: float = 600.0
    group_seconds: float = 20.0
    patience: float = PING_TIMEOUT
    first_uid: int = 1
    unpinned: bytes = b""
    trust_weights: bool = False
    build: Build = attrs.field(factory=Build)
    members: tuple[int, ...] = ()
    last_epoch: int = 0  # that this node began, with another roster; the next one comes after it

    @property
    def ranks(self) -> tuple[str, ...]:
        """What people call the rank at each place."""
        members = self.members or range(len(self.names))
        return tuple(
            f"rank {rank} ({name})" for rank, name in zip(members, self.names, strict=True)
        )


def scheduler_config(
    asked: SchedulerConfig, info: EngineInfo, ranks: tuple[str, ...]
) -> SchedulerConfig:
    """What is *asked*, for the model in *info* on *ranks* (`SchedulerConfig.ranks`). A chunk of a
    prompt fits a frame, and one for each rank, and two more, may be under way."""
    world = len(ranks)
    hidden = info.hop or info.hidden * info.dtype.width
    room = min(MAX_SEALED_BODY - STEP_ROOM, MAX_WEIGHT_WAITING // (world + 2))
    return attrs.evolve(
        asked,
        groups=asked.groups or (1 if world == 1 else 2 * world),
        rows=asked.rows if info.batches else 1,
        chunk=max(1, min(asked.chunk, room // hidden)),
        hidden_bytes=hidden,
        weights=sum(info.layers),
        vocabulary=info.vocabulary,
        ahead=info.ahead if asked.ahead is None else asked.ahead,
        ranks=ranks,
    )
