"""What an epoch that a broken link has ended leaves for the next: caches that all ranks have."""

from __future__ import annotations

import attrs
import pytest
from sealring_protocol.codec.messages import Decode, KeptCache, Open, Row
from sealring_protocol.control.scheduler import running_rows

from tests.control.test_residents import EPOCH, Ring, rank

PROMPT = tuple(range(100, 140))


def next_epoch(ring: Ring, *ranks, kept=None) -> tuple[KeptCache, ...]:
    """The epoch is over, and another begins, by default with all that can be *kept*."""
    ring.scheduler.abandon()
    kept = ring.scheduler.kept if kept is None else kept
    ring.scheduler.begin(attrs.evolve(EPOCH, counter=2), ranks, kept)
    return kept


def decoding(*ranks, tokens=3, prompt=PROMPT, **config) -> tuple[Ring, int]:
    """A ring with one row that has so many *tokens*."""
    ring = Ring(*ranks, **config)
    uid = ring.submit(prompt, 50)
    while len(ring.tokens(uid)) < tokens:
        ring.step()
    return ring, uid


def test_a_row_goes_on_where_all_ranks_have_it():
    ring, uid = decoding()
    assert next_epoch(ring) == (KeptCache(uid, 42),)
    step = ring.step()
    assert step.open == (Open(uid, uid, 42),)
    assert [join.uid for join in step.join] == [uid]
    assert isinstance(step.work, Decode)
    assert step.ids == (7,)
    ring.run()
    assert ring.tokens(uid) == [7] * 50


def test_a_step_that_has_not_come_back_counts_as_not_done():
    ring, uid = decoding()
    ring.scheduler.plan(0.0)
    assert next_epoch(ring) == (KeptCache(uid, 42),)


def test_nor_does_one_that_has_but_whose_tokens_are_not_known():
    ring, uid = decoding()
    step = ring.scheduler.plan(0.0).step
    ring.scheduler.returned(step.n)
    assert next_epoch(ring) == (KeptCache(uid, 42),)


def test_a_prompt_is_read_on_where_all_ranks_have_it():
    ring = Ring(chunk=10)
    uid = ring.submit(PROMPT)
    ring.step()
    ring.step()
    ring.scheduler.plan(0.0)
    assert next_epoch(ring) == (KeptCache(uid, 20),)
    step = ring.step()
    assert step.open == (Open(uid, uid, 20),)
    assert step.work.position == 20


def test_a_row_that_has_hardly_begun_is_not_kept():
    ring = Ring(chunk=10)
    ring.submit(PROMPT)
    ring.step()
    assert next_epoch(ring) == ()
    assert ring.step().work.position == 0


def test_a_row_whose_opening_has_not_come_back_is_not_kept():
    ring, uid = decoding(prefixes=4)
    ring.scheduler.finish(uid)
    ring.step()
    (handle,) = ring.scheduler.ledger.snaps
    ring.submit((*PROMPT, 7, 7, 1, 2))
    ring.scheduler.plan(0.0)
    assert next_epoch(ring) == (KeptCache(handle, 42),)


def test_a_row_taken_over_by_a_step_that_has_not_come_back_still_is():
    ring, uid = decoding()
    kept = next_epoch(ring)
    ring.scheduler.plan(0.0)
    assert next_epoch(ring) == kept == (KeptCache(uid, 42),)


def test_a_row_that_is_over_before_the_next_epoch_is_dropped_by_its_first_step():
    ring, uid = decoding()
    ring.scheduler.abandon()
    kept = ring.scheduler.kept
    ring.outcomes += ring.scheduler.cancel(uid)
    next_epoch(ring, kept=kept)
    assert ring.step().drop == (uid,)
    assert ring.scheduler.ledger.empty


def test_a_row_that_is_over_before_it_is_taken_over_is_dropped():
    ring, uid = decoding()
    next_epoch(ring)
    ring.scheduler.cancel(uid)
    step = ring.step()
    assert (step.open, step.drop) == ((), (uid,))
    assert ring.scheduler.ledger.empty


def test_where_nothing_is_kept_all_is_read_again():
    ring, uid = decoding(prefixes=4)
    next_epoch(ring, kept=())
    step = ring.step()
    assert step.open == (Open(uid),)
    assert ring.scheduler.snapshots == 0
    ring.run()
    assert ring.tokens(uid) == [7] * 50


def test_snapshots_are_kept_and_serve_on():
    ring, uid = decoding(prefixes=4)
    ring.scheduler.finish(uid)
    ring.step()
    ((handle, length),) = ring.scheduler.ledger.snaps.items()
    assert next_epoch(ring) == (KeptCache(handle, length),)
    ring.submit((*PROMPT, 7, 7, 1, 2))
    assert ring.step().open[0].handle == handle


def test_of_a_snapshot_what_the_head_has_no_token_of_is_given_up():
    """The last token is on its way when the row leaves; it may not be drawn again so."""
    ring = Ring(prefixes=4)
    ring.scheduler.shape(1, 2)
    ring.submit(PROMPT, 3)
    ring.step()
    first, second = ring.scheduler.plan(0.0).step, ring.scheduler.plan(0.0).step
    ring.scheduler.answered(first.n, (7,), 0.0)
    third, last = ring.scheduler.plan(0.0).step, ring.scheduler.plan(0.0).step
    for step in (second, third, last):
        ring.scheduler.returned(step.n)
    (handle,) = ring.scheduler.ledger.snaps
    assert ring.scheduler.ledger.snaps[handle] == len(PROMPT) + 2
    assert next_epoch(ring) == (KeptCache(handle, len(PROMPT) + 1),)


