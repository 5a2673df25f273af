"""Hide a process's memory from other processes of its user, and choose who is killed first.

By default any process of a user may look into every other one of that user (ptrace,
``/proc/PID/mem``, a core file). So whoever took over the node would have what the engine keeps from
it: hidden states, prompts, and the keys of the inner seal. On Linux a process can forbid that,
which also gives its entries in ``/proc`` to root; on macOS it can refuse to be attached to. Root
may look all the same, and so may the kernel and the device; and so may whoever opened the memory
before it was hidden, for Linux asks at that time alone.

This module imports the standard library alone, for a child that is still small calls it.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PT_DENY_ATTACH: Final = 31

KILLED_BEFORE: Final = 500
"""How much nearer than its parent an engine is to being killed when memory runs out, in thousandths
of all memory. The node that starts it again must live; it holds next to nothing."""


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


def oom_kills() -> int:
    """Processes of this machine that were killed since it began because memory ran out, a control
    group's or its own (Linux; 0 elsewhere)."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text("ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def be_killed_first() -> None:
    """When memory runs out, have the kernel take this process before its parent (Linux)."""
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + KILLED_BEFORE)))
