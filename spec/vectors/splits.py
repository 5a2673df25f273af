"""Layer splits (section 11.6): which bounds, or why not. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sealring_protocol.errors import CloseCode

from spec.vectors.model import Json, Vector, refused, u64, valid

GIVEN: Final[Mapping[str, bytes]] = {}
OWN: Final = CloseCode.INTERNAL_ERROR


def _input(
    layers: Sequence[int],
    ends: int,
    memory: Sequence[int],
    head: int = 0,
    joined: Sequence[int] = (),
) -> Json:
    return {
        "layers": [u64(size) for size in layers],
        "ends": u64(ends),
        "memory": [u64(room) for room in memory],
        "head": head,
        "joined": list(joined),
    }


def vectors() -> Iterator[Vector]:
    """Splits by memory; what does not fit is the head's own fault to begin with."""
    for name, about, layers, ends, memory, bounds in [
        ("alone", "one rank", [100] * 4, 50, [1000], [0, 4]),
        ("even", "two equal ranks", [100] * 6, 0, [1000, 1000], [0, 3, 6]),
        ("ends", "rank 0 pays for its ends", [100] * 6, 450, [1000, 1000], [0, 2, 6]),
        (
            "thirds",
            "the remainder goes to the lowest",
            [1] * 7,
            0,
            [100] * 3,
            [0, 3, 5, 7],
        ),
        ("least", "a small rank gets one layer", [1] * 10, 0, [1000, 2, 1000], [0, 4, 5, 10]),
        ("uneven", "one layer is heavy", [100, 100, 600, 100], 0, [500, 1000], [0, 1, 4]),
        ("moved", "a layer moves to a rank with room", [1, 1, 1, 6], 0, [10, 7], [0, 3, 4]),
        ("sixteen", "one layer each", [1] * 16, 0, [10] * 16, list(range(17))),
    ]:
        given = _input(layers, ends, memory)
        yield valid(f"split/{name}", "split", "PA-01", about, given, {"bounds": bounds})
    for name, about, head, joined, memory, bounds in [
        ("head", "rank 0 works on the output head too", 2000, [], [100] * 2, [0, 5, 12]),
        ("head-part", "which is less than a layer", 700, [], [100] * 2, [0, 6, 12]),
        ("head-large", "which is all of its share", 90_000, [], [100] * 3, [0, 1, 6, 12]),
        ("joined", "layers that are not parted", 0, [6], [100] * 2, [0, 5, 12]),
        ("joined-far", "the nearest cut with room", 0, [4, 5, 6, 7], [10, 30], [0, 3, 12]),
        ("joined-head", "both", 2000, [4, 5], [100] * 2, [0, 6, 12]),
    ]:
        given = _input([1] * 12, 0, memory, head, joined)
        yield valid(f"split/{name}", "split", "PA-01", about, given, {"bounds": bounds})
    for name, about, layers, ends, memory in [
        ("too-big", "the weights do not fit", [100] * 6, 0, [300, 300]),
        ("reserve", "they fit only without what is kept for caches", [100] * 6, 0, [330, 330]),
        ("ends-too-big", "the ends do not fit beside them", [100] * 4, 700, [600, 600]),
        ("no-room", "a rank has no room for one layer", [100] * 2, 0, [1000, 50]),
        ("few-layers", "fewer layers than ranks", [1] * 2, 0, [100] * 3),
        ("many-ranks", "17 ranks", [1] * 20, 0, [100] * 17),
        ("no-ranks", "no rank", [1], 0, []),
    ]:
        given = _input(layers, ends, memory)
        yield refused(f"split/{name}", "split", "PA-02", about, given, OWN)
    given = _input([1] * 3, 0, [100] * 3, joined=[1])
    yield refused("split/joined-much", "split", "PA-02", "too few cuts", given, OWN)
