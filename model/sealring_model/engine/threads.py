"""How the threads of a node or an engine share the GIL and the processors.

Each thread waits in the kernel for its own socket or queue. What it then does for a step takes less
than Python's default switch interval of 5 ms, for which a thread that computes in Python would make
it wait.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

PROCESSORS: Final = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
"""Processors that this process may use."""

_SWITCH_INTERVAL: Final = 0.0005
_SHORT_SWITCH_INTERVAL: Final = 0.00005


def set_switch_interval(*, short: bool = False) -> None:
    """Set the interpreter's thread switch interval to 0.5 ms, or with *short* to 50 us.

    Short is for steps that come every few milliseconds; it makes a sum of tensor parallelism a
    tenth slower.
    """
    sys.setswitchinterval(_SHORT_SWITCH_INTERVAL if short else _SWITCH_INTERVAL)


def end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """`threading.excepthook`: end the process when a thread fails: half an engine would hang."""
    if failed.exc_value is not None:
        sys.excepthook(failed.exc_type, failed.exc_value, failed.exc_traceback)
    sys.stderr.flush()
    os._exit(70)