@pytest.mark.parametrize("flying", [False, True])
def test_a_cache_that_cannot_be_cut_has_to_be_as_long_everywhere(flying):
    ring, uid = decoding(rank(trimmable=False))
    if flying:
        ring.scheduler.plan(0.0)
    assert next_epoch(ring, rank(trimmable=False)) == (() if flying else (KeptCache(uid, 42),))


@pytest.mark.parametrize("trimmable", [False, True])
def test_one_of_which_a_guess_is_being_taken_back_is_not_as_long_everywhere(trimmable):
    ring, uid = decoding(rank(trimmable=trimmable))
    ring.scheduler.shape(1, 1, 2, guesses=True)
    while len(ring.tokens(uid)) < 12:
        ring.step()
    ring.scheduler.guess(uid, 52, (8,))
    first, guess = [ring.scheduler.plan(0.0).step for _ in range(2)]
    assert guess.work == Decode(0, 1, 0)
    ring.outcomes += ring.scheduler.answered(first.n, (7,), 0.0)
    assert ring.scheduler.decided() == [(guess.n, False)]
    ring.scheduler.answered(guess.n, (), 0.0)
    ring.submit(PROMPT)
    back = ring.scheduler.plan(0.0).step
    assert back.back
    assert back.work.uid != uid
    kept = next_epoch(ring, rank(trimmable=trimmable))
    assert kept == ((KeptCache(uid, 52),) if trimmable else ())


def test_what_is_kept_gives_way_to_rows_that_need_its_room():
    ring = Ring(rank(1000), rows=4)
    uids = [ring.submit(PROMPT, 10) for _ in range(2)]
    while min(len(ring.tokens(uid)) for uid in uids) < 2:
        ring.step()
    kept = next_epoch(ring, rank(160))
    assert [each.number for each in kept] == uids
    steps = ring.run()
    assert uids[1] in steps[0].drop
    assert steps[0].open == (Open(uids[0], uids[0], kept[0].length),)
    for uid in uids:
        assert ring.tokens(uid) == [7] * 10


def test_room_is_counted_once_for_a_row_that_takes_its_own_over():
    ring, uid = decoding(rank(260))
    next_epoch(ring, rank(260))
    assert ring.step().open == (Open(uid, uid, 42),)


def test_the_followers_of_a_row_that_is_taken_over_are_not_made_to_read_alone():
    ring = Ring(chunk=10, prefixes=4)
    first = ring.submit(PROMPT)
    ring.step()
    ring.step()
    second = ring.submit(PROMPT)
    next_epoch(ring)
    opened = [each for step in ring.run() for each in step.open]
    assert opened[0] == Open(first, first, 20)
    assert opened[1].uid == second
    assert opened[1].keep == len(PROMPT) - 1


def test_no_more_are_kept_than_an_order_can_say(monkeypatch):
    monkeypatch.setattr(running_rows, "MAX_KEPT", 1)
    ring = Ring(chunk=100)
    uids = [ring.submit((*PROMPT, at), 50) for at in range(2)]
    while min(len(ring.tokens(uid)) for uid in uids) < 2:
        ring.step()
    (kept,) = next_epoch(ring)
    assert kept.number == uids[0]
    ring.run()
    assert [ring.tokens(uid) for uid in uids] == [[7] * 50] * 2


@pytest.fixture
def opened(monkeypatch):
    """A ring that goes on from what was kept, and a row that is opened, but by no step yet: one
    step had no room for what both rows remember, and there is no credit for another."""
    ring = Ring(room := rank(1000), rows=4)
    ring.scheduler.shape(1, 1)
    rows = [ring.submit(PROMPT, 50, sampling=Row(0, repetition=1.5)) for _ in range(2)]
    while min(len(ring.tokens(uid)) for uid in rows) < 3:
        ring.step()
    next_epoch(ring, room)
    monkeypatch.setattr(running_rows, "MAX_IDS", 60)
    step = ring.scheduler.plan(0.0).step
    assert [each.uid for each in step.open] == rows[:1]
    assert ring.scheduler.plan(0.0) is None
    monkeypatch.undo()
    return ring, rows[1], step


def test_a_row_that_is_over_before_a_step_opens_it_leaves_nothing(opened):
    ring, uid, _ = opened
    ring.scheduler.cancel(uid)
    assert ring.scheduler.plan(0.0).step.drop == (uid,)
    assert ring.scheduler.ledger.snaps == {}


def test_a_row_that_is_interrupted_before_a_step_opens_it_goes_on_all_the_same(opened):
    ring, uid, step = opened
    ring.scheduler.preempt(uid)
    ring.outcomes += ring.scheduler.answered(step.n, (7,), 0.0)
    assert [each.handle for each in ring.step().open] == [uid]
    ring.run()
    assert ring.tokens(uid) == [7] * 50


def test_a_row_that_no_step_has_opened_is_kept_once_more(opened):
    ring, uid, _ = opened
    assert uid in [each.number for each in next_epoch(ring)]
