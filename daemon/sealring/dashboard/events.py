"""``GET /v1/cluster/events``: a stream with the state of the ring every second.

Each server-sent event has the ring as ``/v1/cluster`` has it, the samples since the last event, and
the requests that have ended since, latest first. The first event has the last minutes, and the
latest few requests. Nothing is repeated, so an event costs one second's worth of data.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from typing import Any, Final

import attrs
import trio
from starlette.types import Receive, Scope, Send

from sealring.dialects.errors import unavailable
from sealring.dialects.replies import event
from sealring.http import cluster
from sealring.http.gate import Caller
from sealring.http.head import ApiHead
from sealring.http.streaming import ClientGone, EventStream, attended

PERIOD: Final = 1.0
"""Seconds between two events."""

MAX_LISTENERS: Final = 32
"""Most streams at once; each costs the head's event loop about a millisecond a second."""

PAST: Final = 12
"""Requests that are over in one event at most."""


class Events:
    """The ASGI endpoint."""

    def __init__(self) -> None:
        self._listeners = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell one listener."""
        if self._listeners >= MAX_LISTENERS:
            raise unavailable(f"{MAX_LISTENERS} pages are being fed already.", "overloaded")
        head: ApiHead = scope["app"].state.head
        caller: Caller = scope["state"]["visitor"]
        stream = EventStream(send)
        if scope["method"] == "HEAD":
            await stream.open()
            await stream.close()
            return
        self._listeners += 1
        try:
            await attended(receive, partial(_tell, head, caller, stream))
        except ClientGone:
            pass
        finally:
            self._listeners -= 1


async def _tell(head: ApiHead, caller: Caller, stream: EventStream) -> None:
    """Feed *stream* until the head stops, or *caller* may not stay."""
    subscription = Subscription(head)
    await stream.open()
    while caller.may_stay(head):
        await stream.write(event(subscription.take()))
        if head.generator.draining:
            break
        await trio.sleep(PERIOD)
    await stream.close()


@attrs.define
class Subscription:
    """What one listener has not been sent yet."""

    _head: ApiHead
    _sampled_ms: int = 0
    _ended: float = -math.inf

    def take(self) -> dict[str, Any]:
        """The ring now, and what is new."""
        history, tracer = self._head.history, self._head.generator.tracer
        samples = history.columns(self._sampled_ms)
        over = [
            trace
            for trace in islice(tracer.latest, PAST)
            if trace.ended is not None and trace.ended > self._ended
        ]
        if history.samples:
            self._sampled_ms = history.samples[-1].at_ms
        if over and over[0].ended is not None:
            self._ended = over[0].ended
        return {
            "cluster": cluster.describe(self._head),
            "samples": samples,
            "over": [trace.describe() for trace in over],
        }
