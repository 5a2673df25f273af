"""The scheduler's choices, one by one: order, credit, chunks, run-ahead, suspects."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealring_protocol.codec.encoding import encode
from sealring_protocol.codec.messages import (
    NO_WORK,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Prefill,
    Row,
    Spent,
    Step,
)
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.requests import (
    FinishReason,
    Request,
    RequestDone,
    SchedulerConfig,
    TokenIds,
    TokenOut,
)
from sealring_protocol.control.scheduler import running_rows
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.errors import LocalProtocolError, RemoteProtocolError
from sealring_protocol.limits import MAX_BIAS, MAX_GRAMMAR, MAX_IDS

EPOCH = Epoch(1, 1)


NOTHING = Step(EPOCH, 1, bytes(16))


def scheduler(window=1, stages=1, context=1000, **config):
    made = Scheduler(SchedulerConfig(**config), context)
    made.shape(config.get("groups", 0), window, stages)
    made.begin(EPOCH)
    return made


def plan(made, now=0.0):
    planned = made.plan(now)
    return None if planned is None else planned.step


def timing(step, *seconds, away=0.0):
    """What *step* took: so many seconds on each rank, in turn, and between them."""
    spent = tuple(Spent(round(each * 1e6)) for each in seconds)
    total = round((sum(seconds) + away) * 1e6)
    return StepTiming(step.n, step.work, (), total, spent)


def answer(made, step, *ids, now=0.0):
    return made.answered(step.n, ids, now)


def drops(made, surplus, uid):
    """Row *uid* leaves behind *surplus*, a decode under way, whose token is nobody's."""
    last = plan(made)
    assert (last.evict, last.work) == ((uid,), NO_WORK)
    assert answer(made, surplus, 5) == []
    assert answer(made, last) == []
    assert made.ledger.empty


def drain(made, token=7):
    """Plan and answer until nothing is left; gives all steps."""
    steps = []
    while (step := plan(made)) is not None:
        steps.append(step)
        rows = len(made.uids(step.n)) if isinstance(step.work, Decode) else 0
        answer(made, step, *([token] * rows))
    return steps


def test_a_prompt_is_read_but_for_its_last_token_which_the_first_decode_takes():
    made = scheduler(chunk=4)
    uid = made.submit(Request(tuple(range(10, 20)), 2))
    steps = drain(made)
    assert [step.work for step in steps] == [
        Prefill(uid, 0, 3),
        Prefill(uid, 3, 3),
        Prefill(uid, 6, 3),
        Decode(0),
        Decode(0),
        NO_WORK,
    ]
    assert [step.ids for step in steps] == [
        (10, 11, 12),
        (13, 14, 15),
        (16, 17, 18),
        (19,),
        (),
        (),
    ]
    assert steps[0].open[0].uid == uid
    assert steps[3].join[0].uid == uid
    assert steps[5].evict == (uid,)
    assert made.ledger.empty


def test_a_prompt_of_one_token_is_opened_and_joined_in_one_step():
    made = scheduler()
    made.submit(Request((5,), 1))
    step = plan(made)
    assert step.work == Decode(0)
    assert (len(step.open), len(step.join), step.ids) == (1, 1, (5,))
    assert answer(made, step, 9) == [
        TokenOut(1, 9, 1),
        RequestDone(1, FinishReason.LENGTH),
    ]


def test_sampling_goes_to_the_engine_with_the_row():
    made = scheduler()
    made.submit(Request((5, 6), 1, sampling=Row(0, seed=3, temperature=0.5)))
    assert made.plan(0.0).rows == (Row(1, seed=3, temperature=0.5),)


def held(made, *prompt, most=3):
    """A request whose answer has a grammar."""
    return made.submit(Request(prompt, most, sampling=Row(0, grammar=b'start: "a"*')))


