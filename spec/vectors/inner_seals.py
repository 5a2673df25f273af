"""The inner seal: one direction's tensors, each in its own place (section 7.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from sealring_protocol.errors import CloseCode

from spec.vectors.model import FORGED, LIMIT, Json, Vector, refused, u64, valid
from spec.vectors.plain import Place, inner_sealed
from spec.vectors.talk import flipped
from spec.vectors.world import CLUSTER, OTHER_CLUSTER, entropy

SECRET: Final = entropy("activation secret of a hop", 32)
GIVEN: Final[Mapping[str, bytes]] = {"secret": SECRET, "cluster": CLUSTER}
PLACE: Final = Place(CLUSTER, 7, 3, 41, 0, 12, 1, (2, 1, 2), (5, 9))
PREFILL: Final = Place(CLUSTER, 7, 3, 42, 0xFFFF, 12, 3, (1, 2, 2), (11,))
ELEMENTS: Final = entropy("hidden states", 16)
MAX_SKIP: Final = 1 << 20


def _arrival(place: Place, counter: int, data: bytes, **wrong: Any) -> Json:
    """A tensor as it comes, and the place in which its receiver expects it."""
    return {
        "instance": u64(place.instance),
        "counter": u64(place.counter),
        "n": u64(place.n),
        "group": place.group,
        "boundary": place.boundary,
        "uids": [u64(uid) for uid in place.uids],
        "tensor": {
            "dtype": place.dtype,
            "sealed": wrong.get("sealed", True),
            "counter": u64(counter),
            "shape": list(place.shape),
            "data": data.hex(),
        },
    }


def _sealed(place: Place, counter: int, suite: int = 1, **wrong: Any) -> bytes:
    elements = _elements(place)
    return inner_sealed(suite, SECRET, counter, elements, wrong.pop("other", place), **wrong)


def _elements(place: Place) -> bytes:
    width = {1: 4, 2: 2, 3: 2, 4: 4}[place.dtype]
    size = width
    for dimension in place.shape:
        size *= dimension
    return ELEMENTS[:size]


def _input(arrivals: Sequence[Json], suite: int = 1, cluster: bytes = CLUSTER) -> Json:
    return {
        "suite": suite,
        "secret": SECRET.hex(),
        "cluster": cluster.hex(),
        "tensors": list(arrivals),
    }


def vectors() -> Iterator[Vector]:
    """Tensors that open, and tensors out of place."""
    for suite, name in ((1, "aes"), (2, "chacha")):
        arrivals = [
            _arrival(place, counter, _sealed(place, counter, suite))
            for counter, place in enumerate((PLACE, PREFILL))
        ]
        elements = [_elements(place).hex() for place in (PLACE, PREFILL)]
        yield valid(
            f"inner/{name}",
            "inner",
            "IN-02 IN-04",
            "a decode of two rows, then a prefill",
            _input(arrivals, suite),
            {"elements": elements},
        )
    for name, about, counters in [
        ("update", "across the first key update", (62, 63, 64, 65)),
        ("second-update", "across the second", (65599, 65600)),
        ("gaps", "steps were abandoned", (3, 7, 1000)),
        ("longest-skip", "as many skipped as may be", (0, MAX_SKIP + 1)),
        ("from-far", "the first counter is the last allowed", (MAX_SKIP,)),
    ]:
        arrivals = [_arrival(PLACE, counter, _sealed(PLACE, counter)) for counter in counters]
        output = {"elements": [ELEMENTS.hex()] * len(counters)}
        yield valid(f"inner/{name}", "inner", "IN-02 IN-05", about, _input(arrivals), output)
    for dtype, shape, name in ((2, (), "scalar"), (4, (0, 3), "nothing")):
        place = attrs.evolve(PLACE, dtype=dtype, shape=shape)
        given = _input([_arrival(place, 0, _sealed(place, 0))])
        output = {"elements": [_elements(place).hex()]}
        yield valid(f"inner/{name}", "inner", "IN-04", f"shape {shape}", given, output)
    yield from _out_of_place()
    yield from _out_of_order()


def _refused(
    name: str,
    ids: str,
    about: str,
    arrivals: Sequence[Json],
    why: CloseCode = FORGED,
    good: int = 0,
) -> Vector:
    output = {"elements": [ELEMENTS.hex()] * good}
    released = ELEMENTS * good
    given = _input(arrivals)
    return refused(
        f"inner/{name}", "inner", ids, about, given, why, released=released, output=output
    )


def _out_of_place() -> Iterator[Vector]:
    others: list[tuple[str, Any]] = [
        ("cluster", OTHER_CLUSTER),
        ("instance", 8),
        ("counter", 4),
        ("n", 40),
        ("group", 1),
        ("boundary", 13),
        ("dtype", 4),
        ("shape", (1, 2, 2)),
        ("uids", (9, 5)),
    ]
    for field, value in others:
        data = _sealed(PLACE, 0, other=attrs.evolve(PLACE, **{field: value}))
        about = f"sealed with another {field}"
        arrivals = [_arrival(PLACE, 0, data)]
        yield _refused(f"other-{field}", "IN-04", about, arrivals)
    fewer = attrs.evolve(PLACE, uids=(5,))
    data = _sealed(PLACE, 0, other=fewer)
    yield _refused("other-rows", "IN-04", "sealed for one row", [_arrival(PLACE, 0, data)])
    good = _sealed(PLACE, 0)
    for name, about, data in [
        ("flipped", "a bit of an element flipped", flipped(good, 3)),
        ("tag", "a bit of the tag flipped", flipped(good, -1)),
    ]:
        yield _refused(name, "IN-04", about, [_arrival(PLACE, 0, data)])
    plain = _arrival(PLACE, 0, ELEMENTS, sealed=False)
    about = "a plain tensor"
    yield _refused("plain", "IN-01", about, [plain], CloseCode.POLICY_MISMATCH)


def _out_of_order() -> Iterator[Vector]:
    def at(counter: int, **wrong: Any) -> Json:
        return _arrival(PLACE, counter, _sealed(PLACE, counter, **wrong))

    moved = _arrival(PLACE, 1, _sealed(PLACE, 0))
    far = MAX_SKIP + 1
    for name, ids, about, arrivals, why, good in [
        ("again", "IN-02", "a counter again", [at(5), at(5)], FORGED, 1),
        ("falls", "IN-02", "a counter that falls", [at(5), at(4)], FORGED, 1),
        ("moved", "IN-02", "another counter than it was sealed with", [moved], FORGED, 0),
        ("far", "IN-03", "one more skipped than may be", [at(0), at(far + 1)], LIMIT, 1),
        ("far-first", "IN-03", "the first too far", [at(far)], LIMIT, 0),
        ("late-key", "IN-05", "the first key at 64", [at(64, updates=0)], FORGED, 0),
        ("early-key", "IN-05", "the second key at 63", [at(63, updates=1)], FORGED, 0),
        ("dead", "CV-04 IN-04", "nothing opens after a failure", [moved, at(2)], FORGED, 0),
    ]:
        yield _refused(name, ids, about, arrivals, why, good)
