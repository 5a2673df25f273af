"""The scheduler's records: of each row, with its states, and of each step in flight."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import partial
from typing import Final

import attrs

from sealring_protocol.codec.messages import Decode, Prefill, Row, Step, Work
from sealring_protocol.control.epoch.pipeline import weight
from sealring_protocol.control.requests import Request, RowOpened, SchedulerConfig
from sealring_protocol.control.scheduler.guesses import Fed, RowGuesses, right_ones
from sealring_protocol.limits import (
    ENTRY_WEIGHT,
    HISTORY_WEIGHT,
    MAX_ROW_WEIGHT,
    MAX_ROWS,
    MAX_SEALED_BODY,
    MAX_STEPS_WAITING,
    MAX_WEIGHT_WAITING,
)
from sealring_protocol.table import Machine, Table


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
