"""Graphs that a rank has built, and perhaps launched, before their input came."""

from __future__ import annotations

from math import prod
from typing import Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.wire import Buffer

from sealring_model.lookahead.device_io import Inlet, Outlet
from sealring_model.sampling.sampler_state import Sampled

_PLACE_BYTES: Final = 4


@attrs.frozen
class Due:
    """A decode that is due: of *batch*, *tokens* tokens of each row. *given* is what its layers
    take: opened hidden states, on rank 0 ids, uint32 in this machine's order.

    It is *plain* if it reads one token of each row, and on rank 0 the one drawn last; then *given*
    may be None there. It may be *unplaced* if it has one row, of which it reads from *place* on.
    With *guesses* the next one is likely to have some, too.
    """

    batch: int
    tokens: int
    given: Buffer | None
    plain: bool
    unplaced: bool
    place: int
    guesses: bool


@attrs.frozen
class Unplaced:
    """What a graph has whose place in its only row is told with its input: *tokens*, of which the
    last may be of no use, so that it takes fewer, too; and the last place *room* at which so many
    can be written. If arrays *grew* for that, the graph is one that the device has not seen."""

    tokens: int
    room: int
    grew: bool

    def takes(self, due: Due) -> bool:
        """Whether there is room for what is *due*."""
        return due.unplaced and due.tokens <= self.tokens and due.place <= self.room

    def contents(self, given: Buffer, size: int, place: int) -> Buffer:
        """What an inlet of *size* bytes takes for the input *given* at *place*: zeros are of no
        use, and the place comes last."""
        filler = bytes(size - len(given) - _PLACE_BYTES)
        return b"".join((given, filler, (self.room - place).to_bytes(_PLACE_BYTES, "little")))


@attrs.define(eq=False)
class BuiltDecode:
    """The graph of the next decode of *batch*: from *inlet*, on a later rank, to *outlet* and to
    *slots*, its caches afterwards. On rank 0 it may wait for *gate*, an inlet of one element whose
    value nobody reads.

    It reads one token of every row, on rank 0 the one drawn last. If it is *unplaced*, it reads
    several of one row, whose inlet on rank 0 takes their ids, and *slots* stay as long as they are.
    """

    batch: int
    inlet: Inlet | None
    gate: Inlet | None
    slots: list[Any]
    outlet: Outlet
    unplaced: Unplaced | None = None
    launched: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of each row that it reads."""
        return 1 if self.unplaced is None else self.unplaced.tokens

    @property
    def is_new(self) -> bool:
        """Whether the device surely has not seen such a graph."""
        return self.unplaced is not None and self.unplaced.grew

    def takes(self, due: Due) -> bool:
        """Whether it computes what is *due*."""
        return due.plain if self.unplaced is None else self.unplaced.takes(due)

    def contents(self, due: Due) -> Buffer | None:
        """What its inlet takes for what is *due*; None if it has none."""
        if self.inlet is None or due.given is None:
            return None
        if self.unplaced is None:
            return due.given
        size = prod(self.inlet.shape) * self.inlet.dtype.width
        return self.unplaced.contents(due.given, size, due.place)

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (self.outlet.ready,)


@attrs.define(eq=False)
class BuiltClosing:
    """The graph of the closing pass of step *n* on rank 0: what is *sampled* from the hidden states
    that *inlet* is filled with, of *tokens* tokens of each row."""

    n: int
    batch: int
    tokens: int
    inlet: Inlet
    sampled: Sampled
    launched: bool = False
    is_new = False

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (*self.sampled.arrays, *self.sampled.changed)
