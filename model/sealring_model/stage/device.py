"""The device that an engine computes on: how arrays get in and out, and how MLX is set for it.

Out: the memory of an evaluated, contiguous array is a tensor's data, and is not copied. In: one
copy, made without MLX's device and seen through an unsigned view, because the buffer protocol has
no bfloat16. Nothing is ever cast: a ring fixes the dtype of its hidden states when its ranks say
HELLO, and another dtype is refused.

The graph of a rank begins at an `Inlet`: an array to build on before its contents have come. It
ends at an `Outlet`, whose bytes can be read once the device is done. `DeviceIO` makes both, for any
device. `PinnedIO` makes inlets at which the device itself waits for the contents, so that a whole
graph can be launched before they come.

All settings of MLX, CUDA and the C library were found by measurement: on the CPU with two cores,
and on H200 GPUs with MLX 0.32.4. A user who sets one of the variables named here has the last word,
so that `sealring bench gpus` can be run with either value.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import time
from collections import deque
from collections.abc import Callable
from math import prod
from typing import Any, Final, Literal

import attrs
import mlx.core as mx
from sealring_protocol.codec.tensor import DType
from sealring_protocol.codec.wire import Buffer

from sealring_model.errors import IntegrityError

MLX_DTYPES: Final = {
    DType.F32: mx.float32,
    DType.F16: mx.float16,
    DType.BF16: mx.bfloat16,
    DType.U32: mx.uint32,
}

DTYPES: Final = {dtype: code for code, dtype in MLX_DTYPES.items()}
"""The types of MLX as messages name them."""
_UNSIGNED: Final[dict[int, Literal["H", "I"]]] = {2: "H", 4: "I"}
_M_ARENA_MAX: Final = -8  # malloc.h
_RELEASE_THRESHOLD: Final = 4  # cuda.h

_GRAPHS: Final = 6
"""CUDA graphs that a stage may take. MLX launches CUDA graphs of so many operations, and lets ten
of them wait. All of a stage has to fit into those, because it may be launched before the device can
begin."""

_OPERATIONS: Final = 40
"""Operations of a layer, at most. A guess."""

_DEFAULT: Final = 100
"""Operations of a CUDA graph by MLX's own default on such a device. More would hold memory longer:
what operations have used is freed when the whole graph is done."""

_ANY: Final = 1 << 20
"""Mebibytes, weights included, that the operations of one CUDA graph may use: no limit."""

_TIMEOUT_NS: Final = 30_000_000
"""Nanoseconds after which the device no longer waits at an inlet. Where hidden states take longer
than half of that, launching before they come gains little."""

_HEADER: Final = 64
"""Bytes of a buffer before its contents. They hold two words: the last ticket that need not wait,
and the last ticket whose contents the device saw."""

_RELEASED, _SEEN = 0, 1
_SMALLEST: Final = 4096

_LARGEST: Final = 1 << 20
"""Bytes of contents. A prompt's hidden states may be more; they leave as on any other device."""

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
    __shared__ bool came;
    if (threadIdx.x == 0) {{
        unsigned long long begun, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
        do {{
            came = static_cast<int>(words[{_RELEASED}] - what[0]) >= 0;
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        }} while (!came && now - begun < what[2]);
        __threadfence_system();
        if (came) words[{_SEEN}] = what[0];
    }}
    __syncthreads();
    char* to = reinterpret_cast<char*>(contents);
    if (came) sealring_copy(to, box + {_HEADER}, what[1], threadIdx.x, blockDim.x);
    else for (unsigned i = threadIdx.x; i < what[1]; i += blockDim.x) to[i] = 0;
"""

_POST: Final = f"""
    sealring_copy(
        reinterpret_cast<char*>(where[0]) + {_HEADER}, reinterpret_cast<const char*>(block),
        size[0], blockIdx.x * blockDim.x + threadIdx.x, blockDim.x * gridDim.x
    );
    if (blockIdx.x == 0 && threadIdx.x == 0) ready[0] = 1;
