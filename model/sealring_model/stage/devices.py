"""Settings of MLX, CUDA and the C library for the device that an engine computes on.

All of them were found by measurement: on the CPU with two cores, and on H200 GPUs with MLX 0.32.4.
A user who sets one of the variables named here has the last word, so that `sealring bench gpus` can
be run with either value.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Final

import mlx.core as mx

_M_ARENA_MAX: Final = -8  # malloc.h
_RELEASE_THRESHOLD: Final = 4  # cuda.h

_GRAPHS: Final = 6
"""CUDA graphs that a stage may take. MLX launches CUDA graphs of so many operations, and lets ten
of them wait. All of a stage has to fit into those, because it may be launched before the device can
begin (see `device_io`)."""
_OPERATIONS: Final = 40
"""Operations of a layer, at most. A guess."""
_DEFAULT: Final = 100
"""Operations of a CUDA graph by MLX's own default on such a device. More would hold memory longer:
what operations have used is freed when the whole graph is done."""
_ANY: Final = 1 << 20
"""Mebibytes, weights included, that the operations of one CUDA graph may use: no limit."""


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
    """Whether another process computes on this process's CUDA device, as far as can be told.

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


def _memory_pool(driver: ctypes.CDLL) -> ctypes.c_void_p:
    """The memory pool that MLX allocates from."""
    device, pool = ctypes.c_int(), ctypes.c_void_p()
    for error in (
        driver.cuCtxGetDevice(ctypes.byref(device)),
        driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device),
    ):
        if error:
            raise OSError(f"libcuda says {error}")
    return pool


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
