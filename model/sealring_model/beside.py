"""A thread that builds graphs while another launches.

What MLX does to launch it does in C++, without the interpreter and for milliseconds; graphs are
built in Python. So both go on at once, on two processors: where these are slow or shared a step
takes as long as the longer of the two, and not as both.

MLX evaluates a graph on the thread that has its stream, but any thread may build for that stream.
An array that is being evaluated may be built on: what MLX changes of it then, nobody who builds
looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import mlx.core as mx


class Beside:
    """Such a thread, for whoever makes this and launches. It ends with this, or with `end`."""

    def __init__(self) -> None:
        stream = mx.default_stream(mx.default_device())
        self._pool: Final = ThreadPoolExecutor(1, "beside", mx.set_default_stream, (stream,))
        self._launching = False

    def launch(self, call: Callable[[], None], build: Callable[[], bool]) -> None:
        """Do *call*, and beside it *build* again and again, until it has nothing to do or *call* is
        done. *build* is not under way before or after, and what it raises is raised."""
        self._launching = True
        building = self._begin(build)
        try:
            call()
        finally:
            self._launching = False
            if building is not None:
                building.result()

    def end(self) -> None:
        """Nothing is launched any more."""
        self._pool.shutdown()

    def _begin(self, build: Callable[[], bool]) -> Future[None] | None:
        try:
            return self._pool.submit(self._build, build)
        except RuntimeError:  # the system has no thread for it
            return None

    def _build(self, build: Callable[[], bool]) -> None:
        while self._launching and build():
            pass
