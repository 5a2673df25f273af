"""The ledger: what each step does, what it refuses, and digests that tell ranks apart."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.codec.messages import NO_WORK, Decode, Epoch, Join, Open, Prefill, Save, Step
from sealring_protocol.control.epoch.ledger import Change, Ledger, Regroup, Saved
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


def test_a_row_from_open_to_evict():
    rows = ledger(OPENED)
    rows.apply(step(work=Prefill(1, 0, 5)))
    assert rows.private == {1: 5, 2: 0, 3: 0}
    change = rows.apply(step(join=(Join(1, 4), Join(3, 4)), work=Decode(4)))
    assert change.regroup == {4: Regroup(0, (), (1, 3))}
    assert rows.rows(4) == (1, 3)
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
    assert rows.rows(0) == (1, 3, 5, 4)


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


REFUSED = {
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
