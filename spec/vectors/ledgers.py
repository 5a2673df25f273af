"""Steps applied to a ledger: what it holds afterwards, and its digest (section 11.3).

The state after each step is written down by hand here, and the digest computed from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sealring_protocol.codec.messages import (
    Decode,
    Epoch,
    FailureKind,
    Join,
    Open,
    Prefill,
    Save,
    Step,
    TakeBack,
)

from spec.vectors.model import Json, Vector, refused, u64, valid
from spec.vectors.plain import LedgerState
from spec.vectors.plaintexts import flat

GIVEN: Final[Mapping[str, bytes]] = {}
EPOCH: Final = Epoch(7, 1)
LEDGER: Final = FailureKind.LEDGER
Rows = tuple[tuple[int, int], ...]


def step(**what: Any) -> dict[str, Any]:
    """The fields of a step."""
    return what


def state(
    private: dict[int, int] | None = None,
    groups: dict[int, Rows] | None = None,
    snapshots: dict[int, int] | None = None,
    guessed: dict[int, int] | None = None,
    scored: int = 0,
) -> LedgerState:
    """What a ledger holds."""
    return LedgerState(private or {}, snapshots or {}, groups or {}, guessed or {}, scored)


def alone(length: int, guessed: int = 0) -> LedgerState:
    """Row 1 is alone in group 0."""
    return state({}, {0: ((1, length),)}, {}, {1: guessed} if guessed else {})


Course = Sequence[tuple[dict[str, Any], LedgerState]]

READ_ONE: Final[Course] = (
    (step(open=(Open(1),), work=Prefill(1, 0, 3)), state({1: 3})),
    (step(work=Prefill(1, 3, 2)), state({1: 5})),
)
TWO_ROWS: Final[Course] = (
    *READ_ONE,
    (step(open=(Open(2),), join=(Join(1, 0),), work=Decode(0)), state({2: 0}, {0: ((1, 6),)})),
    (step(join=(Join(2, 0),), work=Decode(0)), state({}, {0: ((1, 7), (2, 1))})),
)
SAVED: Final[Course] = (
    *READ_ONE,
    (step(save=(Save(1, 90),)), state({1: 5}, {}, {90: 5})),
)

ONE_ROW: Final[Course] = (
    *READ_ONE,
    (step(join=(Join(1, 0),), work=Decode(0)), alone(6)),
)
GUESSED: Final[Course] = (
    *ONE_ROW,
    (step(work=Decode(0, 1)), alone(7, 1)),
    (step(work=Decode(0, 2)), alone(8, 2)),
)

BOTH: Final[Course] = (
    *ONE_ROW,
    (step(work=Decode(0, 2, 2)), alone(9, 2)),
    (step(work=Decode(0, 5, 2)), alone(12, 5)),
)

BACK_1: Final = (TakeBack(1, 1),)
BACK_2: Final = (TakeBack(2, 1),)

GUESSES: Final[dict[str, tuple[str, Course]]] = {
    "guess": ("a row reads two guesses", GUESSED),
    "guess-drawn": (
        "a token that was drawn comes after right guesses",
        (*GUESSED, (step(work=Decode(0)), alone(9))),
    ),
    "guess-right": (
        "of three guesses, the first is known to be right",
        (*GUESSED, (step(work=Decode(0, 2)), alone(9, 2))),
    ),
    "guess-most": (
        "a row reads 16 guesses",
        (*ONE_ROW, *((step(work=Decode(0, n)), alone(6 + n, n)) for n in range(1, 17))),
    ),
    "guess-ahead": (
        "a row reads two guesses ahead with one step",
        (*ONE_ROW, (step(work=Decode(0, 2, 2)), alone(9, 2))),
    ),
    "guess-ahead-most": (
        "a row reads 16 guesses ahead",
        (*ONE_ROW, (step(work=Decode(0, 16, 16)), alone(23, 16))),
    ),
    "guess-ahead-after": (
        "guesses that are read ahead come after a token that was drawn: those before are none any "
        "more",
        (*GUESSED, (step(work=Decode(0, 3, 3)), alone(12, 3))),
    ),
    "guess-ahead-back": (
        "one of three is right, and others are read ahead with the step that takes the rest back",
        (
            *ONE_ROW,
            (step(work=Decode(0, 3, 3)), alone(10, 3)),
            (step(back=(TakeBack(1, 2),), work=Decode(0, 2, 2)), alone(11, 2)),
        ),
    ),
    "guess-ahead-drawn": (
        "all of them are right, and one guess is read after them",
        (
            *ONE_ROW,
            (step(work=Decode(0, 2, 2)), alone(9, 2)),
            (step(work=Decode(0, 1)), alone(10, 1)),
        ),
    ),
    "guess-both": (
        "a decode that reads two guesses ahead, and one that begins with a guess and reads two",
        BOTH,
    ),
    "guess-both-first": (
        "a decode begins with a guess and reads two ahead; the one before read none",
        (*ONE_ROW, (step(work=Decode(0, 3, 2)), alone(9, 3))),
    ),
    "guess-both-right": (
        "the first three of five guesses are known to be right",
        (*BOTH, (step(work=Decode(0, 5, 2)), alone(15, 5))),
    ),
    "guess-both-fewer": (
        "a guess alone comes after several",
        (*BOTH, (step(work=Decode(0, 6)), alone(13, 6))),
    ),
    "guess-both-most": (
        "the last of 16 guesses are read eight with one step",
        (
            *ONE_ROW,
            (step(work=Decode(0, 8, 8)), alone(15, 8)),
            (step(work=Decode(0, 16, 7)), alone(23, 16)),
        ),
    ),
    "guess-both-back": (
        "one of five is right, and others are read ahead with the step that takes the rest back",
        (*BOTH, (step(back=(TakeBack(1, 4),), work=Decode(0, 2, 2)), alone(11, 2))),
    ),
    "guess-back": (
        "both guesses are taken back, and the token that was drawn is read",
        (*GUESSED, (step(back=(TakeBack(1, 2),), work=Decode(0)), alone(7))),
    ),
    "guess-back-last": (
        "the last guess is taken back, and another is read",
        (*GUESSED, (step(back=BACK_1, work=Decode(0, 2)), alone(8, 2))),
    ),
    "guess-back-twice": (
        "two entries of one row",
        (*GUESSED, (step(back=(*BACK_1, *BACK_1)), alone(6))),
    ),
    "guess-back-idle": (
        "a guess is taken back by a step without work; the other stays one",
        (*GUESSED, (step(back=BACK_1), alone(7, 1))),
    ),
    "guess-back-first": (
        "back comes before save and evict: what is kept has no guesses",
        (
            *GUESSED,
            (step(back=(TakeBack(1, 2),), save=(Save(1, 90),), evict=(1,)), state({}, {}, {90: 6})),
        ),
    ),
    "guess-saved": (
        "a row is saved with its guesses, which are taken back of the row alone",
        (
            *GUESSED,
            (step(save=(Save(1, 90),)), state({}, {0: ((1, 8),)}, {90: 8}, {1: 2})),
            (step(back=(TakeBack(1, 2),)), state({}, {0: ((1, 6),)}, {90: 8})),
        ),
    ),
    "guess-joined": (
        "a row joins: the guesses of the other are none any more",
        (
            *GUESSED,
            (step(open=(Open(2),), join=(Join(2, 0),)), state({}, {0: ((1, 8), (2, 0))})),
        ),
    ),
    "guess-evicted": (
        "a row leaves and comes back: it has no guesses",
        (
            *GUESSED,
            (step(evict=(1,), open=(Open(1),), work=Prefill(1, 0, 3)), state({1: 3})),
            (step(join=(Join(1, 0),)), alone(3)),
        ),
    ),
    "guess-rejoined": (
        "a row leaves and comes back in one step: it has no guesses",
        (*GUESSED, (step(evict=(1,), open=(Open(1),), join=(Join(1, 0),)), alone(0))),
    ),
    "guess-elsewhere": (
        "rows of two groups have guesses; neither changes the other's",
        (
            *GUESSED,
            (
                step(open=(Open(2),), join=(Join(2, 3),), work=Decode(3, 1)),
                state({}, {0: ((1, 8),), 3: ((2, 1),)}, {}, {1: 2, 2: 1}),
            ),
            (
                step(work=Decode(3)),
                state({}, {0: ((1, 8),), 3: ((2, 2),)}, {}, {1: 2}),
            ),
        ),
    ),
}
"""Courses with guesses."""

COURSES: Final[dict[str, tuple[str, Course]]] = {
    "nothing": ("a step that does nothing", ((step(), state()),)),
    "prefill": ("a row is read in two chunks", READ_ONE),
    "prefill-scored": (
        "a row is read in three chunks, of which two are scored",
        (
            (step(open=(Open(1),), work=Prefill(1, 0, 3, True)), state({1: 3}, scored=3)),
            (step(work=Prefill(1, 3, 2)), state({1: 5})),
            (step(work=Prefill(1, 5, 1, True)), state({1: 6}, scored=1)),
        ),
    ),
    "scored-then-nothing": (
        "a chunk is scored, and the next step does nothing",
        (
            (step(open=(Open(1),), work=Prefill(1, 0, 3, True)), state({1: 3}, scored=3)),
            (step(), state({1: 3})),
        ),
    ),
    "join": ("two rows join a group, one after the other", TWO_ROWS),
    "evict": (
        "the first row leaves; the last leaves by a step without work",
        (
            *TWO_ROWS,
            (step(evict=(1,), work=Decode(0)), state({}, {0: ((2, 2),)})),
            (step(evict=(2,)), state()),
        ),
    ),
    "order": (
        "survivors in their order, then joiners in the step's",
        (
            (
                step(open=(Open(1), Open(2), Open(3)), join=(Join(3, 0), Join(1, 0), Join(2, 0))),
                state({}, {0: ((3, 0), (1, 0), (2, 0))}),
            ),
            (
                step(evict=(1,), open=(Open(9), Open(8)), join=(Join(9, 0), Join(8, 0))),
                state({}, {0: ((3, 0), (2, 0), (9, 0), (8, 0))}),
            ),
        ),
    ),
    "back": (
        "a row leaves and comes back in one step: it counts as a joiner",
        (
            *TWO_ROWS,
            (
                step(evict=(1,), open=(Open(1),), join=(Join(1, 0),)),
                state({}, {0: ((2, 1), (1, 0))}),
            ),
        ),
    ),
    "moves": (
        "a row leaves one group and comes back into another, in one step",
        (
            *TWO_ROWS,
            (
                step(evict=(1,), open=(Open(1),), join=(Join(1, 4),)),
                state({}, {0: ((2, 1),), 4: ((1, 0),)}),
            ),
        ),
    ),
    "groups": (
        "two groups, told in the order of their numbers",
        (
            *READ_ONE,
            (
                step(open=(Open(2),), join=(Join(1, 9), Join(2, 3))),
                state({}, {3: ((2, 0),), 9: ((1, 5),)}),
            ),
        ),
    ),
    "snapshot": (
        "a row begins from a snapshot, cut; the snapshot is dropped",
        (
            *SAVED,
            (step(open=(Open(2, 90, 4),)), state({1: 5, 2: 4}, {}, {90: 5})),
            (step(drop=(90, 1)), state({2: 4})),
        ),
    ),
    "snapshot-whole": (
        "a row begins from all of a snapshot",
        (*SAVED, (step(open=(Open(2, 90, 5),)), state({1: 5, 2: 5}, {}, {90: 5}))),
    ),
    "save-first": (
        "save comes before drop: the cache is kept",
        (*READ_ONE, (step(save=(Save(1, 90),), drop=(1,)), state({}, {}, {90: 5}))),
    ),
    "save-joined": (
        "a row in a group is saved before it leaves",
        (
            *TWO_ROWS,
            (step(save=(Save(1, 90),), evict=(1,)), state({}, {0: ((2, 1),)}, {90: 7})),
        ),
    ),
    "drop-first": (
        "drop comes before open: the uid is free",
        (*READ_ONE, (step(drop=(1,), open=(Open(1),)), state({1: 0}))),
    ),
    "longest": (
        "the longest row",
        ((step(open=(Open(1),), work=Prefill(1, 0, 2**32 - 1)), state({1: 2**32 - 1})),),
    ),
    "longest-decoded": (
        "a row that a decode makes as long as any",
        (
            (step(open=(Open(1),), work=Prefill(1, 0, 2**32 - 2)), state({1: 2**32 - 2})),
            (step(join=(Join(1, 0),), work=Decode(0)), state({}, {0: ((1, 2**32 - 1),)})),
        ),
    ),
    "far": (
        "the largest uid and the last group",
        (
            (
                step(open=(Open(2**64 - 1),), join=(Join(2**64 - 1, 65534),), work=Decode(65534)),
                state({}, {65534: ((2**64 - 1, 1),)}),
            ),
        ),
    ),
    **GUESSES,
}

FAULTS: Final[dict[str, tuple[str, Course, dict[str, Any]]]] = {
    "save-unknown": ("saves a row that is not there", READ_ONE, step(save=(Save(2, 90),))),
    "save-zero": ("saves as handle 0", READ_ONE, step(save=(Save(1, 0),))),
    "save-taken": ("saves as a handle in use", SAVED, step(save=(Save(1, 90),))),
    "save-as-uid": ("saves as a uid in use", READ_ONE, step(save=(Save(1, 1),))),
    "evict-unknown": ("evicts a row that is not there", READ_ONE, step(evict=(2,))),
    "evict-private": ("evicts a row that is in no group", READ_ONE, step(evict=(1,))),
    "evict-twice": ("evicts a row twice", TWO_ROWS, step(evict=(1, 1))),
    "drop-unknown": ("drops a number that nothing has", READ_ONE, step(drop=(2,))),
    "drop-joined": ("drops a row that is in a group", TWO_ROWS, step(drop=(1,))),
    "drop-twice": ("drops a row twice", READ_ONE, step(drop=(1, 1))),
    "open-zero": ("opens row 0", READ_ONE, step(open=(Open(0),))),
    "open-taken": ("opens a row that is open", READ_ONE, step(open=(Open(1),))),
    "open-joined": ("opens a row that is in a group", TWO_ROWS, step(open=(Open(1),))),
    "open-handle": ("opens a row with a handle's number", SAVED, step(open=(Open(90),))),
    "open-unknown": (
        "opens from a snapshot that is not there",
        SAVED,
        step(open=(Open(2, 91, 1),)),
    ),
    "open-keep-0": ("keeps no token of a snapshot", SAVED, step(open=(Open(2, 90, 0),))),
    "open-keep": ("keeps more than the snapshot has", SAVED, step(open=(Open(2, 90, 6),))),
    "open-keep-none": ("keeps tokens of no snapshot", READ_ONE, step(open=(Open(2, 0, 1),))),
    "open-row": ("opens from a row, not a snapshot", READ_ONE, step(open=(Open(2, 1, 1),))),
    "join-unknown": ("joins a row that is not there", READ_ONE, step(join=(Join(2, 0),))),
    "join-twice": ("joins a row twice", READ_ONE, step(join=(Join(1, 0), Join(1, 1)))),
    "join-evicted": ("joins a row that it evicts", TWO_ROWS, step(evict=(1,), join=(Join(1, 0),))),
    "decode-empty": ("decodes a group without rows", READ_ONE, step(work=Decode(0))),
    "decode-left": ("decodes what it empties", TWO_ROWS, step(evict=(1, 2), work=Decode(0))),
    "prefill-unknown": ("reads a row that is not there", READ_ONE, step(work=Prefill(2, 0, 1))),
    "prefill-joined": ("reads a row that is in a group", TWO_ROWS, step(work=Prefill(1, 7, 1))),
    "prefill-gap": ("leaves a gap", READ_ONE, step(work=Prefill(1, 6, 1))),
    "prefill-again": ("reads tokens again", READ_ONE, step(work=Prefill(1, 4, 1))),
    "prefill-joined-new": (
        "reads a row that is in a group, as if it were new",
        TWO_ROWS,
        step(work=Prefill(1, 0, 1)),
    ),
    "prefill-gap-closed": ("leaves a gap", READ_ONE, step(work=Prefill(1, 6, 1))),
    "prefill-again-added": ("reads tokens again", READ_ONE, step(work=Prefill(1, 4, 1))),
    "prefill-long": (
        "makes a row longer than 2^32 - 1",
        COURSES["longest"][1],
        step(work=Prefill(1, 2**32 - 1, 1)),
    ),
    "decode-ahead-long": (
        "makes a row longer than 2^32 - 1, by a guess that it reads ahead",
        (COURSES["longest-decoded"][1][0],),
        step(join=(Join(1, 0),), work=Decode(0, 1, 1)),
    ),
    "decode-long": (
        "makes a row longer than 2^32 - 1, by a decode",
        COURSES["longest"][1],
        step(join=(Join(1, 0),), work=Decode(0)),
    ),
    "evict-private-stays": ("evicts a row that is in no group", READ_ONE, step(evict=(1,))),
    "back-unknown": ("takes back of a row that is not there", READ_ONE, step(back=BACK_2)),
    "back-private": ("takes back of a row that is in no group", READ_ONE, step(back=BACK_1)),
    "back-none": ("takes back no token", GUESSED, step(back=(TakeBack(1, 0),))),
    "back-sure": ("takes back a token that was drawn", ONE_ROW, step(back=BACK_1)),
    "back-more": (
        "takes back more than the guesses",
        GUESSED,
        step(back=(TakeBack(1, 3),), work=Decode(0)),
    ),
    "back-again": (
        "takes back the guesses, and one token more",
        GUESSED,
        step(back=(TakeBack(1, 2), TakeBack(1, 1)), work=Decode(0)),
    ),
    "back-right": (
        "takes back a guess that was right",
        (*GUESSED, (step(work=Decode(0, 1)), alone(9, 1))),
        step(back=(TakeBack(1, 2),), work=Decode(0)),
    ),
    "back-drawn": (
        "takes back a token that followed guesses",
        (*GUESSED, (step(work=Decode(0)), alone(9))),
        step(back=BACK_1),
    ),
    "back-joined": (
        "takes back guesses of before another row came",
        COURSES["guess-joined"][1],
        step(back=BACK_1),
    ),
    "back-evicted": (
        "takes back guesses of before the row left",
        COURSES["guess-evicted"][1],
        step(back=BACK_1),
    ),
    "back-itself": (
        "takes back the guess that it reads itself",
        ONE_ROW,
        step(back=BACK_1, work=Decode(0, 1)),
    ),
    "guess-ahead-two": ("two rows read ahead", TWO_ROWS, step(work=Decode(0, 2, 2))),
    "guess-ahead-back-more": (
        "takes back more than was read ahead",
        COURSES["guess-ahead-after"][1],
        step(back=(TakeBack(1, 4),)),
    ),
    "guess-two": ("decodes two rows on a guess", TWO_ROWS, step(work=Decode(0, 1))),
    "guess-two-each": ("decodes two rows on a guess", TWO_ROWS, step(work=Decode(0, 1))),
    "guess-leap": ("a second guess before the first", ONE_ROW, step(work=Decode(0, 2))),
    "guess-leap-on": ("a fourth guess before the third", GUESSED, step(work=Decode(0, 4))),
    "guess-leap-both": (
        "begins with a guess and reads two ahead, which makes four",
        ONE_ROW,
        step(work=Decode(0, 4, 2)),
    ),
    "guess-leap-both-on": (
        "begins with a guess and reads two ahead, which makes six after two",
        GUESSED,
        step(work=Decode(0, 6, 2)),
    ),
    "guess-both-two": (
        "two rows begin with a guess and read one ahead",
        TWO_ROWS,
        step(work=Decode(0, 2, 1)),
    ),
    "guess-leap-back": (
        "counts guesses that it has taken back",
        GUESSED,
        step(back=BACK_1, work=Decode(0, 3)),
    ),
    "guess-leap-new": (
        "counts the guesses of the row that was there before",
        GUESSED,
        step(evict=(1,), open=(Open(2),), join=(Join(2, 0),), work=Decode(0, 3)),
    ),
}


_GROUP: Final[dict[int, Rows]] = {0: ((1, 7), (2, 1))}
_OPEN: Final = {90: 5, 91: 7}
KEPT: Final[dict[str, tuple[str, dict[int, int], Course]]] = {
    "kept": (
        "two caches of the epoch before",
        _OPEN,
        ((step(), state({}, {}, _OPEN)), (step(drop=(91,)), state({}, {}, {90: 5}))),
    ),
    "kept-over": (
        "a row takes its own cache over, reads on and joins",
        _OPEN,
        (
            (step(open=(Open(90, 90, 5),), work=Prefill(90, 5, 2)), state({90: 7}, {}, {91: 7})),
            (
                step(join=(Join(90, 0),), work=Decode(0)),
                state({}, {0: ((90, 8),)}, {91: 7}),
            ),
        ),
    ),
    "kept-from": (
        "a row is opened from a part of another's cache, which stays",
        _OPEN,
        ((step(open=(Open(1, 91, 3),)), state({1: 3}, {}, _OPEN)),),
    ),
    "saved-over": (
        "a snapshot of this epoch is taken over",
        {},
        (*SAVED, (step(drop=(1,), open=(Open(90, 90, 5),)), state({90: 5}))),
    ),
}
"""Courses of an epoch that begins with kept caches."""

NOT_KEPT: Final[dict[str, tuple[str, dict[str, Any], LedgerState]]] = {
    "over-part": (
        "takes a part of a cache over",
        step(open=(Open(90, 90, 4),)),
        state({90: 4}, {}, {91: 7}),
    ),
    "over-more": (
        "takes more over than was kept",
        step(open=(Open(90, 90, 6),)),
        state({90: 6}, {}, {91: 7}),
    ),
    "over-none": (
        "takes nothing over of what was kept",
        step(open=(Open(90, 90, 0),)),
        state({90: 0}, {}, {91: 7}),
    ),
    "open-kept": (
        "opens a row anew with the number of a cache that was kept",
        step(open=(Open(90),)),
        state({90: 0}, {}, _OPEN),
    ),
}
"""Steps that `_OPEN` refuses, and what a careless ledger would hold after them."""

CARELESS: Final[dict[str, LedgerState]] = {
    "save-unknown": state({1: 5}, {}, {90: 0}),
    "save-zero": state({1: 5}, {}, {0: 5}),
    "save-taken": state({1: 5}, {}, {90: 5}),
    "save-as-uid": state({1: 5}, {}, {1: 5}),
    "evict-unknown": state({1: 5}),
    "evict-private": state({}),
    "evict-twice": state({}, {0: ((2, 1),)}),
    "drop-unknown": state({1: 5}),
    "drop-joined": state({}, _GROUP),
    "drop-twice": state({}),
    "open-zero": state({1: 5, 0: 0}),
    "open-taken": state({1: 0}),
    "open-joined": state({1: 0}, _GROUP),
    "open-handle": state({1: 5, 90: 0}, {}, {90: 5}),
    "open-unknown": state({1: 5, 2: 1}, {}, {90: 5}),
    "open-keep-0": state({1: 5, 2: 0}, {}, {90: 5}),
    "open-keep": state({1: 5, 2: 6}, {}, {90: 5}),
    "open-keep-none": state({1: 5, 2: 1}),
    "open-row": state({1: 5, 2: 1}),
    "join-unknown": state({1: 5}, {0: ((2, 0),)}),
    "join-twice": state({}, {0: ((1, 5),), 1: ((1, 0),)}),
    "join-evicted": state({}, {0: ((2, 1), (1, 0))}),
    "decode-empty": state({1: 5}),
    "decode-left": state(),
    "prefill-unknown": state({1: 5, 2: 1}),
    "prefill-joined": state({}, {0: ((1, 8), (2, 1))}),
    "prefill-joined-new": state({1: 1}, _GROUP),
    "prefill-gap": state({1: 7}),
    "prefill-gap-closed": state({1: 6}),
    "prefill-again": state({1: 5}),
    "prefill-again-added": state({1: 6}),
    "prefill-long": state({1: 0}),
    "decode-long": state({}, {0: ((1, 0),)}),
    "decode-ahead-long": state({}, {0: ((1, 0),)}, {}, {1: 1}),
    "evict-private-stays": state({1: 5}),
    "back-unknown": state({1: 5}),
    "back-private": state({1: 4}),
    "back-none": alone(8, 2),
    "back-sure": alone(5),
    "back-more": alone(6),
    "back-again": alone(6),
    "back-right": alone(8),
    "back-drawn": alone(8),
    "back-joined": state({}, {0: ((1, 7), (2, 0))}),
    "back-evicted": alone(2),
    "back-itself": alone(6, 1),
    "guess-ahead-two": state({}, {0: ((1, 10), (2, 4))}, {}, {1: 2}),
    "guess-ahead-back-more": alone(8),
    "guess-two": state({}, {0: ((1, 8), (2, 2))}, {}, {1: 1}),
    "guess-two-each": state({}, {0: ((1, 8), (2, 2))}, {}, {1: 1, 2: 1}),
    "guess-leap": alone(7, 2),
    "guess-leap-on": alone(9, 4),
    "guess-leap-both": alone(9, 4),
    "guess-leap-both-on": alone(11, 6),
    "guess-both-two": state({}, {0: ((1, 9), (2, 3))}, {}, {1: 2}),
    "guess-leap-back": alone(8, 3),
    "guess-leap-new": state({}, {0: ((2, 1),)}, {}, {2: 3}),
}
"""What a ledger would hold that takes the faulty step all the same: its digest is the step's, so
that nothing but the check itself refuses it. What is not there counts as of length 0, and a length
that passes 32 bits begins again at 0, as in a language whose maps and integers do so. A step that
careless ledgers take in two ways has two vectors."""


def _input(course: Course, kept: Mapping[int, int] | None = None) -> Json:
    return {
        "kept": [
            {"number": u64(number), "length": length} for number, length in (kept or {}).items()
        ],
        "steps": [_step(n, what, after) for n, (what, after) in enumerate(course, 1)],
    }


def _step(n: int, what: dict[str, Any], after: LedgerState) -> str:
    return flat(Step(EPOCH, n, after.digest(n), **what)).hex()


def _output(course: Course) -> Json:
    digests = [after.digest(n).hex() for n, (_, after) in enumerate(course, 1)]
    last = course[-1][1]
    return {
        "digests": digests,
        "private": {u64(uid): length for uid, length in last.private.items()},
        "snapshots": {u64(handle): length for handle, length in last.snapshots.items()},
        "groups": {
            str(group): [_row(last, uid, length) for uid, length in rows]
            for group, rows in last.groups.items()
        },
    }


def _row(after: LedgerState, uid: int, length: int) -> Json:
    return {"uid": u64(uid), "length": length, "guessed": after.guessed.get(uid, 0)}


def vectors() -> Iterator[Vector]:
    """Courses of steps; in a faulty one the last step is refused."""
    for name, (about, course) in COURSES.items():
        ids = "LG-01 LG-02 LG-04" if name in GUESSES else "LG-01 LG-02"
        yield valid(f"ledger/{name}", "ledger", ids, about, _input(course), _output(course))
    for name, (about, course, bad) in FAULTS.items():
        given, output = _input(course), _output(course)
        given["steps"].append(_step(len(course) + 1, bad, CARELESS[name]))
        ids = "LG-01 LG-04" if name.startswith(("back-", "guess-")) else "LG-01"
        yield refused(f"ledger/{name}", "ledger", ids, about, given, LEDGER, output=output)
    for name, (about, kept, course) in KEPT.items():
        given = _input(course, kept)
        yield valid(f"ledger/{name}", "ledger", "LG-01 LG-02 LG-06", about, given, _output(course))
    for name, (about, bad, careless) in NOT_KEPT.items():
        given, output = _input((), _OPEN), _output(((step(), state({}, {}, _OPEN)),))
        given["steps"].append(_step(1, bad, careless))
        output["digests"] = []
        yield refused(
            f"ledger/{name}", "ledger", "LG-01 LG-06", about, given, LEDGER, output=output
        )
    course = TWO_ROWS
    given = _input(course[:-1])
    last = Step(EPOCH, len(course), course[-1][1].digest(len(course) + 1), **course[-1][0])
    given["steps"].append(flat(last).hex())
    about = "the digest of another step"
    output = _output(course[:-1])
    yield refused("ledger/digest", "ledger", "LG-01", about, given, LEDGER, output=output)
    for name, about, scored in (
        ("scored", "a scored prefill, and the digest of one that is not", True),
        ("not-scored", "a prefill, and the digest of one that is scored", False),
    ):
        given, after = _input(READ_ONE), state({1: 6}, scored=0 if scored else 1)
        given["steps"].append(_step(3, step(work=Prefill(1, 5, 1, scored)), after))
        output = _output(READ_ONE)
        yield refused(f"ledger/{name}", "ledger", "LG-01", about, given, LEDGER, output=output)
