"""The tokens of one request, on their way from the node to the task that awaits them."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio
from sealring_protocol.control.scheduler.requests import RequestDone, ScoresOut, TokenOut

Event = TokenOut | ScoresOut | RequestDone


AT_ONCE: Final = 16
"""Events that are taken at once. One may take the event loop 0.2 ms: 20 log probabilities, or 128
stop strings."""


class Stream:
    """The events of one request: scores of its prompt, its tokens, then its end."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._wake = trio.Event()
        self.done: RequestDone | None = None
        """How the request ended, whether or not anybody takes that."""

    def put(self, event: Event) -> None:
        """Add *event*, and wake the task that waits."""
        if isinstance(event, RequestDone):
            self.done = event
        self._events.append(event)
        self._wake.set()

    async def take(self) -> list[Event]:
        """The events since the last call, in order: `AT_ONCE` at most, after others had their turn.
        Waits until there is at least one."""
        if self._events:
            await trio.lowlevel.checkpoint()
        while not self._events:
            self._wake = trio.Event()
            await self._wake.wait()
        return [self._events.popleft() for _ in range(min(AT_ONCE, len(self._events)))]
