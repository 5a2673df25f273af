"""A profile as a table for people, and as JSON."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from sealring.output import print_facts, print_table
from sealring.profiling.recording import NOTHING, PartTimes, Recording, Stay, StepRecord

# ---------------------------------------------------------------------- parts
# Where the time of a step goes, rank by rank, as means over the steps of a profile.
#
# In a pipeline the parts follow each other and add up to the step:
#
#     each rank   waiting (for its device, which still has the step before), compute, sealing,
#                 node (between node and engine, both event loops included), wire (to the next rank)
#     closing     the head's second pass, which draws the token: the same parts but wire
#     head        from the answer to one step of a group until its next begins
#
# *node* and *wire* can be told apart for ranks of this machine alone. Of other ranks both are in
# the *wire* of the rank before. In tensor parallelism all ranks work at once, and a rank's *wire*
# is what the step took longer than its stay there; the sums of the layers are in *compute*.


LONGEST_GAP = 0.5
"""Seconds after which a group that decodes again is taken to have had nothing to do."""


@attrs.frozen
class RankParts:
    """Means over steps, in seconds. *node* is None where nothing was recorded."""

    waiting: float
    compute: float
    sealing: float
    node: float | None
    wire: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.waiting + self.compute + self.sealing + (self.node or 0.0) + self.wire


@attrs.frozen
class Parts:
    """The steps of one kind of work. *tokens* is how many tokens a step has, *step* how long it
    takes, and *under_way* how many there are at once, all as means; *token* is the time from one
    token of a row to its next, a median. *head* is the time between two steps of a group."""

    steps: int
    tokens: float
    step: float
    token: float | None
    under_way: float
    ranks: dict[int, RankParts]
    closing: RankParts | None
    head: float


def parts_of(recordings: Sequence[Recording], work: str) -> Parts | None:
    """The parts of all steps with *work*, "decode" or "prefill"; None if there are none. Where the
    head is not among *recordings*, nobody told them apart: then "decode" has all stays."""
    head = next((each for each in recordings if each.rank == 0), None)
    if head is None:
        return _without_head(recordings) if work == "decode" else None
    steps = [step for step in head.steps if step.work == work]
    if not steps:
        return None
    stays = {
        each.rank: {(stay.n, stay.closing): stay for stay in each.stays} for each in recordings
    }
    ranks = range(max(len(step.spent) for step in steps))
    found = [_Way.of(step, stays, parallel=head.parallel) for step in steps]
    gaps, tokens = _between(steps)
    span = max(step.end for step in steps) - min(step.begin for step in steps)
    took = [step.end - step.begin for step in steps]
    drawn = [way.closing for way in found if way.closing is not None]
    return Parts(
        steps=len(steps),
        tokens=statistics.fmean(step.tokens for step in steps),
        step=statistics.fmean(took),
        token=statistics.median(tokens) if tokens else None,
        under_way=sum(took) / span if span else 1.0,
        ranks={
            rank: _mean([way.ranks[rank] for way in found if rank in way.ranks]) for rank in ranks
        },
        closing=_mean(drawn) if drawn else None,
        head=statistics.fmean(gaps) if gaps else 0.0,
    )


def _without_head(recordings: Sequence[Recording]) -> Parts | None:
    ranks = {
        each.rank: _mean([_rank_parts(stay.spent, stay.around, 0.0) for stay in each.stays])
        for each in recordings
        if each.stays
    }
    if not ranks:
        return None
    count = max(len(each.stays) for each in recordings)
    return Parts(count, 0.0, 0.0, None, 0.0, ranks, None, 0.0)


@attrs.frozen
class _Way:
    """The parts of one step."""

    ranks: dict[int, RankParts]
    closing: RankParts | None

    @classmethod
    def of(
        cls, step: StepRecord, stays: dict[int, dict[tuple[int, bool], Stay]], *, parallel: bool
    ) -> _Way:
        inside = {
            rank: stay for rank in stays if (stay := stays[rank].get((step.n, False))) is not None
        }
        spent = dict(enumerate(step.spent))
        if parallel:
            total = step.end - step.begin
            return cls(
                {rank: _beside(each, inside.get(rank), total) for rank, each in spent.items()}, None
            )
        last = stays.get(0, {}).get((step.n, True))
        ranks = {}
        for rank, each in spent.items():
            wire = _until_next(step, rank, inside, last)
            stay = inside.get(rank)
            ranks[rank] = _rank_parts(each, None if stay is None else stay.around, wire)
        if step.closing == NOTHING:
            return cls(ranks, None)
        return cls(ranks, _rank_parts(step.closing, None if last is None else last.around, 0.0))


def _until_next(step: StepRecord, rank: int, inside: dict[int, Stay], last: Stay | None) -> float:
    """Seconds from when *rank* had done with *step* until the next that recorded it had it, without
    what ranks between say that they took. A rank that recorded nothing has its share before."""
    stay = inside.get(rank)
    if stay is None:
        return 0.0
    following = next((each for each in range(rank + 1, len(step.spent)) if each in inside), None)
    unknown = step.spent[rank + 1 : following]
    if following is not None:
        until = inside[following].begin
    elif rank == 0 and len(step.spent) == 1:
        until = stay.end  # nothing goes anywhere
    else:
        until = step.end if last is None else last.begin
    return max(0.0, until - stay.end - sum(each.total for each in unknown))


def _beside(spent: PartTimes, stay: Stay | None, total: float) -> RankParts:
    """The parts of one rank in a step of tensor parallelism."""
    if stay is None:
        return _rank_parts(spent, None, max(0.0, total - spent.total))
    return _rank_parts(spent, stay.around, max(0.0, total - (stay.end - stay.begin)))


def _rank_parts(spent: PartTimes, node: float | None, wire: float) -> RankParts:
    return RankParts(spent.wait, spent.compute, spent.seal, node, wire)


def _mean(parts: Sequence[RankParts]) -> RankParts:
    known = [each.node for each in parts if each.node is not None]
    return RankParts(
        statistics.fmean(each.waiting for each in parts),
        statistics.fmean(each.compute for each in parts),
        statistics.fmean(each.sealing for each in parts),
        statistics.fmean(known) if known else None,
        statistics.fmean(each.wire for each in parts),
    )


def _between(steps: Sequence[StepRecord]) -> tuple[list[float], list[float]]:
    """For two steps of a group that follow each other: the time between them, none if they overlap,
    and the time from end to end."""
    groups: dict[int, list[StepRecord]] = {}
    for step in steps:
        groups.setdefault(step.group, []).append(step)
    gaps, ends = [], []
    for group in groups.values():
        for before, after in itertools.pairwise(group):
            gap = after.begin - before.end
            if gap < LONGEST_GAP:
                gaps.append(max(0.0, gap))
                ends.append(after.end - before.end)
    return gaps, ends


# ---------------------------------------------------------------------- balance
# Which split of the layers would have all ranks of a pipeline work equally long on a token.
#
# The head splits by memory, since a model must fit. Ranks that are not equally fast for it then
# wait for the slowest whenever several rows, chunks of a prompt or guesses are under way. A
# profile has measured what each rank takes for a layer, and so tells the split that would be
# best.


GAIN: Final = 1.05
"""By so much shorter the longest stage must become for another split to be worth a reload."""


@attrs.frozen
class Balance:
    """The *layers* of each rank that would be best, and by which factor the longest stage takes
    longer now (*gain*)."""

    layers: tuple[int, ...]
    gain: float


def balance_of(layers: Sequence[int], compute: Sequence[float], closing: float) -> Balance | None:
    """The best split where ranks with so many *layers* take *compute* seconds for a decode, and
    rank 0 another *closing* to draw the token; None if today's is about as good."""
    each = [took / count for took, count in zip(compute, layers, strict=True)]
    beside = [closing, *(0.0 for _ in each[1:])]
    best = [1] * len(layers)
    for _ in range(sum(layers) - len(layers)):
        after = [beside[rank] + each[rank] * (best[rank] + 1) for rank in range(len(best))]
        best[after.index(min(after))] += 1
    gain = _longest(layers, each, beside) / _longest(best, each, beside)
    return Balance(tuple(best), gain) if gain >= GAIN else None


