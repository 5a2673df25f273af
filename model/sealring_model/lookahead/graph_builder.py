"""A second thread that builds graphs while the first one launches.

MLX launches in C++ for milliseconds without the GIL; graphs are built in Python. So two processors
can do both at once. Where processors are slow or shared, a step then takes as long as the longer of
the two instead of their sum.

MLX evaluates a graph on the thread that owns its stream, but any thread may build for that stream,
even on an array that is being evaluated: building holds the array and looks at its shape only. (The
exception is an array that is one of several outputs of an operation. No launch leaves such an array
to be built on.)

A process has one such thread, and it never ends. MLX keeps compiled functions for each thread,
which take a while to make, and frees them when the thread ends. At the exit of the process Python
may be gone by then, and the process would abort.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

import mlx.core as mx

_Job: TypeAlias = Callable[[], None]

_jobs: Final[queue.SimpleQueue[_Job]] = queue.SimpleQueue()
_starting: Final = threading.Lock()
_started: Final = threading.Event()


class GraphBuilder:
    """Lets the second thread build on the streams of the thread that makes this."""

    def __init__(self) -> None:
        self._streams: Final = {mx.default_stream(d) for d in (mx.cpu, mx.default_device())}
        self._launching = False

    def launch(self, call: Callable[[], None], build: Callable[[], bool]) -> None:
        """Call *call*. Meanwhile the other thread calls *build* again and again, until it returns
        False or *call* returns.

        *build* does not run before or after. What either raises is raised here; if both do, what
        *call* raises. Where the system has no thread to give, only *call* is called.
        """
        if not _has_thread():
            call()
            return
        self._launching = True
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        _jobs.put(lambda: ended.put(self._build(build)))
        try:
            call()
        finally:
            self._launching = False
            failed = ended.get()
        if failed is not None:
            raise failed

    def _build(self, build: Callable[[], bool]) -> BaseException | None:
        try:
            for stream in self._streams:
                mx.set_default_stream(stream)
            while self._launching and build():
                pass
        except BaseException as error:  # noqa: BLE001
            return error
        return None


def _has_thread() -> bool:
    """Start the thread, if it is not there. False if the system has none to give."""
    with _starting:
        if not _started.is_set():
            try:
                threading.Thread(target=_work, name="graph-builder", daemon=True).start()
            except RuntimeError:
                return False
            _started.set()
    return True


def _work() -> None:
    while True:
        _jobs.get()()
