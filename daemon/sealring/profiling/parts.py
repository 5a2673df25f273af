"""Where the time of a step goes, rank by rank, as means over the steps of a profile.

In a pipeline the parts follow each other and add up to the step:

    each rank   waiting (for its device, which still has the step before), compute, sealing,
                node (between node and engine, both event loops included), wire (to the next rank)
    closing     the head's second pass, which draws the token: the same parts but wire
    head        from the answer to one step of a group until its next begins

*node* and *wire* can be told apart for ranks of this machine alone. Of other ranks both are in the
*wire* of the rank before. In tensor parallelism all ranks work at once, and a rank's *wire* is what
the step took longer than its stay there; the sums of the layers are in *compute*.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import attrs

from sealring.profiling.recording import NOTHING, Recording, Spent, Stay, Step

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
        cls, step: Step, stays: dict[int, dict[tuple[int, bool], Stay]], *, parallel: bool
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


def _until_next(step: Step, rank: int, inside: dict[int, Stay], last: Stay | None) -> float:
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


def _beside(spent: Spent, stay: Stay | None, total: float) -> RankParts:
    """The parts of one rank in a step of tensor parallelism."""
    if stay is None:
        return _rank_parts(spent, None, max(0.0, total - spent.total))
    return _rank_parts(spent, stay.around, max(0.0, total - (stay.end - stay.begin)))


def _rank_parts(spent: Spent, node: float | None, wire: float) -> RankParts:
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


def _between(steps: Sequence[Step]) -> tuple[list[float], list[float]]:
    """For two steps of a group that follow each other: the time between them, none if they overlap,
    and the time from end to end."""
    groups: dict[int, list[Step]] = {}
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
