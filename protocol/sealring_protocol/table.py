"""State machines as literal tables ``(state, event) -> state``.

A module that owns a machine writes its legal moves as one dictionary of two enums and gives it to
a `Machine`, which is then the only thing that changes the state. What is not in the table is
illegal, in every state, without a line of code that says so. Documentation and tests read the
same dictionary: `cross_product` lists every pair, in the table or not.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from sealring_protocol.errors import LocalProtocolError

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)

Table = Mapping[tuple[S, E], S]


class IllegalEvent(LocalProtocolError):
    """The table has no row for this event in this state."""


class Machine(Generic[S, E]):
    """The state of one machine, which moves only as *table* says."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Table[S, E], initial: S) -> None:
        self._table = table
        self.state = initial
        """Where the machine is, to look at; `fire` alone sets it. No property: it is read many
        times for each token."""

    def after(self, event: E) -> S:
        """Where *event* leads from here, without going. Raises `IllegalEvent` if nowhere."""
        after = self._table.get((self.state, event))
        if after is None:
            raise IllegalEvent(f"{event.name} is not possible in {self.state.name}")
        return after

    def fire(self, event: E) -> S:
        """Move as the table says, and give the new state.

        Raises `IllegalEvent` when it has no such row; the state is then unchanged.
        """
        state = self._table.get((self.state, event))
        if state is None:
            raise IllegalEvent(f"{event.name} is not possible in {self.state.name}")
        self.state = state
        return state


def cross_product(
    table: Table[S, E], states: type[S], events: type[E]
) -> Iterator[tuple[S, E, S | None]]:
    """Every pair of *states* and *events*, with the state it leads to, or None where illegal."""
    for state, event in itertools.product(states, events):
        yield state, event, table.get((state, event))