def test_a_row_waits_for_its_grammar_and_no_other_row_does():
    made = scheduler()
    waits, free = held(made, 5, 6), made.submit(Request((7,), 9))
    read = plan(made)
    assert (read.work, len(read.open)) == (Prefill(waits, 0, 1), 2)
    answer(made, read)
    first = plan(made)
    assert [join.uid for join in first.join] == [free]
    answer(made, first, 1)
    second = plan(made)
    assert made.prepared(waits, "") == []
    assert answer(made, second, 2) == [TokenOut(free, 2, 2)]
    third = plan(made)
    assert [(join.uid, third.ids) for join in third.join] == [(waits, (6,))]
    assert {out.uid for out in answer(made, third, 3, 4)} == {waits, free}


def test_a_row_whose_grammar_cannot_be_prepared_ends_alone():
    made = scheduler()
    waits, free = held(made, 5), made.submit(Request((7,), 9))
    step = plan(made)
    assert made.prepared(waits, "too costly") == [
        RequestDone(waits, FinishReason.UNHELD, "too costly")
    ]
    assert made.prepared(waits, "") == made.prepared(free, "never asked") == []
    answer(made, step, 1)
    assert plan(made).drop == (waits,)
    assert made.live == 1


def test_a_row_that_is_opened_anew_waits_for_as_many_answers_as_it_was_announced():
    made = scheduler()
    waits = held(made, 5)
    plan(made)
    made.preempt(waits)
    assert [opened.uid for opened in plan(made).open] == [waits]
    made.prepared(waits, "")
    assert plan(made) is None
    made.prepared(waits, "")
    step = plan(made)
    assert [join.uid for join in step.join] == [waits]
    # Of a new epoch's engine, which has prepared nothing, it waits for one again.
    made.begin(Epoch(1, 2))
    assert [opened.uid for opened in plan(made).open] == [waits]
    assert plan(made) is None
    made.prepared(waits, "")
    assert [join.uid for join in plan(made).join] == [waits]


def test_a_group_in_a_pipeline_has_one_decode_in_flight():
    made = scheduler()
    made.submit(Request((5,), 3))
    step = plan(made)
    assert plan(made) is None
    answer(made, step, 1)
    assert plan(made).work == Decode(0)


def test_with_one_rank_the_next_decode_is_launched_on_the_token_not_yet_known():
    made = scheduler(window=2)
    uid = made.submit(Request((5,), 3, frozenset({99})))
    first, second = plan(made), plan(made)
    assert (first.ids, second.ids) == ((5,), ())
    assert plan(made) is None
    assert answer(made, first, 1) == [TokenOut(uid, 1, 1)]
    third = plan(made)
    assert third.work == Decode(0)
    # The end of sequence shows while another decode is under way: its token is dropped.
    assert answer(made, second, 99) == [RequestDone(uid, FinishReason.STOP)]
    drops(made, third, uid)


def test_in_a_pipeline_the_next_decode_follows_once_the_hidden_states_are_back():
    """The token is not known, but will be drawn where the next decode reads it."""
    made = scheduler()
    uid = made.submit(Request((5,), 4, frozenset({99})))
    first = plan(made)
    assert plan(made) is None
    made.returned(first.n)
    second = plan(made)
    assert (second.work, second.ids) == (Decode(0), ())
    assert plan(made) is None
    assert answer(made, first, 1) == [TokenOut(uid, 1, 1)]
    assert plan(made) is None
    made.returned(second.n)
    third = plan(made)
    assert answer(made, second, 99) == [RequestDone(uid, FinishReason.STOP)]
    made.returned(third.n)
    drops(made, third, uid)


def test_a_row_whose_last_token_is_in_flight_leaves_before_the_next_decode():
    made = scheduler(window=2)
    short = made.submit(Request((5,), 1))
    long = made.submit(Request((6,), 3))
    first, second = plan(made), plan(made)
    assert made.uids(first.n) == (short, long)
    assert second.evict == (short,)
    assert made.uids(second.n) == (long,)


