"""Who comes first on a busy processor: a node before its engine, and neither after strangers.

An engine that computes, or spins in a collective, would keep its node from the processor for longer
than a hop takes, and everyone waits for the node. A greater niceness of the engine helps, but then
it also gives way to every unrelated program: beside two busy processes it gets a fraction of what
another program would get.

Linux from 6.12 on has a better way. A thread may ask for a short time slice: it then gets no more
of the processor, but gets it sooner when it wakes (EEVDF: the earlier deadline goes first). So a
node asks for the shortest slice (its text workers, which requests wait for, inherit it), and its
engine has the usual one. On other systems the engine is nicer.

This module imports the standard library alone, for a child that is still small calls it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import time
from pathlib import Path
from typing import Final

SHORT_NS: Final = 100_000
"""The time slice of a node: the shortest that Linux grants."""

NICE: Final = 5
"""How much an engine is nicer than its node where there are no such slices: on a busy processor it
gets a third of the time that its node does, and the node comes at once."""

NICE_TO_ALL: Final = 15
"""How much nicer a process is that gives way to all: it gets a thirtieth of a busy processor."""

_TRIES: Final = 10
_PAUSE: Final = 0.1
"""Seconds. The kernel takes one change of a session's niceness in that time from processes without
privileges."""

_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""The numbers of sched_setattr and sched_getattr, which C libraries lack."""

_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQII")
"""struct sched_attr: size, policy, flags, nice, priority, runtime (the slice), and what is not
changed here."""

_POLICY, _RUNTIME = 1, 5
_SCHED_OTHER: Final = 0


def slice_ns(pid: int = 0) -> int:
    """The time slice of thread *pid*, 0 for this one, in nanoseconds; 0 where none is known."""
    attributes = _attributes(pid)
    return attributes[_RUNTIME] if attributes else 0


def ask_short_slice() -> bool:
    """Ask for the shortest slice, for this thread and those that it starts. True if granted."""
    _set_slice(SHORT_NS)
    return slice_ns() == SHORT_NS


def give_way() -> None:
    """Let the parent go first: by the usual slice if the parent has a short one, else by being
    nicer. Then this process must be the first of its session: where Linux shares the processor
    among sessions first, it is the session that has to be nicer, and a new one is as nice as any.
    """
    if slice_ns() == SHORT_NS:  # inherited
        _set_slice(0)
        return
    _be_nicer(NICE)


def give_way_to_all() -> None:
    """Give way to every other program, for work that is of use only while nobody else computes. The
    process must be the first of its session, as for `give_way`."""
    if slice_ns() == SHORT_NS:
        _set_slice(0)
    _be_nicer(NICE_TO_ALL)


def _be_nicer(nice: int) -> None:
    os.nice(nice)
    group = Path("/proc/self/autogroup")
    for _ in range(_TRIES):
        try:
            group.write_text(str(nice))
        except BlockingIOError:
            time.sleep(_PAUSE)
        except OSError:
            return  # there is no such thing here
        else:
            return


def _attributes(pid: int) -> tuple[int, ...]:
    """The scheduling attributes of thread *pid*; empty where they cannot be told."""
    data = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if not _call(1, pid, data, _ATTRIBUTES.size, 0):
        return ()
    return _ATTRIBUTES.unpack(data.raw)


def _set_slice(ns: int) -> None:
    """Give this thread a slice of *ns*, 0 for the usual one, and leave all else."""
    attributes = list(_attributes(0))
    if attributes and attributes[_POLICY] == _SCHED_OTHER:
        attributes[_RUNTIME] = ns
        _call(0, 0, _ATTRIBUTES.pack(*attributes), 0)


def _call(which: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> bool:
    """Call the first or second of `_CALLS`; False where there is none, or it is refused."""
    numbers = _CALLS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        return False
    return bool(ctypes.CDLL(None).syscall(numbers[which], *arguments) == 0)
