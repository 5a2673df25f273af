"""A rank after the head: what it makes of orders, and its way into a collective (11.2, 11.7, 11.9).

What the rank says to each thing that it hears is written down by hand, in `rank_courses` where
nothing is refused, and here where the last thing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
from sealring_protocol.codec.encoding import to_fields
from sealring_protocol.codec.messages import (
    Backend,
    Hindrance,
    Reason,
    Row,
    Spent,
    Waiting,
)
from sealring_protocol.errors import CloseCode

from spec.vectors.model import LIMIT, MALFORMED, Json, Vector, refused, valid
from spec.vectors.plaintexts import flat
from spec.vectors.rank_courses import COURSES
from spec.vectors.rank_exchanges import (
    IN,
    LITTLE,
    MANY,
    NEXT,
    OPEN,
    OTHER_MODEL,
    PIPELINE,
    READY,
    STEP,
    THREE,
    TOLD,
    UP,
    Course,
    Exchange,
    came,
    hears,
    step,
)
from spec.vectors.whole_messages import EPOCH, JOIN, PREPARE

GIVEN: Final[Mapping[str, bytes]] = {}

FAULTS: Final[dict[str, tuple[str, str, Course, Exchange, CloseCode]]] = {
    name: (ids, about, course, came(message, purpose=purpose), why)
    for name, ids, about, course, message, purpose, why in (
        ("join-unprepared", "CO-04", "to join, never to prepare", UP, JOIN, 1, MALFORMED),
        ("join-early", "CO-04", "to join before it is prepared", TOLD, JOIN, 1, MALFORMED),
        ("join-again", "CO-04", "to join twice", IN, JOIN, 1, MALFORMED),
        (
            "join-later",
            "CO-04",
            "to join in another epoch than prepared for",
            READY,
            attrs.evolve(JOIN, epoch=NEXT),
            1,
            MALFORMED,
        ),
        (
            "join-bounds",
            "CO-04",
            "to join with other layers",
            READY,
            attrs.evolve(JOIN, bounds=(0, 11)),
            1,
            MALFORMED,
        ),
        (
            "join-trusted",
            "CO-04",
            "to join beside the links, prepared for within",
            READY,
            attrs.evolve(JOIN, trusted=True),
            1,
            MALFORMED,
        ),
        (
            "join-backend",
            "CO-04",
            "to join over another back end",
            READY,
            attrs.evolve(JOIN, backend=Backend.NCCL, trusted=True),
            1,
            MALFORMED,
        ),
        ("prepare-again", "EP-07", "the same epoch twice", IN, PREPARE, 1, MALFORMED),
        (
            "prepare-older",
            "EP-07",
            "an epoch before the present one",
            TOLD,
            attrs.evolve(PREPARE, epoch=attrs.evolve(EPOCH, counter=2)),
            1,
            MALFORMED,
        ),
        (
            "other-rank",
            "EP-08",
            "an order for another rank",
            UP,
            attrs.evolve(PREPARE, rank=0),
            1,
            MALFORMED,
        ),
        (
            "other-world",
            "EP-08",
            "an order for a ring of three",
            UP,
            attrs.evolve(PREPARE, hosts=THREE.hosts),
            1,
            MALFORMED,
        ),
        (
            "other-members",
            "EP-08",
            "an order for rank 2, which the roster does not have",
            UP,
            attrs.evolve(PREPARE, members=(0, 2)),
            1,
            MALFORMED,
        ),
        (
            "other-seal",
            "EP-03",
            "no inner seal, where the policy has it",
            UP,
            attrs.evolve(PREPARE, inner_seal=False),
            1,
            CloseCode.POLICY_MISMATCH,
        ),
        (
            "other-steps",
            "EP-21",
            "a step version that its HELLO does not have",
            UP,
            attrs.evolve(PREPARE, steps=2),
            1,
            CloseCode.VERSION_MISMATCH,
        ),
        (
            "tensor",
            "EP-03",
            "tensor parallelism, which the policy forbids",
            UP,
            PREPARE,
            1,
            CloseCode.POLICY_MISMATCH,
        ),
        (
            "witness",
            "EP-03 RO-24",
            "tensor parallelism with the receiver, which is a witness that sees texts",
            UP,
            PREPARE,
            1,
            CloseCode.POLICY_MISMATCH,
        ),
        (
            "witness-pipeline",
            "EP-03 RO-24",
            "a pipeline with the receiver, which is a witness",
            UP,
            PIPELINE,
            1,
            CloseCode.POLICY_MISMATCH,
        ),
        (
            "witness-other",
            "EP-03 RO-24",
            "a pipeline with a witness after the receiver",
            UP,
            attrs.evolve(PIPELINE, bounds=(0, 4, 8, 12)),
            1,
            CloseCode.POLICY_MISMATCH,
        ),
        (
            "tensor-blind",
            "EP-03",
            "tensor parallelism, where the receiver may see no texts",
            UP,
            PREPARE,
            1,
            CloseCode.POLICY_MISMATCH,
        ),
        (
            "trusted",
            "EP-03",
            "beside the links, which the owner does not allow",
            UP,
            OPEN,
            1,
            CloseCode.POLICY_MISMATCH,
        ),
        (
            "other-model",
            "EP-03",
            "another model",
            UP,
            attrs.evolve(PREPARE, model=OTHER_MODEL),
            1,
            CloseCode.MODEL_MISMATCH,
        ),
        (
            "waiting-rank",
            "EP-13",
            "a reason of rank 2 of 2",
            (*UP, hears(LITTLE)),
            Waiting((LITTLE.reasons[0], Reason(Hindrance.ABSENT, 2, "rank 2 is not there"))),
            1,
            MALFORMED,
        ),
        (
            "step-later",
            "EP-05",
            "a step of an epoch that it was not told of",
            IN,
            step(1, NEXT),
            1,
            MALFORMED,
        ),
        ("step-gap", "ST-01", "step 2 first", IN, step(2), 1, MALFORMED),
        (
            "step-again",
            "ST-01",
            "step 1 twice",
            (*IN, came(step(1), step(1))),
            step(1),
            1,
            MALFORMED,
        ),
        ("step-one-more", "ST-04", "a 129th", (*IN, *MANY), step(129), 1, LIMIT),
        (
            "step-times",
            "ST-06",
            "the times of two ranks, and only one is before it",
            IN,
            attrs.evolve(step(1), spent=(Spent(1), Spent(2))),
            1,
            MALFORMED,
        ),
        ("step-chain", "RL-02", "a step on a STEP link", IN, step(1), STEP, MALFORMED),
        (
            "step-control",
            "RL-02",
            "a step of a pipeline on the CONTROL link",
            (*UP, came(PIPELINE, PIPELINE)),
            step(1),
            1,
            MALFORMED,
        ),
        (
            "row-pipeline",
            "RL-02",
            "ROW in a pipeline",
            (*UP, came(PIPELINE, PIPELINE)),
            Row(5),
            1,
            MALFORMED,
        ),
    )
}


PLACES: Final[dict[str, Json]] = {
    "join-trusted": {"trusted": True},
    "join-backend": {"trusted": True},
    "tensor": {"tensor_parallelism": False},
    "witness": {"rights": [1, 3]},
    "witness-pipeline": {"rights": [1, 2]},
    "witness-other": {"world": 3, "rights": [1, 1, 2]},
    "tensor-blind": {"rights": [1, 0]},
}
"""Where the owner allows what goes beside the links, so that nothing but the first order forbids
it; and where the policy, or a member's rights, forbid the order."""


def _input(place: Json, course: Sequence[Exchange]) -> Json:
    usual = {"inner_seal": True, "tensor_parallelism": True, "trusted": False}
    given = {"rank": 1, "world": 2, **usual, **place}
    return {**given, "course": [each.what for each in course]}


def _output(course: Sequence[Exchange]) -> Json:
    return {
        "head": [flat(message).hex() for each in course for message in each.to_head],
        "engine": [flat(message).hex() for each in course for message in each.to_engine],
        "restarts": sum(each.restarts for each in course),
        "told": [
            reason
            for waiting in [each.waiting for each in course if each.waiting is not None][-1:]
            for reason in to_fields(waiting)["reasons"]
        ],
    }


def vectors() -> Iterator[Vector]:
    """Courses of things that happen; in a faulty one the last is refused."""
    for name, (ids, about, place, course) in COURSES.items():
        given, output = _input(place, course), _output(course)
        yield valid(f"rank/{name}", "rank", ids, about, given, output)
    for name, (ids, about, course, last, why) in FAULTS.items():
        given, output = _input(PLACES.get(name, {}), (*course, last)), _output(course)
        yield refused(f"rank/{name}", "rank", ids, about, given, why, output=output)
