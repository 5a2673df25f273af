"""The thread that waits for the device and sends answers, while the compute thread launches on.

Launching does not always return at once. Once MLX has a certain number of operations queued, the
next launch waits until the device has worked some off (seen on the CPU back end, at about a
hundred). A thread that both launched and answered would send a step's result only when most of the
next step is done, and the rank that waits for it would idle. So one thread launches; this one
waits, seals and sends, in the order of launching.

Sealing and sending need the GIL. So graphs that are not needed yet are built (see `lookahead`) only
once every answer is out, and this thread then wakes the compute thread. Where graphs are launched
ahead as well there is no time to wait for that; but a decode is launched ahead only once the decode
before it is done, so this thread wakes the compute thread after each answer.

MLX lets any thread wait for an array that is being computed, but two threads must not use one
meanwhile. The arrays of an `InFlight` are for this thread alone (`tensors.outgoing`), and this
thread builds no graph.
"""

from __future__ import annotations

import queue
import threading
from typing import Final

from sealring_model.engine.channel import Channel, ChannelClosed
from sealring_model.engine.executor import Executor
from sealring_model.engine.inflight import InFlight

_MAX_IN_FLIGHT: Final = 2
"""Steps launched and not answered, at most: one that the device works on, and the next."""


class Answers:
    """Sends the answer to each step once it is ready. Call from the compute thread only."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Final = channel
        self._queue: Final[queue.Queue[tuple[Executor, InFlight] | None]] = queue.Queue()
        self._slots: Final = threading.Semaphore(_MAX_IN_FLIGHT)
        self._thread: Final = threading.Thread(target=self._run, name="answers", daemon=True)
        self.count = 0
        self._thread.start()

    def reserve(self) -> None:
        """Wait until one more step may be launched; call `put` next."""
        self._slots.acquire()

    def put(self, executor: Executor, in_flight: InFlight) -> None:
        """Send the answer to *in_flight*, of *executor*, once it is done."""
        self._queue.put((executor, in_flight))

    @property
    def is_idle(self) -> bool:
        """Every answer is out."""
        return not self._queue.unfinished_tasks

    def drain(self) -> None:
        """Wait until every answer is out."""
        self._queue.join()

    def finish(self) -> None:
        """Wait until every answer is out, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            works_ahead, launches_ahead = job[0].works_ahead, job[0].launches_ahead
            try:
                self._answer(*job)
            except ChannelClosed as error:
                self._channel.end(error)
            finally:
                # Before those who wait go on: the job holds an executor, and that holds a model.
                del job
                self._slots.release()
                self._queue.task_done()
            if works_ahead and (launches_ahead or self.is_idle):
                self._channel.wake()

    def _answer(self, executor: Executor, in_flight: InFlight) -> None:
        answer = executor.finish(in_flight)
        self.count += 1
        if not answer.failed:
            for told in in_flight.pending_answer.preface():
                self._channel.send(told)
        self._channel.send(answer)
