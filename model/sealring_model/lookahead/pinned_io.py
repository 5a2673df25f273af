"""Inlets at which a CUDA device waits, and outlets that it writes to itself.

Launching a stage takes MLX about as long as the device then works on it. With these doors that
happens while the hidden states are still under way: the first thing launched is a kernel that
waits for them, and when they have come there is nothing left to do but to tell it.

Both go through memory of the host that is locked and that the device sees too. So nothing is
copied by MLX, which would allocate managed memory for each read, and nobody waits for a page.

A kernel that waits keeps the device's stream: what is launched behind it waits as well, and some
calls of CUDA wait for the whole device. Whoever is to end it must not get stuck in such a call, or
behind the number of operations that MLX lets wait. So a wait ends by itself after `_TIMEOUT_NS`, with
zeros; what comes out of those is dropped. Who fills an inlet relies on half of that only, and asks
afterwards (`Inlet.was_filled`): between looking at the clock and telling the device, this process
may be stopped for any time.

Uses of one box follow each other with rising *tickets*, as in a stream do their kernels: one that
was told to go on by an earlier use cannot be held by a later one. A box that the device writes to
is never one that the host writes to: what was given up may still be under way.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import time
from collections import deque
from math import prod
from typing import Any, Final

import mlx.core as mx
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer

from sealring_model.engine.devices import keep_device_memory
from sealring_model.lookahead.device_io import DeviceIO, Inlet, Outlet
from sealring_model.stage.tensors import MLX_DTYPES, check_size

_TIMEOUT_NS: Final = 30_000_000
"""Nanoseconds that the device waits at an inlet, at most. Where hidden states take longer to come
than half of that, what is launched before they come gains little."""

_HEADER: Final = 64
"""Bytes of a box before the contents: the last ticket that need not wait, and the last seen."""
_RELEASED, _SEEN = 0, 1

_SMALLEST: Final = 4096
_LARGEST: Final = 1 << 20
"""Bytes of contents. A prompt's hidden states may be more; they go out as with any device."""

_HELPERS: Final = """
__device__ void sealring_copy(
    char* to, const char* from, unsigned size, unsigned at, unsigned step
) {
    unsigned whole = size / 16;
    if ((reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from)) % 16 != 0) whole = 0;
    for (unsigned i = at; i < whole; i += step)
        reinterpret_cast<uint4*>(to)[i] = __ldcv(reinterpret_cast<const uint4*>(from) + i);
    for (unsigned i = whole * 16 + at; i < size; i += step) to[i] = __ldcv(from + i);
}
"""

_WAIT: Final = f"""
    char* box = reinterpret_cast<char*>(where[0]);
    volatile unsigned* words = reinterpret_cast<volatile unsigned*>(box);
    __shared__ bool told;
    if (threadIdx.x == 0) {{
        unsigned long long begun, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
        do {{
            told = static_cast<int>(words[{_RELEASED}] - what[0]) >= 0;
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        }} while (!told && now - begun < what[2]);
        __threadfence_system();
        if (told) words[{_SEEN}] = what[0];
    }}
    __syncthreads();
    char* to = reinterpret_cast<char*>(contents);
    if (told) sealring_copy(to, box + {_HEADER}, what[1], threadIdx.x, blockDim.x);
    else for (unsigned i = threadIdx.x; i < what[1]; i += blockDim.x) to[i] = 0;
"""

_POST: Final = f"""
    sealring_copy(
        reinterpret_cast<char*>(where[0]) + {_HEADER}, reinterpret_cast<const char*>(block), size[0],
        blockIdx.x * blockDim.x + threadIdx.x, blockDim.x * gridDim.x
    );
    if (blockIdx.x == 0 && threadIdx.x == 0) ready[0] = 1;
"""


class _PinnedBuffer:
    """Locked memory of the host, *where* in an array of the device."""

    def __init__(self, driver: ctypes.CDLL, capacity: int) -> None:
        pointer, both = ctypes.c_void_p(), 0x1 | 0x2  # for any context; mapped
        size = ctypes.c_size_t(_HEADER + capacity)
        if error := driver.cuMemHostAlloc(ctypes.byref(pointer), size, both):
            raise MemoryError(f"cuMemHostAlloc says {error}")
        address = pointer.value or 0
        memory: Any = (ctypes.c_char * size.value).from_address(address)
        self._memory: Final = memoryview(memory).cast("B")
        self._memory[:_HEADER] = bytes(_HEADER)
        self.words: Final = self._memory[:_HEADER].cast("I")
        self.contents: Final = self._memory[_HEADER:]
        self.where: Final = mx.array(address, mx.uint64)
        self.ticket = 0


class _Lease:
    """A box for as long as this is held."""

    def __init__(self, buffers: deque[_PinnedBuffer], driver: ctypes.CDLL, capacity: int) -> None:
        try:
            self.buffer = buffers.popleft()
        except IndexError:
            self.buffer = _PinnedBuffer(driver, capacity)
        self._buffers: Final = buffers

    def __del__(self) -> None:
        if hasattr(self, "_boxes"):
            self._buffers.append(self.buffer)