def _longest(layers: Sequence[int], each: Sequence[float], beside: Sequence[float]) -> float:
    return max(b + e * n for n, e, b in zip(layers, each, beside, strict=True))


# ---------------------------------------------------------------------- slow links
# The links on which chunks of prompts take longer than in the rank before them.
#
# A pipeline reads a prompt at the pace of its slowest part. Where that is a link, larger chunks
# or another split help little: fewer bytes do.


_LEAST: Final = 0.001
"""Seconds under which a link is not called slow: most of so little are no bytes."""


@attrs.frozen
class SlowLink:
    """A chunk takes *wire* seconds from *rank* to the next one, and *compute* seconds in it."""

    rank: int
    wire: float
    compute: float


def slow_links_of(ranks: Mapping[int, RankParts]) -> list[SlowLink]:
    """The slow links of a pipeline whose *ranks* took so long for chunks of prompts. The last one
    sends nothing of a chunk back but that it is done."""
    return [
        SlowLink(rank, took.wire, took.compute)
        for rank, took in ranks.items()
        if rank + 1 in ranks and took.wire > max(took.compute, _LEAST)
    ]


_MS: Final = 1e3
_WHO: Final = {
    "node": "node",
    "launch": "engine: builds and launches graphs",
    "rest": "engine: its other threads",
}


def describe(recordings: Sequence[Recording], seconds: float) -> dict[str, Any]:
    """The profile of *seconds* as JSON. Times are milliseconds for each step, as means, unless
    their names say another unit."""
    decode, prefill = parts_of(recordings, "decode"), parts_of(recordings, "prefill")
    place = recordings[0].place
    return {
        "seconds": round(seconds, 3),
        "names": place["names"],
        "strategy": place["strategy"],
        "recorded_ranks": [recording.rank for recording in recordings],
        "decode": None if decode is None else _parts(decode),
        "prefill": None if prefill is None else _parts(prefill),
        "processors": _processors(recordings, decode),
        "balance": _balance(place, decode),
        "slow_links": _slow_links(place, prefill),
    }


