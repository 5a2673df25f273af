"""Who gets a place: owners in turn, as far as there is room, from the longest prefix kept."""

from __future__ import annotations

import pytest
from sealring_protocol.codec.messages import (
    CacheCost,
    Decode,
    Epoch,
    Open,
    Prefill,
    Ready,
    Row,
    Spent,
)
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.requests import (
    ContextOverflow,
    FinishReason,
    QueueFull,
    Request,
    RequestDone,
    RoomOverflow,
    SchedulerConfig,
    TokenOut,
)
from sealring_protocol.control.scheduler.scheduler import Scheduler

EPOCH = Epoch(1, 1)
LONG = tuple(range(100, 140))


def rank(room=1 << 30, *, trimmable=True):
    """A rank with room for that many tokens."""
    cost = CacheCost(0, 1)
    return Ready(EPOCH, 0, 1, trimmable, room, cost)


class Ring:
    """A scheduler whose steps are answered in order; every row's token is 7."""

    def __init__(self, *ranks, context=1000, **config):
        self.scheduler = Scheduler(SchedulerConfig(**config), context)
        self.scheduler.begin(EPOCH, ranks)
        # Chunks are fast: only `chunk` bounds them.
        self.scheduler.took(StepTiming(0, Prefill(1, 0, 4096), (), 1, (Spent(1),)))
        self.outcomes = []
        self.opened = {}

    def submit(self, prompt, count=2, owner="", **fields):
        return self.scheduler.submit(Request(tuple(prompt), count, owner=owner, **fields))

    def step(self, *tokens):
        planned = self.scheduler.plan(0.0)
        self.outcomes += self.scheduler.ended()
        if planned is None:
            return None
        step = planned.step
        self.opened |= {row.uid: row.cached for row in planned.opened}
        rows = self.scheduler.uids(step.n) if isinstance(step.work, Decode) else ()
        given = tokens or (7,) * len(rows)
        self.outcomes += self.scheduler.answered(step.n, given, 0.0)
        return step

    def run(self):
        steps = []
        while (step := self.step()) is not None:
            steps.append(step)
            assert len(steps) < 5000
        return steps

    def tokens(self, uid):
        return [o.token for o in self.outcomes if isinstance(o, TokenOut) and o.uid == uid]

    def done(self, uid):
        return [o for o in self.outcomes if isinstance(o, RequestDone) and o.uid == uid]


# ------------------------------------------------------------------ the queue


def test_owners_take_turns_whoever_came_first():
    ring = Ring(rows=1)
    greedy = [ring.submit((1, 2), owner="greedy") for _ in range(4)]
    late = ring.submit((1, 2), owner="late")
    order = [open_.uid for step in ring.run() for open_ in step.open]
    assert order == [greedy[0], late, *greedy[1:]]


def test_a_full_queue_says_how_many_wait_and_a_place_that_gets_free_is_taken():
    ring = Ring(rows=1, queue=2)
    ring.submit((1,), 50)
    ring.step()
    ring.submit((1,))
    waiting = ring.submit((1,))
    with pytest.raises(QueueFull, match="2 requests wait already") as refused:
        ring.submit((1,))
    assert refused.value.waiting == 2
    ring.scheduler.cancel(waiting)
    ring.submit((1,))


def test_one_owner_cannot_fill_the_queue_for_the_others():
    ring = Ring(rows=1, queue=4)
    ring.submit((1,), 50, owner="a")
    ring.step()
    for _ in range(4):
        ring.submit((1,), owner="a")
    with pytest.raises(QueueFull):
        ring.submit((1,), owner="a")
    ring.submit((1,), owner="b")
    ring.submit((1,), owner="b")
    with pytest.raises(QueueFull):
        ring.submit((1,), owner="b")
    ring.submit((1,), owner="c")
    ring.submit((1,), owner="d")
    with pytest.raises(QueueFull):  # twice as many as there are places
        ring.submit((1,), owner="e")


# --------------------------------------------------------------------- groups


