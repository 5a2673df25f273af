"""Which rank holds which layers: contiguous, weighted by memory, at least one layer each.

Rank 0 also has the embedding, the final norm and the output head. It is charged for their bytes,
and for the work of the output head, which counts as layers: so the ranks work equally long on a
token where they have equal memory. Shares are given by the largest-remainder method (Hamilton's),
which keeps every rank within one layer of its exact share. Where a rank has not the room for that,
or the model cannot be cut there, the nearest bounds are taken at which every rank has room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Final

import attrs

from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_WORLD

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
    def told(self) -> str:
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
    if bounds is None:  # some rank has not the room; which one is told with the numbers
        bounds = _nearest([0, *accumulate(shares)], cuts, layers, [total] * world) or (0,)
    counts = [end - begin for begin, end in pairwise(bounds)]
    return with_layers(layers, ends, counts, memory, joints)


def with_layers(
    layers: Sequence[int],
    ends: int,
    counts: Sequence[int],
    memory: Sequence[int],
    joints: Joints = NO_JOINTS,
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
                f"rank {rank} would hold {counts[rank]} layers of {_gib(need)} in all and has "
                f"{_gib(room)}, of which {RESERVE:.0%} is kept for caches; give it fewer layers"
            )
    return Partition(tuple(bounds), tuple(weights))


def check_share(layers: int, ends: int, memory: Sequence[int]) -> int:
    """What each rank holds at most, bytes, when each has an equal share of the *layers* and all of
    the *ends*. (A rank may share out an output head that is no embedding; that is not counted.)

    Raises `LocalProtocolError`, with the numbers, when a rank's memory is too small for it.
    """
    held = ends + layers // len(memory)
    for rank, room in enumerate(memory):
        if held > room * (1 - RESERVE):
            raise TooLittleRoom(
                f"rank {rank} would hold {_gib(held)}, its share of the layers and all of the "
                f"ends, and has {_gib(room)}, of which {RESERVE:.0%} is kept for caches; add a "
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
