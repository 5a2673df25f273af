"""What a node says of itself: the answer to `sealring status`."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import attrs
import psutil  # type: ignore[import-untyped]
import trio
from sealring_protocol.codec.messages import Backend, Decode, Prefill, Progress
from sealring_protocol.control.effects import INSIDE, Standing, StepTiming
from sealring_protocol.control.election import ElectionState
from sealring_protocol.control.plan import Plan, Strategy
from sealring_protocol.diagnosis import Facts, link_trouble, obstacles, starving
from sealring_protocol.links.peers import PeerState
from sealring_protocol.security.roles import Purpose
from sealring_protocol.security.roster import Roster
from sealring_trio.engine.group import EngineGroup
from sealring_trio.engine.supervisor import NoEngine, Supervisor
from sealring_trio.files.config import SUITE_NAMES
from sealring_trio.files.rosters import left, seconds_left
from sealring_trio.node.runtime import Runtime
from sealring_trio.node.service import this_build
from sealring_trio.units import wall_ms

from sealring.files.cluster import describe_head, describe_rights


@attrs.frozen
class TakenRing:
    """What the head says in one line (*text*) of the ring that it has, and what others would give.
    If it prefers to be alone, *compared* are the ranks of the ring with which that was compared,
    and *facts* has the `bounds` and `paces` of that."""

    text: str
    facts: Mapping[str, Any] | None = None
    compared: tuple[int, ...] = ()


def describe_node(
    runtime: Runtime, model: Path, draining: str = "", choice: TakenRing | None = None
) -> dict[str, Any]:
    """The state of *runtime*'s node as a JSON object. Sizes are bytes; times are microseconds
    unless their name says another unit. *draining* says why the node takes no requests, *choice*
    what a head chose."""
    node = runtime.node
    roster = node.roster.roster
    standing = node.standing()
    links = node.links()
    up = {(rank, purpose) for rank, purpose, _ in links}
    info = node.engine_info
    collective = collective_of(standing)
    outs = {peer.name for peer in node.peers() if peer.put_out}
    facts, now = runtime.facts(draining), trio.current_time()
    place, builds = _place(standing, node.rank), standing.builds
    ring = standing.ring
    return {
        "version": this_build().version,
        "steps": [this_build().oldest, this_build().newest],
        "rank": node.rank,
        "world": node.world,
        "ring": list(ring),
        "role": "head" if node.rank == 0 else "rank",
        "name": roster.members[node.rank].name,
        "addresses": list(roster.members[node.rank].addresses),
        "bounds": list(standing.plan.split.bounds) if standing.plan else [],
        "head_fault": runtime.head_fault() if node.rank in roster.heads[1:] else "",
        **describe_rights(roster.members[node.rank]),
        "head": describe_election(runtime),
        **describe_roster(roster),
        "activations": describe_seals(roster.inner_seal, place["strategy"], collective),
        "suite": next((SUITE_NAMES[link.suite] for _, _, link in links if link.suite), "none"),
        "model": "" if isinstance(runtime.engine, NoEngine) else str(model),
        "model_digest": info.model.hex() if info else "",
        **place,
        "state_s": round(now - standing.since, 1),
        "why": [obstacle.describe(now) for obstacle in obstacles(facts, now)],
        "starved": [each.describe(now) for each in starving(facts)],
        "strangers": [
            {
                "source": stranger.source,
                "reason": stranger.reason,
                "tries": stranger.count,
                "last_s": round(now - stranger.at, 1),
            }
            for stranger in facts.strangers
        ],
        **describe_fetching(facts.progress[node.rank]),
        "weights_read": runtime.weights_read,
        "weights_held": node.loaded.held if node.loaded else 0,
        "memory": sum(map(_memory, runtime.engine.pids)),
        "daemon_memory": _memory(os.getpid()),
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "engine_pid": runtime.engine.pid or 0,
        "engine_pids": runtime.engine.pids,
        "engine_state": runtime.engine.state,
        "members": _members(runtime.engine),
        "engine_restarts": runtime.engine.restarts,
        "engine_lost": runtime.engine.lost,
        "hop_us": hop_quantiles(runtime),
        "paces": describe_paces(runtime.timings if len(ring) == len(roster.workers) else ()),
        "rooms": dict(standing.rooms),
        "choice": describe_choice(choice, standing),
        # what the slowest rank measured of a sum of tensor parallelism; 0 if none did
        "sum_us": max((ready.sum_us for ready in standing.ready.values()), default=0),
        "guesses": describe_guesses(runtime),
        "draft": None if runtime.drafts is None else runtime.drafts.describe_here(),
        "peers": [
            {
                "rank": rank,
                "name": member.name,
                "version": builds[rank].text if rank in builds else "",
                "addresses": list(member.addresses),
                **describe_fetching(facts.progress.get(rank, Progress())),
                "routes": describe_routes(facts.peers[rank]),
                "trouble": describe_trouble(facts, rank, now),
                "control": (rank, Purpose.CONTROL) in up,
                "step": (rank, Purpose.STEP) in up,
                "tunnel": (rank, Purpose.TUNNEL) in up,
                "put_out": member.name in outs,
                "collective": collective_link(collective, ring, node.rank, rank),
                "outside": standing.outside.get(rank, INSIDE).text(now),
                **describe_rights(member),
            }
            for rank, member in enumerate(roster.members)
            if rank != node.rank
        ],
    }


def describe_election(runtime: Runtime) -> dict[str, Any]:
    """Who is head, and how *runtime*'s node stands to it: *state* is that of its elections, *leads*
    whether it is the head and may answer, *majority* how many of the *members* elect one, and
    *absent* who does not answer it. A node that sees the head looks for nobody else."""
    node = runtime.node
    roster = node.roster.roster
    names = [member.name for member in roster.members]
    found = node.election(trio.current_time())
    follows = found.state is ElectionState.FOLLOWING
    return {
        "name": names[0],
        **describe_head(roster),
        "here": names[node.rank],
        "state": found.state.name.lower(),
        "leads": found.leads,
        "may_take": found.may_take,
        "may_be": [names[rank] for rank in found.heads],
        "members": found.members,
        "majority": found.majority,
        "absent": [] if follows else [names[rank] for rank in found.absent],
    }


def describe_choice(choice: TakenRing | None, standing: Standing) -> dict[str, Any] | None:
    """What the head chose, for a plan to go by; None before it has compared anything."""
    if choice is None or choice.facts is None:
        return None if choice is None else {"text": choice.text, "compared": []}
    if (preference := standing.preference) is None:
        return None  # who is in the ring has changed since
    if preference.failed:
        return {"text": f"{choice.text}; but it failed: {preference.failed}", "compared": []}
    text = preference.why if standing.ring == preference.ring else choice.text
    return {"text": text, "compared": list(choice.compared), **choice.facts}


def describe_roster(roster: Roster) -> dict[str, Any]:
    """The roster in force: its policies, and how long it has."""
    now = wall_ms()
    return {
        "cluster": roster.name,
        "serial": roster.serial,
        "expires_ms": roster.expires_ms,
        "expires_in_s": seconds_left(roster, now),
        "roster_left": left(roster, now),
        "trust": roster.trust.name.lower(),
        "inner_seal": roster.inner_seal,
        "tensor_parallelism": roster.tensor_parallelism,
    }


def describe_fetching(progress: Progress) -> dict[str, int]:
    """How far a rank is that fetches weights; 0 of 0 if nothing is to come."""
    return {"fetched_bytes": progress.here, "fetch_bytes": progress.fetch_bytes}


def describe_routes(peer: PeerState) -> list[dict[str, Any]]:
    """The addresses of *peer*: where each is known from, the milliseconds that a connection took to
    open there (None: the member never proved itself there), and why the last dial failed."""
    return [
        {
            "address": route.address,
            "known_from": route.known_from.value,
            "ms": None if route.seconds is None else round(route.seconds * 1000, 1),
            "trouble": route.trouble,
        }
        for route in peer.routes
    ]


def describe_trouble(facts: Facts, rank: int, now: float) -> list[dict[str, Any]]:
    """The last error on each link with *rank*, whether or not the ring serves."""
    peer = facts.peers[rank]
    return [
        {"link": purpose.name.lower(), **link_trouble(facts, peer, trouble).describe(now)}
        for purpose in Purpose
        if (trouble := peer.trouble(purpose, now)) is not None
    ]


def describe_place(runtime: Runtime) -> dict[str, Any]:
    """Which rank *runtime*'s node is, of what ring, and its part in the present epoch."""
    node = runtime.node
    names = [member.name for member in node.roster.roster.members]
    standing = node.standing()
    split = standing.plan.split.bounds if standing.plan else ()
    place = {
        "rank": node.rank,
        "names": [names[rank] for rank in standing.ring],
        "bounds": list(split),
        "ring": list(standing.ring),
    }
    return place | _place(standing, node.rank)