def test_rows_are_spread_evenly_over_the_groups_that_pay():
    ring = Ring(groups=4, rows=8)
    ring.scheduler.shape(2, 1)
    for length in range(1, 9):
        ring.submit(range(length), 50)
    while ring.scheduler.ledger.private or ring.scheduler.waiting:
        ring.step()
    assert {group: len(rows) for group, rows in ring.scheduler.ledger.groups.items()} == {
        0: 4,
        1: 4,
    }


def test_a_long_row_is_kept_from_short_ones_as_long_as_that_is_cheaper():
    ring = Ring(groups=2, rows=8, context=10_000, chunk=4096)
    long = ring.submit(range(8000), 50)
    short = [ring.submit(range(20), 50) for _ in range(4)]
    while ring.scheduler.ledger.private or len(ring.scheduler.ledger.groups) < 2:
        ring.step()
    groups = ring.scheduler.ledger.groups
    assert (long,) in groups.values()
    assert sorted(short) in [sorted(rows) for rows in groups.values()]


# ----------------------------------------------------------------------- room


def test_what_can_never_fit_is_refused_with_the_numbers():
    ring = Ring(rank(), rank(800), context=1000)
    with pytest.raises(ContextOverflow) as beyond:
        ring.submit(range(990), 20)
    assert (beyond.value.prompt, beyond.value.asked, beyond.value.context) == (990, 20, 1000)
    with pytest.raises(RoomOverflow, match="600 tokens, and the tightest rank has room for 384"):
        ring.submit(range(500), 100)


def test_a_row_waits_until_there_is_room_on_the_tightest_rank():
    ring = Ring(rank(), rank(1100), rows=8)
    first, second, third = (ring.submit(range(150), 10) for _ in range(3))
    steps = ring.run()
    opened = [open_.uid for step in steps for open_ in step.open]
    assert opened == [first, second, third]
    alive = 0
    for step in steps:
        alive += len(step.open) - len(step.evict)
        assert alive <= 2
    assert [ring.done(uid)[0].reason for uid in opened] == [FinishReason.LENGTH] * 3


def test_without_max_tokens_rows_are_taken_in_and_preempted_when_room_runs_out():
    ring = Ring(rank(1600), rows=8, context=2000)
    older, younger = ring.submit(range(40), None), ring.submit(range(40), None)
    steps = ring.run()
    preempted = [step for step in steps if younger in step.evict]
    assert len(preempted) == 2  # for want of room, and at its end
    assert ring.done(older) == [RequestDone(older, FinishReason.LENGTH)]
    assert ring.done(younger) == [RequestDone(younger, FinishReason.LENGTH)]
    longest = ring.scheduler._running.room.longest
    assert len(ring.tokens(older)) == len(ring.tokens(younger)) == longest - 40
    assert not ring.scheduler.ledger.groups


def test_one_that_fits_no_more_in_a_new_epoch_ends_and_says_why():
    ring = Ring(rank(), rows=8)
    uid, small = ring.submit(range(500), 100), ring.submit(range(10), 5)
    ring.step()
    ring.scheduler.begin(Epoch(1, 2), (rank(600),))
    ring.run()
    (done,) = ring.done(uid)
    assert done.reason is FinishReason.FAILED
    assert "room for" in done.message
    assert len(ring.tokens(small)) == 5


# ------------------------------------------------------------------- prefixes


def test_a_second_turn_is_read_in_from_what_the_first_left():
    ring = Ring(rank(), prefixes=4)
    first = ring.submit(LONG, 5)
    ring.run()
    turn = (*LONG, *ring.tokens(first), 1, 2, 3)
    second = ring.submit(turn, 2)
    steps = ring.run()
    # The last of its tokens was given out and never read.
    kept = len(LONG) + 4
    assert ring.opened[second] == kept
    assert steps[0].open == (Open(second, steps[0].open[0].handle, kept),)
    assert steps[0].work == Prefill(second, kept, len(turn) - 1 - kept)


