"""The page at ``/`` and its files below ``/dashboard/``.

A page that holds an API key must not run what others wrote, and a model may write anything. So
scripts and styles come from its own files alone, nothing is loaded from elsewhere, no text is ever
taken for markup, and no other page may frame it: `POLICY` has the browser enforce all of it. Its
scripts may make one policy of trusted types, ``sealring``, which begins the worker that reads
Markdown.
"""

from __future__ import annotations

from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from sealring.dashboard.events import Events

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
    files = _Files()
    return [
        Route("/", files.page),
        Route("/v1/cluster/events", Events(), methods=["GET"]),
        Mount("/dashboard", files),
    ]


class _Files:
    """The files, which are read once. No disk or thread is asked for a stranger's request."""

    def __init__(self) -> None:
        paths = [path for path in FILES.rglob("*") if path.is_file()]
        self._files = {
            f"/dashboard/{path.relative_to(FILES).as_posix()}": _read(path) for path in paths
        }

    async def page(self, request: Request) -> Response:
        """``GET /``."""
        return self._answer(request, "/dashboard/index.html")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``GET /dashboard/...``."""
        request = Request(scope)
        if request.method not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        await self._answer(request, scope["path"])(scope, receive, send)

    def _answer(self, request: Request, path: str) -> Response:
        if (file := self._files.get(path)) is None:
            raise HTTPException(404)
        content, headers = file
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """What the file at *path* has, and the headers of its answer."""
    content, kind = path.read_bytes(), guess_type(path.name)[0] or "text/plain"
    kind += "; charset=utf-8" if kind.startswith("text/") else ""
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    return content, {**_HEADERS, "content-type": kind, "etag": tag}