def _place(standing: Standing, rank: int) -> dict[str, Any]:
    """The part of *rank* in the present epoch."""
    plan = standing.plan
    return {
        "state": standing.state,
        "missing": list(standing.missing),
        "epoch": standing.epoch.counter,
        "strategy": plan.strategy.value if plan else "",
        "reason": plan.reason if plan else "",
        "backend": _backend(plan.backend) if plan else "",
        "layers": span(plan.layers(standing.ring.index(rank))) if plan else [],
        "requests": standing.requests,
        "slow_links": standing.slow_links,
        "guess_ms": describe_costs(standing),
    }


def _backend(backend: Backend) -> str:
    return "" if backend is Backend.PIPELINE else backend.name.lower()


def span(layers: range) -> list[int]:
    """The first of *layers*, and the one after the last."""
    return [layers.start, layers.stop]


def collective_of(standing: Standing) -> Plan | None:
    """The plan by which the ranks of the present epoch sum up; None in a pipeline, and alone."""
    plan = standing.plan
    return plan if plan is not None and plan.strategy is Strategy.TENSOR else None


def describe_collective(standing: Standing) -> dict[str, Any] | None:
    """What carries the sums between the ranks, and for each link whether it is sealed."""
    collective = collective_of(standing)
    if collective is None:
        return None
    ring = standing.ring
    pairs = [(near, far) for near in ring for far in ring if near < far]
    sums = {pair: collective_link(collective, ring, *pair) for pair in pairs}
    return {
        "backend": collective.backend.name.lower(),
        "sealed": not collective.trusted,
        "links": [{"ranks": list(pair), "sums": text} for pair, text in sums.items() if text],
    }


