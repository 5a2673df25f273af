"""What a rank after the head hears, and what it says then: the parts of its courses."""

from __future__ import annotations

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
    NO_EPOCH,
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
    KeptCache,
    Message,
    Prepared,
    Ready,
    Reason,
    Step,
    StepDone,
    Waiting,
)
from sealring_protocol.codec.tensor import DType
from sealring_protocol.limits import NO_RANK

from spec.vectors.model import Json
from spec.vectors.plaintexts import flat
from spec.vectors.whole_messages import EPOCH, JOIN, MODEL, PREPARE
from spec.vectors.world import entropy

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
KEEPING: Final = attrs.evolve(PIPELINE, epoch=NEXT, kept=(KeptCache(4, 4000), KeptCache(9, 17)))
NOT_KEPT: Final = CannotServe(NEXT, FailureKind.LEDGER, "no cache 9 is here")
NEVER_HAD: Final = attrs.evolve(NOT_KEPT, reason="it has had no order of this head before")
RESTARTED: Final = attrs.evolve(PIPELINE, epoch=Epoch(EPOCH.instance - 1, 1))
SMALLER: Final = attrs.evolve(HELLO, room=1 << 33)
OTHER_MODEL: Final = entropy("another model", 32)


@attrs.frozen
class Exchange:
    """*what* a rank hears, and what it says then: to the head, to its engine; *waiting*
    is the WAITING that it goes by from then on, if that changes."""

    what: Json
    to_head: tuple[Message, ...] = ()
    to_engine: tuple[LocalMessage, ...] = ()
    restarts: int = 0
    waiting: Waiting | None = None


Course = tuple[Exchange, ...]


def came(
    message: Message,
    *to_engine: LocalMessage,
    to_head: tuple[Message, ...] = (),
    purpose: int = CONTROL,
    restarts: int = 0,
    waiting: Waiting | None = None,
) -> Exchange:
    """The head sent *message* (on a STEP link: the rank before)."""
    what = {"purpose": purpose, "plaintext": flat(message).hex()}
    return Exchange(what, to_head, to_engine, restarts, waiting)


def hears(waiting: Waiting) -> Exchange:
    """The head says why there is no epoch."""
    return came(waiting, waiting=waiting)


def engine(message: LocalMessage, *to_head: Message, to: tuple[LocalMessage, ...] = ()) -> Exchange:
    """The own engine said *message*."""
    return Exchange({"engine": flat(message).hex()}, to_head, to)


def way(port: int, relay: int, *to_head: Message) -> Exchange:
    """The node has a port for its engine, and a relay."""
    return Exchange({"port": port, "relay": relay}, to_head)


def tunnel(*to_head: Message) -> Exchange:
    """The TUNNEL link with the next rank is up."""
    return Exchange({"tunnel": True}, to_head)


def lost(reason: str, *to_head: Message) -> Exchange:
    """The engine's process is gone."""
    return Exchange({"lost": reason}, to_head)


def whole(order: Bootstrap) -> Bootstrap:
    """What an engine of a group is told of *order*: that it is alone, with all layers."""
    return attrs.evolve(
        order, backend=Backend.PIPELINE, rank=0, hosts=(), trusted=False, members=()
    )


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
UNREADABLE: Final = CannotServe(NO_EPOCH, FailureKind.UNSERVABLE, "a file is missing")
UNSERVABLE: Final = attrs.evolve(UNREADABLE, epoch=EPOCH)
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
