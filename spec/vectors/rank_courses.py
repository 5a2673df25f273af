"""Courses of a rank after the head in which nothing is refused (11.2, 11.7, 11.9)."""

from __future__ import annotations

from typing import Final

import attrs
from sealring_protocol.codec.local_messages import (
    Group,
    Loaded,
)
from sealring_protocol.codec.messages import (
    Backend,
    Epoch,
    Hindrance,
    Reason,
    Row,
    Waiting,
)

from spec.vectors.model import Json
from spec.vectors.rank_exchanges import (
    ERROR,
    GONE,
    GONE_ENGINE,
    HELLO,
    IN,
    INFO,
    KEEPING,
    KILLED,
    LITTLE,
    MANY,
    NEVER_HAD,
    NEXT,
    NO_ROOM,
    NOBODY,
    NOT_KEPT,
    OPEN,
    PIPELINE,
    PREPARED,
    READY,
    RESTARTED,
    SHARE,
    SMALLER,
    STEP,
    THREE,
    THREE_JOIN,
    TOLD,
    UNREADABLE,
    UNSERVABLE,
    UP,
    WRONG_SUM,
    Course,
    came,
    cannot,
    done,
    engine,
    hears,
    lost,
    meeting,
    step,
    tunnel,
    way,
    whole,
)
from spec.vectors.whole_messages import CHECKED, EPOCH, JOIN, PREPARE

WITHOUT: Final = attrs.evolve(PREPARE, members=(0, 2))
OUTSIDE: Final = Waiting((Reason(Hindrance.OUTSIDE, 1, "the ring goes on without rank 1"),))
WATCHED: Final = attrs.evolve(PIPELINE, checked=True)
WATCHED_SHARE: Final = attrs.evolve(PREPARE, checked=True)

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
    "joins-without-one": (
        "CO-01 EP-08",
        "the last of a ring that leaves rank 1 of 3 out",
        {"rank": 2, "world": 3},
        (
            *UP,
            came(WITHOUT, SHARE, whole(WITHOUT)),
            engine(Loaded(1, 2, 3)),
            way(40002, 40003),
            tunnel(PREPARED),
            came(
                attrs.evolve(JOIN, members=(0, 2)),
                meeting(("127.0.0.1", 40003), ("127.0.0.1", 40002)),
            ),
        ),
    ),
    "outside": (
        "EP-22 EP-10",
        "the ring goes on without it, and its engine is replaced",
        {},
        (
            *UP,
            came(PIPELINE, PIPELINE),
            engine(NO_ROOM, NO_ROOM),
            hears(OUTSIDE),
            lost("it was killed"),
            engine(INFO, HELLO),
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
    "checked": (
        "EP-18",
        "fingerprints of its engine in a checked epoch",
        {},
        (
            *UP,
            came(WATCHED, WATCHED),
            engine(CHECKED, CHECKED),
            engine(attrs.evolve(CHECKED, epoch=NEXT)),
        ),
    ),
    "checked-unasked": (
        "EP-18",
        "fingerprints of its engine that nobody asked for",
        {},
        (*UP, came(PIPELINE, PIPELINE), engine(CHECKED)),
    ),
    "checked-collective": (
        "EP-18",
        "a member of a collective is told, too",
        {},
        (*UP, came(WATCHED_SHARE, SHARE, whole(WATCHED_SHARE)), engine(CHECKED, CHECKED)),
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
    "blind": (
        "EP-03",
        "a pipeline, where the receiver may see no texts",
        {"rights": [1, 0]},
        (*UP, came(PIPELINE, PIPELINE)),
    ),
    "around-witness": (
        "EP-03 RO-24",
        "a pipeline that leaves a witness out",
        {"rank": 2, "world": 3, "rights": [1, 2, 1]},
        (*UP, came(attrs.evolve(PIPELINE, members=(0, 2)), attrs.evolve(PIPELINE, members=(0, 2)))),
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
    "kept": (
        "LG-06 EP-09",
        "caches to keep are told to the engine; one that does not have them says so to the head",
        {},
        (*UP, came(PIPELINE, PIPELINE), came(KEEPING, KEEPING), engine(NOT_KEPT, NOT_KEPT)),
    ),
    "kept-first": (
        "LG-06 EP-09",
        "caches to keep in the first epoch of a head: the rank has none of that instance",
        {},
        (*UP, came(KEEPING, to_head=(NEVER_HAD,))),
    ),
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
    "unreadable": (
        "EP-14",
        "the engine cannot read its model; later it can",
        {},
        (engine(UNREADABLE, UNREADABLE), lost("it has ended"), *UP),
    ),
    "unreadable-ordered": (
        "EP-09 EP-10",
        "after BOOTSTRAP that is the answer; once the engine can read it, the rank presents itself",
        {},
        (
            *(*UP, came(PIPELINE, PIPELINE), lost("it was killed", GONE_ENGINE)),
            engine(UNREADABLE),
            came(
                attrs.evolve(PIPELINE, epoch=NEXT), to_head=(attrs.evolve(UNSERVABLE, epoch=NEXT),)
            ),
            UP[0],
        ),
    ),
    "unservable": (
        "EP-09 EP-10",
        "an engine that can never serve so, and is replaced: the rank presents itself",
        {},
        (
            *(*UP, came(PIPELINE, PIPELINE), engine(UNSERVABLE, UNSERVABLE)),
            *(lost("it has ended"), UP[0]),
        ),
    ),
    "waiting-over": (
        "EP-12",
        "BOOTSTRAP of the next epoch ends what was told",
        {},
        (
            *(*UP, came(PIPELINE, PIPELINE), hears(LITTLE)),
            came(*[attrs.evolve(PIPELINE, epoch=NEXT)] * 2, waiting=Waiting()),
        ),
    ),
    "waiting-joins": (
        "EP-12",
        "so does the order to join a collective",
        {},
        (*READY, hears(LITTLE), attrs.evolve(GONE[-1], waiting=Waiting())),
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
