"""Counts what a node or an engine calls; `tools.ring` puts this folder first on PYTHONPATH.

Python imports this module as it starts. Every thread counts in a table of its own: the calls of
each function of the checkout, and what goes from one thread or process to another. A thread of the
probe's writes the tables again and again, as the processes of a ring end without notice.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = os.environ["SEALRING_COUNT_ROOT"]
FOLDER = os.environ["SEALRING_COUNT_FOLDER"]
WRITE_SECONDS = 0.2

# What another process gets by, what another thread is woken by, as functions written in C.
BY_C = {
    **{f"socket.{name}": "process" for name in ("send", "sendall", "sendmsg", "sendto")},
    "SimpleQueue.put": "thread",
}
# The same, as functions of Python: the module's file and the function.
BY_PYTHON = {
    ("threading.py", "notify"): "thread",
    ("_entry_queue.py", "run_sync_soon"): "thread",
    ("_thread_cache.py", "start_thread_soon"): "thread",
}

Table = dict[Any, int]
tables: list[Table] = []
own = threading.local()


def table() -> Table:
    """The table of this thread."""
    try:
        return own.table
    except AttributeError:
        own.table = made = {}
        tables.append(made)
        return made


def profile(frame: FrameType, event: str, argument: Any) -> None:
    """Called by the interpreter for each call and return."""
    if event == "call":
        key: Any = frame.f_code
    elif event == "c_call":
        key = BY_C.get(argument.__qualname__)
        if key is None:
            return
    else:
        return
    counts = table()
    counts[key] = counts.get(key, 0) + 1


class Counted:
    """A lock that counts how often it is taken."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, *arguments: Any, **named: Any) -> bool:
        """As a lock's own."""
        taken = self._lock.acquire(*arguments, **named)
        if taken:
            self._count()
        return taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    @staticmethod
    def _count() -> None:
        counts = table()
        counts["lock"] = counts.get("lock", 0) + 1


def counted(make: Any) -> Any:
    """*make*, whose locks count if it is called by the checkout."""

    def made(*arguments: Any) -> Any:
        lock = make(*arguments)
        return Counted(lock) if is_ours(sys._getframe(1).f_code.co_filename) else lock

    return made


def is_ours(filename: str) -> bool:
    """It is the checkout's, and neither this probe nor of an environment inside the checkout."""
    return filename.startswith(ROOT) and filename != __file__ and "site-packages" not in filename


def name_of(key: Any) -> str | None:
    """How a table's entry is written; None for what does not count."""
    if not isinstance(key, CodeType):
        return str(key)
    if is_ours(key.co_filename):
        return f"call {key.co_filename[len(ROOT) + 1 :]} {key.co_qualname}"
    return BY_PYTHON.get((os.path.basename(key.co_filename), key.co_name))


def write() -> None:
    """Write all tables, in the place of what was written before."""
    total: dict[str, int] = {}
    for each in list(tables):
        for key, count in each.copy().items():
            if name := name_of(key):
                total[name] = total.get(name, 0) + count
    path = Path(FOLDER, str(os.getpid()))
    beside = path.with_suffix(".new")
    told = {"parent": os.getppid(), "command": sys.orig_argv, "counts": total}
    beside.write_text(json.dumps(told))
    beside.rename(path)


def write_again() -> None:
    """The probe's thread."""
    sys.setprofile(None)
    while True:
        time.sleep(WRITE_SECONDS)
        write()


if any(word == "up" or "engine" in word for word in sys.orig_argv):  # a node, or an engine
    threading.Thread(target=write_again, daemon=True).start()
    threading.Lock = counted(threading.Lock)
    threading.RLock = counted(threading.RLock)
    threading.setprofile(profile)
    sys.setprofile(profile)