def collective_link(collective: Plan | None, ring: Sequence[int], near: int, far: int) -> str:
    """What goes between ranks *near* and *far* of *ring* when all sum up, and whether it is
    sealed."""
    if collective is None or near == far or not {near, far} <= set(ring):
        return ""
    apart = (ring.index(near) - ring.index(far)) % len(ring)
    if collective.backend is Backend.RING and apart not in (1, len(ring) - 1):
        return ""  # they are no neighbours
    name = collective.backend.name.lower()
    if collective.trusted:
        return f"NOT SEALED: {name} goes beside the sealed links, as the config allows"
    return f"sealed between the nodes, not inside them: {name} goes through the tunnel link"


def _members(engine: Supervisor) -> dict[str, Any] | None:
    """The processes that share this node's layers, if several do."""
    if not isinstance(engine, EngineGroup):
        return None
    backend, grouped = engine.grouped or (None, None)
    return {
        "size": engine.settings.size,
        "backend": backend.name.lower() if backend else "",
        "sum_us": grouped.sum_us if grouped else 0,
        "token_us": grouped.token_us if grouped else 0,
        "sums": "not sealed, and never leave this machine",
    }


def _memory(pid: int) -> int:
    """Bytes of memory that process *pid* has; 0 if nobody can look."""
    with contextlib.suppress(psutil.Error, OSError):  # without a free file descriptor nobody can
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def describe_guesses(runtime: Runtime) -> dict[str, int]:
    """How many of the tokens that the head guessed were right and wrong, in requests that are
    over."""
    return {"accepted": runtime.accepted, "rejected": runtime.rejected}


def describe_costs(standing: Standing) -> dict[str, float]:
    """How long a token takes by what was guessed, in milliseconds; what is not known is left
    out."""
    return {name: round(1e3 * s, 3) for name, s in standing.guess_seconds.items()}


