"""Graphs that a rank has built, and perhaps launched, before their input came."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer

from sealring_model.sampling.sampler_state import SampledTokens
from sealring_model.stage.device_io import DeviceIO, Inlet, Outlet

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
    """What a graph has whose place in its only row is told with its input: see `unplaced`.

    It has *tokens* tokens. It takes fewer, too: the last of its tokens are then of no use.
    *last_place* is the last at which so many can be written. If arrays *grew* for that, the device
    has not seen such a graph.
    """

    tokens: int
    last_place: int
    grew: bool

    def takes(self, due: Due) -> bool:
        """Whether it computes what is *due*. A place behind the last one cannot come, for a graph
        is dropped when another decode of its row comes first. It is refused all the same: the
        device would write to other memory."""
        return due.unplaced and due.tokens <= self.tokens and due.place <= self.last_place

    def contents(self, inlet: Inlet, given: Buffer, place: int) -> Buffer:
        """What *inlet*, made by `unplaced_inlet`, takes for the input *given* at *place*."""
        size = prod(inlet.shape) * inlet.dtype.width
        filler = bytes(size - len(given) - _PLACE_BYTES)
        distance = (self.last_place - place).to_bytes(_PLACE_BYTES, sys.byteorder)
        return b"".join((given, filler, distance))


def unplaced_inlet(
    device_io: DeviceIO, dtype: DType, shape: Sequence[int]
) -> tuple[Inlet, mx.array, mx.array]:
    """An inlet for an input of *dtype* and *shape* and its place: the inlet, the input, and the
    distance of its place from the last one, int32 ``(1,)``."""
    size = prod(shape)
    inlet = device_io.inlet(dtype, (size + _PLACE_BYTES // dtype.width,))
    return inlet, inlet.array[:size].reshape(shape), inlet.array[size:].view(mx.int32)


@attrs.define(eq=False)
class BuiltDecode:
    """The graph of the next decode of *batch*: from *inlet*, on a later rank, to *outlet* and to
    *slots*, its caches afterwards. On rank 0 it may wait for *gate*, an inlet of one element whose
    value nobody reads.

    It reads one token of every row, on rank 0 the one drawn last. If it is *unplaced*, it reads
    several of one row. Then its inlet on rank 0 takes their ids, and *slots* are written without a
    change of their lengths.
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
        return self.unplaced.contents(self.inlet, due.given, due.place)

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
    sampled: SampledTokens
    launched: bool = False

    def arrays(self) -> tuple[mx.array, ...]:
        """What to launch."""
        return (*self.sampled.arrays, *self.sampled.changed)


def let_go(built: BuiltDecode | BuiltClosing) -> None:
    """Have the device go on without the input of *built*, if it may wait for that, and wait for it:
    it still reads the memory of its arrays."""
    if built.launched:
        if built.inlet is not None:
            built.inlet.release()
        mx.eval(*built.arrays())
