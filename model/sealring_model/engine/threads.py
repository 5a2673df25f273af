"""How the threads of a node or an engine share the interpreter and the processors.

Each waits in the kernel for something of its own, and what it then does for a step takes less than
Python's own 5 ms, for which whoever computes in Python would have it wait.
"""

from __future__ import annotations

import os
import sys
from typing import Final

PROCESSORS: Final = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
"""How many this process may use."""

_SWITCH_INTERVAL: Final = 0.0005
_SHORT_SWITCH_INTERVAL: Final = 0.00005


def set_switch_interval(*, short: bool = False) -> None:
    """Have who runs Python give way to who waits to after 0.5 ms, or after 50 us: that is for steps
    that come every few milliseconds, and costs a sum of tensor parallelism a tenth."""
    sys.setswitchinterval(_SHORT_SWITCH_INTERVAL if short else _SWITCH_INTERVAL)
