"""Which rank holds which layers: contiguous, weighted by memory, at least one layer each.

Rank 0 also holds the embedding, the final norm and the output head, so it is charged for them
before its share of the layers is reckoned. Shares are given by the largest-remainder method
(Hamilton's) on bytes, which keeps every rank within one layer of its exact share.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import attrs

from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.limits import MAX_WORLD

RESERVE: Final = 0.1
"""Share of a rank's memory that weights may not take: caches and activations live there."""


@attrs.frozen
class Partition:
    """Layer *bounds* (rank i holds ``bounds[i]:bounds[i + 1]``) and the *weights* of each rank,
    bytes, rank 0's with embedding and head."""

    bounds: tuple[int, ...]
    weights: tuple[int, ...]

    def layers(self, rank: int) -> range:
        """The layers of *rank*."""
        return range(self.bounds[rank], self.bounds[rank + 1])


def partition(layers: Sequence[int], ends: int, memory: Sequence[int]) -> Partition:
    """Split *layers* (bytes each) over ranks with *memory* bytes each; *ends* is the size of
    embedding, norm and head.

    Raises `LocalProtocolError`, with the numbers, when it does not fit.
    """
    world = len(memory)
    _check_world(len(layers), world)
    usable = [max(0, int(room * (1 - RESERVE))) for room in memory]
    total = sum(layers) + ends
    if sum(usable) < total:
        raise LocalProtocolError(
            f"the model's weights take {_gib(total)} and the {world} ranks have room for "
            f"{_gib(sum(usable))} ({RESERVE:.0%} of each rank is kept for caches); "
            "add a machine, or use a smaller or quantized model"
        )
    rooms = [max(0, usable[0] - ends), *usable[1:]]
    counts = _shares(rooms, len(layers))
    counts = _repair(counts, layers, rooms)
    return with_layers(layers, ends, counts, memory)


def with_layers(
    layers: Sequence[int], ends: int, counts: Sequence[int], memory: Sequence[int]
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
    weights = [sum(layers[a:b]) for a, b in pairwise(bounds)]
    weights[0] += ends
    for rank, (need, room) in enumerate(zip(weights, memory, strict=True)):
        if need > room * (1 - RESERVE):
            raise LocalProtocolError(
                f"rank {rank} would hold {counts[rank]} layers of {_gib(need)} in all and has "
                f"{_gib(room)}, of which {RESERVE:.0%} is kept for caches; give it fewer layers"
            )
    return Partition(tuple(bounds), tuple(weights))


def check_share(weights: int, memory: Sequence[int]) -> int:
    """What each rank holds, bytes, when all hold an equal share of *weights*.

    Raises `LocalProtocolError`, with the numbers, when a rank's memory is too small for it.
    """
    share = weights // len(memory)
    for rank, room in enumerate(memory):
        if share > room * (1 - RESERVE):
            raise LocalProtocolError(
                f"rank {rank} would hold a share of {_gib(share)} and has {_gib(room)}, of which "
                f"{RESERVE:.0%} is kept for caches; add a machine, or use pp"
            )
    return share


def _check_world(layers: int, world: int) -> None:
    if not 1 <= world <= MAX_WORLD:
        raise LocalProtocolError(f"{world} ranks; a ring has 1 to {MAX_WORLD}")
    if layers < world:
        raise LocalProtocolError(
            f"the model has {layers} layers for {world} ranks; every rank needs at least one"
        )


def _shares(rooms: list[int], layers: int) -> list[int]:
    """Layers per rank in proportion to *rooms*, largest remainder, one at least."""
    whole = sum(rooms)
    exact = [layers * room / whole if whole else layers / len(rooms) for room in rooms]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(rooms)), key=lambda r: (counts[r] - exact[r], r))
    for rank in by_remainder[: layers - sum(counts)]:
        counts[rank] += 1
    for rank in range(len(counts)):
        if counts[rank] == 0:
            counts[counts.index(max(counts))] -= 1
            counts[rank] = 1
    return counts


def _repair(counts: list[int], layers: Sequence[int], rooms: list[int]) -> list[int]:
    """Move single layers towards ranks with room while a rank holds more than it can."""
    for _ in range(len(layers) * len(counts)):
        slack = _slack(counts, layers, rooms)
        tight = min(range(len(counts)), key=lambda r: slack[r])
        loose = max(range(len(counts)), key=lambda r: slack[r])
        if slack[tight] >= 0 or counts[tight] == 1 or slack[loose] <= 0:
            break
        counts[tight] -= 1
        counts[loose] += 1
    return counts


def _slack(counts: list[int], layers: Sequence[int], rooms: list[int]) -> list[int]:
    at, slack = 0, []
    for count, room in zip(counts, rooms, strict=True):
        slack.append(room - sum(layers[at : at + count]))
        at += count
    return slack


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
