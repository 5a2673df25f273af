"""What the node gives for one request, from its event loop's side to whoever awaits it."""

from __future__ import annotations

from collections import deque

import trio
from sealring_protocol.control.scheduler.requests import RequestDone, TokenOut


class Stream:
    """What comes of one request: tokens, and then its end."""

    def __init__(self) -> None:
        self._events: deque[TokenOut | RequestDone] = deque()
        self._wake = trio.Event()

    def put(self, event: TokenOut | RequestDone) -> None:
        """The node gave *event*."""
        self._events.append(event)
        self._wake.set()

    async def take(self) -> list[TokenOut | RequestDone]:
        """The events since the last call, in order; waits for one if there are none."""
        while not self._events:
            self._wake = trio.Event()
            await self._wake.wait()
        events = list(self._events)
        self._events.clear()
        return events
