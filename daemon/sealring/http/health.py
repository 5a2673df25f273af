"""What any rank says of itself by HTTP to whoever watches machines: ``/livez``, ``/readyz`` and
``/metrics``, at the config's address `health`.

Nobody needs a key there, as no probe or scraper has to have one. So no answer names a member, an
address, a model or a caller: there are numbers of ranks, causes, counts, sizes and versions, of
this node alone. What the head counts of requests is at its API.

It is served for all lives of a node, as its Unix socket: while the node changes to another model it
is alive, and not ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio
from sealring_protocol.diagnosis import Cause
from sealring_trio.units import format_address, is_loopback
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sealring.dialects.errors import ApiError
from sealring.generation.generation import Generator
from sealring.http import state
from sealring.http.connections import Connections
from sealring.http.metrics import MetricsPage, NodeCollector
from sealring.http.server import api_error, http_error, listen, serve_connections

log = logging.getLogger("sealring")

MAX_CLIENTS: Final = 32
"""Connections at once. A further one takes the place of one that waits for a request."""


async def serve_health(
    address: tuple[str, int],
    generator: Callable[[], Generator | None],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at *address* until cancelled. *generator* gives that of the node's present life. Raises
    `OperationError` when it cannot listen."""
    listeners = await listen(*address, "for the probes", "health")
    at = format_address(*address)
    log.info("/livez, /readyz and /metrics are at http://%s", at)
    if not is_loopback(address[0]):
        log.info("whoever reaches %s sees how this rank is; it names nobody, and asks no key", at)
    task_status.started()
    app = build_health(generator)
    await serve_connections(app, listeners, Connections(MAX_CLIENTS), trio.Event())


def build_health(generator: Callable[[], Generator | None]) -> Starlette:
    """The ASGI app of the three paths."""
    page = MetricsPage()
    page.registry.register(NodeCollector(generator))

    async def readyz(_: Request) -> JSONResponse:
        """Whether this rank does its part; else why not, by cause."""
        present = generator()
        if present is None:
            causes = [Cause.BEGINNING.value]
        else:
            causes = list(dict.fromkeys(each.cause.value for each in present.obstacles()))
            if present.serving and not causes:
                return JSONResponse({"status": "ready", "reasons": []})
        body = {"status": "unavailable", "reasons": causes}
        return JSONResponse(body, 503, {"Retry-After": "1"})

    async def metrics(_: Request) -> Response:
        return await page.answer()

    return Starlette(
        routes=[
            Route("/livez", state.livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ],
        exception_handlers={ApiError: api_error, HTTPException: http_error},
    )
