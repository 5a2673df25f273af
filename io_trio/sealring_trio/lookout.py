"""One thread that looks at several sockets without sleeping, in place of one for each.

Where a step comes every few milliseconds, to wake a thread for it takes as long as what that then
does. So it had better not sleep. But several that do not keep the interpreter from one another, and
from the one that has got something: each look is a turn, for which all others wait asleep. So of
the threads that would look, one does, for all of them, and sees to what comes on whichever socket;
the others sleep. When nothing has come for a while they part, each to wait in the kernel for its
own socket.
"""

from __future__ import annotations

import select
import threading
import time
from typing import Protocol


class Watched(Protocol):
    """A socket that is looked at."""

    def fileno(self) -> int:
        """Its number, the same as long as it is watched."""
        ...

    def look(self) -> bool:
        """See to what is there, if anything is; whether more can come."""
        ...


class Lookout:
    """Whoever looks. Any thread may call `watch`, each for a socket of its own."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._watched: dict[int, Watched] = {}  # replaced, never changed
        self._manned = False

    def watch(self, own: Watched, soon: float) -> None:
        """Have *own* looked at, by this thread or by one that looks already, until no more can come
        on it, or nothing has come on any for *soon* seconds. What `Watched.look` raises is raised
        by whichever thread looks, which then has no more to do with this."""
        number = own.fileno()
        with self._change:
            self._watched = {**self._watched, number: own}
            while self._manned and self._watched.get(number) is own:
                self._change.wait()
            if self._watched.get(number) is not own:
                return
            self._manned = True
        silent = False
        try:
            silent = self._look(own, soon)
        finally:
            with self._change:
                self._manned = False
                self._watched = {} if silent else self._without(number)
                self._change.notify_all()

    def _look(self, own: Watched, soon: float) -> bool:
        """Look until no more can come on *own*, or there was silence; whether it was that."""
        watched: dict[int, Watched] = {}
        until = time.perf_counter() + soon
        while True:
            if watched is not self._watched:
                watched = self._watched
                poll = select.poll()
                for number in watched:
                    poll.register(number, select.POLLIN)
            ready = poll.poll(0)
            for number, _ in ready:
                if not watched[number].look():
                    if watched[number] is own:
                        return False
                    self._free(number)
            now = time.perf_counter()
            if ready:
                until = now + soon
            elif now > until:
                return True

    def _free(self, number: int) -> None:
        """No more can come on *number*."""
        with self._change:
            self._watched = self._without(number)
            self._change.notify_all()

    def _without(self, number: int) -> dict[int, Watched]:
        return {other: watched for other, watched in self._watched.items() if other != number}
