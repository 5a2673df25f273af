"""The page at ``/`` and its files below ``/dashboard/``.

A page that holds an API key must not run what others wrote, and a model may write anything. So
scripts and styles come from its own files alone, nothing is loaded from elsewhere, no text is ever
taken for markup, and no other page may frame it: `POLICY` has the browser enforce all of it. Its
scripts may make one policy of trusted types, ``sealring``, which begins the worker that reads
Markdown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from sealring_trio.dashboard.events import Events

FILES: Final = Path(__file__).parent / "static"

POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types sealring",
    ]
)

_HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # A newer sealring has newer files of the same names: the browser asks each time.
    "cache-control": "no-cache",
}


def routes() -> list[BaseRoute]:
    """The page, to be mounted in the head's app."""
    return [
        Route("/", _page),
        Route("/v1/cluster/events", Events(), methods=["GET"]),
        Mount("/dashboard", _Files(directory=FILES)),
    ]


async def _page(request: Request) -> FileResponse:
    """``GET /``."""
    return FileResponse(FILES / "index.html", headers=_HEADERS)


class _Files(StaticFiles):
    """The files, with the headers of the page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await super().__call__(scope, receive, answer)
