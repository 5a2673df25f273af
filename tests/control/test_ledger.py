"""The ledger: what each step does, what it refuses, and digests that tell ranks apart."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.codec.messages import (
    NO_WORK,
    Decode,
    Epoch,
    Join,
    Open,
    Prefill,
    Save,
    Step,
    TakeBack,
)
from sealring_protocol.control.epoch.ledger import Change, Ledger, Regroup, Saved, TakenBack
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_TOKENS

EPOCH = Epoch(1, 1)


def step(n=1, **fields):
    return Step(EPOCH, n, bytes(16), **fields)


def ledger(*steps):
    made = Ledger()
    for each in steps:
        made.apply(each)
    return made


OPENED = step(open=(Open(1), Open(2), Open(3)))
JOINED = step(join=(Join(1, 0), Join(2, 0), Join(3, 0)))
ALONE = step(join=(Join(1, 0),), work=Decode(0))
GUESSED = [OPENED, ALONE, step(work=Decode(0, 1)), step(work=Decode(0, 2))]
"""Row 1 is alone in its group, and the last two of its three tokens are guesses."""


def back(*entries):
    return tuple(TakeBack(uid, count) for uid, count in entries)


def test_a_row_from_open_to_evict():
    rows = ledger(OPENED)
    rows.apply(step(work=Prefill(1, 0, 5)))
    assert rows.private == {1: 5, 2: 0, 3: 0}
    change = rows.apply(step(join=(Join(1, 4), Join(3, 4)), work=Decode(4)))
    assert change.regroup == {4: Regroup(0, (), (1, 3))}
    assert rows.groups[4] == (1, 3)
    assert (rows.length(1), rows.length(3), rows.length(2)) == (6, 1, 0)
    assert rows.holds(1)
    assert not rows.holds(9)
    change = rows.apply(step(evict=(1,), drop=(2,), work=Decode(4)))
    assert change == Change(dropped_rows=(2,), regroup={4: Regroup(2, (1,), ())})
    rows.apply(step(evict=(3,)))
    assert rows.empty
    assert rows.groups == {}


def test_survivors_keep_their_order_and_joiners_come_after_them():
    rows = ledger(OPENED, JOINED, step(open=(Open(4), Open(5))))
    change = rows.apply(step(evict=(2,), join=(Join(5, 0), Join(4, 0))))
    assert change.regroup == {0: Regroup(3, (0, 2), (5, 4))}
    assert rows.groups[0] == (1, 3, 5, 4)


def test_a_row_that_leaves_and_comes_back_in_one_step_is_a_joiner():
    rows = ledger(OPENED, JOINED)
    change = rows.apply(step(evict=(2,), open=(Open(2),), join=(Join(2, 0),)))
    assert change.regroup == {0: Regroup(3, (0, 2), (2,))}
    assert rows.length(2) == 0


def test_a_row_that_comes_back_into_another_group_has_left_the_first():
    rows = ledger(OPENED, JOINED)
    change = rows.apply(step(evict=(2,), open=(Open(2),), join=(Join(2, 5),)))
    assert change.regroup == {0: Regroup(3, (0, 2), ()), 5: Regroup(0, (), (2,))}


def test_snapshots_are_saved_reused_and_dropped():
    rows = ledger(OPENED, step(work=Prefill(1, 0, 8)))
    change = rows.apply(step(save=(Save(1, 90),), drop=(1,), open=(Open(4, 90, 5),)))
    assert change.saved == (Saved(1, 90, 8),)
    assert rows.snaps == {90: 8}
    assert rows.private == {2: 0, 3: 0, 4: 5}
    change = rows.apply(step(drop=(90,)))
    assert change.dropped_snaps == (90,)
    assert rows.snaps == {}


def test_a_row_in_a_group_is_saved_before_it_leaves():
    rows = ledger(OPENED, JOINED, step(work=Decode(0)))
    change = rows.apply(step(save=(Save(3, 90),), evict=(3,)))
    assert change.saved == (Saved(3, 90, 1, group=0, index=2),)
    assert change.regroup == {0: Regroup(3, (0, 1), ())}
    assert rows.snaps == {90: 1}


def test_a_step_that_changes_nothing_says_so():
    rows = ledger(OPENED, JOINED)
    assert rows.apply(step(work=Decode(0))) == Change()
    assert rows.apply(step(work=NO_WORK)) == Change()


CHANGED_GUESSES = {
    "none": (step(), 3, 2),
    "drawn": (step(work=Decode(0)), 4, 0),
    "first-right": (step(work=Decode(0, 2)), 4, 2),
    "first-known-before": (step(work=Decode(0, 1)), 4, 1),
    "one-more": (step(work=Decode(0, 3)), 4, 3),
    "several-more": (step(work=Decode(0, 5, 2)), 6, 5),
    "several-right": (step(work=Decode(0, 3, 2)), 6, 3),
    "several-after-drawn": (step(work=Decode(0, 2, 2)), 6, 2),
    "back-one": (step(back=back((1, 1))), 2, 1),
    "back-all": (step(back=back((1, 2))), 1, 0),
    "back-twice": (step(back=back((1, 1), (1, 1))), 1, 0),
    "back-and-drawn": (step(back=back((1, 2)), work=Decode(0)), 2, 0),
    "back-and-another": (step(back=back((1, 1)), work=Decode(0, 2)), 3, 2),
    "saved": (step(save=(Save(1, 90),)), 3, 2),
    "joined": (step(join=(Join(2, 0),)), 3, 0),
    "joined-elsewhere": (step(join=(Join(2, 1),), work=Decode(1)), 3, 2),
    "guessed-elsewhere": (step(join=(Join(2, 1),), work=Decode(1, 1)), 3, 2),
    "left-and-back": (step(evict=(1,), open=(Open(1),), join=(Join(1, 0),)), 0, 0),
    "left": (step(evict=(1,), open=(Open(1),)), 0, 0),
    "prefill": (step(work=Prefill(2, 0, 5)), 3, 2),
}


@pytest.mark.parametrize("name", CHANGED_GUESSES)
def test_a_step_changes_length_and_guesses(name):
    last, length, guessed = CHANGED_GUESSES[name]
    rows = ledger(*GUESSED, last)
    assert (rows.length(1), rows.guessed(1)) == (length, guessed)


def test_what_is_taken_back_is_told():
    rows = ledger(*GUESSED)
    change = rows.apply(step(back=back((1, 1), (1, 1)), save=(Save(1, 90),), evict=(1,)))
    assert change == Change(
        taken_back=(TakenBack(1, 0, 1, 2), TakenBack(1, 0, 1, 1)),
        saved=(Saved(1, 90, 1, group=0, index=0),),
        regroup={0: Regroup(1, (), ())},
    )
    assert rows.snaps == {90: 1}
    assert rows.guessed(1) == 0


def test_a_row_that_comes_anew_has_no_guesses():
    rows = ledger(*GUESSED, step(evict=(1,)), step(open=(Open(1),), join=(Join(1, 0),)))
    assert rows.guessed(1) == 0
    with pytest.raises(RemoteProtocolError):
        rows.apply(step(work=Decode(0, 2)))


REFUSED = {
    "back-unknown": [*GUESSED, step(back=back((9, 1)))],
    "back-private": [*GUESSED, step(back=back((2, 1)))],
    "back-nothing": [*GUESSED, step(back=back((1, 0)))],
    "back-too-much": [*GUESSED, step(back=back((1, 3)))],
    "back-again": [*GUESSED, step(back=back((1, 2))), step(back=back((1, 1)))],
    "back-too-often": [*GUESSED, step(back=back((1, 2), (1, 1)))],
    "back-drawn": [OPENED, ALONE, step(back=back((1, 1)))],
    "back-right": [*GUESSED, step(work=Decode(0)), step(back=back((1, 1)))],
    "back-joined": [*GUESSED, step(join=(Join(2, 0),)), step(back=back((1, 1)))],
    "back-left": [*GUESSED, step(evict=(1,)), step(back=back((1, 1)))],
    "back-itself": [OPENED, ALONE, step(back=back((1, 1)), work=Decode(0, 1))],
    "guess-leap": [OPENED, ALONE, step(work=Decode(0, 2))],
    "guess-leap-on": [*GUESSED, step(work=Decode(0, 4))],
    "guess-leap-both": [*GUESSED, step(work=Decode(0, 6, 2))],
    "guess-leap-back": [*GUESSED, step(back=back((1, 1)), work=Decode(0, 3))],
    "guess-leap-joined": [*GUESSED, step(evict=(1,), join=(Join(2, 0),), work=Decode(0, 2))],
    "guess-two": [OPENED, JOINED, step(work=Decode(0, 1))],
    "guess-joined": [*GUESSED, step(join=(Join(2, 0),), work=Decode(0, 1))],
    "guess-empty": [step(work=Decode(0, 1))],
    "open-twice": [OPENED, step(open=(Open(1),))],
    "open-zero": [step(open=(Open(0),))],
    "open-in-group": [OPENED, JOINED, step(open=(Open(1),))],
    "open-as-handle": [OPENED, step(save=(Save(1, 9),)), step(open=(Open(9),))],
    "open-no-handle": [step(open=(Open(1, 7, 1),))],
    "open-too-much": [
        OPENED,
        step(work=Prefill(1, 0, 3)),
        step(save=(Save(1, 9),)),
        step(open=(Open(8, 9, 4),)),
    ],
    "open-nothing": [OPENED, step(save=(Save(1, 9),)), step(open=(Open(8, 9, 0),))],
    "keep-of-nothing": [step(open=(Open(1, 0, 3),))],
    "join-unknown": [step(join=(Join(1, 0),))],
    "join-twice": [OPENED, step(join=(Join(1, 0), Join(1, 1)))],
    "evict-unknown": [step(evict=(1,))],
    "evict-private": [OPENED, step(evict=(1,))],
    "drop-unknown": [step(drop=(1,))],
    "drop-in-group": [OPENED, JOINED, step(drop=(1,))],
    "save-unknown": [step(save=(Save(1, 9),))],
    "save-taken": [OPENED, step(save=(Save(1, 2),))],
    "save-zero": [OPENED, step(save=(Save(1, 0),))],
    "decode-empty": [step(work=Decode(0))],
    "decode-emptied": [OPENED, JOINED, step(evict=(1, 2, 3), work=Decode(0))],
    "prefill-unknown": [step(work=Prefill(1, 0, 1))],
    "prefill-gap": [OPENED, step(work=Prefill(1, 1, 1))],
    "prefill-again": [OPENED, step(work=Prefill(1, 0, 2)), step(work=Prefill(1, 0, 2))],
    "prefill-joined": [OPENED, JOINED, step(work=Prefill(1, 0, 1))],
    "prefill-endless": [
        OPENED,
        step(work=Prefill(1, 0, MAX_TOKENS)),
        step(work=Prefill(1, MAX_TOKENS, 1)),
    ],
    "decode-endless": [
        OPENED,
        step(work=Prefill(1, 0, MAX_TOKENS)),
        step(join=(Join(1, 0),), work=Decode(0)),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_does_not_fit_is_refused(name):
    *before, last = REFUSED[name]
    rows = ledger(*before)
    with pytest.raises(RemoteProtocolError):
        rows.apply(last)


DIFFERENT = {
    "length": step(work=Prefill(1, 0, 2)),
    "longer": step(work=Prefill(1, 0, 3)),
    "other-row": step(work=Prefill(2, 0, 2)),
    "open": step(open=(Open(4),)),
    "drop": step(drop=(3,)),
    "join": step(join=(Join(1, 0), Join(2, 0))),
    "join-reversed": step(join=(Join(2, 0), Join(1, 0))),
    "join-elsewhere": step(join=(Join(1, 1), Join(2, 1))),
    "join-apart": step(join=(Join(1, 0), Join(2, 1))),
    "save": step(save=(Save(1, 9),)),
    "save-other": step(save=(Save(1, 8),)),
    "nothing": step(),
}


def test_every_difference_shows_in_the_digest():
    digests = {name: ledger(OPENED, each).digest(1) for name, each in DIFFERENT.items()}
    assert len(set(digests.values())) == len(DIFFERENT)
    assert ledger(OPENED).digest(1) != ledger(OPENED).digest(2)
    assert all(len(digest) == 16 for digest in digests.values())


def test_guesses_show_in_the_digest():
    sure = ledger(OPENED, ALONE, step(work=Decode(0)), step(work=Decode(0)))
    one = ledger(OPENED, ALONE, step(work=Decode(0)), step(work=Decode(0, 1)))
    two = ledger(*GUESSED)
    assert {each.length(1) for each in (sure, one, two)} == {3}
    assert len({each.digest(1) for each in (sure, one, two)}) == 3


def random_step(random, rows, numbers):
    private, grouped = list(rows.private), [u for g in rows.groups.values() for u in g]
    fields = {}
    if random.random() < 0.5:
        fields["open"] = tuple(Open(next(numbers)) for _ in range(random.randrange(3)))
    if grouped and random.random() < 0.4:
        fields["evict"] = tuple(random.sample(grouped, random.randrange(1, len(grouped) + 1)))
    if private and random.random() < 0.4:
        chosen = random.sample(private, random.randrange(1, len(private) + 1))
        half = len(chosen) // 2
        fields["drop"] = tuple(chosen[:half])
        fields["join"] = tuple(Join(uid, random.randrange(3)) for uid in chosen[half:])
    return step(**fields)


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_the_change_is_enough_to_follow_the_groups(seed):
    """An engine that knows only the changes has the same rows in the same order."""
    random = Random(seed)
    rows, numbers = Ledger(), iter(range(1, 10**6))
    groups = {}
    for _ in range(40):
        change = rows.apply(random_step(random, rows, numbers))
        for group, regroup in change.regroup.items():
            before = groups.pop(group, [])
            assert len(before) == regroup.before
            after = [before[i] for i in regroup.kept] + list(regroup.joined)
            if after:
                groups[group] = after
        assert {g: list(uids) for g, uids in rows.groups.items()} == groups
