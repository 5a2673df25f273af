"""One thread that looks at several sockets without sleeping, in place of one for each.

Where a step comes every few milliseconds, to wake a thread for it takes as long as what that then
does. So it had better not sleep. But several that do not keep the interpreter from one another, and
from the one that has got something: each look is a turn, for which all others wait asleep. So of
the threads that would look, one does, for all of them, and sees to what comes on whichever socket;
the others sleep. Where what came has given the one that looks something to do that takes its time,
another looks meanwhile. When nothing has come for a while they part, each to wait in the kernel for
its own socket.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Final, Protocol


class Watched(Protocol):
    """A socket that is looked at."""

    def fileno(self) -> int:
        """Its number, the same as long as it is watched."""
        ...

    def look(self) -> bool:
        """See to what is there, if anything is; whether more can come. Raises nothing."""
        ...


class Lookout:
    """Whoever looks. Any thread may call `watch`, each for a socket of its own. *clock* gives
    seconds; *is_busy* tells whether the thread that asks has something else to do."""

    def __init__(self, clock: Callable[[], float], is_busy: Callable[[], bool]) -> None:
        self._clock: Final = clock
        self._is_busy: Final = is_busy
        self._change: Final = threading.Condition()
        self._watched: dict[int, Watched] = {}  # replaced, never changed
        self._manned = False

    def watch(self, own: Watched, soon: float) -> bool:
        """Have *own* looked at, by this thread or by one that looks already, until no more can come
        on it, or nothing has come on any for *soon* seconds. Or until this thread looks and is
        busy: then true, others look at *own* as well, and this is to be called again."""
        number = own.fileno()
        with self._change:
            self._watched = {**self._watched, number: own}
            while self._manned and self._watched.get(number) is own:
                self._change.wait()
            if self._watched.get(number) is not own:
                return False
            self._manned = True
        silent = True
        try:
            silent = self._look(own, soon)
        finally:
            with self._change:
                self._manned = False
                if silent:
                    self._watched = {}
                self._change.notify_all()
                goes_on = number in self._watched
        return goes_on

    def _look(self, own: Watched, soon: float) -> bool:
        """Look for as long as `watch` tells; whether it was silence that ended it."""
        watched: dict[int, Watched] = {}
        until = self._clock() + soon
        while True:
            if watched is not self._watched:
                watched = self._watched
                poll = select.poll()
                for number in watched:
                    poll.register(number, select.POLLIN)
            ready = poll.poll(0)
            for number, _ in ready:
                if not watched[number].look():
                    self._free(number)
                    if watched[number] is own:
                        return False
            now = self._clock()
            if ready:
                until = now + soon
                if self._is_busy():
                    return False
            elif now > until:
                return True

    def _free(self, number: int) -> None:
        """No more can come on *number*."""
        with self._change:
            self._watched = {n: other for n, other in self._watched.items() if n != number}
            self._change.notify_all()