def test_rows_join_while_another_group_is_under_way():
    made = scheduler(groups=2, rows=1)
    one = made.submit(Request((1,), 5))
    two = made.submit(Request((2,), 5))
    first, second = plan(made), plan(made)
    assert {first.work, second.work} == {Decode(0), Decode(1)}
    assert {made.uids(first.n), made.uids(second.n)} == {(one,), (two,)}
    assert made.in_flight == 2
    made.cancel(one)
    three = made.submit(Request((3,), 5))
    answer(made, first, 7)
    step = plan(made)
    assert (step.evict, [join.uid for join in step.join]) == ((one,), [three])
    assert made.in_flight == 2


def test_rows_are_put_with_rows_of_their_length():
    made = scheduler(groups=2, rows=4, chunk=1000)
    made.took(timing(attrs.evolve(NOTHING, work=Prefill(1, 0, 500)), 0.005))
    for length in (10, 500, 11, 480):
        made.submit(Request((1,) * length, 50))
    for _ in range(12):
        step = plan(made)
        if step is None:
            break
        rows = len(made.uids(step.n)) if isinstance(step.work, Decode) else 0
        answer(made, step, *([7] * rows))
    groups = {tuple(sorted(rows)) for rows in made.ledger.groups.values()}
    assert groups == {(1, 3), (2, 4)}


def test_chunks_and_decodes_take_turns_and_a_short_prompt_overtakes():
    made = scheduler(chunk=10)
    first = made.submit(Request((1,), 50))
    step = plan(made)
    answer(made, step, 7)
    long = made.submit(Request((2,) * 101, 5))
    short = made.submit(Request((3,) * 11, 5))
    kinds = []
    for _ in range(8):
        step = plan(made)
        kinds.append(step.work)
        rows = len(made.uids(step.n)) if isinstance(step.work, Decode) else 0
        answer(made, step, *([7] * rows))
    assert [isinstance(kind, Prefill) for kind in kinds] == [True, False] * 4
    order = [kind.uid for kind in kinds if isinstance(kind, Prefill)]
    assert order.index(short) < 2
    assert order.count(long) >= 2
    assert first in made.ledger.groups[0]


def chunks_planned(made):
    """All chunks that may begin now."""
    steps = []
    while (step := plan(made)) is not None:
        assert isinstance(step.work, Prefill)
        steps.append(step)
    return steps


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_stage_has_a_chunk_and_the_first_one_the_next_too(stages):
    made = scheduler(chunk=10, stages=stages)
    made.submit(Request((2,) * 201, 5))
    flying = chunks_planned(made)
    assert len(flying) == 2
    for _ in range(stages - 1):
        made.passed_on(flying[-2].n)
        flying += chunks_planned(made)
    assert len(flying) == stages + 1
    assert [step.work.position for step in flying] == [10 * at for at in range(stages + 1)]
    if stages > 1:
        made.passed_on(flying[-2].n)
        assert plan(made) is None
        answer(made, flying[0])
        assert len(chunks_planned(made)) == 1


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_while_rows_decode_each_stage_has_one_chunk_at_most(stages):
    made = scheduler(chunk=10, stages=stages)
    made.submit(Request((1,), 50))
    first = plan(made)
    made.submit(Request((2,) * 201, 5))
    flying = chunks_planned(made)
    assert len(flying) == 1
    for _ in range(stages - 1):
        made.passed_on(flying[-1].n)
        more = chunks_planned(made)
        assert len(more) == 1
        flying += more
    made.passed_on(flying[-1].n)
    assert plan(made) is None
    answer(made, first, 7)
    assert isinstance(plan(made).work, Decode)
    assert plan(made) is None


def test_a_chunk_keeps_a_stage_busy_no_longer_than_the_bound():
    made = scheduler(chunk=512, chunk_seconds=0.5)
    made.submit(Request((2,) * 999, 1))
    step = plan(made)
    assert step.work.count == 64
    made.took(timing(step, 2.0))
    answer(made, step)
    assert plan(made).work.count == 64
    larger = attrs.evolve(step, work=attrs.evolve(step.work, count=256))
    for _ in range(8):  # of which only the recent ones count
        made.took(timing(larger, 0.256))
    assert plan(made).work.count == 448


