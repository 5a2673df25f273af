"""The scheduler's records: of each row, with its states and guesses, and of each step in flight.

A guess says which token is likely to come next, before the ring has drawn it. In a pipeline the
stages wait for each other while one row decodes. So the head has them work on a guess of the next
token. And where a step takes hardly longer with several tokens than with one, it has a row read
several guesses *ahead* with one step. Both may go together: then each step under way reads several.
A guess is right if it is the token that is drawn; else what was computed on it is taken back.
Guesses therefore never change a text.

A guess comes from whoever `RowGuesses.give`s some (a draft model); or from the request, which may
have one for each place of the answer; or else from the row itself: what followed when its last
tokens stood there before, in the prediction that came with the request, in the prompt or in the
answer so far (prompt look-up: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding).
A row whose first guess is wrong guesses nothing more before a guess would have been right, unless
wrong ones cost nothing. A row whose guesses do not pay (`GuessCosts`), or that has lost a step,
pauses guessing for some tokens. What it would have guessed is still compared with what is drawn,
which costs nothing: it goes on as soon as enough of that is right, and not before. Where there is
nothing to compare, it tries again after the pause.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import attrs

from sealring_protocol.codec.messages import Decode, Prefill, Row, Step, Work
from sealring_protocol.control.epoch.pipeline import weight
from sealring_protocol.control.requests import Request, RowOpened, SchedulerConfig
from sealring_protocol.control.scheduler.times import GAIN, LEAST, After, StepTimes
from sealring_protocol.limits import (
    ENTRY_WEIGHT,
    HISTORY_WEIGHT,
    MAX_GUESSED,
    MAX_ROW_WEIGHT,
    MAX_ROWS,
    MAX_SEALED_BODY,
    MAX_STEPS_WAITING,
    MAX_WEIGHT_WAITING,
)
from sealring_protocol.table import Machine, Table

# Stages that would wait cost nothing, in theory. In practice machines share memory, processors or
# a link, so that work on a wrong guess slows down the rest. And a step that reads several guesses
# *ahead* gives more tokens, but takes longer. So the time between two answers to a row that
# decodes alone is learnt, by how many guesses the step read ahead, and by what was in flight
# behind the step before (`After`).
#
# Of k guesses that a step reads ahead, each right with a share a if those before it are, it gives
# 1 + a + ... + a^k tokens. The step behind it begins with one guess more, and is of use if all k
# + 1 are right: a share a^(k + 1) of all steps. So each `Way` of guessing has a pace in tokens
# per second, and the fastest is taken.
#
# Guesses are read ahead in place of none only if that is faster by `GAIN`. The smallest k that is
# not known is tried a few times, by a row that decodes alone, if it promises as much more than the
# best that is. So a row goes on to guess where no k that is known pays, but the next one promises
# to.


_UNKNOWN: Final = 0.3
"""The break-even share of right guesses that is assumed until times are measured."""

FREE: Final = 0.02
"""The break-even share where wrong guesses cost nothing, so that a row that has none right
pauses."""

_HALVINGS: Final = 6
"""How exactly a break-even share is computed."""


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
    """When guesses pay: what right ones gain, and what wrong ones cost, by *times*."""

    def __init__(self, times: StepTimes) -> None:
        self.times: Final = times
        self._known = times.known

    @property
    def plain(self) -> float | None:
        """The mean seconds of a token after no guess; None before they are known."""
        return self._known.get((After.PLAIN, 0))

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
        plain, right = self.plain, self._known.get((After.RIGHT, 0))
        if plain is None or right is None:
            return _UNKNOWN
        if right >= plain:
            return 2.0
        wrong = max(plain, self._known.get((After.WRONG, 0)) or 0.0)
        return max(FREE, (wrong - plain) / (wrong - right))

    def _break_even(self, way: Way, *, known: bool = True) -> float:
        plain = self.plain
        if plain is None:
            return _UNKNOWN
        wanted = (GAIN if known else GAIN * GAIN) / max(plain, LEAST)
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
        plain = self.plain
        if plain is None or not ways.sizes:
            return best
        pace = GAIN / max(plain, LEAST)
        if ways.piped:
            pace = max(pace, self._pace(Way(True), share))
        for piped in (True, False) if ways.piped else (False,):
            for ahead in ways.sizes:
                way = Way(piped, ahead)
                known = self._is_known(way)
                if ahead > most or not (known or ways.alone):
                    break
                found = self._pace(way, share)
                if found > (pace if known else GAIN * pace):
                    best, pace = way, found
                if not known:
                    break
        return best

    def _is_known(self, way: Way) -> bool:
        if not way.piped:
            return (After.PLAIN, way.ahead) in self._known
        return (After.RIGHT, way.ahead) in self._known or (After.WRONG, way.ahead) in self._known

    def _pace(self, way: Way, share: float) -> float:
        """Tokens a second. Infinite for a piped way while no time after a right guess is known, so
        that single guesses are tried first."""
        tokens = useful = 1.0  # the share of steps whose guesses so far are all right
        for _ in range(way.ahead):
            useful *= share
            tokens += useful
        plain = self.times.expected(After.PLAIN, way.ahead)
        if not way.piped:
            return tokens / max(LEAST, plain or 0.0)
        right = self.times.expected(After.RIGHT, way.ahead)
        if right is None:
            return float("inf")
        wrong = self.times.expected(After.WRONG, way.ahead) or max(right, plain or 0.0)
        useful *= share
        return tokens / max(LEAST, useful * right + (1 - useful) * wrong)


GUESSES_AHEAD: Final = (1, 2, 4, 8, MAX_GUESSED)
"""How many guesses a step reads ahead: few numbers, for each is learnt, and prepared by devices, by
itself."""

_LONG: Final = 3
_SHORT: Final = 2
"""How many last tokens a look-up matches: it tries the longer match first."""

_CATCH_UP: Final = 256
"""Tokens that one look-up takes in at most of a prompt whose cache was there, or of a prediction,
so that none takes long. What ranks read is taken in meanwhile."""

_STEADY: Final = 16
"""Guesses over which the share of right ones is averaged."""

_ASSUMED: Final = 4
"""Guesses that the share which is assumed at first counts as much as."""

_FIRST_MARGIN: Final = 0.2
_LATER_MARGIN: Final = 0.1
"""How far above break-even a row's share of right guesses is assumed to be, at first and after a
pause, until its own guesses are judged."""

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
        if self._read != [len(self._before), len(self._tokens)]:
            self.index(_CATCH_UP)
        end = (*self._tokens[-_LONG:], *guesses)[-_LONG:]
        for count in (_LONG, _SHORT):
            found = self._next.get(end[-count:])
            if found is not None:
                return found
        return None

    def index(self, most: int) -> None:
        """Take in so many further tokens of either part, at most."""
        for at, tokens in enumerate((self._before, self._tokens)):
            upto = min(len(tokens), self._read[at] + most)
            for place in range(self._read[at], upto):
                for count in (_SHORT, _LONG):
                    if place >= count:
                        self._next[tuple(tokens[place - count : place])] = tokens[place]
            self._read[at] = upto


def right_ones(guesses: Sequence[int], drawn: Sequence[int]) -> int:
    """How many of *guesses*, from the first on, were right, if *drawn* came in their places."""
    right = 0
    for guess, token in zip(guesses, drawn, strict=False):
        if guess != token:
            break
        right += 1
    return right


@attrs.frozen
class Fed:
    """The guesses *tokens*, which step *n* reads: the first in place of the token drawn last."""

    n: int
    tokens: tuple[int, ...]


class RowGuesses:
    """The guesses of one row of *request*, whose *tokens* grow."""

    def __init__(self, tokens: list[int], request: Request) -> None:
        self._tokens: Final = tokens
        self._request: Final = request
        self._lookup: Final = Lookup(request.prediction, tokens)
        self._given: tuple[int, Sequence[int]] = (0, ())  # from a position on
        self.ahead: tuple[int, ...] = ()
        """Those that a step under way reads after the row's last token."""
        self.fed: Final[deque[Fed]] = deque()
        """Those of the steps behind that one, which begin with a guess."""
        self.ways = Ways()
        self.accepted = 0
        self.rejected = 0
        self._share = 0.0
        self._judged = 0  # guesses that the share is made of
        self._margin = _FIRST_MARGIN
        self._last: tuple[After | None, float] | None = None
        """When the last answer came, and what the next step comes after, if a time after that may
        be learnt. None before the first answer that can be timed."""
        self._sizes: set[int] = set()  # guesses ahead, of that answer's step and those behind it
        self._foreseen: int | None = None  # what would have been guessed of the next token
        self._trusted = True  # its first guess was right, or a later token was as foreseen
        self._resumes = 0  # at this length
        self._paused = False  # guesses did not pay
        self._pause = _PAUSE

    def give(self, position: int, tokens: Sequence[int]) -> None:
        """From *position* on the row is likely to go on with *tokens*. They replace those given
        before."""
        self._given = position, tokens

    def prompt_read(self, count: int) -> None:
        """Ranks have read so many further tokens of the prompt: from now on look-ups find them."""
        if self._request.guesses is None:
            self._lookup.index(count)

    @property
    def under_way(self) -> tuple[int, ...]:
        """All that are under way: of the tokens after those that are known."""
        if not self.fed:
            return self.ahead
        found = self.ahead
        for fed in self.fed:
            found += fed.tokens
        return found

    def next(self, costs: GuessCosts, most: int) -> tuple[int, ...]:
        """The guesses that the next step is to read, *most* at most, after those under way; none if
        there are none, or that does not pay by *costs*."""
        under_way = self.under_way
        if most < 1 or not self._may_guess(costs) or not self._chain(under_way, 1):
            return ()
        way = self._way(costs, most - 1)
        if not way.piped:
            return ()
        chain = self._chain(under_way, 1 + way.ahead)
        if len(chain) < 1 + way.ahead:
            way = self._way(costs, len(chain) - 1)
        return chain[: 1 + way.ahead] if way.piped else ()

    def after_last(self, costs: GuessCosts, coming: int, most: int) -> tuple[int, ...]:
        """The guesses that the row is to read ahead with the step that reads its last token, *most*
        at most, once *coming* tokens have come that are not known yet; none if that does not pay by
        *costs*."""
        if not self._may_guess(costs) or not self._chain((), 1):
            return ()
        ahead = self._way(costs, most).ahead
        if not ahead:
            return ()
        chain = self._chain((), coming + ahead)
        if len(chain) < coming + ahead:
            ahead = self._way(costs, len(chain) - coming).ahead
        return chain[coming : coming + ahead]

    def _way(self, costs: GuessCosts, most: int) -> Way:
        return costs.way(self._assumed(costs), most, self.ways)

    def _chain(self, under_way: Sequence[int], count: int) -> tuple[int, ...]:
        """So many guesses, or fewer, of what follows the tokens so far and then *under_way*."""
        chain = [*under_way]
        while len(chain) < len(under_way) + count and (guess := self._after(chain)) is not None:
            chain.append(guess)
        return tuple(chain[len(under_way) :])

    def _may_guess(self, costs: GuessCosts) -> bool:
        first = len(self._request.prompt) + _BASELINE if costs.plain is None else 0
        if not self._trusted and costs.break_even(self.ways) > FREE:
            self._foreseen = self._after(())
            return False
        return len(self._tokens) >= max(first, self._resumes)

    def _assumed(self, costs: GuessCosts) -> float:
        """The share of its guesses that is taken to be right."""
        return self._share if self._judged else min(1.0, costs.break_even(self.ways) + self._margin)

    def _after(self, guesses: Sequence[int]) -> int | None:
        """What is likely to follow the tokens so far and then *guesses*; None if nothing is."""
        if self._given[1] and (given := self._from_given(guesses)) is not None:
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

    def drawn(
        self,
        ahead: tuple[int, ...],
        tokens: Sequence[int],
        now: float,
        costs: GuessCosts,
        *,
        alone: bool,
    ) -> Fed | None:
        """The step that read the row's last token, and the guesses *ahead*, gave *tokens*.

        Returns the step behind it, if that begins with a right guess: it is now the one that reads
        the row's last token. None if there is none, or it begins with a wrong guess, or the row
        ends: then all guesses under way are of no use.

        If the row decodes *alone*, *costs* learn how long the step took.
        """
        guesses = (*ahead, self.fed[0].tokens[0]) if self.fed else ahead
        ended = None
        if guesses:
            self._paused = False
            eos = self._request.eos
            ended = next((at for at, token in enumerate(tokens) if token in eos), None)
            self._judge_all(guesses[:ended], tokens, costs)
        elif self._paused:
            self._compare(tokens[0], costs)
        elif not self._trusted:
            self._trusted, self._foreseen = self._foreseen == tokens[0], None
        sizes = {len(ahead), *(len(fed.tokens) - 1 for fed in self.fed)}
        behind, right = After.WRONG if self.fed else After.PLAIN, None
        if self.fed and ended is None and right_ones(guesses, tokens) == len(guesses):
            behind, right = After.RIGHT, self.fed.popleft()
            self.ahead = right.tokens[1:]
        before, self._sizes = self._sizes, sizes
        if not alone:
            self._last = None
        elif self._time(len(ahead), behind, now, costs, alike=before == sizes == {len(ahead)}):
            self._measure(len(tokens) + len(self.under_way))
        return right

    def _time(
        self, ahead: int, behind: After, now: float, costs: GuessCosts, *, alike: bool
    ) -> bool:
        """A step was answered that read so many guesses *ahead*. The next step comes after
        *behind*. True if it is not known any more what a token takes after no guess.

        For *alike* see `StepTimes.answered`. The time of a step is not learnt that the first
        guesses follow, which make it late.
        """
        last, lone = self._last, behind is After.PLAIN
        self._last = None if ahead and lone else behind, now
        if last is None:
            return False
        after, then = last
        if after is None and lone and ahead:
            after = After.PLAIN
        elif after is After.PLAIN and not lone:
            return False
        return after is not None and costs.times.answered(after, now - then, ahead, alike=alike)

    def _judge_all(self, guesses: Sequence[int], tokens: Sequence[int], costs: GuessCosts) -> None:
        right = right_ones(guesses, tokens)
        for _ in range(right):
            self._judge(True, costs)
        if right < min(len(guesses), len(tokens)):
            self._judge(False, costs)

    def _measure(self, coming: int) -> None:
        """Once *coming* further tokens are known, guess nothing for a while, to see how long a
        token takes then."""
        self._resumes = max(self._resumes, len(self._tokens) + coming + _BASELINE)

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
            self._trusted = self.accepted > 0
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


