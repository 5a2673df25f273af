"""Guesses: which token is likely to come next, before the ring has drawn it.

In a pipeline the stages wait for each other while one row decodes. So the head has them work on a
guess of the next token. And where a step takes hardly longer with several tokens than with one, it
has a row read several guesses *ahead* with one step. A guess is right if it is the token that is
drawn; else what was computed on it is taken back. Guesses therefore never change a text.

A guess comes from whoever `RowGuesses.give`s some (a draft model); or from the request, which may
have one for each place of the answer; or else from the row itself: what followed when its last
tokens stood there before, in the prediction that came with the request, in the prompt or in the
answer so far (prompt look-up: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding).
A row whose guesses do not pay (`guess_costs`), or that has lost a step, pauses guessing for some
tokens. What it would have guessed is still compared with what is drawn, which costs nothing: it
goes on as soon as enough of that is right, and not before. Where there is nothing to compare, it
tries again after the pause.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

import attrs

from sealring_protocol.control.scheduler.guess_costs import GuessCosts, Outcome, Ways
from sealring_protocol.control.scheduler.requests import Request

_LONG: Final = 3
_SHORT: Final = 2
"""How many last tokens a look-up matches: it tries the longer match first."""

_CATCH_UP: Final = 256
"""Tokens of a prompt that one look-up indexes at most, so that none takes long."""

_STEADY: Final = 16
"""Guesses over which the share of right ones is averaged."""

_ASSUMED: Final = 4
"""Guesses that the share which is assumed at first counts as much as."""

_FIRST_MARGIN: Final = 0.2
_LATER_MARGIN: Final = 0.1
"""How far above break-even a row's share of right guesses is assumed to be, at first and after a
pause, until its own guesses tell."""

_BASELINE: Final = 8
"""Tokens that a row decodes without guesses first, while their pace has not been measured."""

_PAUSE: Final = 32
_LONGEST_PAUSE: Final = 512
"""Tokens that a row decodes without guesses once they did not pay: at first, and at most. Each
further pause is twice as long; right guesses shorten it again."""


class Lookup:
    """Finds what followed the last tokens of a text where they occurred before."""

    def __init__(self, before: Sequence[int], tokens: list[int]) -> None:
        """The text is *before*, and then *tokens*, which grow."""
        self._before: Final = before
        self._tokens: Final = tokens
        self._read = [0, 0]  # how many of *before* and of *tokens*
        self._next: dict[tuple[int, ...], int] = {}

    def after(self, guesses: Sequence[int]) -> int | None:
        """What is likely to follow the text and then *guesses*; None if nothing is."""
        for at, tokens in enumerate((self._before, self._tokens)):
            upto = min(len(tokens), self._read[at] + _CATCH_UP)
            for place in range(self._read[at], upto):
                for count in (_SHORT, _LONG):
                    if place >= count:
                        self._next[tuple(tokens[place - count : place])] = tokens[place]
            self._read[at] = upto
        end = (*self._tokens[-_LONG:], *guesses)[-_LONG:]
        for count in (_LONG, _SHORT):
            found = self._next.get(end[-count:])
            if found is not None:
                return found
        return None


def right_ones(guesses: Sequence[int], drawn: Sequence[int]) -> int:
    """How many of *guesses*, from the first on, were right, if *drawn* came in their places."""
    same = (one == other for one, other in zip(guesses, drawn, strict=False))
    return sum(itertools.takewhile(bool, same))


@attrs.frozen
class Fed:
    """The guess *token*, which step *n* reads."""

    n: int
    token: int


class RowGuesses:
    """The guesses of one row of *request*, whose *tokens* grow."""

    def __init__(self, tokens: list[int], request: Request) -> None:
        self._tokens: Final = tokens
        self._request: Final = request
        self._lookup: Final = Lookup(request.prediction, tokens)
        self._given: tuple[int, Sequence[int]] = (0, ())  # from a position on
        self.fed: Final[deque[Fed]] = deque()
        """Guesses under way, of the tokens after those that are known."""
        self.ways = Ways()
        self.accepted = 0
        self.rejected = 0
        self._share = 0.0
        self._judged = 0  # guesses that the share is made of
        self._margin = _FIRST_MARGIN
        self._last: tuple[Outcome | None, float] | None = None
        """What the last token came after, and when; None after several that were read ahead."""
        self._resumes = 0  # at this length
        self._paused = False  # guesses did not pay
        self._pause = _PAUSE

    def give(self, position: int, tokens: Sequence[int]) -> None:
        """From *position* on the row is likely to go on with *tokens*. They replace those given
        before."""
        self._given = position, tokens

    def next(self, costs: GuessCosts) -> int | None:
        """The next guess, after those under way; None if there is none, or guesses do not pay by
        *costs*."""
        if not self._may_guess(costs) or self._assumed(costs) < costs.break_even_piped:
            return None
        return self._after([fed.token for fed in self.fed])

    def ahead(self, costs: GuessCosts, coming: int, most: int) -> tuple[int, ...]:
        """The guesses that the row is to read ahead with one step, *most* at most, once *coming*
        tokens have come that are not known yet, and none if that does not pay by *costs*."""
        if not self._may_guess(costs) or not costs.ahead(self._assumed(costs), most, self.ways):
            return ()
        chain: list[int] = []
        while len(chain) < coming + most and (guess := self._after(chain)) is not None:
            chain.append(guess)
        count = costs.ahead(self._assumed(costs), len(chain) - coming, self.ways)
        return tuple(chain[coming : coming + count])

    def _may_guess(self, costs: GuessCosts) -> bool:
        first = len(self._request.prompt) + _BASELINE if costs.seconds(Outcome.PLAIN) is None else 0
        return len(self._tokens) >= max(first, self._resumes)

    def _assumed(self, costs: GuessCosts) -> float:
        """The share of its guesses that is taken to be right."""
        return self._share if self._judged else min(1.0, costs.break_even(self.ways) + self._margin)

    def _after(self, guesses: Sequence[int]) -> int | None:
        """What is likely to follow the tokens so far and then *guesses*; None if nothing is."""
        given = self._from_given(guesses)
        if given is not None:
            return given
        expected = self._request.guesses
        if expected is None:
            return self._lookup.after(guesses)
        place = len(self._tokens) + len(guesses) - len(self._request.prompt)
        return expected[place] if place < len(expected) else None

    def _from_given(self, under_way: Sequence[int]) -> int | None:
        position, given = self._given
        at = len(self._tokens) + len(under_way) - position
        if not 0 <= at < len(given):
            return None
        known = [*self._tokens[position:], *under_way][:at]
        return given[at] if list(given[:at]) == known else None

    def drawn(self, token: int, now: float, costs: GuessCosts, *, alone: bool) -> Fed | None:
        """*token* was drawn. Returns the oldest guess under way, and forgets it, if it was right.
        None if there is none, or if it was wrong: then all guesses under way are.

        If the row decodes *alone*, *costs* learn how long the token took.
        """
        outcome, right = Outcome.PLAIN, None
        if self._paused and not self.fed:
            self._compare(token, costs)
        if self.fed:
            self._paused = False
            outcome = Outcome.RIGHT if self.fed[0].token == token else Outcome.WRONG
            right = self.fed.popleft() if outcome is Outcome.RIGHT else None
            self._judge(outcome is Outcome.RIGHT, costs)
        before, self._last = self._last, (outcome, now) if alone else None
        if alone and before is not None and before[0] is not None:
            # While nothing was guessed before, a guess under way makes the token late.
            late = before[0] is Outcome.PLAIN and outcome is not Outcome.PLAIN
            if not late and costs.took(before[0], now - before[1]):
                self._measure()
        return right

    def drawn_ahead(
        self,
        guesses: Sequence[int],
        drawn: Sequence[int],
        now: float,
        costs: GuessCosts,
        *,
        alone: bool,
    ) -> None:
        """A step that read *guesses* ahead gave the tokens *drawn*. If the row decodes *alone*,
        *costs* learn how long the step took."""
        ended = next((at for at, token in enumerate(drawn) if token in self._request.eos), None)
        self._paused = False
        judged = guesses if ended is None else guesses[:ended]
        right = right_ones(judged, drawn)
        for _ in range(right):
            self._judge(True, costs)
        if right < len(judged):
            self._judge(False, costs)
        before, self._last = self._last, (None, now) if alone else None
        if alone and before is not None and costs.took_ahead(len(guesses), now - before[1]):
            self._measure()

    def _measure(self) -> None:
        """Guess nothing for a while, to see how long a token takes then."""
        self._resumes = max(self._resumes, len(self._tokens) + _BASELINE)

    def interrupted(self) -> None:
        """The row has lost its caches: its next token takes as long as to read it in again."""
        self._last = None

    def _judge(self, right: bool, costs: GuessCosts) -> None:
        break_even = costs.break_even(self.ways)
        if not self._judged:
            self._share = min(1.0, break_even + self._margin)
        self._judged = min(self._judged + 1, _STEADY - _ASSUMED)
        self._share += (right - self._share) / (self._judged + _ASSUMED)
        if self._share < break_even:
            self.pause()
            self._paused = True
            self._judged, self._margin = 0, _LATER_MARGIN
        if not right:
            self.rejected += 1
            return
        self.accepted += 1
        if self._share > break_even:
            self._pause = max(_PAUSE, self._pause // 2)

    def _compare(self, token: int, costs: GuessCosts) -> None:
        """*token* was drawn while guesses do not pay: judge what would have been guessed."""
        guess = self._after(())
        if guess is None:
            return
        self._judged = _STEADY - _ASSUMED
        self._share += ((guess == token) - self._share) / _STEADY
        if self._share > costs.break_even(self.ways) + self._margin:
            self._resumes, self._paused = len(self._tokens), False

    def pause(self) -> None:
        """Guess nothing for some tokens."""
        self._resumes = len(self._tokens) + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