@pytest.mark.parametrize(("trimmable", "cached"), [(True, 30), (False, 0)])
def test_a_prompt_that_leaves_the_other_midway_needs_caches_that_can_be_cut(trimmable, cached):
    ring = Ring(rank(), rank(trimmable=trimmable), prefixes=4)
    ring.submit(LONG, 5)
    ring.run()
    other = ring.submit((*LONG[:30], 1, 2, 3, 4))
    ring.run()
    assert ring.opened[other] == cached


def test_where_caches_cannot_be_cut_a_prompt_is_kept_as_it_was_read():
    ring = Ring(rank(trimmable=False), prefixes=4)
    ring.submit(LONG, 5)
    ring.run()
    again = ring.submit((*LONG, 1, 2))
    ring.run()
    assert ring.opened[again] == len(LONG) - 1


def test_nothing_shows_what_another_owner_has_asked():
    ring = Ring(rank(), prefixes=4)
    ring.submit(LONG, 5, owner="alice")
    ring.run()
    same, other = ring.submit((*LONG, 1), owner="alice"), ring.submit((*LONG, 1), owner="mallory")
    ring.run()
    assert (ring.opened[same], ring.opened[other]) == (len(LONG), 0)


def test_nothing_is_shared_between_the_scopes_of_one_owner():
    ring = Ring(rank(), prefixes=4)
    ring.submit(LONG, 5, scope="one")
    at_once = ring.submit(LONG, 5, scope="two")  # does not wait for what the first one reads
    ring.run()
    same, other = ring.submit((*LONG, 1), scope="one"), ring.submit((*LONG, 1), scope="three")
    none = ring.submit((*LONG, 1))
    ring.run()
    opened = [ring.opened[uid] for uid in (at_once, same, other, none)]
    assert opened == [0, len(LONG), 0, 0]


def test_an_equal_prompt_does_not_wait_in_another_owners_queue():
    ring = Ring(rank(), prefixes=4, rows=1)
    for _ in range(5):
        ring.submit((1, 2), owner="a")
    ring.submit(LONG, owner="a")
    other = ring.submit(LONG, owner="b")
    order = [opened.uid for step in ring.run() for opened in step.open]
    assert order.index(other) == 1


def test_equal_prompts_are_read_once():
    ring = Ring(rank(), prefixes=4)
    uids = [ring.submit(LONG, 3, sampling=Row(0, choice=i)) for i in range(4)]
    steps = ring.run()
    read = sum(step.work.count for step in steps if isinstance(step.work, Prefill))
    assert read == len(LONG) - 1
    assert [ring.opened[uid] for uid in uids] == [0] + [len(LONG) - 1] * 3
    assert all(len(ring.tokens(uid)) == 3 for uid in uids)


def test_when_the_one_that_reads_for_others_is_cancelled_another_does():
    ring = Ring(rank(), prefixes=4, chunk=8)
    uids = [ring.submit(LONG, 3) for _ in range(3)]
    ring.step()
    ring.scheduler.cancel(uids[0])
    ring.run()
    assert all(len(ring.tokens(uid)) == 3 for uid in uids[1:])


def test_the_least_recently_used_goes_first_and_no_more_are_kept_than_told():
    ring = Ring(rank(), prefixes=2)
    prompts = [tuple(range(base, base + 40)) for base in (0, 100, 200)]
    ring.submit(prompts[0])
    ring.run()
    ring.submit(prompts[1])
    ring.run()
    ring.submit((*prompts[0], 5))  # used again
    ring.run()
    ring.submit(prompts[2])
    ring.run()
    assert ring.scheduler.snapshots == len(ring.scheduler.ledger.snaps) == 2
    uids = [ring.submit((*prompt, 6)) for prompt in prompts]
    ring.run()
    cached = [ring.opened[uid] > 0 for uid in uids]
    assert cached == [True, False, True]


def test_snapshots_give_way_to_rows():
    ring = Ring(rank(800), prefixes=4, prefix_share=1.0)
    ring.submit(LONG, 5)
    ring.run()
    assert ring.scheduler.snapshots == 1
    ring.submit(range(300), 60)
    steps = ring.run()
    assert any(step.drop for step in steps)


