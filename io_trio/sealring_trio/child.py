"""A module as a child that dies with its parent: ``python -m sealring_trio.child MODULE ...``

On Linux the kernel kills the child when the thread that started it ends, whatever the child is
doing at the time; elsewhere the child relies on the end of its socket. The parent may have died
before the kernel was told, and then its stream has already ended.
"""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends. Does nothing but on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
