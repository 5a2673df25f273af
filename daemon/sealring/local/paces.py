"""What a plan goes by: what the nodes of a ring have measured, or what this machine would take.

The head of a ring knows the memory of each rank, what each computes in a step, and what steps take
besides. What it has not measured is measured on this machine, or taken from it, and called an
estimate.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from sealring_model.errors import LoadError
from sealring_model.loading.model_folder import ModelInfo
from sealring_trio.errors import OperationError
from sealring_trio.units import parse_address

from sealring.forecast import Candidate, Overheads, Pace

if TYPE_CHECKING:
    from sealring_model.loading.structure import Structure

TURN: Final = 0.0006
HOP: Final = 0.0012
"""Seconds that a step takes beside computing: with one rank, and for each rank of several on one
machine, with a CPU that nothing else uses. An estimate for rings that nobody measured."""

LONGEST_TURN: Final = 0.005
"""Seconds that a turn is taken to be at most, however long a hop is: it leaves no machine."""


@attrs.frozen
class KnownMachines:
    """What is known of the machines of a ring, in the order of ranks, and where from (*source*)."""

    machines: tuple[Candidate, ...]
    network: Overheads
    source: str


def known_machines(
    info: ModelInfo,
    found: Structure,
    rooms: Sequence[int],
    facts: Mapping[str, Any] | None,
    rows: int,
) -> KnownMachines:
    """The machines with *rooms* bytes each for the model *info*, whose structure was *found*; with
    *facts*, what their head says of itself. A step of *rows* rows is measured too, if this machine
    is.

    Raises `OperationError` if this machine cannot run the model.
    """
    if facts is not None and is_measured(facts, len(rooms)):
        paces = facts["paces"]
        all_there = paces["prompt_us"] and paces["decode_us"].keys() > {"1"}
        own = None if all_there else _own(info, found, rows)
        return measured_machines(found.head, rooms, facts, own)
    pace, names = _own(info, found, rows), _names(facts, len(rooms))
    both = zip(names, rooms, strict=True)
    machines = tuple(Candidate(name, host, room, pace) for (name, host), room in both)
    source = "estimates" if len(rooms) == 1 else "estimates, each machine as fast as this one"
    return KnownMachines(machines, Overheads(TURN, HOP, _sums(facts)), source)


def is_measured(facts: Mapping[str, Any], world: int) -> bool:
    """Whether the head has measured decodes of one row, as its ranks are now."""
    took = facts["paces"]["decode_us"].get("1", [])
    return len(facts["bounds"]) == world + 1 and len(took) == world and min(took) > 0


def _own(info: ModelInfo, found: Structure, rows: int) -> Pace:
    """The pace of this machine."""
    from sealring_model.loading.structure import measure_pace  # noqa: PLC0415 - imports MLX

    try:
        took = measure_pace(info, found, rows)
    except LoadError as error:
        raise OperationError(
            f"this machine's pace cannot be measured: {error}", "Try it on another machine."
        ) from None
    more = max(0.0, (took.rows / took.layer - 1) / max(1, rows - 1))
    return Pace(took.layer, more, took.prompt, took.head / took.layer)


def measured_machines(
    head: int, rooms: Sequence[int], facts: Mapping[str, Any], own: Pace | None = None
) -> KnownMachines:
    """The machines with *rooms* bytes each by what their head says of itself (*facts*), which
    `is_measured`. *head* is `EngineInfo.head`. Of prompts and several rows, what was not measured
    is as on this machine, whose pace is its *own*; without that, only one stream is known."""
    paces = facts["paces"]
    layers = [last - first for first, last in itertools.pairwise(facts["bounds"])]
    single = [us / 1e6 for us in paces["decode_us"]["1"]]
    closing = paces["closing_us"] / 1e6
    several = {int(count): took for count, took in paces["decode_us"].items() if count != "1"}
    prompt = paces["prompt_us"]
    work, alone = sum(single) + closing, len(rooms) == 1
    if alone:  # its only step has the output head too
        closing = work * head / (1000 * layers[0] + head)
        single[0] -= closing
    machines = []
    for rank, ((name, host), room) in enumerate(zip(_names(facts, len(rooms)), rooms, strict=True)):
        more = own.more if own else 0.0
        if several:
            count, took = max(several.items())
            more = max(0.0, (took[rank] / paces["decode_us"]["1"][rank] - 1) / (count - 1))
        read = own.prompt if own else 0.0
        if prompt:
            read = prompt[rank] / layers[rank] / 1e6
        pace = Pace(
            layer=single[rank] / layers[rank],
            more=more,
            prompt=read,
            head=closing * layers[0] / single[0],
            measured=own is None,
        )
        machines.append(Candidate(name, host, room, pace))
    if alone:  # it launches the next step before it has the answer to the last
        turn = max(0.0, facts["guess_ms"].get("plain", 1e3 * (work + TURN)) / 1e3 - work)
        network = Overheads(turn, HOP, _sums(facts), turn_measured=True)
    else:
        hop = paces["away_us"] / 1e6 / len(rooms)
        turn = min(hop * TURN / HOP, LONGEST_TURN)
        network = Overheads(turn, hop, _sums(facts), hop_measured=True)
    source = f"measured by the head in {paces['steps']} steps"
    if not prompt:
        source += ", but for prompts"
    if not several:
        source += ", but for several streams"
    return KnownMachines(tuple(machines), network, source)


def _sums(facts: Mapping[str, Any] | None) -> float | None:
    """What a sum of tensor parallelism took; None if nobody measured one."""
    return facts["sum_us"] / 1e6 if facts is not None and facts["sum_us"] else None


def _names(facts: Mapping[str, Any] | None, world: int) -> list[tuple[str, str]]:
    """The name and the host of each rank."""
    if facts is None:
        return [(f"rank {rank}", f"rank {rank}") for rank in range(world)]
    own = {"rank": facts["rank"], "name": facts["name"], "addresses": facts["addresses"]}
    ranks = sorted([own, *facts["peers"]], key=lambda each: int(each["rank"]))
    return [(each["name"], _host(each) or each["name"]) for each in ranks]


def _host(rank: Mapping[str, Any]) -> str:
    """The host at which others reach a *rank*; empty if it has no address."""
    return parse_address(rank["addresses"][0])[0] if rank["addresses"] else ""