def test_a_row_in_flight_is_never_opened_from_a_snapshot_that_goes():
    """Dropped by the very step that makes room, a snapshot is found no more."""
    ring = Ring(rank(700), prefixes=4, prefix_share=1.0, rows=2)
    ring.submit(LONG, 5)
    ring.run()
    ring.submit(range(200), 60)
    follower = ring.submit((*LONG, 1), 3)
    ring.run()
    assert len(ring.tokens(follower)) == 3


def test_a_cancelled_row_leaves_no_snapshot():
    ring = Ring(rank(), prefixes=4)
    uid = ring.submit(LONG, 50)
    for _ in range(4):
        ring.step()
    ring.scheduler.cancel(uid)
    ring.run()
    assert ring.scheduler.ledger.empty


# ------------------------------------------- prefixes of caches that cannot be cut


def uncut(**config):
    return Ring(rank(config.pop("room", 1 << 30), trimmable=False), rank(), **config)


def test_a_prompt_is_kept_where_its_request_says_that_others_leave_it():
    ring = uncut(prefixes=8)
    ring.submit(LONG, 5, branches=(20, 35))
    steps = ring.run()
    reads = [step.work for step in steps if isinstance(step.work, Prefill)]
    assert [(work.position, work.count) for work in reads] == [(0, 20), (20, 15), (35, 4)]
    for kept in (20, 35):
        other = ring.submit((*LONG[:kept], 1, 2, 3, 4))
        ring.run()
        assert ring.opened[other] == kept


def test_caches_that_can_be_cut_are_read_as_ever():
    ring = Ring(rank(), prefixes=8)
    ring.submit(LONG, 5, branches=(20, 35))
    steps = ring.run()
    assert [step.work for step in steps if isinstance(step.work, Prefill)] == [Prefill(1, 0, 39)]
    assert ring.scheduler.snapshots == 1


def test_branches_that_cannot_be_are_no_matter():
    ring = uncut(prefixes=8)
    uid = ring.submit(LONG, 5, branches=(0, 3, 39, 40, 1 << 31))
    ring.run()
    assert len(ring.tokens(uid)) == 5


def test_where_a_second_prompt_leaves_the_first_a_third_begins():
    """Nobody said so before: it shows as they are compared."""
    ring = uncut(prefixes=8)
    for at, cached in ((1, 0), (2, 0), (3, 30)):
        uid = ring.submit((*LONG[:30], at, at, at, at))
        ring.run()
        assert ring.opened[uid] == cached


def test_what_two_prompts_share_outlives_what_came_of_them():
    ring = uncut(prefixes=4)
    for at in (1, 2):
        ring.submit((*LONG[:30], *[at] * 30), 9)
        ring.run()
    ring.submit([400] * 40, 2)
    ring.run()
    for at in (3, 4):
        uid = ring.submit((*LONG[:30], *[at] * 30), 9)
        ring.run()
        assert ring.opened[uid] == 30


def test_a_long_prompt_is_kept_every_few_thousand_tokens():
    ring = uncut(prefixes=16, context=100_000)
    prompt = [n % 900 for n in range(20_000)]
    ring.submit(prompt)
    ring.run()
    edited = ring.submit([*prompt[:13_000], 950, *prompt[13_001:]])
    ring.run()
    assert ring.opened[edited] == 12_288
    longer = ring.submit([n % 801 for n in range(80_000)])
    ring.run()
    assert len(ring.tokens(longer)) == 2
    assert ring.scheduler.snapshots <= 16


def agent(ring, turns, *, drops=False, owner="agent", start=500):
    """A conversation whose each turn goes on from the last one: yields the tokens that a prompt has
    in common with what was read before, and how many of them came from a snapshot. With *drops*
    thoughts within an answer are dropped in the next turn."""
    system = tuple(range(200))
    talk, before = system, []
    for turn in range(turns):
        talk = (*talk, *(start + turn for _ in range(30)))
        opening = (301, 302, 303)
        uid = ring.submit(
            (*talk, *opening),
            12,
            owner=owner,
            branches=(len(system), len(talk)),
        )
        ring.run()
        prompt = (*talk, *opening)
        common = max((shared(prompt, other) for other in before), default=0)
        yield common, ring.opened[uid]
        answer = tuple(ring.tokens(uid))
        before.append((*prompt, *answer[:-1]))
        talk = (*talk, 301, *answer[6:]) if drops else (*prompt, *answer)


