"""One request and its answer, as an ASGI app takes and gives them.

The body is read when the app asks for it, and no faster. After it, or once the answer has begun,
`receive` waits for the client to leave. What is sent to a client that has gone is thrown away, as
ASGI specifies; the app learns from `receive` that the client is gone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from email.utils import formatdate
from http.client import responses
from typing import Any, Final
from urllib.parse import unquote

import attrs
import h11
import trio
from starlette.types import ASGIApp, Message, Scope

from sealring.api.connections import Place
from sealring.api.errors import ApiError
from sealring.api.http1 import Http1

log = logging.getLogger("sealring.api")

_WITHOUT_BODY: Final = (204, 304)
_REASONS: Final = {**responses, 499: "Client Closed Request", 529: "Overloaded"}
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE)


@attrs.define
class Endpoints:
    """Host and port of a connection's client, and of this server; *secure* if they speak TLS."""

    client: tuple[str, int]
    server: tuple[str, int]
    secure: bool = False


@attrs.define
class Exchange:
    """One request on *http*, to be answered once."""

    _http: Http1
    _request: h11.Request
    _ends: Endpoints
    _place: Place

    fault: ApiError | None = None
    """What is wrong with the request's body, if something is."""

    over: bool = False
    """Whether the whole answer has been given."""

    _body_read: bool = False
    _start: Message | None = None
    _begun: bool = False
    _has_body: bool = True

    async def run(self, app: ASGIApp) -> None:
        """Have *app* answer. Its faults are logged, and go no further."""
        try:
            await app(self._scope(), self._receive, self._send)
        except* Exception:
            log.exception("a request failed")

    def _scope(self) -> Scope:
        target, headers = _in_origin_form(self._request)
        path, _, query = target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._request.http_version.decode(),
            "method": self._request.method.decode(),
            "scheme": "https" if self._ends.secure else "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": self._ends.client,
            "server": self._ends.server,
            "state": {"connection": self._place.number},
        }

    async def _receive(self) -> Message:
        if not self._body_read and not self._begun:
            return await self._part()
        if not self.over and self.fault is None:
            await self._http.until_left()
        return {"type": "http.disconnect"}

    async def _part(self) -> Message:
        """The next part of the body."""
        await self._http.invite()
        try:
            body, more = await self._http.body_part()
        except ApiError as fault:
            self.fault = fault
            self._body_read = True
            return {"type": "http.disconnect"}
        self._body_read = not more
        return {"type": "http.request", "body": body, "more_body": more}

    async def _send(self, message: Message) -> None:
        if self._http.gone:
            await trio.lowlevel.checkpoint()
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            self._begin(self._start)
            self._start = None
        body = message.get("body", b"")
        if body and self._has_body:
            self._http.put(h11.Data(data=body))
        if not message.get("more_body", False):
            self._http.put(h11.EndOfMessage())
            self.over = True
        await self._http.flush()
        if self.over:
            self._http.release()

    def _begin(self, start: Message) -> None:
        self._begun = True
        status: int = start["status"]
        headers = [*start["headers"], (b"date", formatdate(usegmt=True).encode())]
        # A body that has not come whole may never come, and a next request would be part of it.
        if not self._http.discard_body() or self._place.last:
            headers.append((b"connection", b"close"))
        self._has_body = self._request.method != b"HEAD" and status not in _WITHOUT_BODY
        self._http.put(h11.Response(status_code=status, headers=headers, reason=_reason(status)))


def _in_origin_form(request: h11.Request) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The target's path and query, and the headers. Where the target names a host, as for a proxy,
    that host replaces the header's (RFC 9112, 3.2.2)."""
    absolute = _ABSOLUTE.fullmatch(request.target)
    if absolute is None:
        return request.target, list(request.headers)
    host, rest = absolute.groups()
    others = [(name, value) for name, value in request.headers if name != b"host"]
    return rest if rest.startswith(b"/") else b"/" + rest, [(b"host", host), *others]


def answer(
    status: int, headers: Mapping[str, str], body: bytes, *, only_header: bool = False
) -> list[h11.Event]:
    """Send an answer of the server's own, after which the connection ends."""
    told: list[tuple[str, Any]] = [
        *headers.items(),
        ("content-length", str(len(body))),
        ("date", formatdate(usegmt=True)),
        ("connection", "close"),
    ]
    parts = [] if only_header else [h11.Data(data=body)]
    begin = h11.Response(status_code=status, headers=told, reason=_reason(status))
    return [begin, *parts, h11.EndOfMessage()]


def _reason(status: int) -> bytes:
    """What the status line says of *status*, without which some clients do not take it."""
    return _REASONS.get(status, "Error").encode()
