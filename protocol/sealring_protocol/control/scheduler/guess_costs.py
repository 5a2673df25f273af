"""When guesses pay: what right ones gain, and what wrong ones cost, as measured.

Stages that would wait cost nothing, in theory. In practice machines share memory, processors or a
link, so that work on a wrong guess slows down the rest. And a step that reads several guesses
*ahead* gives more tokens, but takes longer. So the time between two answers to a row that decodes
alone is averaged, by how many guesses the step read ahead, for three cases: nothing was in flight
behind the answer before; the next step was, on a right guess; or on a wrong one.

Of k guesses that a step reads ahead, each right with a share a if those before it are, it gives
1 + a + ... + a^k tokens. The step behind it is of use if all of them are right, and the one that it
begins with, too: a share a^(k + 1) of all. So each `Way` of guessing has a pace in tokens per
second, and the fastest is taken. A time that is not known, or was not measured for long, is tried a
few times as if it were that of the next smaller k. The time after no guess is forgotten where all
tokens have been guessed for long: the machine may have other work now.
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
"""Intervals of a kind after which their time is known: that of the fastest. A device prepares for a
new shape, a GPU for a second or more; so the very first does not count."""

_FORGOTTEN: Final = 2048
"""Intervals after which a time is not known any more that was not measured meanwhile."""

_GAIN: Final = 1.05
"""How much faster than without guesses it must be to read some ahead, as the share of right ones is
known roughly."""

_LEAST: Final = 1e-9
"""Seconds that a token takes at least."""

_HALVINGS: Final = 6
"""How exactly a break-even share is computed."""


class Outcome(enum.Enum):
    """What an answer came after: one with nothing in flight behind it, or with a step on a guess
    that was right, or wrong."""

    PLAIN = "plain"
    RIGHT = "right"
    WRONG = "wrong"


@attrs.frozen
class Way:
    """How a row guesses: each step reads so many guesses *ahead*; and if *piped*, steps that begin
    with a guess follow it, while stages are idle."""

    piped: bool = False
    ahead: int = 0


@attrs.frozen
class Ways:
    """How a row may guess: *piped*, for stages are idle; and with as many guesses ahead as one of
    *sizes* says, which rise. Only a row that decodes *alone* tries what is not known."""

    piped: bool = True
    sizes: tuple[int, ...] = ()
    alone: bool = True


class _Time:
    """The *seconds* of intervals of one kind, *count* of them since *latest* was the tick."""

    def __init__(self) -> None:
        self.seconds, self.count, self.latest = 0.0, -1, 0

    def add(self, seconds: float, tick: int) -> None:
        self.count, self.latest = min(self.count + 1, _STEADY), tick
        if self.count <= 1:
            self.seconds = seconds
        elif self.count <= _TRIES:
            self.seconds = min(self.seconds, seconds)
        else:
            self.seconds += (min(seconds, _OUTLIER * self.seconds) - self.seconds) / self.count


class GuessCosts:
    """The measured times of one ring."""

    def __init__(self) -> None:
        self._times: dict[tuple[Outcome, int], _Time] = {}  # by outcome and guesses ahead
        self._guessed = 0  # intervals since the last one after no guess
        self._tick = 0  # intervals so far

    def took(self, outcome: Outcome, seconds: float, ahead: int = 0) -> bool:
        """The answer to a step that read so many guesses *ahead* came *seconds* after the one
        before, after *outcome*. True if it is not known any more what a token takes after no
        guess."""
        self._tick += 1
        self._times.setdefault((outcome, ahead), _Time()).add(seconds, self._tick)
        plain = outcome is Outcome.PLAIN and not ahead
        self._guessed = 0 if plain else self._guessed + 1
        if self._guessed < _STALE:
            return False
        self._guessed = 0
        self._times.pop((Outcome.PLAIN, 0), None)
        return True

    def seconds(self, outcome: Outcome, ahead: int = 0) -> float | None:
        """The mean seconds of steps that read so many guesses *ahead*, after *outcome*; None before
        it is known."""
        found = self._times.get((outcome, ahead))
        if found is None or found.count < _TRIES:
            return None
        if self._tick - found.latest > _FORGOTTEN:
            del self._times[outcome, ahead]
            return None
        return found.seconds

    @property
    def told(self) -> dict[str, float]:
        """The mean seconds that are known: of a token after no guess (`plain`), after a right and
        after a wrong one; of a step that reads so many ahead with nothing behind it (`ahead 4`);
        and of one after a right or a wrong one, which reads so many ahead (`right 2`)."""
        told = {}
        for outcome, ahead in sorted(self._times, key=lambda key: (key[1], key[0].value)):
            name = "ahead" if ahead and outcome is Outcome.PLAIN else outcome.value
            if (seconds := self.seconds(outcome, ahead)) is not None:
                told[f"{name} {ahead}" if ahead else name] = seconds
        return told

    def break_even(self, ways: Ways) -> float:
        """The share of right guesses at which they begin to pay in one of *ways*; above 1 if they
        never do."""
        shares = [self.break_even_piped] if ways.piped or not ways.sizes else []
        for ahead in ways.sizes:
            unknown = _UNKNOWN if ahead == ways.sizes[0] else 2.0
            shares.append(self._break_even(Way(False, ahead), unknown))
            if ways.piped:
                shares.append(self._break_even(Way(True, ahead), 2.0))
        return min(shares)

    @property
    def break_even_piped(self) -> float:
        """The share of right guesses at which one for each idle stage begins to pay."""
        plain, right, wrong = map(self.seconds, Outcome)
        if plain is None or right is None:
            return _UNKNOWN
        if wrong is None or wrong <= plain:
            return 0.02 if right < plain else 2.0
        return (wrong - plain) / (wrong - right) if right < plain else 2.0

    def _break_even(self, way: Way, unknown: float) -> float:
        plain = self.seconds(Outcome.PLAIN)
        if plain is None or not self._is_known(way):
            return unknown
        wanted = _GAIN / max(plain, _LEAST)
        if self._pace(way, 1.0) <= wanted:
            return 2.0
        low, high = 0.02, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._pace(way, middle) > wanted else (middle, high)
        return high

    def way(self, share: float, most: int, ways: Ways) -> Way:
        """How a row with these *ways* is to guess, if so large a *share* of its guesses is right,
        and it may read *most* ahead with one step."""
        best = Way(ways.piped and share >= self.break_even_piped)
        plain = self.seconds(Outcome.PLAIN)
        if plain is None:
            return best
        pace = _GAIN / max(plain, _LEAST)
        if ways.piped:
            pace = max(pace, self._pace(Way(True), share))
        for piped in (True, False) if ways.piped else (False,):
            for ahead in ways.sizes:
                way = Way(piped, ahead)
                known = self._is_known(way)
                if ahead > most or not (known or ways.alone):
                    break
                found = self._pace(way, share)
                if found > (pace if known else _GAIN * pace):
                    best, pace = way, found
                if not known:
                    break
        return best

    def _is_known(self, way: Way) -> bool:
        outcomes = (Outcome.RIGHT, Outcome.WRONG) if way.piped else (Outcome.PLAIN,)
        return any(self.seconds(outcome, way.ahead) is not None for outcome in outcomes)

    def _pace(self, way: Way, share: float) -> float:
        """Tokens a second; endless for a guess for each idle stage before that is known."""
        tokens = sum(share**right for right in range(way.ahead + 1))
        plain = self._expected(Outcome.PLAIN, way.ahead)
        if not way.piped:
            return tokens / max(_LEAST, plain or 0.0)
        right = self._expected(Outcome.RIGHT, way.ahead)
        if right is None:
            return float("inf")
        wrong = self._expected(Outcome.WRONG, way.ahead) or max(right, plain or 0.0)
        useful = share ** (way.ahead + 1)
        return tokens / max(_LEAST, useful * right + (1 - useful) * wrong)

    def _expected(self, outcome: Outcome, ahead: int) -> float | None:
        """The seconds of steps that read so many guesses *ahead*. Where they are not known, they
        are taken to rise as between the two next smaller numbers of which they are; None if there
        are none at all."""
        known: list[tuple[int, float]] = []
        for fewer in range(ahead, -1, -1):
            seconds = self.seconds(outcome, fewer)
            if seconds is not None:
                known.append((fewer, seconds))
                if fewer == ahead or len(known) == 2:
                    break
        if not known:
            return None
        (most, seconds), (least, less) = known[0], known[-1]
        rise = max(0.0, seconds - less) / max(1, most - least)
        return seconds + rise * (ahead - most)