def shared(one, other):
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("prefixes", [4, 16])
def test_an_agent_reads_each_turn_only_what_is_new(drops, prefixes):
    ring = uncut(prefixes=prefixes)
    for common, cached in agent(ring, 10, drops=drops):
        assert cached >= 0.9 * common


def test_a_system_prompt_stays_however_long_the_conversation():
    ring = uncut(prefixes=5)
    list(agent(ring, 10, drops=True))
    other = list(agent(ring, 1, start=800))
    assert other == [(0, 200)]


def test_what_a_conversation_has_passed_goes_before_what_others_left():
    ring = uncut(prefixes=8)
    list(agent(ring, 1, owner="first"))
    list(agent(ring, 10, owner="second"))
    again = ring.submit((*range(200), *(500 for _ in range(30)), 1, 2, 3), owner="first")
    ring.run()
    assert ring.opened[again] == 230


def test_an_answer_that_finds_no_room_leaves_its_prompt_kept():
    """The answer may come back otherwise; the prompt up to it does not."""
    ring = uncut(prefixes=8, room=1400, prefix_share=0.4)
    list(agent(ring, 1))
    again = ring.submit((*range(200), *(500 for _ in range(30)), 1, 2, 3), owner="agent")
    ring.run()
    assert ring.opened[again] == 230


def test_a_prompt_too_long_to_be_kept_drives_nothing_out():
    ring = uncut(prefixes=8, room=8000, prefix_share=0.1, context=2000)
    ring.submit(LONG, 5, branches=(20, 35))
    ring.run()
    ring.submit(range(1000), 5)
    ring.submit(range(400, 1300), 5)
    ring.run()
    again = ring.submit((*LONG[:35], 1, 2))
    ring.run()
    assert ring.opened[again] == 35


def test_what_ends_close_before_a_branch_stands_for_it():
    ring = uncut(prefixes=6)
    for at in (1, 2, 3):
        ring.submit((*LONG[:30], at, 301, 302), 9, branches=(31,))
        ring.run()
    for number in range(4):
        ring.submit([400 + number] * 20, 2)
        ring.run()
    again = ring.submit((*LONG[:30], 3, 301, 5), 1, branches=(31,))
    ring.run()
    assert ring.opened[again] == 30


def test_equal_beginnings_that_are_read_at_once_are_kept_once():
    ring = uncut(prefixes=16, chunk=10)
    for at in range(3):
        ring.submit((*LONG, at), 3, branches=(30,))
    ring.run()
    lengths = list(ring.scheduler.ledger.snaps.values())
    assert lengths.count(30) == 1


# ---------------------------------------------------------------------- chunks


def test_a_short_prompt_waits_for_what_is_in_flight_and_no_longer():
    ring = Ring(rank(), chunk=100, rows=4, context=5000)
    long = ring.submit(range(4000), 5)
    for _ in range(3):
        ring.step()
    short = ring.submit(range(30), 5)
    works = [ring.step().work for _ in range(2)]
    assert works == [Prefill(short, 0, 29), Decode(0)]
    reading = [ring.step().work for _ in range(6)]
    assert sum(isinstance(work, Prefill) and work.uid == long for work in reading) == 3


def test_the_oldest_prompt_is_never_overtaken_for_ever():
    ring = Ring(rank(), chunk=10, rows=8, context=5000)
    long = ring.submit(range(400), 1)
    read = []
    for _ in range(60):
        ring.submit(range(11), 1)
        step = ring.step()
        if isinstance(step.work, Prefill):
            read.append(step.work.uid)
    assert read.count(long) >= len(read) // 3
