"""A thread that builds graphs while another launches.

What MLX does to launch it does in C++, without the interpreter and for milliseconds; graphs are
built in Python. So both go on at once, on two processors: where these are slow or shared a step
takes as long as the longer of the two, and not as both.

MLX evaluates a graph on the thread that has its stream, but any thread may build for that stream,
also on an array that is being evaluated: to build on it is to hold it, and to look at its shape.
(Not so if it is one of several that come out of one operation; no launch leaves such a one to be
built on.)

There is one such thread for all of the process, and it never ends. MLX keeps for each thread what
it has compiled there, which takes a while to make, and gives it back when the thread is gone: by
then Python may be, too, and the process would abort.
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
    """Has things built for the thread that makes this, while that launches."""

    def __init__(self) -> None:
        self._streams: Final = {mx.default_stream(d) for d in (mx.cpu, mx.default_device())}
        self._launching = False

    def launch(self, call: Callable[[], None], build: Callable[[], bool]) -> None:
        """Do *call*, and beside it *build* again and again, until it has nothing to do or *call* is
        done. *build* is not under way before or after, and what either raises is raised."""
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
    """Whether there is the thread. It is started if the system has one."""
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
