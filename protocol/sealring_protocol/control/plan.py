"""The plan of an epoch: which strategy, and which layers on which rank, with the reason."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from sealring_protocol.codec.local_messages import EngineInfo
from sealring_protocol.codec.messages import Backend, Bootstrap, Epoch
from sealring_protocol.control.partition import Partition, partition, with_layers
from sealring_protocol.errors import LocalProtocolError


class Strategy(enum.Enum):
    """How a model is spread: chosen by us, as a pipeline, or on one rank."""

    AUTO = "auto"
    PIPELINE = "pp"
    SINGLE = "single"


@attrs.frozen
class Plan:
    """*strategy* (never AUTO), the *split* of the layers, and why."""

    strategy: Strategy
    split: Partition
    reason: str


def make_plan(
    strategy: Strategy, info: EngineInfo, memory: Sequence[int], layers: Sequence[int] = ()
) -> Plan:
    """Plan for ranks with *memory* bytes each; *layers*, if given, are the counts per rank.

    Raises `LocalProtocolError`, with the numbers, when the strategy or the split cannot be.
    """
    world = len(memory)
    if strategy is Strategy.SINGLE and world > 1:
        raise LocalProtocolError(
            f"strategy single runs on one rank and the roster has {world}; "
            "use auto or pp, or a roster with one member"
        )
    if layers:
        split = with_layers(info.layers, info.ends, layers, memory)
    else:
        split = partition(info.layers, info.ends, memory)
    if world == 1:
        return Plan(Strategy.SINGLE, split, "one rank holds the whole model")
    return Plan(Strategy.PIPELINE, split, f"a pipeline of {world} ranks, split by memory")


def bootstraps(
    plan: Plan, epoch: Epoch, model: bytes, *, inner_seal: bool, deadline_ms: int
) -> list[Bootstrap]:
    """What each rank, in order, is told of *plan* in *epoch*."""
    bounds = plan.split.bounds
    return [
        Bootstrap(epoch, Backend.PIPELINE, rank, inner_seal, deadline_ms, model, bounds)
        for rank in range(len(bounds) - 1)
    ]
