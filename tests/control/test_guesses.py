"""Which tokens are guessed, and when guessing stops because it does not pay."""

from collections import Counter, deque
from random import Random

import attrs
import pytest
from sealring_protocol.codec.messages import CacheCost, Decode, Epoch, Ready, Step, TakeBack
from sealring_protocol.control.plan import scheduler_config
from sealring_protocol.control.requests import Request, SchedulerConfig
from sealring_protocol.control.scheduler.rows import (
    Fed,
    GuessCosts,
    Lookup,
    RowGuesses,
    right_ones,
)
from sealring_protocol.control.scheduler.scheduler import Scheduler
from sealring_protocol.control.scheduler.times import StepTimes
from sealring_protocol.errors import RemoteProtocolError
from sealring_protocol.limits import MAX_SEALED_BODY, MAX_WEIGHT_WAITING, STEP_ROOM

from tests.sim.brains import AlwaysPay
from tests.sim.fake_engine import info

EPOCH = Epoch(1, 1)
READY = Ready(EPOCH, 0, 1, True, 1 << 30, CacheCost(0, 1))

LOOKUPS = {
    "nothing-known": ([], [1, 2, 3], [], None),
    "what-followed-two": ([], [1, 2, 9, 4, 1, 2], [], 9),
    "what-followed-three": ([], [1, 2, 3, 8, 7, 2, 3, 9, 1, 2, 3], [], 8),
    "what-followed-last": ([], [1, 2, 8, 1, 2, 9, 1, 2], [], 9),
    "after-guesses": ([], [1, 2, 9, 4, 1, 2], [9], 4),
    "in-a-prediction": ([1, 2, 9], [5, 1, 2], [], 9),
    "not-across": ([7, 1], [2, 5, 1, 2], [], None),
    "too-short": ([], [1], [], None),
    "one-alone": ([], [1, 9, 1], [], None),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup_finds_what_followed(name: str) -> None:
    before, tokens, guesses, found = LOOKUPS[name]
    assert Lookup(before, tokens).after(guesses) == found


class Row:
    """One row that decodes alone, of which a share of the guesses is right."""

    def __init__(self, costs: GuessCosts, prompt: tuple[int, ...] = (5,)) -> None:
        self.costs, self.now = costs, 0.0
        self.tokens = list(prompt)
        self.random = Random(1)
        self.guesses = RowGuesses(self.tokens, Request(prompt))

    def run(self, count: int, seconds: tuple[float, float, float], share: float) -> float:
        """Draw *count* tokens, each *seconds* (without a guess before it, after a right one, after
        a wrong one) after the one before. Returns the share of those that were guessed."""
        plain, right, wrong = seconds
        guessed, wait = 0, plain
        for _ in range(count):
            token = 5
            self.guesses.give(len(self.tokens), [token if self.random.random() < share else 6])
            guess = self.guesses.next(self.costs, 1)
            if guess:
                self.guesses.fed.append(Fed(1, guess))
                guessed += 1
            self.now += wait
            self.guesses.drawn((), (token,), self.now, self.costs, alone=True)
            wait = plain if not guess else right if guess == (token,) else wrong
            self.guesses.fed.clear()
            self.tokens.append(token)
        return guessed / count


BUSY, QUIET = (3.0, 1.6, 3.1), (1.0, 0.6, 1.5)
"""Seconds of a machine with other work, and without."""


@pytest.mark.parametrize(
    ("share", "least", "most"), [(0.0, 0.0, 0.1), (0.3, 0.0, 0.5), (0.8, 0.9, 1.0), (1.0, 0.9, 1.0)]
)
def test_guesses_are_made_while_they_pay(share: float, least: float, most: float) -> None:
    row = Row(GuessCosts(StepTimes()))
    row.run(200, QUIET, share)
    assert least <= row.run(4000, QUIET, share) <= most


def test_a_row_whose_text_changes_is_guessed_again() -> None:
    row = Row(GuessCosts(StepTimes()))
    assert row.run(1000, QUIET, 0.0) < 0.2
    row.run(1000, QUIET, 1.0)
    assert row.run(1000, QUIET, 1.0) > 0.9


def test_a_row_that_pauses_sees_what_it_would_have_guessed() -> None:
    """Its pauses have grown to 512 tokens, yet it goes on once some guesses would have been right,
    and not while none would have been."""
    row = Row(GuessCosts(StepTimes()))
    row.run(3000, QUIET, 0.0)
    assert row.run(3000, QUIET, 0.0) == 0
    assert row.run(60, QUIET, 1.0) > 0.6


def test_a_row_whose_first_guess_is_wrong_guesses_once_one_would_have_been_right() -> None:
    """Unless a wrong one costs nothing, as far as is known."""
    costs = GuessCosts(StepTimes())
    Row(costs).run(200, QUIET, 0.7)
    row = Row(costs)
    assert row.run(100, QUIET, 0.0) == 0.01
    assert row.run(40, QUIET, 1.0) > 0.9
    free = GuessCosts(StepTimes())
    Row(free).run(200, (1.0, 0.6, 1.0), 0.7)
    assert 0.1 < Row(free).run(100, (1.0, 0.6, 1.0), 0.0) < 0.5


def test_a_row_that_is_not_asked_for_guesses_looks_none_up() -> None:
    """To index a long prompt takes time and memory, and rows that share a group never guess."""
    costs = GuessCosts(StepTimes())
    Row(costs).run(200, QUIET, 0.7)
    row = Row(costs)
    row.run(1, QUIET, 0.0)
    for guess, asked in (((), False), ((), False), ((), True), ((5,), True)):
        row.guesses.give(len(row.tokens), [5])
        if asked:
            assert row.guesses.next(costs, 1) == guess
        row.guesses.drawn((), (5,), row.now, costs, alone=False)
        row.tokens.append(5)


def test_a_row_that_lost_a_step_pauses_whatever_it_would_have_guessed() -> None:
    row = Row(GuessCosts(StepTimes()))
    row.run(200, QUIET, 1.0)
    row.guesses.pause()
    assert row.run(32, QUIET, 1.0) == 0
    assert row.run(32, QUIET, 1.0) == 1


def test_what_a_token_takes_without_guesses_is_measured_again() -> None:
    """It was slow once, so that wrong guesses seemed to cost nothing: they do now."""
    row = Row(GuessCosts(StepTimes()))
    row.run(200, BUSY, 0.9)
    row.run(1000, QUIET, 0.2)
    assert row.run(4000, QUIET, 0.2) < 0.3


def test_a_row_that_waited_for_an_epoch_tells_nothing_of_guesses() -> None:
    row = Row(GuessCosts(StepTimes()))
    row.run(5, QUIET, 0.0)
    row.now += 1000
    row.guesses.interrupted()
    row.run(5, QUIET, 0.0)
    assert row.costs.plain == pytest.approx(1.0)


def test_a_row_that_is_not_alone_any_more_tells_nothing_of_guesses() -> None:
    row = Row(GuessCosts(StepTimes()))
    row.run(5, QUIET, 0.0)
    row.guesses.drawn((), (5,), row.now + 1000, row.costs, alone=False)
    row.run(1, QUIET, 0.0)
    assert row.costs.plain == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("trimmable", "states", "guesses"), [(True, 2, 3), (False, 2, 1), (False, 3, 2), (False, 9, 3)]
)
def test_no_more_guesses_than_there_is_room_to_take_back(
    trimmable: bool, states: int, guesses: int
) -> None:
    """A rank keeps a state for each guess. It has room for so many: one is the row's own."""
    scheduler = Scheduler(SchedulerConfig(groups=1), 1000)
    scheduler.shape(1, 1, 4, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    state = CacheCost(1000, 0)
    scheduler.begin(Epoch(1, 1), [Ready(Epoch(1, 1), 0, 1, trimmable, states * 1000, state)])
    scheduler.submit(Request((1, 2), 20, guesses=(3,) * 20))
    steps = []
    while (planned := scheduler.plan(0.0)) is not None:
        steps.append(planned.step.work)
        if not isinstance(planned.step.work, Decode):
            scheduler.answered(planned.step.n, (), 0.0)
    assert [work.guessed for work in steps if isinstance(work, Decode)] == [*range(guesses + 1)]


# ------------------------------------------------------------- several with one step


class Machine:
    """One row on a machine whose steps take, with so many guesses read ahead, *seconds*."""

    def __init__(self, seconds: dict[int, float], share: float, stages: int = 1) -> None:
        self.seconds, self.random, self.share = seconds, Random(1), share
        self.scheduler = Scheduler(SchedulerConfig(groups=1, ahead=4), 100_000)
        self.scheduler.shape(1, 2 if stages == 1 else 1, stages, guesses=True)
        self.scheduler.begin(EPOCH, [READY])
        self.now = 0.0
        self.uid = self.scheduler.submit(Request((1, 2)))
        self.flying: deque[Step] = deque()
        self.ahead: list[int] = []
        self.tokens = 0

    def run(self, tokens: int) -> float:
        """Draw so many tokens, each 5. Returns the seconds that one took."""
        start, until = self.now, self.tokens + tokens
        before = self.tokens
        while self.tokens < until:
            guesses = [5 if self.random.random() < self.share else 6 for _ in range(4)]
            self.scheduler.guess(self.uid, 2 + self.tokens, guesses)
            while (planned := self.scheduler.plan(self.now)) is not None:
                self.flying.append(planned.step)
            step = self.flying.popleft()
            ids: tuple[int, ...] = ()
            if isinstance(step.work, Decode):
                ahead = step.work.ahead
                self.ahead.append(ahead)
                self.now += self.seconds[ahead]
                right = right_ones(step.ids[len(step.ids) - ahead :], (5,) * ahead)
                ids = (5,) * (1 + right)
            self.tokens += len(ids)
            self.scheduler.answered(step.n, ids, self.now)
        return (self.now - start) / (self.tokens - before)


FLAT = {0: 1.0, 1: 1.05, 2: 1.1, 4: 1.2}
"""Of a device that waits for its memory."""

STEEP = {0: 1.0, 1: 1.9, 2: 2.8, 4: 4.6}
"""Of one that computes as fast as it can."""


@pytest.mark.parametrize(
    ("seconds", "share", "size", "most"),
    [
        (FLAT, 1.0, 4, 0.27),
        (FLAT, 0.8, 4, 0.42),
        (FLAT, 0.0, 0, 1 / 0.97),
        (STEEP, 0.5, 0, 1 / 0.97),
        (STEEP, 0.0, 0, 1 / 0.97),
        ({0: 1.0, 1: 1.1, 2: 2.5, 4: 3.0}, 0.6, 1, 0.75),
    ],
)
def test_as_many_guesses_are_read_ahead_as_pay(seconds, share, size, most):
    machine = Machine(seconds, share)
    machine.run(500)
    machine.ahead.clear()
    assert machine.run(4000) < most
    assert Counter(machine.ahead).most_common(1)[0][0] == size


def test_a_machine_that_changes_is_measured_again():
    machine = Machine(dict(STEEP), 0.9)
    machine.run(3000)
    machine.seconds.update(FLAT)
    machine.run(3000)
    assert machine.run(1000) < 0.4


def test_nothing_is_read_ahead_before_a_plain_token_was_timed():
    machine = Machine(FLAT, 1.0)
    machine.run(6)
    assert not any(machine.ahead)


def test_a_step_that_reads_ahead_is_alone_and_its_wrong_guesses_go():
    """The next step waits for it, and takes back what was wrong."""
    scheduler = Scheduler(SchedulerConfig(groups=1, ahead=4), 1000)
    scheduler.shape(1, 2, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    scheduler.submit(Request((1,), 20, guesses=(7, 8, 9, 10, 11, 12, 13, 14)))
    first = scheduler.plan(0.0).step
    assert first.work == Decode(0)
    assert scheduler.plan(0.0) is None  # it waits: what it draws is guessed, and what follows
    scheduler.answered(first.n, (7,), 0.0)
    ahead = scheduler.plan(0.0).step
    assert (ahead.work, ahead.ids) == (Decode(0, 4, 4), (8, 9, 10, 11))
    assert scheduler.plan(0.0) is None
    assert scheduler.lack(ahead.n, ()) == "0 of 5 tokens"
    for wrong in ((), (8,), (8, 9), (9, 9), (8, 9, 10, 11), (8, 3, 10), (8, 9, 10, 11, 1, 1)):
        assert scheduler.lack(ahead.n, wrong)
    with pytest.raises(RemoteProtocolError, match="2 of 5"):
        scheduler.answered(ahead.n, (8, 9), 0.0)


@pytest.mark.parametrize(
    ("drawn", "back", "then"),
    [((3,), 4, (8, 9, 10)), ((8, 9, 3), 2, (10,)), ((8, 9, 10, 11, 12), 0, (13, 14))],
)
def test_the_next_step_takes_wrong_guesses_back(drawn, back, then):
    scheduler = Scheduler(SchedulerConfig(groups=1, ahead=4), 1000)
    scheduler.shape(1, 2, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    uid = scheduler.submit(Request((1,), 20, guesses=(7, 8, 9, 10, 11, 12, 13, 14)))
    scheduler.answered(scheduler.plan(0.0).step.n, (7,), 0.0)
    ahead = scheduler.plan(0.0).step
    outcomes = scheduler.answered(ahead.n, drawn, 0.0)
    assert [outcome.token for outcome in outcomes] == [*drawn]
    scheduler.guess(uid, 2 + len(drawn), then)
    step = scheduler.plan(0.0).step
    assert step.back == ((TakeBack(uid, back),) if back else ())
    assert step.ids[: len(then)] == then
    assert scheduler.ledger.length(uid) == 2 + len(drawn) + step.work.ahead


def test_a_row_that_ends_within_a_step_leaves_a_snapshot_of_its_text():
    scheduler = Scheduler(SchedulerConfig(groups=1, ahead=4, prefixes=2), 1000)
    scheduler.shape(1, 2, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    prompt = tuple(range(20, 60))
    uid = scheduler.submit(Request(prompt, 20, frozenset({9}), guesses=(7, 8, 9, 10, 11, 12)))
    scheduler.answered(scheduler.plan(0.0).step.n, (), 0.0)
    scheduler.answered(scheduler.plan(0.0).step.n, (7,), 0.0)
    ahead = scheduler.plan(0.0).step
    scheduler.answered(ahead.n, (8, 9, 10, 11, 12), 0.0)  # 9 ends it
    step = scheduler.plan(0.0).step
    assert step.back == (TakeBack(uid, 3),)
    assert step.evict == (uid,)
    ((handle, length),) = scheduler.ledger.snaps.items()
    assert length == len(prompt) + 2
    assert [save.handle for save in step.save] == [handle]


def test_a_row_that_is_cut_short_while_it_reads_ahead_keeps_what_is_known():
    scheduler = Scheduler(SchedulerConfig(groups=1, ahead=4, prefixes=2), 1000)
    scheduler.shape(1, 2, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    prompt = tuple(range(20, 60))
    uid = scheduler.submit(Request(prompt, 20, guesses=(7, 8, 9, 10, 11, 12)))
    scheduler.answered(scheduler.plan(0.0).step.n, (), 0.0)
    scheduler.answered(scheduler.plan(0.0).step.n, (7,), 0.0)
    ahead = scheduler.plan(0.0).step
    scheduler.finish(uid)
    step = scheduler.plan(0.0).step
    assert step.back == (TakeBack(uid, 4),)
    assert [*scheduler.ledger.snaps.values()] == [len(prompt) + 1]
    assert scheduler.answered(ahead.n, (8, 3), 0.0) == []


def piped(stages: int, **config) -> Scheduler:
    """A pipeline of *stages* that guesses as much as it may."""
    scheduler = Scheduler(SchedulerConfig(groups=1, **config), 1000)
    scheduler.shape(1, 1, stages, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    return scheduler


def plan_all(scheduler: Scheduler) -> list[Step]:
    """All steps that may begin now."""
    steps = []
    while (planned := scheduler.plan(0.0)) is not None:
        steps.append(planned.step)
    return steps


def test_idle_stages_read_several_guesses_each():
    """Each of the steps behind the first begins with the guess after those that are under way."""
    scheduler = piped(3, ahead=4)
    uid = scheduler.submit(Request((1,), 40, guesses=tuple(range(7, 40))))
    first, second, third = plan_all(scheduler)
    assert (first.work, first.ids) == (Decode(0), (1,))
    assert (second.work, second.ids) == (Decode(0, 5, 4), (7, 8, 9, 10, 11))
    assert (third.work, third.ids) == (Decode(0, 10, 4), (12, 13, 14, 15, 16))
    scheduler.answered(first.n, (7,), 0.0)
    assert scheduler.decided() == [(second.n, True)]
    (fourth,) = plan_all(scheduler)
    assert (fourth.work, fourth.ids) == (Decode(0, 14, 4), (17, 18, 19, 20, 21))
    outcomes = scheduler.answered(second.n, (8, 9, 10, 11, 12), 0.0)
    assert [outcome.token for outcome in outcomes] == [8, 9, 10, 11, 12]
    assert scheduler.decided() == [(third.n, True)]
    assert scheduler.lack(third.n, ()) == "0 of 5 tokens"
    assert [step.back for step in plan_all(scheduler)] == [()]
    assert scheduler.ledger.length(uid) == 16 + 5


@pytest.mark.parametrize(("drawn", "back"), [((8, 9, 3), 7), ((8, 9, 10, 11, 3), 5), ((3,), 9)])
def test_a_wrong_guess_wastes_the_rest_of_its_step_and_all_steps_behind_it(drawn, back):
    scheduler = piped(2, ahead=4)
    uid = scheduler.submit(Request((1,), 40, guesses=tuple(range(7, 40))))
    first, second = plan_all(scheduler)
    scheduler.answered(first.n, (7,), 0.0)
    (third,) = plan_all(scheduler)
    scheduler.decided()
    outcomes = scheduler.answered(second.n, drawn, 0.0)
    assert [outcome.token for outcome in outcomes] == [*drawn]
    assert scheduler.decided() == [(third.n, False)]
    steps = plan_all(scheduler)
    assert [step.back for step in steps] == [(TakeBack(uid, back),)] + [()] * (len(steps) - 1)
    assert [step.work.on_guess for step in steps] == [False] + [True] * (len(steps) - 1)
    assert not scheduler.lack(third.n, ())
    assert scheduler.lack(third.n, (13,))
    assert scheduler.answered(third.n, (), 0.0) == []
    read = sum(1 + step.work.ahead for step in steps)
    assert scheduler.ledger.length(uid) == len((1, 7, *drawn[:-1])) + read


def test_no_more_guesses_are_under_way_than_a_row_may_have():
    scheduler = piped(4, ahead=6)
    scheduler.submit(Request((1,), 90, guesses=tuple(range(7, 90))))
    works = [step.work for step in plan_all(scheduler)]
    assert works == [Decode(0), Decode(0, 7, 6), Decode(0, 14, 6), Decode(0, 16, 1)]


def test_a_row_reads_no_guess_beyond_its_last_token():
    """Of six tokens one is drawn after the prompt, and one after each of five guesses at most."""
    scheduler = piped(2, ahead=4)
    scheduler.submit(Request((1,), 6, guesses=tuple(range(7, 40))))
    first, second = plan_all(scheduler)
    assert second.work == Decode(0, 5, 4)
    scheduler.answered(first.n, (7,), 0.0)
    assert plan_all(scheduler) == []
    done = scheduler.answered(second.n, (8, 9, 10, 11, 12), 0.0)
    assert (done[-1].accepted, done[-1].rejected) == (5, 0)


def test_a_row_that_ends_amid_guesses_leaves_a_snapshot_of_its_text():
    """Its end is right as a guess, and so is what stands behind it: nobody asked for that."""
    scheduler = piped(2, ahead=4, prefixes=2)
    prompt = tuple(range(120, 160))
    eos = frozenset({9})
    uid = scheduler.submit(Request(prompt, 40, eos, guesses=tuple(range(7, 40))))
    read, first = plan_all(scheduler)
    scheduler.answered(read.n, (), 0.0)
    (second,) = plan_all(scheduler)
    scheduler.answered(first.n, (7,), 0.0)
    plan_all(scheduler)
    outcomes = scheduler.answered(second.n, (8, 9, 10, 11, 12), 0.0)  # 9 ends it
    assert (outcomes[-1].accepted, outcomes[-1].rejected) == (2, 0)
    step = scheduler.plan(0.0).step
    assert (step.back, step.evict) == ((TakeBack(uid, 8),), (uid,))
    assert [*scheduler.ledger.snaps.values()] == [len(prompt) + 2]


def test_rows_that_share_a_group_read_nothing_ahead():
    scheduler = Scheduler(SchedulerConfig(groups=1, ahead=4), 1000)
    scheduler.shape(1, 2, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    for prompt in ((1,), (2,)):
        scheduler.submit(Request(prompt, 20, guesses=(7,) * 20))
    for _ in range(5):
        planned = scheduler.plan(0.0)
        assert planned.step.work == Decode(0)
        scheduler.answered(planned.step.n, (7, 7), 0.0)


def test_a_long_prompt_is_looked_up_as_soon_as_it_is_read():
    scheduler = Scheduler(SchedulerConfig(groups=1), 20_000)
    scheduler.shape(1, 1, 2, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    scheduler.submit(Request((*range(100, 9_000), 7, 8, 9, *range(10_000, 12_000), 7, 8), 20))
    step = scheduler.plan(0.0).step
    while not isinstance(step.work, Decode):
        scheduler.answered(step.n, (), 0.0)
        step = scheduler.plan(0.0).step
    assert scheduler.plan(0.0).step.ids == (9,)


@pytest.mark.parametrize("config", [SchedulerConfig(groups=1), SchedulerConfig(groups=1, ahead=0)])
def test_nothing_is_read_ahead_that_is_not_asked_for(config):
    scheduler = Scheduler(config, 1000)
    scheduler.shape(1, 2, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    scheduler.submit(Request((1,), 20, guesses=(7,) * 20))
    assert [scheduler.plan(0.0).step.work for _ in range(2)] == [Decode(0)] * 2


@pytest.mark.parametrize(
    ("told", "asked", "most"), [(0, None, 0), (4, None, 4), (0, 3, 3), (4, 0, 0)]
)
def test_a_row_reads_as_many_ahead_as_its_engine_says_or_as_are_asked_for(told, asked, most):
    config = scheduler_config(
        SchedulerConfig(ahead=asked), attrs.evolve(info(), ahead=told), ("me",)
    )
    assert config.ahead == most


@pytest.mark.parametrize("world", [1, 2, 4, 16])
def test_a_chunk_for_each_rank_and_two_more_may_wait(world):
    hidden = 8192
    config = scheduler_config(SchedulerConfig(), attrs.evolve(info(), hop=hidden), ("me",) * world)
    assert config.chunk * hidden <= MAX_SEALED_BODY - STEP_ROOM
    assert (world + 2) * config.chunk * hidden <= MAX_WEIGHT_WAITING
    assert config.chunk >= 400


def test_guesses_end_before_the_first_that_is_beyond_the_vocabulary():
    """A step with such a token would end the epoch, for everybody."""
    scheduler = Scheduler(SchedulerConfig(groups=1, ahead=4, vocabulary=100), 1000)
    scheduler.shape(1, 2, guesses=True)
    scheduler._guessing.costs = AlwaysPay()
    scheduler.begin(EPOCH, [READY])
    text = (5, 6, 7, 8, 100, 9)
    uid = scheduler.submit(Request((1,), 20, guesses=text, prediction=text))
    request = scheduler._running.rows[uid].request
    assert request.guesses == request.prediction == (5, 6, 7, 8)
    scheduler.guess(uid, 1, (200, 5))
    assert max(scheduler.plan(0.0).step.ids) < 100


def test_guesses_of_what_comes_after_the_end_are_not_counted():
    request = Request((1, 2), 20, eos=frozenset({99}))
    guesses = RowGuesses([1, 2], request)
    guesses.drawn((5, 99, 7, 8), (5, 99, 7, 8, 9), 0.0, AlwaysPay(), alone=True)
    assert (guesses.accepted, guesses.rejected) == (1, 0)
