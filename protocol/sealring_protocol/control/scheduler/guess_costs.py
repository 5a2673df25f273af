"""When guesses pay: what a right one gains, and what a wrong one costs, as measured.

Stages that would wait cost nothing, in theory. In practice machines share memory, processors or a
link, so that work on a wrong guess slows down the rest. So the time between two tokens of a row
that decodes alone is averaged for three cases: after no guess, after a right one, after a wrong
one. Guesses pay for a row if its share of right ones makes up for the rest. The time after no guess
is forgotten where all tokens have been guessed for long: the machine may have other work now.
"""

from __future__ import annotations

import enum
from typing import Final

_UNKNOWN: Final = 0.3
"""The break-even share of right guesses that is assumed until times are measured."""

_STEADY: Final = 16
"""Intervals over which a time is averaged."""

_OUTLIER: Final = 4.0
"""Intervals are cut off at so many times the average: the machine did something else."""

_STALE: Final = 512
"""Intervals after guesses, in a row, after which it is not known any more what a token takes
without."""


class Outcome(enum.Enum):
    """What a token came after."""

    PLAIN = "plain"
    RIGHT = "right"
    WRONG = "wrong"


class GuessCosts:
    """The measured times of one ring."""

    def __init__(self) -> None:
        self._seconds: dict[Outcome, tuple[float, int]] = {}
        self._guessed = 0  # intervals since the last one after no guess

    def took(self, outcome: Outcome, seconds: float) -> bool:
        """A row's token came *seconds* after the one before, after *outcome*. True if it is not
        known any more what a token takes after no guess."""
        mean, count = self._seconds.get(outcome, (seconds, 0))
        count = min(count + 1, _STEADY)
        mean += (min(seconds, _OUTLIER * mean) - mean) / count
        self._seconds[outcome] = mean, count
        self._guessed = 0 if outcome is Outcome.PLAIN else self._guessed + 1
        if self._guessed < _STALE:
            return False
        self._guessed = 0
        self._seconds.pop(Outcome.PLAIN, None)
        return True

    def seconds(self, outcome: Outcome) -> float | None:
        """The mean seconds of *outcome*; None before it is known."""
        mean, count = self._seconds.get(outcome, (0.0, 0))
        return mean if count >= 4 else None

    @property
    def break_even(self) -> float:
        """The share of right guesses at which they begin to pay; above 1 if they never do."""
        plain, right, wrong = map(self.seconds, Outcome)
        if plain is None or right is None:
            return _UNKNOWN
        if wrong is None or wrong <= plain:
            return 0.02 if right < plain else 2.0
        return (wrong - plain) / (wrong - right) if right < plain else 2.0
