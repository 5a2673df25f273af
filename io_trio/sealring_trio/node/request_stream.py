"""The tokens of one request, on their way from the node to the task that awaits them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import trio
from sealring_protocol.control.scheduler.requests import RequestDone, ScoresOut, TokenOut

Event = TokenOut | ScoresOut | RequestDone


AT_ONCE: Final = 16
"""Events that are taken at once. One may take the event loop 0.2 ms: 20 log probabilities, or 128
stop strings."""


Counted = Callable[[int], None]
"""Called with the bytes of what comes of a request, as it comes. It must not raise."""

_EVENT: Final = 200
_LIKELY: Final = 80
"""Bytes of an event, and of each token with its log probability in it."""


def size_of(events: Iterable[Event]) -> int:
    """About as many bytes as *events* take."""
    size = 0
    for event in events:
        match event:
            case TokenOut(logprobs=None) | RequestDone():
                size += _EVENT
            case TokenOut(logprobs=told) if told is not None:
                size += _EVENT + _LIKELY * (1 + len(told.ids))
            case ScoresOut(scores=scores):
                size += _EVENT + _LIKELY * (len(scores.chosen) + len(scores.ids))
    return size


class Stream:
    """The events of one request: scores of its prompt, its tokens, then its end. *counted* hears of
    the size of each that comes: whoever takes them may be slower than the ring."""

    def __init__(self, counted: Counted | None = None) -> None:
        self._counted = counted
        self._events: deque[Event] = deque()
        self._wake = trio.Event()
        self.done: RequestDone | None = None
        """How the request ended, whether or not anybody takes that."""

    def put(self, event: Event) -> None:
        """Add *event*, and wake the task that waits."""
        if isinstance(event, RequestDone):
            self.done = event
        self._events.append(event)
        if self._counted is not None:
            self._counted(size_of((event,)))
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
