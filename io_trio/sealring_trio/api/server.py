"""Listening for HTTP, in the event loop of the node, and ending in good order.

hypercorn speaks HTTP on trio; the sockets are opened here, so that an address that is taken is
told as such, and each connection is given up by the kernel when its client takes nothing for
`STUCK_SECONDS`. The server is closed when the requests under way have been finished, which is for
the generator to see to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any, Final, cast

import attrs
import psutil  # type: ignore[import-untyped]
import trio
from hypercorn.config import Config as ServerConfig
from hypercorn.config import Sockets
from hypercorn.trio import serve as serve_asgi
from starlette.routing import BaseRoute

from sealring_trio.api.app import build_app
from sealring_trio.api.gate import MAX_HEADER, is_loopback
from sealring_trio.api.head import ApiHead
from sealring_trio.api.keys import KEY_FILE, ApiKeys, read_keys
from sealring_trio.config import Config
from sealring_trio.errors import OperationError, UserError
from sealring_trio.generation import Generator
from sealring_trio.models import model_name
from sealring_trio.runtime import wall_ms
from sealring_trio.units import format_address

log = logging.getLogger("sealring.api")

BACKLOG: Final = 1024
"""Connections that wait to be accepted."""

HEADER_SECONDS: Final = 20.0
"""Time for a request's header, from the connection or from the last answer on it."""

STUCK_SECONDS: Final = 60.0
"""Time after which a client that takes no bytes is given up."""

CLOSE_SECONDS: Final = 1.0
"""Time for the connections to close when the server does."""


def check_keys(config: Config) -> None:
    """Raise `UserError` when the API would listen beyond loopback with no key to ask for."""
    if config.api is None or is_loopback(config.api[0]):
        return
    if not read_keys(config.state / KEY_FILE).keys:
        raise UserError(
            f"{config.path}: the API listens beyond loopback, at "
            f"{format_address(*config.api)}, and there are no API keys",
            f"Make one first: sealring apikey new NAME --config {config.path}",
        )


@attrs.define
class ApiServer:
    """The HTTP server of one head."""

    head: ApiHead
    pages: Sequence[BaseRoute] = ()
    _closing: trio.Event = attrs.field(factory=trio.Event)
    _closed: trio.Event = attrs.field(factory=trio.Event)

    @classmethod
    def of(cls, generator: Generator, config: Config, pages: Sequence[BaseRoute] = ()) -> ApiServer:
        """The server that *config* asks for."""
        host = config.api[0] if config.api is not None else "localhost"
        return cls(
            ApiHead(
                generator,
                config,
                model_name(generator.model),
                ApiKeys(config.state / KEY_FILE),
                keys_needed=not is_loopback(host),
            ),
            pages,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`. Raises `OperationError` when it cannot listen."""
        address = self.head.config.api
        if address is None:
            raise ValueError("this node has no API")
        app = build_app(self.head, self.pages)
        settings = _Settings(await _listen(*address))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sample)
                task_status.started()
                log.info("the API is at http://%s/v1", format_address(*address))
                if self.head.keys_needed:
                    log.warning(
                        "it is plain HTTP: keys and texts can be read on the way. Put a proxy that "
                        "speaks TLS before it, or reach it through a tunnel"
                    )
                await serve_asgi(
                    cast(Any, app), settings, shutdown_trigger=self._closing.wait, mode="asgi"
                )
                nursery.cancel_scope.cancel()
        finally:
            settings.close()
            self._closed.set()

    async def close(self) -> None:
        """Stop listening, and let the connections end."""
        self._closing.set()
        with trio.move_on_after(2 * CLOSE_SECONDS):
            await self._closed.wait()

    def abort(self) -> None:
        """Cut the connections that are left: a client that takes no bytes holds up whoever waits
        for what was sent to it, cancelled or not."""
        address = self.head.config.api
        for connection in psutil.Process().net_connections("tcp"):
            ours = connection.laddr and address and connection.laddr.port == address[1]
            if ours and connection.raddr and connection.fd >= 0:
                with (
                    contextlib.suppress(OSError),
                    socket.socket(fileno=os.dup(connection.fd)) as held,
                ):
                    held.shutdown(socket.SHUT_RDWR)

    async def _sample(self) -> None:
        while True:
            await trio.sleep(1.0)
            self.head.key_updates()
            self.head.history.sample(self.head.generator.tracer, wall_ms())


async def _listen(host: str, port: int) -> list[socket.socket]:
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise OperationError(
            f"cannot listen at {format_address(host, port)} for the API: {error.strerror or error}",
            "Is another head running with this address? Change 'api' in the config.",
        ) from None
    sockets = [socket.socket(fileno=listener.socket.detach()) for listener in listeners]
    for sock in sockets:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STUCK_SECONDS * 1000))
    return sockets


class _Settings(ServerConfig):
    """hypercorn's, with sockets that listen already and are closed by whoever opened them: it may
    be cancelled before it takes them."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets
        server_log = logging.getLogger("sealring.http")
        server_log.setLevel(logging.WARNING)
        self.backlog = BACKLOG
        self.errorlog = server_log
        self.accesslog = None
        self.include_server_header = False
        self.keep_alive_timeout = HEADER_SECONDS
        self.h11_max_incomplete_size = MAX_HEADER
        self.graceful_timeout = CLOSE_SECONDS

    def create_sockets(self) -> Sockets:
        return Sockets([], list(self._sockets), [])

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
