"""The head's ranks in tensor parallelism: when a step is over, and what ends an epoch (11.9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
from sealring_protocol.codec.messages import (
    CannotServe,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Step,
    StepDone,
)
from sealring_protocol.codec.tensor import DType, Tensor

from spec.vectors.model import Json, Vector, refused, u64, valid
from spec.vectors.plaintexts import flat

GIVEN: Final[Mapping[str, bytes]] = {}
EPOCH: Final = Epoch(7, 2)
WORLD: Final = 3
ERROR: Final = int(FailureKind.ENGINE_ERROR)
LEDGER: Final = int(FailureKind.LEDGER)
WAIT: Final[Json] = {"wait": True}


def step(n: int) -> Json:
    """The head begins step *n*."""
    return {"step": flat(Step(EPOCH, n, bytes(16), work=Decode(0))).hex()}


def answer(rank: int, n: int, *ids: int, epoch: Epoch = EPOCH) -> Json:
    """*rank* answers step *n* with *ids*."""
    return {"rank": rank, "answer": flat(StepDone(epoch, n, ids)).hex()}


def hidden(rank: int, n: int) -> Json:
    """*rank* answers step *n* with hidden states."""
    state = Tensor(DType.F32, (1, 1, 1), bytes(4))
    return {"rank": rank, "answer": flat(StepDone(EPOCH, n, tensors=(state,))).hex()}


def failure(rank: int, n: int, *, says: int | None = None, kind: int = ERROR) -> Json:
    """*rank* cannot do step *n*, for which it blames the rank that it *says*, or itself."""
    failed = Failure(rank if says is None else says, FailureKind(kind), f"at {n}")
    return {"rank": rank, "answer": flat(StepDone(EPOCH, n, failed=failed)).hex()}


def over(n: int, *ids: int) -> Json:
    """Step *n* is over, with *ids*."""
    return {"n": u64(n), "ids": list(ids)}


def failed(rank: int, steps: Sequence[int], kind: int = ERROR, others: Sequence[int] = ()) -> Json:
    """The epoch ended: first at fault was *rank*, then *others*; *steps* were under way."""
    return {
        "rank": rank,
        "kind": kind,
        "others": list(others),
        "steps": [u64(n) for n in steps],
    }


def cannot(rank: int, kind: FailureKind) -> Json:
    """*rank* cannot serve the epoch any more."""
    return {"rank": rank, "answer": flat(CannotServe(EPOCH, kind, "gone")).hex()}


ONE: Final = (step(1), answer(0, 1, 5, 6), answer(1, 1, 5, 6), answer(2, 1, 5, 6))
TWO: Final = (step(1), step(2))

Case = tuple[str, str, Sequence[Json], Sequence[Json], Json]
COURSES: Final[dict[str, Case]] = {
    "one": ("TP-03", "a step that all ranks answer", ONE, [over(1, 5, 6)], None),
    "alone": ("TP-03", "the head's own answer is not enough", ONE[:2], [], None),
    "last-missing": ("TP-03", "nor are all but one", ONE[:-1], [], None),
    "own-last": (
        "TP-03",
        "the head's own engine answers last",
        (*TWO, answer(2, 1), answer(1, 1), answer(1, 2, 9), answer(0, 1)),
        [over(1)],
        None,
    ),
    "two": (
        "TP-03 TP-02",
        "two steps under way, one rank ahead of the others",
        (
            *TWO,
            *(answer(1, 1, 5), answer(1, 2, 6)),
            *(answer(0, 1, 5), answer(2, 1, 5), answer(0, 2, 6), answer(2, 2, 6)),
        ),
        [over(1, 5), over(2, 6)],
        None,
    ),
    "diverged": (
        "TP-04",
        "another token than the head's",
        (*ONE[:3], answer(2, 1, 5, 7)),
        [],
        failed(2, [1], LEDGER),
    ),
    "diverged-length": (
        "TP-04",
        "a token fewer than the head's",
        (*ONE[:2], answer(1, 1, 5), answer(2, 1, 5, 6)),
        [],
        failed(1, [1], LEDGER),
    ),
    "diverged-order": (
        "TP-04",
        "the same tokens for other rows",
        (*ONE[:2], answer(1, 1, 6, 5), answer(2, 1, 5, 6)),
        [],
        failed(1, [1], LEDGER),
    ),
    "diverged-late": (
        "TP-04 TP-05",
        "a step is over before the one in which a rank diverges",
        (
            *TWO,
            *(answer(rank, 1, 5) for rank in range(3)),
            *(answer(rank, 2, 6 + (rank == 1)) for rank in range(3)),
        ),
        [over(1, 5)],
        failed(1, [2], LEDGER),
    ),
    "hidden": (
        "TP-02",
        "hidden states, which belong to a pipeline",
        (step(1), answer(0, 1), answer(1, 1), hidden(2, 1)),
        [],
        failed(2, [1], int(FailureKind.INTEGRITY)),
    ),
    "drains": (
        "TP-05",
        "a failure waits for what is owed",
        (*TWO, failure(1, 1), answer(0, 1, 5), answer(0, 2, 6)),
        [],
        None,
    ),
    "drained": (
        "TP-05",
        "all that is owed has come: every step under way has failed",
        (
            *TWO,
            *(failure(1, 1), failure(1, 2)),
            *(answer(0, 1, 5), answer(0, 2, 6), answer(2, 1, 5), answer(2, 2, 6)),
        ),
        [],
        failed(1, [1, 2]),
    ),
    "drained-late": (
        "TP-05",
        "what is owed has not come in time",
        (*TWO, failure(1, 1), answer(0, 1, 5), WAIT),
        [],
        failed(1, [1, 2]),
    ),
    "both": (
        "TP-05",
        "failures of two ranks are told together",
        (step(1), failure(2, 1), failure(0, 1, kind=6), answer(1, 1)),
        [],
        failed(2, [1], ERROR, [0]),
    ),
    "blames": (
        "TP-05",
        "a rank that blames another has failed itself",
        (step(1), failure(1, 1, says=2), answer(0, 1), answer(2, 1)),
        [],
        failed(1, [1]),
    ),
    "lost": (
        "TP-05",
        "a rank that cannot go on at all: no draining",
        (*TWO, answer(0, 1, 5), cannot(1, FailureKind.ENGINE_LOST)),
        [],
        failed(1, [1, 2], 2),
    ),
    "after": (
        "TP-06",
        "what comes after the end has no effect",
        (*TWO, failure(1, 1), WAIT, answer(2, 1, 5), answer(0, 1, 5), answer(1, 7), WAIT),
        [],
        failed(1, [1, 2]),
    ),
    "again": (
        "TP-06",
        "nor has the loss of a second rank, which every loss of a machine brings",
        (*TWO, cannot(1, FailureKind.ENGINE_LOST), cannot(2, FailureKind.LINK_LOST)),
        [],
        failed(1, [1, 2], 2),
    ),
    "stale": (
        "TP-06 EP-02",
        "an answer of an older epoch has no effect",
        (step(1), answer(1, 1, 9, 9, epoch=attrs.evolve(EPOCH, counter=1)), *ONE[1:]),
        [over(1, 5, 6)],
        None,
    ),
    "other-head": (
        "EP-04",
        "nor has one of another instance, whatever its counter",
        (
            step(1),
            answer(2, 7, 9, epoch=Epoch(8, 9)),
            answer(1, 1, 9, 9, epoch=Epoch(6, 2)),
            *ONE[1:],
        ),
        [over(1, 5, 6)],
        None,
    ),
}

FAULTS: Final[dict[str, tuple[str, str, Sequence[Json], Sequence[Json], Json]]] = {
    "ahead": ("TP-02", "step 2 answered before step 1", TWO, [], answer(1, 2, 5)),
    "twice": ("TP-02", "a step answered twice", ONE[:3], [], answer(1, 1, 5, 6)),
    "over": (
        "TP-02",
        "a step that is over answered again",
        ONE,
        [over(1, 5, 6)],
        answer(1, 1, 5, 6),
    ),
    "unasked": ("TP-02", "an answer to a step that is not under way", ONE[:1], [], answer(2, 2)),
    "nothing": (
        "TP-02",
        "an answer to step 0, which there is not",
        ONE[:2],
        [],
        answer(1, 0),
    ),
    "draining": (
        "TP-02",
        "a step answered twice, while the head drains",
        (*TWO, failure(1, 1), answer(2, 1, 5)),
        [],
        answer(2, 1, 5),
    ),
    "later": (
        "EP-06",
        "an answer of an epoch that never was",
        ONE[:2],
        [],
        answer(1, 1, 5, 6, epoch=attrs.evolve(EPOCH, counter=3)),
    ),
}


def _input(course: Sequence[Json]) -> Json:
    epoch = {"instance": u64(EPOCH.instance), "counter": u64(EPOCH.counter)}
    return {"world": WORLD, **epoch, "course": list(course)}


def vectors() -> Iterator[Vector]:
    """Courses of steps and answers; in a faulty one the last answer is refused."""
    for name, (ids, about, course, done, end) in COURSES.items():
        output = {"over": list(done), "failed": end}
        yield valid(f"lockstep/{name}", "lockstep", ids, about, _input(course), output)
    for name, (ids, about, course, done, last) in FAULTS.items():
        output = {"over": list(done), "failed": None}
        given = _input((*course, last))
        yield refused(f"lockstep/{name}", "lockstep", ids, about, given, output=output)
