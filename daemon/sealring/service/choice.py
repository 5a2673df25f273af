"""Says in one line which way the head took to run the model, and what another would give.

A ring begins with a pipeline of the members that are there. Once some tokens have been timed, that
is compared with each of them alone, as `sealring plan` does. Nothing is taken because of it: the
head chooses its members by who is there, and tries tensor parallelism by its own measurements
(`head.trial`), which say for themselves why it was taken or not.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from sealring_protocol.codec.messages import CacheCost
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.plan import PlanRequest, Strategy
from sealring_protocol.control.requests import RowOpened
from sealring_trio.node.runtime import Runtime

from sealring.forecast import CONTEXT, Workload, describe_taken, ways
from sealring.generation.paces import describe_paces
from sealring.local.paces import is_measured, measured_machines

log = logging.getLogger("sealring.node")

EVERY: Final = 32
"""Steps between two looks at whether enough is known."""


class ChoiceTeller:
    """Watches the steps of *runtime*'s node, and logs the line once in each epoch."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._steps = 0
        self._told = 0  # the epoch of the last line

    def watch(self, event: StepTiming | RowOpened) -> None:
        """A step was answered."""
        if not isinstance(event, StepTiming) or event.parallel:
            return
        self._steps += 1
        if self._steps % EVERY == 0:
            epoch = self._runtime.node.standing().epoch.counter
            if epoch != self._told and (text := describe_choice(self._runtime)):
                self._told = epoch
                log.info("%s", text)


def describe_choice(runtime: Runtime) -> str:
    """The line; empty while too little was measured, and where there is no choice."""
    node, standing = runtime.node, runtime.node.standing()
    plan, info, ring = standing.plan, node.engine_info, standing.ring
    members = node.roster.roster.members
    if plan is None or info is None or plan.world == 1 or len(ring) != plan.world:
        return ""
    ranks: list[dict[str, Any]] = [
        {"rank": place, "name": members[rank].name, "addresses": list(members[rank].addresses)}
        for place, rank in enumerate(ring)
    ]
    facts = {
        **ranks[0],
        "peers": ranks[1:],
        "bounds": list(plan.split.bounds),
        "paces": describe_paces(runtime.timings),
        "sum_us": 0,
    }
    if not is_measured(facts, plan.world) or not standing.ready.keys() >= set(ring):
        return ""
    rooms = [standing.rooms[rank] for rank in ring]
    known = measured_machines(info.head, rooms, facts)
    costs = [CacheCost(0, 0)] * len(info.layers)
    for place, rank in enumerate(ring):
        costs[plan.layers(place).start] = standing.ready[rank].cost  # of all its layers
    counts = tuple(len(plan.layers(rank)) for rank in range(plan.world))
    asked = Workload(min(CONTEXT, info.context), 1)
    request = PlanRequest(Strategy.PIPELINE, counts)
    taken, *others = ways(info, costs, known.machines, known.network, asked, request)
    return describe_taken(taken, others)
