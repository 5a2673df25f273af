"""The HTTP API of a head: what it needs, and serving it whenever the node is the head.

A newer roster may make another member the head while the ring runs. The new head begins to serve,
and the former one closes its port. A node keeps one `ApiHead` for its life, so its counters go on.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from sealring_model.text.tokens import has_chat_template
from sealring_trio.errors import UserError
from sealring_trio.fetching.members import Pause
from sealring_trio.node import service as node_service
from sealring_trio.node.service import NodeSetup
from sealring_trio.units import format_address, is_loopback, is_unspecified

from sealring.files.cluster import read_coordinator_key
from sealring.files.config import Config
from sealring.files.models import NO_TEMPLATE, check_text
from sealring.generation.generation import Generator
from sealring.http.keys import KEY_FILE, read_keys
from sealring.http.tls import read_pair
from sealring.joining.door import Door

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from sealring.http.server import ApiServer

log = logging.getLogger("sealring")


def prepare(config: Config, pause: Pause | None = time.sleep) -> NodeSetup[Config]:
    """As `sealring_trio.node.service.prepare`, and check the coordinator's key, where it lies here,
    and what a head alone needs. Raises `UserError`."""
    setup = node_service.prepare(config, pause)
    if config.coordinator_key is not None:
        _check_coordinator_key(config.coordinator_key, setup)
    if setup.roster.roster.rank(setup.identity.id) == 0:
        check_text(setup.model)
        check_api(config)
        if not has_chat_template(setup.model):
            log.warning(NO_TEMPLATE)
    return setup


def _check_coordinator_key(path: Path, setup: NodeSetup[Config]) -> None:
    """Raise `UserError` unless the key at *path* signs rosters. One from before a change of the
    coordinator keeps no node from beginning: the change came without a hand on this machine."""
    roster = setup.roster.roster
    try:
        read_coordinator_key(path, roster.coordinator(setup.identity.coordinator))
    except UserError as error:
        if roster.appointment is None:
            raise
        log.warning("%s. %s", error.what, error.advice)


def check_api(config: Config) -> None:
    """Raise `UserError` when the API would listen beyond loopback without a key, at the address
    that is for other nodes, or cannot speak the TLS that *config* asks for."""
    if config.api is None:
        return
    if config.listen[1] == config.api[1] and (
        config.listen[0] == config.api[0] or is_unspecified(config.listen[0])
    ):
        raise UserError(
            f"{config.path}: 'listen' and 'api' are one address, {format_address(*config.api)}",
            "Other nodes dial 'listen', and clients 'api': give each a port of its own, as 7470 "
            "and 7480.",
        )
    if config.tls is not None:
        read_pair(*config.tls)
    if is_loopback(config.api[0]):
        return
    if not read_keys(config.state / KEY_FILE).keys:
        raise UserError(
            f"{config.path}: the API listens beyond loopback, at "
            f"{format_address(*config.api)}, and there are no API keys",
            f"Make one first: sealring apikey new NAME --config {config.path}",
        )


def why_not_head(config: Config, model: Path) -> str:
    """What would keep the node of *config* from serving, if a roster made it the head, and what to
    do; empty if nothing would."""
    try:
        check_text(model)
        check_api(config)
    except UserError as error:
        return f"{error.what}. {error.advice}"
    return ""


class HeadApi:
    """Serves the API of *generator* as *config* says, while the node is rank 0; *door* is the
    node's."""

    def __init__(self, generator: Generator, config: Config, door: Door) -> None:
        self._generator = generator
        self._runtime = generator.runtime
        self._config = config
        self._door = door
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

    @property
    def app(self) -> ASGIApp | None:
        """What it serves; None while it serves nothing."""
        return None if self._server is None else self._server.app

    async def close(self) -> None:
        """Stop listening, and let the connections end."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def reread(self, config: Config) -> None:
        """From now on with what *config* says of `REREAD`, and with the pair that the files of its
        certificate hold. Keys are read again at each request."""
        self._config = config
        if self._made is not None:
            self._made.head.config = config
            if self._made.head.tls is not None:
                await self._made.head.tls.look()

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
        from sealring.service.newcomers import NewcomersApi, newcomers_at  # noqa: PLC0415

        check_api(self._config)
        if self._made is None:
            self._made = ApiServer.of(
                self._generator,
                self._config,
                newcomers_at(self._door),
                [*NewcomersApi(self._door, self._config).routes(), *routes()],
            )
        else:
            self._made = ApiServer(self._made.head, self._made.pages)
        await nursery.start(self._made.run)
        self._server = self._made
