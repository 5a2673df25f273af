"""Inlets at which a CUDA device waits, and outlets that it writes to itself.

Launching a stage takes MLX about as long as the device then works on it. With these doors that
happens while the hidden states are still under way: the first thing launched is a kernel that
waits for them, and when they have come there is nothing left to do but to tell it.

Both go through memory of the host that is locked and that the device sees too. So nothing is
copied by MLX, which would allocate managed memory for each read, and nobody waits for a page.

A kernel that waits keeps the device's stream: what is launched behind it waits as well, and some
calls of CUDA wait for the whole device. Whoever is to end it must not get stuck in such a call, or
behind the number of operations that MLX lets wait. So a wait ends by itself after `_PATIENCE`, with
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

from sealring_model.engine.devices import keep_memory
from sealring_model.lookahead.device_io import Doors, Inlet, Outlet
from sealring_model.stage.tensors import MLX_DTYPES, check_size

_PATIENCE: Final = 30_000_000
"""Nanoseconds that the device waits at an inlet, at most. Where hidden states take longer to come
than half of that, what is launched before they come gains little."""

_HEAD: Final = 64
"""Bytes of a box before the contents: the last ticket that need not wait, and the last seen."""
_TOLD, _SEEN = 0, 1

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
            told = static_cast<int>(words[{_TOLD}] - what[0]) >= 0;
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        }} while (!told && now - begun < what[2]);
        __threadfence_system();
        if (told) words[{_SEEN}] = what[0];
    }}
    __syncthreads();
    char* to = reinterpret_cast<char*>(contents);
    if (told) sealring_copy(to, box + {_HEAD}, what[1], threadIdx.x, blockDim.x);
    else for (unsigned i = threadIdx.x; i < what[1]; i += blockDim.x) to[i] = 0;
"""

_POST: Final = f"""
    sealring_copy(
        reinterpret_cast<char*>(where[0]) + {_HEAD}, reinterpret_cast<const char*>(block), size[0],
        blockIdx.x * blockDim.x + threadIdx.x, blockDim.x * gridDim.x
    );
    if (blockIdx.x == 0 && threadIdx.x == 0) ready[0] = 1;
"""


class _Box:
    """Locked memory of the host, *where* in an array of the device."""

    def __init__(self, driver: ctypes.CDLL, capacity: int) -> None:
        pointer, both = ctypes.c_void_p(), 0x1 | 0x2  # for any context; mapped
        size = ctypes.c_size_t(_HEAD + capacity)
        if error := driver.cuMemHostAlloc(ctypes.byref(pointer), size, both):
            raise MemoryError(f"cuMemHostAlloc says {error}")
        address = pointer.value or 0
        memory: Any = (ctypes.c_char * size.value).from_address(address)
        self._memory: Final = memoryview(memory).cast("B")
        self._memory[:_HEAD] = bytes(_HEAD)
        self.words: Final = self._memory[:_HEAD].cast("I")
        self.contents: Final = self._memory[_HEAD:]
        self.where: Final = mx.array(address, mx.uint64)
        self.ticket = 0


class _Loan:
    """A box for as long as this is held."""

    def __init__(self, boxes: deque[_Box], driver: ctypes.CDLL, capacity: int) -> None:
        try:
            self.box = boxes.popleft()
        except IndexError:
            self.box = _Box(driver, capacity)
        self._boxes: Final = boxes

    def __del__(self) -> None:
        if hasattr(self, "_boxes"):
            self._boxes.append(self.box)


class _WaitingInlet(Inlet):
    """An inlet at which the device waits."""

    def __init__(
        self, loan: _Loan, kernel: Any, dtype: DType, shape: tuple[int, ...], patience: int
    ) -> None:
        self._loan: Final = loan
        self._patience: Final = patience
        self._box: Final = loan.box
        self._box.ticket = self._ticket = (loan.box.ticket + 1) & 0xFFFFFFFF
        self._held_since: int | None = None
        self._filled: bool | None = None
        what = mx.array([self._ticket, prod(shape) * dtype.width, patience], mx.uint32)
        (array,) = kernel(
            inputs=[self._box.where, what],
            output_shapes=[shape],
            output_dtypes=[MLX_DTYPES[dtype]],
            grid=(1024, 1, 1),
            threadgroup=(1024, 1, 1),
        )
        super().__init__(dtype, shape, array)

    def hold(self) -> None:
        self._held_since = time.perf_counter_ns()

    def fill(self, data: Buffer) -> bool:
        if self._filled is None:
            check_size(self.dtype, self.shape, data)
            held = self._held_since
            late = held is not None and time.perf_counter_ns() - held > self._patience // 2
            if not late:
                self._box.contents[: len(data)] = data
            self._filled = not late
            self.shut()
        return self._filled

    def shut(self) -> None:
        self._box.words[_TOLD] = self._ticket

    @property
    def was_filled(self) -> bool:
        return self._box.words[_SEEN] == self._ticket

    def __del__(self) -> None:
        if hasattr(self, "_box"):
            self.shut()


class Mailbox(Doors):
    """Doors of a CUDA device; its inlets wait if *waits*, for so many nanoseconds at most. Raises
    `OSError` or `MemoryError` if there can be none."""

    def __init__(self, *, waits: bool, patience: int = _PATIENCE) -> None:
        self.waits = waits
        self._patience: Final = patience
        self._driver: Final = ctypes.CDLL("libcuda.so.1")
        if waits:
            keep_memory()
        self._inboxes: Final[dict[int, deque[_Box]]] = {}
        self._outboxes: Final[dict[int, deque[_Box]]] = {}
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

    def _loan(self, boxes: dict[int, deque[_Box]], size: int) -> _Loan:
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        return _Loan(boxes.setdefault(capacity, deque()), self._driver, capacity)

    def inlet(self, dtype: DType, shape: tuple[int, ...]) -> Inlet:
        """An array of *shape*, for which the device may wait."""
        if not self.waits:
            return super().inlet(dtype, shape)
        loan = self._loan(self._inboxes, prod(shape) * dtype.width)
        return _WaitingInlet(loan, self._wait, dtype, shape, self._patience)

    def outlet(self, array: mx.array) -> Outlet:
        """Where *array* comes out, in memory of the host."""
        size = array.nbytes
        if size > _LARGEST:
            return super().outlet(array)
        loan = self._loan(self._outboxes, size)
        (ready,) = self._post(
            inputs=[array, loan.box.where, mx.array(size, mx.uint32)],
            output_shapes=[(1,)],
            output_dtypes=[mx.uint32],
            grid=(4096, 1, 1),
            threadgroup=(512, 1, 1),
        )
        return Outlet(ready, lambda: loan.box.contents[:size])


@functools.cache
def doors(dtype: DType, *, wait: bool) -> Doors:
    """The best doors that there are here, for hidden states of *dtype*, whose inlets *wait* if they
    can. There is one of each kind, for what it has locked is not given back.

    A mailbox relies on the order in which an x86-64 stores; on other processors it was never
    tried.
    """
    if not mx.cuda.is_available() or platform.machine() != "x86_64":
        return Doors()
    try:
        mailbox = Mailbox(waits=wait)
        # Its kernels are compiled now, and not while the device waits.
        inlet = mailbox.inlet(dtype, (1, 1, 1))
        inlet.fill(bytes(dtype.width))
        mx.eval(mailbox.outlet(inlet.array).ready, mailbox.outlet(mx.zeros((1,), mx.uint32)).ready)
    except (OSError, RuntimeError, MemoryError):
        return Doors()
    return mailbox
