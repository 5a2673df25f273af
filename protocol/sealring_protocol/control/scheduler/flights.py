"""The steps that wait for their answers, by number.

A decode that has *returned* from the ring waits only for the head's own engine. One that is
*wasted* begins with a wrong guess, or follows one, and gives no token. Neither keeps its group from
going on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from sealring_protocol.codec.messages import Decode, Prefill
from sealring_protocol.control.requests import SchedulerConfig
from sealring_protocol.control.scheduler.guesses import Fed, right_ones
from sealring_protocol.control.scheduler.rows import Flight
from sealring_protocol.limits import (
    ENTRY_WEIGHT,
    MAX_ROW_WEIGHT,
    MAX_ROWS,
    MAX_SEALED_BODY,
    MAX_STEPS_WAITING,
    MAX_WEIGHT_WAITING,
)

_LISTS: Final = 7 * MAX_ROWS * ENTRY_WEIGHT
"""The most that the lists of a step weigh, with one token id for each join."""


class Flights:
    """The steps under way."""

    def __init__(self) -> None:
        self._by_number: dict[int, Flight] = {}
        self._decided: list[tuple[int, bool]] = []

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def by_number(self) -> Mapping[int, Flight]:
        """Every step under way."""
        return self._by_number

    def clear(self) -> None:
        """The epoch is over."""
        self._by_number.clear()
        self._decided.clear()

    def add(self, n: int, flight: Flight) -> None:
        """Step *n* begins."""
        self._by_number[n] = flight

    def pop(self, n: int) -> Flight | None:
        """Step *n* is over; None if it was not under way."""
        return self._by_number.pop(n, None)

    def passed_on(self, n: int) -> None:
        """The head's engine has passed step *n* on to the next rank."""
        self._by_number[n] = attrs.evolve(self._by_number[n], passed=True)

    def returned(self, n: int) -> None:
        """Step *n* has come back from the ring."""
        self._by_number[n] = attrs.evolve(self._by_number[n], returned=True)

    def waste(self, wrong: list[Fed]) -> None:
        """The steps *wrong* give no token: mark them, and empty that list."""
        for fed in wrong:
            self._by_number[fed.n] = attrs.evolve(self._by_number[fed.n], wasted=True)
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

    def expects(self, n: int) -> int:
        """The number of tokens in the answer to step *n*, at most; 0 if it is not under way."""
        flight = self._by_number.get(n)
        if flight is None or flight.wasted or not isinstance(flight.work, Decode):
            return 0
        return len(flight.uids) + len(flight.guesses)

    def scores(self, n: int) -> int:
        """The number of tokens that step *n* scores; 0 if it is not under way."""
        flight = self._by_number.get(n)
        work = None if flight is None else flight.work
        return work.count if isinstance(work, Prefill) and work.scored else 0

    def gives(self, n: int, ids: Sequence[int]) -> bool:
        """Whether step *n* may be answered with *ids*. One that reads ahead gives the tokens up to
        the first that is not the guess in its place."""
        flight = self._by_number.get(n)
        if flight is None or flight.wasted or not flight.guesses:
            return len(ids) == self.expects(n)
        return len(ids) == 1 + right_ones(flight.guesses, ids)

    def is_full(self, config: SchedulerConfig) -> bool:
        """True if no rank may be sent a further step, even of the greatest weight."""
        if not self._by_number:
            return False
        tokens = max(config.chunk, config.rows, 1 + (config.ahead or 0))
        hidden = min(tokens * config.hidden_bytes, MAX_SEALED_BODY)
        heaviest = hidden + tokens * ENTRY_WEIGHT + _LISTS + MAX_ROW_WEIGHT
        waiting = sum([flight.weight for flight in self._by_number.values()])
        full = len(self._by_number) >= MAX_STEPS_WAITING
        return full or waiting + heaviest > MAX_WEIGHT_WAITING

    def decodes(self, groups: int) -> list[int]:
        """How many decodes of each of *groups* groups have not come back."""
        flying = [0] * groups
        for flight in self._by_number.values():
            if isinstance(flight.work, Decode) and not (flight.returned or flight.wasted):
                flying[flight.work.group] += 1
        return flying

    @property
    def decoding(self) -> bool:
        """Whether a decode is under way."""
        return any(isinstance(flight.work, Decode) for flight in self._by_number.values())

    @property
    def chunks(self) -> int:
        """How many prefills are under way."""
        return sum(isinstance(flight.work, Prefill) for flight in self._by_number.values())

    @property
    def guesses(self) -> bool:
        """Whether a decode that reads guesses is under way."""
        works = (flight.work for flight in self._by_number.values())
        return any(isinstance(work, Decode) and work.guessed for work in works)

    @property
    def busy(self) -> int:
        """How many stages have something useful to do, at most. A decode that has returned counts:
        the first stage has its closing pass, which a guess that is fed meanwhile would delay."""
        return sum(not flight.wasted for flight in self._by_number.values())
