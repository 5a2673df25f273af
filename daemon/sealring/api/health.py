"""Whether the head can answer requests now, and if not, why.

A rank's node answers PING whatever its engine does. A link on which nothing came for longer than
`patience` in the config (at least `PING_TIMEOUT`) is dead, so a ring that serves has heard from
every rank within that time. The head's own engine is asked once a second, and answers between its
steps.

An answer is brief where the request does not name this server as its host (`gate`).
"""

from __future__ import annotations

from typing import Any, Final

import trio
from sealring_protocol.security.roles import Purpose
from sealring_trio.clock import wall_ms
from sealring_trio.errors import UserError
from sealring_trio.node.expiry import left
from starlette.requests import Request
from starlette.responses import JSONResponse

from sealring.api.errors import ApiError
from sealring.api.head import ApiHead
from sealring.api.history import count_rows

ENGINE_SECONDS: Final = 15.0
"""The head's own engine must have said something within this; a chunk of prefill may come first."""


def faults(head: ApiHead) -> list[str]:
    """The reasons that keep the ring from answering; empty if there are none."""
    if why := head.why():
        return [obstacle["text"] for obstacle in why]
    try:
        head.check_serving()
    except ApiError as error:
        return [error.message]
    runtime = head.generator.runtime
    told = []
    silence = trio.current_time() - runtime.engine_heard
    if silence > ENGINE_SECONDS:
        told.append(f"rank 0: its engine has said nothing for {silence:.0f} s")
        told += [each["text"] for each in head.starved() if each["rank"] is None]
    up = {rank for rank, purpose, _ in runtime.links() if purpose is Purpose.CONTROL}
    for rank, member in enumerate(runtime.node.roster.roster.members):
        if rank and rank not in up:
            told.append(f"rank {rank} ({member.name}): its control link is down")
    return told


def describe(head: ApiHead) -> tuple[int, dict[str, Any]]:
    """The status, and the body, of ``GET /health``."""
    told = faults(head)
    node = head.generator.runtime.node
    body = {
        "status": "ok" if not told else "unavailable",
        "ranks": node.world,
        "faults": told,
        "roster": left(node.roster.roster, wall_ms()),
        "why": head.why(),
        "starved": head.starved(),
    }
    return (503 if told else 200), body


async def health(request: Request) -> JSONResponse:
    """``GET /health``."""
    status, body = describe(request.app.state.head)
    if request.state.brief:
        body = {"status": body["status"]}
    headers = {"Retry-After": "1"} if status != 200 else None
    return JSONResponse(body, status, headers)


def not_ready(head: ApiHead) -> list[str]:
    """Why a request that came now would not be answered; empty if it would be."""
    told = faults(head)
    if head.generator.draining:
        told.append(head.generator.refusal.replace("this node", "the head"))
    try:
        head.keys_needed  # noqa: B018  reads the file
    except UserError as error:
        told.append(error.what)
    waiting = count_rows(head.generator.tracer)["queued"]
    if waiting >= head.config.queue:
        told.append(f"the queue is full: {waiting} choices wait")
    return told


async def readyz(request: Request) -> JSONResponse:
    """``GET /readyz``: whether to send requests here."""
    told = not_ready(request.app.state.head)
    if told:
        body = {"status": "unavailable", "reasons": [] if request.state.brief else told}
        return JSONResponse(body, 503, {"Retry-After": "1"})
    return JSONResponse({"status": "ready", "reasons": []})


async def livez(request: Request) -> JSONResponse:
    """``GET /livez``: whether to let this process live. It does while its event loop answers: what
    keeps a ring from serving is seldom cured by another process."""
    return JSONResponse({"status": "alive"})
