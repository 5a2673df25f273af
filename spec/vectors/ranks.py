"""A rank after the head: what it makes of orders, and its way into a collective (11.2, 11.7, 11.9).

What comes of each thing that happens is written down by hand here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
from sealring_protocol.codec.local_messages import (
    EngineInfo,
    Group,
    Grouped,
    Loaded,
    LocalMessage,
)
from sealring_protocol.codec.messages import (
    Backend,
    Bootstrap,
    CacheCost,
    CannotServe,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Hello,
    Hindrance,
    Message,
    Prepared,
    Ready,
    Reason,
    Row,
    Spent,
    Step,
    StepDone,
    Waiting,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.conformance.message_parts import reason_fields
from sealring_protocol.errors import CloseCode
from sealring_protocol.limits import NO_RANK

from spec.vectors.messages import EPOCH, JOIN, MODEL, PREPARE, flat
from spec.vectors.model import LIMIT, MALFORMED, Json, Vector, refused, valid
from spec.vectors.world import entropy

GIVEN: Final[Mapping[str, bytes]] = {}
CONTROL, STEP, TUNNEL = 1, 2, 3
NEXT: Final = attrs.evolve(EPOCH, counter=EPOCH.counter + 1)
INFO: Final = EngineInfo(
    MODEL, DType.F32, 160, 1024, 2048, True, 1 << 34, 655360, (4096,) * 12, 8, 1 << Backend.RING
)
HELLO: Final = Hello(MODEL, 12, DType.F32, 160, 1 << 34)
PREPARED: Final = Prepared(EPOCH, 40002)
SERVES: Final = Ready(EPOCH, 0, 12, trimmable=True, room=1 << 33, cost=CacheCost(0, 96))
JOINED: Final = attrs.evolve(SERVES, sum_us=57, token_us=5900)
PIPELINE: Final = Bootstrap(EPOCH, Backend.PIPELINE, 1, True, 60000, MODEL, (0, 5, 12))
RESTARTED: Final = attrs.evolve(PIPELINE, epoch=Epoch(EPOCH.instance - 1, 1))
SMALLER: Final = attrs.evolve(HELLO, room=1 << 33)
OTHER_MODEL: Final = entropy("another model", 32)


@attrs.frozen
class Happens:
    """One thing that happens to a rank, and what it says then: to the head, to its engine; *told*
    is what it has been told by WAITING from then on, if that changes."""

    what: Json
    to_head: tuple[Message, ...] = ()
    to_engine: tuple[LocalMessage, ...] = ()
    restarts: int = 0
    told: Waiting | None = None


Course = tuple[Happens, ...]


def came(
    message: Message,
    *to_engine: LocalMessage,
    to_head: tuple[Message, ...] = (),
    purpose: int = CONTROL,
    restarts: int = 0,
    told: Waiting | None = None,
) -> Happens:
    """The head sent *message* (on a STEP link: the rank before)."""
    what = {"purpose": purpose, "plaintext": flat(message).hex()}
    return Happens(what, to_head, to_engine, restarts, told)


def hears(waiting: Waiting) -> Happens:
    """The head says why there is no epoch."""
    return came(waiting, told=waiting)


def engine(message: LocalMessage, *to_head: Message, to: tuple[LocalMessage, ...] = ()) -> Happens:
    """The own engine said *message*."""
    return Happens({"engine": flat(message).hex()}, to_head, to)


def way(port: int, relay: int, *to_head: Message) -> Happens:
    """The node has a port for its engine, and a relay."""
    return Happens({"port": port, "relay": relay}, to_head)


def tunnel(*to_head: Message) -> Happens:
    """The TUNNEL link with the next rank is up."""
    return Happens({"tunnel": True}, to_head)


def lost(reason: str, *to_head: Message) -> Happens:
    """The engine's process is gone."""
    return Happens({"lost": reason}, to_head)


def whole(order: Bootstrap) -> Bootstrap:
    """What an engine of a group is told of *order*: that it is alone, with all layers."""
    return attrs.evolve(order, backend=Backend.PIPELINE, rank=0, hosts=(), trusted=False)


