"""What MLX and the C library are told for the device that an engine computes on.

All of it is known to be right only by measurement: on the CPU of two cores, and on H200 GPUs with
MLX 0.32.4. Whoever sets one of the variables named here has the say, and so `sealring bench gpus`
can be run with either value.
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
"""MLX hands the device CUDA graphs of so many operations, and lets ten of these wait to be done.
All of a stage has to fit into them, for it may be launched before the device can begin (see
`pinned_io`)."""
_OPERATIONS: Final = 40
"""Operations of a layer, at most: a guess."""
_DEFAULT: Final = 100
"""What MLX does with as large a device, and not more: memory that operations have used is free
when those are done that they were handed over with."""
_ANY: Final = 1 << 20
"""Mebibytes, weights and all, that the operations of one graph may use: no limit."""


def use_one_arena() -> None:
    """Have the C library of Linux keep one arena for all threads, where the processor computes.

    What one thread of an engine allocates another frees; with an arena for each thread that leaves
    holes, and an engine grew by half in half an hour. With CUDA, where several threads allocate and
    free at every launch, they wait for each other instead: sharing a model, two H200s gave 117 to
    119 tokens/s, and 62 to 96 with one arena.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ and not mx.cuda.is_available():
        mallopt(_M_ARENA_MAX, 1)


def is_device_shared() -> bool:
    """Whether another process computes on the CUDA device of this one, as far as that can be told.

    They take turns, and one that has its device wait takes its turns with nothing.
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
        if found:  # says that there is no room for as many as it has counted
            management.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    except (OSError, AttributeError):
        return False
    return count.value > 1


def keep_device_memory() -> None:
    """Have CUDA keep what MLX gives back for what MLX asks for next: to take it from the device may
    be to wait for that. Raises `OSError`."""
    driver, all_of_it = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64((1 << 64) - 1)
    pool = _memory_pool(driver)
    if driver.cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(all_of_it)):
        raise OSError("libcuda does not keep memory")


def release_device_memory() -> None:
    """Give the CUDA device back what MLX has given back, though it was to be kept."""
    if mx.cuda.is_available():
        with contextlib.suppress(OSError):
            driver = ctypes.CDLL("libcuda.so.1")
            driver.cuMemPoolTrimTo(_memory_pool(driver), ctypes.c_size_t(0))


def _memory_pool(driver: ctypes.CDLL) -> ctypes.c_void_p:
    """What MLX allocates from."""
    device, pool = ctypes.c_int(), ctypes.c_void_p()
    for error in (
        driver.cuCtxGetDevice(ctypes.byref(device)),
        driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device),
    ):
        if error:
            raise OSError(f"libcuda says {error}")
    return pool


class LaunchSettings:
    """How MLX launches on CUDA. It is told once, before it has launched anything."""

    def __init__(self) -> None:
        self._layers: int | None = None

    def choose(self, *, nccl: bool, layers: int) -> None:
        """For a member of a group whose sums go over *nccl*, or for a *layers* of so many layers, 0
        for all.

        MLX records what it launches into CUDA graphs. For each sum that is recorded NCCL makes a
        stream and ends it again, so a member launches without: for 32 rows two H200s gave 1,500 to
        2,100 tokens/s, and 600 to 900 with graphs.

        It keeps the graphs that it has made, and from the 800th that it makes on it raises an error
        each time, be it after days: that is for whoever tries to make programs fast, and is
        switched off.
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
        """Whether what was chosen lets a *layers* of so many layers be launched at once."""
        return self._layers is not None and layers <= self._layers
