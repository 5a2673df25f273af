"""Scores of prompts: each token's once and in order, whatever comes between; and rows that draw no
token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealring_protocol.codec.local_messages import Scores
from sealring_protocol.codec.messages import (
    NO_LOGPROBS,
    CacheCost,
    Decode,
    Epoch,
    Failure,
    FailureKind,
    Prefill,
    Ready,
    Row,
    Spent,
    Step,
)
from sealring_protocol.control.effects import StepTiming
from sealring_protocol.control.requests import (
    ContextOverflow,
    FinishReason,
    Request,
    RequestDone,
    SchedulerConfig,
    ScoresOut,
    TokenOut,
)
from sealring_protocol.control.scheduler.batching import Chunks
from sealring_protocol.control.scheduler.rows import LiveRow
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.control.scheduler.times import StepTimes
from sealring_protocol.errors import RemoteProtocolError

from tests.sim.brains import Brains
from tests.sim.fake_engine import reference, reference_scores

LAYERS = 6
EPOCH = Epoch(1, 1)
PROMPT = tuple(range(10, 50))


def told(scores: Sequence[Scores]) -> list[tuple[float, int, tuple[int, ...], tuple[float, ...]]]:
    """*scores* token by token. They leave nothing out, and tell nothing twice."""
    place, entries = 1, []
    for some in scores:
        assert some.position == place
        place, k = some.end, some.alternatives
        for at, (chosen, rank) in enumerate(zip(some.chosen, some.ranks, strict=True)):
            part = slice(k * at, k * at + k)
            entries.append((chosen, rank, some.ids[part], some.values[part]))
    return entries


def asked(random: Random, uids: dict[int, Request], ring: Brains) -> None:
    """One more request: of any kind."""
    prompt = tuple(random.randrange(900) for _ in range(random.randrange(1, 40)))
    scores, k = random.random() < 0.7, random.choice([0, 1, 4])
    count = random.choice([0, 0, 1, 9])
    row = Row(0, logprobs=k if scores else NO_LOGPROBS)
    request = Request(prompt, count, sampling=row, scores=scores)
    uids[ring.submit(request)] = request


def check(ring: Brains, uids: dict[int, Request]) -> None:
    for uid, request in uids.items():
        assert ring.finished(uid) is FinishReason.LENGTH, ring.done[uid]
        count = request.max_tokens or 0
        assert ring.tokens[uid] == (reference(request.prompt, count, LAYERS) if count else [])
        k = request.sampling.logprobs
        wanted = reference_scores(request.prompt, k, LAYERS) if request.scores else []
        assert told(ring.scores[uid]) == wanted
    for engine in ring.engines.values():
        assert engine.empty or len(ring.head.scheduler.ledger.snaps)
        assert not engine.pending
        assert not engine.scoring
    assert ring.head.scheduler.live == ring.head.scheduler.in_flight == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    world=st.sampled_from([1, 2, 3, 4]),
    prefixes=st.sampled_from([0, 3]),
)
def test_engines_and_links_lost_anywhere_cost_no_score_and_tell_none_twice(seed, world, prefixes):
    random = Random(seed)
    config = SchedulerConfig(groups=2, rows=3, chunk=6, retries=50, prefixes=prefixes)
    ring = Brains(world, random, config)
    ring.start()
    uids: dict[int, Request] = {}
    for _ in range(7):
        asked(random, uids, ring)
        for _ in range(random.randrange(80)):
            ring.step()
        if random.random() < 0.4:
            rank = random.randrange(world)
            if ring.engines[rank] is not None:
                ring.kill_engine(rank)
                for _ in range(random.randrange(10)):
                    ring.step()
                ring.start_engine(rank)
        elif ring.up and random.random() < 0.4:
            ring.cut(random.choice(sorted(ring.up)))
        elif random.random() < 0.4 and (live := [uid for uid in uids if uid not in ring.done]):
            scheduler = ring.head.scheduler
            assert scheduler is not None
            scheduler.preempt(random.choice(live))
    ring.run()
    check(ring, uids)


@pytest.mark.parametrize("world", [1, 2])
def test_an_engine_that_keeps_scores_back_has_failed(world):
    """What follows a gap is not taken."""
    ring = Brains(world, Random(1), SchedulerConfig(retries=1))
    ring.start()
    ring.engines[0].silent = 1
    uid = ring.submit(Request(PROMPT, 0, sampling=Row(0, logprobs=1), scores=True))
    ring.run()
    assert ring.finished(uid) is FinishReason.FAILED
    assert "with the scores of 0 of 39 tokens" in ring.done[uid].message


# ------------------------------------------------------------------ the scheduler alone


class Ring:
    """A scheduler, whose steps are answered on demand; every token drawn is 7."""

    def __init__(self, *, trimmable: bool = True, context: int = 1000, **config: object) -> None:
        config = {"groups": 1, "chunk": 10, **config}
        self.scheduler = Scheduler(SchedulerConfig(**config), context)  # type: ignore[arg-type]
        self.ready = Ready(EPOCH, 0, 1, trimmable, 1 << 30, CacheCost(0, 1))
        self.scheduler.begin(EPOCH, (self.ready,))
        self.flying: list[Step] = []
        self.outcomes: list[object] = []
        self.steps: list[Step] = []

    def plan(self) -> Step | None:
        planned = self.scheduler.plan(0.0)
        self.outcomes += self.scheduler.ended()
        if planned is None:
            return None
        self.flying.append(planned.step)
        self.steps.append(planned.step)
        return planned.step

    def answer(self) -> None:
        step = self.flying.pop(0)
        rows = self.scheduler.uids(step.n) if isinstance(step.work, Decode) else ()
        given = self.scheduler.answered(step.n, (7,) * len(rows), 0.0, scores=scores_of(step))
        self.outcomes += given

    def run(self) -> None:
        while self.plan() is not None or self.flying:
            if self.flying:
                self.answer()

    @property
    def chunks(self) -> list[Prefill]:
        return [step.work for step in self.steps if isinstance(step.work, Prefill)]

    def places(self, uid: int) -> list[int]:
        """The places of the tokens of *uid* whose scores have been told."""
        parts = [o.scores for o in self.outcomes if isinstance(o, ScoresOut) and o.uid == uid]
        return [at for some in parts for at in range(some.position, some.end)]


def scores_of(step: Step) -> list[Scores]:
    work = step.work
    if not (isinstance(work, Prefill) and work.scored):
        return []
    count = work.count
    return [Scores(step.n, work.uid, work.position + 1, (-1.0,) * count, (1,) * count)]


def scored(prompt: Sequence[int] = PROMPT, count: int | None = 0, **fields: object) -> Request:
    return Request(tuple(prompt), count, scores=True, **fields)  # type: ignore[arg-type]


def test_a_scored_chunk_has_the_token_after_it_and_the_row_ends_with_its_last_answer():
    ring = Ring()
    uid = ring.scheduler.submit(scored(range(100, 125)))
    ring.run()
    assert ring.chunks == [Prefill(uid, at, n, True) for at, n in ((0, 8), (8, 8), (16, 8))]
    assert [step.ids for step in ring.steps] == [
        tuple(range(100, 109)),
        tuple(range(108, 117)),
        tuple(range(116, 125)),
        (),
    ]
    assert ring.steps[-1].drop == (uid,)
    assert ring.outcomes[-1] == RequestDone(uid, FinishReason.LENGTH)
    assert ring.places(uid) == list(range(1, 25))
    assert ring.scheduler.ledger.empty


def test_with_tokens_to_draw_all_scores_come_before_the_first():
    ring = Ring()
    uid = ring.scheduler.submit(scored(count=2))
    ring.run()
    kinds = [type(outcome) for outcome in ring.outcomes]
    assert kinds == [ScoresOut] * 4 + [TokenOut] * 2 + [RequestDone]
    assert ring.places(uid) == list(range(1, 40))


@pytest.mark.parametrize("scores", [False, True])
def test_a_prompt_of_one_token_without_an_answer_needs_no_step(scores):
    ring = Ring()
    uid = ring.scheduler.submit(attrs.evolve(scored((5,)), scores=scores))
    assert ring.plan() is None
    assert ring.outcomes == [RequestDone(uid, FinishReason.LENGTH)]
    assert ring.scheduler.live == 0


def test_a_prompt_as_long_as_the_context_may_be_read():
    ring = Ring(context=40)
    ring.scheduler.submit(scored())
    with pytest.raises(ContextOverflow):
        ring.scheduler.submit(scored(count=1))
    with pytest.raises(ContextOverflow):
        ring.scheduler.submit(scored(count=None))
    ring.run()
    assert isinstance(ring.outcomes[-1], RequestDone)


def test_what_a_snapshot_holds_is_read_again_for_scores_and_no_snapshot_is_left():
    ring = Ring(prefixes=4)
    ring.scheduler.submit(Request(PROMPT, 1))
    ring.run()
    kept = ring.scheduler.snapshots
    assert kept
    uid = ring.scheduler.submit(scored(count=1))
    ring.run()
    assert ring.places(uid) == list(range(1, 40))
    assert ring.scheduler.snapshots == kept


def test_a_row_without_an_answer_leaves_its_prompt_for_the_next():
    ring = Ring(prefixes=4)
    ring.scheduler.submit(Request(PROMPT, 0))
    ring.run()
    ring.steps.clear()
    uid = ring.scheduler.submit(Request((*PROMPT, 1, 2), 1))
    ring.run()
    assert ring.chunks == [Prefill(uid, 39, 2)]
    again = ring.scheduler.submit(Request(PROMPT, 0))
    ring.steps.clear()
    ring.run()
    assert ring.chunks == []
    assert RequestDone(again, FinishReason.LENGTH) in ring.outcomes


def test_one_of_several_answers_is_scored_and_the_others_follow_it():
    ring = Ring(prefixes=4, rows=4)
    first = ring.scheduler.submit(scored(count=2))
    others = [ring.scheduler.submit(Request(PROMPT, 2)) for _ in range(2)]
    twin = ring.scheduler.submit(scored(count=2))
    ring.run()
    read = {
        uid: sum(w.count for w in ring.chunks if w.uid == uid) for uid in (first, *others, twin)
    }
    assert read == {first: 39, twin: 39, others[0]: 0, others[1]: 0}


def test_an_interrupted_row_keeps_its_scores_and_reads_up_to_there_plainly():
    ring = Ring()
    uid = ring.scheduler.submit(scored(count=1))
    ring.plan(), ring.answer()
    ring.plan(), ring.plan()  # the third chunk is answered after the row was interrupted
    ring.answer()
    ring.scheduler.preempt(uid)
    ring.steps.clear()
    ring.run()
    assert ring.chunks == [
        Prefill(uid, 0, 10),
        Prefill(uid, 10, 10),
        Prefill(uid, 20, 10),
        Prefill(uid, 30, 9, True),
    ]
    assert ring.places(uid) == list(range(1, 40))


def test_in_a_new_epoch_scores_are_kept_and_count_as_progress():
    ring = Ring(stalls=2)
    uid = ring.scheduler.submit(scored(count=1))
    for _ in range(2):
        ring.plan(), ring.answer()
        ring.plan()
        n = ring.flying.pop().n
        ring.outcomes += ring.scheduler.failed(n, Failure(0, FailureKind.LINK_LOST, "cut"))
        ring.scheduler.begin(EPOCH, (ring.ready,))
        while ring.scheduler._running.rows[uid].scored > 10 * len(ring.places(uid)):
            ring.plan(), ring.answer()
    ring.run()
    assert ring.places(uid) == list(range(1, 40))


def test_caches_that_cannot_be_cut_serve_a_scored_row_whole_or_not_at_all():
    ring = Ring(prefixes=4, trimmable=False)
    ring.scheduler.submit(Request(PROMPT, 1))
    ring.run()
    uid = ring.scheduler.submit(scored())
    ring.run()
    assert ring.places(uid) == list(range(1, 40))


@pytest.mark.parametrize("count", [0, 9, 11])
def test_other_numbers_of_scores_than_tokens_are_refused(count):
    ring = Ring()
    uid = ring.scheduler.submit(scored())
    step = ring.plan()
    assert step is not None
    wrong = [Scores(step.n, uid, 1, (-1.0,) * count, (1,) * count)] if count else []
    with pytest.raises(RemoteProtocolError, match=f"{count} of 10 tokens"):
        ring.scheduler.answered(step.n, (), 0.0, scores=wrong)


# -------------------------------------------------------------------- how large chunks are


def test_scored_chunks_have_a_pace_of_their_own_which_counts_the_closing_pass():
    times = StepTimes()
    chunks = Chunks(SchedulerConfig(chunk_seconds=1.0), times)
    chunks.stages = 2
    plain, wanting = LiveRow(1, Request((1,) * 9000, 1), 9001, [1] * 9000), None
    request = scored((1,) * 9000)
    wanting = LiveRow(2, request, 9000, list(request.prompt))

    def took(work: Prefill, closing: float) -> None:
        each, last = round(work.count * 1e3), round(closing * 1e6)
        spent = (Spent(each), Spent(each))
        times.took(StepTiming(1, work, (1,), 2 * each + last, spent, Spent(last)))

    sizes = {}
    for row in (plain, wanting):
        for _ in range(9):
            work = chunks.cut(row, [row], decoding=True)
            took(work, closing=work.count * 9e-3 if work.scored else 0.0)
        sizes[row.uid] = work.count
    # A decode waits for each rank and once more for rank 0: 3 ms a token, or 1 + 10 + 10.
    assert 250 <= sizes[1] <= 333
    assert 35 <= sizes[2] <= 48
    before = chunks.cut(plain, [plain], decoding=True)
    assert before.count == sizes[1]


def test_told_scores_are_cut_where_they_were_told_before():
    some = Scores(1, 2, 5, (-1.0, -2.0, -3.0), (1, 2, 3), tuple(range(6)), (0.0,) * 6)
    assert some.since(3) == some.since(5) == some
    cut = some.since(7)
    assert (cut.position, cut.chosen, cut.ranks, cut.ids) == (7, (-3.0,), (3,), (4, 5))
    assert cut.end == some.end == 8
    assert list(itertools.chain(cut.values)) == [0.0, 0.0]
