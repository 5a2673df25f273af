"""When guesses pay: what a right one gains, and what a wrong one costs, as measured.

Stages that would wait cost nothing, in theory. In practice machines share memory, processors or a
link, so that work on a wrong guess slows down the rest. So the time between two tokens of a row
that decodes alone is averaged for three cases: after no guess, after a right one, after a wrong
one. Guesses pay for a row if its share of right ones makes up for the rest. The time after no guess
is forgotten where all tokens have been guessed for long: the machine may have other work now.

A row may also read several guesses *ahead* with one step. Of k guesses, each right with a share a
if those before it are, such a step gives 1 + a + ... + a^k tokens, and it takes a time that depends
on k alone. This time is averaged for a few k. One that is not known, or was not measured for long,
is tried a few times as if it were no longer than the next smaller one's.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

_UNKNOWN: Final = 0.3
"""The break-even share of right guesses that is assumed until times are measured."""

_STEADY: Final = 16
"""Intervals over which a time is averaged."""

_OUTLIER: Final = 4.0
"""Intervals are cut off at so many times the average: the machine did something else."""

_STALE: Final = 512
"""Intervals after guesses, in a row, after which it is not known any more what a token takes
without."""

_TRIES: Final = 3
"""Steps that read so many guesses ahead after which their time is known: that of the fastest. A
device prepares for a new shape, a GPU for a second or more; so the very first does not count."""

_FORGOTTEN: Final = 2048
"""Intervals after which it is not known any more what a step takes that was not measured
meanwhile."""

_GAIN: Final = 1.05
"""How much faster than without guesses it must be to read some ahead, as the share of right ones is
known roughly."""

_LEAST: Final = 1e-9
"""Seconds that a token takes at least."""

_HALVINGS: Final = 6
"""How exactly a break-even share is computed."""


class Outcome(enum.Enum):
    """What a token came after."""

    PLAIN = "plain"
    RIGHT = "right"
    WRONG = "wrong"


@attrs.frozen
class Ways:
    """How a row may have guesses: *piped*, each with a step of its own, for stages are idle; or
    several ahead with one step, so many as one of *sizes* says, which rise. Only a row that decodes
    *alone* tries sizes whose times are not known."""

    piped: bool = True
    sizes: tuple[int, ...] = ()
    alone: bool = True


class _Ahead:
    """The *seconds* of steps that read so many guesses ahead, by *count* of them since *since*."""

    def __init__(self, since: int) -> None:
        self.seconds, self.count, self.latest = 0.0, -1, since

    def add(self, seconds: float, tick: int) -> None:
        self.count, self.latest = min(self.count + 1, _STEADY), tick
        if self.count == 1:
            self.seconds = seconds
        elif 1 < self.count <= _TRIES:
            self.seconds = min(self.seconds, seconds)
        elif self.count > _TRIES:
            self.seconds += (min(seconds, _OUTLIER * self.seconds) - self.seconds) / self.count


class GuessCosts:
    """The measured times of one ring."""

    def __init__(self) -> None:
        self._seconds: dict[Outcome, tuple[float, int]] = {}
        self._guessed = 0  # intervals since the last one after no guess
        self._ahead: dict[int, _Ahead] = {}  # by number of guesses
        self._tick = 0  # intervals so far

    def took(self, outcome: Outcome, seconds: float) -> bool:
        """A row's token came *seconds* after the one before, after *outcome*. True if it is not
        known any more what a token takes after no guess."""
        mean, count = self._seconds.get(outcome, (seconds, 0))
        count = min(count + 1, _STEADY)
        mean += (min(seconds, _OUTLIER * mean) - mean) / count
        self._seconds[outcome] = mean, count
        return self._counted(plain=outcome is Outcome.PLAIN)

    def took_ahead(self, guesses: int, seconds: float) -> bool:
        """A step that read so many *guesses* ahead took *seconds*. True as in `took`."""
        self._ahead.setdefault(guesses, _Ahead(self._tick)).add(seconds, self._tick)
        return self._counted(plain=False)

    def _counted(self, *, plain: bool) -> bool:
        self._tick += 1
        self._guessed = 0 if plain else self._guessed + 1
        if self._guessed < _STALE:
            return False
        self._guessed = 0
        self._seconds.pop(Outcome.PLAIN, None)
        return True

    def seconds(self, outcome: Outcome) -> float | None:
        """The mean seconds of *outcome*; None before it is known."""
        mean, count = self._seconds.get(outcome, (0.0, 0))
        return mean if count >= 4 else None

    def seconds_ahead(self, guesses: int) -> float | None:
        """The mean seconds of a step that reads so many *guesses* ahead; None before it is
        known."""
        found = self._ahead.get(guesses)
        if found is None or found.count < _TRIES:
            return None
        if self._tick - found.latest > _FORGOTTEN:
            del self._ahead[guesses]
            return None
        return found.seconds

    def break_even(self, ways: Ways) -> float:
        """The share of right guesses at which they begin to pay in one of *ways*; above 1 if they
        never do."""
        shares = [self.break_even_piped] if ways.piped or not ways.sizes else []
        for guesses in ways.sizes:
            unknown = _UNKNOWN if guesses == ways.sizes[0] else 2.0
            shares.append(self._break_even_ahead(guesses, unknown))
        return min(shares)

    @property
    def told(self) -> dict[str, float]:
        """The mean seconds that are known: of a token after no guess (`plain`), after a right and
        after a wrong one, and of a step that reads so many ahead (`ahead 4`)."""
        found = {outcome.value: self.seconds(outcome) for outcome in Outcome}
        found |= {f"ahead {size}": self.seconds_ahead(size) for size in sorted(self._ahead)}
        return {name: seconds for name, seconds in found.items() if seconds is not None}

    @property
    def break_even_piped(self) -> float:
        """The share of right guesses at which one for each idle stage begins to pay."""
        plain, right, wrong = map(self.seconds, Outcome)
        if plain is None or right is None:
            return _UNKNOWN
        if wrong is None or wrong <= plain:
            return 0.02 if right < plain else 2.0
        return (wrong - plain) / (wrong - right) if right < plain else 2.0

    def _break_even_ahead(self, guesses: int, unknown: float) -> float:
        plain, seconds = self.seconds(Outcome.PLAIN), self.seconds_ahead(guesses)
        if plain is None or seconds is None:
            return unknown
        wanted = _GAIN * seconds / max(plain, _LEAST)
        if wanted >= 1 + guesses:
            return 2.0
        low, high = 0.02, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if _tokens(middle, guesses) > wanted else (middle, high)
        return high

    def ahead(self, share: float, most: int, ways: Ways) -> int:
        """How many guesses, *most* at most, a row with these *ways* is to read ahead with its next
        step, if so large a *share* of them is right. 0 if that does not pay, or less than a guess
        for each stage."""
        plain = self.seconds(Outcome.PLAIN)
        if plain is None or not ways.sizes:
            return 0
        best, pace = 0, _GAIN / max(plain, _LEAST)
        if ways.piped:
            pace = max(pace, self._piped_pace(plain, share))
        smaller = plain
        for guesses in ways.sizes:
            seconds = self.seconds_ahead(guesses)
            if guesses > most or (seconds is None and not ways.alone):
                break
            found = _tokens(share, guesses) / max(_LEAST, smaller if seconds is None else seconds)
            if found > pace:
                best, pace = guesses, found
            if seconds is None:
                break
            smaller = seconds
        return best

    def _piped_pace(self, plain: float, share: float) -> float:
        """Tokens a second with a guess for each idle stage; endless before it is known."""
        right, wrong = self.seconds(Outcome.RIGHT), self.seconds(Outcome.WRONG)
        if right is None:
            return float("inf")
        if wrong is None:
            wrong = max(plain, right)
        return 1 / max(_LEAST, share * right + (1 - share) * wrong)


def _tokens(share: float, guesses: int) -> float:
    """The tokens that a step gives which reads so many *guesses* ahead."""
    return 1 + sum(share**right for right in range(1, guesses + 1))