"""


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


@attrs.frozen(eq=False)
class Outlet:
    """Where a graph ends. Once *ready* has been evaluated, *data* gives the bytes, row-major and
    uncopied; they are valid as long as the outlet lives."""

    ready: mx.array
    data: Callable[[], memoryview]


class PinnedIO(DeviceIO):
    """Inlets and outlets of a CUDA device in pinned (page-locked) memory of the host, which the
    device reads and writes directly. So MLX copies nothing, for which it would allocate managed
    memory at each read, and nobody waits for a page.

    With *device_waits* the device waits at inlets, for *timeout_ns* nanoseconds at most. Launching
    a stage takes MLX about as long as the device then works on it. With such inlets the launch
    happens while the hidden states are still on their way: the first kernel waits for them.

    A kernel that waits blocks the device's stream: what is launched behind it waits as well, and
    some calls of CUDA wait for the whole device. Whoever is to fill the inlet must not get stuck in
    such a call, or behind the number of operations that MLX lets wait. So the kernel gives up after
    the timeout, and the graph continues with zeros; its result is dropped. `fill` refuses after
    half the timeout. This process may be stopped for any time between looking at the clock and
    releasing the device, so whoever uses the result asks `Inlet.was_filled` afterwards.

    A buffer is used again and again, each time with the next *ticket*, and its kernels run in the
    same order. A use that was released cannot be blocked by a later one. A buffer that the device
    writes is never one that the host writes: the device may still work on a use that was dropped.

    Raises `OSError` or `MemoryError` if the driver cannot do this.
    """

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
        """An inlet for an array of *dtype* and *shape*, at which the device may wait."""
        if not self.device_waits:
            return super().inlet(dtype, shape)
        lease = self._lease(self._inlet_buffers, prod(shape) * dtype.width)
        return _WaitingInlet(lease, self._wait, dtype, shape, self._timeout_ns)

    def outlet(self, array: mx.array) -> Outlet:
        """The outlet of *array*, in pinned memory unless it is too large."""
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
    """The best `DeviceIO` for this device, for hidden states of *dtype*; with *wait* its inlets
    have the device wait, if it can.

    A process makes one of each kind, for pinned memory is never freed. `PinnedIO` relies on the
    order in which an x86-64 processor stores; on others it was never tried.
    """
    if not mx.cuda.is_available() or platform.machine() != "x86_64":
        return DeviceIO()
    try:
        pinned = PinnedIO(device_waits=wait)
        # Compile the kernels now: CUDA could not while the device waits.
        for kind in (dtype, DType.U32):  # hidden states, and ids
            inlet = pinned.inlet(kind, (1, 1, 1))
            inlet.fill(bytes(kind.width))
            mx.eval(pinned.outlet(inlet.array).ready)
    except (OSError, RuntimeError, MemoryError):
        return DeviceIO()
    return pinned


class LaunchSettings:
    """How MLX launches on CUDA. MLX reads these settings once, at its first launch."""

    def __init__(self) -> None:
        self._layers: int | None = None

    def choose(self, *, nccl: bool, layers: int) -> None:
        """Set them for a stage of *layers* layers, 0 for the whole model, or for a member of a
        collective over *nccl*. Only the first call has an effect.

        MLX records launches into CUDA graphs. NCCL makes a stream for each sum that is recorded,
        and ends it again, so with *nccl* graphs are switched off: for 32 rows two H200s gave 1,500
        to 2,100 tokens/s, and 600 to 900 with graphs.

        MLX keeps the graphs that it has made, and from the 800th on raises an error at each new
        one, be it after days. That check is for people who tune programs, and is switched off.
        """
        if self._layers is not None:
            return
        self._layers = layers
        if nccl:
            os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")
        if mx.cuda.is_available():
            os.environ.setdefault("MLX_ENABLE_CACHE_THRASHING_CHECK", "0")
            if layers:
                operations = max(_DEFAULT, layers * _OPERATIONS // _GRAPHS)
                os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", str(operations))
                os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", str(_ANY))

    def fits(self, layers: int) -> bool:
        """Whether a stage of *layers* layers can be launched at once with the settings chosen."""
        return self._layers is not None and layers <= self._layers


def use_one_arena() -> None:
    """Have Linux's C library keep one malloc arena for all threads, where the CPU computes.

    One thread of an engine frees what another allocated. With an arena for each thread that leaves
    holes, and an engine grew by half in half an hour. With CUDA several threads allocate and free
    at every launch, and would contend for one arena: two H200s in tensor parallelism gave 117 to
    119 tokens/s, and 62 to 96 with one arena.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ and not mx.cuda.is_available():
        mallopt(_M_ARENA_MAX, 1)


def is_device_shared() -> bool:
    """Whether another process computes on this process's CUDA device, as far as is known.

    Such processes take turns, and one whose kernels wait wastes its turns.
    """
    try:
        driver, management = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
        device, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint()
        name = ctypes.create_string_buffer(32)
        found = (
            driver.cuCtxGetDevice(ctypes.byref(device)) == 0
            and driver.cuDeviceGetPCIBusId(name, len(name), device) == 0
            and management.nvmlInit_v2() == 0
            and management.nvmlDeviceGetHandleByPciBusId_v2(name, ctypes.byref(handle)) == 0
        )
        if found:  # fails for want of room, and sets the count
            management.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    except (OSError, AttributeError):
        return False
    return count.value > 1


def keep_device_memory() -> None:
    """Have CUDA keep the memory that MLX frees for MLX's next allocation, because to allocate from
    the device may wait for it. Raises `OSError`."""
    driver, all_of_it = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64((1 << 64) - 1)
    pool = _memory_pool(driver)
    if driver.cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(all_of_it)):
        raise OSError("libcuda does not keep memory")


