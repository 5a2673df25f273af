"""Sends answers: watches whether the client leaves, and writes the events of a stream.

A client that leaves ends its request at once: `attended` runs the work beside a task that listens
for that alone. A stream sends a comment after a while of silence, since a long prompt can take
minutes to read in, and proxies cut silent connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio
from starlette.types import Receive, Send

from sealring.dialects.errors import ApiError
from sealring.dialects.replies import KEEPALIVE

T = TypeVar("T")

KEEPALIVE_SECONDS: Final = 10.0
"""Silence in a stream after which a comment is sent."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),  # a proxy that compresses keeps events back
    (b"x-accel-buffering", b"no"),  # tells nginx to pass each event on
]


class ClientGone(Exception):
    """The client has left before its answer was complete."""


async def attended(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """The result of *work*, which is cancelled when the client leaves. Raises `ClientGone` then,
    and any `ApiError` of *work*."""
    given: list[T] = []
    failed: ApiError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
        try:
            given.append(await work())
        except ApiError as error:
            failed = error  # out of here by itself, not in a group
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    if not given:
        raise ClientGone
    return given[0]


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class EventStream:
    """A response of server-sent events; several tasks may write."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._writing = trio.Lock()
        self._last = trio.current_time()
        self.opened = False

    async def open(self) -> None:
        """Send the headers of success. From here on an error is an event."""
        self.opened = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS]})

    async def write(self, events: bytes) -> None:
        """Send *events*. Waits while the client does not read."""
        async with self._writing:
            await self._send({"type": "http.response.body", "body": events, "more_body": True})
            self._last = trio.current_time()

    async def close(self) -> None:
        """No more events."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def keep_alive(
        self, events: bytes = KEEPALIVE, seconds: float = KEEPALIVE_SECONDS
    ) -> None:
        """Break every silence of *seconds* by *events*, until cancelled."""
        while True:
            await trio.sleep_until(self._last + seconds)
            if trio.current_time() >= self._last + seconds:
                await self.write(events)
