"""The tokens of one request, on their way from the node to the task that awaits them."""

from __future__ import annotations

from collections import deque

import trio
from sealring_protocol.control.scheduler.requests import RequestDone, ScoresOut, TokenOut

Event = TokenOut | ScoresOut | RequestDone


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
        """The events since the last call, in order. Waits until there is at least one."""
        while not self._events:
            self._wake = trio.Event()
            await self._wake.wait()
        events = list(self._events)
        self._events.clear()
        return events
