"""What nodes of this machine recorded, as values: see `node.step_recorder` for what a record is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Spent:
    """What an engine says of one step, in seconds."""

    compute: float
    wait: float
    seal: float

    @classmethod
    def of(cls, told: Sequence[float]) -> Spent:
        """From microseconds, in this order."""
        return cls(*(each * 1e-6 for each in told))

    @property
    def total(self) -> float:
        """All three."""
        return self.compute + self.wait + self.seal


NOTHING = Spent(0.0, 0.0, 0.0)


@attrs.frozen
class Stay:
    """One message in one engine, from *begin* to *end*; *closing* is the head's second pass."""

    n: int
    closing: bool
    begin: float
    end: float
    spent: Spent

    @property
    def around(self) -> float:
        """Seconds between node and engine, there and back: neither work, nor waiting, nor
        sealing."""
        return max(0.0, self.end - self.begin - self.spent.total)


@attrs.frozen
class Step:
    """One step as the head saw it. *spent* is by rank; *closing* is nothing where ranks draw the
    token themselves."""

    n: int
    work: str
    group: int
    tokens: int
    begin: float
    end: float
    spent: tuple[Spent, ...]
    closing: Spent


@attrs.define
class Recording:
    """What one node recorded. *place* is what it last said of itself. *first* and *last* are its
    clock and its `processor_times` at the start and at the end."""

    place: Mapping[str, Any] = attrs.field(factory=dict)
    steps: list[Step] = attrs.field(factory=list)
    stays: list[Stay] = attrs.field(factory=list)
    first: tuple[float, Mapping[str, Any]] | None = None
    last: tuple[float, Mapping[str, Any]] | None = None

    @property
    def rank(self) -> int:
        """Whose it is."""
        return int(self.place["rank"])

    @property
    def parallel(self) -> bool:
        """Whether all ranks work on a step at once."""
        return bool(self.place["strategy"] == "tp")

    def add(self, told: Mapping[str, Any]) -> None:
        """Add one line of records."""
        self.place = told["place"]
        for n, work, group, tokens, begin, end, spent, closing in told["steps"]:
            ranks = tuple(map(Spent.of, spent))
            step = Step(n, work, group, tokens, begin, end, ranks, Spent.of(closing))
            self.steps.append(step)
        for n, closing, begin, end, *spent in told["stays"]:
            self.stays.append(Stay(n, closing, begin, end, Spent.of(spent)))
        self.last = told["clock"], told["processors"]
        self.first = self.first or self.last

    def used(self) -> dict[str, tuple[float, float]]:
        """Seconds on a processor, and ready without one, of the node and its engine meanwhile."""
        if self.first is None or self.last is None:
            return {}
        before, after = self.first[1], self.last[1]
        return {
            who: (after[who][0] - before[who][0], after[who][1] - before[who][1])
            for who in after
            if who in before
        }
