"""How the input of a rank's graph gets into the device, and how its output gets out.

A graph begins at an `Inlet`: an array to build on before its contents have come. It ends at an
`Outlet`, whose bytes can be read once the device is done. `DeviceIO` makes both, for any device.
`pinned_io` makes inlets at which the device itself waits for the contents, so that a whole graph
can be launched before they come.
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
    """An *array* whose contents come later.

    Unless the device waits at it, no graph on it may be evaluated before `fill` has been called.
    """

    def __init__(self, dtype: DType, shape: tuple[int, ...], array: mx.array) -> None:
        self.dtype: Final = dtype
        self.shape: Final = shape
        self.array: Final = array

    def starts_waiting(self) -> None:
        """Say that a graph on the array is about to be launched: a device that can wait will."""

    def fill(self, data: Buffer) -> bool:
        """Put a copy of *data* into the array. False if a device that waits had to go on without.

        An inlet at which the device waits takes *data* once; later calls change nothing and return
        the same. Raises `IntegrityError` for *data* of another size.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Let a device that waits go on with zeros, unless the inlet was filled."""

    @property
    def was_filled(self) -> bool:
        """Whether the device saw the contents; ask once it is done with the graph."""
        return True


class _HostInlet(Inlet):
    """An inlet in memory that must be filled before the graph is evaluated."""

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self._words: Final = words_of(dtype, shape, bytes(prod(shape) * dtype.width))
        super().__init__(dtype, shape, self._words.view(MLX_DTYPES[dtype]))

    def fill(self, data: Buffer) -> bool:
        check_size(self.dtype, self.shape, data)
        memory_of(self._words).cast("B")[:] = data
        return True


@attrs.frozen(eq=False)
class Outlet:
    """Where a graph ends. Once *ready* has been evaluated, *data* gives the bytes, row-major and
    uncopied; they are valid as long as the outlet lives."""

    ready: mx.array
    data: Callable[[], memoryview]


class DeviceIO:
    """Inlets and outlets of one rank."""

    device_waits = False
    """Whether the device waits at an inlet until it is filled."""

    def inlet(self, dtype: DType, shape: tuple[int, ...]) -> Inlet:
        """An inlet for an array of *dtype* and *shape*."""
        return _HostInlet(dtype, shape)

    def outlet(self, array: mx.array) -> Outlet:
        """The outlet of *array*, as a part of its graph."""
        block = outgoing(array)
        return Outlet(block, lambda: data_of(block))

    def start(self, *arrays: mx.array) -> None:
        """Launch *arrays* behind all that was launched before. Does not wait for them."""
        start(*arrays)
