"""How what a rank computes on gets into the device, and how what it makes gets out.

A graph begins at an `Inlet`, an array to build on before its contents have come, and ends at an
`Outlet`, whose bytes can be had once the device is done. `DeviceIO` makes both, for any device. There
may be others whose inlets *wait*: the device itself waits for the contents, and so all of a graph
can be launched before they come (see `pinned_io`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import attrs
import mlx.core as mx
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer

from sealring_model.stage.tensors import (
    MLX_DTYPES,
    check_size,
    data_of,
    memory_of,
    outgoing,
    start,
    words_of,
)


class Inlet:
    """An *array* whose contents come later. Nothing of a graph on it may be evaluated until `fill`
    has been called, unless it waits."""

    def __init__(self, dtype: DType, shape: tuple[int, ...], array: mx.array) -> None:
        self.dtype: Final = dtype
        self.shape: Final = shape
        self.array: Final = array

    def mark_launched(self) -> None:
        """What follows the array is about to be launched, and a device that can wait will."""

    def fill(self, data: Buffer) -> bool:
        """Put a copy of *data* into the array; whether that was in time. If not, a device that
        waited has gone on without. One that waits takes what it is given first, and tells of that
        whenever it is asked again. Raises `IntegrityError` for *data* of another size."""
        raise NotImplementedError

    def release(self) -> None:
        """There will be no contents: a device that waits goes on, and what it makes is nothing."""

    @property
    def was_filled(self) -> bool:
        """Whether the device saw what `fill` was given; known once it is done."""
        return True


class _HostInlet(Inlet):
    """Memory that is filled before anything is evaluated."""

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self._words: Final = words_of(dtype, shape, bytes(prod(shape) * dtype.width))
        super().__init__(dtype, shape, self._words.view(MLX_DTYPES[dtype]))

    def fill(self, data: Buffer) -> bool:
        check_size(self.dtype, self.shape, data)
        memory_of(self._words).cast("B")[:] = data
        return True


@attrs.frozen(eq=False)
class Outlet:
    """Once *ready* has been evaluated, *data* gives the bytes that have come out, row-major and
    uncopied. They stay as long as the outlet does."""

    ready: mx.array
    data: Callable[[], memoryview]


class DeviceIO:
    """Inlets and outlets of one rank."""

    device_waits = False
    """Whether an inlet has the device wait, as long as it has not been filled."""

    def inlet(self, dtype: DType, shape: tuple[int, ...]) -> Inlet:
        """An array of *shape* that is still to be filled."""
        return _HostInlet(dtype, shape)

    def outlet(self, array: mx.array) -> Outlet:
        """Where *array* comes out. A part of the graph, to be evaluated with the rest."""
        block = outgoing(array)
        return Outlet(block, lambda: data_of(block))

    def start(self, *arrays: mx.array) -> None:
        """Set the device to work on *arrays*, behind all else, and do not wait."""
        start(*arrays)
