"""A module as a child that dies with its parent.

``python -P -m sealring_trio.processes.launcher MODULE ...`` runs it.

With ``--network WAY FD TIMES`` before all else it leaves the machine's network for one of its own
(`namespace` says why), and hands over on socket FD what others need of it:

- ``own``: the node gets its sockets there. A child that finds no such network stays in the
  machine's, and tells the node why.
- ``lead``: other members of its group, as many as TIMES, are let in; ``follow``: this is one of
  them. A member that cannot ends.

With ``--alone`` in its place it leaves every network, and can gain no right by a set-user-id
program, as far as the platform can forbid it; for a child that needs nobody but its parent.

With ``--give-way`` before the module it lets its parent go first (`priority`), as engines do; with
``--give-way-to-all`` it gives way to every other program, as a draft model does.

No other process of the user can look into it (`secrecy`), and when memory runs out it goes first.

On Linux the kernel kills the child when the thread that started it ends, whatever the child is
doing at the time; elsewhere the child relies on the end of its socket. The parent may have died
before the kernel was told, and then its stream has already ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import runpy
import signal
import socket
import sys
from typing import Final

from sealring_trio.processes.namespace import (
    NoNamespace,
    enter,
    follow,
    hand_over_namespace,
    hand_over_sockets,
)
from sealring_trio.processes.priority import give_way, give_way_to_all
from sealring_trio.processes.secrecy import be_killed_first, hide_memory

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38


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
    if sys.argv[0] in ("--give-way", "--give-way-to-all"):
        (give_way if sys.argv[0] == "--give-way" else give_way_to_all)()
        sys.argv = sys.argv[1:]
    be_killed_first()
    hide_memory()  # last, for what is in /proc/self is root's from then on
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