def hop_quantiles(runtime: Runtime) -> dict[str, Any] | None:
    """Median and p99 of a hop in decode steps, microseconds; None before the first, and where
    there are none: on a single rank, and in tensor parallelism.

    A step's time as the head sees it, less what the ranks computed, waited and sealed, shared among
    its hops.
    """
    world = len(runtime.node.ring)
    hops = [
        timing.away_us / world
        for timing in runtime.timings
        if isinstance(timing.work, Decode) and not timing.parallel
    ]
    hops.sort()
    if not hops or world == 1:
        return None
    return {
        "p50": round(hops[len(hops) // 2], 1),
        "p99": round(hops[len(hops) * 99 // 100], 1),
        "samples": len(hops),
    }


def describe_seals(inner_seal: bool, strategy: str, collective: Plan | None) -> str:
    """How activations or sums are sealed with this *strategy*; empty if none leave a rank."""
    if collective is not None:
        if collective.trusted:
            return "NOT SEALED: the ranks' sums go beside the sealed links"
        return "sums sealed from node to node; in the clear inside each node's process"
    if strategy != Strategy.PIPELINE.value:
        return ""
    if inner_seal:
        return "sealed from engine to engine; no node process holds them in the clear"
    return "sealed from node to node; in the clear inside each node's process (no inner seal)"


def version_of(package: str) -> str:
    """The installed version of *package*; "none" where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def build_info() -> dict[str, str]:
    """The versions of sealring, as other ranks hear it, of Python, MLX and mlx-lm."""
    return {
        "version": this_build().version,
        "python": platform.python_version(),
        "mlx": version_of("mlx"),
        "mlx_lm": version_of("mlx-lm"),
    }


# ---------------------------------------------------------------------- paces
# What the head has measured of its ranks, as `sealring plan` needs it.


ENOUGH: Final = 8
"""Decodes of a number of rows that are looked at, at least: when rows come or go, steps take longer
than those of as many rows do."""


def describe_paces(timings: Iterable[StepTiming]) -> dict[str, Any]:
    """Of the steps with these *timings*, in microseconds: what each rank computes in a decode
    without guesses, by the number of its rows; what the head's second pass does in one of a single
    row; what each rank takes for a token of a prompt (median); and what a decode of one row takes
    beside that. What no step shows is left out, or 0.

    Figures of decodes are means over the same `usual` steps, so they add up to what those took."""
    decodes: dict[int, list[StepTiming]] = defaultdict(list)
    prefills: list[tuple[int, StepTiming]] = []  # with the number of tokens
    for timing in timings:
        if not timing.spent or timing.parallel:
            continue
        if isinstance(timing.work, Decode) and not timing.work.guessed:
            decodes[len(timing.uids)].append(timing)
        elif isinstance(timing.work, Prefill) and not timing.work.scored:
            prefills.append((timing.work.count, timing))
    decodes = {rows: found for rows, found in decodes.items() if len(found) >= ENOUGH}
    kept = {rows: usual(found) for rows, found in sorted(decodes.items())}
    single = kept.get(1, [])
    computed = [part.compute_us for each in single for part in (*each.spent, each.closing)]
    away = sum([each.total_us for each in single]) - sum(computed)
    return {
        "steps": sum(map(len, decodes.values())),
        "decode_us": {str(rows): _by_rank(found) for rows, found in kept.items()},
        "closing_us": _mean([each.closing.compute_us for each in single]),
        "prompt_us": _by_token(prefills),
        "away_us": round(max(0, away) / max(1, len(single)), 1),  # a rank may claim too much
    }


def usual(found: list[StepTiming]) -> list[StepTiming]:
    """The steps that were *found*, without the slowest tenth, in which the machine did something
    else or a device prepared for a shape, and without the fastest tenth."""
    ordered = sorted(found, key=attrgetter("total_us"))
    cut = len(ordered) // 10
    return ordered[cut : len(ordered) - cut]


def _mean(found: Sequence[float]) -> float:
    """The mean of what was *found*; 0 of nothing."""
    return round(statistics.fmean(found or [0]), 1)


def _by_rank(found: list[StepTiming]) -> list[float]:
    """The mean of what each rank computed in the steps that were *found*."""
    world = len(found[0].spent)
    return [_mean([each.spent[rank].compute_us for each in found]) for rank in range(world)]


def _by_token(found: list[tuple[int, StepTiming]]) -> list[float]:
    """What each rank takes for a token of a prompt, by the largest chunks that were *found*, with
    the tokens of each."""
    if not found:
        return []
    most = max(count for count, _ in found)
    large = [(count, each) for count, each in found if 2 * count > most]
    return [
        statistics.median([each.spent[rank].compute_us / count for count, each in large])
        for rank in range(len(large[0][1].spent))
    ]
