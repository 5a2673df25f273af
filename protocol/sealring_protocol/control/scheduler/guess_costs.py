"""When guesses pay: what right ones gain, and what wrong ones cost, as measured.

Stages that would wait cost nothing, in theory. In practice machines share memory, processors or a
link, so that work on a wrong guess slows down the rest. And a step that reads several guesses
*ahead* gives more tokens, but takes longer. So the time between two answers to a row that decodes
alone is averaged, by how many guesses the step read ahead, and by what was in flight behind the
step before (`After`).

Of k guesses that a step reads ahead, each right with a share a if those before it are, it gives
1 + a + ... + a^k tokens. The step behind it begins with one guess more, and is of use if all k + 1
are right: a share a^(k + 1) of all steps. So each `Way` of guessing has a pace in tokens per
second, and the fastest is taken.

Guesses are read ahead in place of none only if that is 5 % faster. A time that is not known, or has
not been measured for a long time, is taken to rise with k as between the two next smaller k that
are known. Where 0 is one of them it is taken not to rise: on some machines to read any guess at all
takes long, and further ones take little. The smallest k that is not known is tried a few times, by
a row that decodes alone, if it promises 5 % more than the best that is. So a row goes on to guess
where no k that is known pays, but the next one promises to.

The time after no guess is forgotten where all tokens have been guessed for long: the machine may
have other work now.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from sealring_protocol.control.scheduler.times import Times

_UNKNOWN: Final = 0.3
"""The break-even share of right guesses that is assumed until times are measured."""

FREE: Final = 0.02
"""The break-even share where wrong guesses cost nothing, so that a row that has none right
pauses."""

_STALE: Final = 512
"""Intervals after guesses, in a row, after which it is not known any more what a token takes
without."""

_GAIN: Final = 1.05
"""How much faster than without guesses it must be to read some ahead, as the share of right ones is
known roughly; and how much faster than the best one a way must promise to be that is not known."""

_LEAST: Final = 1e-9
"""Seconds that a token takes at least."""

_UNLIKE: Final = 16
"""Intervals in a row of which none counts, after which one does: else those of a row whose steps
never read as many guesses as those beside them would not be known, and a trial not end."""

_HALVINGS: Final = 6
"""How exactly a break-even share is computed."""


class After(enum.Enum):
    """What the step that an answer is to came after. PLAIN: a step with nothing behind it. RIGHT:
    the step was in flight then, and began with a right guess. WRONG: another step was, and began
    with a wrong one.
    """

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


class GuessCosts:
    """The measured times of one ring."""

    def __init__(self) -> None:
        self._times: Times[tuple[After, int]] = Times()  # and guesses ahead
        self._guessed = 0  # intervals since the last one after no guess
        self._unlike = 0  # intervals since the last one that was alike

    def took(self, after: After, seconds: float, ahead: int = 0, *, alike: bool = True) -> bool:
        """A step that read so many guesses *ahead*, and came *after* that, was answered *seconds*
        after the step before it. The steps before and behind it are *alike* if they read as many
        guesses ahead; of those in a row that are not, only each 17th counts. Larger ones delay it,
        and the first of its size may not have been built ahead. True if it is not known any more
        what a token takes after no guess."""
        self._unlike = 0 if alike else self._unlike + 1
        if self._unlike % (_UNLIKE + 1):
            return False
        self._times.add((after, ahead), seconds)
        plain = after is After.PLAIN and not ahead
        self._guessed = 0 if plain else self._guessed + 1
        if self._guessed < _STALE:
            return False
        self._guessed = 0
        self._times.forget((After.PLAIN, 0))
        return True

    def seconds(self, after: After, ahead: int = 0) -> float | None:
        """The mean seconds of steps that read so many guesses *ahead*, *after* that; None before it
        is known."""
        return self._times.seconds((after, ahead))

    @property
    def told(self) -> dict[str, float]:
        """The mean seconds that are known, by name. Of steps that read no guess ahead: `plain`,
        `right` and `wrong`. Of those that read four: `ahead 4`, with none behind; `right 4` and
        `wrong 4`."""
        told = {}
        known = self._times.known
        for after, ahead in sorted(known, key=lambda key: (key[1], key[0].value)):
            name = "ahead" if ahead and after is After.PLAIN else after.value
            told[f"{name} {ahead}" if ahead else name] = known[after, ahead]
        return told

    def break_even(self, ways: Ways) -> float:
        """The share of right guesses at which they begin to pay in one of *ways*, or promise to in
        one that is to be tried; above 1 if they never do."""
        shares = [self.break_even_piped] if ways.piped or not ways.sizes else []
        before = True
        for ahead in ways.sizes:
            way = Way(False, ahead)
            known = self._is_known(way)
            if ahead == ways.sizes[0] and not known:
                shares.append(_UNKNOWN)
            elif known or (before and ways.alone):
                shares.append(self._break_even(way, known=known))
            before = known
            if ways.piped and self._is_known(Way(True, ahead)):
                shares.append(self._break_even(Way(True, ahead)))
        return min(shares, default=2.0)

    @property
    def break_even_piped(self) -> float:
        """The share of right guesses at which one for each idle stage begins to pay. Where stages
        are idle that takes no margin: both times are compared at the same size."""
        plain, right, wrong = map(self.seconds, After)
        if plain is None or right is None:
            return _UNKNOWN
        if right >= plain:
            return 2.0
        wrong = max(plain, wrong or 0.0)
        return max(FREE, (wrong - plain) / (wrong - right))

    def _break_even(self, way: Way, *, known: bool = True) -> float:
        plain = self.seconds(After.PLAIN)
        if plain is None:
            return _UNKNOWN
        wanted = (_GAIN if known else _GAIN * _GAIN) / max(plain, _LEAST)
        if self._pace(way, 1.0) <= wanted:
            return 2.0
        low, high = FREE, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._pace(way, middle) > wanted else (middle, high)
        return high

    def way(self, share: float, most: int, ways: Ways) -> Way:
        """How a row with these *ways* is to guess, if so large a *share* of its guesses is right,
        and it may read *most* ahead with one step."""
        best = Way(ways.piped and share >= self.break_even_piped)
        plain = self.seconds(After.PLAIN)
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
        kinds = (After.RIGHT, After.WRONG) if way.piped else (After.PLAIN,)
        return any(self.seconds(after, way.ahead) is not None for after in kinds)

    def _pace(self, way: Way, share: float) -> float:
        """Tokens a second. Infinite for a piped way while no time after a right guess is known, so
        that single guesses are tried first."""
        tokens = sum(share**right for right in range(way.ahead + 1))
        plain = self._expected(After.PLAIN, way.ahead)
        if not way.piped:
            return tokens / max(_LEAST, plain or 0.0)
        right = self._expected(After.RIGHT, way.ahead)
        if right is None:
            return float("inf")
        wrong = self._expected(After.WRONG, way.ahead) or max(right, plain or 0.0)
        useful = share ** (way.ahead + 1)
        return tokens / max(_LEAST, useful * right + (1 - useful) * wrong)

    def _expected(self, after: After, ahead: int) -> float | None:
        """The seconds of steps that read so many guesses *ahead*. Where they are not known, they
        are taken to rise as between the two next smaller numbers for which they are, but not if one
        of these is 0. None if they are known for none."""
        known: list[tuple[int, float]] = []
        for fewer in range(ahead, -1, -1):
            seconds = self.seconds(after, fewer)
            if seconds is not None:
                known.append((fewer, seconds))
                if fewer == ahead or len(known) == 2:
                    break
        if not known:
            return None
        (most, seconds), (least, less) = known[0], known[-1]
        if least == 0:
            return seconds
        return seconds + max(0.0, seconds - less) / max(1, most - least) * (ahead - most)
