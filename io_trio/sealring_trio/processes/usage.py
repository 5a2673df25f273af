"""How much processor time a child got, and how long it waited for it, as Linux counts both.

The counts are each thread's own (``/proc/PID/task/TID/schedstat``); time that a cgroup's quota
takes away is waiting, too. macOS tells the time in which threads could run only once they sleep
again, which is too late to be of use, so there and elsewhere nothing is known. What follows from
the numbers is for `sealring_protocol.control.deadlines`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import attrs
from sealring_protocol.control.deadlines import ThreadUse


@attrs.frozen
class ProcessUsage:
    """The *threads* of a process by id, and how often it waited for a page from disk (*faults*)."""

    threads: dict[int, ThreadUse]
    faults: int


def read_usage(pid: int, system: Path = Path("/proc")) -> ProcessUsage | None:
    """What process *pid* has used so far, as *system* tells it; None where it does not say."""
    process = system / str(pid)
    threads = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in (process / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                ran, waited, _ = (task / "schedstat").read_text().split()
                state = _stat(task)[0]
                threads[int(task.name)] = ThreadUse(
                    int(ran) / 1e9, int(waited) / 1e9, state == "R", state == "D"
                )
        # A kernel that was built or started without these counts says 0 of each. Threads that run
        # would then seem to wait.
        if any(use.cpu for use in threads.values()):
            return ProcessUsage(threads, int(_stat(process)[9]))
    return None


def _stat(process: Path) -> list[str]:
    """The fields of its ``stat`` from the state on; the name before it may hold anything."""
    return (process / "stat").read_text().rpartition(")")[2].split()
