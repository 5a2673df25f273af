"""The thread that waits for the device and answers, while the compute thread launches on.

To launch is not to return at once: once MLX has a certain number of operations queued, the call
that hands it more waits until the device has worked some off (seen on the CPU back end, with
about a hundred). A thread that launches the next step would tell the last one's result only when
most of the next is done, and the rank that waits for it would idle. So one thread launches and
this one waits, seals and sends, in the order of launching.

Whoever waits for the answer waits for this thread, and both need the interpreter. So graphs that
are not needed yet are built (see `lookahead`) once every answer is out, of which this thread tells.
Where they are launched as well there is no time to wait for that; but a decode is launched once the
one before is done, and so this thread tells of each.

MLX lets any thread wait for an array that is on its way, but not two threads use one while it is:
what `InFlight` holds is for this thread alone (`tensors.outgoing`), and no graph is made here.
"""

from __future__ import annotations

import queue
import threading
from typing import Final

from sealring_model.engine.channel import Channel, ChannelClosed
from sealring_model.engine.executor import Executor
from sealring_model.engine.inflight import InFlight

_MAX_IN_FLIGHT: Final = 2
"""Steps launched and not yet answered, at most: one that the device works on, and the next."""


class Answers:
    """Answers to steps, sent as each is ready. All but its own thread's work is for one thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Final = channel
        self._queue: Final[queue.Queue[tuple[Executor, InFlight] | None]] = queue.Queue()
        self._slots: Final = threading.Semaphore(_MAX_IN_FLIGHT)
        self._thread: Final = threading.Thread(target=self._run, name="answers", daemon=True)
        self.count = 0
        self._thread.start()

    def reserve(self) -> None:
        """Wait until one more step may be launched; `put` follows."""
        self._slots.acquire()

    def put(self, executor: Executor, in_flight: InFlight) -> None:
        """Answer *in_flight* once it is done."""
        self._queue.put((executor, in_flight))

    @property
    def is_idle(self) -> bool:
        """Every answer is out."""
        return not self._queue.unfinished_tasks

    def drain(self) -> None:
        """Wait until every answer is out."""
        self._queue.join()

    def finish(self) -> None:
        """Wait for what is on the device, and end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            builds_ahead, launches_ahead = job[0].builds_ahead, job[0].launches_ahead
            try:
                self._answer(*job)
            except ChannelClosed as error:
                self._channel.end(error)
            finally:
                # Before anybody who waits goes on: it holds an executor, and that a model.
                del job
                self._slots.release()
                self._queue.task_done()
            if builds_ahead and (launches_ahead or self.is_idle):
                self._channel.wake()

    def _answer(self, executor: Executor, in_flight: InFlight) -> None:
        answer = executor.finish(in_flight)
        self.count += 1
        if not answer.failed:
            for told in in_flight.pending_answer.logprobs():
                self._channel.send(told)
        self._channel.send(answer)
