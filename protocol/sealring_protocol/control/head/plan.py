"""The plan of an epoch: which strategy, and what every rank holds, with the reason.

`auto` takes tensor parallelism where the model can be sharded over as many ranks as there are and
a back end for its collectives is at hand and allowed; otherwise a pipeline. What the head learns
while it brings up a collective, or measures in one, is a further reason against it. Whoever asks
for a strategy by name gets that one, or is told why not.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import attrs

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Backend, Bootstrap, Epoch, Ready
from sealring_protocol.control.head.partition import (
    Joints,
    Partition,
    check_share,
    partition,
    with_layers,
)
from sealring_protocol.errors import LocalProtocolError

SEALABLE: Final = frozenset({Backend.RING})
"""Back ends whose connections can be carried in sealed links."""

_CLEARLY: Final = 0.75
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
    collectives may do; *against* is what stands against them by experience. The cluster's roster
    has *tensor* parallelism, or forbids it."""

    strategy: Strategy = Strategy.AUTO
    layers: tuple[int, ...] = ()
    collectives: Collectives = attrs.field(factory=Collectives)
    against: str = ""
    tensor: bool = True


def make_plan(request: PlanRequest, info: EngineInfo, memory: Sequence[int]) -> Plan:
    """Plan for ranks with *memory* bytes each, as *request* has it.

    Raises `LocalProtocolError`, with the numbers, when the strategy or the split cannot be.
    """
    world = len(memory)
    if request.strategy is Strategy.SINGLE and world > 1:
        raise LocalProtocolError(
            f"strategy single runs on one rank and the roster has {world}; "
            "use auto or pp, or a roster with one member"
        )
    if world == 1:
        split = _split(request, info, memory)
        return Plan(Strategy.SINGLE, split, "one rank holds the whole model", 1)
    if request.strategy is Strategy.TENSOR:
        return _tensor(request, info, memory)
    because = f"a pipeline of {world} ranks, split by memory"
    if request.strategy is Strategy.AUTO and not request.layers:
        against = request.against
        if not against:
            try:
                return _tensor(request, info, memory)
            except LocalProtocolError as error:
                against = str(error)
        because += f" (no tensor parallelism: {against})"
    return Plan(Strategy.PIPELINE, _split(request, info, memory), because, world)


def _split(request: PlanRequest, info: EngineInfo, memory: Sequence[int]) -> Partition:
    joints = Joints(info.joined, info.reason)
    if request.layers:
        return with_layers(info.layers, info.ends, request.layers, memory, joints)
    return partition(info.layers, info.ends, memory, joints, info.head)


def _tensor(request: PlanRequest, info: EngineInfo, memory: Sequence[int]) -> Plan:
    world = len(memory)
    if not request.tensor:
        raise LocalProtocolError("the roster forbids it; use pp")
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
    weights = check_share(sum(info.layers), info.ends, memory)
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
    plan: Plan, epoch: Epoch, model: bytes, *, inner_seal: bool, deadline_ms: int, checked: bool
) -> list[Bootstrap]:
    """What each rank, in order, is told of *plan* in *epoch*; of a collective, to prepare."""
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
        )
        for rank in range(plan.world)
    ]


def joining(
    order: Bootstrap, addresses: Sequence[str], ports: Sequence[int], deadline_ms: int
) -> list[Bootstrap]:
    """What each rank is told, after *order*, when all have prepared; by rank, where it is."""
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
    return token <= _CLEARLY * pipeline, text
