"""Tells a client of the control socket why it waits."""

from __future__ import annotations

from typing import Final

import trio
from sealring_protocol.diagnosis.why import Cause
from sealring_trio.errors import OperationError

from sealring.daemon.control import Reply
from sealring.daemon.generation import Generator
from sealring.daemon.trace import Trace

FETCHING_SECONDS: Final = 10.0
"""Seconds after which a client is told again how far the ranks are that fetch."""

DOING_SECONDS: Final = 10.0
"""Seconds without a token after which a client is told what is done, and again."""


class Waiting:
    """Tells a client by *reply* why it waits, each time that the reasons change, and now and then
    while ranks fetch, or while the ring has not begun to answer *trace*."""

    def __init__(self, generator: Generator, reply: Reply, trace: Trace | None = None) -> None:
        self._generator = generator
        self._reply = reply
        self._trace = trace
        self._told: list[str] = []
        self._told_at = trio.current_time()

    async def tell(self) -> None:
        """Tell the reasons, if that is due. Raises as `check`."""
        self.check()
        found = [] if self._generator.serving else self._generator.obstacles()
        reasons = [obstacle.constant for obstacle in found]
        now = trio.current_time()
        fetching = any(obstacle.cause is Cause.FETCHING for obstacle in found)
        again = fetching and now >= self._told_at + FETCHING_SECONDS
        if reasons and (again or reasons != self._told):
            self._told_at = now
            text = f"not serving yet: {self._generator.missing()}"
            await self._reply({"event": "waiting", "text": text})
        elif not reasons and now >= self._told_at + DOING_SECONDS and self._trace is not None:
            self._told_at = now
            if text := self._generator.tracer.doing(self._trace):
                await self._reply({"event": "waiting", "text": text})
        self._told = reasons

    def check(self) -> None:
        """Raise `OperationError` if something is in the way that no request should wait for."""
        if (found := self._generator.permanent_obstacle()) is not None:
            raise OperationError(f"the ring cannot serve: {found.what}", found.advice)