def chunks_took(made, alone, each, stages):
    for count in (100, 400):
        work = Prefill(1, 0, count)
        made.took(timing(attrs.evolve(NOTHING, work=work), *[alone + each * count] * stages))


def test_a_long_prompt_is_cut_into_many_chunks_for_several_stages():
    made = scheduler(chunk=512, stages=2, context=8000)
    chunks_took(made, 0.004, 0.001, 2)
    made.submit(Request((2,) * 4097, 1))
    assert plan(made).work.count == 128
    other = scheduler(chunk=512, stages=3, context=8000)
    chunks_took(other, 0.010, 0.0001, 3)
    other.submit(Request((2,) * 4097, 1))
    assert plan(other).work.count == 448  # 64 would take twice as long for each token


def test_a_chunk_is_at_most_twice_as_large_as_a_recent_one():
    made = scheduler(chunk=2048, context=8000)
    made.submit(Request((2,) * 6081, 1))
    counts = []
    for _ in range(7):
        step = plan(made)
        counts.append(step.work.count)
        made.took(timing(step, 0.001))
        answer(made, step)
    assert counts == [64, 128, 256, 512, 1024, 2048, 2048]


@pytest.mark.parametrize(
    ("seconds", "away", "count"),
    [
        ([0.4], 0.0, 448),  # the greatest size below 500
        ([0.4, 0.4], 0.0, 160),
        ([0.4, 0.4], 0.8, 96),
        ([0.4, 0.8], 0.0, 96),  # 0.4 + 0.8, once more what rank 1 is slower by, and 0.4
        ([0.8, 0.4], 0.0, 96),
    ],
)
def test_what_a_decode_waits_for_chunks_stays_within_the_bound(seconds, away, count):
    made = scheduler(chunk=512, stages=len(seconds), chunk_seconds=0.5)
    made.took(timing(NOTHING, *seconds))
    made.took(timing(attrs.evolve(NOTHING, work=Prefill(1, 0, 400)), *seconds, away=away))
    made.submit(Request((1,), 50))
    plan(made)
    made.submit(Request((2,) * (2 * count + 1), 1))
    assert plan(made).work.count == count


