"""What a node tells of itself: the answer to `sealring status`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import trio
from sealring_protocol.codec.messages import Decode
from sealring_protocol.control.follower import Follower
from sealring_protocol.control.head import Head
from sealring_protocol.control.plan import Strategy
from sealring_protocol.security.roles import Purpose

from sealring_trio.runtime import Runtime
from sealring_trio.suites import SUITE_NAMES


def describe_node(runtime: Runtime, model: Path) -> dict[str, Any]:
    """The state of *runtime*'s node as a JSON object. Sizes are bytes, times microseconds."""
    node = runtime.node
    roster = node.roster.roster
    links = node.links()
    up = {(rank, purpose) for rank, purpose, _ in links}
    info = node.engine_info
    return {
        "rank": node.rank,
        "world": node.world,
        "role": "head" if node.rank == 0 else "rank",
        "name": roster.members[node.rank].name,
        "cluster": roster.name,
        "serial": roster.serial,
        "expires_ms": roster.expires_ms,
        "trust": roster.trust.name.lower(),
        "inner_seal": roster.inner_seal,
        "suite": next((SUITE_NAMES[link.suite] for _, _, link in links if link.suite), "none"),
        "model": str(model),
        "model_digest": info.model.hex() if info else "",
        **_place(runtime),
        "weights_read": runtime.weights_read,
        "weights_held": node.loaded.held if node.loaded else 0,
        "memory": _memory(runtime.engine.pid),
        "daemon_memory": psutil.Process().memory_info().rss,
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "engine_pid": runtime.engine.pid or 0,
        "engine_restarts": runtime.engine.restarts,
        "hop_us": hop_quantiles(runtime),
        "peers": [
            {
                "rank": rank,
                "name": member.name,
                "control": (rank, Purpose.CONTROL) in up,
                "step": (rank, Purpose.STEP) in up,
            }
            for rank, member in enumerate(roster.members)
            if rank != node.rank
        ],
    }


def _place(runtime: Runtime) -> dict[str, Any]:
    """The node's part in the present epoch."""
    brain = runtime.node.brain
    return _place_of_head(brain) if isinstance(brain, Head) else _place_of_rank(brain)


def _place_of_head(brain: Head) -> dict[str, Any]:
    plan, membership = brain.plan, brain.membership
    return {
        "state": membership.state.value,
        "missing": membership.missing,
        "epoch": membership.epoch.counter,
        "strategy": plan.strategy.value if plan else "",
        "reason": plan.reason if plan else "",
        "layers": _span(plan.split.bounds, 0) if plan else [],
        "requests": brain.scheduler.live if brain.scheduler else 0,
    }


def _place_of_rank(brain: Follower) -> dict[str, Any]:
    order = brain.order
    return {
        "state": "serving" if order else "gathering",
        "missing": [],
        "epoch": brain.epoch.counter,
        "strategy": Strategy.PIPELINE.value if order else "",
        "reason": "",
        "layers": _span(order.bounds, order.rank) if order else [],
        "requests": 0,
    }


def _span(bounds: tuple[int, ...], rank: int) -> list[int]:
    """First layer of *rank*, and the one after its last."""
    return [bounds[rank], bounds[rank + 1]]


def _memory(pid: int | None) -> int:
    with contextlib.suppress(psutil.Error):
        if pid is not None:
            return int(psutil.Process(pid).memory_info().rss)
    return 0


def hop_quantiles(runtime: Runtime) -> dict[str, Any] | None:
    """Median and p99 of a hop in decode steps, microseconds; None before the first, and for a
    single rank, which has no hops.

    A step's time as the head sees it, less what the ranks computed, waited and sealed, shared among
    its hops.
    """
    hops = sorted(
        timing.away_us / runtime.node.world
        for timing in runtime.timings
        if isinstance(timing.work, Decode)
    )
    if not hops or runtime.node.world == 1:
        return None
    return {
        "p50": round(hops[len(hops) // 2], 1),
        "p99": round(hops[len(hops) * 99 // 100], 1),
        "samples": len(hops),
    }
