"""State machines as literal tables ``(state, event) -> state``.

A module that owns a machine writes its legal moves as one dictionary over two enums and gives it to
a `Machine`, which alone changes the state. What the table lacks is illegal. Documentation and tests
read the same dictionary; `cross_product` lists every pair, legal or not.
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
    """The state of one machine, which changes only as *table* says."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Table[S, E], initial: S) -> None:
        self._table = table
        self.state = initial
        """The present state, for reading; only `fire` sets it. It is no property because it is read
        many times for each token."""

    def after(self, event: E) -> S:
        """The state that *event* leads to, without changing it. Raises `IllegalEvent` if there is
        none."""
        after = self._table.get((self.state, event))
        if after is None:
            raise IllegalEvent(f"{event.name} is not possible in {self.state.name}")
        return after

    def fire(self, event: E) -> S:
        """Change the state as the table says, and return the new one.

        Raises `IllegalEvent` if the table has no such row; the state is then unchanged.
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
