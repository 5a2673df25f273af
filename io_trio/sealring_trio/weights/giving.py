"""Answers what other members ask of this node's model, without getting in the way of its steps.

Each link that asks has one task. It reads a piece in a worker thread, has the node send it, and
takes the next question when that piece has left. All links together read one piece at a time. So
the event loop is held up by the sealing of one piece, some 0.05 ms for 256 KiB, and a member that
never reads its answers costs a piece or two of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVarTuple

import trio
from sealring_protocol.codec.messages import Get, Piece
from sealring_protocol.events import WeightsAsked
from sealring_protocol.node import Node

from sealring_trio.fetching.shared_files import SharedFiles

Ts = TypeVarTuple("Ts")


class GivingOwner(Protocol):
    """The sockets of a node, as its `Giving` sees them."""

    @property
    def node(self) -> Node:
        """The node that is asked."""

    def enter(self, call: Callable[[*Ts, float], None], *arguments: *Ts) -> None:
        """Enter the node by *call*, and carry out what it wants then."""

    def spawn(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run *task* until the node stops."""

    async def sent(self, link: int) -> None:
        """Wait until nothing waits to be sent on connection *link*, or it is over."""


class Giving:
    """Gives files of the model in *folder* to whoever asks *owner*'s node."""

    def __init__(self, owner: GivingOwner, folder: Path) -> None:
        self._owner = owner
        self._files = SharedFiles(folder)
        self._one = trio.CapacityLimiter(1)
        self._asked: dict[int, deque[Get]] = {}  # by connection; at most `MAX_GETS` each

    def asked(self, event: WeightsAsked) -> None:
        """A member asks."""
        if event.link not in self._asked:
            self._asked[event.link] = deque()
            self._owner.spawn(self._answer, event.link)
        self._asked[event.link].append(event.get)

    def over(self, link: int) -> None:
        """Connection *link* is gone."""
        if link in self._asked:
            self._asked[link].clear()

    async def _answer(self, link: int) -> None:
        """Answer what is asked on connection *link* until nothing is."""
        asked = self._asked[link]
        try:
            while asked:
                piece = await self._read(asked.popleft())
                self._owner.enter(self._owner.node.give_piece, link, piece)
                await self._owner.sent(link)
        finally:
            del self._asked[link]

    async def _read(self, get: Get) -> Piece:
        try:
            # A disk that hangs (a share over the network, say) must not keep the node from ending.
            return await trio.to_thread.run_sync(
                self._files.answer, get, limiter=self._one, abandon_on_cancel=True
            )
        except RuntimeError:
            return Piece(0, b"", "the system there gives no thread to read it")