def meeting(*hosts: tuple[str, int], **what: int) -> Group:
    """GROUP, to join."""
    return Group(Backend.RING, what.get("rank", 1), len(hosts), JOIN.deadline_ms, hosts)


SHARE: Final = Group(Backend.RING, 1, 2, PREPARE.deadline_ms)
UP: Final[Course] = (engine(INFO, HELLO),)
TOLD: Final[Course] = (*UP, came(PREPARE, SHARE, whole(PREPARE)))
READY: Final[Course] = (*TOLD, engine(Loaded(1, 2, 3)), way(40002, 40003), tunnel(PREPARED))
GONE: Final[Course] = (
    *READY,
    came(JOIN, meeting(("127.0.0.1", 40003), ("127.0.0.1", 40002))),
)
IN: Final[Course] = (*GONE, engine(Grouped(2, 57, 5900)), engine(SERVES, JOINED))


def step(n: int, epoch: Epoch = EPOCH) -> Step:
    """Step *n*; a rank's node does not look at its ledger."""
    return Step(epoch, n, bytes(16), work=Decode(0))


def done(n: int, *ids: int) -> StepDone:
    """The answer to step *n*."""
    return StepDone(EPOCH, n, ids)


def cannot(n: int, kind: FailureKind, message: str) -> StepDone:
    """That rank 1 cannot do step *n*."""
    return StepDone(EPOCH, n, failed=Failure(1, kind, message))


NO_ROOM: Final = CannotServe(EPOCH, FailureKind.LOAD, "no room")
WRONG_SUM: Final = CannotServe(EPOCH, FailureKind.GROUP, "the sum was 1.0")
ERROR: Final = (FailureKind.ENGINE_ERROR, "the forward raised")
KILLED: Final = (FailureKind.ENGINE_LOST, "it was killed")
GONE_ENGINE: Final = CannotServe(EPOCH, *KILLED)
OPEN: Final = attrs.evolve(PREPARE, trusted=True)
THREE: Final = attrs.evolve(PREPARE, rank=2, hosts=(("", 0),) * 3)
THREE_JOIN: Final = attrs.evolve(
    THREE, deadline_ms=JOIN.deadline_ms, hosts=(("a", 40001), ("b", 40002), ("c", 40003))
)