@given(tokens=st.integers(1, 3000), most=st.integers(1, 300))
def test_a_prompt_is_read_in_few_chunks_that_are_about_equal(tokens, most):
    made = scheduler(chunk=most, context=4000)
    made.took(timing(attrs.evolve(NOTHING, work=Prefill(1, 0, 400)), 1e-6))
    made.submit(Request((2,) * (tokens + 1), 1))
    counts = []
    while sum(counts) < tokens:
        step = plan(made)
        counts.append(step.work.count)
        made.took(timing(step, step.work.count * 1e-6))
        answer(made, step)
    assert sum(counts) == tokens
    greatest = max(
        size for size in range(1, most + 1) if size % (1 << max(0, size.bit_length() - 3)) == 0
    )
    assert len(counts) <= -(-tokens // greatest)
    assert max(counts) <= min(most, 2 * min(counts))


@pytest.mark.parametrize("moment", range(9))
def test_cancelled_at_any_moment_a_row_leaves_nothing(moment):
    made = scheduler(chunk=3)
    uid = made.submit(Request(tuple(range(1, 9)), 4))
    flying = []
    for _ in range(moment):
        step = plan(made)
        if step is not None:
            flying.append(step)
        if len(flying) > 1:
            done = flying.pop(0)
            rows = len(made.uids(done.n)) if isinstance(done.work, Decode) else 0
            answer(made, done, *([7] * rows))
    made.cancel(uid)
    assert made.cancel(uid) == []
    for step in flying:
        rows = len(made.uids(step.n)) if isinstance(step.work, Decode) else 0
        assert answer(made, step, *([7] * rows)) == []
    drain(made)
    assert made.ledger.empty
    assert made.live == made.in_flight == 0


def test_finishing_is_an_end_like_any_other():
    made = scheduler()
    uid = made.submit(Request((5,), 30))
    answer(made, plan(made), 1)
    assert made.finish(uid) == [RequestDone(uid, FinishReason.STOP)]
    assert plan(made).evict == (uid,)


def test_a_preempted_row_is_read_in_again_with_its_tokens_so_far():
    made = scheduler(chunk=100)
    uid = made.submit(Request((1, 2, 3), 5))
    answer(made, plan(made))
    answer(made, plan(made), 40)
    step = plan(made)
    made.preempt(uid)
    assert answer(made, step, 41) == [TokenOut(uid, 41, 4)]
    again = plan(made)
    assert (again.evict, again.work, again.ids) == ((uid,), Prefill(uid, 0, 4), (1, 2, 3, 40))
    answer(made, again)
    back = plan(made)
    assert ([join.uid for join in back.join], back.ids) == ([uid], (41,))
    assert answer(made, back, 42) == [TokenOut(uid, 42, 5)]


def test_a_row_with_drawn_tokens_begins_as_one_that_was_interrupted_after_them():
    made = scheduler(chunk=100)
    asked = Request((1, 2, 3), 5, frozenset({9}), PENALTY, min_tokens=3, drawn=(40, 41))
    uid = made.submit(asked)
    first = made.plan(0.0)
    (row,) = first.rows
    assert (row.history, row.generated, row.least) == ((1, 2, 3, 40, 41), 2, 6)
    assert (first.step.work, first.step.ids) == (Prefill(uid, 0, 4), (1, 2, 3, 40))
    answer(made, first.step)
    back = plan(made)
    assert ([join.uid for join in back.join], back.ids) == ([uid], (41,))
    assert answer(made, back, 42) == [TokenOut(uid, 42, 5)]
    assert [type(each) for each in answer(made, plan(made), 43)] == [TokenOut]
    ended = answer(made, plan(made), 44)
    assert ended == [TokenOut(uid, 44, 7), RequestDone(uid, FinishReason.LENGTH)]


def test_a_row_whose_tokens_are_all_drawn_is_read_and_ends():
    made = scheduler(chunk=100)
    uid = made.submit(Request((1, 2, 3), 2, drawn=(40, 41)))
    assert answer(made, plan(made)) == [RequestDone(uid, FinishReason.LENGTH)]
    made.submit(Request((1,) * 997, drawn=(40, 41, 42)))  # the context is full
    assert not any(isinstance(step.work, Decode) for step in drain(made))
    assert made.live == 0


def test_a_row_preempted_with_a_token_on_the_way_gets_it_once():
    made = scheduler(window=2)
    uid = made.submit(Request((1,), 9))
    first, second = plan(made), plan(made)
    answer(made, first, 40)
    made.preempt(uid)
    third = plan(made)
    assert (third.evict, third.work, third.ids) == ((uid,), Prefill(uid, 0, 1), (1,))
    assert answer(made, second, 41) == []
    answer(made, third)
    back = plan(made)
    assert back.ids == (40,)
    assert answer(made, back, 41) == [TokenOut(uid, 41, 2)]
    drain(made)
    assert made.live == 0


def test_a_row_that_is_back_before_its_old_token_waits_and_draws_it_again():
    made = scheduler()
    uid = made.submit(Request((1,), 3))
    first = plan(made)
    made.preempt(uid)
    again = plan(made)  # one token to take, nothing to read: ready at once, but it may not join yet
    assert (again.evict, [row.uid for row in again.open], again.work) == ((uid,), [uid], NO_WORK)
    assert plan(made) is None
    assert answer(made, first, 40) == []
    answer(made, again)
    back = plan(made)
    assert ([join.uid for join in back.join], back.ids) == ([uid], (1,))
    assert answer(made, back, 40) == [TokenOut(uid, 40, 1)]
    drain(made)
    assert made.live == 0


def test_too_long_and_empty_prompts_are_refused_with_the_numbers():
    made = scheduler()
    with pytest.raises(LocalProtocolError, match="no tokens"):
        made.submit(Request(()))
    with pytest.raises(LocalProtocolError, match=r"1000 tokens; the model.s context holds 1000"):
        made.submit(Request((1,) * 1000))
    with pytest.raises(LocalProtocolError, match="999 tokens and 2 more"):
        made.submit(Request((1,) * 999, 2))
    assert made.submit(Request((1,) * 999)) == 1


def test_an_answer_is_taken_once_and_whole():
    made = scheduler()
    made.submit(Request((5,), 3))
    step = plan(made)
    with pytest.raises(RemoteProtocolError, match="0 of 1"):
        answer(made, step)
    made = scheduler()
    made.submit(Request((5,), 3))
    step = plan(made)
    answer(made, step, 1)
    with pytest.raises(RemoteProtocolError, match="waits for none"):
        answer(made, step, 1)


def test_without_an_epoch_nothing_is_planned():
    made = Scheduler(SchedulerConfig(), 1000)
    made.submit(Request((5,), 3))
    assert made.plan(0.0) is None
    made.begin(EPOCH)
    assert made.plan(2.5) is not None


# -------------------------------------------------------------------- suspects


def crash(made, step, kind=FailureKind.ENGINE_ERROR):
    outcomes = made.failed(step.n, Failure(1, kind, "boom"))
    made.begin(EPOCH)
    return outcomes


def test_after_a_crash_its_rows_run_alone_until_they_are_past_it():
    made = scheduler()
    one, two = made.submit(Request((1,), 9)), made.submit(Request((2,), 9))
    other = made.submit(Request((3, 4), 9))
    step = plan(made)
    assert isinstance(step.work, Prefill)
    answer(made, step)
    step = plan(made)
    assert set(made.uids(step.n)) == {one, two, other}
    answer(made, step, 7, 7, 7)
    assert crash(made, plan(made)) == []
    alone = []
    for _ in range(9):
        step = plan(made)
        if isinstance(step.work, Decode):
            alone.append(made.uids(step.n))
            answer(made, step, *([8] * len(alone[-1])))
        else:
            answer(made, step)
        if len(alone) == 3:
            break
    assert [len(rows) for rows in alone] == [1, 1, 1]
    assert {rows[0] for rows in alone} == {one, two, other}
    drain(made, 8)
    assert made.live == 0


def test_a_row_that_keeps_crashing_spends_its_own_retries_only():
    made = scheduler(retries=2)
    bad, good = made.submit(Request((1,), 9)), made.submit(Request((2,), 2))
    ended = crash(made, plan(made))
    while not ended:
        step = plan(made)
        rows = made.uids(step.n)
        if bad in rows:
            assert rows == (bad,)
            ended = crash(made, step)
        else:
            answer(made, step, *([8] * len(rows) if isinstance(step.work, Decode) else ()))
    assert ended[0].uid == bad
    assert ended[0].reason is FinishReason.FAILED
    assert ended[0].message == "given up after 3 tries; the last, on rank 1: boom"
    drain(made)
    assert made.live == 0
    assert good != bad


def test_an_engine_that_dies_with_two_decodes_of_a_group_leaves_the_rows_of_both_suspect():
    """Which of them it died of nobody knows; who is innocent gets past the point alone."""
    made = scheduler(retries=1, window=2)
    good = made.submit(Request((1,), 30))
    first = plan(made)
    bad = made.submit(Request((2,), 30))
    assert made.uids(plan(made).n) == (good, bad)
    ended = crash(made, first, FailureKind.ENGINE_LOST)
    while not ended:
        step = plan(made)
        rows = made.uids(step.n)
        if bad in rows:
            assert rows == (bad,)
            ended = crash(made, step, FailureKind.ENGINE_LOST)
        else:
            answer(made, step, *([8] * len(rows) if isinstance(step.work, Decode) else ()))
    assert [outcome.uid for outcome in ended] == [bad]
    drain(made, 8)
    assert made.live == 0


@pytest.mark.parametrize("kind", [FailureKind.LINK_LOST, FailureKind.DEADLINE])
def test_a_lost_link_makes_nobody_a_suspect(kind):
    made = scheduler(retries=0)
    made.submit(Request((1,), 9))
    made.submit(Request((2,), 9))
    assert crash(made, plan(made), kind) == []
    assert len(made.uids(plan(made).n)) == 2


# --------------------------------------------------------- what comes with a request

PENALTY = Row(0, presence=1.0)

UNSAYABLE = {
    "a long history": Request((5,) * MAX_IDS, 1, sampling=PENALTY),
    "a history that grows": Request((5,) * (MAX_IDS - 4), 5, sampling=PENALTY),
    "an end below 0": Request((5,), 5, frozenset((-5, 2)), min_tokens=1),
    "an end beyond u32": Request((5,), 5, frozenset((10**20,)), min_tokens=1),
    "many ends": Request((5,), 5, frozenset(range(299_995)), min_tokens=1),
    "many tokens first": Request((5,), 5, min_tokens=1 << 32),
    "a long grammar": Request((5,), 5, sampling=Row(0, grammar=bytes(MAX_GRAMMAR + 1))),
    "many biases": Request((5,), 5, sampling=Row(0, bias=((1, 1.0),) * (MAX_BIAS + 1))),
}


@pytest.mark.parametrize("request_", UNSAYABLE.values(), ids=UNSAYABLE)
def test_what_no_row_can_say_is_refused_before_it_is_queued(request_):
    made = scheduler(context=1 << 21)
    with pytest.raises(LocalProtocolError):
        made.submit(request_)
    assert (made.live, made.waiting) == (0, 0)
    uid = made.submit(Request((5,) * 3, 5))
    planned = made.plan(0.0)
    assert [row.uid for row in planned.rows] == [uid]
    for message in (*planned.rows, planned.step):
        encode(message)


def test_a_history_ends_where_a_row_is_full(monkeypatch):
    monkeypatch.setattr(running_rows, "MAX_IDS", 8)
    made = scheduler()
    uid = made.submit(Request((5,) * 5, sampling=PENALTY))
    answer(made, plan(made))
    ended = [outcome for _ in range(3) for outcome in answer(made, plan(made), 7)]
    assert [type(outcome) for outcome in ended] == [TokenOut] * 3 + [RequestDone]
    assert ended[-1] == RequestDone(uid, FinishReason.LENGTH)
    with pytest.raises(LocalProtocolError, match=r"penalties.* holds 8"):
        made.submit(Request((5,) * 5, 4, sampling=PENALTY))
    made.submit(Request((5,) * 5, 4))


class Counted(TokenIds):
    """Counts how often somebody goes through it."""

    looks = 0

    def __iter__(self):
        self.looks += 1
        return super().__iter__()


class Number(int):
    """Counts how often it is hashed."""

    hashes = 0

    def __hash__(self):
        Number.hashes += 1
        return super().__hash__()


def test_rows_that_wait_cost_nothing_for_the_length_of_their_prompt():
    """128 choices with a prompt of a million tokens took 1 GiB, and 10 s."""
    prompt = Counted(map(Number, range(1000)))
    made = scheduler(rows=2, prefixes=4, vocabulary=2000, context=2000)
    before = Number.hashes
    uids = [made.submit(Request(prompt, 5, prediction=prompt)) for _ in range(128)]
    assert (prompt.looks, Number.hashes - before) == (2, 1000)  # the least, and the greatest
    for uid in reversed(uids):
        made.cancel(uid)
    assert (prompt.looks, Number.hashes - before) == (2, 1000)
    made.submit(Request(prompt, 5))
    assert plan(made).work.count  # whose prompt is read is taken in
    assert prompt.looks == 3