class RowState(enum.Enum):
    """The state of a row. It has a private cache in PREFILL and READY, and is in a group in
    DECODE."""

    QUEUED = "queued"
    PREFILL = "prefill"
    READY = "ready"
    DECODE = "decode"
    PREEMPTED = "preempted"
    GONE = "gone"


class RowEvent(enum.Enum):
    """What changes a row's state."""

    OPEN = "open"
    READ = "read"
    JOIN = "join"
    PREEMPT = "preempt"
    END = "end"


ROW_TABLE: Final[Table[RowState, RowEvent]] = {
    (RowState.QUEUED, RowEvent.OPEN): RowState.PREFILL,
    (RowState.QUEUED, RowEvent.PREEMPT): RowState.QUEUED,
    (RowState.QUEUED, RowEvent.END): RowState.GONE,
    (RowState.PREFILL, RowEvent.READ): RowState.READY,
    (RowState.PREFILL, RowEvent.PREEMPT): RowState.PREEMPTED,
    (RowState.PREFILL, RowEvent.END): RowState.GONE,
    (RowState.READY, RowEvent.JOIN): RowState.DECODE,
    (RowState.READY, RowEvent.PREEMPT): RowState.PREEMPTED,
    (RowState.READY, RowEvent.END): RowState.GONE,
    (RowState.DECODE, RowEvent.PREEMPT): RowState.PREEMPTED,
    (RowState.DECODE, RowEvent.END): RowState.GONE,
    (RowState.PREEMPTED, RowEvent.OPEN): RowState.PREFILL,
    (RowState.PREEMPTED, RowEvent.PREEMPT): RowState.PREEMPTED,
    (RowState.PREEMPTED, RowEvent.END): RowState.GONE,
}