def _slow_links(place: Mapping[str, Any], prefill: Parts | None) -> list[dict[str, Any]]:
    """Links of a pipeline that hold up the reading of prompts."""
    if prefill is None or place["strategy"] != "pp":
        return []
    return [
        {"rank": link.rank, "wire_ms": _ms(link.wire), "compute_ms": _ms(link.compute)}
        for link in slow_links_of(prefill.ranks)
    ]


def _balance(place: Mapping[str, Any], decode: Parts | None) -> dict[str, Any] | None:
    """A better split of a pipeline's layers, if there is one."""
    layers = [end - begin for begin, end in itertools.pairwise(place["bounds"])]
    if decode is None or place["strategy"] != "pp" or [*decode.ranks] != [*range(len(layers))]:
        return None
    closing = decode.closing.compute if decode.closing is not None else 0.0
    compute = [decode.ranks[rank].compute for rank in range(len(layers))]
    found = balance_of(layers, compute, closing)
    if found is None:
        return None
    return {"layers": list(found.layers), "now": layers, "gain": round(found.gain, 3)}


def _parts(parts: Parts) -> dict[str, Any]:
    return {
        "steps": parts.steps,
        "tokens_per_step": round(parts.tokens, 3),
        "steps_under_way": round(parts.under_way, 3),
        "token_ms": _ms(parts.token),
        "step_ms": _ms(parts.step),
        "head_ms": _ms(parts.head),
        "ranks": [{"rank": rank, **_rank(each)} for rank, each in parts.ranks.items()],
        "closing": None if parts.closing is None else _rank(parts.closing),
    }


def _rank(each: RankParts) -> dict[str, float | None]:
    return {
        "waiting_ms": _ms(each.waiting),
        "compute_ms": _ms(each.compute),
        "sealing_ms": _ms(each.sealing),
        "node_ms": _ms(each.node),
        "wire_ms": _ms(each.wire),
    }


def _processors(recordings: Sequence[Recording], decode: Parts | None) -> list[dict[str, Any]]:
    """Processor time of each rank's processes by all decode steps; the whole time without one."""
    steps = max(1, decode.steps) if decode is not None else 1
    return [
        {
            "rank": each.rank,
            "who": who,
            "ran_ms": _ms(ran / steps),
            "waited_ms": _ms(waited / steps),
        }
        for each in recordings
        for who, (ran, waited) in each.used().items()
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MS, 4)


def show(told: dict[str, Any]) -> None:
    """Print what `describe` told."""
    for work in ("decode", "prefill"):
        if told[work] is not None:
            _show_parts(work, told[work], told)
    if told["processors"]:
        print()
        print_table(
            "Milliseconds of a processor for each decode step",
            ["rank", "who", "ran", "ready, without one"],
            [
                (
                    str(each["rank"]),
                    _WHO[each["who"]],
                    _cell(each["ran_ms"]),
                    _cell(each["waited_ms"]),
                )
                for each in told["processors"]
            ],
            numbers_from=2,
        )
    _show_balance(told["balance"])
    for link in told["slow_links"]:
        print()
        print(
            f"A chunk of a prompt takes {link['wire_ms']:.1f} ms from rank {link['rank']} to the "
            f"next, and {link['compute_ms']:.1f} ms in it: the link holds up the reading of "
            'prompts. For a model in F32, hop_dtype = "bf16" in all configs halves what it '
            "carries, and rounds."
        )


def _show_balance(balance: dict[str, Any] | None) -> None:
    if balance is not None:
        print()
        print(
            f"The longest stage takes {balance['gain']:.2f} times as long as with layers = "
            f"{balance['layers']} in the head's config, in place of {balance['now']}. "
            "It bounds several rows, long prompts and guesses; one row alone gains nothing else."
        )


def _show_parts(work: str, parts: dict[str, Any], told: dict[str, Any]) -> None:
    names, columns = told["names"], ("waiting", "compute", "sealing", "node", "wire")
    rows = [(f"{each['rank']} {names[each['rank']]}", each) for each in parts["ranks"]]
    if parts["closing"] is not None:
        rows.append((f"0 {names[0]}, draws the token", parts["closing"]))
    print_table(
        f"{work}: milliseconds of a step",
        ["rank", *columns],
        [(who, *(_cell(each[f"{column}_ms"]) for column in columns)) for who, each in rows],
    )
    facts = [("steps", f"{parts['steps']}, of {parts['tokens_per_step']:.1f} tokens each")]
    if parts["step_ms"]:
        under_way = f"{parts['steps_under_way']:.1f} under way at once"
        facts.append(("a step takes", f"{parts['step_ms']:.2f} ms, {under_way}"))
    if work == "decode" and parts["token_ms"]:
        facts.append(("a row has a token", f"each {parts['token_ms']:.2f} ms (median)"))
        facts.append(("head, between steps", f"{parts['head_ms']:.2f} ms"))
    print_facts(facts)
    print()


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