def release_device_memory() -> None:
    """Give the CUDA device the memory that MLX has freed, in spite of `keep_device_memory`."""
    if mx.cuda.is_available():
        with contextlib.suppress(OSError):
            driver = ctypes.CDLL("libcuda.so.1")
            driver.cuMemPoolTrimTo(_memory_pool(driver), ctypes.c_size_t(0))


def outgoing(array: mx.array) -> mx.array:
    """*array* laid out for `data_of`, as a part of its graph."""
    return mx.contiguous(array)


def data_of(array: mx.array) -> memoryview:
    """The bytes of *array*, row-major, uncopied. It must come from `outgoing`, and be evaluated."""
    return memory_of(array).cast("B")


def memory_of(array: mx.array) -> memoryview:
    """The memory of *array*, which must be evaluated and contiguous. May be filled before its
    use."""
    return memoryview(array)  # type: ignore[arg-type]


def from_data(dtype: DType, shape: tuple[int, ...], data: Buffer) -> mx.array:
    """An array of *shape* with a copy of *data*.

    Raises `IntegrityError` if *data* has not the size of *dtype* and *shape*.
    """
    return words_of(dtype, shape, data).view(MLX_DTYPES[dtype])


def words_of(dtype: DType, shape: tuple[int, ...], data: Buffer) -> mx.array:
    """The same array as unsigned integers of the same width, evaluated."""
    check_size(dtype, shape, data)
    words: Any = memoryview(data).cast("B").cast(_UNSIGNED[dtype.width], shape)
    return mx.array(words)


def check_size(dtype: DType, shape: tuple[int, ...], data: Buffer) -> None:
    """Raise `IntegrityError` if *data* has not the size of *dtype* and *shape*."""
    size = prod(shape) * dtype.width
    if len(data) != size:
        raise IntegrityError(f"{len(data)} bytes of hidden state where {size} belong")


def start(*values: mx.array) -> None:
    """Launch *values*. Does not wait for them."""
    mx.async_eval(*values)  # type: ignore[no-untyped-call]


def _memory_pool(driver: ctypes.CDLL) -> ctypes.c_void_p:
    device, pool = ctypes.c_int(), ctypes.c_void_p()
    for error in (
        driver.cuCtxGetDevice(ctypes.byref(device)),
        driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device),
    ):
        if error:
            raise OSError(f"libcuda says {error}")
    return pool


class _HostInlet(Inlet):
    """An inlet in memory that must be filled before the graph is evaluated."""

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self._words: Final = words_of(dtype, shape, bytes(prod(shape) * dtype.width))
        super().__init__(dtype, shape, self._words.view(MLX_DTYPES[dtype]))

    def fill(self, data: Buffer) -> bool:
        check_size(self.dtype, self.shape, data)
        memory_of(self._words).cast("B")[:] = data
        return True


class _PinnedBuffer:
    """Pinned memory of the host; *where* holds its address, as an array of the device."""

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
    """Lends a buffer for as long as this object lives; allocates one if none is free."""

    def __init__(self, buffers: deque[_PinnedBuffer], driver: ctypes.CDLL, capacity: int) -> None:
        try:
            self.buffer = buffers.popleft()
        except IndexError:
            self.buffer = _PinnedBuffer(driver, capacity)
        self._buffers: Final = buffers

    def __del__(self) -> None:
        if hasattr(self, "_buffers"):
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
        self._launched_at: int | None = None
        self._filled: bool | None = None
        self._size: Final = prod(shape) * dtype.width
        what = mx.array([self._ticket, self._size, timeout_ns], mx.uint32)
        (array,) = kernel(
            inputs=[self._buffer.where, what],
            output_shapes=[shape],
            output_dtypes=[MLX_DTYPES[dtype]],
            grid=(1024, 1, 1),
            threadgroup=(1024, 1, 1),
        )
        super().__init__(dtype, shape, array)

    def starts_waiting(self) -> None:
        self._launched_at = time.perf_counter_ns()

    def fill(self, data: Buffer) -> bool:
        if self._filled is None:
            check_size(self.dtype, self.shape, data)
            at = self._launched_at
            late = at is not None and time.perf_counter_ns() - at > self._timeout_ns // 2
            if not late:
                self._buffer.contents[: len(data)] = data
            self._filled = not late
            self.release()
        return self._filled

    def release(self) -> None:
        if not self._filled:
            self._buffer.contents[: self._size] = bytes(self._size)
        self._buffer.words[_RELEASED] = self._ticket

    @property
    def was_filled(self) -> bool:
        return self._buffer.words[_SEEN] == self._ticket

    def __del__(self) -> None:
        if hasattr(self, "_size"):
            self.release()