NOBODY: Final = Waiting((Reason(Hindrance.ABSENT, 0, "rank 0 waits for itself"),))
LITTLE: Final = Waiting(
    (
        Reason(Hindrance.PLAN, NO_RANK, "the ranks have room for 1 MiB"),
        Reason(Hindrance.FAILED, 1, "rank 1 could not serve"),
    )
)
MANY: Final[Course] = tuple(came(step(n), step(n)) for n in range(1, 129))
COURSES: Final[dict[str, tuple[str, str, Json, Course]]] = {
    "joins": ("CO-01 CO-04", "two rounds, over relays", {}, IN),
    "joins-loaded-last": (
        "CO-01",
        "the answer waits for the share, the port and the tunnel, in any order",
        {},
        (*TOLD, tunnel(), way(40002, 40003), engine(Loaded(1, 2, 3), PREPARED)),
    ),
    "joins-three": (
        "CO-01",
        "the last of three ranks, whose right neighbour is the head",
        {"rank": 2, "world": 3},
        (
            *UP,
            came(THREE, Group(Backend.RING, 2, 3, PREPARE.deadline_ms), whole(THREE)),
            engine(Loaded(1, 2, 3)),
            way(40002, 50003),
            tunnel(PREPARED),
            came(
                THREE_JOIN,
                meeting(("127.0.0.1", 50003), ("127.0.0.1", 1), ("127.0.0.1", 40002), rank=2),
            ),
        ),
    ),
    "joins-trusted": (
        "CO-01 EP-03",
        "without a tunnel, where the owner allows it",
        {"trusted": True},
        (
            *UP,
            came(OPEN, SHARE, whole(OPEN)),
            engine(Loaded(1, 2, 3)),
            way(40002, 0, PREPARED),
            came(attrs.evolve(JOIN, trusted=True), meeting(*JOIN.hosts)),
        ),
    ),
    "loading-fails": (
        "EP-09",
        "the share cannot be loaded",
        {},
        (
            *TOLD,
            engine(NO_ROOM, NO_ROOM),
        ),
    ),
    "joining-fails": (
        "EP-09",
        "the sum is wrong",
        {},
        (*GONE, engine(WRONG_SUM, WRONG_SUM)),
    ),
    "crossed": (
        "CO-04",
        "an order to join that crossed the news that this rank cannot",
        {},
        (*READY, lost("it was killed", GONE_ENGINE), came(JOIN)),
    ),
    "steps": (
        "TP-02 RL-02",
        "a row and two steps, answered in order",
        {},
        (
            *IN,
            came(Row(5), Row(5)),
            came(step(1), step(1)),
            came(step(2), step(2)),
            engine(done(1, 9), done(1, 9)),
            engine(done(2, 8), done(2, 8)),
        ),
    ),
    "steps-many": (
        "ST-04",
        "as many steps wait as may; one is answered, and the next may come",
        {},
        (*IN, *MANY, engine(done(1, 9), done(1, 9)), came(step(129), step(129))),
    ),
    "steps-many-fail": (
        "ST-04",
        "steps that are answered at once do not wait",
        {},
        (
            *IN,
            came(step(1), step(1)),
            engine(cannot(1, *ERROR), cannot(1, *ERROR)),
            *(came(step(n), to_head=(cannot(n, *ERROR),)) for n in range(2, 132)),
        ),
    ),
    "row-fails": (
        "TP-09",
        "after a step that failed no row goes to the engine",
        {},
        (
            *IN,
            came(step(1), step(1)),
            engine(cannot(1, *ERROR), cannot(1, *ERROR)),
            came(Row(5)),
            came(step(2), to_head=(cannot(2, *ERROR),)),
        ),
    ),
    "steps-fail": (
        "TP-02 TP-07",
        "after a step that failed every later one is answered so, without the engine",
        {},
        (
            *IN,
            came(step(1), step(1)),
            came(step(2), step(2)),
            engine(cannot(1, *ERROR), cannot(1, *ERROR), cannot(2, *ERROR)),
            engine(done(2, 8)),
            came(step(3), to_head=(cannot(3, *ERROR),)),
        ),
    ),
    "engine-lost": (
        "TP-02 TP-08",
        "the engine is gone with a step: the step is answered, and the head told",
        {},
        (
            *IN,
            came(step(1), step(1)),
            lost("it was killed", cannot(1, *KILLED), GONE_ENGINE),
        ),
    ),
    "again": (
        "CO-07 EP-10",
        "a later epoch: the engine's process is replaced before it is told anything",
        {},
        (
            *IN,
            came(step(1), step(1)),
            came(attrs.evolve(PREPARE, epoch=NEXT), restarts=1),
            lost("it was replaced"),
            engine(INFO, to=(SHARE, whole(attrs.evolve(PREPARE, epoch=NEXT)))),
        ),
    ),
    "again-preparing": (
        "CO-07 EP-10",
        "a later epoch, while the engine loads its share: the same",
        {},
        (
            *TOLD,
            came(attrs.evolve(PREPARE, epoch=NEXT), restarts=1),
            lost("it was replaced"),
            engine(INFO, to=(SHARE, whole(attrs.evolve(PREPARE, epoch=NEXT)))),
        ),
    ),
    "no-tensor": (
        "EP-03",
        "a pipeline, where the policy forbids tensor parallelism",
        {"tensor_parallelism": False},
        (*UP, came(PIPELINE, PIPELINE)),
    ),
    "to-pipeline": (
        "CO-07 EP-10",
        "a later epoch in a pipeline: the same",
        {},
        (
            *IN,
            came(attrs.evolve(PIPELINE, epoch=NEXT), restarts=1),
            lost("it was replaced"),
            engine(INFO, to=(attrs.evolve(PIPELINE, epoch=NEXT),)),
        ),
    ),
    "pipeline": ("EP-08", "BOOTSTRAP of a pipeline", {}, (*UP, came(PIPELINE, PIPELINE))),
    "new-head": (
        "EP-07",
        "BOOTSTRAP of another instance, which counts from 1 again",
        {},
        (*UP, came(PIPELINE, PIPELINE), came(RESTARTED, RESTARTED)),
    ),
    "stale": (
        "EP-02 TP-06",
        "a step of an older epoch has no effect",
        {},
        (*IN, came(step(1, attrs.evolve(EPOCH, counter=2))), came(step(1), step(1))),
    ),
    "stale-chain": (
        "EP-02",
        "nor on a STEP link, in a pipeline",
        {},
        (
            *(*UP, came(PIPELINE, PIPELINE)),
            came(step(1, attrs.evolve(EPOCH, counter=2)), purpose=STEP),
            came(step(1), step(1), purpose=STEP),
        ),
    ),
    "other-head": (
        "EP-04",
        "a step of another instance has no effect, whatever its counter",
        {},
        (
            *IN,
            came(step(1, Epoch(EPOCH.instance - 1, 9))),
            came(step(1, Epoch(EPOCH.instance + 1, 9))),
            came(step(1), step(1)),
        ),
    ),
    "step-before": (
        "EP-04",
        "a step before the first BOOTSTRAP has no effect, on either link",
        {},
        (
            *UP,
            came(step(1)),
            came(step(1), purpose=STEP),
            came(PIPELINE, PIPELINE),
        ),
    ),
    "waiting": (
        "EP-12 EP-13",
        "the reasons of the last WAITING hold; they change nothing about steps",
        {},
        (
            *(*IN, came(step(1), step(1))),
            *(hears(NOBODY), hears(LITTLE)),
            engine(done(1, 9), done(1, 9)),
            came(step(2), step(2)),
        ),
    ),
    "waiting-withdrawn": (
        "EP-12",
        "a WAITING without reasons withdraws those before it",
        {},
        (*UP, hears(LITTLE), hears(Waiting())),
    ),
    "waiting-over": (
        "EP-12",
        "BOOTSTRAP of the next epoch ends what was told",
        {},
        (
            *(*UP, came(PIPELINE, PIPELINE), hears(LITTLE)),
            came(*[attrs.evolve(PIPELINE, epoch=NEXT)] * 2, told=Waiting()),
        ),
    ),
    "waiting-joins": (
        "EP-12",
        "so does the order to join a collective",
        {},
        (*READY, hears(LITTLE), attrs.evolve(GONE[-1], told=Waiting())),
    ),
    "replaced": (
        "EP-10",
        "an engine that is replaced before any BOOTSTRAP: the rank presents itself again",
        {},
        (*UP, lost("it was killed"), engine(attrs.evolve(INFO, room=1 << 33), SMALLER)),
    ),
    "replaced-after": (
        "EP-10",
        "an engine that is replaced after BOOTSTRAP is given the order; the rank says no READY",
        {},
        (
            *(*UP, came(PIPELINE, PIPELINE)),
            lost("it was killed", GONE_ENGINE),
            engine(INFO, to=(PIPELINE,)),
        ),
    ),
}

FAULTS: Final[dict[str, tuple[str, str, Course, Happens, CloseCode]]] = {
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
            "other-seal",
            "EP-03",
            "no inner seal, where the policy has it",
            UP,
            attrs.evolve(PREPARE, inner_seal=False),
            1,
            CloseCode.POLICY_MISMATCH,
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
}
"""Where the owner allows what goes beside the links, so that nothing but the first order forbids
it; and where the policy forbids tensor parallelism."""


def _input(place: Json, course: Sequence[Happens]) -> Json:
    usual = {"inner_seal": True, "tensor_parallelism": True, "trusted": False}
    given = {"rank": 1, "world": 2, **usual, **place}
    return {**given, "course": [each.what for each in course]}


def _output(course: Sequence[Happens]) -> Json:
    return {
        "head": [flat(message).hex() for each in course for message in each.to_head],
        "engine": [flat(message).hex() for each in course for message in each.to_engine],
        "restarts": sum(each.restarts for each in course),
        "told": [
            reason_fields(reason)
            for told in [each.told for each in course if each.told is not None][-1:]
            for reason in told.reasons
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
