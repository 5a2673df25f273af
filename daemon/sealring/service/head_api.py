"""Serves the HTTP API of a node whenever the node is the head.

A newer roster may make another member the head while the ring runs. The new head begins to serve,
and the former one closes its port. A node keeps one `ApiHead` for its life, so its counters go on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio
from sealring_trio.errors import UserError

from sealring.files.config import Config
from sealring.generation.generation import Generator
from sealring.service.setup import check_api

if TYPE_CHECKING:
    from sealring.http.server import ApiServer

log = logging.getLogger("sealring")


class HeadApi:
    """Serves the API of *generator* as *config* says, while the node is rank 0."""

    def __init__(self, generator: Generator, config: Config) -> None:
        self._generator = generator
        self._runtime = generator.runtime
        self._config = config
        self._made: ApiServer | None = None  # the last
        self._server: ApiServer | None = None  # while it serves

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Raises `UserError` or `OperationError` if the node is the head
        from the start and cannot serve. Later such an error is only logged: the ring runs on."""
        async with trio.open_nursery() as nursery:
            if self._is_head and self._config.api is not None:
                await self._serve(nursery)
            task_status.started()
            while True:
                changed = self._runtime.roster_changed
                await self._follow(nursery)
                await changed.wait()

    async def close(self) -> None:
        """Stop listening, and let the connections end."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    @property
    def _is_head(self) -> bool:
        return self._runtime.node.rank == 0

    async def _follow(self, nursery: trio.Nursery) -> None:
        """Begin to serve if the node has become the head; stop if it is the head no more."""
        if not self._is_head:
            if self._server is not None:
                head = self._runtime.node.roster.roster.members[0].name
                log.info("this node is the head no more, and its API closes; ask %s", head)
                await self.close()
        elif self._config.api is None:
            log.info("this node is the head, and its config says api = 'off': it serves no HTTP")
        elif self._server is None:
            try:
                await self._serve(nursery)
            except UserError as error:
                log.warning(
                    "this node is the head now, and serves no API: %s. %s Then start it again",
                    error.what,
                    error.advice,
                )

    async def _serve(self, nursery: trio.Nursery) -> None:
        # Imports that only a node which serves the API pays for.
        from sealring.dashboard.pages import routes  # noqa: PLC0415
        from sealring.http.server import ApiServer  # noqa: PLC0415

        check_api(self._config)
        if self._made is None:
            self._made = ApiServer.of(self._generator, self._config, routes())
        else:
            self._made = ApiServer(self._made.head, self._made.pages)
        await nursery.start(self._made.run)
        self._server = self._made