class _WaitingInlet(Inlet):
    """An inlet at which the device waits."""

    def __init__(
        self, lease: _Lease, kernel: Any, dtype: DType, shape: tuple[int, ...], timeout_ns: int
    ) -> None:
        self._lease: Final = lease
        self._timeout_ns: Final = timeout_ns
        self._buffer: Final = lease.buffer
        self._buffer.ticket = self._ticket = (lease.buffer.ticket + 1) & 0xFFFFFFFF
        self._held_since: int | None = None
        self._filled: bool | None = None
        what = mx.array([self._ticket, prod(shape) * dtype.width, timeout_ns], mx.uint32)
        (array,) = kernel(
            inputs=[self._buffer.where, what],
            output_shapes=[shape],
            output_dtypes=[MLX_DTYPES[dtype]],
            grid=(1024, 1, 1),
            threadgroup=(1024, 1, 1),
        )
        super().__init__(dtype, shape, array)

    def mark_launched(self) -> None:
        self._held_since = time.perf_counter_ns()

    def fill(self, data: Buffer) -> bool:
        if self._filled is None:
            check_size(self.dtype, self.shape, data)
            held = self._held_since
            late = held is not None and time.perf_counter_ns() - held > self._timeout_ns // 2
            if not late:
                self._buffer.contents[: len(data)] = data
            self._filled = not late
            self.release()
        return self._filled

    def release(self) -> None:
        self._buffer.words[_RELEASED] = self._ticket

    @property
    def was_filled(self) -> bool:
        return self._buffer.words[_SEEN] == self._ticket

    def __del__(self) -> None:
        if hasattr(self, "_box"):
            self.release()


class PinnedIO(DeviceIO):
    """Doors of a CUDA device; its inlets wait if *device_waits*, for so many nanoseconds at most. Raises
    `OSError` or `MemoryError` if there can be none."""

    def __init__(self, *, device_waits: bool, timeout_ns: int = _TIMEOUT_NS) -> None:
        self.device_waits = device_waits
        self._timeout_ns: Final = timeout_ns
        self._driver: Final = ctypes.CDLL("libcuda.so.1")
        if device_waits:
            keep_device_memory()
        self._inlet_buffers: Final[dict[int, deque[_PinnedBuffer]]] = {}
        self._outlet_buffers: Final[dict[int, deque[_PinnedBuffer]]] = {}
        make: Any = mx.fast.cuda_kernel
        self._wait: Final = make(
            name="sealring_wait",
            input_names=["where", "what"],
            output_names=["contents"],
            source=_WAIT,
            header=_HELPERS,
        )
        self._post: Final = make(
            name="sealring_post",
            input_names=["block", "where", "size"],
            output_names=["ready"],
            source=_POST,
            header=_HELPERS,
        )

    def _lease(self, buffers: dict[int, deque[_PinnedBuffer]], size: int) -> _Lease:
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        return _Lease(buffers.setdefault(capacity, deque()), self._driver, capacity)

    def inlet(self, dtype: DType, shape: tuple[int, ...]) -> Inlet:
        """An array of *shape*, for which the device may wait."""
        if not self.device_waits:
            return super().inlet(dtype, shape)
        lease = self._lease(self._inlet_buffers, prod(shape) * dtype.width)
        return _WaitingInlet(lease, self._wait, dtype, shape, self._timeout_ns)

    def outlet(self, array: mx.array) -> Outlet:
        """Where *array* comes out, in memory of the host."""
        size = array.nbytes
        if size > _LARGEST:
            return super().outlet(array)
        lease = self._lease(self._outlet_buffers, size)
        (ready,) = self._post(
            inputs=[array, lease.buffer.where, mx.array(size, mx.uint32)],
            output_shapes=[(1,)],
            output_dtypes=[mx.uint32],
            grid=(4096, 1, 1),
            threadgroup=(512, 1, 1),
        )
        return Outlet(ready, lambda: lease.buffer.contents[:size])


@functools.cache
def best_device_io(dtype: DType, *, wait: bool) -> DeviceIO:
    """The best doors that there are here, for hidden states of *dtype*, whose inlets *wait* if they
    can. There is one of each kind, for what it has locked is not given back.

    A mailbox relies on the order in which an x86-64 stores; on other processors it was never
    tried.
    """
    if not mx.cuda.is_available() or platform.machine() != "x86_64":
        return DeviceIO()
    try:
        pinned = PinnedIO(device_waits=wait)
        # Its kernels are compiled now, and not while the device waits.
        inlet = pinned.inlet(dtype, (1, 1, 1))
        inlet.fill(bytes(dtype.width))
        mx.eval(pinned.outlet(inlet.array).ready, pinned.outlet(mx.zeros((1,), mx.uint32)).ready)
    except (OSError, RuntimeError, MemoryError):
        return DeviceIO()
    return pinned
