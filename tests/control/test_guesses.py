"""Which tokens are guessed, and when guessing stops because it does not pay."""

from random import Random

import pytest
from sealring_protocol.codec.messages import CacheCost, Decode, Epoch, Ready
from sealring_protocol.control.scheduler.guess_costs import GuessCosts, Outcome
from sealring_protocol.control.scheduler.guesses import Fed, Lookup, RowGuesses
from sealring_protocol.control.scheduler.requests import Request, SchedulerConfig
from sealring_protocol.control.scheduler.scheduler import Scheduler

from tests.sim.brains import AlwaysPay

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
            guess = self.guesses.next(self.costs)
            if guess is not None:
                self.guesses.fed.append(Fed(1, guess))
                guessed += 1
            self.now += wait
            self.guesses.drawn(token, self.now, self.costs, alone=True)
            wait = plain if guess is None else right if guess == token else wrong
            self.guesses.fed.clear()
            self.tokens.append(token)
        return guessed / count


BUSY, QUIET = (3.0, 1.6, 3.1), (1.0, 0.6, 1.5)
"""Seconds of a machine with other work, and without."""


@pytest.mark.parametrize(
    ("share", "least", "most"), [(0.0, 0.0, 0.1), (0.3, 0.0, 0.5), (0.8, 0.9, 1.0), (1.0, 0.9, 1.0)]
)
def test_guesses_are_made_while_they_pay(share: float, least: float, most: float) -> None:
    row = Row(GuessCosts())
    row.run(200, QUIET, share)
    assert least <= row.run(4000, QUIET, share) <= most


def test_a_row_whose_text_changes_is_guessed_again() -> None:
    row = Row(GuessCosts())
    assert row.run(1000, QUIET, 0.0) < 0.2
    row.run(1000, QUIET, 1.0)
    assert row.run(1000, QUIET, 1.0) > 0.9


def test_what_a_token_takes_without_guesses_is_measured_again() -> None:
    """It was slow once, so that wrong guesses seemed to cost nothing: they do now."""
    row = Row(GuessCosts())
    row.run(200, BUSY, 0.9)
    row.run(1000, QUIET, 0.2)
    assert row.run(4000, QUIET, 0.2) < 0.3


def test_a_row_that_waited_for_an_epoch_tells_nothing_of_guesses() -> None:
    row = Row(GuessCosts())
    row.run(5, QUIET, 0.0)
    row.now += 1000
    row.guesses.interrupted()
    row.run(5, QUIET, 0.0)
    assert row.costs.seconds(Outcome.PLAIN) == pytest.approx(1.0)


def test_a_row_that_is_not_alone_any_more_tells_nothing_of_guesses() -> None:
    row = Row(GuessCosts())
    row.run(5, QUIET, 0.0)
    row.guesses.drawn(5, row.now + 1000, row.costs, alone=False)
    row.run(1, QUIET, 0.0)
    assert row.costs.seconds(Outcome.PLAIN) == pytest.approx(1.0)


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
