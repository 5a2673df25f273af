"""A module as a child that dies with its parent, and what it may see and take of the machine.

``python -P -m sealring_trio.processes.launcher MODULE ...`` runs it.

With ``--network WAY FD TIMES`` before all else it leaves the machine's network for one of its own
(`namespace` says why), and hands over on socket FD what others need of it:

- ``own``: the node gets its sockets there. A child that finds no such network stays in the
  machine's, and says to the node why.
- ``lead``: other members of its group, as many as TIMES, are let in; ``follow``: this is one of
  them. A member that cannot ends.

With ``--alone`` in its place it leaves every network, and can gain no right by a set-user-id
program, as far as the platform can forbid it; for a child that needs nobody but its parent.

With ``--give-way`` before the module it lets its parent go first, as engines do; with
``--give-way-to-all`` it gives way to every other program, as a draft model does. An engine that
computes, or spins in a collective, would keep its node from the processor for longer than a hop
takes, and everyone waits for the node. A greater niceness of the engine helps, but then it also
gives way to every unrelated program: beside two busy processes it gets a fraction of what another
program would get. Linux from 6.12 on has a better way. A thread may ask for a short time slice: it
then gets no more of the processor, but gets it sooner when it wakes (EEVDF: the earlier deadline
goes first). So a node asks for the shortest slice (its text workers, which requests wait for,
inherit it), and its engine has the usual one. On other systems the engine is nicer.

On Linux the kernel kills the child when the thread that started it ends, whatever the child is
doing at the time; elsewhere the child relies on the end of its socket. The parent may have died
before the kernel knew, and then its stream has already ended.

By default any process of a user may look into every other one of that user (ptrace,
``/proc/PID/mem``, a core file). So whoever took over the node would have what the engine keeps from
it: hidden states, prompts, and the keys of the inner seal. A child forbids that, as far as the
platform can: on Linux its entries in ``/proc`` are root's then; on macOS it refuses to be attached
to. Root may look all the same, and so may the kernel and the device; and so may whoever opened the
memory before it was hidden, for Linux asks at that time alone.

This module imports the standard library alone: a child that is still small runs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import runpy
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

from sealring_trio.processes.namespace import (
    NoNamespace,
    enter,
    follow,
    hand_over_namespace,
    hand_over_sockets,
)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_DUMPABLE: Final = 4
_PT_DENY_ATTACH: Final = 31

KILLED_BEFORE: Final = 500
"""How much nearer than its parent an engine is to being killed when memory runs out, in thousandths
of all memory. The node that starts it again must live; it holds next to nothing."""

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


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends. Does nothing but on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def be_alone() -> None:
    """Leave every network, and gain no right any more, as far as the platform can forbid it; for a
    process with one thread."""
    with contextlib.suppress(NoNamespace):
        enter()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def leave_network(way: str, to: socket.socket, times: int) -> None:
    """Leave the machine's network in that *way*; for a process with one thread.

    Raises `NoNamespace` where that takes another one.
    """
    with to:
        match way:
            case "own":
                try:
                    enter()
                    hand_over_sockets(to)
                except NoNamespace as error:
                    with contextlib.suppress(OSError):  # the node is gone
                        to.sendall(str(error).encode())
            case "lead":
                enter()
                hand_over_namespace(to, times)
            case _:
                follow(to)


def hide_memory() -> None:
    """Have no other process of this user look into this one, and no core file written of it, as far
    as the platform can. What comes after in ``/proc/self`` is root's to write."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    elif sys.platform == "darwin":
        ctypes.CDLL(None).ptrace(_PT_DENY_ATTACH, 0, None, 0)


def be_killed_first() -> None:
    """When memory runs out, have the kernel take this process before its parent (Linux)."""
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + KILLED_BEFORE)))


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
    """The scheduling attributes of thread *pid*; empty where they are not known."""
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


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "--network":
        # First, for it takes a process that is still an ordinary one.
        try:
            leave_network(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))
        except NoNamespace as error:
            sys.exit(f"sealring engine: {error}")
        sys.argv = sys.argv[4:]
    elif sys.argv[0] == "--alone":
        be_alone()
        sys.argv = sys.argv[1:]
    die_with_parent()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which has the node read files again
    if sys.argv[0] in ("--give-way", "--give-way-to-all"):
        (give_way if sys.argv[0] == "--give-way" else give_way_to_all)()
        sys.argv = sys.argv[1:]
    be_killed_first()
    hide_memory()  # last, for what is in /proc/self is root's from then on
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
