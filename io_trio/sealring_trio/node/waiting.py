"""Tells a client of the control socket why it waits."""

from __future__ import annotations

from sealring_trio.errors import OperationError
from sealring_trio.node.control import Reply
from sealring_trio.node.generation import Generator


class Waiting:
    """Tells a client by *reply* why it waits, each time that the reasons change."""

    def __init__(self, generator: Generator, reply: Reply) -> None:
        self._generator = generator
        self._reply = reply
        self._told: list[str] = []

    async def tell(self) -> None:
        """Tell the reasons, if they are others than before. Raises as `check`."""
        self.check()
        found = [] if self._generator.serving else self._generator.obstacles()
        reasons = [obstacle.constant for obstacle in found]
        if reasons and reasons != self._told:
            text = f"not serving yet: {self._generator.missing()}"
            await self._reply({"event": "waiting", "text": text})
        self._told = reasons

    def check(self) -> None:
        """Raise `OperationError` if something is in the way that no request should wait for."""
        if (found := self._generator.permanent_obstacle()) is not None:
            raise OperationError(f"the ring cannot serve: {found.what}", found.advice)