@attrs.define(eq=False)
class LiveRow:
    """A request that is not over. *tokens* are its prompt and answer so far, none before it is to
    be opened: many may wait, with long prompts. *end* is their greatest number."""

    uid: int
    request: Request
    end: int
    tokens: list[int]
    state: Machine[RowState, RowEvent] = attrs.field(
        factory=partial(Machine, ROW_TABLE, RowState.QUEUED)
    )
    position: int = 0  # tokens in its cache once the steps so far are done
    handle: int = 0  # the snapshot that it is opened from
    kept: int = 0  # tokens of that snapshot
    branches: tuple[int, ...] = ()  # positions at which others leave it, or it leaves them
    stops: tuple[int, ...] = ()  # positions at which its cache is kept while it is read
    scored: int = 0  # tokens of the prompt after which the next one's score is known
    flying: int = 0  # decode steps in flight
    wasted: int = 0  # those of them that give no token, because of a wrong guess
    guesses: RowGuesses = attrs.field(init=False)
    settings: Row = attrs.field(init=False)  # its ROW without the history
    group: int = 0
    failures: int = 0
    stalls: int = 0
    tries: int = 0  # lost steps since its last token
    suspect: bool = False
    unready: int = 0  # ROWs of this epoch whose grammar the head's engine still prepares
    leader: LiveRow | None = None  # a row that reads the same prompt first
    followers: int = 0

    def __attrs_post_init__(self) -> None:
        self.guesses = RowGuesses(self.tokens, self.request)
        asked, least = self.request.sampling, self.request.min_tokens
        if asked.constrained or least:
            prompt = len(self.request.prompt)
            ends = tuple(sorted(self.request.eos))
            asked = attrs.evolve(asked, least=prompt + least if least else 0, ends=ends)
        self.settings = attrs.evolve(asked, uid=self.uid)

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn after those that it begins with."""
        return self.end > self.request.known

    @property
    def held(self) -> bool:
        """Whether it has a grammar."""
        return bool(self.request.sampling.grammar)

    @property
    def may_join(self) -> bool:
        """Whether it is read, what was announced of its grammar is prepared, and it draws."""
        return self.state.state is RowState.READY and not self.unready and self.draws

    @property
    def wants_scores(self) -> bool:
        """Whether not all scores of its prompt are known."""
        wants = self.request.scores and not self.request.drawn
        return wants and self.scored < len(self.request.prompt) - 1

    @property
    def coming(self) -> int:
        """The number of steps in flight that will give tokens, if all guesses are right."""
        return self.flying - self.wasted

    @property
    def reach(self) -> int:
        """The number of its tokens after the steps in flight, if all guesses are right."""
        reach, guesses = len(self.tokens) + self.flying - self.wasted, self.guesses
        if guesses.ahead or guesses.fed:
            reach += len(guesses.under_way) - len(guesses.fed)
        return reach

    @property
    def sampling(self) -> Row:
        """Its sampling settings, for an engine that opens it now."""
        if not self.settings.remembers:
            return self.settings
        return attrs.evolve(self.settings, history=tuple(self.tokens), generated=self.emitted)

    @property
    def history(self) -> int:
        """The number of token ids in the history of its ROW."""
        return len(self.tokens) if self.settings.remembers else 0

    @property
    def row_weight(self) -> int:
        """The weight of its ROW, in bytes (`pipeline.weight`)."""
        return weight(self.settings) + HISTORY_WEIGHT * self.history

    @property
    def emitted(self) -> int:
        """The number of tokens generated so far."""
        return max(0, len(self.tokens) - len(self.request.prompt))

    @property
    def unread(self) -> int:
        """The number of tokens left to prefill: all but the last, which the first decode takes."""
        return len(self.tokens) - 1 - self.position

    @property
    def led(self) -> bool:
        """True while its leader has not read the prompt yet."""
        return self.leader is not None and self.leader.state.state in _BEFORE_READY


_BEFORE_READY = (RowState.QUEUED, RowState.PREFILL, RowState.PREEMPTED)


@attrs.frozen
class Planned:
    """The next *step*, the sampling of the *rows* that it opens, and what to report of them
    (*opened*)."""

    step: Step
    rows: tuple[Row, ...]
    opened: tuple[RowOpened, ...]


_LISTS: Final = 7 * MAX_ROWS * ENTRY_WEIGHT
"""The most that the lists of a step weigh, with one token id for each join."""


@attrs.define(eq=False)
class Flight:
    """A step that waits for its answer.

    *positions* are where the (first) token of each row goes. *moved* are the numbers of caches that
    not all ranks have alike before it is done. *weight* counts bytes as
    `limits.MAX_WEIGHT_WAITING` does. *passed* is True once the head's engine has passed it on, and
    *returned* once it has come back from the ring and only the head's own work on it is left.
    *wasted* is True once it is known to begin with a wrong guess, or to follow one: it gives no
    token. *guesses* are those that a decode reads ahead.

    A decode that has *returned* from the ring waits only for the head's own engine. One that is
    *wasted* begins with a wrong guess, or follows one, and gives no token. Neither keeps its
    group from going on.
    """

    work: Work
    uids: tuple[int, ...]
    positions: tuple[int, ...]
    sent: float
    weight: int = 0
    passed: bool = False
    returned: bool = False
    wasted: bool = False
    guesses: tuple[int, ...] = ()
    moved: frozenset[int] = frozenset()

    @property
    def reads(self) -> int:
        """The tokens that each of its rows reads."""
        match self.work:
            case Decode() as work:
                return 1 + work.ahead
            case Prefill(_, _, count):
                return count
            case _:
                return 0

    @property
    def expects(self) -> int:
        """The number of tokens in its answer, at most."""
        if self.wasted or not isinstance(self.work, Decode):
            return 0
        return len(self.uids) + len(self.guesses)

    def lack(self, ids: Sequence[int], scored: int) -> str:
        """What an answer with *ids*, and the scores of *scored* tokens, lacks, in words; empty if
        it is right. A step that reads ahead gives the tokens up to the first that is not the guess
        in its place."""
        expected, to_score = self.expects, 0
        right = 1 + right_ones(self.guesses, ids) if expected and self.guesses else expected
        if len(ids) != right:
            return f"{len(ids)} of {expected} tokens"
        if isinstance(self.work, Prefill) and self.work.scored:
            to_score = self.work.count
        return f"the scores of {scored} of {to_score} tokens" if scored != to_score else ""

    def tokens(self, ids: Sequence[int]) -> list[tuple[int, int, Sequence[int]]]:
        """*ids*, which it is answered with, as (row, position of the first, its tokens)."""
        if self.guesses:
            return [(self.uids[0], self.positions[0], ids)] if ids else []
        return [*zip(self.uids, self.positions, zip(ids, strict=False), strict=False)]


class Flights:
    """The steps under way."""

    def __init__(self) -> None:
        self.by_number: dict[int, Flight] = {}
        """Every step under way. To be read only."""
        self.chunks = 0
        """How many of them are prefills."""
        self._weight = 0
        self._decided: list[tuple[int, bool]] = []

    def clear(self) -> None:
        """The epoch is over."""
        self.by_number.clear()
        self._decided.clear()
        self._weight = self.chunks = 0

    def add(self, n: int, flight: Flight) -> None:
        """Step *n* begins."""
        self.by_number[n] = flight
        self._weight += flight.weight
        self.chunks += isinstance(flight.work, Prefill)

    def pop(self, n: int) -> Flight | None:
        """Step *n* is over; None if it was not under way."""
        flight = self.by_number.pop(n, None)
        if flight is not None:
            self._weight -= flight.weight
            self.chunks -= isinstance(flight.work, Prefill)
        return flight

    def waste(self, wrong: list[Fed]) -> None:
        """The steps *wrong* give no token: mark them, and empty that list."""
        for fed in wrong:
            self.by_number[fed.n].wasted = True
            self._decided.append((fed.n, False))
        wrong.clear()

    def confirm(self, right: Fed) -> None:
        """The step *right* begins with the token that was drawn."""
        self._decided.append((right.n, True))

    def decided(self) -> list[tuple[int, bool]]:
        """Each step that begins with a guess which has been judged since the last call, and whether
        it was right."""
        decided, self._decided = self._decided, []
        return decided

    def is_full(self, config: SchedulerConfig) -> bool:
        """True if no rank may be sent a further step, even of the greatest weight."""
        if not self.by_number:
            return False
        tokens = max(config.chunk, config.rows, 1 + (config.ahead or 0))
        hidden = min(tokens * config.hidden_bytes, MAX_SEALED_BODY)
        heaviest = hidden + tokens * ENTRY_WEIGHT + _LISTS + MAX_ROW_WEIGHT
        full = len(self.by_number) >= MAX_STEPS_WAITING
        return full or self._weight + heaviest > MAX_WEIGHT_WAITING

    def decodes(self) -> dict[int, int]:
        """How many decodes have not come back, of each group that has any."""
        flying: dict[int, int] = {}
        for flight in self.by_number.values():
            if isinstance(flight.work, Decode) and not (flight.returned or flight.wasted):
                flying[flight.work.group] = flying.get(flight.work.group, 0) + 1
        return flying

    @property
    def guesses(self) -> bool:
        """Whether a decode that reads guesses is under way."""
        for flight in self.by_number.values():
            if isinstance(flight.work, Decode) and flight.work.guessed:
                return True
        return False

    @property
    def busy(self) -> int:
        """How many stages have something useful to do, at most. A decode that has returned counts:
        the first stage has its closing pass, which a guess that is fed meanwhile would delay."""
        busy = 0
        for flight in self.by_number.values():
            busy += not flight.wasted
        return busy
